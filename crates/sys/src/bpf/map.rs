//! Maps: data shared by programs and processes.
//!
//! Values come out as bytes, never as references, because programs and other processes write them.
//! Element commands are in `element`. A mapped array is a [`ReadMapping`], the only kind that a
//! frozen map allows.

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
/// BPF_F_RDONLY: user space cannot modify the map through this descriptor.
const READ_ONLY: u32 = 1 << 3;

/// Map types (BPF_MAP_TYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Hash table.
    Hash = 1,
    /// Array; every index exists.
    Array = 2,
    /// Programs by index, for tail calls.
    Programs = 3,
    /// Hash table with one value per CPU.
    PerCpuHash = 5,
    /// Array with one value per CPU.
    PerCpuArray = 6,
    /// Hash table that evicts the least recently used key when full.
    LruHash = 9,
    /// As [`MapKind::LruHash`], with one value per CPU.
    LruPerCpuHash = 10,
    /// Longest-prefix-match trie.
    Prefixes = 11,
    /// Array of maps.
    Maps = 12,
    /// Devices by index, for XDP redirect.
    Devices = 14,
    /// AF_XDP sockets by index, for XDP redirect.
    XdpSockets = 17,
    /// Ordered records from programs to user space.
    RingBuffer = 27,
    /// Pages at the same addresses for programs and processes.
    Arena = 33,
}

impl MapKind {
    /// Returns true if the map holds one value per CPU.
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

/// Parameters of a new map.
#[derive(Clone, Copy, Debug)]
pub struct Specification<'a> {
    /// Name for messages; the kernel keeps 15 characters.
    pub name: &'a str,
    /// Map type.
    pub kind: MapKind,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Capacity in elements; for a ring buffer, in bytes.
    pub entries: u32,
    /// Makes an array mappable (BPF_F_MMAPABLE).
    pub mappable: bool,
    /// BTF and the types of key and value; needed for timers in values.
    pub types: Option<(&'a Btf, u32, u32)>,
}

/// A map, by descriptor.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    entries: u32,
}

/// A map as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// Map id.
    pub id: u32,
    /// Map type (BPF_MAP_TYPE_*).
    pub kind: u32,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Capacity.
    pub entries: u32,
    /// Creation flags.
    pub flags: u32,
    /// Name, truncated to 15 characters.
    pub name: String,
}

impl Map {
    /// Creates a map.
    pub fn create(wanted: &Specification<'_>) -> Result<Self> {
        Self::create_around(wanted, 0)
    }

    /// Creates a one-element array of maps whose element is like `inner`.
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
        let mut attr = MapCreateAttributes {
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

    /// Creates a zeroed array. A mappable one can be accessed by [`Map::map`].
    pub fn array(name: &str, value_size: u32, entries: u32, mappable: bool) -> Result<Self> {
        let kind = MapKind::Array;
        let array =
            Specification { name, kind, key_size: 4, value_size, entries, mappable, types: None };
        Self::create(&array)
    }

    /// Creates a zeroed array with one value per CPU.
    pub fn per_cpu_array(name: &str, value_size: u32, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::PerCpuArray, 4, value_size, entries)
    }

    /// Creates a keyed map of type `kind`.
    pub fn table(
        name: &str,
        kind: MapKind,
        key_size: u32,
        value_size: u32,
        entries: u32,
    ) -> Result<Self> {
        Self::plain(name, kind, key_size, value_size, entries)
    }

    /// Creates an array of programs of one type, for tail calls.
    pub fn programs(name: &str, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::Programs, 4, 4, entries)
    }

    /// Creates an array of AF_XDP sockets, for XDP redirect.
    pub fn xdp_sockets(name: &str, entries: u32) -> Result<Self> {
        Self::plain(name, MapKind::XdpSockets, 4, 4, entries)
    }

    /// Adopts a map from a received descriptor; its type and sizes come from the kernel.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        let info: KernelMapInfo = info_of(fd.as_raw_fd(), "a received map")?;
        let name = name_of(info.name);
        let kind = MapKind::from_number(info.kind).ok_or_else(|| {
            Error::new("bpf", format!("map {name:?} of unknown kind {}", info.kind), libc::EINVAL)
        })?;
        let (key_size, value_size) = (info.key_size as usize, info.value_size as usize);
        Ok(Self { fd, name, kind, key_size, value_size, entries: info.entries })
    }

    /// Opens a descriptor that cannot modify the map, to hand to others. It can be polled and read
    /// by key but not mapped; for mapping, hand over the map frozen.
    ///
    /// Needs CAP_SYS_ADMIN.
    pub fn read_only(&self) -> Result<OwnedFd> {
        let mut attr = IdAttributes { id: self.info()?.id, next: 0, flags: READ_ONLY };
        open(command::MAP_GET_FD_BY_ID, "MAP_GET_FD_BY_ID", &self.name, &mut attr)
    }

    /// Forbids writes from user space for good, for every process including root: updates fail and
    /// new mappings are read-only. Programs keep writing (RELIABILITY T19).
    ///
    /// EBUSY: a writable mapping exists.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = FreezeAttributes { fd: self.fd.as_raw_fd().cast_unsigned() };
        call(command::MAP_FREEZE, "MAP_FREEZE", &self.name, &mut attr).map(drop)
    }

    /// Returns true if the map is frozen. To be checked before a received map is trusted.
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

    /// Queries the kernel about the map. To be checked before a received map is trusted.
    pub fn info(&self) -> Result<MapInfo> {
        let info: KernelMapInfo = info_of(self.fd.as_raw_fd(), &self.name)?;
        let KernelMapInfo { kind, id, key_size, value_size, entries, flags, name } = info;
        Ok(MapInfo { id, kind, key_size, value_size, entries, flags, name: name_of(name) })
    }

    /// Returns the map type.
    #[must_use]
    pub const fn kind(&self) -> MapKind {
        self.kind
    }

    /// Returns the size of the array's mapping: values at multiples of eight, rounded up to pages.
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
struct MapCreateAttributes {
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
unsafe impl Attributes for MapCreateAttributes {}

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
