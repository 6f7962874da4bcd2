//! Detection of rings without a reader, for which frames are counted but not copied. [SL §6.2;
//! CONTRACT 29]
//!
//! Input: the number of drained doorbells. A reader drains its doorbells each time before it checks
//! for frames. A doorbell is sent at least once per quarter of the ring. If the ring was filled
//! [`UNREAD_LAPS_LOG2`] times without a doorbell being drained, there is no reader, and all copies
//! except those of the last lap were useless. From then on the program polls the doorbells with
//! every frame, which is cheaper than a copy, and copies again from the first frame after a drain.
//! A late reader therefore loses at most one lap more than without this check.
//!
//! To a reader, the effect is that the program has lapped it. The position advances once by a whole
//! ring, so no record is valid any more, and pointers are counted but not written, since their
//! records are gone.
//!
//! Frames are always copied if several requests share the copy, if the doorbells do not go to a
//! consumer that drains them ([`WakeupTarget::Consumer`]), or if a doorbell covers more than an
//! entire ring.

use super::ring::store_release_insn;
use super::slot_sharing::{PointerRingUse, shared_slots};
use crate::asm::Label;
use crate::emit::builder::Builder;
use crate::emit::config::{FrameRing, FusedTap, WakeupTarget};
use crate::emit::maps::FIRST_CALLER_MAP;
use crate::emit::ring_layout::{UNREAD_LAPS_LOG2, offset};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R7, R8, Reg, Size};

/// BPF_RB_CONS_POS: query the position of the consumer.
pub(super) const BPF_RB_CONS_POS: i32 = 2;

impl Builder {
    /// Emits code that detects a ring without a reader. For a frame that need only be counted,
    /// because there is no reader, execution continues at `next`. Emits nothing if frames are
    /// always copied. Clobbers r7 and r8.
    pub(super) fn emit_unread_check(
        &mut self,
        fused: &FusedTap,
        owner: &FrameRing,
        outlets: &[PointerRingUse<'_>],
        next: Label,
    ) {
        let [ours] = outlets else { return };
        let wake = ours.outlet.wake;
        if wake.target != WakeupTarget::Consumer || wake.bytes > owner.bytes {
            return;
        }
        let copied = self.asm.new_label();
        let records = self.load_region_address(owner.map, owner.stride, R7);
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::DW, R1, records, offset::RESERVED));
        asm.push(Insn::load(Size::DW, R2, records, offset::POLL_POSITION));
        asm.jump_if(Cond::Lt, R1, R2, copied);
        let region = self.load_region_address(ours.outlet.map, ours.outlet.stride, R8);
        self.poll_consumer_position(owner, ours, (records, region), copied);
        for place in shared_slots(&ours.deliveries) {
            let (delivery, not) = (place.first, self.asm.new_label());
            self.skip_unless_delivered(ours.word, delivery, not);
            self.count_frame_for_exit(fused.scratch, ours, delivery, region, None);
            let head = offset::HEADS + 8 * i16::from(delivery.reader);
            self.asm.push(Insn::load(Size::DW, R2, region, head));
            self.asm.push(Insn::alu(Alu::Add, R2, 1));
            self.asm.push(store_release_insn(region, head));
            self.asm.bind(not);
        }
        self.count_open_exits(fused, ours, region);
        self.asm.jump(next);
        self.asm.bind(copied);
    }

    /// Emits code that polls the position up to which the consumer has drained doorbells. If the
    /// position has advanced, or if it is too early to decide, the code jumps to `copied`.
    /// Otherwise, it invalidates the copied records.
    fn poll_consumer_position(
        &mut self,
        owner: &FrameRing,
        ours: &PointerRingUse<'_>,
        (records, region): (Reg, Reg),
        copied: Label,
    ) {
        let [drained, restart, late, gone] = std::array::from_fn(|_| self.asm.new_label());
        let asm = &mut self.asm;
        let ring = owner.bytes.cast_signed();
        asm.push_wide(Insn::load_map(R1, FIRST_CALLER_MAP + ours.outlet.doorbell_map));
        asm.push(Insn::mov(R2, BPF_RB_CONS_POS));
        asm.push(Insn::call(Helper::RingbufQuery));
        // Offset by one, so that 0 means never polled.
        asm.push(Insn::alu(Alu::Add, R0, 1));
        asm.push(Insn::load(Size::DW, R1, records, offset::RESERVED));
        asm.push(Insn::load(Size::DW, R2, region, offset::DRAINED_AT_POLL));
        asm.jump_if(Cond::Ne, R0, R2, drained);
        asm.push(Insn::load(Size::DW, R2, records, offset::POLL_POSITION));
        asm.jump_if(Cond::Eq, R2, 0, gone);
        // Another program without this poll ran in between: its frames may have gone to other
        // requests, without a doorbell for this one.
        asm.compute(R3, R1, Alu::Sub, R2);
        asm.jump_if(Cond::Ge, R3, ring, restart);
        asm.push(Insn::load(Size::DW, R2, region, offset::DRAIN_OBSERVED_POSITION));
        asm.compute(R3, R1, Alu::Sub, R2);
        asm.push(Insn::alu(Alu::Shr, R3, UNREAD_LAPS_LOG2.cast_signed()));
        asm.jump_if(Cond::Lt, R3, ring, late);
        asm.push(Insn::store(Size::DW, records, offset::POLL_POSITION, 0));
        asm.push(Insn::alu(Alu::Add, R1, ring));
        asm.push(Insn::mov(R2, R1));
        // `RESERVED` is published before any pointer is counted without being written.
        asm.push(store_release_insn(records, offset::RESERVED));
        asm.push(Insn::store(Size::DW, records, offset::COMMITTED, R1));
        asm.jump(gone);
        asm.bind(drained);
        asm.push(Insn::store(Size::DW, region, offset::DRAINED_AT_POLL, R0));
        asm.bind(restart);
        asm.push(Insn::store(Size::DW, region, offset::DRAIN_OBSERVED_POSITION, R1));
        asm.bind(late);
        asm.push(Insn::alu(Alu::Add, R1, ring));
        asm.push(Insn::store(Size::DW, records, offset::POLL_POSITION, R1));
        asm.jump(copied);
        asm.bind(gone);
    }
}
