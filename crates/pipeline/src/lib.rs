//! Text to plan: the language, the static rules, the graph that the planner places.
//!
//! This crate does no I/O and knows no clock: the text, the catalogue and the machine are values
//! that are handed in.
#![forbid(unsafe_code)]

pub mod keep;
pub mod language;

pub mod catalogue;
pub mod check;
pub mod classes;
pub mod edit;
pub mod engines;
pub mod explain;
pub mod graph;
pub mod habits;
pub mod plan;
pub mod share;

pub use catalogue::Catalogue;
pub use check::{check, read};
pub use classes::ClassSet;
pub use graph::Graph;
pub use language::{Diagnostic, Request, parse, render};
pub use share::Share;
