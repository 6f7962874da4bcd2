//! The pcap-filter(7) compiler: from an expression to a classic BPF program.
//!
//! In: the text, the link type, and [`Options`]; out: a [`Program`] or an [`ExpressionError`] with
//! the place, what is wrong there and what to do. The way: `lex` cuts tokens, `parse` reads the
//! tree, `generate` makes conditions from it for the link type, `blocks` makes a graph and shortens
//! it, `emit` writes instructions.
//!
//! Deviations from libpcap. Because a file may come from another machine than this one, names of PF
//! reasons and actions are known on every system, and the address families of loopback and PF log
//! headers are, unless told otherwise, those of every BSD and in both byte orders. Names of hosts
//! are asked of the [`Resolver`] of the options; ports and protocols have a table of their own.
//! Relations between constants fold at once, `shift` and `/` by a constant out of range is refused
//! wherever it stands, and scratch words that hold places are never lent to values, which in
//! libpcap happens where a relation stands before the first use of a moving header.

mod ast;
mod blocks;
mod condition;
mod emit;
mod generate;
mod layout;
mod lex;
mod names;
mod nearest;
mod parse;
mod questions;
mod resolve;
mod token;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use super::link::LinkType;
use super::program::{INSTRUCTIONS_MAX, Program};

pub use questions::{Question, questions};
pub use resolve::{Refuse, Resolver, Transports};

/// How many bytes are kept of an accepted frame if nothing else is said (libpcap's maximum).
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// What a compilation depends on besides text and link type.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// What the program answers for an accepted frame.
    pub snaplen: u32,
    /// Whether to shorten the program.
    pub optimize: bool,
    /// Who knows names.
    pub resolver: &'a dyn Resolver,
    /// Whether the program will see what the kernel knows about a frame: a VLAN tag that it took
    /// out of it, the interface, the direction. True on live Linux sockets, false for files.
    pub live_metadata: bool,
    /// The mask of the network that the frames come from, for `ip broadcast`.
    pub netmask: Option<u32>,
    /// The address families in the headers of loopback and PF log link types.
    pub families: Families,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            snaplen: SNAPLEN_DEFAULT,
            optimize: true,
            resolver: &Refuse,
            live_metadata: false,
            netmask: None,
            families: Families::Any,
        }
    }
}

/// How a loopback or PF log header numbers IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// As any BSD does, in any byte order: right for files.
    Any,
    /// As one system does.
    Exactly {
        /// Its number for IPv4.
        inet: u32,
        /// Its number for IPv6.
        inet6: u32,
        /// Whether it writes the numbers of [`LinkType::NULL`] with the first byte highest.
        big_endian: bool,
    },
}

/// Why an expression has no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Where in the text, in bytes.
    pub span: Range<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do, where there is something better than reading the manual.
    pub hint: Option<String>,
    /// Whose fault it is.
    pub kind: ErrorKind,
}

/// Whose fault an [`ExpressionError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text's: no compiler would take it.
    Mistake,
    /// This compiler's: another one may know more.
    Unknown,
    /// Nobody's: the text is well formed, and no frame of this link type can ever match it.
    RejectsAll,
}

/// Compiles `text` for frames of type `link`.
pub fn compile(
    text: &str,
    link: LinkType,
    options: &Options<'_>,
) -> Result<Program, ExpressionError> {
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
    Program::new(instructions).map_err(|invalid| {
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
