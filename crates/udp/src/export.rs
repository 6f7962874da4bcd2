//! The exported functions. Each has the name and the semantics of a C library function, and
//! forwards every call that concerns no promoted socket to that function.
//!
//! Invariants, cited below:
//! - I1, I2 of [`sys::preload::interpose`].
//! - U1 A program that passes a buffer, an address, a message or an array promises that the memory
//!   may be read or written during the call, as it does to the kernel. (A wrong pointer causes a
//!   signal instead of `EFAULT`.)

use std::ffi::{c_int, c_uint, c_void};
use sys::preload::interpose::IoVec;

pub mod descriptors;
pub mod epoll;
mod epoll_nudge;
mod kernel;
pub mod messages;
pub mod poll_and_select;
mod receiving;
mod ring_events;
mod wait_limit;

/// A message header, laid out as `struct msghdr` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    name: *mut c_void,
    name_length: c_uint,
    pieces: *mut IoVec,
    piece_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

/// A message header and a received length, laid out as `struct mmsghdr` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage {
    message: Message,
    length: c_uint,
}
