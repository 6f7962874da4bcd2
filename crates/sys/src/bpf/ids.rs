//! Ids of all programs, maps and links on this machine.
//!
//! Ids ascend and are reused only after wrapping around. Listing needs CAP_SYS_ADMIN.

use super::{call_bpf, command};
use crate::error::Result;

/// A kind of kernel object that has an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Programs that are loaded in the kernel.
    Programs,
    /// BPF maps, which programs and processes share.
    Maps,
    /// Links, which attach programs to hooks.
    Links,
}

/// Lists the ids of all objects of one kind on this machine, whichever process owns them, in
/// ascending order.
pub fn object_ids(of: ObjectKind) -> Result<Vec<u32>> {
    let (command, name) = match of {
        ObjectKind::Programs => (command::PROG_GET_NEXT_ID, "PROG_GET_NEXT_ID"),
        ObjectKind::Maps => (command::MAP_GET_NEXT_ID, "MAP_GET_NEXT_ID"),
        ObjectKind::Links => (command::LINK_GET_NEXT_ID, "LINK_GET_NEXT_ID"),
    };
    let mut found = Vec::new();
    // Fields: the previous id, the next id, the flags.
    let mut attr = [0; 3];
    loop {
        match call_bpf(command, name, "the list", &mut attr) {
            Ok(_) => found.push(attr[1]),
            Err(error) if error.errno == libc::ENOENT => return Ok(found),
            Err(error) => return Err(error),
        }
        attr[0] = attr[1];
    }
}
