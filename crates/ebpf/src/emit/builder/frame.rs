//! Prologue of a program and access to the frame: packet pointers, the linear part, and the frame
//! length.
//!
//! At tc, only the linear part of a frame is directly readable. A program that is not hardened
//! first pulls `reach` bytes (the deepest read of its twins), but at most `PULLED_BYTES_MAX`, into
//! the linear part; if the kernel cannot pull them, the program is unsure. If a bounds check fails
//! at the end of the linear part of a non-linear frame, the program is unsure as well; it never
//! treats the frame as too short (CONTRACT 18).
//!
//! Without CAP_PERFMON the verifier rejects adding a register to a packet pointer (tried on 6.18).
//! Hardened programs therefore use constant offsets, and copy other bytes through a helper, which
//! handles fragments. Socket filters do the same, because they have no packet pointers.

use super::Builder;
use super::arms::StubTask;
use crate::asm::Label;
use crate::emit::config::{FinalAction, FixedSlots};
use crate::emit::handle::PosBase;
use crate::emit::target::Verdict;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R6, R7, R8, R10, Size};
use crate::program::Hook;

/// Maximum number of bytes pulled into the linear part: enough for the headers of a frame.
pub(in crate::emit) const PULLED_BYTES_MAX: u32 = 256;

/// Offsets of fields in `__sk_buff`.
pub(in crate::emit) mod skb {
    pub(in crate::emit) const LEN: i16 = 0;
    pub(in crate::emit) const PACKET_TYPE: i16 = 4;
    pub(in crate::emit) const TAG_PRESENT: i16 = 20;
    pub(in crate::emit) const TAG_TCI: i16 = 24;
    pub(in crate::emit) const TAG_PROTOCOL: i16 = 28;
    pub(in crate::emit) const INGRESS_IFINDEX: i16 = 36;
    /// Offset of the first word of `cb`. A program that is tested at a cgroup hook returns its
    /// answer in this word, because its return value is a verdict.
    pub(in crate::emit) const ANSWER_OFFSET: i16 = 48;
    pub(in crate::emit) const DATA: i16 = 76;
    pub(in crate::emit) const DATA_END: i16 = 80;
    pub(in crate::emit) const SOCKET: i16 = 168;
}

/// Offsets of fields in `xdp_md`.
pub(in crate::emit) mod xdp {
    pub(in crate::emit) const QUEUE: i16 = 16;
}

/// `PACKET_LOOPBACK`: packet type of the copy of a sent multicast packet for this host.
const PACKET_LOOPBACK: i32 = 5;

impl Builder {
    /// Emits code that ends the program for the copies of sent multicast packets that the host
    /// delivers to itself. The host reports them as received at the interface, but they begin with
    /// the network header, and packet sockets do not receive them either.
    pub(super) fn pass_copies_for_this_host(&mut self) {
        if self.target.hook != Hook::Tc {
            return;
        }
        self.record_code_owner();
        let from_elsewhere = self.asm.new_label();
        self.asm.push(Insn::load(Size::W, R2, R1, skb::PACKET_TYPE));
        self.asm.jump_if(Cond::Ne, R2, PACKET_LOOPBACK, from_elsewhere);
        self.asm.push(Insn::alu32(Alu::Mov, R0, Verdict::Pass.return_value(Hook::Tc)));
        self.asm.push(Insn::exit());
        self.bind(from_elsewhere);
    }

    /// Emits the code at the start of a program part, which sets up the packet pointers.
    pub(super) fn emit_prologue(&mut self) {
        self.record_code_owner();
        self.asm.push(Insn::mov(R6, R1));
        let frame_end = self.frame_end.take();
        if let Some(frame_end) = &frame_end {
            self.point_at_scratch(frame_end);
        }
        let tags = frame_end.as_ref().and_then(FinalAction::tag_kfunc);
        self.frame_end = frame_end;
        match self.target.hook {
            Hook::Tc if self.target.hardened => self.load_packet_pointers(skb::DATA, skb::DATA_END),
            Hook::Tc => self.emit_pull_data(),
            Hook::Xdp => self.load_packet_pointers(0, 4),
            Hook::Socket | Hook::Cgroup => {}
        }
        if let Some(function) = tags {
            self.load_driver_tag(function);
        }
        self.store_frame_length();
    }

