//! Ids of all programs, maps and links on this machine.
//!
//! Ids ascend and are reused only after wrapping around. Listing needs CAP_SYS_ADMIN.

use super::{Attributes, call, command};
use crate::error::Result;

/// A kind of kernel object that has an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Programs.
    Programs,
    /// Maps.
    Maps,
    /// Links.
    Links,
}

/// Lists the ids of all objects of a kind, of every process, in ascending order.
pub fn ids(of: ObjectKind) -> Result<Vec<u32>> {
    let (command, name) = match of {
        ObjectKind::Programs => (command::PROG_GET_NEXT_ID, "PROG_GET_NEXT_ID"),
        ObjectKind::Maps => (command::MAP_GET_NEXT_ID, "MAP_GET_NEXT_ID"),
        ObjectKind::Links => (command::LINK_GET_NEXT_ID, "LINK_GET_NEXT_ID"),
    };
    let mut found = Vec::new();
    let mut attr = IdAttributes { id: 0, next: 0, flags: 0 };
    loop {
        match call(command, name, "the list", &mut attr) {
            Ok(_) => found.push(attr.next),
            Err(error) if error.errno == libc::ENOENT => return Ok(found),
            Err(error) => return Err(error),
        }
        attr.id = attr.next;
    }
}

/// `union bpf_attr` of the commands that take an id.
#[repr(C)]
pub(super) struct IdAttributes {
    pub(super) id: u32,
    pub(super) next: u32,
    pub(super) flags: u32,
}

// SAFETY: three fields in the kernel's order, no padding (1), no address (2).
unsafe impl Attributes for IdAttributes {}
