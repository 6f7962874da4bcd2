//! Compiler service for pcap-filter expressions that our own compiler does not know (CONTRACT 27).
//!
//! The service comes with a filter's arguments: to find another compiler is I/O, and this crate
//! does none. The catalog against which a request is checked hands it in, so that `check`,
//! `explain` and the run ask the same one; the engine's is libpcap.

use ebpf::classic::{ClassicProgram, LinkType};
use std::fmt;

/// A compiler of pcap-filter(7) expressions besides our own.
pub trait Compiler: fmt::Debug + Send + Sync {
    /// Returns its name in `explain`.
    fn name(&self) -> String;

    /// The program that accepts `snaplen` bytes of the frames of this link type for which the
    /// expression holds, or why there is none. It is asked seldom, at most once for an expression
    /// and a link type, and may then take the time that loading a library takes.
    fn compile(
        &self,
        expression: &str,
        link: LinkType,
        snaplen: u32,
    ) -> Result<ClassicProgram, String>;
}
