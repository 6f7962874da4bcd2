//! Where bytes rest.
#![deny(unsafe_code)]
