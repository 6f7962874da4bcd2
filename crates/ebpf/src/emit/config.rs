//! Configuration of counting programs: rings of frames and pointers, wake policy, scratch memory,
//! and the end of each frame.

use super::ring_layout::{DELIVERIES_MAX, TALLIES_MAX, offset};

/// The layout of a simple tap's rings. The caller chooses `record_max` and `cpus`; the other
/// numbers follow from the layout of the regions.
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

/// The doorbell policy. A frame notifies once `blocks` frames wait and `apart_ns` have passed since
/// the last notification; once `wait_ns` have passed since then; or once so many bytes or frames
/// have been written since then that the ring may soon be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakePolicy {
    /// Number of waiting frames that notify (T_b).
    pub blocks: u32,
    /// Minimum time between notifications, in ns.
    pub apart_ns: u32,
    /// Time after which the next frame notifies in any case, in ns (T_t): an idle reader that knows
    /// the time of the last notification sleeps no longer than that.
    pub wait_ns: u32,
    /// Number of bytes since the last notification that notify at once.
    pub bytes: u32,
    /// Number of frames since the last notification that notify at once.
    pub most: u32,
    /// Wakeup behavior.
    pub wakes: Wakeup,
}

/// The processes that a doorbell wakes. A wakeup sends an interrupt to the same processor, which
/// takes 10 us and more on a virtual machine even if no process sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// The consumer that drains doorbells, if it has drained all earlier ones. A consumer that
    /// drains before it checks for frames misses none and is not woken while it is busy; a consumer
    /// that never drains is woken once.
    Consumer,
    /// Every listener, each time, because listeners drain nothing.
    Everyone,
}

/// The memory of a program that several requests share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedTap {
    /// Number of processors with a region in every map.
    pub cpus: u32,
    /// True if the host sends these frames. At a control group, the packet determines this instead.
    pub sent: bool,
    /// User whose packets are delivered, at a control group.
    pub user: Option<UserSockets>,
    /// Scratch memory: the first of the caller's maps.
    pub scratch: Scratch,
    /// Rings for frames, one per owner.
    pub rings: Vec<FrameRing>,
    /// Interfaces by which copies may leave.
    pub egresses: Vec<Egress>,
    /// Number of the mark that is set for frames that the host does not receive; it is clear at the
    /// beginning of a frame. `None` if the host receives every frame.
    pub taken: Option<u16>,
}

/// An interface by which copies of frames leave. The body selects it with a mark
/// ([`Scope::mark`](crate::emit::Scope::mark)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Interface index, in the network namespace of the hook.
    pub interface: u32,
    /// Number of the mark, which is clear at the beginning of a frame.
    pub mark: u16,
    /// Number of the tally of failed copies.
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
    /// Number of the ring's map among the caller's maps.
    pub map: u32,
    /// Size of a region in bytes.
    pub stride: u32,
    /// Offset of the records in a region.
    pub records_at: u32,
    /// Size of the records in bytes: a power of two.
    pub bytes: u32,
    /// Maximum captured bytes of a frame.
    pub record_max: u32,
    /// Pointer rings, one per request. They are numbered through the rings of all owners, in order.
    pub pointer_rings: Vec<PointerRing>,
}

/// A request's ring of pointers to copied frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerRing {
    /// Number of the ring's map among the caller's maps.
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
    /// The layout of scratch memory in the first page of a tap's rings.
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

    /// Returns the layout in the first page of a tap's rings for regions of `stride` bytes; tallies
    /// take the rest of a region, as far as 16-bit offsets reach.
    pub(super) const fn plain(stride: u32) -> Self {
        // Offsets are signed 16-bit numbers.
        let end = if stride > i16::MAX as u32 { i16::MAX as u32 } else { stride };
        let tallies_max = (end.saturating_sub(offset::TALLIES as u32) / 16) as u16;
        Self { stride, tallies_max, ..Self::PLAIN }
    }

    /// The layout for a program without deliveries, marks and tallies.
    pub(super) const NONE: Self = Self { outlets: 0, marks_max: 0, tallies_max: 0, ..Self::PLAIN };

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
    pub(super) fn tally_at(&self, number: u16) -> Option<i16> {
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

    /// Returns true if one map, in addition to the doorbell, holds everything.
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
        Self {
            cpus,
            sent,
            user: None,
            scratch,
            rings: vec![owner],
            egresses: Vec::new(),
            taken: None,
        }
    }
}

