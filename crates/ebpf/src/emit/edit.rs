//! Changes of the frame: bytes, checksums, what lies in front.
//!
//! In: places as numbers ([`Spot`]). Out: stores. Only frames that were taken from the host may be
//! changed ([`Target::taking`](super::Target::taking)): what is only observed stays as it is
//! (CONTRACT 2).
//!
//! A change ends every proof and every computed place, at every place alike; what uses one from
//! before is `Unfit`. So a piece first looks and decides, then says which places it will need
//! ([`Scope::spot`], [`Scope::keep`]), changes, and gets its places back.
//!
//! Traffic control changes through helpers: they give the frame a head of its own where it shares
//! one with a clone, know frames in pieces, and know whether a checksum is filled in yet. XDP
//! changes bytes where they lie, or, where computed packet pointers are not allowed, through a
//! helper too; whether a checksum is filled it cannot know. What fails is unsure, and since
//! [`Scope::writable`] asks for all that a piece will change, it fails before the first change.

use super::Unfit;
use super::build::Builder;
use super::handle::{At, Base, Brand, Exit, Layers, Num, Spot, Transport, Value, Width, be16};
use super::lower::{REACH_MAX, too_far};
use super::scope::{Cmp, Scope};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R5, R6, R7, R8, R10, Reg, Size};
use crate::program::Place;

/// What a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Its own header: that of IPv4.
    Header,
    /// A transport header and what follows.
    Transport {
        /// Whether the number that changes lies in the pseudo header: an address.
        pseudo: bool,
        /// Whether 0 says that there is none: UDP.
        may_be_absent: bool,
    },
}

/// `BPF_F_PSEUDO_HDR`
const PSEUDO: i32 = 0x10;
/// `BPF_F_MARK_MANGLED_0`
const ABSENT: i32 = 0x20;

/// Layers that outlive a change of the frame.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'s> {
    pub(super) layers: Layers<'s>,
    pub(super) at: Spot<'s>,
    pub(super) l3: Option<Spot<'s>>,
    pub(super) l4: Option<Spot<'s>>,
}

impl<'s> Spot<'s> {
    /// So many bytes from the beginning of the frame.
    #[must_use]
    pub fn at(bytes: u16) -> Self {
        Self { base: Value::Const(0), off: bytes, reach: bytes.into() }
    }

    /// So many bytes further.
    #[must_use]
    pub fn behind(self, bytes: u16) -> Self {
        let off = self.off.saturating_add(bytes);
        Self { off, reach: self.reach + u32::from(bytes), ..self }
    }
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    // ---- places

