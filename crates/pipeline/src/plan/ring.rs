//! The parameters of a ring, and their defaults.

/// The default number of blocks per wakeup of the reader. [Th §5.2.2]
pub(super) const DEFAULT_SIGNAL_BLOCKS: usize = 32;

/// The default maximum time in ns until the reader of an edge out of the kernel is woken (T_t). It
/// equals the time that frames wait in the ring of a packet socket. On a virtual machine, a wakeup
/// costs the waker 30 µs and the process 10 µs; at 1 ms, a request with few frames would spend more
/// on wakeups than a kernel program saves.
const KERNEL_SIGNAL_NS: u64 = 10_000_000;

/// The number of pointers in the ring of an edge out of the kernel, per processor: one for every 2
/// KB of the record buffer (8 MB).
const KERNEL_RING_ENTRIES: usize = 4096;

/// The size of a pointer from a kernel program, in bytes.
const POINTER_BYTES: usize = 16;

/// The parameters of a ring, with their reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingPlan {
    /// The maximum number of entries in the ring.
    pub entries: usize,
    /// The number of entries to which the ring may shrink; equal to `entries` if the ring has a
    /// fixed size.
    pub entries_min: usize,
    /// The size of an entry in bytes: 16 for a rich pointer alone, 32 with metadata, 64 with
    /// metadata and marks.
    pub stride: usize,
    /// The number of blocks per wakeup of the reader (T_b).
    pub signal_blocks: usize,
    /// The maximum number of blocks per wakeup (T_b), to which T_b grows while blocks arrive at a
    /// high rate. Equal to `signal_blocks` if T_b is fixed.
    pub signal_blocks_max: usize,
    /// The maximum time in ns until the reader is woken (T_t). A writer that is about to sleep
    /// always wakes the reader first.
    pub signal_ns: u64,
    /// The reason for the number of blocks per wakeup of the reader (`signal_blocks`).
    pub blocks_because: &'static str,
    /// The reason for the maximum time until the reader is woken (`signal_ns`).
    pub ns_because: String,
}

impl RingPlan {
    /// Returns the default ring of an edge out of the kernel, without reasons.
    pub(super) const fn kernel_default() -> Self {
        Self {
            entries: KERNEL_RING_ENTRIES,
            entries_min: KERNEL_RING_ENTRIES,
            stride: POINTER_BYTES,
            signal_blocks: DEFAULT_SIGNAL_BLOCKS,
            signal_blocks_max: DEFAULT_SIGNAL_BLOCKS,
            signal_ns: KERNEL_SIGNAL_NS,
            blocks_because: "",
            ns_because: String::new(),
        }
    }

    /// Formats the reasons for the two wakeup thresholds of the ring: its number of blocks (T_b)
    /// and its time (T_t).
    #[must_use]
    pub fn reasons_text(&self) -> String {
        format!("{}, {}", self.blocks_because, self.ns_because)
    }
}
