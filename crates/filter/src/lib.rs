//! Streamline filter.
#![forbid(unsafe_code)]
