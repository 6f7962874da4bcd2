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
//!
//! How a frame ends is in [`ring`], and when it is not copied because nobody comes, in [`nobody`].
//! Ways of which a frame takes at most one share a place on the desk and a reader ([`shared`]).

mod nobody;
mod ring;
mod shared;

pub(super) use shared::{Place, places};

use super::build::Builder;
use super::ending::{Ending, Kept, made};
use super::handle::{Base, Exit, Layers, Num, Value};
use super::own::{self, Own};
use super::scope::{Meta, Scope};
use super::{Target, Unfit, Verdict};
use crate::insn::{
    Alu, Cond, Helper, Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE, R0, R1, R7, R9, R10, Reg, Size,
};
use crate::program::Program;

/// Where things lie in the region of a processor, in bytes.
pub mod at {
    /// Eight bytes: the position up to which the program may be writing.
    pub const RESERVED: i16 = 0;
    /// Eight bytes: the position up to which records are whole.
    pub const COMMITTED: i16 = 8;
    /// Eight bytes: the position from which on it is asked whether anybody takes bells out, and 0
    /// while nobody does.
    pub const ASK: i16 = 16;
    /// Eight bytes: how far bells were taken out when that was asked last, and one more.
    pub const TAKEN: i16 = 24;
    /// Eight bytes: at which position that was seen first.
    pub const TAKEN_AT: i16 = 32;
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
    /// Eight bytes for each way that shares a reader: how many pointers were written for it. Only
    /// in a map in which nothing is noted and tallied.
    pub const COUNTS: i16 = HANDED;
    /// Four bytes: the number of the interface by which a taken frame goes out; 0: by none.
    pub const DEVICE: i16 = CHOSEN + 56;
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
/// frame and number of the way (4, 4), and how many pointers were written before it for that way,
/// if it shares its reader (8).
pub const POINTER: u32 = 32;
/// Where the number of the way stands in what was noted of a frame.
pub(super) const WAY: i16 = 12;
/// The most readers of one ring.
pub const READERS_MAX: u32 = 32;
/// To so many at most a frame can go by one outlet.
pub const HANDED_MAX: u32 = 31;
/// So many ways an outlet can have, however few of them a frame takes. A chain of as many filters
/// is about what one program can tally.
pub const WAYS_MAX: u32 = 320;
const _: () = assert!(at::COUNTS as u32 + 8 * WAYS_MAX <= at::END as u32);
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
/// last; or after a longer time with the next block; or when so many bytes or blocks were written
/// since that the ring would be full soon.
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
    /// Blocks, however little time has passed.
    pub most: u32,
    /// Whom it wakes.
    pub wakes: Wakes,
}

/// Whom a bell wakes. To wake somebody a processor interrupts itself, which takes 10 us and more on
/// a virtual machine, whether anybody sleeps or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakes {
    /// The one who takes bells out, if it has taken out all before. Who does so before it looks for
    /// frames sleeps over nothing, and is not called while it has yet to look; who never comes is
    /// called once.
    Taker,
    /// All who listen, each time: they take nothing out.
    Listeners,
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
    /// By which interfaces a copy of a frame may leave.
    pub leads: Vec<Lead>,
}

/// An interface by which frames leave: which ones, a mark says that the body sets
/// ([`Scope::mark`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The number of the interface, in the name space of that where the program stands.
    pub interface: u32,
    /// The number of the mark, which is clear when a frame comes.
    pub mark: u16,
    /// The tally of those that were refused.
    pub failed: u16,
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

    /// One like that, in regions of so many bytes: what is left of those is for tallies.
    pub(super) const fn plain(stride: u32) -> Self {
        // A place is a signed offset of 16 bits.
        let end = if stride > i16::MAX as u32 { i16::MAX as u32 } else { stride };
        let tallies_max = (end.saturating_sub(at::TALLIES as u32) / 16) as u16;
        Self { stride, tallies_max, ..Self::PLAIN }
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

    /// The same, if there is room for it.
    pub(super) fn tally_at(&self, number: u16) -> Option<i16> {
        (number < self.tallies_max).then(|| self.tallies + 16 * number.cast_signed())
    }

    fn word(&self, number: u16) -> i16 {
        self.chosen + 8 * number.cast_signed()
    }

    fn mark(&self, number: u16) -> i16 {
        self.marks + 8 * number.cast_signed()
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
        Self { cpus, sent, own: None, desk, owners: vec![owner], leads: Vec::new() }
    }
}

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    /// [`HANDED_MAX`] times the number of the outlet, and below that on from there: where it is
    /// noted that a frame goes there, and what is seen of it.
    pub number: u16,
    /// Which reader of the outlet gets the pointer.
    pub reader: u8,
    /// What the pointer calls it.
    pub way: u32,
    /// Whether other ways have the same number and the same reader. A frame must not take two of
    /// them, and the tallies of those that failed must be as far apart as the ways.
    pub shared: bool,
    /// The tally of frames that were to go there and could not be copied, if they are counted.
    pub failed: Option<u16>,
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
        let beyond = u32::from(hand.reader) >= READERS_MAX || hand.shared && hand.way >= WAYS_MAX;
        if outlet >= desk.outlets || beyond {
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
        b.asm.push(Insn::store(Size::W, R9, place + WAY, hand.way.cast_signed()));
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

/// So many rings, as powers of two, go by while nobody takes a bell out before frames are only
/// counted.
pub const UNTAKEN: u32 = 4;

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
        if let Ending::Tap(joint) = ending {
            for lead in joint.leads.iter().filter(|lead| lead.mark < desk.marks_max) {
                self.asm.push(Insn::store(Size::DW, R9, desk.mark(lead.mark), 0));
            }
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
        Some(desk.mark(number))
    }

    pub(super) fn add_one(&mut self, region: Reg, word: i16) {
        self.asm.push(Insn::load(Size::DW, R1, region, word));
        self.asm.push(Insn::alu(Alu::Add, R1, 1));
        self.asm.push(Insn::store(Size::DW, region, word, R1));
    }
}