    /// Emits code that reloads the packet pointers after an edit of the frame, and records that the
    /// program edits frames.
    pub(in crate::emit) fn reload_after_edit(&mut self) {
        self.edits = true;
        self.reload_pointers();
    }

    /// Emits code that reloads the packet pointers. Invalidates bounds checks and computed
    /// positions.
    pub(in crate::emit) fn reload_pointers(&mut self) {
        match self.target.hook {
            Hook::Tc => self.load_packet_pointers(skb::DATA, skb::DATA_END),
            Hook::Xdp => self.load_packet_pointers(0, 4),
            Hook::Socket | Hook::Cgroup => {}
        }
        self.invalidate_registers();
        self.epoch = self.epoch.saturating_add(1);
    }

    pub(super) fn load_packet_pointers(&mut self, data: i16, data_end: i16) {
        self.asm.push(Insn::load(Size::W, R7, R6, data));
        self.asm.push(Insn::load(Size::W, R8, R6, data_end));
    }

    /// Emits code that makes the first bytes of the frame linear: `reach` bytes, but at most
    /// [`PULLED_BYTES_MAX`] and at most the whole frame.
    pub(super) fn emit_pull_data(&mut self) {
        let (short, ready) = (self.asm.new_label(), self.asm.new_label());
        self.load_packet_pointers(skb::DATA, skb::DATA_END);
        self.asm.push(Insn::load(Size::W, R2, R6, skb::LEN));
        self.reach_patches.push(self.asm.next_slot());
        self.asm.jump_if(Cond::Le, R2, 0, short);
        self.reach_patches.push(self.asm.next_slot());
        self.asm.push(Insn::mov(R2, 0));
        self.bind(short);
        self.asm.compute(R1, R7, Alu::Add, R2);
        self.asm.jump_if(Cond::Le, R1, R8, ready);
        self.asm.push(Insn::mov(R1, R6));
        self.call_helper_or_unsure(Helper::SkbPullData);
        self.load_packet_pointers(skb::DATA, skb::DATA_END);
        self.bind(ready);
    }

    /// Emits code that loads the frame length, including fragments, into r0.
    pub(in crate::emit) fn emit_frame_length(&mut self) {
        if self.target.hook != Hook::Xdp {
            self.asm.push(Insn::load(Size::W, R0, R6, skb::LEN));
        } else if self.is_length_pointer_difference() {
            self.asm.compute(R0, R8, Alu::Sub, R7);
        } else if self.is_length_stored() {
            self.asm.push(Insn::load(Size::DW, R0, R10, FixedSlots::LENGTH));
        } else {
            self.asm.push(Insn::mov(R1, R6));
            self.call_helper(Helper::XdpBuffLen);
        }
        self.set_register_slot(R0, None);
    }

    /// Returns true if the frame length is the difference of the packet pointers, which only
    /// programs with CAP_PERFMON may compute.
    pub(super) fn is_length_pointer_difference(&self) -> bool {
        self.target.hook == Hook::Xdp && self.target.single_buffer && !self.target.hardened
    }

    /// Returns true if the frame length is determined once per program and stored.
    pub(in crate::emit) fn is_length_stored(&self) -> bool {
        self.redirects && !self.is_length_pointer_difference()
    }

    /// Returns the label to which a bounds check up to byte `end` jumps if it fails. If only a
    /// short frame can fail the check, the label is `miss`. Otherwise, it is the label of a stub,
    /// which takes the `unsure` exit if the frame is long enough, and jumps to `miss` if it is not.
    /// If the position is computed, `end` is an upper bound.
    pub(in crate::emit) fn miss_exit(&mut self, base: PosBase, end: u32, miss: Label) -> Label {
        let directly_readable_end = match self.target.hook {
            Hook::Socket | Hook::Cgroup => return miss,
            // A single-buffer frame ends where its buffer does.
            Hook::Xdp if self.target.single_buffer => return miss,
            Hook::Tc if self.target.hardened => 0,
            Hook::Tc | Hook::Xdp => PULLED_BYTES_MAX,
        };
        if end <= directly_readable_end {
            return miss;
        }
        self.push_stub(
            StubTask::LengthCheck(if base == PosBase::Frame {
                end
            } else {
                directly_readable_end + 1
            }),
            miss,
        )
    }
}
