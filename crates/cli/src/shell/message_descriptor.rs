//! A descriptor to which preloaded libraries write messages for the user.

use abi::edge::INHERITED_DESCRIPTOR_MIN;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;

/// Passes a duplicate of this process's standard error to a program and its children. The preloaded
/// libraries write their messages to this descriptor. Returns the duplicate, which must stay open
/// until the program has started. Returns `None` if standard error is closed, or if no descriptor
/// number is free.
pub(super) fn pass_stderr_duplicate(command: &mut Command) -> Option<OwnedFd> {
    let copy =
        sys::children::duplicate_inheritable(std::io::stderr().as_fd(), INHERITED_DESCRIPTOR_MIN)
            .ok()?;
    let inode = sys::preload::inode(copy.as_raw_fd())?;
    command.env(sys::preload::message::MESSAGES_VARIABLE, format!("{}:{inode}", copy.as_raw_fd()));
    Some(copy)
}
