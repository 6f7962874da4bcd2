//! Verbs of the house.
#![forbid(unsafe_code)]

fn main() {}
