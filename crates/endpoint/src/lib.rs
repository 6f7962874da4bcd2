//! Streamline endpoint.
#![forbid(unsafe_code)]
