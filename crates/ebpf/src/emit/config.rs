//! Configuration of counting programs: rings of frames and pointers, wake policy, scratch memory,
//! and the end of each frame.
//!
//! The body of a program delivers a frame at *exits*, numbered points of the filter tree where
//! frames leave the kernel. A delivered frame is copied once per *owner*, a set of requests that
//! may see each other's frames; each request gets pointers to the copy.

use super::ring_layout::{DELIVERIES_MAX, SWITCHED_SLOTS_MAX, TALLIES_MAX, offset};
use super::switch_layout::SwitchLayout;

/// The ring layout of a tap for one request. The layout of a processor's memory region determines
/// all fields except `cpus`, `record_max`, `wake` and `sent`, which the caller chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Number of processors that have a region in the tap's memory.
    pub cpus: u32,
    /// Size in bytes of a processor's region in the tap's memory.
    pub stride: u32,
    /// Byte offset, in a processor's region of the tap's memory, of the pointers for the first
    /// reader. The pointers for the other readers follow.
    pub pointers_at: u32,
    /// Number of pointers that a processor's region holds per reader: a power of two.
    pub pointers: u32,
    /// Byte offset, in a processor's region of the tap's memory, of the records, which contain the
    /// copied frames.
    pub records_at: u32,
    /// Size in bytes of the area for records in a processor's region: a power of two.
    pub bytes: u32,
    /// Maximum number of bytes of a frame that are copied.
    pub record_max: u32,
    /// Conditions under which the tap sends a doorbell.
    pub wake: WakePolicy,
    /// True if the program observes frames that this host sends, false if it observes received
    /// frames.
    pub observes_sent: bool,
}

/// The doorbell policy: the three cases in which a frame triggers a doorbell. In the first case,
/// `blocks` frames wait and `apart_ns` have passed since the last doorbell. In the second case,
/// `wait_ns` have passed since the last doorbell. In the third case, the ring may soon be full
/// because of the bytes or frames written since the last doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakePolicy {
    /// Minimum number of waiting frames that triggers a doorbell (T_b).
    pub blocks: u32,
    /// Minimum time between doorbells, in ns.
    pub apart_ns: u32,
    /// Maximum time between doorbells, in ns (T_t): after this time, the next frame always triggers
    /// a doorbell. An idle reader that knows the time of the last doorbell sleeps for at most this
    /// time.
    pub wait_ns: u32,
    /// Number of bytes written since the last doorbell that triggers the next doorbell.
    pub bytes: u32,
    /// Number of frames written since the last doorbell that triggers the next doorbell.
    pub frames: u32,
    /// The processes that a doorbell wakes.
    pub target: WakeupTarget,
}

/// The processes that a doorbell wakes. A wakeup sends an interrupt to the same processor, which
/// takes at least 10 µs on a virtual machine even if no process sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeupTarget {
    /// The consumer that drains doorbells. A doorbell wakes it only if it has drained all earlier
    /// ones. A consumer that drains before it checks for frames misses none and is not woken while
    /// it is busy. A consumer that never drains is woken only once.
    Consumer,
    /// Every listener. Each doorbell forces a wakeup, because listeners do not drain doorbells.
    Everyone,
    /// No process: no doorbell is sent. While the consumer sleeps, the program leaves the frames to
    /// the host, which wakes the consumer as if the program did not exist
    /// ([`awake`](super::tap)).
    Host,
}

/// The configuration of a tap that several requests share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedTap {
    /// Number of regions in every map: one per processor or, if `user` is set, [`REGIONS_PER_CPU`]
    /// per processor.
    pub cpus: u32,
    /// True if the program observes frames that this host sends, false if it observes received
    /// frames. Ignored at a cgroup, where the context of each packet states its direction.
    pub observes_sent: bool,
    /// At a cgroup, the user whose packets are delivered. `None` at other hooks.
    pub user: Option<UserSocketsConfig>,
    /// Layout of the program's scratch memory, which is in the first of the maps that the caller
    /// provides.
    pub scratch: ScratchLayout,
    /// Rings for copied frames, one per owner, which is a set of requests that may see each other's
    /// frames.
    pub rings: Vec<FrameRing>,
    /// Interfaces through which copies of frames may be sent.
    pub egresses: Vec<Egress>,
    /// Index of the mark ([`Scope::mark`](crate::emit::Scope::set_mark)) with which the body
    /// withholds a frame from the host. The mark is clear at the beginning of each frame. `None` if
    /// the host receives every frame.
    pub withheld_mark: Option<u16>,
    /// Layout of the memory words with which user space opens and closes switched exits, or `None`
    /// if the program has no switched exits.
    pub switches: Option<SwitchLayout>,
}

