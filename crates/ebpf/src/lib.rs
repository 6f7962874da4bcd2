//! Streamline ebpf.
#![forbid(unsafe_code)]
