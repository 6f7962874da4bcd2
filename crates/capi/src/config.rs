//! The configuration structures of the C interface.

use std::ffi::c_char;

/// The configuration of a stream. A field that is 0 selects its default.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_config {
    /// Capacity of the ring in bytes, rounded up to a power of two; 0: 1 MB. With 0 and the policy
    /// STREAMLINE_BLOCK, the writer may later resize the ring to fit the processor caches.
    pub capacity: u64,
    /// Policy of a full ring: STREAMLINE_BLOCK, STREAMLINE_DROP_NEW or STREAMLINE_OVERWRITE.
    pub policy: i32,
    /// Permission bits for readers; 0: 0600, this user alone.
    pub mode: u32,
    /// Maximum number of readers at a time; 0: 32.
    pub readers: u32,
    /// Maximum number of readers of each user other than the owner; 0: 8.
    pub readers_of_one_stranger: u32,
    /// Number of written blocks after which readers are notified of them. 0 or 1: readers are
    /// notified of each write at once. A larger value (32) is several times faster for small
    /// blocks, but needs streamline_flush() before waiting for a reply.
    pub every: u32,
    /// 0: the pipe carries bytes. 1: it carries pointers to bytes, which streamline_splice() moves
    /// without touching the bytes; `capacity` is the memory for bytes that are written, and is
    /// resized like a ring of bytes. 1 is permitted only for streamline_mpipe_with(), and the
    /// writing end of the pipe then always waits.
    pub pointers: u32,
}

/// The counts of an end of a stream, since it was opened.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_counts {
    /// Blocks written or read.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// Blocks that were dropped because there was no room, or that a reader lost.
    pub dropped: u64,
    /// The bytes of the dropped blocks; 0 for a reader.
    pub dropped_bytes: u64,
    /// Blocks written as pointers, whose bytes were not touched.
    pub by_pointer: u64,
    /// Blocks whose bytes were copied into the stream; 0 for a reader.
    pub copied: u64,
}

/// The size of the ring behind a writing end, or of the memory of a pipe of pointers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_ring_size {
    /// Bytes that the writer uses now.
    pub bytes: u64,
    /// Number of times that the size has grown, and shrunk. Both stay 0 if it is fixed.
    pub grown: u64,
    /// See `grown`.
    pub shrunk: u64,
}

/// The options of a run in addition to its request. A field that is 0 or null is not set.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_options {
    /// Ends the run after its sinks have received this many blocks.
    pub count: u64,
    /// Ends the run after this many milliseconds.
    pub time_ms: u64,
    /// Name of the run at the daemon; fails without a daemon.
    pub name: *const c_char,
    /// Program that runs worker processes (`--engines`) and untrusted filters: the command
    /// `streamline`. If null, requests that need one fail; this program is never started again.
    pub helper: *const c_char,
    /// 1: does not register with the daemon of the machine.
    pub embedded: i32,
}
