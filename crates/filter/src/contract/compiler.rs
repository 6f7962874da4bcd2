//! Interface to a compiler for pcap-filter expressions that the built-in compiler rejects (CONTRACT
//! 27).
//!
//! Loading a compiler is I/O, which filters must not do, so the compiler is passed in with a
//! filter's arguments. The registry provides it, so that `check`, `explain` and the run use the
//! same compiler. The engine provides libpcap.

use ebpf::classic::{ClassicProgram, LinkType};
use std::fmt;

/// A service that compiles pcap-filter(7) expressions.
pub trait ExpressionCompiler: fmt::Debug + Send + Sync {
    /// Returns the name of the compiler, which `explain` prints.
    fn name(&self) -> String;

    /// Compiles an expression into a program that accepts up to `snaplen` bytes of each matching
    /// frame. Called at most once per expression and link type. May block while it loads a library.
    ///
    /// # Errors
    ///
    /// Fails with the compiler's message.
    fn compile(
        &self,
        expression: &str,
        link: LinkType,
        snaplen: u32,
    ) -> Result<ClassicProgram, String>;
}
