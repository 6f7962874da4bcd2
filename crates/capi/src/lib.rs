//! libstreamline: the Unix file interface of streams, and requests that run beside the program, for
//! C. [SL §5.1], FEATURES A19, D9, D10
//!
//! In: numbers and pointers of a C program. Out: what the calls of `buffer` do, as numbers and
//! `errno`. `export` is the only file with unsafe code: it checks what can be checked of a pointer,
//! makes a slice of it, and calls one safe function of `calls`. `run` opens requests by the library
//! `streamline`. `table` knows which number is which end; numbers are copies of descriptors, so
//! that closing one by mistake harms nobody else.
//!
//! The header `include/streamline.h` is made by cbindgen out of `export` and committed; a test
//! compares the two.
#![deny(unsafe_code)]

mod calls;
mod config;
mod end;
#[expect(unsafe_code, reason = "the border to C: numbers and pointers become slices here")]
#[expect(clippy::missing_safety_doc, reason = "what a C program promises stands in the header")]
mod export;
mod failure;
mod run;
mod state;
mod table;

pub use config::streamline_config;
pub use export::*;
