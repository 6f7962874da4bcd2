//! The tap: a program that hands frames to processes through rings, and counts.
//!
//! In: which memory the rings are, and a body that tallies and hands over. Out: a [`Program`] that
//! lets every frame by. A frame that was handed over, be it to several, is copied once for each
//! owner, behind everything else, into that owner's ring of its processor; beside it lies a pointer
//! for each of those to whom it goes. [SL §5.3, §6.2; CONTRACT 21, 29]
//!
//! Rings and bells are maps that somebody else made: in the code they have the numbers behind those
//! of the program's own maps. Of each a processor has a region ([`at`]), in which its program is
//! alone: nothing there is atomic but what readers must see in order. Which frames are handed over
//! to whom is kept in memory too ([`Desk`]), never in a register: what the verifier does not follow
//! does not double the ways that it goes.
//!
//! A [`Tap`] has one memory for all of this. In a [`Joint`] several lines of several owners share a
//! program: what it notes for itself, the frames of each owner and the pointers of each line are
//! maps of their own, so that each can be given to those who may see it, and outlives the program.

use super::build::{Builder, skb};
use super::ending::{Ending, Kept, made};
use super::handle::{Base, Exit, Layers, Num, Value};
use super::own::{self, Own};
use super::scope::{Meta, Scope};
use super::{Target, Unfit, Verdict};
use crate::insn::{
    Alu, Cond, Helper, Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9,
    R10, Reg, Size, atomic,
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
    /// Four bytes: by which interface a taken frame goes out, one more than its key; 0: by none.
    pub const DEVICE: i16 = CHOSEN + 56;
    /// Frames that were to go out by an interface, and did not.
    pub const NOT_SENT: i16 = BELLS;
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
/// To so many at most a frame can go by one outlet.
pub const HANDED_MAX: u32 = 31;
/// So many tallies a tap has.
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

/// The memory of a program that several lines share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    /// How many processors have a region in every map.
    pub cpus: u32,
    /// Whether the frames are those that the host sends. At a control group each says itself.
    pub sent: bool,
    /// Whose packets these are, at a control group.
    pub own: Option<Own>,
    /// What the program notes for itself: the first map of those that it is given.
    pub desk: Desk,
    /// Whose frames are copied to which memory.
    pub owners: Vec<Owner>,
}

/// Where a program notes what it has found out about a frame, and tallies; in bytes from the
/// beginning of the region of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desk {
    /// Bytes of a region.
    pub stride: u32,
    chosen: i16,
    outlets: u16,
    handed: i16,
    marks: i16,
    marks_max: u16,
    tallies: i16,
    tallies_max: u16,
}

/// A ring of frames, and those who are pointed at them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of its map among those that the program is given.
    pub map: u32,
    /// Bytes of a region.
    pub stride: u32,
    /// Where the records begin in a region.
    pub records_at: u32,
    /// Bytes of records: a power of two.
    pub bytes: u32,
    /// The most bytes of a frame that are kept.
    pub record_max: u32,
    /// The lines. Outlets are numbered through all owners, in order.
    pub outlets: Vec<Outlet>,
}

/// Where a line is told what was copied for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlet {
    /// The number of its map among those that the program is given.
    pub map: u32,
    /// That of its bell.
    pub bell_map: u32,
    /// Bytes of a region.
    pub stride: u32,
    /// Where the pointers of the first reader begin in a region; those of the others follow.
    pub pointers_at: u32,
    /// How many pointers each reader has: a power of two.
    pub pointers: u32,
    /// When the bell rings.
    pub bell: Bell,
}

impl Desk {
    /// The one that lies in the first page of a tap's rings.
    const PLAIN: Self = Self {
        stride: 0,
        chosen: at::CHOSEN,
        outlets: 1,
        handed: at::HANDED,
        marks: 0,
        marks_max: 0,
        tallies: at::TALLIES,
        tallies_max: TALLIES_MAX,
    };

    /// One like that, in regions of so many bytes.
    pub(super) const fn plain(stride: u32) -> Self {
        Self { stride, ..Self::PLAIN }
    }

    /// That of a program that is no tap.
    pub(super) const NONE: Self = Self { outlets: 0, marks_max: 0, tallies_max: 0, ..Self::PLAIN };

