//! The pcap-filter(7) compiler, which turns an expression into a classic BPF program.
//!
//! Input: the text, the link type, and [`Options`]. Output: a [`ClassicProgram`], or an
//! [`ExpressionError`] with the span, the reason and a hint. Stages: `lex` splits the text into
//! tokens, `parse` builds the syntax tree, `generate` turns it into a condition for the link type,
//! `blocks` builds and optimizes a control-flow graph, and `emit` writes instructions.
//!
//! The keywords of Solaris ATM, MTP, PF log and DECnet, and the link types of Solaris ATM and PF
//! log, which libpcap compiles, are errors of kind [`ErrorKind::Unsupported`].
//!
//! This compiler deviates from libpcap in a few points. Address families of loopback headers
//! default to those of every BSD in both byte orders, because a file may come from another machine.
//! Host names are resolved by the [`Resolver`] in the options, ports and protocols by a built-in
//! table. Relations between constants are folded, and an invalid constant shift or division is
//! rejected in any position. Scratch words for offsets are reserved; libpcap reuses them for values
//! if a relation precedes the first use of a variable-length header.

mod ast;
mod condition;
mod control_flow;
mod emit;
mod error;
mod generate;
mod layout;
mod lex;
mod name_queries;
mod nearest_word;
mod options;
mod parse;
mod resolve;
mod token;
mod word_tables;

#[cfg(test)]
mod tests;

use super::link::LinkType;
use super::program::{ClassicProgram, INSTRUCTIONS_MAX};

pub use error::{ErrorKind, ExpressionError};
pub use name_queries::{NameQuery, name_queries};
pub use options::{AddressFamilies, Options, SNAPLEN_DEFAULT};
pub use resolve::{NoResolver, Resolver, Transports};

/// Compiles `text` for frames of type `link`. Does no I/O except through the resolver in the
/// options.
pub fn compile(
    text: &str,
    link: LinkType,
    options: &Options<'_>,
) -> Result<ClassicProgram, ExpressionError> {
    let whole = 0..text.len();
    let error = |kind, what: String, hint: Option<&str>| ExpressionError {
        span: whole.clone(),
        message: what,
        hint: hint.map(str::to_owned),
        kind,
    };
    if options.snaplen == 0 {
        let hint = Some("set a snap length above 0");
        return Err(error(
            ErrorKind::RejectsAll,
            "a snap length of 0 rejects every frame".into(),
            hint,
        ));
    }
    let tree = parse::parse(text)?;
    let condition = generate::generate(tree.as_ref(), link, options)?;
    let mut graph = control_flow::ControlFlowGraph::new(condition);
    if options.optimize {
        graph.optimize();
    }
    if !graph.can_accept() {
        let what = format!("the expression rejects every frame of {link}");
        return Err(error(ErrorKind::RejectsAll, what, None));
    }
    let too_long = |length: usize| {
        let what = format!(
            "the expression needs {length} instructions, a program has at most {INSTRUCTIONS_MAX}"
        );
        error(ErrorKind::Invalid, what, Some("simplify it, or split it into several filters"))
    };
    let instructions = emit::emit_program(&graph, options.snaplen).map_err(too_long)?;
    ClassicProgram::new(instructions).map_err(|invalid| {
        let what = format!("the compiler produced an invalid program: {invalid}");
        error(ErrorKind::Unsupported, what, None)
    })
}
