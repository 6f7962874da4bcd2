//! The tap: a program that hands frames to processes through rings, and counts.
//!
//! In: which memory the rings are, and a body that tallies and hands over. Out: a [`Program`] that
//! lets every frame by. A frame that was handed over, be it to several, is copied once, behind
//! everything else, into the ring of its processor; beside it lies a pointer for each of those to
//! whom it goes. [SL §5.3, §6.2; CONTRACT 29]
//!
//! Rings and bell are maps that somebody else made: in the code they have the two numbers behind
//! those of the program's own maps. Of the rings a processor has a region ([`at`]), in which its
//! program is alone: nothing there is atomic but what readers must see in order. Which frames are
//! handed over to whom is kept in that memory, never in a register: what the verifier does not
//! follow does not double the ways that it goes.

use super::build::{Builder, skb};
use super::handle::{Base, Exit, Layers, Num, Value};
use super::scope::{Meta, Scope};
use super::{Target, Unfit};
use crate::insn::{
    Alu, Cond, Helper, Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9,
    R10, Size, atomic,
};
use crate::program::{Place, Program};

/// Where things lie in the region of a processor, in bytes.
pub mod at {
    /// Eight bytes: the position up to which the program may be writing.
    pub const RESERVED: i16 = 0;
    /// Eight bytes: the position up to which records are whole.
    pub const COMMITTED: i16 = 8;
    /// Eight bytes for each reader: how many pointers were written for it.
    pub const HEADS: i16 = 64;
    /// To whom the frame goes that is looked at, one bit each.
    pub const CHOSEN: i16 = HEADS + 8 * super::READERS_MAX as i16;
    /// Frames that could not be copied.
    pub const FAILED: i16 = CHOSEN + 8;
    /// Frames since the last bell, when that was, and at which position.
    pub const SINCE_BELL: i16 = CHOSEN + 16;
    /// See [`SINCE_BELL`].
    pub const BELL_TIME: i16 = CHOSEN + 24;
    /// See [`SINCE_BELL`].
    pub const BELL_POSITION: i16 = CHOSEN + 32;
    /// Bells that rang.
    pub const BELLS: i16 = CHOSEN + 40;
    /// Bells that did not, because nobody took the ones before away.
    pub const BELLS_FAILED: i16 = CHOSEN + 48;
    /// What each of those to whom the frame goes shall see of it: 16 bytes each.
    pub const HANDED: i16 = CHOSEN + 64;
    /// Tallies: blocks and bytes, eight each.
    pub const TALLIES: i16 = HANDED + 16 * super::HANDED_MAX as i16;
    /// The end of the page.
    pub const END: i16 = 4096;
}

/// What lies before the frame in a record, in bytes from its beginning.
pub mod record {
    /// Eight bytes: its position, or -1 while it is written.
    pub const STAMP: i16 = 0;
    /// Four bytes: the length of the frame.
    pub const LENGTH: i16 = 8;
    /// Four bytes: how much of it is here.
    pub const KEPT: i16 = 12;
    /// Eight bytes: nanoseconds of the machine's monotonic clock.
    pub const TIME: i16 = 16;
    /// Two bytes: the VLAN tag that lies beside the frame, and two for its protocol in network
    /// order.
    pub const TAG: i16 = 24;
    /// See [`TAG`].
    pub const TAG_PROTOCOL: i16 = 26;
    /// Two bytes: into segments of how many bytes the frame is yet to be cut.
    pub const SEGMENT: i16 = 28;
    /// Two bytes of marks: [`TAGGED`], [`SENT`].
    pub const MARKS: i16 = 30;
    /// There is a tag beside the frame.
    pub const TAGGED: u16 = 1;
    /// The host sends it.
    pub const SENT: u16 = 2;
    /// Bytes of all this.
    pub const HEADER: u32 = 32;
    /// Records begin at multiples of this.
    pub const ALIGNED: u32 = 16;
}