    /// One for so many outlets, marks and tallies; none if a program cannot reach as much.
    #[must_use]
    pub fn new(outlets: usize, marks: usize, tallies: usize) -> Option<Self> {
        let handed = outlets.checked_mul(8)?;
        let each = 16 * usize::try_from(HANDED_MAX).ok()?;
        let from = handed.checked_add(outlets.checked_mul(each)?)?;
        let to = from.checked_add(marks.checked_mul(8)?)?;
        let end = to.checked_add(tallies.checked_mul(16)?)?;
        // A place is a signed offset of 16 bits.
        i16::try_from(end).ok()?;
        Some(Self {
            stride: u32::try_from(end.next_multiple_of(64)).ok()?,
            chosen: 0,
            outlets: u16::try_from(outlets).ok()?,
            handed: i16::try_from(handed).ok()?,
            marks: i16::try_from(from).ok()?,
            marks_max: u16::try_from(marks).ok()?,
            tallies: i16::try_from(to).ok()?,
            tallies_max: u16::try_from(tallies).ok()?,
        })
    }

    /// Where a tally lies in the region of a processor: blocks, and behind them bytes.
    #[must_use]
    pub const fn tally(&self, number: u16) -> u32 {
        self.tallies.cast_unsigned() as u32 + 16 * number as u32
    }

    fn word(&self, number: u16) -> i16 {
        self.chosen + 8 * number.cast_signed()
    }

    fn handed(&self, number: u16) -> i16 {
        self.handed + 16 * number.cast_signed()
    }
}

impl Joint {
    /// How many maps the program is given: the desk, and what the owners and outlets name.
    #[must_use]
    pub fn maps(&self) -> u32 {
        let of = |owner: &Owner| {
            let outlets = owner.outlets.iter().flat_map(|outlet| [outlet.map, outlet.bell_map]);
            outlets.chain([owner.map]).max().unwrap_or(0)
        };
        let own = self.own.iter().map(|own| own.seats);
        self.owners.iter().map(of).chain(own).max().unwrap_or(0) + 1
    }

    /// Whether all of it is one map, and a bell.
    fn is_plain(&self) -> bool {
        let here = |owner: &Owner| owner.map == 0 && owner.outlets.iter().all(|o| o.map == 0);
        self.owners.iter().all(here)
    }
}

impl From<&Tap> for Joint {
    fn from(tap: &Tap) -> Self {
        let Tap { cpus, stride, pointers_at, pointers, records_at, bytes, record_max, bell, sent } =
            *tap;
        let outlet = Outlet { map: 0, bell_map: 1, stride, pointers_at, pointers, bell };
        let owner = Owner { map: 0, stride, records_at, bytes, record_max, outlets: vec![outlet] };
        let desk = Desk { stride, ..Desk::PLAIN };
        Self { cpus, sent, own: None, desk, owners: vec![owner] }
    }
}

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    /// A number of its own among all of this program: [`HANDED_MAX`] times the number of the
    /// outlet, and below that on from there.
    pub number: u16,
    /// Which reader of the outlet gets the pointer.
    pub reader: u8,
    /// What the pointer calls it.
    pub edge: u32,
}

/// Makes a tap. `body` is given the layers of an untouched frame, and the exit for what is done
/// with. `unsure` says what becomes of frames of which not even the first bytes can be read; it
/// must not read any.
pub fn tap(
    target: impl Into<Target>,
    tap: &Tap,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    joint(target, &tap.into(), body, unsure)
}

