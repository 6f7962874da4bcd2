//! Arrays: the one kind of map that kernel rings, control pages and counters need.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Attributes, Info, call, command, info_of, name_of, object_name};
use crate::error::{Error, Result};

const ARRAY: u32 = 2;
const MAPPABLE: u32 = 1 << 10;

/// An array map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    value_size: usize,
}

/// What the kernel says about a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// Its kind, 2 for an array.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many values there are.
    pub entries: u32,
    /// As it was created.
    pub flags: u32,
    /// Its name, cut to 15 characters.
    pub name: String,
}

#[repr(C)]
struct CreateAttributes {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner_fd: u32,
    numa_node: u32,
    name: [u8; 16],
}

// SAFETY: eight fields of four-byte alignment in the kernel's order, no padding (1), no address
// (2).
unsafe impl Attributes for CreateAttributes {}

#[repr(C)]
struct ElementAttributes {
    fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

// SAFETY: the fields of the element commands with their padding spelled out (1); the addresses are
// set by `Map::element` alone, to a key and a value of the map's sizes that outlive the call (2).
unsafe impl Attributes for ElementAttributes {}

#[repr(C)]
struct FreezeAttributes {
    fd: u32,
}

// SAFETY: one field (1), no address (2).
unsafe impl Attributes for FreezeAttributes {}

#[derive(Default)]
#[repr(C)]
struct KernelMapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    name: [u8; 16],
}

// SAFETY: the first seven fields of `struct bpf_map_info`, integers only, no padding.
unsafe impl Info for KernelMapInfo {}

impl Map {
    /// An array of `entries` values, all zero. If it is mappable, it can be mapped instead of
    /// asked.
    pub fn array(name: &str, value_size: u32, entries: u32, mappable: bool) -> Result<Self> {
        let mut attr = CreateAttributes {
            kind: ARRAY,
            key_size: 4,
            value_size,
            entries,
            flags: if mappable { MAPPABLE } else { 0 },
            inner_fd: 0,
            numa_node: 0,
            name: object_name(name),
        };
        let fd = call(command::MAP_CREATE, "MAP_CREATE", name, &mut attr)?;
        // SAFETY: MAP_CREATE answers a new descriptor, which belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, name: name.to_owned(), value_size: value_size as usize })
    }

    /// Takes away every way for user space to write, for ever and from everybody, root included:
    /// update is refused, and new mappings are read-only. Programs go on writing (RELIABILITY T19).
    /// Refused while somebody maps it for writing.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = FreezeAttributes { fd: self.fd.as_raw_fd().cast_unsigned() };
        call(command::MAP_FREEZE, "MAP_FREEZE", &self.name, &mut attr).map(drop)
    }

    /// The value of this entry.
    pub fn get(&self, entry: u32) -> Result<Vec<u8>> {
        // The kernel fills whole words of eight bytes only for per-CPU maps; here the size is
        // exact.
        let mut value = vec![0; self.value_size];
        self.element(command::MAP_LOOKUP_ELEM, "MAP_LOOKUP_ELEM", entry, &mut value)?;
        Ok(value)
    }

    /// Sets the value of this entry.
    pub fn set(&self, entry: u32, value: &[u8]) -> Result<()> {
        let mut value = value.to_vec();
        self.element(command::MAP_UPDATE_ELEM, "MAP_UPDATE_ELEM", entry, &mut value)
    }

    /// What the kernel says about it; look before trusting a descriptor that somebody handed over.
    pub fn info(&self) -> Result<MapInfo> {
        let info: KernelMapInfo = info_of(self.fd.as_raw_fd(), &self.name)?;
        let KernelMapInfo { kind, id, key_size, value_size, entries, flags, name } = info;
        Ok(MapInfo { id, kind, key_size, value_size, entries, flags, name: name_of(name) })
    }

    fn element(&self, command: u32, name: &'static str, key: u32, value: &mut [u8]) -> Result<()> {
        if value.len() != self.value_size {
            return Err(Error::new("bpf", format!("{name} of {:?}", self.name), libc::EINVAL));
        }
        let mut attr = ElementAttributes {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            pad: 0,
            key: (&raw const key).expose_provenance() as u64,
            value: value.as_mut_ptr().expose_provenance() as u64,
            flags: 0,
        };
        call(command, name, &self.name, &mut attr).map(drop)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