/// Bytes of a pointer: position (8), length of the view and class (4, 4), offset of the view in the
/// frame and number of the edge (4, 4), and eight that stay as they are.
pub const POINTER: u32 = 32;
/// The most readers of one ring.
pub const READERS_MAX: u32 = 32;
/// To so many at most a frame can go.
pub const HANDED_MAX: u32 = 31;
/// So many tallies there are.
pub const TALLIES_MAX: u16 = ((at::END - at::TALLIES) / 16) as u16;

/// Rings as a program must know them. All numbers but `record_max` and `cpus` are fixed by how the
/// regions are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// How many processors have a region.
    pub cpus: u32,
    /// Bytes of a region.
    pub stride: u32,
    /// Where the pointers of the first reader begin in a region; those of the others follow.
    pub pointers_at: u32,
    /// How many pointers each reader has: a power of two.
    pub pointers: u32,
    /// Where the records begin in a region.
    pub records_at: u32,
    /// Bytes of records: a power of two.
    pub bytes: u32,
    /// The most bytes of a frame that are kept.
    pub record_max: u32,
    /// When the bell rings.
    pub bell: Bell,
    /// Whether the frames are those that the host sends.
    pub sent: bool,
}

/// When the bell rings: once so many blocks are there and so much time has passed since it rang
/// last; or after a longer time with the next block; or when so many bytes were written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    /// Blocks (T_b).
    pub blocks: u32,
    /// The least time between two bells, in ns.
    pub apart_ns: u32,
    /// After this time the next block rings in any case, in ns (T_t): so who finds nothing, and
    /// knows when it rang last, sleeps no longer than until then.
    pub wait_ns: u32,
    /// Bytes.
    pub bytes: u32,
}

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    /// A number of its own among all of this program, below [`HANDED_MAX`].
    pub number: u8,
    /// Which reader gets the pointer.
    pub reader: u8,
    /// What the pointer calls it.
    pub edge: u32,
}

/// All to whom frames may go, or why the body cannot be a program.
pub type Hands = Result<Vec<Hand>, Unfit>;

/// Makes a tap. `body` is given the layers of an untouched frame, and the exit for what is done
/// with. `unsure` says what becomes of frames of which not even the first bytes can be read; it
/// must not read any.
pub fn tap(
    target: impl Into<Target>,
    tap: &Tap,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Hands,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let target = target.into();
    if target.place != Place::Tc {
        return Err(Unfit::new("a tap stands at traffic control"));
    }
    let (builder, out) = Builder::begin_tap(target, *tap);
    let mut scope = Scope::root(builder);
    let hands = body(&mut scope, Layers::untouched(), out)?;
    let first = scope.builder().unsure();
    scope.builder().leave_body(out.label, first);
    unsure(&mut scope, Layers::untouched());
    scope.into_builder().end_tap(tap, out.label, &hands)
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Adds one block of so many bytes to a tally of a tap.
    pub fn tally(&mut self, number: u16, bytes: Num<'s>) {
        let b = self.builder();
        if number >= TALLIES_MAX {
            return b.refuse(Unfit::new("there is no room for more tallies"));
        }
        let place = at::TALLIES + 16 * number.cast_signed();
        b.find_region();
        b.fetch(bytes.into(), R0);
        for (word, amount) in [(place, None), (place + 8, Some(R0))] {
            b.asm.push(Insn::load(Size::DW, R1, R9, word));
            match amount {
                None => b.asm.push(Insn::alu(Alu::Add, R1, 1)),
                Some(amount) => b.asm.push(Insn::alu(Alu::Add, R1, amount)),
            }
            b.asm.push(Insn::store(Size::DW, R9, word, R1));
        }
        b.hold(R1, None);
    }

    /// Has the frame handed over, seen as `on` says and with its class.
    pub fn hand_over(&mut self, hand: Hand, on: Layers<'s>, class: Value<'s>) {
        let length = self.viewed(on);
        let b = self.builder();
        if u32::from(hand.number) >= HANDED_MAX || u32::from(hand.reader) >= READERS_MAX {
            return b.refuse(Unfit::new("it is handed over on too many ways"));
        }
        let place = at::HANDED + 16 * i16::from(hand.number);
        b.find_region();
        b.fetch(class, R1);
        b.asm.push(Insn::store(Size::W, R9, place + 4, R1));
        b.fetch(length.into(), R0);
        b.asm.push(Insn::store(Size::W, R9, place, R0));
        match on.at.base {
            Base::Frame => b.asm.push(Insn::mov(R1, i32::from(on.at.off))),
            Base::Slot(_) => {
                let counts = b.counts();
                b.fetch_at(on.at, R1);
                if !counts {
                    b.asm.push(Insn::alu(Alu::Sub, R1, R7));
                }
            }
        }
        b.asm.push(Insn::store(Size::W, R9, place + 8, R1));
        b.asm.push(Insn::store(Size::W, R9, place + 12, hand.edge.cast_signed()));
        b.asm.push(Insn::load(Size::DW, R1, R9, at::CHOSEN));
        b.asm.push(Insn::alu(Alu::Or, R1, 1 << hand.number));
        b.asm.push(Insn::store(Size::DW, R9, at::CHOSEN, R1));
        b.hold(R1, None);
    }

    /// How many bytes are in view. What lies beside the frame is in view until a tag was read.
    pub fn viewed(&mut self, on: Layers<'s>) -> Num<'s> {
        let rest = self.rest(on.at);
        match on.length {
            Some(length) => self.smaller(length, rest),
            None if on.tags == 0 && self.has_tag_beside() => {
                let present = self.meta(Meta::TagPresent);
                let beside = self.shl(present, 2);
                self.add(rest, beside)
            }
            None => rest,
        }
    }

    /// Emits an arm in which what cannot be told leaves through the arm's own exit, to what follows
    /// here, in the place of everybody's.
    pub fn doubting<R>(&mut self, f: impl for<'i> FnOnce(&mut Scope<'i, 's>, Exit<'i>) -> R) -> R {
        let outer = self.builder().unsure();
        self.arm(|inner, exit| {
            inner.builder().doubt(exit.label);
            let result = f(inner, exit);
            inner.builder().doubt(outer);
            result
        })
    }
}

