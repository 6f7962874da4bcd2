//! The contract probe: tests of the rules that are expensive to change, with the real types.
//!
//! Each file is one numbered probe. Probe 4, that a statistics filter gets no bytes, consists of
//! the programs in `tests/src/lib.rs` that must not compile.
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

mod catalog_fixture;
mod edit;
mod fragments;
mod hold;
mod join;
mod state;
mod twin;
mod untrusted_peer;
