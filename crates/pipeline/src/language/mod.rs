//! The language: from the text of a request to its tree and all its mistakes, and back to text.
//!
//! Text comes in; `(Request, Vec<Diagnostic>)` goes out. Nothing here knows which filters exist:
//! that is the business of `check`. No I/O, no clock, linear time, bounded recursion, no panic on
//! any text. The modules are listed in the order in which a text meets them. [SL §4.2]

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
pub use nearest::nearest;
pub use parse::{parse, parse_counted};
pub(crate) use print::write_quoted;
pub use tree::Request;