/// Whether a view that these layers describe begins behind a tag that may lie beside the frame:
/// then it begins as much later in the frame with the tag in its place.
#[must_use]
pub const fn is_behind_tag(on: &Layers<'_>) -> bool {
    on.tags > 0 || on.length.is_some()
}

/// The numbers of rings and bell until the program's own maps are counted.
const RINGS: u32 = 0x7000;
const BELL: u32 = RINGS + 1;

/// Whether a number is that of a map that somebody else made.
pub(super) const fn is_given(number: i32) -> bool {
    number >= RINGS.cast_signed()
}

/// Gives rings and bell the numbers behind those of the program's own maps.
pub(super) fn number_given(code: &mut [Insn], own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        let map = matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE);
        if first && map && is_given(insn.imm) {
            insn.imm += own - RINGS.cast_signed();
        }
        wide = first;
    }
}

/// Places on the stack: where the region of this processor is, all the time; and what is free again
/// once the body has ended.
const REGION: i16 = -8;
const NOW: i16 = -16;
const POSITION: i16 = -24;
const END: i16 = -32;
const LENGTH: i16 = -40;
/// Offset in `__sk_buff`.
const SEGMENT: i16 = 176;
/// What becomes of a frame: the next program looks at it.
const NEXT: i32 = -1;

/// Stores r2 in a word of the region such that who sees it sees what was stored before, and nobody
/// sees what is stored later without it. An x86 processor keeps the order of stores. Elsewhere it
/// is an exchange: a store with release needs Linux 6.15.
fn in_order(word: i16) -> Insn {
    match cfg!(target_arch = "x86_64") {
        true => Insn::store(Size::DW, R9, word, R2),
        false => Insn::atomic(Size::DW, atomic::XCHG, R9, word, R2),
    }
}

