//! How a tap ends a frame: it copies it for each owner to whose lines it was handed over, points at
//! the copy for each of these, rings, and lets the frame by. [SL §6.2; CONTRACT 29]
//!
//! In: what the body has noted on the desk. Who reads sees a record before a pointer to it, and the
//! pointer before the count of pointers: x86 keeps stores in order, elsewhere an exchange does.
//! What cannot be copied is counted for each of those to whom it was to go.

use super::shared::places;
use super::{Desk, GIVEN, Hand, Joint, Lead, Outlet, Owner, POINTER, Wakes, at, record};
use crate::asm::Label;
use crate::emit::build::{Builder, skb};
use crate::emit::{Unfit, Verdict};
use crate::insn::{
    Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Reg, Size, atomic,
};
use crate::program::Place;

/// Places on the stack that are free again once the body has ended.
const NOW: i16 = -32;
const POSITION: i16 = -40;
const END: i16 = -48;
const LENGTH: i16 = -56;
const RECORDS: i16 = -64;
/// BPF_RB_FORCE_WAKEUP: without it the kernel wakes only if all before was taken out.
const FORCE_WAKEUP: i32 = 2;
/// Offset in `__sk_buff`.
const SEGMENT: i16 = 176;

/// Frames from these lengths to twice as much are copied word by word: the helper that copies
/// costs 20 ns more, by test runs and under a flood alike.
const SHORT: [i16; 2] = [64, 32];

/// Stores r2 in a word of a region such that who sees it sees what was stored before, and nobody
/// sees what is stored later without it. An x86 processor keeps the order of stores. Elsewhere it
/// is an exchange: a store with release needs Linux 6.15.
pub(super) fn in_order(region: Reg, word: i16) -> Insn {
    match cfg!(target_arch = "x86_64") {
        true => Insn::store(Size::DW, region, word, R2),
        false => Insn::atomic(Size::DW, atomic::XCHG, region, word, R2),
    }
}

impl Builder {
    /// Copies the frame for every owner to whose lines it was handed over, and lets it by.
    pub(in crate::emit) fn hand_over(&mut self, joint: &Joint, hands: &[Hand]) {
        self.find_region();
        if joint.owners.len() > 1 {
            self.asm.push(Insn::store(Size::DW, R10, NOW, 0));
        }
        let mut number = 0;
        for owner in &joint.owners {
            let outlets: Vec<Ours<'_>> = owner
                .outlets
                .iter()
                .zip(number..)
                .map(|(outlet, number)| {
                    let to = |hand: &&Hand| hand.place().0 == number;
                    let hands = hands.iter().filter(to).copied().collect();
                    Ours { outlet, word: joint.desk.word(number), hands }
                })
                .collect();
            number += u16::try_from(outlets.len()).unwrap_or(u16::MAX);
            if outlets.iter().any(|outlet| !outlet.hands.is_empty()) {
                self.hand_to(joint, owner, &outlets);
            }
        }
        // Behind all that reads the frame: whoever sends a copy may move it.
        joint.leads.iter().for_each(|lead| self.send_copy(joint.desk, *lead));
        if let Some(own) = &joint.own {
            self.leave_seat(own);
        }
        self.asm.push(Insn::mov(R0, Verdict::Pass.value(self.target.place)));
        self.asm.push(Insn::exit());
    }

