//! Memory and rings: pools, to which spaces write blocks; rings, which pass blocks between spaces;
//! and streams on top of rings. [SL §5.1, §5.2, §5.3]
//!
//! There are three kinds of shared memory, which are never mixed:
//! 1. *control words* are atomics, laid out in `abi::ring`; every Release store names its Acquire
//!    load;
//! 2. *held bytes* are protected from overwriting by a protocol among parties that trust each
//!    other, so `&[u8]` is sound; `pool`, `crossing` and `dbuf` prove it with numbered invariants;
//! 3. *foreign bytes* may be written by another party at any moment. No reference to such bytes is
//!    ever created: they are copied word by word, and the lap is checked again afterwards
//!    (`foreign`).
//!
//! Rings and pools neither sleep nor read a clock, and allocate memory for blocks only when they
//! are created or grow by a segment. The modules on top of them (`signal`, `doorbells`, `stream`,
//! `name`) sleep. Clocks are read only for the maximum delay of a wake-up (T_t,
//! `signal::wakeup_moderation`), for the sizing of rings (`scale`), and for time limits (`name`).
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(loom, allow(dead_code, reason = "the models need only a part"))]

pub mod atomic;
#[expect(
    unsafe_code,
    reason = "gives one thread at a time access to a value; invariants in the file"
)]
pub mod biased_lock;
pub mod byte_ring;
#[cfg(not(loom))]
pub mod compression;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "gives out held bytes; argued by the invariants of `pool`")]
pub mod crossing;
pub mod cursor;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "peeks into the ring; numbered invariants in the file")]
pub mod dbuf;
#[cfg(not(loom))]
pub mod doorbells;
mod fault;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "one instruction that copies what others may write")]
pub mod foreign_memory;
pub mod ibuf;
#[cfg(not(loom))]
pub mod ids;
mod join;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub mod late_event;
mod ledger;
#[cfg(not(loom))]
pub mod name;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "turns places into slices; numbered invariants in the file")]
pub mod pool;
#[cfg(not(loom))]
pub mod rate;
#[expect(unsafe_code, reason = "turns offsets into words and bytes")]
pub mod region;
pub mod scale;
#[cfg(not(loom))]
pub mod share;
pub mod signal;
#[cfg(any(test, not(loom)))]
mod slots;
pub mod state;
#[cfg(not(loom))]
pub mod stream;
#[cfg(not(loom))]
pub mod trust;
pub mod wait;

pub use abi::ring;
pub use fault::Fault;
pub use ledger::{ReaderCounts, WriterCounts};

/// The policy that applies when a ring is full. [SL §5.2]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverflowPolicy {
    /// The writer waits for the slowest reader.
    #[default]
    Block = 0,
    /// The newest block is dropped and counted.
    DropNew = 1,
    /// The oldest block is overwritten; a lapped reader counts its losses.
    Overwrite = 2,
}

#[cfg(not(loom))]
impl OverflowPolicy {
    /// Returns the number that stands for this policy in the geometry of a ring.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the policy with this code, or `None` if the code is unknown.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Block),
            1 => Some(Self::DropNew),
            2 => Some(Self::Overwrite),
            _ => None,
        }
    }
}
