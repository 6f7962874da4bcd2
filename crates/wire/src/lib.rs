//! Streamline wire.
#![forbid(unsafe_code)]
