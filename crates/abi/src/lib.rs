//! Bytes on which two spaces must agree.
#![no_std]
#![forbid(unsafe_code)]
