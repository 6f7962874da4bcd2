//! Streamline pipeline.
#![forbid(unsafe_code)]