/// An interface through which the program sends a copy of the frame if the body has set a mark
/// ([`Scope::mark`](crate::emit::Scope::set_mark)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Interface index in the network namespace of the hook.
    pub interface: u32,
    /// Index of the mark, a flag that the body sets to send a copy. The mark is clear at the
    /// beginning of each frame.
    pub mark: u16,
    /// Index of the tally ([`Scope::tally`](crate::emit::Scope::add_to_tally)) that counts the
    /// copies that could not be sent.
    pub failed_tally: u16,
}

/// The layout of a program's scratch memory, which includes its marks and tallies, as byte offsets
/// in a processor's memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchLayout {
    /// Size in bytes of a processor's region of memory.
    pub stride: u32,
    pub(super) delivery_words: i16,
    pub(super) outlets: u16,
    pub(super) delivered_views: i16,
    pub(super) marks: i16,
    pub(super) marks_max: u16,
    pub(super) tallies: i16,
    pub(super) tallies_max: u16,
    /// Byte offset of the words that record the current frame for switched exits: a bit set of the
    /// slots used for this frame (eight bytes), followed by the views in these slots. 0 if the
    /// program has no switched exits.
    pub(super) switched: i16,
}

/// A ring of frames, and the pointer rings that refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRing {
    /// Index of the map that holds the ring, among the maps that the caller provides.
    pub map: u32,
    /// Size in bytes of a processor's region in the ring's map.
    pub stride: u32,
    /// Byte offset, in a processor's region of the ring's map, of the records, which contain the
    /// copied frames.
    pub records_at: u32,
    /// Size in bytes of the area for records in a processor's region: a power of two.
    pub bytes: u32,
    /// Maximum number of bytes of a frame that are copied.
    pub record_max: u32,
    /// Pointer rings of the requests that may see the frames in this ring, one per request. Pointer
    /// rings are numbered consecutively over all frame rings.
    pub pointer_rings: Vec<PointerRing>,
}

/// A request's ring of pointers to copied frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerRing {
    /// Index of the map that holds the ring, among the maps that the caller provides.
    pub map: u32,
    /// Index of the map that holds the ring's doorbell, among the maps that the caller provides.
    pub doorbell_map: u32,
    /// Size in bytes of a processor's region in the ring's map.
    pub stride: u32,
    /// Byte offset, in a processor's region of the ring's map, of the pointers for the first
    /// reader. The pointers for the other readers follow.
    pub pointers_at: u32,
    /// Number of pointers that a processor's region holds per reader: a power of two.
    pub pointers: u32,
    /// Conditions under which a doorbell is sent to the readers of the ring.
    pub wake: WakePolicy,
}

impl ScratchLayout {
    /// The layout of the scratch memory of a tap that serves a single request. The scratch memory
    /// is in the first page of the tap's rings.
    const SINGLE_REQUEST: Self = Self {
        stride: 0,
        delivery_words: offset::DELIVERY_BITS,
        outlets: 1,
        delivered_views: offset::VIEWS,
        marks: 0,
        marks_max: 0,
        tallies: offset::TALLIES,
        tallies_max: TALLIES_MAX,
        switched: 0,
    };

    /// Returns the scratch memory layout of a tap for one request, in the first page of the tap's
    /// rings, for regions of `stride` bytes. The tallies occupy the rest of a region, up to the
    /// maximum 16-bit offset.
    pub(super) const fn for_single_request(stride: u32) -> Self {
        // Offsets are signed 16-bit numbers.
        let end = if stride > i16::MAX as u32 { i16::MAX as u32 } else { stride };
        let tallies_max = (end.saturating_sub(offset::TALLIES as u32) / 16) as u16;
        Self { stride, tallies_max, ..Self::SINGLE_REQUEST }
    }

    /// The layout of scratch memory for a program without deliveries, marks or tallies.
    pub(super) const NONE: Self =
        Self { outlets: 0, marks_max: 0, tallies_max: 0, ..Self::SINGLE_REQUEST };

