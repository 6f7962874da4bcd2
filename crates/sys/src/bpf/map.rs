//! Maps: what programs and processes keep together.
//!
//! In: a [`Specification`]. Out: a descriptor, and by key what is there. Everything that comes out
//! was written by somebody else: bytes, never references. The commands about elements are in
//! `element`; a map that is mapped gives a [`ReadMapping`], and only that once it is frozen.

mod element;

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

pub use element::UpdateMode;

use super::ids::IdAttributes;
use super::{Attributes, Btf, Info, call, command, info_of, name_of, object_name, open};
use crate::error::{Error, Result};
use crate::memory::{Mapping, ReadMapping};

/// BPF_F_NO_PREALLOC, BPF_F_MMAPABLE
const NO_PREALLOC: u32 = 1;
const MAPPABLE: u32 = 1 << 10;
/// BPF_F_RDONLY: no way to change the map leads through this descriptor.
const READ_ONLY: u32 = 1 << 3;

/// Kinds of maps, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Values by key.
    Hash = 1,
    /// Values by number, all of them there.
    Array = 2,
    /// Programs by number, for tail calls.
    Programs = 3,
    /// Values by key, one for each CPU.
    PerCpuHash = 5,
    /// Values by number, one for each CPU.
    PerCpuArray = 6,
    /// Values by key; the one that was not used for longest makes room.
    LruHash = 9,
    /// As [`MapKind::LruHash`], one value for each CPU.
    LruPerCpuHash = 10,
    /// Values by the longest prefix of the key.
    Prefixes = 11,
    /// Maps by number.
    Maps = 12,
    /// Interfaces by number, to redirect to.
    Devices = 14,
    /// Sockets of AF_XDP by number, to redirect to.
    XdpSockets = 17,
    /// Records in order, from programs to a process.
    RingBuffer = 27,
    /// Memory in pages, in which programs and processes use the same addresses.
    Arena = 33,
}

impl MapKind {
    /// Whether there is one value for each CPU.
    #[must_use]
    pub const fn per_cpu(self) -> bool {
        matches!(self, Self::PerCpuHash | Self::PerCpuArray | Self::LruPerCpuHash)
    }

    const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Hash,
            2 => Self::Array,
            3 => Self::Programs,
            5 => Self::PerCpuHash,
            6 => Self::PerCpuArray,
            9 => Self::LruHash,
            10 => Self::LruPerCpuHash,
            11 => Self::Prefixes,
            12 => Self::Maps,
            14 => Self::Devices,
            17 => Self::XdpSockets,
            27 => Self::RingBuffer,
            33 => Self::Arena,
            _ => return None,
        })
    }
}

