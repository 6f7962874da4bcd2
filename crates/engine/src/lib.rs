//! Streamline engine.
#![forbid(unsafe_code)]
