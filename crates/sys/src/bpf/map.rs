//! BPF maps: data shared between programs and processes.
//!
//! Values are copied out, never borrowed, because programs and other processes write them. The
//! submodule `element` accesses single elements. [`Map::map_read`] maps an array read-only, the
//! only mapping that a frozen map allows.

mod element;

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::{
    Attributes, KernelInfo, call_bpf, command, decode_object_name, encode_object_name, open_object,
    query_object_info,
};
use crate::error::{Error, ErrorContext as _, Result};
use crate::memory::{Mapping, ReadMapping};

/// BPF_F_MMAPABLE: user space can map the array into memory.
const BPF_F_MMAPABLE: u32 = 1 << 10;
/// BPF_F_RDONLY: user space cannot modify the map through this descriptor.
const BPF_F_RDONLY: u32 = 1 << 3;

/// Map types (BPF_MAP_TYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// An array. Every index below the capacity has a value, initially zero.
    Array = 2,
    /// An array of programs by index, for tail calls.
    Programs = 3,
    /// An array of maps by index.
    Maps = 12,
    /// An array of AF_XDP sockets by index, for XDP redirect.
    XdpSockets = 17,
    /// A ring of ordered records from programs to user space.
    RingBuffer = 27,
}

impl MapKind {
    fn from_number(number: u32) -> Option<Self> {
        let kinds = [Self::Array, Self::Programs, Self::Maps, Self::XdpSockets, Self::RingBuffer];
        kinds.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// Parameters with which a BPF map is created.
#[derive(Clone, Copy, Debug)]
pub struct MapSpecification<'a> {
    /// Name for diagnostics. The kernel stores the first 15 characters.
    pub name: &'a str,
    /// Map type.
    pub kind: MapKind,
    /// Size of a key in bytes: 4 for arrays, 0 for a ring buffer.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Capacity in elements. For a ring buffer, its size in bytes.
    pub entries: u32,
    /// True to create an array that can be mapped into memory (BPF_F_MMAPABLE).
    pub mappable: bool,
}

impl<'a> MapSpecification<'a> {
    /// Creates the parameters of a map whose keys and values have four bytes each.
    pub(super) const fn with_u32_elements(name: &'a str, kind: MapKind, entries: u32) -> Self {
        Self { name, kind, key_size: 4, value_size: 4, entries, mappable: false }
    }
}

/// A map, owned through its descriptor.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    entries: u32,
}

/// Information about a map, as reported by the kernel.
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
    /// Capacity in elements, or in bytes for a ring buffer.
    pub entries: u32,
    /// Flags with which the map was created (BPF_F_*).
    pub flags: u32,
    /// Name of the map, truncated to 15 characters.
    pub name: String,
}

impl Map {
    /// Creates a BPF map with these parameters.
    pub fn create(wanted: &MapSpecification<'_>) -> Result<Self> {
        Self::create_with_inner(wanted, 0)
    }

    /// Creates an array of maps with a single element. The element is empty and accepts a map of
    /// the same type and sizes as `inner`.
    pub(super) fn create_array_of_maps(inner: &Self, name: &str) -> Result<Self> {
        let wanted = MapSpecification::with_u32_elements(name, MapKind::Maps, 1);
        Self::create_with_inner(&wanted, inner.fd.as_raw_fd().cast_unsigned())
    }

    fn create_with_inner(wanted: &MapSpecification<'_>, inner_fd: u32) -> Result<Self> {
        let MapSpecification { name, kind, key_size, value_size, entries, mappable } = *wanted;
        let mut attr = MapCreateAttributes {
            kind: kind as u32,
            key_size,
            value_size,
            entries,
            flags: if mappable { BPF_F_MMAPABLE } else { 0 },
            inner_fd,
            numa_node: 0,
            name: encode_object_name(name),
        };
        let fd = open_object(command::MAP_CREATE, "MAP_CREATE", name, &mut attr)?;
        let (key_size, value_size) = (key_size as usize, value_size as usize);
        Ok(Self { fd, name: name.to_owned(), kind, key_size, value_size, entries })
    }

    /// Creates a zeroed array. [`Map::map`] can map the array if `mappable` is true.
    pub fn array(name: &str, value_size: u32, entries: u32, mappable: bool) -> Result<Self> {
        let words = MapSpecification::with_u32_elements(name, MapKind::Array, entries);
        Self::create(&MapSpecification { value_size, mappable, ..words })
    }

    /// Creates an array of programs of one type, for tail calls.
    pub fn create_program_array(name: &str, entries: u32) -> Result<Self> {
        Self::create(&MapSpecification::with_u32_elements(name, MapKind::Programs, entries))
    }

