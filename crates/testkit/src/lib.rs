//! Streamline testkit.
#![forbid(unsafe_code)]
