//! Fixtures for tests with two processes: a second process, blocks whose content depends on their
//! number, and waits with a time limit.
//!
//! The second process runs the same executable under the user `nobody`. Its standard input is a
//! socket that carries messages and descriptors. The tests need root to start a process of another
//! user. Each test file has a test `run_other_process`, which the second process runs in its
//! [`child_role`].
//!
//! No wait here is unbounded: a hang becomes a failure that reports its location ([`patience`]).

#![allow(dead_code, unused_imports, reason = "no test file needs all of it")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod blocks;
mod other_process;
pub(crate) mod ring_memory;
mod streams;
pub(crate) mod watchdog;

pub(crate) use blocks::{
    BLOCK_LENGTH_MAX, BlockSource, WriteBlocks, digest, fill_block, read_and_check_blocks,
    read_to_fault, write,
};
pub(crate) use other_process::{OtherUserProcess, child_role, receive, report, send};
pub(crate) use streams::{check_published_blocks_survive_kill, receive_stream, send_offer};
pub(crate) use watchdog::{TestThread, spawn_test_thread, wait_until, with_watchdog};

/// Returns the dbuf id `number`.
pub(crate) fn dbuf_id(number: u32) -> abi::DbufId {
    abi::DbufId::new(number).unwrap()
}

/// Blocks until this process is killed, and does not drop the argument before that.
pub(crate) fn wait_to_be_killed<T>(_kept: T) -> ! {
    loop {
        std::thread::park();
    }
}
