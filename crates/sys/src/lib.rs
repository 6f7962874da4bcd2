//! All foreign calls of the workspace: memory, futexes, descriptors, signals, clocks, processes,
//! network interfaces, packet sockets, bpf(2).
//!
//! No other crate of the product uses `libc`. Results are owned values, which release their
//! resources on drop. An [`Error`] names the call, its target and a remedy. Each unsafe block
//! contains one operation, and states the promise of the manual page on which it relies.

pub mod abstract_socket;
pub mod bpf;
pub mod children;
pub mod clock;
pub mod closed_streams;
pub mod confine;
pub mod descriptor;
pub mod descriptor_closer;
pub mod doorbell;
mod error;
pub mod eventfd;
pub mod file;
pub mod fuse;
pub mod futex;
pub mod helper;
pub mod holders;
#[cfg(feature = "testing")]
pub mod hostile_syscalls;
pub mod lazy_copy;
pub mod libpcap;
pub mod local_socket;
pub mod machine;
pub mod membarrier;
pub mod memory;
pub mod name_service;
pub mod net;
pub mod open;
pub mod packet;
pub mod pages;
pub mod pipe;
pub mod poll;
pub mod preload;
pub mod privilege;
pub mod probe;
pub mod process;
pub mod process_group;
pub mod raw_fd;
pub mod replace;
pub mod rollback;
pub mod service;
pub mod signal;
mod signal_table;
pub mod task;
pub mod timer;
pub mod usage;
pub mod watcher;
pub mod xdp;

pub use error::{Error, Result};
