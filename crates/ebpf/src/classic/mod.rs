//! Classic BPF as data, and a compiler for the entire pcap-filter(7) language.
//!
//! Input: an expression and the link type of the frames. Output: a [`ClassicProgram`], which user
//! space runs with [`ClassicProgram::run`], which [`kernel`] turns into a socket filter, and which
//! prints like `tcpdump -d`. The module does no I/O; the caller's [`Resolver`] resolves host names.
//! The language, the tests that a program makes and their order are those of libpcap, checked
//! against libpcap's own test suite. The code is original. [SL §4.2, §5.2: classic filters as
//! peers]
//!
//! Not supported: loading a `protochain` program, whose loop the kernel rejects; Juniper link types
//! beyond what libpcap parses; name lookups.

mod assemble;
mod cooked;
pub mod expression;
pub mod insn;
pub mod kernel;
mod link;
mod listing;
mod numeric_form;
mod program;
mod run;

pub use cooked::{CookedError, cooked_layout, rewrite_for_ethernet};
pub use expression::{
    AddressFamilies, ErrorKind, ExpressionError, NameQuery, NoResolver, Options, Resolver,
    Transports, compile, name_queries,
};
pub use insn::Instruction;
pub use link::LinkType;
pub use listing::ListingError;
pub use numeric_form::{is_numeric_program, parse_numeric_program, write_numeric_program};
pub use program::{ClassicProgram, INSTRUCTIONS_MAX, InvalidProgram, MEMORY_WORDS};
pub use run::{BACKWARD_JUMPS_MAX, ClassicMetadata, VlanTag};
