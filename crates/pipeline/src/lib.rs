//! Text to plan. So far: the language, from a request's text to its tree and its mistakes.
//!
//! This crate does no I/O and knows no clock: the text, the catalogue and the machine are values that
//! are handed in.
#![forbid(unsafe_code)]

pub mod language;
