//! The frame as a program finds it: pointers to its bytes, how many of them can be read directly,
//! how long it is.
//!
//! Frames in pieces: at traffic control only the linear part can be read directly. A trusted
//! program first makes `reach` bytes linear, where `reach` is how deep its pieces look, at most
//! `PULL_MAX`; if the kernel cannot, it is unsure. A check that fails where a frame in pieces goes
//! on is unsure, too, never "too short" (CONTRACT 18).
//!
//! Without CAP_PERFMON the verifier refuses to add a register to a packet pointer (tried on 6.18),
//! so hardened programs point at constant offsets only and copy the rest through a helper, which
//! knows fragments; so does every socket filter, which has no packet pointers.

use super::Builder;
use super::arms::Task;
use crate::asm::Label;
use crate::emit::ending::{Ending, Kept};
use crate::emit::handle::Base;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R6, R7, R8, R10, Size};
use crate::program::Place;

/// At most so many bytes are made linear for a program: headers, not payload.
pub(in crate::emit) const PULL_MAX: u32 = 256;

/// Offsets in `__sk_buff`.
pub(in crate::emit) mod skb {
    pub(in crate::emit) const LEN: i16 = 0;
    pub(in crate::emit) const TAG_PRESENT: i16 = 20;
    pub(in crate::emit) const TAG_TCI: i16 = 24;
    pub(in crate::emit) const TAG_PROTOCOL: i16 = 28;
    pub(in crate::emit) const CAME_BY: i16 = 36;
    /// The first word of `cb`: what an exam program answers at a control group.
    pub(in crate::emit) const ANSWER: i16 = 48;
    pub(in crate::emit) const DATA: i16 = 76;
    pub(in crate::emit) const DATA_END: i16 = 80;
    pub(in crate::emit) const SOCKET: i16 = 168;
}

/// Offsets in `xdp_md`.
pub(in crate::emit) mod xdp {
    pub(in crate::emit) const QUEUE: i16 = 16;
}

impl Builder {
    /// What a part begins with.
    pub(super) fn enter(&mut self) {
        self.line();
        self.asm.push(Insn::mov(R6, R1));
        let ending = self.ending.take();
        if let Some(ending) = &ending {
            self.find_desk(ending);
        }
        let tags = ending.as_ref().and_then(Ending::tags);
        self.ending = ending;
        match self.target.place {
            Place::Tc if self.target.hardened => self.pointers(skb::DATA, skb::DATA_END),
            Place::Tc => self.pull(),
            Place::Xdp => self.pointers(0, 4),
            Place::Socket | Place::Cgroup => {}
        }
        if let Some(function) = tags {
            self.ask_for_tag(function);
        }
        self.find_length();
    }

    /// The packet pointers anew, after something that may have moved the frame.
    pub(in crate::emit) fn changed(&mut self) {
        self.edits = true;
        self.anew();
    }

    /// The packet pointers as if nobody had checked anything, and all places from before.
    pub(in crate::emit) fn anew(&mut self) {
        match self.target.place {
            Place::Tc => self.pointers(skb::DATA, skb::DATA_END),
            Place::Xdp => self.pointers(0, 4),
            Place::Socket | Place::Cgroup => {}
        }
        self.hold_none();
        self.epoch = self.epoch.saturating_add(1);
    }

    pub(super) fn pointers(&mut self, data: i16, data_end: i16) {
        self.asm.push(Insn::load(Size::W, R7, R6, data));
        self.asm.push(Insn::load(Size::W, R8, R6, data_end));
    }

    /// Makes the first min(length, reach) bytes linear.
    pub(super) fn pull(&mut self) {
        let (short, ready) = (self.asm.label(), self.asm.label());
        self.pointers(skb::DATA, skb::DATA_END);
        self.asm.push(Insn::load(Size::W, R2, R6, skb::LEN));
        self.reach_at.push(self.asm.here());
        self.asm.jump_if(Cond::Le, R2, 0, short);
        self.reach_at.push(self.asm.here());
        self.asm.push(Insn::mov(R2, 0));
        self.bind(short);
        self.asm.push(Insn::mov(R1, R7));
        self.asm.push(Insn::alu(Alu::Add, R1, R2));
        self.asm.jump_if(Cond::Le, R1, R8, ready);
        self.asm.push(Insn::mov(R1, R6));
        self.call(Helper::SkbPullData);
        self.asm.jump_if(Cond::Ne, R0, 0, self.unsure);
        self.pointers(skb::DATA, skb::DATA_END);
        self.bind(ready);
    }

    /// How long the frame is, all pieces of it: into r0.
    pub(in crate::emit) fn frame_length(&mut self) {
        if self.target.place != Place::Xdp {
            self.asm.push(Insn::load(Size::W, R0, R6, skb::LEN));
        } else if self.is_length_a_difference() {
            self.asm.push(Insn::mov(R0, R8));
            self.asm.push(Insn::alu(Alu::Sub, R0, R7));
        } else if self.is_length_kept() {
            self.asm.push(Insn::load(Size::DW, R0, R10, Kept::LENGTH));
        } else {
            self.asm.push(Insn::mov(R1, R6));
            self.call(Helper::XdpBuffLen);
        }
        self.hold(R0, None);
    }

    /// Whether the frame is as long as the way from its first byte to its last linear one; only
    /// whoever has CAP_PERFMON may ask for that.
    pub(super) fn is_length_a_difference(&self) -> bool {
        self.target.place == Place::Xdp && self.target.single && !self.target.hardened
    }

    /// Whether the length of the frame is found once, for all of the program.
    pub(in crate::emit) fn is_length_kept(&self) -> bool {
        self.takes && !self.is_length_a_difference()
    }

    /// The exit of a direct check of the bytes up to `end`, or, behind a computed place, up to
    /// there at most.
    pub(in crate::emit) fn missing(&mut self, base: Base, end: u32, miss: Label) -> Label {
        let near = match self.target.place {
            Place::Socket | Place::Cgroup => return miss,
            // The frame ends where its only buffer does.
            Place::Xdp if self.target.single => return miss,
            Place::Tc if self.target.hardened => 0,
            Place::Tc | Place::Xdp => PULL_MAX,
        };
        if end <= near {
            return miss;
        }
        self.stub(Task::Deep(if base == Base::Frame { end } else { near + 1 }), miss)
    }
}
