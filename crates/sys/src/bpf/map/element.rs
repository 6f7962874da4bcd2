//! Access to elements by key, singly and in batches.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::super::{Attributes, Program, call, command};
use super::Map;
use crate::error::{Error, Result};
use std::os::fd::AsFd as _;

/// Elements fetched per batch call, at first.
const BATCH: usize = 1024;

/// Condition for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateMode {
    /// Create or replace (BPF_ANY).
    Any = 0,
    /// Create only (BPF_NOEXIST). EEXIST: the key exists.
    NoExist = 1,
    /// Replace only (BPF_EXIST). ENOENT: the key does not exist.
    Exist = 2,
}

impl Map {
    /// Returns an element of an array.
    pub fn get(&self, entry: u32) -> Result<Vec<u8>> {
        self.lookup(&entry.to_ne_bytes())?
            .ok_or_else(|| self.mistake("no such entry", libc::ENOENT))
    }

    /// Sets an element of an array.
    pub fn set(&self, entry: u32, value: &[u8]) -> Result<()> {
        self.update(&entry.to_ne_bytes(), value, UpdateMode::Any)
    }

    /// Returns an element of an array for each possible CPU; one value if the map is not per-CPU.
    pub fn get_each(&self, entry: u32) -> Result<Vec<Vec<u8>>> {
        let all = self.get(entry)?;
        if !self.kind.per_cpu() {
            return Ok(vec![all]);
        }
        let one = self.value_size.next_multiple_of(8).max(8);
        Ok(all
            .chunks(one)
            .map(|value| value[..self.value_size.min(value.len())].to_vec())
            .collect())
    }

    /// Returns the value of a key, or `None`. A per-CPU map returns all CPUs' values, each padded
    /// to a multiple of eight bytes.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.whole_value()?];
        match self.element(command::MAP_LOOKUP_ELEM, "MAP_LOOKUP_ELEM", key, &mut value, 0) {
            Ok(()) => Ok(Some(value)),
            Err(Error { errno: libc::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value of a key.
    pub fn update(&self, key: &[u8], value: &[u8], when: UpdateMode) -> Result<()> {
        if value.len() != self.whole_value()? {
            return Err(self.mistake("a value of another size", libc::EINVAL));
        }
        let mut value = value.to_vec();
        let flags = when as u64;
        self.element(command::MAP_UPDATE_ELEM, "MAP_UPDATE_ELEM", key, &mut value, flags)
    }

    /// Removes a key and returns whether it existed.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        match self.element(command::MAP_DELETE_ELEM, "MAP_DELETE_ELEM", key, &mut [], 0) {
            Ok(()) => Ok(true),
            Err(Error { errno: libc::ENOENT, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the key after `key`, or the first. If `key` was removed concurrently, iteration
    /// restarts.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        if key.is_some_and(|key| key.len() != self.key_size) {
            return Err(self.mistake("a key of another size", libc::EINVAL));
        }
        let mut next = vec![0_u8; self.key_size];
        let mut attr = ElementAttributes {
            fd: self.number(),
            pad: 0,
            key: key.map_or(0, |key| key.as_ptr().expose_provenance() as u64),
            value: next.as_mut_ptr().expose_provenance() as u64,
            flags: 0,
        };
        match call(command::MAP_GET_NEXT_KEY, "MAP_GET_NEXT_KEY", &self.name, &mut attr) {
            Ok(_) => Ok(Some(next)),
            Err(Error { errno: libc::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns all elements, fetched in batches. Concurrent changes may or may not be included.
    pub fn all(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let whole = self.whole_value()?;
        // The kernel's iteration cursor: at most a key or a word.
        let mut place = vec![0_u8; self.key_size.max(8)];
        let mut found = Vec::new();
        let (mut first, mut room) = (true, BATCH);
        loop {
            let mut keys = vec![0_u8; self.key_size * room];
            let mut values = vec![0_u8; whole * room];
            let here = place.as_mut_ptr().expose_provenance() as u64;
            let mut attr = BatchAttributes {
                from: if first { 0 } else { here },
                to: here,
                keys: keys.as_mut_ptr().expose_provenance() as u64,
                values: values.as_mut_ptr().expose_provenance() as u64,
                count: u32::try_from(room).unwrap_or(0),
                fd: self.number(),
                element_flags: 0,
                flags: 0,
            };
            let done = call(command::MAP_LOOKUP_BATCH, "MAP_LOOKUP_BATCH", &self.name, &mut attr);
            let last = match done {
                Ok(_) => false,
                Err(Error { errno: libc::ENOENT, .. }) => true,
                // A hash bucket holds more elements than the batch.
                Err(Error { errno: libc::ENOSPC, .. }) if room < self.entries as usize => {
                    room *= 2;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let count = room.min(attr.count as usize);
            let pairs = keys.chunks(self.key_size).zip(values.chunks(whole)).take(count);
            found.extend(pairs.map(|(key, value)| (key.to_vec(), value.to_vec())));
            if last {
                return Ok(found);
            }
            first = false;
        }
    }

    /// Stores a program in a program array.
    pub fn set_program(&self, entry: u32, program: &Program) -> Result<()> {
        self.set_descriptor(entry, program.as_fd())
    }

    /// Stores the object behind a descriptor (program, socket) in an array.
    pub fn set_descriptor(&self, entry: u32, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.set(entry, &descriptor.as_raw_fd().to_ne_bytes())
    }

    fn number(&self) -> u32 {
        self.fd.as_raw_fd().cast_unsigned()
    }

    fn mistake(&self, what: &str, errno: i32) -> Error {
        Error::new("bpf", format!("{what} of map {:?}", self.name), errno)
    }

    /// Returns the size of a value as commands transfer it.
    fn whole_value(&self) -> Result<usize> {
        if self.kind.per_cpu() {
            Ok(self.value_size.next_multiple_of(8) * crate::machine::possible_processors()?)
        } else {
            Ok(self.value_size)
        }
    }

    fn element(
        &self,
        command: u32,
        name: &'static str,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<()> {
        if key.len() != self.key_size {
            return Err(self.mistake("a key of another size", libc::EINVAL));
        }
        let mut attr = ElementAttributes {
            fd: self.number(),
            pad: 0,
            key: key.as_ptr().expose_provenance() as u64,
            value: if value.is_empty() { 0 } else { value.as_mut_ptr().expose_provenance() as u64 },
            flags,
        };
        call(command, name, &self.name, &mut attr).map(drop)
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
// set by `element` and `next_key` alone, to a key and a value of the map's sizes that outlive the
// call (2).
unsafe impl Attributes for ElementAttributes {}

#[repr(C)]
struct BatchAttributes {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    fd: u32,
    element_flags: u64,
    flags: u64,
}

// SAFETY: the fields of the batch commands, no padding (1); the addresses are set by `all` alone,
// to a place of at least a key and a word, and to `count` keys and values, all of which outlive the
// call (2).
unsafe impl Attributes for BatchAttributes {}