    /// Creates the layout of scratch memory for `outlets` pointer rings and these numbers of marks
    /// and tallies. Returns `None` if an offset exceeds 16 bits.
    #[must_use]
    pub fn new(outlets: usize, marks: usize, tallies: usize) -> Option<Self> {
        let delivered_views = outlets.checked_mul(8)?;
        let each = 16 * usize::try_from(DELIVERIES_MAX).ok()?;
        let from = delivered_views.checked_add(outlets.checked_mul(each)?)?;
        let to = from.checked_add(marks.checked_mul(8)?)?;
        let switched = to.checked_add(tallies.checked_mul(16)?)?;
        let end = switched.checked_add(8 + 16 * SWITCHED_SLOTS_MAX as usize)?;
        // Offsets are signed 16-bit numbers.
        i16::try_from(end).ok()?;
        Some(Self {
            stride: u32::try_from(end.next_multiple_of(64)).ok()?,
            delivery_words: 0,
            outlets: u16::try_from(outlets).ok()?,
            delivered_views: i16::try_from(delivered_views).ok()?,
            marks: i16::try_from(from).ok()?,
            marks_max: u16::try_from(marks).ok()?,
            tallies: i16::try_from(to).ok()?,
            tallies_max: u16::try_from(tallies).ok()?,
            switched: i16::try_from(switched).ok()?,
        })
    }

    /// Returns the byte offset of tally `number` in a processor's region. A tally is a pair of
    /// counters, for blocks and for bytes.
    #[must_use]
    pub const fn tally_offset(&self, number: u16) -> u32 {
        self.tallies.cast_unsigned() as u32 + 16 * number as u32
    }

    /// Returns the byte offset of tally `number`, a pair of counters; `None` if there is no such
    /// tally.
    pub(super) fn checked_tally_offset(&self, number: u16) -> Option<i16> {
        (number < self.tallies_max).then(|| self.tallies + 16 * number.cast_signed())
    }

    pub(super) fn delivery_word_offset(&self, number: u16) -> i16 {
        self.delivery_words + 8 * number.cast_signed()
    }

    pub(super) fn mark_offset(&self, number: u16) -> i16 {
        self.marks + 8 * number.cast_signed()
    }

    pub(super) fn view_slot_offset(&self, number: u16) -> i16 {
        self.delivered_views + 16 * number.cast_signed()
    }
}

impl FusedTap {
    /// Returns the pointer ring with this number; `None` if there is none. Pointer rings are
    /// numbered consecutively over all frame rings.
    pub(super) fn pointer_ring(&self, number: u16) -> Option<PointerRing> {
        let all = self.rings.iter().flat_map(|owner| &owner.pointer_rings);
        all.copied().nth(number.into())
    }

    /// Returns true if all memory of the tap, except the doorbell, is in one map.
    pub(super) fn uses_one_map(&self) -> bool {
        let here =
            |owner: &FrameRing| owner.map == 0 && owner.pointer_rings.iter().all(|o| o.map == 0);
        self.rings.iter().all(here)
    }
}

impl From<&Tap> for FusedTap {
    fn from(tap: &Tap) -> Self {
        let Tap {
            cpus,
            stride,
            pointers_at,
            pointers,
            records_at,
            bytes,
            record_max,
            wake,
            observes_sent: sent,
        } = *tap;
        let outlet = PointerRing { map: 0, doorbell_map: 1, stride, pointers_at, pointers, wake };
        let owner = FrameRing {
            map: 0,
            stride,
            records_at,
            bytes,
            record_max,
            pointer_rings: vec![outlet],
        };
        let scratch = ScratchLayout { stride, ..ScratchLayout::SINGLE_REQUEST };
        Self {
            cpus,
            observes_sent: sent,
            user: None,
            scratch,
            rings: vec![owner],
            egresses: Vec::new(),
            withheld_mark: None,
            switches: None,
        }
    }
}

/// The delivery of a frame to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Index of the delivery, which selects its slot in the scratch memory. The index is the
    /// pointer ring's index times [`DELIVERIES_MAX`], plus a number below [`DELIVERIES_MAX`].
    pub number: u16,
    /// Index of the reader that receives the pointer, among the readers of the pointer ring.
    pub reader: u8,
    /// Number of the exit, a point of the filter tree, at which the frame is delivered. The pointer
    /// to the frame contains this number.
    pub exit: u32,
    /// True if several exits share the slot and the reader of this delivery. A frame must then be
    /// delivered at one of these exits at most. The program computes the tally of an exit from the
    /// exit's number, so the difference `failed - exit` must be the same for all of these exits.
    pub shared: bool,
    /// Index of the tally, a pair of counters, for frames that could not be copied; `None` if such
    /// frames are not counted.
    pub failed_tally: Option<u16>,
}

