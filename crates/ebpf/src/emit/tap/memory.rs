//! The memory that a tap is given, as its program must know it: rings of frames and of pointers,
//! when their bells ring, and the desk at which it notes what it has found out.

use super::layout::{HANDED_MAX, TALLIES_MAX, at};
use crate::emit::own::Own;

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
    pub bell: WakePolicy,
    /// Whether the frames are those that the host sends.
    pub sent: bool,
}

/// When the bell rings: once so many blocks are there and so much time has passed since it rang
/// last; or after a longer time with the next block; or when so many bytes or blocks were written
/// since that the ring would be full soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakePolicy {
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
/// ([`Scope::mark`](crate::emit::Scope::mark)).
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
    pub(super) chosen: i16,
    pub(super) outlets: u16,
    pub(super) handed: i16,
    pub(super) marks: i16,
    pub(super) marks_max: u16,
    pub(super) tallies: i16,
    pub(super) tallies_max: u16,
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
    pub bell: WakePolicy,
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
    pub(in crate::emit) const fn plain(stride: u32) -> Self {
        // A place is a signed offset of 16 bits.
        let end = if stride > i16::MAX as u32 { i16::MAX as u32 } else { stride };
        let tallies_max = (end.saturating_sub(at::TALLIES as u32) / 16) as u16;
        Self { stride, tallies_max, ..Self::PLAIN }
    }

    /// That of a program that is no tap.
    pub(in crate::emit) const NONE: Self =
        Self { outlets: 0, marks_max: 0, tallies_max: 0, ..Self::PLAIN };

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
    pub(in crate::emit) fn tally_at(&self, number: u16) -> Option<i16> {
        (number < self.tallies_max).then(|| self.tallies + 16 * number.cast_signed())
    }

    pub(super) fn word(&self, number: u16) -> i16 {
        self.chosen + 8 * number.cast_signed()
    }

    pub(super) fn mark(&self, number: u16) -> i16 {
        self.marks + 8 * number.cast_signed()
    }

    pub(super) fn handed(&self, number: u16) -> i16 {
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
    pub(super) fn is_plain(&self) -> bool {
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
