//! The only foreign calls of the house: memory, futex, descriptors, signals, clocks, processes,
//! interfaces and their packets, bpf(2).
//!
//! Every other crate is free of libc. What comes back from here is owned (a descriptor, a mapping)
//! and is given back on drop; what fails is an [`Error`] that names the call, its target and what
//! to do. There is one operation in each unsafe block, with the promise of the manual page that it
//! relies on.

pub mod bpf;
pub mod children;
pub mod clock;
pub mod confine;
pub mod descriptor;
pub mod doorbell;
mod error;
pub mod eventfd;
pub mod file;
pub mod futex;
pub mod process_group;
pub mod helper;
pub mod libpcap;
pub mod local_socket;
pub mod machine;
pub mod memory;
#[cfg(feature = "testing")]
pub mod hostile_syscalls;
pub mod abstract_socket;
pub mod name_service;
pub mod net;
pub mod raw_fd;
pub mod open;
pub mod packet;
pub mod pages;
pub mod pipe;
pub mod poll;
pub mod preload;
pub mod privilege;
pub mod probe;
pub mod process;
pub mod replace;
pub mod revoke;
pub mod service;
pub mod signal;
pub mod steps;
pub mod task;
pub mod usage;
pub mod watcher;
pub mod xdp;

pub use error::{Error, Result};
