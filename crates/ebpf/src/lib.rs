//! eBPF as data: instructions, assembler, disassembler, interpreter, and the emitter with which a
//! filter's kernel twin generates its program.
//!
//! Input: a twin (a function that emits) and a hook. Output: a [`Program`], which the caller
//! relocates and loads. The crate does no I/O and makes no system call. It follows [SL §5.3] in
//! running filters in the kernel, but generates code for each request, with the constants of the
//! request, instead of loading compiled modules.

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