impl Delivery {
    /// Returns the number of the pointer ring to which this delivery belongs, and the number of the
    /// delivery's bit in the bit set of this ring.
    pub(super) fn ring_and_bit(self) -> (u16, u32) {
        let number = u32::from(self.number);
        (self.number / DELIVERIES_MAX as u16, number % DELIVERIES_MAX)
    }
}

/// Number of memory regions per processor, so that a program that interrupts another on the same
/// processor has a region of its own. More than two programs are nested only on kernels that
/// preempt a process while it sends.
pub const REGIONS_PER_CPU: u32 = 4;
/// The user whose packets a tap at a cgroup delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserSocketsConfig {
    /// Id of the user.
    pub uid: u32,
    /// Cookie of the user's network namespace.
    pub netns: u64,
    /// Index of the claims map, in which programs claim regions, among the maps that the caller
    /// provides. The map has [`CLAIMS_STRIDE`](super::user_sockets::CLAIMS_STRIDE) bytes per
    /// processor and is shared by all programs that write the same rings.
    pub claims: u32,
}

/// The configuration of a redirecting program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Number of processors that have a region of memory for counters.
    pub cpus: u32,
    /// Size in bytes of a processor's region of memory.
    pub stride: u32,
    /// BTF id of the kfunc that returns the tag that the driver removed
    /// (`bpf_xdp_metadata_rx_vlan_tag`); `None` to ignore such tags.
    pub tag_kfunc: Option<i32>,
    /// Maximum number of deliveries per frame. The program reserves room for each of them before
    /// the frame.
    pub deliveries: u16,
}

impl Redirect {
    /// Returns the layout of the memory that contains the program's counters.
    #[must_use]
    pub const fn scratch_layout(&self) -> ScratchLayout {
        ScratchLayout::for_single_request(self.stride)
    }
}

/// The final action of a counting program on each frame.
#[derive(Clone, Debug)]
pub(super) enum FinalAction {
    /// Copies the frame for the readers of the tap. The kernel then processes the frame further,
    /// unless a filter in the tap withholds it.
    Tap(FusedTap),
    /// Redirects or drops the frame.
    Redirect(Redirect),
}

impl FinalAction {
    /// Returns the BTF id of the kfunc that returns tags, or `None` if the program does not call
    /// it.
    pub(super) const fn tag_kfunc(&self) -> Option<i32> {
        match self {
            Self::Tap(_) => None,
            Self::Redirect(redirect) => redirect.tag_kfunc,
        }
    }

    /// Returns the layout of the program's scratch memory.
    pub(super) const fn scratch_layout(&self) -> ScratchLayout {
        match self {
            Self::Tap(fused) => fused.scratch,
            Self::Redirect(redirect) => redirect.scratch_layout(),
        }
    }

    /// Returns the number of processors that have a region in the memory of the program.
    pub(super) const fn processors(&self) -> u32 {
        match self {
            Self::Tap(FusedTap { user: Some(_), cpus, .. }) => *cpus / REGIONS_PER_CPU,
            Self::Tap(fused) => fused.cpus,
            Self::Redirect(redirect) => redirect.cpus,
        }
    }
}

/// Stack slots, as byte offsets from r10, that a counting program reserves from start to end: the
/// address of the scratch memory, and either the region number or the tag and length of the frame.
pub(super) struct FixedSlots;

impl FixedSlots {
    /// Stack slot for the address of the scratch memory.
    pub(super) const SCRATCH: i16 = -8;
    /// Stack slot for the region number, in a tap.
    pub(super) const REGION_NUMBER: i16 = -16;
    /// Stack slot for the VLAN tag that the driver removed, in a redirecting program.
    pub(super) const TAG: i16 = -16;
    /// Stack slot for the frame length, in a redirecting program.
    pub(super) const LENGTH: i16 = -24;
    /// Number of stack slots that a counting program (a tap or a redirecting program) reserves from
    /// start to end.
    pub(super) const FIXED_SLOT_COUNT: i16 = 3;
}
