//! Classic BPF as data, and a compiler of the whole pcap-filter(7) language into it.
//!
//! In: an expression and the link type of the frames; out: a [`Program`] that user space runs with
//! [`Program::run`], that [`kernel`] makes a socket filter of, and that prints as `tcpdump -d`
//! prints it. Nothing here does input or output: a host name is asked of a [`Resolver`] that the
//! caller gives. The language, the questions that a program asks and their order are libpcap's,
//! judged by libpcap's own test set; the code is not.     [SL §4.2, §5.2: classic filters as peers]
//!
//! What is absent: `protochain` makes a program with a loop, which the kernel refuses; bodies of
//! Juniper link types beyond what libpcap reads; looking up names.

pub mod expression;
pub mod insn;
pub mod kernel;
mod lines;
mod link;
mod listing;
mod program;
mod run;

pub use expression::{
    ErrorKind, ExpressionError, Families, Options, Question, Refuse, Resolver, Transports, compile,
    questions,
};
pub use insn::Instruction;
pub use link::LinkType;
pub use listing::ListingError;
pub use program::{INSTRUCTIONS_MAX, Invalid, MEMORY_WORDS, Program};
pub use run::{Metadata, ROUNDS_MAX, VlanTag};
