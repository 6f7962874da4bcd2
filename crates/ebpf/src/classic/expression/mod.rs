//! The pcap-filter(7) compiler: from an expression to a classic BPF program.
//!
//! In: the text, the link type, and [`Options`]. Out: a [`ClassicProgram`], or an
//! [`ExpressionError`] with the span, the reason and a hint. Stages: `lex` splits tokens, `parse`
//! builds the tree, `generate` makes a condition for the link type, `blocks` builds and optimizes a
//! graph, `emit` writes instructions.
//!
//! Words and frames of Solaris ATM, MTP, PF log and DECnet addresses are [`ErrorKind::Unknown`]:
//! libpcap compiles them.
//!
//! Deviations from libpcap. Because a file may come from another machine, address families of
//! loopback headers default to those of every BSD in both byte orders. Host names go to the
//! [`Resolver`] of the options; ports and protocols have a built-in table. Relations between
//! constants fold at once, an invalid constant shift or division is rejected wherever it stands,
//! and scratch words for offsets are never reused for values, which libpcap does where a relation
//! precedes the first use of a variable-length header.

mod ast;
mod blocks;
mod condition;
mod emit;
mod generate;
mod layout;
mod lex;
mod name_queries;
mod names;
mod nearest;
mod parse;
mod resolve;
mod token;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use super::link::LinkType;
use super::program::{ClassicProgram, INSTRUCTIONS_MAX};

pub use name_queries::{NameQuery, name_queries};
pub use resolve::{NoResolver, Resolver, Transports};

/// Bytes kept of an accepted frame by default (libpcap's maximum).
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Parameters of a compilation besides text and link type.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Return value of the program for an accepted frame.
    pub snaplen: u32,
    /// True to optimize the program.
    pub optimize: bool,
    /// Resolver of names.
    pub resolver: &'a dyn Resolver,
    /// True if the program will see kernel metadata: a removed VLAN tag, the interface, the
    /// direction. True on live Linux sockets, false for files.
    pub live_metadata: bool,
    /// Mask of the captured network, for `ip broadcast`.
    pub netmask: Option<u32>,
    /// Address families in loopback headers.
    pub families: AddressFamilies,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            snaplen: SNAPLEN_DEFAULT,
            optimize: true,
            resolver: &NoResolver,
            live_metadata: false,
            netmask: None,
            families: AddressFamilies::Any,
        }
    }
}

/// The address family numbers of IPv4 and IPv6 in loopback headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamilies {
    /// Those of any BSD, in any byte order: right for files.
    Any,
    /// Those of one system.
    Exactly {
        /// Number of IPv4.
        inet: u32,
        /// Number of IPv6.
        inet6: u32,
        /// True if the numbers of [`LinkType::NULL`] are big-endian.
        big_endian: bool,
    },
}

/// An expression that does not compile, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Span in the text, in bytes.
    pub span: Range<usize>,
    /// Description of the error.
    pub what: String,
    /// Suggested correction, if any.
    pub hint: Option<String>,
    /// Category of the error.
    pub kind: ErrorKind,
}

/// The category of an [`ExpressionError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Invalid text.
    Mistake,
    /// Valid text that this compiler does not support.
    Unknown,
    /// Valid text that no frame of this link type can match.
    RejectsAll,
}

/// Compiles `text` for frames of type `link`.
pub fn compile(
    text: &str,
    link: LinkType,
    options: &Options<'_>,
) -> Result<ClassicProgram, ExpressionError> {
    let whole = 0..text.len();
    let error = |kind, what: String, hint: Option<&str>| ExpressionError {
        span: whole.clone(),
        what,
        hint: hint.map(str::to_owned),
        kind,
    };
    if options.snaplen == 0 {
        let hint = Some("give a snap length above 0");
        return Err(error(
            ErrorKind::RejectsAll,
            "a snap length of 0 rejects every frame".into(),
            hint,
        ));
    }
    let tree = parse::parse(text)?;
    let condition = generate::generate(tree.as_ref(), link, options)?;
    let mut graph = blocks::Graph::new(condition);
    if options.optimize {
        graph.optimize();
    }
    if !graph.accepts() {
        let what = format!("the expression rejects every frame of {link}");
        return Err(error(ErrorKind::RejectsAll, what, None));
    }
    let too_long = |length: usize| {
        let what = format!(
            "the expression needs {length} instructions, a program has at most {INSTRUCTIONS_MAX}"
        );
        error(ErrorKind::Mistake, what, Some("ask for less, or split it into several filters"))
    };
    let instructions = emit::emit(&graph, options.snaplen).map_err(too_long)?;
    ClassicProgram::new(instructions).map_err(|invalid| {
        let what = format!("the compiler made {invalid}");
        error(ErrorKind::Unknown, what, None)
    })
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}: {hint}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for ExpressionError {}
