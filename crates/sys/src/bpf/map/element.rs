//! Access to the elements of BPF array maps.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::super::{Attributes, call_bpf, command};
use super::Map;
use crate::error::{Error, Result};

impl Map {
    /// Returns the value of an array element. Fails with ENOENT if the index is out of range, or if
    /// the element of an array of programs or maps is empty. Fails with EOPNOTSUPP for an array of
    /// sockets, whose elements cannot be read.
    pub fn get(&self, entry: u32) -> Result<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        self.call_element_command(command::MAP_LOOKUP_ELEM, "MAP_LOOKUP_ELEM", entry, &mut value)?;
        Ok(value)
    }

    /// Sets an array element. Fails with EINVAL if the length of `value` is not the map's value
    /// size.
    pub fn set(&self, entry: u32, value: &[u8]) -> Result<()> {
        self.call_element_command(
            command::MAP_UPDATE_ELEM,
            "MAP_UPDATE_ELEM",
            entry,
            &mut value.to_vec(),
        )
    }

    /// Empties an element of an array of programs, maps or sockets. Does nothing if the element is
    /// already empty.
    pub fn clear(&self, entry: u32) -> Result<()> {
        match self.call_element_command(command::MAP_DELETE_ELEM, "MAP_DELETE_ELEM", entry, &mut [])
        {
            Err(Error { errno: libc::ENOENT, .. }) => Ok(()),
            done => done,
        }
    }

    /// Stores a program or socket, given by its descriptor, in element `entry` of an array.
    pub fn set_descriptor(&self, entry: u32, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.set(entry, &descriptor.as_raw_fd().to_ne_bytes())
    }

    fn call_element_command(
        &self,
        command: u32,
        name: &'static str,
        entry: u32,
        value: &mut [u8],
    ) -> Result<()> {
        let size = if command == command::MAP_DELETE_ELEM { 0 } else { self.value_size };
        if self.key_size != size_of::<u32>() || value.len() != size {
            let what = format!("an index or value of another size in map {:?}", self.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        let mut attr = ElementAttributes {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            pad: 0,
            key: (&raw const entry).expose_provenance() as u64,
            // The kernel refuses a deletion (EINVAL) whose unused fields are not zero.
            value: if value.is_empty() { 0 } else { value.as_mut_ptr().expose_provenance() as u64 },
            flags: 0,
        };
        call_bpf(command, name, &self.name, &mut attr).map(drop)
    }
}

#[repr(C)]
struct ElementAttributes {
    fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

// SAFETY: the fields of the element commands with their padding spelled out (1); the addresses are
// set by `call_element_command` alone, to a key and a value of the map's sizes that outlive the
// call (2).
unsafe impl Attributes for ElementAttributes {}
