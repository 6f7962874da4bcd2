//! Final action of a tap: copies the frame for each owner with deliveries, writes the pointers,
//! sends doorbells, and passes the frame. [SL §6.2; CONTRACT 29]
//!
//! Input: the deliveries that the body recorded in the scratch memory. A record becomes visible
//! before a pointer to it, and the pointer before the number of pointers. x86 processors keep this
//! order; on others, an exchange does. A frame that cannot be copied is counted per delivery.

use super::slot_sharing::{PointerRingUse, shared_slots};
use crate::asm::Label;
use crate::emit::builder::{Builder, skb};
use crate::emit::config::{Delivery, Egress, FrameRing, FusedTap, ScratchLayout, WakeupTarget};
use crate::emit::ring_layout::{POINTER_SIZE, offset, record};
use crate::emit::target::Verdict;
use crate::emit::unfit::UnfitReason;
use crate::insn::{
    Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Reg, Size, atomic,
};
use crate::program::Hook;

/// Stack slot for the time while a record is written. This slot and those below are used only after
/// the body, whose values may occupy the same stack.
pub(super) const RECORD_TIME_SLOT: i16 = -32;
/// Stack slot for the position of the record while the record is written.
pub(super) const RECORD_POSITION_SLOT: i16 = -40;
/// Stack slot for the position after the record while the record is written.
pub(super) const RECORD_END_SLOT: i16 = -48;
/// Stack slot for the frame length while the record is written.
const FRAME_LENGTH_SLOT: i16 = -56;
/// Stack slot for the address of the record's region while the record is written.
const REGION_ADDRESS_SLOT: i16 = -64;
/// Offset of the GSO segment size (`gso_size`) in `__sk_buff`.
const GSO_SIZE_OFFSET: i16 = 176;

/// Minimum lengths in bytes of the frames that are copied word by word; each entry covers the
/// frames up to twice its length. The copying helper costs 20 ns more, both in test runs and under
/// a flood of frames.
const SHORT_COPY_LENGTHS: [i16; 2] = [64, 32];

/// Returns the instruction that stores r2 in a word of a region in release order and before any
/// later store. An x86 processor keeps stores in order. Other processors need an exchange, because
/// a store-release requires Linux 6.15.
pub(super) fn store_release_insn(region: Reg, word: i16) -> Insn {
    match cfg!(target_arch = "x86_64") {
        true => Insn::store(Size::DW, region, word, R2),
        false => Insn::atomic(Size::DW, atomic::XCHG, region, word, R2),
    }
}

impl Builder {
    /// Emits code that copies the frame for every owner (a set of requests) with deliveries, and
    /// passes the frame unless the body withholds it from the host.
    pub(in crate::emit) fn deliver_to_all_owners(
        &mut self,
        fused: &FusedTap,
        deliveries: &[Delivery],
    ) {
        self.restore_region_register();
        if fused.rings.len() > 1 {
            self.asm.push(Insn::store(Size::DW, R10, RECORD_TIME_SLOT, 0));
        }
        self.mark_open_exits(fused);
        let mut number = 0;
        for owner in &fused.rings {
            let outlets: Vec<PointerRingUse<'_>> = owner
                .pointer_rings
                .iter()
                .zip(number..)
                .map(|(outlet, number)| {
                    let to = |delivery: &&Delivery| delivery.ring_and_bit().0 == number;
                    let deliveries = deliveries.iter().filter(to).copied().collect();
                    let word = fused.scratch.delivery_word_offset(number);
                    PointerRingUse { outlet, word, number, deliveries }
                })
                .collect();
            number += u16::try_from(outlets.len()).unwrap_or(u16::MAX);
            let switched = fused.switches.is_some();
            if switched || outlets.iter().any(|outlet| !outlet.deliveries.is_empty()) {
                self.deliver_to_owner(fused, owner, &outlets);
            }
        }
        // Sending a copy may move the frame, so this follows all reads of the frame.
        fused.egresses.iter().for_each(|egress| self.send_copy(fused.scratch, *egress));
        if let Some(own) = &fused.user {
            self.release_region(own);
        }
        if let Some(mark) = fused.withheld_mark {
            self.drop_taken_frame(fused.scratch, mark);
        }
        self.asm.exit_with(Verdict::Pass.return_value(self.target.hook));
    }

    /// Emits code that drops the frame if the body has set `mark`, which withholds the frame from
    /// the host.
    fn drop_taken_frame(&mut self, scratch: ScratchLayout, mark: u16) {
        if self.target.hook != Hook::Tc || mark >= scratch.marks_max {
            return self
                .refuse_program(UnfitReason::new("flows can be taken only at traffic control"));
        }
        let pass = self.asm.new_label();
        self.asm.push(Insn::load(Size::DW, R1, R9, scratch.mark_offset(mark)));
        self.asm.jump_if(Cond::Eq, R1, 0, pass);
        self.asm.exit_with(Verdict::Drop.return_value(self.target.hook));
        self.asm.bind(pass);
    }