/// The delivery of a frame to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Number of the pointer ring times [`DELIVERIES_MAX`], plus a number below [`DELIVERIES_MAX`]:
    /// the slot in the scratch memory.
    pub number: u16,
    /// Reader of the pointer ring that gets the pointer.
    pub reader: u8,
    /// Exit number in the pointer.
    pub exit: u32,
    /// True if other exits use the same slot and reader. A frame must not take two of them, and
    /// their tallies of failures must be spaced like the exit numbers.
    pub shared: bool,
    /// Tally of frames whose copy failed, if counted.
    pub failed: Option<u16>,
}

impl Delivery {
    /// Returns the pointer ring and the bit in its word.
    pub(super) fn place(self) -> (u16, u32) {
        let number = u32::from(self.number);
        (self.number / DELIVERIES_MAX as u16, number % DELIVERIES_MAX)
    }
}

/// Number of regions per processor. More than two programs nest only on kernels that preempt a
/// process while it sends.
pub const REGIONS_PER_CPU: u32 = 4;
/// The user whose packets a program delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserSockets {
    /// The user.
    pub uid: u32,
    /// Cookie of the network namespace.
    pub netns: u64,
    /// Number of the claims map among the caller's maps:
    /// [`CLAIMS_STRIDE`](super::user_sockets::CLAIMS_STRIDE) bytes per processor, shared by all
    /// programs that write the same rings.
    pub claims: u32,
}

/// The configuration of a redirecting program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Number of processors with a region for counting.
    pub cpus: u32,
    /// Size of a region in bytes.
    pub stride: u32,
    /// BTF id of the kfunc that returns a tag which the driver removed
    /// (`bpf_xdp_metadata_rx_vlan_tag`); `None` to ignore such tags.
    pub tag_kfunc: Option<i32>,
    /// Maximum number of deliveries per frame; each has room before the frame.
    pub deliveries: u16,
}

impl Redirect {
    /// Returns the layout of the memory in which the program counts.
    #[must_use]
    pub const fn scratch(&self) -> Scratch {
        Scratch::plain(self.stride)
    }
}

/// Final action of a counting program on each frame.
#[derive(Clone, Debug)]
pub(super) enum FrameEnd {
    /// Copy the deliveries and pass the frame.
    Tap(FusedTap),
    /// Redirect or drop the frame.
    Redirect(Redirect),
}

impl FrameEnd {
    /// Returns the BTF id of the kfunc that reports tags.
    pub(super) const fn tags(&self) -> Option<i32> {
        match self {
            Self::Tap(_) => None,
            Self::Redirect(redirect) => redirect.tag_kfunc,
        }
    }

    /// Returns the layout of the scratch memory.
    pub(super) const fn scratch(&self) -> Scratch {
        match self {
            Self::Tap(fused) => fused.scratch,
            Self::Redirect(redirect) => redirect.scratch(),
        }
    }

    /// Returns the maximum number of processors.
    pub(super) const fn processors(&self) -> u32 {
        match self {
            Self::Tap(FusedTap { user: Some(_), cpus, .. }) => *cpus / REGIONS_PER_CPU,
            Self::Tap(fused) => fused.cpus,
            Self::Redirect(redirect) => redirect.cpus,
        }
    }
}

/// Stack slots that are reserved throughout: the scratch memory of this processor, and either the
/// region number or the frame's tag and length.
pub(super) struct FixedSlots;

impl FixedSlots {
    pub(super) const SCRATCH: i16 = -8;
    pub(super) const CPU: i16 = -16;
    pub(super) const TAG: i16 = -16;
    pub(super) const LENGTH: i16 = -24;
    /// Number of reserved slots.
    pub(super) const SLOTS: i16 = 3;
}
