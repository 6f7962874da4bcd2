//! eBPF as data: instructions, assembler, disassembler, interpreter, and the emitter with which a
//! filter's kernel twin generates its program.
//!
//! Input: a twin (a function that emits code) and a hook. Output: a [`Program`], which the caller
//! relocates and loads. The crate does no I/O and makes no system call. Like [SL §5.3], it runs
//! filters in the kernel; but instead of loading compiled modules, it generates code for each
//! request, with the constants of the request.

#![forbid(unsafe_code)]

pub mod asm;
pub mod classic;
pub mod disasm;
pub mod emit;
pub mod exam;
pub mod insn;
pub mod interpret;
mod program;

pub use program::{CodeOwner, Counter, FilterSpan, Hook, MapSpec, Program, TailProgram};
