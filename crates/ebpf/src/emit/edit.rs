//! Edits of a frame: writes of bytes, updates of checksums, and removal of leading headers.
//!
//! Input: positions as [`FrameOffset`]s. Output: stores. Only frames taken from the host may be
//! edited ([`Target::redirecting`](super::Target::redirecting)); observed frames stay unchanged
//! (CONTRACT 2).
//!
//! At every hook, an edit invalidates every proof and every computed position; using an invalid one
//! is an [`UnfitReason`] error. A twin therefore parses and decides first, saves the positions that
//! it will need ([`Scope::to_frame_offset`], [`Scope::save_layers`]), edits, and restores its
//! positions.
//!
//! At tc, programs edit through helpers, which unclone a shared head, handle fragments, and know
//! whether a checksum has been filled in. At XDP, they edit in place or, where computed packet
//! pointers are not allowed, through a helper, and cannot know whether a checksum has been filled
//! in. A block whose edit fails is unsure. At tc, [`Scope::make_writable`] covers the entire range
//! that a twin will edit, so any failure precedes the twin's first edit. At XDP, every edit checks
//! its own bounds.

use super::builder::Builder;
use super::handle::{FrameOffset, FramePos, Layers, Num, PosBase, Transport, Value, Width, be16};
use super::lower::{PACKET_OFFSET_MAX, offset_too_far_error};
use super::scope::{Cmp, Scope};
use super::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R5, R6, R7, R8, R10, Reg, Size};
use crate::program::Hook;

/// The data that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumCoverage {
    /// The IPv4 header, which contains the checksum.
    Header,
    /// A transport header and its payload, such as those of TCP.
    Transport {
        /// True if the edited number is part of the pseudo header, as addresses are.
        pseudo: bool,
        /// True if a checksum of 0 means that the packet has no checksum, as in UDP.
        may_be_absent: bool,
    },
}

/// `BPF_F_PSEUDO_HDR`: the edited number is part of the pseudo header.
const BPF_F_PSEUDO_HDR: i32 = 0x10;
/// `BPF_F_MARK_MANGLED_0`: a checksum of 0 means that the packet has no checksum.
const BPF_F_MARK_MANGLED_0: i32 = 0x20;

/// The layers of a frame in a form that stays valid after edits.
#[derive(Clone, Copy, Debug)]
pub struct SavedLayers<'s> {
    pub(super) layers: Layers<'s>,
    pub(super) at: FrameOffset<'s>,
    pub(super) l3: Option<FrameOffset<'s>>,
    pub(super) l4: Option<FrameOffset<'s>>,
}

impl<'s> FrameOffset<'s> {
    /// Returns the offset `bytes` bytes after the first byte of the frame.
    #[must_use]
    pub fn from_start(bytes: u16) -> Self {
        Self { base: Value::Const(0), off: bytes, reach: bytes.into() }
    }

    /// Returns the offset that is `bytes` bytes after this offset.
    #[must_use]
    pub fn plus_bytes(self, bytes: u16) -> Self {
        let off = self.off.saturating_add(bytes);
        Self { off, reach: self.reach + u32::from(bytes), ..self }
    }
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    // ---- positions

