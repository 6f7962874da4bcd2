//! The contract probe: the rules that are expensive to change, tried on the real types.
//!
//! 1. `twin`: `dport` as eBPF answers the same in the interpreter, in the kernel and in user space.
//! 2. `hold`: a reassembler holds out-of-order rich pointers over memory that laps.
//! 3. `fragments`: a message spans five blocks and is consumed without gathering.
//! 4. A statistics filter gets no bytes, by type: the programs in `tests/src/lib.rs` that do not
//!    compile.
//! 5. `edit`: an edit over a fan-out is not seen by the sibling.
//! 6. `state`: plain-data state is saved in one process and goes on in another.
//! 7. `stranger`: a process of another user maps a ring read-only and fails at every way to write.
//! 8. `join`: two branches with batches of 32 come back in input order.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "other processes of a test answer so, and counts are told"
)]

#[path = "../../crates/sys/tests/judge/mod.rs"]
mod judge;
#[path = "../../crates/sys/tests/maps/mod.rs"]
mod maps;

mod edit;
mod fragments;
mod hold;
mod house;
mod join;
mod state;
mod stranger;
mod twin;