impl Builder {
    /// r9 points at the region of this processor.
    pub(super) fn region(&mut self, tap: &Tap) {
        let known = self.asm.label();
        self.asm.push(Insn::call(Helper::CpuId));
        self.asm.jump_if(Cond::Lt, R0, tap.cpus.cast_signed(), known);
        self.asm.push(Insn::mov(R0, NEXT));
        self.asm.push(Insn::exit());
        self.asm.bind(known);
        self.asm.push(Insn::alu(Alu::Mul, R0, tap.stride.cast_signed()));
        self.asm.push_wide(Insn::load_map_value(R9, RINGS, 0));
        self.asm.push(Insn::alu(Alu::Add, R9, R0));
        self.asm.push(Insn::store(Size::DW, R9, at::CHOSEN, 0));
        self.hold_none();
        self.slots(1);
        self.asm.push(Insn::store(Size::DW, R10, REGION, R9));
    }

    /// Has the region in r9 again where somebody may have used that for something else.
    fn find_region(&mut self) {
        if self.region_lost {
            self.asm.push(Insn::load(Size::DW, R9, R10, REGION));
        }
    }

    /// Copies the frame if it was handed over to anybody, and lets it by.
    pub(super) fn hand_over(&mut self, tap: &Tap, hands: &[Hand]) {
        let (pass, failed) = (self.asm.label(), self.asm.label());
        if !hands.is_empty() {
            self.find_region();
            self.asm.push(Insn::load(Size::DW, R1, R9, at::CHOSEN));
            self.asm.jump_if(Cond::Eq, R1, 0, pass);
            self.copy_frame(tap, (pass, failed));
            self.point(tap, hands);
            self.ring_bell(tap.bell, pass);
            self.asm.bind(failed);
            self.add_one(at::FAILED);
        }
        self.asm.bind(pass);
        self.asm.push(Insn::mov(R0, NEXT));
        self.asm.push(Insn::exit());
    }

