//! The request language: the parser, the syntax tree, the diagnostics, and the printer that formats
//! the tree as text.
//!
//! `parse` returns `(Request, Vec<Diagnostic>)` for any text. It accepts any filter name; the
//! module `check` looks the names up. The parser does no I/O, runs in linear time with bounded
//! recursion, and never panics. [SL §4.2]

pub mod limits;

pub(crate) mod label;
mod lex;
mod nearest;
mod outline;
mod parse;
mod print;

pub mod diagnose;
pub mod fuzz;
pub mod tree;

pub use diagnose::{Diagnostic, Severity, Span, render};
pub use nearest::find_nearest_word;
pub use parse::{parse, parse_and_count_steps};
pub(crate) use print::write_quoted;
pub use tree::Request;