/// Makes a tap for several lines; see [`tap`].
pub fn joint(
    target: impl Into<Target>,
    joint: &Joint,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let target = target.into();
    own::stands(target.place, joint.own.as_ref())?;
    made(target, Ending::Tap(joint.clone()), body, unsure)
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Adds one block of so many bytes to a tally of a tap.
    pub fn tally(&mut self, number: u16, bytes: Num<'s>) {
        let b = self.builder();
        let desk = b.desk();
        if number >= desk.tallies_max {
            return b.refuse(Unfit::new("there is no room for more tallies"));
        }
        let place = desk.tallies + 16 * number.cast_signed();
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
        let desk = b.desk();
        let (outlet, bit) = hand.place();
        if outlet >= desk.outlets || u32::from(hand.reader) >= READERS_MAX {
            return b.refuse(Unfit::new("it is handed over on too many ways"));
        }
        b.hands_to(hand);
        let place = desk.handed(hand.number);
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
        b.asm.push(Insn::load(Size::DW, R1, R9, desk.word(outlet)));
        b.asm.push(Insn::alu(Alu::Or, R1, 1 << bit));
        b.asm.push(Insn::store(Size::DW, R9, desk.word(outlet), R1));
        b.hold(R1, None);
    }

    /// Sets or clears a mark, of which the verifier knows nothing.
    pub fn mark(&mut self, number: u16, set: bool) {
        let b = self.builder();
        if let Some(place) = b.mark_at(number) {
            b.find_region();
            b.asm.push(Insn::store(Size::DW, R9, place, i32::from(set)));
        }
    }

    /// Goes on only if a mark is set.
    pub fn only_marked(&mut self, number: u16, miss: Exit<'s>) {
        let b = self.builder();
        if let Some(place) = b.mark_at(number) {
            b.find_region();
            b.asm.push(Insn::load(Size::DW, R1, R9, place));
            b.hold(R1, None);
            b.asm.jump_if(Cond::Eq, R1, 0, miss.label);
        }
    }

    /// How many bytes are in view. What lies beside the frame is in view until a tag was read.
    pub fn viewed(&mut self, on: Layers<'s>) -> Num<'s> {
        let rest = self.rest(on.at);
        match on.length {
            Some(length) => self.smaller(length, rest),
            // At XDP that is known, and nobody else is asked.
            None if on.tags == 0 && self.builder().is_tag_out => self.add(rest, 4),
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

impl Hand {
    /// The outlet, and which bit of its word.
    fn place(self) -> (u16, u32) {
        let number = u32::from(self.number);
        (self.number / HANDED_MAX as u16, number % HANDED_MAX)
    }
}

/// Whether a view that these layers describe begins behind a tag that may lie beside the frame:
/// then it begins as much later in the frame with the tag in its place.
#[must_use]
pub const fn is_behind_tag(on: &Layers<'_>) -> bool {
    on.tags > 0 || on.length.is_some()
}

/// The number of the first map that somebody else made, until the program's own are counted.
pub(super) const GIVEN: u32 = 0x7000;

/// Whether a number is that of a map that somebody else made.
pub(super) const fn is_given(number: i32) -> bool {
    number >= GIVEN.cast_signed()
}

/// Gives the maps that somebody else made the numbers behind those of the program's own maps.
pub(super) fn number_given(code: &mut [Insn], own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        let map = matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE);
        if first && map && is_given(insn.imm) {
            insn.imm += own - GIVEN.cast_signed();
        }
        wide = first;
    }
}

/// Places on the stack that are free again once the body has ended.
const NOW: i16 = -32;
const POSITION: i16 = -40;
const END: i16 = -48;
const LENGTH: i16 = -56;
const RECORDS: i16 = -64;
/// Offset in `__sk_buff`.
const SEGMENT: i16 = 176;

/// Stores r2 in a word of a region such that who sees it sees what was stored before, and nobody
/// sees what is stored later without it. An x86 processor keeps the order of stores. Elsewhere it
/// is an exchange: a store with release needs Linux 6.15.
fn in_order(region: Reg, word: i16) -> Insn {
    match cfg!(target_arch = "x86_64") {
        true => Insn::store(Size::DW, region, word, R2),
        false => Insn::atomic(Size::DW, atomic::XCHG, region, word, R2),
    }
}

impl Builder {
    /// r9 points at the desk of this processor.
    pub(super) fn find_desk(&mut self, ending: &Ending) {
        let desk = ending.desk();
        let known = self.asm.label();
        if let Ending::Tap(Joint { own: Some(own), .. }) = ending {
            self.only_own(own);
        }
        self.asm.push(Insn::call(Helper::CpuId));
        self.asm.jump_if(Cond::Lt, R0, ending.processors().cast_signed(), known);
        // All that there can be have one.
        self.asm.push(Insn::mov(R0, Verdict::Pass.value(self.target.place)));
        self.asm.push(Insn::exit());
        self.asm.bind(known);
        if let Ending::Tap(Joint { own: Some(own), cpus, .. }) = ending {
            self.take_seat(own, *cpus);
        }
        if matches!(ending, Ending::Tap(joint) if joint.own.is_some() || !joint.is_plain()) {
            self.asm.push(Insn::store(Size::DW, R10, Kept::CPU, R0));
        }
        self.asm.push(Insn::alu(Alu::Mul, R0, desk.stride.cast_signed()));
        self.asm.push_wide(Insn::load_map_value(R9, GIVEN, 0));
        self.asm.push(Insn::alu(Alu::Add, R9, R0));
        for outlet in 0..desk.outlets {
            self.asm.push(Insn::store(Size::DW, R9, desk.word(outlet), 0));
        }
        if matches!(ending, Ending::Take(_)) {
            self.asm.push(Insn::store(Size::W, R9, at::DEVICE, 0));
        }
        self.hold_none();
        self.slots(Kept::SLOTS);
        self.floor = self.top;
        self.asm.push(Insn::store(Size::DW, R10, Kept::DESK, R9));
    }

    /// Has the desk in r9 again where somebody may have used that for something else.
    pub(super) fn find_region(&mut self) {
        if self.region_lost {
            self.asm.push(Insn::load(Size::DW, R9, R10, Kept::DESK));
        }
    }

    /// Has the region of this processor in a map in `reg`, or says where it is already.
    fn region_of(&mut self, map: u32, stride: u32, reg: Reg) -> Reg {
        if map == 0 {
            return R9;
        }
        self.asm.push(Insn::load(Size::DW, R0, R10, Kept::CPU));
        self.asm.push(Insn::alu(Alu::Mul, R0, stride.cast_signed()));
        self.asm.push_wide(Insn::load_map_value(reg, GIVEN + map, 0));
        self.asm.push(Insn::alu(Alu::Add, reg, R0));
        reg
    }

    fn mark_at(&mut self, number: u16) -> Option<i16> {
        let desk = self.desk();
        if number >= desk.marks_max {
            self.refuse(Unfit::new("there is no room for more marks"));
            return None;
        }
        Some(desk.marks + 8 * number.cast_signed())
    }

    /// Copies the frame for every owner to whose lines it was handed over, and lets it by.
    pub(super) fn hand_over(&mut self, joint: &Joint, hands: &[Hand]) {
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
        if let Some(own) = &joint.own {
            self.leave_seat(own);
        }
        self.asm.push(Insn::mov(R0, Verdict::Pass.value(self.target.place)));
        self.asm.push(Insn::exit());
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
        self.copy_frame(joint, owner, (next, failed));
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
        }
        self.asm.bind(next);
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
    fn copy_frame(
        &mut self,
        joint: &Joint,
        owner: &Owner,
        (pass, failed): (crate::asm::Label, crate::asm::Label),
    ) {
        use record::{ALIGNED, HEADER};
        let (fits, known) = (self.asm.label(), self.asm.label());
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R8, R6, skb::LEN));
        asm.push(Insn::store(Size::DW, R10, LENGTH, R8));
        asm.jump_if(Cond::Le, R8, owner.record_max.cast_signed(), fits);
        asm.push(Insn::mov(R8, owner.record_max.cast_signed()));
        asm.bind(fits);
        asm.jump_if(Cond::Lt, R8, 1, pass);
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
    fn fill_record(&mut self, sent: bool, failed: crate::asm::Label) {
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
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::H, R7, record::MARKS, R1));
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, 0));
        asm.push(Insn::mov(R3, R7));
        asm.push(Insn::alu(Alu::Add, R3, record::HEADER.cast_signed()));
        asm.push(Insn::mov(R4, R8));
        asm.push(Insn::call(Helper::SkbLoadBytes));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.push(Insn::load(Size::DW, R1, R10, POSITION));
        asm.push(Insn::store(Size::DW, R7, record::STAMP, R1));
    }

    /// Writes the pointers of an outlet, then how many there are (release).
    fn point(&mut self, joint: &Joint, ours: &Ours<'_>, region: Reg) {
        let asm = &mut self.asm;
        let outlet = ours.outlet;
        for hand in &ours.hands {
            let not = asm.label();
            let head = at::HEADS + 8 * i16::from(hand.reader);
            let seen = joint.desk.handed(hand.number);
            let pointers = outlet.pointers_at + u32::from(hand.reader) * outlet.pointers * POINTER;
            asm.push(Insn::load(Size::DW, R1, R9, ours.word));
            asm.push(Insn::alu(Alu::And, R1, 1 << hand.place().1));
            asm.jump_if(Cond::Eq, R1, 0, not);
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
            asm.push(Insn::alu(Alu::Add, R2, 1));
            asm.push(in_order(region, head));
            asm.bind(not);
        }
    }

    fn ring_bell(&mut self, outlet: &Outlet, region: Reg, then: crate::asm::Label) {
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
        // BPF_RB_FORCE_WAKEUP: who sleeps is woken, however full the ring of bells is.
        asm.push(Insn::mov(R4, 2));
        asm.push(Insn::call(Helper::RingbufOutput));
        asm.jump_if(Cond::Ne, R0, 0, missed);
        self.add_one(region, at::BELLS);
        self.asm.jump(then);
        self.asm.bind(missed);
        self.add_one(region, at::BELLS_FAILED);
    }

    pub(super) fn add_one(&mut self, region: Reg, word: i16) {
        self.asm.push(Insn::load(Size::DW, R1, region, word));
        self.asm.push(Insn::alu(Alu::Add, R1, 1));
        self.asm.push(Insn::store(Size::DW, region, word, R1));
    }
}

/// An outlet, where its word lies on the desk, and the hands that use it.
struct Ours<'j> {
    outlet: &'j Outlet,
    word: i16,
    hands: Vec<Hand>,
}
