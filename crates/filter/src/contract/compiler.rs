//! Who compiles a pcap-filter expression that our own compiler does not know (CONTRACT 27).
//!
//! A service that comes with a filter's arguments: to find another compiler is input and output,
//! and this crate does none. What hands it in is the catalogue against which a request is checked,
//! so that `check`, `explain` and the run ask the same one; the engine's is libpcap.

use ebpf::classic::{ClassicProgram, LinkType};
use std::fmt;

/// A compiler of pcap-filter(7) expressions besides our own.
pub trait Compiler: fmt::Debug + Send + Sync {
    /// What `explain` calls it.
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
