//! eBPF as data: instructions, assembler, disassembler, interpreter, and the emitter that filters
//! use to say their decision a second time, for the kernel.
//!
//! In: a filter's twin (a function that emits) and a place. Out: a `Program`, bytes that somebody
//! else loads. This crate does no I/O, knows no descriptor and calls no system. It follows
//! [SL §5.3] in running filters in the kernel and departs from it in how: not a compiled module but
//! code generated for one request, its constants baked in.

#![forbid(unsafe_code)]

pub mod asm;
pub mod classic;
pub mod disasm;
pub mod emit;
pub mod exam;
pub mod insn;
pub mod interpret;
mod program;

pub use program::{Counter, Line, MapSpec, Part, Place, Program, Word};