    /// Reserves, and writes a record; it lies at r7.
    fn copy_frame(&mut self, tap: &Tap, (pass, failed): (crate::asm::Label, crate::asm::Label)) {
        use record::{ALIGNED, HEADER};
        let asm = &mut self.asm;
        let fits = asm.label();
        asm.push(Insn::load(Size::W, R8, R6, skb::LEN));
        asm.push(Insn::store(Size::DW, R10, LENGTH, R8));
        asm.jump_if(Cond::Le, R8, tap.record_max.cast_signed(), fits);
        asm.push(Insn::mov(R8, tap.record_max.cast_signed()));
        asm.bind(fits);
        asm.jump_if(Cond::Lt, R8, 1, pass);
        asm.push(Insn::call(Helper::KtimeNs));
        asm.push(Insn::store(Size::DW, R10, NOW, R0));
        asm.push(Insn::load(Size::DW, R1, R9, at::RESERVED));
        asm.push(Insn::store(Size::DW, R10, POSITION, R1));
        asm.push(Insn::mov(R2, R8));
        asm.push(Insn::alu(Alu::Add, R2, (HEADER + ALIGNED - 1).cast_signed()));
        asm.push(Insn::alu(Alu::And, R2, -ALIGNED.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R2, R1));
        asm.push(Insn::store(Size::DW, R10, END, R2));
        // Reserved is seen before anything that is written there.
        asm.push(in_order(at::RESERVED));
        asm.push(Insn::alu(Alu::And, R1, tap.bytes.cast_signed() - 1));
        asm.push(Insn::mov(R7, R9));
        asm.push(Insn::alu(Alu::Add, R7, tap.records_at.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R7, R1));
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
        // 1 if there is a tag.
        asm.push(Insn::load(Size::W, R1, R6, skb::TAG_PRESENT));
        if tap.sent {
            asm.push(Insn::alu(Alu::Or, R1, i32::from(record::SENT)));
        }
        asm.push(Insn::store(Size::H, R7, record::MARKS, R1));
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, 0));
        asm.push(Insn::mov(R3, R7));
        asm.push(Insn::alu(Alu::Add, R3, HEADER.cast_signed()));
        asm.push(Insn::mov(R4, R8));
        asm.push(Insn::call(Helper::SkbLoadBytes));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.push(Insn::load(Size::DW, R1, R10, POSITION));
        asm.push(Insn::store(Size::DW, R7, record::STAMP, R1));
    }

    /// Writes the pointers, then how many there are (release), then that the record is whole.
    fn point(&mut self, tap: &Tap, hands: &[Hand]) {
        let asm = &mut self.asm;
        for hand in hands {
            let not = asm.label();
            let head = at::HEADS + 8 * i16::from(hand.reader);
            let seen = at::HANDED + 16 * i16::from(hand.number);
            let pointers = tap.pointers_at + u32::from(hand.reader) * tap.pointers * POINTER;
            asm.push(Insn::load(Size::DW, R1, R9, at::CHOSEN));
            asm.push(Insn::alu(Alu::And, R1, 1 << hand.number));
            asm.jump_if(Cond::Eq, R1, 0, not);
            asm.push(Insn::load(Size::DW, R2, R9, head));
            asm.push(Insn::mov(R3, R2));
            asm.push(Insn::alu(Alu::And, R3, tap.pointers.cast_signed() - 1));
            asm.push(Insn::alu(Alu::Mul, R3, POINTER.cast_signed()));
            asm.push(Insn::mov(R4, R9));
            asm.push(Insn::alu(Alu::Add, R4, pointers.cast_signed()));
            asm.push(Insn::alu(Alu::Add, R4, R3));
            asm.push(Insn::load(Size::DW, R5, R10, POSITION));
            asm.push(Insn::store(Size::DW, R4, 0, R5));
            for word in [0, 8] {
                asm.push(Insn::load(Size::DW, R5, R9, seen + word));
                asm.push(Insn::store(Size::DW, R4, 8 + word, R5));
            }
            asm.push(Insn::alu(Alu::Add, R2, 1));
            asm.push(in_order(head));
            asm.bind(not);
        }
        asm.push(Insn::load(Size::DW, R1, R10, END));
        asm.push(Insn::store(Size::DW, R9, at::COMMITTED, R1));
    }

    fn ring_bell(&mut self, bell: Bell, pass: crate::asm::Label) {
        let asm = &mut self.asm;
        let (now, missed) = (asm.label(), asm.label());
        asm.push(Insn::load(Size::DW, R2, R9, at::SINCE_BELL));
        asm.push(Insn::alu(Alu::Add, R2, 1));
        asm.push(Insn::store(Size::DW, R9, at::SINCE_BELL, R2));
        asm.push(Insn::load(Size::DW, R3, R9, at::BELL_POSITION));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, bell.bytes.cast_signed(), now);
        asm.push(Insn::load(Size::DW, R1, R10, NOW));
        asm.push(Insn::load(Size::DW, R3, R9, at::BELL_TIME));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, bell.wait_ns.cast_signed(), now);
        asm.jump_if(Cond::Lt, R2, bell.blocks.cast_signed(), pass);
        asm.jump_if(Cond::Lt, R1, bell.apart_ns.cast_signed(), pass);
        asm.bind(now);
        for (from, to) in [(NOW, at::BELL_TIME), (END, at::BELL_POSITION)] {
            asm.push(Insn::load(Size::DW, R1, R10, from));
            asm.push(Insn::store(Size::DW, R9, to, R1));
        }
        asm.push(Insn::store(Size::DW, R9, at::SINCE_BELL, 0));
        asm.push_wide(Insn::load_map(R1, BELL));
        asm.push(Insn::mov(R2, R10));
        asm.push(Insn::alu(Alu::Add, R2, i32::from(POSITION)));
        asm.push(Insn::mov(R3, 8));
        // BPF_RB_FORCE_WAKEUP: who sleeps is woken, however full the ring of bells is.
        asm.push(Insn::mov(R4, 2));
        asm.push(Insn::call(Helper::RingbufOutput));
        asm.jump_if(Cond::Ne, R0, 0, missed);
        self.add_one(at::BELLS);
        self.asm.jump(pass);
        self.asm.bind(missed);
        self.add_one(at::BELLS_FAILED);
        self.asm.jump(pass);
    }

    fn add_one(&mut self, word: i16) {
        self.asm.push(Insn::load(Size::DW, R1, R9, word));
        self.asm.push(Insn::alu(Alu::Add, R1, 1));
        self.asm.push(Insn::store(Size::DW, R9, word, R1));
    }
}
