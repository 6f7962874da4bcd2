//! Taps: programs that count frames and copy them to user space through rings.
//!
//! Input: the layout of the rings, and a body that counts and delivers frames. Output: a
//! [`Program`] that passes every frame that the body does not withhold. A delivered frame is copied
//! once per owner, after all other work, into the ring of this owner and processor. Each consumer
//! gets a pointer to the copy. [SL §5.3, §6.2; CONTRACT 21, 29]
//!
//! Rings and doorbells are the caller's maps, numbered after the program's own. Each processor has
//! a region ([`offset`]) in each map and is the only writer of that region, so stores need no
//! atomics, only the right order for readers. The deliveries of a frame are recorded in memory
//! ([`ScratchLayout`]), not in registers. The verifier does not track memory, so deliveries do not
//! double the number of its paths.
//!
//! A [`Tap`] uses one map for all data. In a [`FusedTap`], several requests of several owners share
//! a program. The scratch memory, each owner's frames and each request's pointers are then in
//! separate maps. Each map can therefore be given to exactly the processes that may read it, and it
//! outlives the program.
//!
//! `ring_layout` has the offsets, `config` the configuration. [`ring`] ends a frame;
//! [`unread_rings`] skips the copy while there is no reader; [`awake_consumer`] leaves frames to
//! the host while their consumer sleeps; [`slot_sharing`] lets exits share a slot and a reader if a
//! frame takes at most one of them; [`switched_exits`] has exits that a word in memory opens.

mod awake_consumer;
mod doorbell;
mod ring;
mod slot_sharing;
mod switched_exits;
mod unread_rings;

pub use super::config::{
    Delivery, Egress, FrameRing, FusedTap, PointerRing, ScratchLayout, Tap, WakePolicy,
    WakeupTarget,
};
pub(super) use super::ring_layout::EXIT_OFFSET;
pub use super::ring_layout::{
    AFTER_TAG_FLAG, DELIVERIES_MAX, EXITS_MAX, POINTER_SIZE, READERS_MAX, SWITCHED_EXITS_MAX,
    SWITCHED_SLOTS_MAX, SWITCHED_WORD_SIZE, TALLIES_MAX, UNREAD_LAPS_LOG2, offset, record,
};
pub use super::switch_layout::SwitchLayout;
use ring::store_release_insn;
pub(super) use slot_sharing::{SharedSlot, shared_slots};

use super::builder::Builder;
use super::config::{FinalAction, FixedSlots};
use super::counting_program::emit_counting_program;
use super::handle::{Exit, Layers, Num, Value};
use super::maps::FIRST_CALLER_MAP;
use super::scope::{MetadataField, Scope};
use super::target::{Target, Verdict};
use super::unfit::{EmitResult, UnfitReason};
use super::user_sockets;
use crate::insn::{Alu, Cond, Helper, Insn, Operand, R0, R1, R9, R10, Reg, Size};
use crate::program::{Hook, Program};