    /// Converts a position to an offset from the first byte of the frame. Unlike the position, the
    /// offset stays valid after edits.
    pub fn to_frame_offset(&mut self, at: FramePos<'s>) -> FrameOffset<'s> {
        let b = self.builder();
        let base = match at.base {
            PosBase::Frame => Value::Const(0),
            PosBase::Slot(_) => {
                b.fetch_distance(FramePos { offset: 0, ..at }, R0);
                Value::Num(b.store_in_new_slot(R0))
            }
        };
        FrameOffset { base, off: at.offset, reach: at.reach }
    }

    /// Converts an offset to a position in the frame as edited so far.
    pub fn position_at(&mut self, offset: FrameOffset<'s>) -> FramePos<'s> {
        let unsure = self.builder().unsure_label();
        let epoch = self.builder().epoch;
        let frame = FramePos { epoch, ..FramePos::START };
        match offset.base {
            Value::Const(_) => FramePos { offset: offset.off, reach: offset.off.into(), ..frame },
            Value::Num(num) => {
                let max = offset.reach.saturating_sub(offset.off.into());
                let max = u16::try_from(max).unwrap_or(u16::MAX);
                let base = self.builder().move_position_by(frame, num, max, unsure);
                FramePos { offset: offset.off, reach: base.reach + u32::from(offset.off), ..base }
            }
        }
    }

    /// Returns the offset as the number of bytes from the first byte of the frame.
    pub fn distance_from_start(&mut self, offset: FrameOffset<'s>) -> Num<'s> {
        self.fetch_offset(offset, R0);
        self.builder().store_in_new_slot(R0)
    }

    /// Returns the offset as it is after the removal of the frame's first `bytes` bytes; 0 if the
    /// offset was within these bytes.
    pub fn offset_after_removal(&mut self, offset: FrameOffset<'s>, bytes: u16) -> FrameOffset<'s> {
        if let Value::Const(_) = offset.base {
            return FrameOffset::from_start(offset.off.saturating_sub(bytes));
        }
        self.fetch_offset(offset, R1);
        let b = self.builder();
        let first = b.asm.new_label();
        b.asm.push(Insn::mov(R0, 0));
        b.asm.jump_if(Cond::Le, R1, i32::from(bytes), first);
        b.asm.compute(R0, R1, Alu::Sub, i32::from(bytes));
        b.bind(first);
        FrameOffset { base: b.store_in_new_slot(R0).into(), off: 0, reach: offset.reach }
    }

    /// Saves layers in a form that stays valid after edits of the frame.
    pub fn save_layers(&mut self, layers: Layers<'s>) -> SavedLayers<'s> {
        let at = self.to_frame_offset(layers.at);
        let l3 = layers.l3.map(|l3| self.to_frame_offset(l3));
        let l4 = layers.l4.map(|l4| self.to_frame_offset(l4.at));
        SavedLayers { layers, at, l3, l4 }
    }

    /// Restores saved layers for the frame as edited so far.
    pub fn restore_layers(&mut self, kept: SavedLayers<'s>) -> Layers<'s> {
        let at = self.position_at(kept.at);
        let l3 = kept.l3.map(|l3| self.position_at(l3));
        let l4 = kept.layers.l4.zip(kept.l4);
        let l4 = l4.map(|(l4, offset)| Transport { at: self.position_at(offset), ..l4 });
        Layers { at, l3, l4, ..kept.layers }
    }

    // ---- edits

    /// Makes the frame writable up to `end` at tc. If this fails, the block takes the `unsure`
    /// exit. At XDP, frames are always writable.
    pub fn make_writable(&mut self, end: FrameOffset<'s>) {
        if !self.check_editable() {
            return;
        }
        if self.hook() == Hook::Tc {
            self.fetch_offset(end, R2);
            let b = self.builder();
            b.asm.push(Insn::mov(R1, R6));
            b.call_helper_or_unsure(Helper::SkbPullData);
        }
        self.builder().reload_after_edit();
    }

    /// Emits code that writes a number at an offset in the frame, in network byte order.
    pub fn put<T: Width>(&mut self, to: FrameOffset<'s>, value: impl Into<Value<'s>>) {
        let value = value.into();
        let size = T::SIZE;
        self.write(
            to,
            size.bytes() as u16,
            |b| fetch_in_network_order(b, value, size, R0),
            |b, base, at| {
                b.asm.push(Insn::store(size, base, at, R0));
            },
        );
    }

    /// Emits code that writes these bytes at an offset in the frame.
    pub fn put_bytes(&mut self, to: FrameOffset<'s>, bytes: &[u8]) {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.write(
            to,
            length,
            |_| (),
            |b, base, at| {
                // Words are written from last to first, because the verifier of Linux 6.1 treats
                // the first four bytes of a stack slot as a value that must not be partially
                // overwritten.
                let (words, rest) = bytes.as_chunks::<4>();
                let (halves, last) = rest.as_chunks::<2>();
                let mut at = at + length.cast_signed();
                let mut store = |size: Size, value: i32| {
                    at -= size.bytes() as i16;
                    b.asm.push(Insn::store(size, base, at, value));
                };
                last.iter().for_each(|byte| store(Size::B, (*byte).into()));
                halves.iter().for_each(|half| store(Size::H, u16::from_ne_bytes(*half).into()));
                words.iter().rev().for_each(|word| store(Size::W, i32::from_ne_bytes(*word)));
            },
        );
    }

    /// Emits code that updates the checksum at an offset after a change to a number of type `T`
    /// that the checksum covers (RFC 1624, equation 3). The result is bit-identical to the
    /// kernel's.
    pub fn update_checksum<T: Width>(
        &mut self,
        checksum: FrameOffset<'s>,
        covers: ChecksumCoverage,
        (old, new): (Num<'s>, Value<'s>),
    ) {
        if !self.check_editable() {
            return;
        }
        if self.hook() == Hook::Xdp {
            return self.update_checksum_in_place::<T>(checksum, covers, (old, new));
        }
        let size = T::SIZE.bytes() as i32;
        let (helper, flags) = match covers {
            ChecksumCoverage::Header => (Helper::L3ChecksumReplace, size),
            ChecksumCoverage::Transport { pseudo, may_be_absent } => {
                let pseudo = if pseudo { BPF_F_PSEUDO_HDR } else { 0 };
                let absent = if may_be_absent { BPF_F_MARK_MANGLED_0 } else { 0 };
                (Helper::L4ChecksumReplace, size | pseudo | absent)
            }
        };
        let b = self.builder();
        fetch_in_network_order(b, old.into(), T::SIZE, R0);
        b.asm.push(Insn::mov(R3, R0));
        fetch_in_network_order(b, new, T::SIZE, R0);
        b.asm.push(Insn::mov(R4, R0));
        b.invalidate_registers();
        self.fetch_offset(checksum, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.asm.push(Insn::mov(R5, flags));
        b.call_helper_or_unsure(helper);
        b.reload_after_edit();
    }

    /// Emits code that removes the frame's bytes before `first`. At least 14 bytes must remain.
    /// Works at XDP only, because tc needs the link header.
    pub fn remove_bytes_before(&mut self, first: FrameOffset<'s>) {
        if !self.check_editable() {
            return;
        }
        if self.hook() != Hook::Xdp {
            let why = "the link header of a frame cannot be removed at traffic control";
            return self.builder().refuse_program(UnfitReason::new(why));
        }
        self.fetch_offset(first, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.call_helper_or_unsure(Helper::XdpAdjustHead);
        b.store_frame_length();
        b.reload_after_edit();
    }

    /// Emits code that removes the outermost VLAN tag, which is either inline or in the skb. Works
    /// at tc only.
    pub fn pop_tag(&mut self) {
        if !self.check_editable() {
            return;
        }
        let b = self.builder();
        if b.target.hook != Hook::Tc {
            return b.refuse_program(UnfitReason::new(
                "VLAN tags can be removed only at traffic control",
            ));
        }
        b.asm.push(Insn::mov(R1, R6));
        b.call_helper_or_unsure(Helper::SkbVlanPop);
        b.reload_after_edit();
    }

    // ---- helpers

    fn check_editable(&mut self) -> bool {
        let target = self.builder().target;
        let why = match target.hook {
            Hook::Socket => "a socket filter cannot change frames",
            Hook::Cgroup => "packets of sockets cannot be changed",
            Hook::Tc | Hook::Xdp if !target.redirects => {
                "frames that are only observed cannot be changed (`take` withholds them from the \
                 host)"
            }
            Hook::Tc | Hook::Xdp => return true,
        };
        self.builder().refuse_program(UnfitReason::new(why));
        false
    }

    fn fetch_offset(&mut self, offset: FrameOffset<'s>, to: Reg) {
        let b = self.builder();
        match offset.base {
            Value::Const(_) => b.asm.push(Insn::mov(to, i32::from(offset.off))),
            Value::Num(_) => {
                b.fetch(offset.base, to);
                if offset.off > 0 {
                    b.asm.push(Insn::alu(Alu::Add, to, i32::from(offset.off)));
                }
            }
        }
        b.set_register_slot(to, None);
    }

    /// Emits code that writes `length` bytes to the frame, in place or through a helper. `load`
    /// emits the code that puts the value into r0, and `store` the code that writes it at an offset
    /// from a register.
    fn write(
        &mut self,
        to: FrameOffset<'s>,
        length: u16,
        load: impl FnOnce(&mut Builder),
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        if !self.check_editable() {
            return;
        }
        let end = to.reach + u32::from(length);
        let b = self.builder();
        if end > PACKET_OFFSET_MAX {
            b.refuse_program(offset_too_far_error());
        }
        b.reach = b.reach.max(end);
        load(b);
        if b.target.hook == Hook::Xdp && !b.positions_are_offsets() {
            self.write_in_place(to, length, store);
        } else {
            self.write_by_helper(to, length, store);
        }
        self.builder().reload_after_edit();
    }

    /// Emits code that writes bytes from the stack through a helper.
    fn write_by_helper(
        &mut self,
        to: FrameOffset<'s>,
        length: u16,
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        let b = self.builder();
        let slot = b.allocate_bytes(length);
        store(b, R10, -slot);
        b.invalidate_registers();
        self.fetch_offset(to, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.asm.compute(R3, R10, Alu::Add, i32::from(-slot));
        b.asm.push(Insn::mov(R4, i32::from(length)));
        let at_tc = b.target.hook == Hook::Tc;
        if at_tc {
            b.asm.push(Insn::mov(R5, 0));
        }
        b.call_helper_or_unsure(if at_tc { Helper::SkbStoreBytes } else { Helper::XdpStoreBytes });
    }

    /// Emits code that writes bytes in place at XDP, after a bounds check. If the check fails, the
    /// block takes the `unsure` exit.
    fn write_in_place(
        &mut self,
        to: FrameOffset<'s>,
        length: u16,
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        let b = self.builder();
        let unsure = b.unsure_label();
        b.asm.push(Insn::mov(R1, R7));
        if let Value::Num(base) = to.base {
            let max = to.reach.saturating_sub(to.off.into());
            b.fetch(base.into(), R2);
            b.asm.jump_if(Cond::Gt, R2, max.cast_signed(), unsure);
            b.asm.push(Insn::alu(Alu::Add, R1, R2));
        }
        b.asm.compute(R3, R1, Alu::Add, i32::from(to.off) + i32::from(length));
        b.asm.jump_if(Cond::Gt, R3, R8, unsure);
        store(b, R1, to.off.cast_signed());
        b.invalidate_registers();
    }

    /// Emits arithmetic that updates a checksum in place at XDP, where no helper does so.
    fn update_checksum_in_place<T: Width>(
        &mut self,
        offset: FrameOffset<'s>,
        covers: ChecksumCoverage,
        (old, new): (Num<'s>, Value<'s>),
    ) {
        let may_be_absent =
            matches!(covers, ChecksumCoverage::Transport { may_be_absent: true, .. });
        let at = self.position_at(offset);
        let updated = self.var(0);
        // Values of an arm are not valid outside it, so the edit follows the arm.
        self.arm(|s, absent| {
            let unsure = s.unsure();
            let word = s.need::<2>(at, unsure);
            let sum = s.load(word, be16::<0>());
            s.set(updated, sum);
            if may_be_absent {
                s.only(sum, Cmp::Ne, 0, absent);
            }
            let total = s.ones_complement(sum, 0xffff);
            let total = s.add_halves::<T>(total, old.into(), true);
            let total = s.add_halves::<T>(total, new, false);
            // The kernel sums in 32 bits, except for 16-bit changes of a header, where the
            // complement of the old checksum has its upper half set.
            let wide = covers != ChecksumCoverage::Header || T::SIZE == Size::W;
            let total = if wide { s.add(total, 0xffff) } else { total };
            let folded = s.fold_carries(total);
            let sum = s.ones_complement(folded, 0xffff);
            let sum = if may_be_absent { s.load_if_zero(sum, Insn::mov(R0, 0xffff)) } else { sum };
            s.set(updated, sum);
        });
        let value = self.get(updated);
        self.put::<u16>(offset, value);
    }

    /// Returns the complement of a number, restricted to the bits of `mask`.
    fn ones_complement(&mut self, num: Num<'s>, mask: u32) -> Num<'s> {
        let b = self.builder();
        b.fetch(num.into(), R0);
        b.asm.push(Insn::alu32(Alu::Xor, R0, mask.cast_signed()));
        b.set_register_slot(R0, None);
        b.store_in_new_slot(R0)
    }

    /// Emits code that adds the 16-bit halves of a number, or of its complement, to a sum.
    fn add_halves<T: Width>(
        &mut self,
        total: Num<'s>,
        value: Value<'s>,
        complemented: bool,
    ) -> Num<'s> {
        let wide = T::SIZE == Size::W;
        match value {
            Value::Const(value) => {
                let value = if complemented { !value } else { value };
                let halves = if wide { value >> 16 } else { 0 } + (value & 0xffff);
                self.add(total, halves)
            }
            Value::Num(num) => {
                let mask = if wide { u32::MAX } else { 0xffff };
                let num = if complemented { self.ones_complement(num, mask) } else { num };
                let low = self.and(num, 0xffff);
                let total = self.add(total, low);
                if !wide {
                    return total;
                }
                let high = self.shr(num, 16);
                self.add(total, high)
            }
        }
    }

    /// Emits code that folds the carries of a sum of several 16-bit numbers into 16 bits.
    pub fn fold_carries(&mut self, total: Num<'s>) -> Num<'s> {
        let mut total = total;
        for _ in 0..2 {
            let high = self.shr(total, 16);
            let low = self.and(total, 0xffff);
            total = self.add(low, high);
        }
        total
    }
}

/// Emits code that loads a value into a register, in network byte order.
fn fetch_in_network_order(b: &mut Builder, value: Value<'_>, size: Size, to: Reg) {
    b.fetch(value, to);
    b.convert_byte_order(size, to);
    b.set_register_slot(to, None);
}
