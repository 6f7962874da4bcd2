//! Every figure of the project.
#![forbid(unsafe_code)]

fn main() {}