/// Emits a tap. `body` receives the layers of an unparsed frame and the exit for finished frames.
/// `unsure` handles frames whose first bytes cannot be read, and must not read any bytes.
pub fn tap(
    target: impl Into<Target>,
    tap: &Tap,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> EmitResult,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, UnfitReason> {
    fused_tap(target, &tap.into(), body, unsure)
}

/// Emits a tap that several requests share. The other parameters have the same meaning as in
/// [`tap`].
pub fn fused_tap(
    target: impl Into<Target>,
    fused: &FusedTap,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> EmitResult,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, UnfitReason> {
    let target = target.into();
    user_sockets::check_hook(target.hook, fused.user.as_ref())?;
    emit_counting_program(target, FinalAction::Tap(fused.clone()), body, unsure)
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Emits code that adds one block and `bytes` bytes to tally `number`, a pair of counters.
    pub fn add_to_tally(&mut self, number: u16, bytes: Num<'s>) {
        let b = self.builder();
        let scratch = b.scratch_layout();
        if number >= scratch.tallies_max {
            return b.refuse_program(UnfitReason::new("there is no room for more tallies"));
        }
        let place = scratch.tallies + 16 * number.cast_signed();
        b.restore_region_register();
        b.fetch(bytes.into(), R0);
        b.add_to_word(R9, place, 1);
        b.add_to_word(R9, place + 8, R0);
        b.set_register_slot(R1, None);
    }

    /// Emits code that records a delivery of the frame in the scratch memory, with this class and
    /// with the view that `on` describes.
    pub fn deliver(&mut self, delivery: Delivery, on: Layers<'s>, class: Value<'s>) {
        let length = self.view_length(on);
        let b = self.builder();
        let scratch = b.scratch_layout();
        let (outlet, bit) = delivery.ring_and_bit();
        let beyond = u32::from(delivery.reader) >= READERS_MAX
            || delivery.shared && delivery.exit >= EXITS_MAX;
        if outlet >= scratch.outlets || beyond {
            return b.refuse_program(UnfitReason::new("it has too many exits from the kernel"));
        }
        b.record_delivery(delivery);
        let place = scratch.view_slot_offset(delivery.number);
        b.restore_region_register();
        b.fetch(class, R1);
        b.asm.push(Insn::store(Size::W, R9, place + 4, R1));
        b.fetch(length.into(), R0);
        b.asm.push(Insn::store(Size::W, R9, place, R0));
        b.fetch_view_offset(&on, R1);
        b.asm.push(Insn::store(Size::W, R9, place + 8, R1));
        b.asm.push(Insn::store(Size::W, R9, place + EXIT_OFFSET, delivery.exit.cast_signed()));
        b.asm.push(Insn::load(Size::DW, R1, R9, scratch.delivery_word_offset(outlet)));
        b.asm.push(Insn::alu(Alu::Or, R1, 1 << bit));
        b.asm.push(Insn::store(Size::DW, R9, scratch.delivery_word_offset(outlet), R1));
        b.set_register_slot(R1, None);
    }

    /// Emits code that sets or clears mark `number`, a flag of the current frame. The verifier does
    /// not track marks, because they are in memory.
    pub fn set_mark(&mut self, number: u16, set: bool) {
        let b = self.builder();
        if let Some(place) = b.checked_mark_offset(number) {
            b.restore_region_register();
            b.asm.push(Insn::store(Size::DW, R9, place, i32::from(set)));
        }
    }

    /// Emits a jump to the exit `miss` that is taken if this mark, a flag of the current frame, is
    /// clear.
    pub fn only_marked(&mut self, number: u16, miss: Exit<'s>) {
        let b = self.builder();
        if let Some(place) = b.checked_mark_offset(number) {
            b.restore_region_register();
            b.asm.push(Insn::load(Size::DW, R1, R9, place));
            b.set_register_slot(R1, None);
            b.asm.jump_if(Cond::Eq, R1, 0, miss.label);
        }
    }

    /// Emits a jump to the exit `miss` that is taken if this mark, a flag of the current frame, is
    /// set.
    pub fn only_unmarked(&mut self, number: u16, miss: Exit<'s>) {
        let b = self.builder();
        if let Some(place) = b.checked_mark_offset(number) {
            b.restore_region_register();
            b.asm.push(Insn::load(Size::DW, R1, R9, place));
            b.set_register_slot(R1, None);
            b.asm.jump_if(Cond::Ne, R1, 0, miss.label);
        }
    }

    /// Returns the length of the view in bytes. If a VLAN tag is stored outside the frame and no
    /// twin has parsed it yet, the length includes the tag.
    pub fn view_length(&mut self, on: Layers<'s>) -> Num<'s> {
        let rest = self.bytes_after(on.at);
        match on.length {
            Some(length) => self.min(length, rest),
            // At XDP, the driver has removed the tag, whose length is known.
            None if on.tags == 0 && self.builder().is_tag_out => self.add(rest, 4),
            None if on.tags == 0 && self.may_have_stored_tag() => {
                let present = self.load_metadata(MetadataField::TagPresent);
                let tag_length = self.shl(present, 2);
                self.add(rest, tag_length)
            }
            None => rest,
        }
    }

    /// Emits an arm that catches undecided blocks. A block that the code of the arm cannot decide
    /// continues after the arm, instead of taking the program's `unsure` exit.
    pub fn emit_catching_unsure<R>(
        &mut self,
        f: impl for<'i> FnOnce(&mut Scope<'i, 's>, Exit<'i>) -> R,
    ) -> R {
        let outer = self.builder().unsure_label();
        self.arm(|inner, exit| {
            inner.builder().set_unsure_label(exit.label);
            let result = f(inner, exit);
            inner.builder().set_unsure_label(outer);
            result
        })
    }
}

/// Returns true if the view of the frame begins after a VLAN tag that the kernel may store outside
/// the frame.
const fn is_after_stored_tag(on: &Layers<'_>) -> bool {
    on.tags > 0 || on.length.is_some()
}

impl Builder {
    /// Returns true if the kernel may store a tag outside the frame at this hook.
    pub(super) const fn may_have_stored_tag(&self) -> bool {
        !matches!(self.target.hook, Hook::Xdp | Hook::Cgroup)
    }

    /// Emits code that loads the offset of the view into a register, with the flag
    /// [`AFTER_TAG_FLAG`] if the view begins after a tag that may be stored outside the frame.
    /// Views with and without the flag may reach the same exit, because a filter moves the view
    /// only of blocks that it answers.
    fn fetch_view_offset(&mut self, on: &Layers<'_>, to: Reg) {
        self.fetch_distance(on.at, to);
        if is_after_stored_tag(on) && self.may_have_stored_tag() {
            self.asm.push(Insn::alu(Alu::Or, to, AFTER_TAG_FLAG.cast_signed()));
        }
    }

    /// Emits code that sets r9 to the address of this processor's scratch memory, and clears the
    /// words that describe the previous frame.
    pub(super) fn point_at_scratch(&mut self, frame_end: &FinalAction) {
        let scratch = frame_end.scratch_layout();
        let known = self.asm.new_label();
        if let FinalAction::Tap(FusedTap { user: Some(own), .. }) = frame_end {
            self.pass_other_sockets(own);
        }
        self.asm.push(Insn::call(Helper::CpuId));
        self.asm.jump_if(Cond::Lt, R0, frame_end.processors().cast_signed(), known);
        // Unreachable: every possible processor has a region.
        self.asm.exit_with(Verdict::Pass.return_value(self.target.hook));
        self.asm.bind(known);
        if let FinalAction::Tap(FusedTap { user: Some(own), cpus, .. }) = frame_end {
            self.claim_region(own, *cpus);
        }
        if let FinalAction::Tap(fused) = frame_end
            && (fused.user.is_some() || !fused.uses_one_map())
        {
            self.asm.push(Insn::store(Size::DW, R10, FixedSlots::REGION_NUMBER, R0));
        }
        self.asm.load_map_address(R9, FIRST_CALLER_MAP, R0, scratch.stride.cast_signed());
        for outlet in 0..scratch.outlets {
            self.asm.push(Insn::store(Size::DW, R9, scratch.delivery_word_offset(outlet), 0));
        }
        if frame_end.switches().is_some() {
            self.asm.push(Insn::store(Size::DW, R9, scratch.switched, 0));
        }
        if let FinalAction::Tap(fused) = frame_end {
            let marks = fused.egresses.iter().map(|egress| egress.mark).chain(fused.withheld_mark);
            for mark in marks.filter(|mark| *mark < scratch.marks_max) {
                self.asm.push(Insn::store(Size::DW, R9, scratch.mark_offset(mark), 0));
            }
        }
        if matches!(frame_end, FinalAction::Redirect(_)) {
            self.asm.push(Insn::store(Size::W, R9, offset::INTERFACE, 0));
        }
        self.invalidate_registers();
        self.allocate_slots(FixedSlots::FIXED_SLOT_COUNT);
        self.floor = self.stack_used;
        self.asm.push(Insn::store(Size::DW, R10, FixedSlots::SCRATCH, R9));
    }

    /// Emits code that sets r9 to the address of this processor's region again, if the code emitted
    /// before may have overwritten r9.
    pub(super) fn restore_region_register(&mut self) {
        if self.is_region_lost {
            self.asm.push(Insn::load(Size::DW, R9, R10, FixedSlots::SCRATCH));
        }
    }

    /// Returns a register that contains the address of this processor's region in a map: `reg`, or
    /// r9 if it already contains this address. Clobbers r0.
    fn load_region_address(&mut self, map: u32, stride: u32, reg: Reg) -> Reg {
        if map == 0 {
            return R9;
        }
        self.asm.push(Insn::load(Size::DW, R0, R10, FixedSlots::REGION_NUMBER));
        self.asm.load_map_address(reg, FIRST_CALLER_MAP + map, R0, stride.cast_signed());
        reg
    }

    fn checked_mark_offset(&mut self, number: u16) -> Option<i16> {
        let scratch = self.scratch_layout();
        if number >= scratch.marks_max {
            self.refuse_program(UnfitReason::new("there is no room for more marks"));
            return None;
        }
        Some(scratch.mark_offset(number))
    }

    /// Emits code that adds `amount` to the word at offset `word` of a region, non-atomically.
    /// Clobbers r1.
    pub(super) fn add_to_word(&mut self, region: Reg, word: i16, amount: impl Into<Operand>) {
        self.asm.push(Insn::load(Size::DW, R1, region, word));
        self.asm.push(Insn::alu(Alu::Add, R1, amount));
        self.asm.push(Insn::store(Size::DW, region, word, R1));
    }
}
