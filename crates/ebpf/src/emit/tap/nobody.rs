//! Who comes for frames, and what happens while nobody does: they are counted, and not copied.
//! [SL §6.2; CONTRACT 29]
//!
//! In: how far the bells were taken out, which whoever reads does each time before it looks for
//! frames. A bell rings for every quarter of the ring at the latest. So if as many frames as fill
//! the ring [`UNTAKEN`] times over were copied and nobody has taken one out, nobody reads, and what
//! was copied was copied for nobody: all but the last ring of it is lost. From then on it is asked
//! with every frame, which costs less than to copy it, and the first one after somebody has come is
//! copied again. So who is late loses at most one ring more than without this, of the many that it
//! has lost.
//!
//! Out: for who reads the program came round. The position goes on by a whole ring once, so that
//! nothing that lies there is whole any more, and pointers are counted but not written: what they
//! pointed at before is gone. Nothing is new to a reader.
//!
//! Where several lines share what was copied, or who listens takes nothing out, or the bell rings
//! less than once for a whole ring, all are copied.

use super::ring::{Ours, in_order};
use super::shared::places;
use super::{Desk, GIVEN, Owner, UNTAKEN, Wakes, at};
use crate::asm::Label;
use crate::emit::build::Builder;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R7, R8, Reg, Size};

/// BPF_RB_CONS_POS: how far records were taken out.
const TAKEN_OUT: i32 = 2;

impl Builder {
    /// Goes on at `next` with what is only counted. Uses r7 and r8.
    pub(super) fn unless_nobody_reads(
        &mut self,
        desk: Desk,
        owner: &Owner,
        outlets: &[Ours<'_>],
        next: Label,
    ) {
        let [ours] = outlets else { return };
        let bell = ours.outlet.bell;
        if bell.wakes == Wakes::Listeners || bell.bytes > owner.bytes {
            return;
        }
        let copied = self.asm.label();
        let records = self.region_of(owner.map, owner.stride, R7);
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::DW, R1, records, at::RESERVED));
        asm.push(Insn::load(Size::DW, R2, records, at::ASK));
        asm.jump_if(Cond::Lt, R1, R2, copied);
        let region = self.region_of(ours.outlet.map, ours.outlet.stride, R8);
        self.ask(owner, ours, (records, region), copied);
        for place in places(&ours.hands) {
            let (hand, not) = (place.first, self.asm.label());
            self.only_chosen(ours.word, hand, not);
            self.count_way(desk, ours, hand, region, None);
            let head = at::HEADS + 8 * i16::from(hand.reader);
            self.asm.push(Insn::load(Size::DW, R2, region, head));
            self.asm.push(Insn::alu(Alu::Add, R2, 1));
            self.asm.push(in_order(region, head));
            self.asm.bind(not);
        }
        self.asm.jump(next);
        self.asm.bind(copied);
    }

    /// Asks how far bells were taken out. Goes to `copied` if somebody takes them, or if it is too
    /// early to tell; else nothing that was copied is whole any more.
    fn ask(
        &mut self,
        owner: &Owner,
        ours: &Ours<'_>,
        (records, region): (Reg, Reg),
        copied: Label,
    ) {
        let [came, anew, late, gone] = std::array::from_fn(|_| self.asm.label());
        let asm = &mut self.asm;
        let ring = owner.bytes.cast_signed();
        asm.push_wide(Insn::load_map(R1, GIVEN + ours.outlet.bell_map));
        asm.push(Insn::mov(R2, TAKEN_OUT));
        asm.push(Insn::call(Helper::RingbufQuery));
        // Never 0, which is what nobody has asked for yet.
        asm.push(Insn::alu(Alu::Add, R0, 1));
        asm.push(Insn::load(Size::DW, R1, records, at::RESERVED));
        asm.push(Insn::load(Size::DW, R2, region, at::TAKEN));
        asm.jump_if(Cond::Ne, R0, R2, came);
        asm.push(Insn::load(Size::DW, R2, records, at::ASK));
        asm.jump_if(Cond::Eq, R2, 0, gone);
        // A program that does not ask has stood here meanwhile: of its frames other lines may have
        // got all, and no bell of this one rang.
        asm.push(Insn::mov(R3, R1));
        asm.push(Insn::alu(Alu::Sub, R3, R2));
        asm.jump_if(Cond::Ge, R3, ring, anew);
        asm.push(Insn::load(Size::DW, R2, region, at::TAKEN_AT));
        asm.push(Insn::mov(R3, R1));
        asm.push(Insn::alu(Alu::Sub, R3, R2));
        asm.push(Insn::alu(Alu::Shr, R3, UNTAKEN.cast_signed()));
        asm.jump_if(Cond::Lt, R3, ring, late);
        asm.push(Insn::store(Size::DW, records, at::ASK, 0));
        asm.push(Insn::alu(Alu::Add, R1, ring));
        asm.push(Insn::mov(R2, R1));
        // Seen before any pointer is counted that was not written.
        asm.push(in_order(records, at::RESERVED));
        asm.push(Insn::store(Size::DW, records, at::COMMITTED, R1));
        asm.jump(gone);
        asm.bind(came);
        asm.push(Insn::store(Size::DW, region, at::TAKEN, R0));
        asm.bind(anew);
        asm.push(Insn::store(Size::DW, region, at::TAKEN_AT, R1));
        asm.bind(late);
        asm.push(Insn::alu(Alu::Add, R1, ring));
        asm.push(Insn::store(Size::DW, records, at::ASK, R1));
        asm.jump(copied);
        asm.bind(gone);
    }
}
