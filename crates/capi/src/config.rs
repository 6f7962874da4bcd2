//! The configuration of a stream, as C programs write it.

use std::ffi::c_char;

/// The shape of a stream. Zeros stand for what is best for most.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_config {
    /// Bytes of the ring, rounded up to a power of two; 0: 1 MB.
    pub capacity: u64,
    /// Policy of a full ring: STREAMLINE_BLOCK, STREAMLINE_DROP_NEW or STREAMLINE_OVERWRITE.
    pub policy: i32,
    /// Permission bits of those who may open it; 0: 0600, this user alone.
    pub mode: u32,
    /// Simultaneous readers at most; 0: 32.
    pub readers: u32,
    /// Readers of any one user but the owner at most; 0: 8.
    pub readers_of_one_stranger: u32,
    /// After how many blocks what was written is shown. 0 or 1: each write is seen at once. More
    /// (32) is several times faster for small blocks; then call streamline_flush() before waiting
    /// for an answer.
    pub every: u32,
}

/// Wishes about a run that its request does not say. Zeros and null pointers stand for none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct streamline_options {
    /// Ends the run when its sinks have taken this many blocks.
    pub count: u64,
    /// Ends the run after this many milliseconds.
    pub time_ms: u64,
    /// The name under which the daemon knows it; then there must be one.
    pub name: *const c_char,
    /// A program that serves as a worker (`--engines`) and runs untrusted filters: the command
    /// `streamline`. Without, requests for those are refused: this program is never started again.
    pub helper: *const c_char,
    /// 1: without the daemon of the machine, if there is one.
    pub embedded: i32,
}
