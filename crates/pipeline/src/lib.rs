//! The translation of a request's text to a plan: the language, the static checks, the graph and
//! the planner.
//!
//! The crate does no I/O and reads no clock. The text, the registry and the machine are passed in
//! as values, so every plan can be tested as text.
#![forbid(unsafe_code)]

pub mod binding;
pub mod language;

pub mod check;
pub mod classes;
pub mod edit;
pub mod explain;
mod format;
pub mod graph;
mod names;
pub mod plan;
pub mod prefix;
mod read;
pub mod registry;
pub mod share;
pub mod translate;
pub mod workers;

pub use check::{check, resolve_output_label};
pub use classes::ClassSet;
pub use graph::Graph;
pub use language::{Diagnostic, Request, parse, render};
pub use names::quoted_word;
pub use read::read_request;
pub use registry::Registry;
pub use share::RingSharing;
