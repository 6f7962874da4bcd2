//! Configuration of a tap's memory: rings of frames and pointers, wake policy, and scratch memory.

use super::layout::{DELIVERIES_MAX, TALLIES_MAX, offset};
use crate::emit::user_sockets::UserSockets;

/// The layout of a simple tap's rings. `record_max` and `cpus` are choices; the other numbers
/// follow from the layout of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Number of processors with a region.
    pub cpus: u32,
    /// Size of a region in bytes.
    pub stride: u32,
    /// Offset of the first reader's pointers in a region; those of other readers follow.
    pub pointers_at: u32,
    /// Pointers per reader: a power of two.
    pub pointers: u32,
    /// Offset of the records in a region.
    pub records_at: u32,
    /// Size of the records in bytes: a power of two.
    pub bytes: u32,
    /// Maximum captured bytes of a frame.
    pub record_max: u32,
    /// Doorbell policy.
    pub wake: WakePolicy,
    /// True if the host sends these frames.
    pub sent: bool,
}

/// The doorbell policy: notify once `blocks` frames wait and `apart_ns` have passed since the last
/// notification; with the next frame after `wait_ns`; or when the bytes or frames since then would
/// soon fill the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakePolicy {
    /// Frames per notification (T_b).
    pub blocks: u32,
    /// Minimum time between notifications, in ns.
    pub apart_ns: u32,
    /// Time after which the next frame notifies in any case, in ns (T_t): an idle reader that knows
    /// the time of the last notification sleeps no longer than that.
    pub wait_ns: u32,
    /// Bytes that notify at once.
    pub bytes: u32,
    /// Frames that notify at once.
    pub most: u32,
    /// Wakeup behavior.
    pub wakes: Wakeup,
}

/// The processes that a doorbell wakes. A wakeup sends an interrupt to the own processor, which
/// takes 10 us and more on a virtual machine even if nobody sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// The consumer that drains doorbells, if it had drained all earlier ones. A consumer that
    /// drains before it looks for frames misses none and is not woken while it is busy; one that
    /// never drains is woken once.
    Consumer,
    /// Every listener, each time: listeners drain nothing.
    Everyone,
}

/// The memory of a program that several requests share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedTap {
    /// Number of processors with a region in every map.
    pub cpus: u32,
    /// True if the host sends these frames. At a control group the packet says.
    pub sent: bool,
    /// User whose packets are delivered, at a control group.
    pub user: Option<UserSockets>,
    /// Scratch memory: the first of the caller's maps.
    pub scratch: Scratch,
    /// Rings for frames, one per owner.
    pub rings: Vec<FrameRing>,
    /// Interfaces by which copies may leave.
    pub egresses: Vec<Egress>,
}

/// An interface by which copies of frames leave. The body selects it with a mark
/// ([`Scope::mark`](crate::emit::Scope::mark)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Interface index, in the network namespace of the hook.
    pub interface: u32,
    /// Number of the mark, which is clear at the beginning of a frame.
    pub mark: u16,
    /// Tally of failed copies.
    pub failed: u16,
}

/// The layout of a program's scratch memory and tallies, as byte offsets in a processor's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
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

/// A ring of frames, with the pointer rings into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRing {
    /// Number of its map among the caller's.
    pub map: u32,
    /// Size of a region in bytes.
    pub stride: u32,
    /// Offset of the records in a region.
    pub records_at: u32,
    /// Size of the records in bytes: a power of two.
    pub bytes: u32,
    /// Maximum captured bytes of a frame.
    pub record_max: u32,
    /// Pointer rings, one per request. They are numbered through all owners, in order.
    pub pointer_rings: Vec<PointerRing>,
}

/// A request's ring of pointers to copied frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerRing {
    /// Number of its map among the caller's.
    pub map: u32,
    /// Number of its doorbell map.
    pub doorbell_map: u32,
    /// Size of a region in bytes.
    pub stride: u32,
    /// Offset of the first reader's pointers in a region; those of other readers follow.
    pub pointers_at: u32,
    /// Pointers per reader: a power of two.
    pub pointers: u32,
    /// Doorbell policy.
    pub wake: WakePolicy,
}

impl Scratch {
    /// Scratch memory in the first page of a tap's rings.
    const PLAIN: Self = Self {
        stride: 0,
        chosen: offset::CHOSEN,
        outlets: 1,
        handed: offset::HANDED,
        marks: 0,
        marks_max: 0,
        tallies: offset::TALLIES,
        tallies_max: TALLIES_MAX,
    };

    /// Returns the same layout for regions of `stride` bytes; the rest of a region holds tallies.
    pub(in crate::emit) const fn plain(stride: u32) -> Self {
        // Offsets are signed 16-bit numbers.
        let end = if stride > i16::MAX as u32 { i16::MAX as u32 } else { stride };
        let tallies_max = (end.saturating_sub(offset::TALLIES as u32) / 16) as u16;
        Self { stride, tallies_max, ..Self::PLAIN }
    }

    /// Scratch memory of a program that does not count.
    pub(in crate::emit) const NONE: Self =
        Self { outlets: 0, marks_max: 0, tallies_max: 0, ..Self::PLAIN };

    /// Creates a layout; `None` if its offsets exceed 16 bits.
    #[must_use]
    pub fn new(outlets: usize, marks: usize, tallies: usize) -> Option<Self> {
        let handed = outlets.checked_mul(8)?;
        let each = 16 * usize::try_from(DELIVERIES_MAX).ok()?;
        let from = handed.checked_add(outlets.checked_mul(each)?)?;
        let to = from.checked_add(marks.checked_mul(8)?)?;
        let end = to.checked_add(tallies.checked_mul(16)?)?;
        // Offsets are signed 16-bit numbers.
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

    /// Returns the offset of a tally in a region: blocks, followed by bytes.
    #[must_use]
    pub const fn tally(&self, number: u16) -> u32 {
        self.tallies.cast_unsigned() as u32 + 16 * number as u32
    }

    /// Returns the offset of a tally if it exists.
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

impl FusedTap {
    /// Returns the number of maps that the caller provides, the scratch memory included.
    #[must_use]
    pub fn maps(&self) -> u32 {
        let of = |owner: &FrameRing| {
            let outlets =
                owner.pointer_rings.iter().flat_map(|outlet| [outlet.map, outlet.doorbell_map]);
            outlets.chain([owner.map]).max().unwrap_or(0)
        };
        let own = self.user.iter().map(|own| own.claims);
        self.rings.iter().map(of).chain(own).max().unwrap_or(0) + 1
    }

    /// Returns true if everything lies in one map, besides the doorbell.
    pub(super) fn is_plain(&self) -> bool {
        let here =
            |owner: &FrameRing| owner.map == 0 && owner.pointer_rings.iter().all(|o| o.map == 0);
        self.rings.iter().all(here)
    }
}

impl From<&Tap> for FusedTap {
    fn from(tap: &Tap) -> Self {
        let Tap { cpus, stride, pointers_at, pointers, records_at, bytes, record_max, wake, sent } =
            *tap;
        let outlet = PointerRing { map: 0, doorbell_map: 1, stride, pointers_at, pointers, wake };
        let owner = FrameRing {
            map: 0,
            stride,
            records_at,
            bytes,
            record_max,
            pointer_rings: vec![outlet],
        };
        let scratch = Scratch { stride, ..Scratch::PLAIN };
        Self { cpus, sent, user: None, scratch, rings: vec![owner], egresses: Vec::new() }
    }
}