    /// Where a place lies.
    pub fn spot(&mut self, at: At<'s>) -> Spot<'s> {
        let b = self.builder();
        let base = match at.base {
            Base::Frame => Value::Const(0),
            Base::Slot(_) => {
                b.fetch_at(At { off: 0, ..at }, R0);
                if !b.counts() {
                    b.asm.push(Insn::alu(Alu::Sub, R0, R7));
                }
                Value::Num(b.keep(R0))
            }
        };
        Spot { base, off: at.off, reach: at.reach }
    }

    /// The place there, in the frame as it is now.
    pub fn place_at(&mut self, spot: Spot<'s>) -> At<'s> {
        let unsure = self.builder().unsure();
        let epoch = self.builder().epoch;
        let frame =
            At { base: Base::Frame, off: 0, reach: 0, epoch, usual: None, brand: Brand::default() };
        match spot.base {
            Value::Const(_) => At { off: spot.off, reach: spot.off.into(), ..frame },
            Value::Num(num) => {
                let max = spot.reach.saturating_sub(spot.off.into());
                let max = u16::try_from(max).unwrap_or(u16::MAX);
                let base = self.builder().move_by(frame, num, max, unsure);
                At { off: spot.off, reach: base.reach + u32::from(spot.off), ..base }
            }
        }
    }

    /// How many bytes it is from the beginning of the frame.
    pub fn distance(&mut self, spot: Spot<'s>) -> Num<'s> {
        self.fetch_spot(spot, R0);
        self.builder().keep(R0)
    }

    /// A place this many bytes in front of it once so many are cut off; not before the first byte.
    pub fn less(&mut self, spot: Spot<'s>, bytes: u16) -> Spot<'s> {
        if let Value::Const(_) = spot.base {
            return Spot::at(spot.off.saturating_sub(bytes));
        }
        self.fetch_spot(spot, R1);
        let b = self.builder();
        let first = b.asm.label();
        b.asm.push(Insn::mov(R0, 0));
        b.asm.jump_if(Cond::Le, R1, i32::from(bytes), first);
        b.asm.push(Insn::mov(R0, R1));
        b.asm.push(Insn::alu(Alu::Sub, R0, i32::from(bytes)));
        b.bind(first);
        Spot { base: b.keep(R0).into(), off: 0, reach: spot.reach }
    }

    /// These layers, so that they outlive a change of the frame.
    pub fn keep(&mut self, layers: Layers<'s>) -> Kept<'s> {
        let at = self.spot(layers.at);
        let l3 = layers.l3.map(|l3| self.spot(l3));
        let l4 = layers.l4.map(|l4| self.spot(l4.at));
        Kept { layers, at, l3, l4 }
    }

    /// The layers in the frame as it is now.
    pub fn layers(&mut self, kept: Kept<'s>) -> Layers<'s> {
        let at = self.place_at(kept.at);
        let l3 = kept.l3.map(|l3| self.place_at(l3));
        let l4 = kept.layers.l4.zip(kept.l4);
        let l4 = l4.map(|(l4, spot)| Transport { at: self.place_at(spot), ..l4 });
        Layers { at, l3, l4, ..kept.layers }
    }

    // ---- bytes

    /// Sees to it that the frame can be changed up to there; leaves to unsure if it cannot.
    pub fn writable(&mut self, end: Spot<'s>) {
        if !self.may_edit() {
            return;
        }
        if self.place() == Place::Tc {
            self.fetch_spot(end, R2);
            let b = self.builder();
            b.asm.push(Insn::mov(R1, R6));
            b.call(Helper::SkbPullData);
            let unsure = b.unsure();
            b.asm.jump_if(Cond::Ne, R0, 0, unsure);
        }
        self.builder().changed();
    }

    /// Writes a number there, in network byte order.
    pub fn put<T: Width>(&mut self, to: Spot<'s>, value: impl Into<Value<'s>>) {
        let value = value.into();
        let size = T::SIZE;
        self.write(
            to,
            size.bytes() as u16,
            |b| in_network_order(b, value, size, R0),
            |b, base, at| {
                b.asm.push(Insn::store(size, base, at, R0));
            },
        );
    }

    /// Writes these bytes there.
    pub fn put_bytes(&mut self, to: Spot<'s>, bytes: &[u8]) {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.write(
            to,
            length,
            |_| (),
            |b, base, at| {
                // From the last to the first: the verifier of Linux 6.1 takes the first four bytes
                // of a stack slot for a value that nobody may change in part.
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

    /// Mends the checksum there, after a number of `T` that it covers has become another.
    /// RFC 1624, equation 3; to the bit what the kernel makes of it.
    pub fn mend<T: Width>(
        &mut self,
        checksum: Spot<'s>,
        covers: Checksum,
        (old, new): (Num<'s>, Value<'s>),
    ) {
        if !self.may_edit() {
            return;
        }
        if self.place() == Place::Xdp {
            return self.mend_bytes::<T>(checksum, covers, (old, new));
        }
        let size = T::SIZE.bytes() as i32;
        let (helper, flags) = match covers {
            Checksum::Header => (Helper::L3ChecksumReplace, size),
            Checksum::Transport { pseudo, may_be_absent } => {
                let pseudo = if pseudo { PSEUDO } else { 0 };
                let absent = if may_be_absent { ABSENT } else { 0 };
                (Helper::L4ChecksumReplace, size | pseudo | absent)
            }
        };
        let b = self.builder();
        in_network_order(b, old.into(), T::SIZE, R0);
        b.asm.push(Insn::mov(R3, R0));
        in_network_order(b, new, T::SIZE, R0);
        b.asm.push(Insn::mov(R4, R0));
        b.hold_none();
        self.fetch_spot(checksum, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.asm.push(Insn::mov(R5, flags));
        b.call(helper);
        let unsure = b.unsure();
        b.asm.jump_if(Cond::Ne, R0, 0, unsure);
        b.changed();
    }

    /// Cuts off what lies before it, with what the kernel leaves of a frame: 14 bytes or more.
    /// Only at XDP; traffic control needs the link header.
    pub fn cut_before(&mut self, first: Spot<'s>) {
        if !self.may_edit() {
            return;
        }
        if self.place() != Place::Xdp {
            let why = "traffic control keeps the link header of a frame";
            return self.builder().refuse(Unfit::new(why));
        }
        self.fetch_spot(first, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.call(Helper::XdpAdjustHead);
        let unsure = b.unsure();
        b.asm.jump_if(Cond::Ne, R0, 0, unsure);
        b.find_length();
        b.changed();
    }

    /// Takes the outermost VLAN tag off, beside the frame or in it. Only at traffic control.
    pub fn pop_tag(&mut self) {
        if !self.may_edit() {
            return;
        }
        let b = self.builder();
        if b.target.place != Place::Tc {
            return b.refuse(Unfit::new("only traffic control takes tags off"));
        }
        b.asm.push(Insn::mov(R1, R6));
        b.call(Helper::SkbVlanPop);
        let unsure = b.unsure();
        b.asm.jump_if(Cond::Ne, R0, 0, unsure);
        b.changed();
    }

    // ---- helpers

    fn may_edit(&mut self) -> bool {
        let target = self.builder().target;
        let why = match target.place {
            Place::Socket => "a socket filter sees copies of frames",
            Place::Cgroup => "what sockets exchange stays as it is",
            Place::Tc | Place::Xdp if !target.takes => {
                "frames that are only observed stay as they are (`take` takes them)"
            }
            Place::Tc | Place::Xdp => return true,
        };
        self.builder().refuse(Unfit::new(why));
        false
    }

    fn fetch_spot(&mut self, spot: Spot<'s>, to: Reg) {
        let b = self.builder();
        match spot.base {
            Value::Const(_) => b.asm.push(Insn::mov(to, i32::from(spot.off))),
            Value::Num(_) => {
                b.fetch(spot.base, to);
                if spot.off > 0 {
                    b.asm.push(Insn::alu(Alu::Add, to, i32::from(spot.off)));
                }
            }
        }
        b.hold(to, None);
    }

    /// `load` puts into r0 what `store` writes behind a register, `length` bytes.
    fn write(
        &mut self,
        to: Spot<'s>,
        length: u16,
        load: impl FnOnce(&mut Builder),
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        if !self.may_edit() {
            return;
        }
        let end = to.reach + u32::from(length);
        let b = self.builder();
        if end > REACH_MAX {
            b.refuse(too_far());
        }
        b.reach = b.reach.max(end);
        load(b);
        if b.target.place == Place::Xdp && !b.counts() {
            self.write_here(to, length, store);
        } else {
            self.write_through(to, length, store);
        }
        self.builder().changed();
    }

    /// Through a helper, from the stack.
    fn write_through(
        &mut self,
        to: Spot<'s>,
        length: u16,
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        let b = self.builder();
        let slot = b.row(length);
        store(b, R10, -slot);
        b.hold_none();
        self.fetch_spot(to, R2);
        let b = self.builder();
        b.asm.push(Insn::mov(R1, R6));
        b.asm.push(Insn::mov(R3, R10));
        b.asm.push(Insn::alu(Alu::Add, R3, i32::from(-slot)));
        b.asm.push(Insn::mov(R4, i32::from(length)));
        if b.target.place == Place::Tc {
            b.asm.push(Insn::mov(R5, 0));
            b.call(Helper::SkbStoreBytes);
        } else {
            b.call(Helper::XdpStoreBytes);
        }
        let unsure = b.unsure();
        b.asm.jump_if(Cond::Ne, R0, 0, unsure);
    }

    /// Where it lies. What cannot be there was looked for before; the verifier has forgotten it.
    fn write_here(
        &mut self,
        to: Spot<'s>,
        length: u16,
        store: impl FnOnce(&mut Builder, Reg, i16),
    ) {
        let b = self.builder();
        let unsure = b.unsure();
        b.asm.push(Insn::mov(R1, R7));
        if let Value::Num(base) = to.base {
            let max = to.reach.saturating_sub(to.off.into());
            b.fetch(base.into(), R2);
            b.asm.jump_if(Cond::Gt, R2, max.cast_signed(), unsure);
            b.asm.push(Insn::alu(Alu::Add, R1, R2));
        }
        b.asm.push(Insn::mov(R3, R1));
        b.asm.push(Insn::alu(Alu::Add, R3, i32::from(to.off) + i32::from(length)));
        b.asm.jump_if(Cond::Gt, R3, R8, unsure);
        store(b, R1, to.off.cast_signed());
        b.hold_none();
    }

    /// The checksum at XDP, in our own arithmetic.
    fn mend_bytes<T: Width>(
        &mut self,
        spot: Spot<'s>,
        covers: Checksum,
        (old, new): (Num<'s>, Value<'s>),
    ) {
        let may_be_absent = matches!(covers, Checksum::Transport { may_be_absent: true, .. });
        let at = self.place_at(spot);
        let mended = self.var(0);
        // What an arm computes stays inside, so the change stands behind it.
        self.arm(|s, absent| {
            let unsure = s.unsure();
            let word = s.need::<2>(at, unsure);
            let sum = s.load(word, be16::<0>());
            s.set(mended, sum);
            if may_be_absent {
                s.only(sum, Cmp::Ne, 0, absent);
            }
            let total = s.one_complement(sum, 0xffff);
            let total = s.with_halves::<T>(total, old.into(), true);
            let total = s.with_halves::<T>(total, new, false);
            // The kernel computes all but 16 bits of a header in 32 bits, where the complement of
            // the old checksum has a full upper half.
            let wide = covers != Checksum::Header || T::SIZE == Size::W;
            let total = if wide { s.add(total, 0xffff) } else { total };
            let folded = s.folded(total);
            let sum = s.one_complement(folded, 0xffff);
            let sum = if may_be_absent { s.never_zero(sum) } else { sum };
            s.set(mended, sum);
        });
        let value = self.get(mended);
        self.put::<u16>(spot, value);
    }

    /// Its complement in these bits.
    fn one_complement(&mut self, num: Num<'s>, mask: u32) -> Num<'s> {
        let b = self.builder();
        b.fetch(num.into(), R0);
        b.asm.push(Insn::alu32(Alu::Xor, R0, mask.cast_signed()));
        b.hold(R0, None);
        b.keep(R0)
    }

    /// The sum with the 16-bit halves of a number, or of its complement.
    fn with_halves<T: Width>(
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
                let num = if complemented { self.one_complement(num, mask) } else { num };
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

    /// A sum of some 16-bit numbers with its carries added back in.
    pub fn folded(&mut self, total: Num<'s>) -> Num<'s> {
        let mut total = total;
        for _ in 0..2 {
            let high = self.shr(total, 16);
            let low = self.and(total, 0xffff);
            total = self.add(low, high);
        }
        total
    }

    /// The same, 0xffff for 0.
    fn never_zero(&mut self, num: Num<'s>) -> Num<'s> {
        let b = self.builder();
        let done = b.asm.label();
        b.fetch(num.into(), R0);
        b.asm.jump_if(Cond::Ne, R0, 0, done);
        b.asm.push(Insn::mov(R0, 0xffff));
        b.bind(done);
        b.keep(R0)
    }

    /// Leaves to `other` if a checksum says that what it covers is still to be summed up: it is
    /// then the sum of the pseudo header alone. At traffic control the kernel knows.
    pub fn only_filled(&mut self, sum: Num<'s>, pseudo: Num<'s>, other: Exit<'s>) {
        if self.place() == Place::Xdp {
            self.only(sum, Cmp::Ne, pseudo, other);
        }
    }
}

/// The register holds the value as it lies in a frame.
fn in_network_order(b: &mut Builder, value: Value<'_>, size: Size, to: Reg) {
    b.fetch(value, to);
    match size {
        Size::H => b.asm.push(Insn::big_endian(to, 16)),
        Size::W => b.asm.push(Insn::big_endian(to, 32)),
        Size::B | Size::DW => {}
    }
    b.hold(to, None);
}