    /// Sends a copy of the frame out by an interface, if the body has said so.
    fn send_copy(&mut self, desk: Desk, lead: Lead) {
        let Some(tally) = desk.tally_at(lead.failed).filter(|_| lead.mark < desk.marks_max) else {
            return self.refuse(Unfit::new("it leaves by too many interfaces"));
        };
        let (next, asm) = (self.asm.label(), &mut self.asm);
        asm.push(Insn::load(Size::DW, R1, R9, desk.mark(lead.mark)));
        asm.jump_if(Cond::Eq, R1, 0, next);
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, lead.interface.cast_signed()));
        asm.push(Insn::mov(R3, 0));
        asm.push(Insn::call(Helper::CloneRedirect));
        asm.jump_if(Cond::Eq, R0, 0, next);
        self.add_one(R9, tally);
        self.asm.bind(next);
    }

    /// Copies the frame for one owner, points at it, and rings.
    fn hand_to(&mut self, joint: &Joint, owner: &Owner, outlets: &[Ours<'_>]) {
        let (next, failed) = (self.asm.label(), self.asm.label());
        for (at, ours) in outlets.iter().enumerate() {
            let to = if at == 0 { R1 } else { R2 };
            self.asm.push(Insn::load(Size::DW, to, R9, ours.word));
            if at > 0 {
                self.asm.push(Insn::alu(Alu::Or, R1, R2));
            }
        }
        self.asm.jump_if(Cond::Eq, R1, 0, next);
        self.unless_nobody_reads(joint.desk, owner, outlets, next);
        self.copy_frame(joint, owner, failed);
        let alone = outlets.len() == 1;
        for ours in outlets {
            self.of_outlet(ours, alone, |b, region| b.point(joint, ours, region));
        }
        let records = if owner.map == 0 { R9 } else { R3 };
        if owner.map != 0 {
            self.asm.push(Insn::load(Size::DW, R3, R10, RECORDS));
        }
        self.asm.push(Insn::load(Size::DW, R1, R10, END));
        self.asm.push(Insn::store(Size::DW, records, at::COMMITTED, R1));
        for ours in outlets {
            let then = self.asm.label();
            self.of_outlet(ours, alone, |b, region| b.ring_bell(ours.outlet, region, then));
            self.asm.bind(then);
        }
        self.asm.jump(next);
        self.asm.bind(failed);
        for ours in outlets {
            self.of_outlet(ours, alone, |b, region| b.add_one(region, at::FAILED));
            self.count_failed(joint.desk, ours.word, &ours.hands);
        }
        self.asm.bind(next);
    }

    /// Counts a frame that did not get to those to whom it was to go; the word says who they are.
    pub(in crate::emit) fn count_failed(&mut self, desk: Desk, word: i16, hands: &[Hand]) {
        for place in places(hands) {
            let Some(tally) = place.first.failed.and_then(|number| desk.tally_at(number)) else {
                continue;
            };
            let not = self.asm.label();
            self.only_chosen(word, place.first, not);
            let region = self.tallies_of(desk, &place, not);
            let asm = &mut self.asm;
            asm.push(Insn::load(Size::W, R2, R9, desk.handed(place.first.number)));
            asm.push(Insn::load(Size::DW, R1, region, tally + 8));
            asm.push(Insn::alu(Alu::Add, R1, R2));
            asm.push(Insn::store(Size::DW, region, tally + 8, R1));
            self.add_one(region, tally);
            self.asm.bind(not);
        }
    }

    /// Goes on only with a frame that is noted in this place.
    pub(super) fn only_chosen(&mut self, word: i16, hand: Hand, not: Label) {
        self.asm.push(Insn::load(Size::DW, R1, R9, word));
        self.asm.push(Insn::alu(Alu::And, R1, 1 << hand.place().1));
        self.asm.jump_if(Cond::Eq, R1, 0, not);
    }

    /// Emits what happens to an outlet, if the frame goes to it, with its region in a register.
    fn of_outlet(&mut self, ours: &Ours<'_>, alone: bool, f: impl FnOnce(&mut Self, Reg)) {
        let not = self.asm.label();
        if !alone {
            self.asm.push(Insn::load(Size::DW, R1, R9, ours.word));
            self.asm.jump_if(Cond::Eq, R1, 0, not);
        }
        let region = self.region_of(ours.outlet.map, ours.outlet.stride, R8);
        f(self, region);
        self.asm.bind(not);
    }

    /// Reserves, and writes a record; it lies at r7.
    fn copy_frame(&mut self, joint: &Joint, owner: &Owner, failed: Label) {
        use record::{ALIGNED, HEADER};
        let (fits, known) = (self.asm.label(), self.asm.label());
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R8, R6, skb::LEN));
        asm.push(Insn::store(Size::DW, R10, LENGTH, R8));
        asm.jump_if(Cond::Le, R8, owner.record_max.cast_signed(), fits);
        asm.push(Insn::mov(R8, owner.record_max.cast_signed()));
        asm.bind(fits);
        asm.jump_if(Cond::Lt, R8, 1, failed);
        if joint.owners.len() > 1 {
            // Of one frame all have the same time.
            asm.push(Insn::load(Size::DW, R1, R10, NOW));
            asm.jump_if(Cond::Ne, R1, 0, known);
        }
        asm.push(Insn::call(Helper::KtimeNs));
        asm.push(Insn::store(Size::DW, R10, NOW, R0));
        asm.bind(known);
        let region = self.region_of(owner.map, owner.stride, R7);
        let asm = &mut self.asm;
        if owner.map != 0 {
            asm.push(Insn::store(Size::DW, R10, RECORDS, R7));
        }
        asm.push(Insn::load(Size::DW, R1, region, at::RESERVED));
        asm.push(Insn::store(Size::DW, R10, POSITION, R1));
        asm.push(Insn::mov(R2, R8));
        asm.push(Insn::alu(Alu::Add, R2, (HEADER + ALIGNED - 1).cast_signed()));
        asm.push(Insn::alu(Alu::And, R2, -ALIGNED.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R2, R1));
        asm.push(Insn::store(Size::DW, R10, END, R2));
        // Reserved is seen before anything that is written there.
        asm.push(in_order(region, at::RESERVED));
        asm.push(Insn::alu(Alu::And, R1, owner.bytes.cast_signed() - 1));
        if owner.map == 0 {
            asm.push(Insn::mov(R7, R9));
        }
        asm.push(Insn::alu(Alu::Add, R7, owner.records_at.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R7, R1));
        self.fill_record(joint.sent, failed);
    }

    /// Writes the record at r7, with r8 bytes of the frame.
    fn fill_record(&mut self, sent: bool, failed: Label) {
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R7, record::STAMP, -1));
        for (size, from, to) in [(Size::W, LENGTH, record::LENGTH), (Size::DW, NOW, record::TIME)] {
            asm.push(Insn::load(Size::DW, R1, R10, from));
            asm.push(Insn::store(size, R7, to, R1));
        }
        asm.push(Insn::store(Size::W, R7, record::KEPT, R8));
        for (field, to) in [
            (skb::TAG_TCI, record::TAG),
            (skb::TAG_PROTOCOL, record::TAG_PROTOCOL),
            (SEGMENT, record::SEGMENT),
        ] {
            asm.push(Insn::load(Size::W, R1, R6, field));
            asm.push(Insn::store(Size::H, R7, to, R1));
        }
        if self.target.place == Place::Cgroup {
            self.marks_of_socket();
        } else {
            // 1 if there is a tag.
            self.asm.push(Insn::load(Size::W, R1, R6, skb::TAG_PRESENT));
            if sent {
                self.asm.push(Insn::alu(Alu::Or, R1, i32::from(record::SENT)));
            }
        }
        self.asm.push(Insn::store(Size::H, R7, record::MARKS, R1));
        let copied = self.asm.label();
        // Who may not compute with packet pointers has no short way.
        if self.target.place == Place::Tc && !self.target.hardened {
            SHORT.iter().for_each(|half| self.copy_short(*half, copied));
        }
        let asm = &mut self.asm;
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, 0));
        asm.push(Insn::mov(R3, R7));
        asm.push(Insn::alu(Alu::Add, R3, record::HEADER.cast_signed()));
        asm.push(Insn::mov(R4, R8));
        asm.push(Insn::call(Helper::SkbLoadBytes));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.bind(copied);
        asm.push(Insn::load(Size::DW, R1, R10, POSITION));
        asm.push(Insn::store(Size::DW, R7, record::STAMP, R1));
    }

    /// Copies r8 bytes of the frame behind the header of the record at r7, if they are between
    /// `half` and twice as many and lie in one piece: as many as that from the beginning on, and as
    /// many up to the end, which may overlap.
    fn copy_short(&mut self, half: i16, copied: Label) {
        let (not, asm) = (self.asm.label(), &mut self.asm);
        asm.jump_if(Cond::Lt, R8, i32::from(half), not);
        asm.jump_if(Cond::Gt, R8, 2 * i32::from(half), not);
        asm.push(Insn::load(Size::W, R1, R6, skb::DATA));
        asm.push(Insn::load(Size::W, R2, R6, skb::DATA_END));
        // Where the second part begins in the frame, and in the record but for its header.
        asm.push(Insn::mov(R4, R8));
        asm.push(Insn::alu(Alu::Sub, R4, i32::from(half)));
        asm.push(Insn::mov(R3, R1));
        asm.push(Insn::alu(Alu::Add, R3, R4));
        asm.push(Insn::alu(Alu::Add, R4, R7));
        for begin in [R1, R3] {
            asm.push(Insn::mov(R5, begin));
            asm.push(Insn::alu(Alu::Add, R5, i32::from(half)));
            asm.jump_if(Cond::Gt, R5, R2, not);
        }
        for (from, to) in [(R1, R7), (R3, R4)] {
            for at in (0..half).step_by(Size::DW.bytes()) {
                asm.push(Insn::load(Size::DW, R5, from, at));
                asm.push(Insn::store(Size::DW, to, record::HEADER as i16 + at, R5));
            }
        }
        asm.jump(copied);
        asm.bind(not);
    }

    /// Writes the pointers of an outlet, then how many there are (release).
    fn point(&mut self, joint: &Joint, ours: &Ours<'_>, region: Reg) {
        let outlet = ours.outlet;
        for place in places(&ours.hands) {
            let hand = place.first;
            let not = self.asm.label();
            let head = at::HEADS + 8 * i16::from(hand.reader);
            let seen = joint.desk.handed(hand.number);
            let pointers = outlet.pointers_at + u32::from(hand.reader) * outlet.pointers * POINTER;
            self.only_chosen(ours.word, hand, not);
            let asm = &mut self.asm;
            asm.push(Insn::load(Size::DW, R2, region, head));
            asm.push(Insn::mov(R3, R2));
            asm.push(Insn::alu(Alu::And, R3, outlet.pointers.cast_signed() - 1));
            asm.push(Insn::alu(Alu::Mul, R3, POINTER.cast_signed()));
            asm.push(Insn::mov(R4, region));
            asm.push(Insn::alu(Alu::Add, R4, pointers.cast_signed()));
            asm.push(Insn::alu(Alu::Add, R4, R3));
            asm.push(Insn::load(Size::DW, R5, R10, POSITION));
            asm.push(Insn::store(Size::DW, R4, 0, R5));
            for word in [0, 8] {
                asm.push(Insn::load(Size::DW, R5, R9, seen + word));
                asm.push(Insn::store(Size::DW, R4, 8 + word, R5));
            }
            self.count_way(joint.desk, ours, hand, region, Some(R4));
            self.asm.push(Insn::alu(Alu::Add, R2, 1));
            self.asm.push(in_order(region, head));
            self.asm.bind(not);
        }
    }

    fn ring_bell(&mut self, outlet: &Outlet, region: Reg, then: Label) {
        let bell = outlet.bell;
        let asm = &mut self.asm;
        let (now, missed) = (asm.label(), asm.label());
        asm.push(Insn::load(Size::DW, R2, region, at::SINCE_BELL));
        asm.push(Insn::alu(Alu::Add, R2, 1));
        asm.push(Insn::store(Size::DW, region, at::SINCE_BELL, R2));
        asm.push(Insn::load(Size::DW, R1, R10, END));
        asm.push(Insn::load(Size::DW, R3, region, at::BELL_POSITION));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, bell.bytes.cast_signed(), now);
        asm.push(Insn::load(Size::DW, R1, R10, NOW));
        asm.push(Insn::load(Size::DW, R3, region, at::BELL_TIME));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, bell.wait_ns.cast_signed(), now);
        asm.jump_if(Cond::Lt, R2, bell.blocks.cast_signed(), then);
        asm.jump_if(Cond::Ge, R2, bell.most.cast_signed(), now);
        asm.jump_if(Cond::Lt, R1, bell.apart_ns.cast_signed(), then);
        asm.bind(now);
        for (from, to) in [(NOW, at::BELL_TIME), (END, at::BELL_POSITION)] {
            asm.push(Insn::load(Size::DW, R1, R10, from));
            asm.push(Insn::store(Size::DW, region, to, R1));
        }
        asm.push(Insn::store(Size::DW, region, at::SINCE_BELL, 0));
        asm.push_wide(Insn::load_map(R1, GIVEN + outlet.bell_map));
        asm.push(Insn::mov(R2, R10));
        asm.push(Insn::alu(Alu::Add, R2, i32::from(POSITION)));
        asm.push(Insn::mov(R3, 8));
        asm.push(Insn::mov(
            R4,
            match bell.wakes {
                Wakes::Taker => 0,
                Wakes::Listeners => FORCE_WAKEUP,
            },
        ));
        asm.push(Insn::call(Helper::RingbufOutput));
        asm.jump_if(Cond::Ne, R0, 0, missed);
        self.add_one(region, at::BELLS);
        self.asm.jump(then);
        self.asm.bind(missed);
        self.add_one(region, at::BELLS_FAILED);
    }
}

/// An outlet, where its word lies on the desk, and the hands that use it.
pub(super) struct Ours<'j> {
    pub(super) outlet: &'j Outlet,
    pub(super) word: i16,
    pub(super) hands: Vec<Hand>,
}