    /// Emits code that sends a copy of the frame through an interface if the body has set that
    /// interface's mark.
    fn send_copy(&mut self, scratch: ScratchLayout, egress: Egress) {
        let Some(tally) = scratch
            .checked_tally_offset(egress.failed_tally)
            .filter(|_| egress.mark < scratch.marks_max)
        else {
            return self.refuse_program(UnfitReason::new("it leaves by too many interfaces"));
        };
        let (next, asm) = (self.asm.new_label(), &mut self.asm);
        asm.push(Insn::load(Size::DW, R1, R9, scratch.mark_offset(egress.mark)));
        asm.jump_if(Cond::Eq, R1, 0, next);
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, egress.interface.cast_signed()));
        asm.push(Insn::mov(R3, 0));
        asm.push(Insn::call(Helper::CloneRedirect));
        asm.jump_if(Cond::Eq, R0, 0, next);
        self.add_to_word(R9, tally, 1);
        self.asm.bind(next);
    }

    /// Emits code that copies the frame for one owner (a set of requests), writes the pointers, and
    /// sends doorbells.
    fn deliver_to_owner(
        &mut self,
        fused: &FusedTap,
        owner: &FrameRing,
        outlets: &[PointerRingUse<'_>],
    ) {
        let (next, written, failed) =
            (self.asm.new_label(), self.asm.new_label(), self.asm.new_label());
        for (at, ours) in outlets.iter().enumerate() {
            let to = if at == 0 { R1 } else { R2 };
            self.asm.push(Insn::load(Size::DW, to, R9, ours.word));
            if at > 0 {
                self.asm.push(Insn::alu(Alu::Or, R1, R2));
            }
        }
        self.asm.jump_if(Cond::Eq, R1, 0, next);
        self.emit_unread_check(fused, owner, outlets, next);
        self.copy_frame(fused, owner, failed);
        let alone = outlets.len() == 1;
        for ours in outlets {
            self.with_pointer_ring(ours, alone, |b, region| {
                b.write_pointers(fused, ours, region);
                b.write_open_exit_pointers(fused, ours, region);
            });
        }
        let records = if owner.map == 0 { R9 } else { R3 };
        if owner.map != 0 {
            self.asm.push(Insn::load(Size::DW, R3, R10, REGION_ADDRESS_SLOT));
        }
        self.asm.push(Insn::load(Size::DW, R1, R10, RECORD_END_SLOT));
        self.asm.push(Insn::store(Size::DW, records, offset::COMMITTED, R1));
        for ours in outlets.iter().filter(|ours| ours.outlet.wake.target != WakeupTarget::Host) {
            let then = self.asm.new_label();
            self.with_pointer_ring(ours, alone, |b, region| {
                b.send_doorbell(ours.outlet, region, then)
            });
            self.asm.bind(then);
        }
        self.asm.jump(written);
        self.asm.bind(failed);
        for ours in outlets {
            self.with_pointer_ring(ours, alone, |b, region| {
                b.add_to_word(region, offset::FAILED_COPIES, 1);
                b.count_open_exits(fused, ours, region);
            });
            self.count_failed_deliveries(fused.scratch, ours.word, &ours.deliveries);
        }
        self.asm.bind(written);
        for ours in outlets.iter().filter(|ours| ours.outlet.wake.target == WakeupTarget::Host) {
            self.with_pointer_ring(ours, alone, Self::clear_writing_flag);
        }
        self.asm.bind(next);
    }

    /// Emits code that counts a failed copy for each delivery of the frame. The word `word` of the
    /// scratch memory holds the bit set of these deliveries.
    pub(in crate::emit) fn count_failed_deliveries(
        &mut self,
        scratch: ScratchLayout,
        word: i16,
        deliveries: &[Delivery],
    ) {
        for place in shared_slots(deliveries) {
            let Some(tally) =
                place.first.failed_tally.and_then(|number| scratch.checked_tally_offset(number))
            else {
                continue;
            };
            let not = self.asm.new_label();
            self.skip_unless_delivered(word, place.first, not);
            let region = self.compute_tally_base(scratch, &place, not);
            let view = scratch.view_slot_offset(place.first.number);
            self.asm.push(Insn::load(Size::W, R2, R9, view));
            self.add_to_word(region, tally + 8, R2);
            self.add_to_word(region, tally, 1);
            self.asm.bind(not);
        }
    }

    /// Emits a jump to `not` that is taken if the body has not recorded this delivery for the
    /// frame. `word` is the scratch memory offset of the bit set of recorded deliveries.
    pub(super) fn skip_unless_delivered(&mut self, word: i16, delivery: Delivery, not: Label) {
        self.asm.push(Insn::load(Size::DW, R1, R9, word));
        self.asm.push(Insn::alu(Alu::And, R1, 1 << delivery.ring_and_bit().1));
        self.asm.jump_if(Cond::Eq, R1, 0, not);
    }

    /// Emits the code of `f` for a pointer ring. The code runs only for frames with a delivery to
    /// this ring. `alone` is true if every frame that reaches this code has such a delivery. `f`
    /// receives the register that contains the address of the ring's region.
    fn with_pointer_ring(
        &mut self,
        ours: &PointerRingUse<'_>,
        alone: bool,
        f: impl FnOnce(&mut Self, Reg),
    ) {
        let not = self.asm.new_label();
        if !alone {
            self.asm.push(Insn::load(Size::DW, R1, R9, ours.word));
            self.asm.jump_if(Cond::Eq, R1, 0, not);
        }
        let region = self.load_region_address(ours.outlet.map, ours.outlet.stride, R8);
        f(self, region);
        self.asm.bind(not);
    }

    /// Emits code that reserves and writes a record for the frame, and sets r7 to the record's
    /// address. The code jumps to `failed` if the frame is empty or cannot be copied.
    fn copy_frame(&mut self, fused: &FusedTap, owner: &FrameRing, failed: Label) {
        use record::{ALIGNMENT, HEADER_SIZE};
        let (fits, known) = (self.asm.new_label(), self.asm.new_label());
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R8, R6, skb::LEN));
        asm.push(Insn::store(Size::DW, R10, FRAME_LENGTH_SLOT, R8));
        asm.jump_if(Cond::Le, R8, owner.record_max.cast_signed(), fits);
        asm.push(Insn::mov(R8, owner.record_max.cast_signed()));
        asm.bind(fits);
        asm.jump_if(Cond::Lt, R8, 1, failed);
        if fused.rings.len() > 1 {
            // All copies of a frame have the same time.
            asm.push(Insn::load(Size::DW, R1, R10, RECORD_TIME_SLOT));
            asm.jump_if(Cond::Ne, R1, 0, known);
        }
        asm.push(Insn::call(Helper::KtimeNs));
        asm.push(Insn::store(Size::DW, R10, RECORD_TIME_SLOT, R0));
        asm.bind(known);
        let region = self.load_region_address(owner.map, owner.stride, R7);
        let asm = &mut self.asm;
        if owner.map != 0 {
            asm.push(Insn::store(Size::DW, R10, REGION_ADDRESS_SLOT, R7));
        }
        asm.push(Insn::load(Size::DW, R1, region, offset::RESERVED));
        asm.push(Insn::store(Size::DW, R10, RECORD_POSITION_SLOT, R1));
        asm.compute(R2, R8, Alu::Add, (HEADER_SIZE + ALIGNMENT - 1).cast_signed());
        asm.push(Insn::alu(Alu::And, R2, -ALIGNMENT.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R2, R1));
        asm.push(Insn::store(Size::DW, R10, RECORD_END_SLOT, R2));
        // RESERVED is published before any write to the reserved bytes.
        asm.push(store_release_insn(region, offset::RESERVED));
        asm.push(Insn::alu(Alu::And, R1, owner.bytes.cast_signed() - 1));
        if owner.map == 0 {
            asm.push(Insn::mov(R7, R9));
        }
        asm.push(Insn::alu(Alu::Add, R7, owner.records_at.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R7, R1));
        self.fill_record(fused.observes_sent, failed);
    }

    /// Emits code that writes the record at the address in r7, with r8 bytes of the frame. The code
    /// jumps to `failed` if the frame cannot be copied.
    fn fill_record(&mut self, sent: bool, failed: Label) {
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R7, record::RECORD_POSITION, -1));
        for (size, from, to) in [
            (Size::W, FRAME_LENGTH_SLOT, record::LENGTH),
            (Size::DW, RECORD_TIME_SLOT, record::TIME),
        ] {
            asm.push(Insn::load(Size::DW, R1, R10, from));
            asm.push(Insn::store(size, R7, to, R1));
        }
        asm.push(Insn::store(Size::W, R7, record::CAPTURED_LENGTH, R8));
        for (field, to) in [
            (skb::TAG_TCI, record::TAG),
            (skb::TAG_PROTOCOL, record::TAG_PROTOCOL),
            (GSO_SIZE_OFFSET, record::GSO_SIZE),
        ] {
            asm.push(Insn::load(Size::W, R1, R6, field));
            asm.push(Insn::store(Size::H, R7, to, R1));
        }
        if self.target.hook == Hook::Cgroup {
            self.load_record_flags();
        } else {
            // The field is 1 for a frame with a tag, which is the value of TAGGED.
            self.asm.push(Insn::load(Size::W, R1, R6, skb::TAG_PRESENT));
            if sent {
                self.asm.push(Insn::alu(Alu::Or, R1, i32::from(record::SENT_FLAG)));
            }
        }
        self.asm.push(Insn::store(Size::H, R7, record::FLAGS, R1));
        let copied = self.asm.new_label();
        // Packet-pointer arithmetic needs CAP_PERFMON.
        if self.target.hook == Hook::Tc && !self.target.hardened {
            SHORT_COPY_LENGTHS.iter().for_each(|half| self.copy_short_frame(*half, copied));
        }
        let asm = &mut self.asm;
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, 0));
        asm.compute(R3, R7, Alu::Add, record::HEADER_SIZE.cast_signed());
        asm.push(Insn::mov(R4, R8));
        asm.push(Insn::call(Helper::SkbLoadBytes));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.bind(copied);
        asm.push(Insn::load(Size::DW, R1, R10, RECORD_POSITION_SLOT));
        asm.push(Insn::store(Size::DW, R7, record::RECORD_POSITION, R1));
    }

    /// Emits code that copies a linear frame to the record at r7, after the header, and jumps to
    /// `copied`. The code copies the first `half` bytes and the last `half` bytes, which may
    /// overlap. It continues without a copy if the frame is not linear, or if the length in r8 is
    /// not between `half` and twice `half` bytes.
    fn copy_short_frame(&mut self, half: i16, copied: Label) {
        let (not, asm) = (self.asm.new_label(), &mut self.asm);
        asm.jump_if(Cond::Lt, R8, i32::from(half), not);
        asm.jump_if(Cond::Gt, R8, 2 * i32::from(half), not);
        asm.push(Insn::load(Size::W, R1, R6, skb::DATA));
        asm.push(Insn::load(Size::W, R2, R6, skb::DATA_END));
        // Start of the second half: r3 in the frame, r4 in the record, not counting the record's
        // header.
        asm.compute(R4, R8, Alu::Sub, i32::from(half));
        asm.compute(R3, R1, Alu::Add, R4);
        asm.push(Insn::alu(Alu::Add, R4, R7));
        for begin in [R1, R3] {
            asm.compute(R5, begin, Alu::Add, i32::from(half));
            asm.jump_if(Cond::Gt, R5, R2, not);
        }
        for (from, to) in [(R1, R7), (R3, R4)] {
            for at in (0..half).step_by(Size::DW.bytes()) {
                asm.push(Insn::load(Size::DW, R5, from, at));
                asm.push(Insn::store(Size::DW, to, record::HEADER_SIZE as i16 + at, R5));
            }
        }
        asm.jump(copied);
        asm.bind(not);
    }

    /// Emits code that writes the pointers to the frame into a pointer ring. After each pointer,
    /// the code stores the reader's new number of pointers with release ordering.
    fn write_pointers(&mut self, fused: &FusedTap, ours: &PointerRingUse<'_>, region: Reg) {
        let outlet = ours.outlet;
        for place in shared_slots(&ours.deliveries) {
            let delivery = place.first;
            let not = self.asm.new_label();
            let head = offset::HEADS + 8 * i16::from(delivery.reader);
            let view = fused.scratch.view_slot_offset(delivery.number);
            let pointers =
                outlet.pointers_at + u32::from(delivery.reader) * outlet.pointers * POINTER_SIZE;
            self.skip_unless_delivered(ours.word, delivery, not);
            let asm = &mut self.asm;
            asm.push(Insn::load(Size::DW, R2, region, head));
            asm.compute(R3, R2, Alu::And, outlet.pointers.cast_signed() - 1);
            asm.push(Insn::alu(Alu::Mul, R3, POINTER_SIZE.cast_signed()));
            asm.compute(R4, region, Alu::Add, pointers.cast_signed());
            asm.push(Insn::alu(Alu::Add, R4, R3));
            asm.push(Insn::load(Size::DW, R5, R10, RECORD_POSITION_SLOT));
            asm.push(Insn::store(Size::DW, R4, 0, R5));
            for word in [0, 8] {
                asm.push(Insn::load(Size::DW, R5, R9, view + word));
                asm.push(Insn::store(Size::DW, R4, 8 + word, R5));
            }
            self.count_frame_for_exit(fused.scratch, ours, delivery, region, Some(R4));
            self.asm.push(Insn::alu(Alu::Add, R2, 1));
            self.asm.push(store_release_insn(region, head));
            self.asm.bind(not);
        }
    }
}