/// A map to be made.
#[derive(Clone, Copy, Debug)]
pub struct Specification<'a> {
    /// For people and messages; the kernel keeps 15 characters.
    pub name: &'a str,
    /// What it is.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many there can be; of a ring buffer its bytes.
    pub entries: u32,
    /// Whether an array can be mapped instead of asked.
    pub mappable: bool,
    /// The types of key and value, by their numbers; for timers in values.
    pub types: Option<(&'a Btf, u32, u32)>,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    entries: u32,
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

impl Map {
    /// Makes a map.
    pub fn create(wanted: &Specification<'_>) -> Result<Self> {
        Self::create_around(wanted, 0)
    }

    /// An array of one map like this one.
    pub(super) fn around(inner: &Self, name: &str) -> Result<Self> {
        let (kind, key_size, value_size, entries) = (MapKind::Maps, 4, 4, 1);
        let (mappable, types) = (false, None);
        let wanted = Specification { name, kind, key_size, value_size, entries, mappable, types };
        Self::create_around(&wanted, inner.fd.as_raw_fd().cast_unsigned())
    }

    fn create_around(wanted: &Specification<'_>, inner_fd: u32) -> Result<Self> {
        let Specification { name, kind, key_size, value_size, entries, mappable, types } = *wanted;
        let prefixes = if kind == MapKind::Prefixes { NO_PREALLOC } else { 0 };
        let (btf, key_type, value_type) = match types {
            Some((btf, key, value)) => (btf.as_fd().as_raw_fd().cast_unsigned(), key, value),
            None => (0, 0, 0),
        };
        let mut attr = CreateAttributes {
            kind: kind as u32,
            key_size,
            value_size,
            entries,
            flags: prefixes | if mappable { MAPPABLE } else { 0 },
            inner_fd,
            numa_node: 0,
            name: object_name(name),
            interface: 0,
            btf,
            key_type,
            value_type,
        };
        let fd = open(command::MAP_CREATE, "MAP_CREATE", name, &mut attr)?;
        let (key_size, value_size) = (key_size as usize, value_size as usize);
        Ok(Self { fd, name: name.to_owned(), kind, key_size, value_size, entries })
    }

    /// An array of `entries` values, all zero. If it is mappable, it can be mapped instead of
    /// asked.
    pub fn array(name: &str, value_size: u32, entries: u32, mappable: bool) -> Result<Self> {
        let kind = MapKind::Array;
        let array =
            Specification { name, kind, key_size: 4, value_size, entries, mappable, types: None };
        Self::create(&array)
    }

    /// As [`Map::array`], with as many arrays as there can be CPUs.
    pub fn per_cpu_array(name: &str, value_size: u32, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::PerCpuArray, 4, value_size, entries)
    }

    /// Values by key; `kind` says which kind of table.
    pub fn table(
        name: &str,
        kind: MapKind,
        key_size: u32,
        value_size: u32,
        entries: u32,
    ) -> Result<Self> {
        Self::plain(name, kind, key_size, value_size, entries)
    }

    /// Places for programs of one kind, to which another can go on by a tail call.
    pub fn programs(name: &str, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::Programs, 4, 4, entries)
    }

    /// Places for sockets of AF_XDP, to which an XDP program can redirect.
    pub fn xdp_sockets(name: &str, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::XdpSockets, 4, 4, entries)
    }

    /// Takes a map that somebody handed over. What it is, the kernel says.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        let info: KernelMapInfo = info_of(fd.as_raw_fd(), "a received map")?;
        let name = name_of(info.name);
        let kind = MapKind::from_number(info.kind).ok_or_else(|| {
            Error::new("bpf", format!("map {name:?} of unknown kind {}", info.kind), libc::EINVAL)
        })?;
        let (key_size, value_size) = (info.key_size as usize, info.value_size as usize);
        Ok(Self { fd, name, kind, key_size, value_size, entries: info.entries })
    }

    /// A descriptor by which nobody can change the map, to be handed to others. It can be waited
    /// for and read by key, but not mapped: for that the map itself is frozen and handed over.
    /// Needs CAP_SYS_ADMIN.
    pub fn read_only(&self) -> Result<OwnedFd> {
        let mut attr = IdAttributes { id: self.info()?.id, next: 0, flags: READ_ONLY };
        open(command::MAP_GET_FD_BY_ID, "MAP_GET_FD_BY_ID", &self.name, &mut attr)
    }

    /// Takes away every way for user space to write, for ever and from everybody, root included:
    /// update is refused, and new mappings are read-only. Programs go on writing (RELIABILITY T19).
    /// Refused while somebody maps it for writing.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = FreezeAttributes { fd: self.fd.as_raw_fd().cast_unsigned() };
        call(command::MAP_FREEZE, "MAP_FREEZE", &self.name, &mut attr).map(drop)
    }

    /// Whether it is frozen: look before trusting a map that somebody handed over.
    pub fn is_frozen(&self) -> Result<bool> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let text = fs::read_to_string(&path)
            .map_err(|error| Error::new("open", path, error.raw_os_error().unwrap_or(0)))?;
        let mut words = text.lines().filter_map(|line| line.strip_prefix("frozen:"));
        Ok(words.next().is_some_and(|word| word.trim() == "1"))
    }

    /// Maps a mappable array for reading and writing.
    pub fn map(&self) -> Result<Mapping> {
        Mapping::shared(self.fd.as_fd(), self.bytes()?, &self.name)
    }

    /// Maps a mappable array for reading.
    pub fn map_read(&self) -> Result<ReadMapping> {
        ReadMapping::shared(self.fd.as_fd(), 0, self.bytes()?, &self.name)
    }

    /// What the kernel says about it; look before trusting a descriptor that somebody handed over.
    pub fn info(&self) -> Result<MapInfo> {
        let info: KernelMapInfo = info_of(self.fd.as_raw_fd(), &self.name)?;
        let KernelMapInfo { kind, id, key_size, value_size, entries, flags, name } = info;
        Ok(MapInfo { id, kind, key_size, value_size, entries, flags, name: name_of(name) })
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> MapKind {
        self.kind
    }

    /// Bytes of a mappable array as it is mapped: whole pages of values at multiples of eight.
    fn bytes(&self) -> Result<usize> {
        let page = rustix::param::page_size();
        let all = self.value_size.next_multiple_of(8).checked_mul(self.entries as usize);
        let all = all.filter(|_| self.kind == MapKind::Array);
        all.and_then(|all| all.checked_next_multiple_of(page)).ok_or_else(|| {
            Error::new("mmap", format!("map {:?} of kind {:?}", self.name, self.kind), libc::EINVAL)
        })
    }

    fn plain(
        name: &str,
        kind: MapKind,
        key_size: u32,
        value_size: u32,
        entries: u32,
    ) -> Result<Self> {
        let mappable = false;
        Self::create(&Specification {
            name,
            kind,
            key_size,
            value_size,
            entries,
            mappable,
            types: None,
        })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
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
    interface: u32,
    btf: u32,
    key_type: u32,
    value_type: u32,
}

// SAFETY: twelve fields of four-byte alignment in the kernel's order, no padding (1), no address
// (2).
unsafe impl Attributes for CreateAttributes {}

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