    /// Creates an array of `entries` AF_XDP sockets, to which XDP programs redirect frames.
    pub fn create_xdp_socket_array(name: &str, entries: u32) -> Result<Self> {
        Self::create(&MapSpecification::with_u32_elements(name, MapKind::XdpSockets, entries))
    }

    /// Adopts a map from a received descriptor. The kernel reports the map's type and sizes. Fails
    /// with EINVAL if [`MapKind`] lacks the type.
    pub fn from_received(fd: OwnedFd) -> Result<Self> {
        let info: KernelMapInfo = query_object_info(fd.as_raw_fd(), "a received map")?;
        let name = decode_object_name(info.name);
        let kind = MapKind::from_number(info.kind).ok_or_else(|| {
            Error::new("bpf", format!("map {name:?} of unknown kind {}", info.kind), libc::EINVAL)
        })?;
        let (key_size, value_size) = (info.key_size as usize, info.value_size as usize);
        Ok(Self { fd, name, kind, key_size, value_size, entries: info.entries })
    }

    /// Opens the map with this id, whichever process created it. Needs CAP_SYS_ADMIN.
    pub fn open_by_id(id: u32) -> Result<Self> {
        let target = format!("map {id}");
        let mut attr = [id, 0, 0];
        let fd = open_object(command::MAP_GET_FD_BY_ID, "MAP_GET_FD_BY_ID", &target, &mut attr)?;
        Self::from_received(fd)
    }

    /// Opens a second descriptor that cannot modify the map, for another process. The recipient can
    /// poll the map and read it by key, but cannot map it into memory. To permit mapping, freeze
    /// the map and pass the original descriptor instead.
    ///
    /// Needs CAP_SYS_ADMIN.
    pub fn open_read_only(&self) -> Result<OwnedFd> {
        let mut attr = [self.info()?.id, 0, BPF_F_RDONLY];
        open_object(command::MAP_GET_FD_BY_ID, "MAP_GET_FD_BY_ID", &self.name, &mut attr)
    }

    /// Forbids writes from user space permanently, for every process including root: updates fail
    /// and new mappings are read-only. Programs can still write (RELIABILITY T19).
    ///
    /// Fails with EBUSY if a writable mapping exists.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = [self.fd.as_raw_fd().cast_unsigned()];
        call_bpf(command::MAP_FREEZE, "MAP_FREEZE", &self.name, &mut attr).map(drop)
    }

    /// Returns true if the map is frozen. The receiver of a map checks this before trusting it.
    pub fn is_frozen(&self) -> Result<bool> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let text = fs::read_to_string(&path).context("open", path)?;
        let mut words = text.lines().filter_map(|line| line.strip_prefix("frozen:"));
        Ok(words.next().is_some_and(|word| word.trim() == "1"))
    }

    /// Maps a mappable array for reading and writing.
    pub fn map(&self) -> Result<Mapping> {
        Mapping::shared(self.fd.as_fd(), self.mapping_size()?, &self.name)
    }

    /// Maps a mappable array for reading.
    pub fn map_read(&self) -> Result<ReadMapping> {
        ReadMapping::shared(self.fd.as_fd(), 0, self.mapping_size()?, &self.name)
    }

    /// Queries the kernel for the map's type, sizes, flags and name. The receiver of a map checks
    /// them before it trusts the map.
    pub fn info(&self) -> Result<MapInfo> {
        let info: KernelMapInfo = query_object_info(self.fd.as_raw_fd(), &self.name)?;
        let KernelMapInfo { kind, id, key_size, value_size, entries, flags, name } = info;
        Ok(MapInfo {
            id,
            kind,
            key_size,
            value_size,
            entries,
            flags,
            name: decode_object_name(name),
        })
    }

    /// Returns the map type.
    #[must_use]
    pub const fn kind(&self) -> MapKind {
        self.kind
    }

    /// Returns the size in bytes of a mapping of the array. Each value is padded to a multiple of
    /// eight bytes, and the total to whole pages.
    fn mapping_size(&self) -> Result<usize> {
        let page = rustix::param::page_size();
        let all = self.value_size.next_multiple_of(8).checked_mul(self.entries as usize);
        let all = all.filter(|_| self.kind == MapKind::Array);
        all.and_then(|all| all.checked_next_multiple_of(page)).ok_or_else(|| {
            Error::new("mmap", format!("map {:?} of kind {:?}", self.name, self.kind), libc::EINVAL)
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
}

// SAFETY: eight fields of four-byte alignment in the kernel's order, no padding (1), no address
// (2).
unsafe impl Attributes for MapCreateAttributes {}

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
unsafe impl KernelInfo for KernelMapInfo {}
