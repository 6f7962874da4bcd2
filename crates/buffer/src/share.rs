//! Rings between processes, offered as three sealed descriptors that are validated before the first
//! access. (RELIABILITY T1, T2; CONTRACT 24)
//!
//! ```text
//! geometry   sealed against everything                what both sides must agree on
//! ring       sealed against every new way to write    the writer's page and the data
//! cursor     sealed in its size                       the page that the reader writes
//! ```
//!
//! The writer maps the ring before it seals it, and only then sends descriptors. A reader therefore
//! cannot write to, truncate or punch holes into the ring, even by reopening a descriptor. The
//! reader trusts no descriptor: it queries seals and sizes from the kernel and refuses an offer
//! that does not match the geometry. From then on every position and every record is checked when
//! it is read (`cursor`, `dbuf`).
//!
//! A reader can stall a writer that blocks. Rings between untrusted peers therefore overwrite, or
//! the writer sets a deadline and then disconnects the reader
//! ([`crate::dbuf::BlockWriter::disconnect`], T8). No futex is shared: untrusted peers notify each
//! other through sockets.

use crate::atomic::load_acquire;
use crate::cursor::{POSITION_MAX, ReaderCursor, RingMemory};
use crate::join::{JoinQueue, ReaderConnection, ReaderTicket};
use crate::pages::PageChoice;
use crate::region::Region;
use crate::trust::TrustProof;
use crate::{OverflowPolicy, dbuf, ibuf};
use abi::DbufId;
use abi::ring::{PAGE_SIZE, RecordHeader, RingGeometry, reader, writer};
use segment::OfferedSegment;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::doorbell::SocketDoorbell;
use sys::memory::{Memfd, Seals};
use zerocopy::{FromBytes as _, IntoBytes as _};

mod doorbell_offer;
mod slots;

pub use doorbell_offer::DoorbellOffer;
pub use slots::slot_ring;

/// Creates a ring of blocks for readers in other processes. Returns the writer and an offer per
/// reader.
pub fn block_ring(config: &dbuf::BlockConfig) -> sys::Result<(dbuf::BlockWriter, Vec<RingOffer>)> {
    resizable_block_ring(config, 0)
}

/// Creates a ring like [`block_ring`] whose capacity can change in place up to `extent` bytes. If
/// `extent` is 0, the capacity is fixed. Readers of a resizable ring must trust the writer, which
/// can punch holes into the memory.
pub(crate) fn resizable_block_ring(
    config: &dbuf::BlockConfig,
    extent: usize,
) -> sys::Result<(dbuf::BlockWriter, Vec<RingOffer>)> {
    let mut geometry = block_ring_geometry(config);
    if extent > 0 {
        geometry.extent = geometry.capacity.max(extent.next_power_of_two() as u64);
    }
    let (store, offers) = create_ring(geometry, config.capacity_bytes() as u64, config.policy)?;
    Ok((dbuf::BlockWriter::new(store, config.id), offers))
}

/// Creates a ring of rich pointers for readers in other processes. The dbufs to which the pointers
/// refer must be shared separately. Each entry is an allegation, which readers check before use.
pub fn pointer_ring(
    config: &ibuf::RingConfig,
    id: DbufId,
) -> sys::Result<(ibuf::PointerWriter, Vec<RingOffer>)> {
    let (entries, stride) = (config.entries.max(1).next_power_of_two(), config.columns.stride());
    let bytes = (entries * stride).max(PAGE_SIZE);
    let geometry = ring_geometry(id, bytes, stride, config.policy, config.readers);
    let (store, offers) = create_ring(geometry, (bytes / stride) as u64, config.policy)?;
    Ok((ibuf::PointerWriter::new(store, config.columns), offers))
}

/// The three descriptors that a reader needs to open a ring.
#[derive(Debug)]
pub struct RingOffer {
    geometry: OwnedFd,
    ring: OwnedFd,
    cursor: OwnedFd,
}

/// Creates a ring of blocks that readers join while it runs ([`crate::join`]).
pub(crate) fn joinable_block_ring(
    config: &dbuf::BlockConfig,
) -> sys::Result<(dbuf::BlockWriter, JoinState)> {
    let geometry = ring_geometry(config.id, config.capacity_bytes(), 0, config.policy, 0);
    let files = SharedFiles::create(&geometry)?;
    let readers = Box::default();
    let (capacity, policy) = (config.capacity_bytes() as u64, config.policy);
    let store = RingMemory::new(files.map_and_seal(Seals::READER)?, readers, capacity, policy);
    let current = OfferedSegment { files, geometry, store: store.clone() };
    let mut writer = dbuf::BlockWriter::new(store, config.id);
    let queue = Arc::new(JoinQueue::default());
    writer.cursor_mut().accept_joins_from(queue.clone());
    Ok((writer, JoinState { current: Mutex::new(current), queue }))
}

/// The state that is needed to admit readers to a running ring.
#[derive(Debug)]
pub(crate) struct JoinState {
    /// Current segment of the ring. Locked while a reader joins and while the ring continues in
    /// another segment, so that a joining reader receives every later segment.
    current: Mutex<OfferedSegment>,
    pub(crate) queue: Arc<JoinQueue>,
}

impl JoinState {
    /// Admits a reader with this doorbell. Returns its ticket and offer, or `None` if the writer
    /// has exited.
    pub(crate) fn admit(
        &self,
        doorbell: SocketDoorbell,
    ) -> sys::Result<Option<(ReaderTicket, RingOffer)>> {
        let current = self.lock_current_segment();
        let (cursor, page) = current.files.create_reader_page()?;
        let published = || load_acquire(current.store.writer.word(writer::COMMITTED_POSITION));
        let contact = ReaderConnection { doorbell, page: duplicate(&cursor)? };
        let ticket = self.queue.join(Arc::new(page), Some(contact), published);
        ticket.map(|ticket| Ok((ticket, current.files.create_offer(cursor)?))).transpose()
    }

    /// Locks and returns the current segment; no reader can join while the guard lives.
    pub(crate) fn lock_current_segment(&self) -> MutexGuard<'_, OfferedSegment> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RingOffer {
    /// Returns the descriptors in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.geometry.as_fd(), self.ring.as_fd(), self.cursor.as_fd()]
    }

    /// Wraps received descriptors, unchecked. Fails with [`OfferRefusal::Descriptors`] unless there
    /// are three.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Result<Self, OfferRefusal> {
        let count = descriptors.len();
        let [geometry, ring, cursor] =
            <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| OfferRefusal::Descriptors(count))?;
        Ok(Self { geometry, ring, cursor })
    }

    /// Returns a proof that the creator of the ring can be trusted ([`TrustProof`]), or `None` if
    /// it cannot.
    pub(crate) fn creator_trust(&self) -> Option<TrustProof> {
        TrustProof::for_file_creator(&self.ring)
    }

    /// Validates the descriptors and opens a ring of blocks.
    pub fn open_block_reader(self) -> Result<dbuf::ForeignBlockReader, OfferRefusal> {
        Ok(self.open_block_reader_with_seals(Seals::READER)?.0)
    }

    /// Validates the descriptors, requiring at least these seals, and opens a ring of blocks. Also
    /// returns the geometry of the ring.
    pub(crate) fn open_block_reader_with_seals(
        self,
        seals: Seals,
    ) -> Result<(dbuf::ForeignBlockReader, RingGeometry), OfferRefusal> {
        let (geometry, policy) = read_geometry(&self.geometry, RingGeometry::MAGIC)?;
        if geometry.stride != 0 {
            return Err(OfferRefusal::Geometry(geometry));
        }
        let (store, start) = self.attach(&geometry, geometry.capacity, policy, seals)?;
        Ok((dbuf::ForeignBlockReader::new(ReaderCursor::starting_at(store, 0, start)), geometry))
    }

    /// Validates the descriptors and opens a ring of rich pointers.
    pub fn open_pointer_reader(self) -> Result<ibuf::PointerReader, OfferRefusal> {
        let (geometry, policy) = read_geometry(&self.geometry, RingGeometry::MAGIC)?;
        let lanes = match geometry.stride {
            16 => ibuf::EntryColumns::Pointer,
            32 => ibuf::EntryColumns::Metadata,
            64 => ibuf::EntryColumns::Marks,
            _ => return Err(OfferRefusal::Geometry(geometry)),
        };
        let entries = geometry.capacity / u64::from(geometry.stride);
        let (store, start) = self.attach(&geometry, entries, policy, Seals::READER)?;
        Ok(ibuf::PointerReader::new(ReaderCursor::starting_at(store, 0, start), lanes))
    }

    /// Maps the ring read-only and the reader's page writable. Fails if the size or the seals of
    /// either file do not match the geometry, or if the start position is invalid. Also returns the
    /// start position.
    fn attach(
        &self,
        geometry: &RingGeometry,
        capacity: u64,
        policy: OverflowPolicy,
        seals: Seals,
    ) -> Result<(Arc<RingMemory>, u64), OfferRefusal> {
        let writer = map_ring(&self.ring, geometry, seals)?;
        let cursor = check_file(&self.cursor, "cursor", Seals::SIZE, PAGE_SIZE)?;
        let page = Region::mapped(cursor.map()?);
        let start = load_acquire(page.word(reader::RELEASED_POSITION));
        if start > POSITION_MAX
            || (geometry.stride == 0 && !start.is_multiple_of(RecordHeader::SIZE as u64))
        {
            return Err(OfferRefusal::Start(start));
        }
        Ok((RingMemory::new(writer, Box::new([Arc::new(page)]), capacity, policy), start))
    }
}

/// Maximum capacity in bytes of a ring that a reader maps: well below the 44-bit window of
/// positions in an extent.
const CAPACITY_MAX: u64 = 1 << 40;

/// Reason why an offer was refused. At most the geometry and the start position of a refused offer
/// have been read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OfferRefusal {
    /// The message has the wrong number of descriptors, or is malformed. Contains the number of
    /// descriptors received.
    #[error("malformed message for a ring, with {0} descriptors")]
    Descriptors(usize),
    /// A descriptor lacks required seals: its owner could truncate or change the file.
    #[error("the {file} of the ring lacks required seals ({seals:?})")]
    Unsealed {
        /// Name of the file that the descriptor refers to: geometry, ring, or reader's page.
        file: &'static str,
        /// Seals that the descriptor has.
        seals: Seals,
    },
    /// The size of a file is wrong. The file of a ring must have the size in the geometry.
    #[error("the {file} of the ring has {is} bytes instead of {expected}")]
    Size {
        /// Name of the file: geometry, ring, reader's page, shared region, or table of a state.
        file: &'static str,
        /// Actual size of the file in bytes.
        is: usize,
        /// Size that the file should have, in bytes.
        expected: usize,
    },
    /// The geometry in the offer is invalid, or belongs to another kind of ring. Contains the
    /// geometry.
    #[error("invalid geometry of a ring: {0:?}")]
    Geometry(RingGeometry),
    /// The start position in the reader's page is invalid. Contains the position.
    #[error("invalid start position of a reader: {0}")]
    Start(u64),
    /// The next segment does not continue the ring at the end of the last segment. Contains the
    /// geometry of the next segment.
    #[error("the segment does not continue where the last one ended: {0:?}")]
    Segment(RingGeometry),
    /// The kernel refused a call, for example because it does not support seals.
    #[error("{0}")]
    System(#[from] sys::Error),
}

/// Returns the geometry for a ring of blocks with this configuration.
pub(crate) fn block_ring_geometry(config: &dbuf::BlockConfig) -> RingGeometry {
    ring_geometry(config.id, config.capacity_bytes(), 0, config.policy, config.readers)
}

fn ring_geometry(
    id: DbufId,
    bytes: usize,
    stride: usize,
    policy: OverflowPolicy,
    readers: usize,
) -> RingGeometry {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    RingGeometry {
        magic: RingGeometry::MAGIC,
        capacity: bytes as u64,
        id: id.number(),
        stride: small(stride),
        policy: policy.code(),
        readers: small(readers),
        segment: 0,
        start: 0,
        extent: 0,
    }
}

/// Creates, maps and seals a ring, and then creates the offers.
fn create_ring(
    geometry: RingGeometry,
    capacity: u64,
    policy: OverflowPolicy,
) -> sys::Result<(Arc<RingMemory>, Vec<RingOffer>)> {
    let files = SharedFiles::create(&geometry)?;
    // A writer that punches holes needs a ring without the write seal.
    let is_cut = geometry.extent > 0;
    let writer = files.map_and_seal(if is_cut { Seals::SIZE } else { Seals::READER })?;
    files.create_offers(writer, geometry.readers, capacity, policy)
}

/// The files that all readers of a ring share.
#[derive(Debug)]
struct SharedFiles {
    geometry: Memfd,
    ring: Memfd,
    /// Number of bytes at the start of the ring's file that are allocated before the offer is sent:
    /// the writer's page and the data area at its current capacity.
    used: usize,
}

impl SharedFiles {
    /// Creates the files for the geometry and for the ring, and seals the geometry.
    fn create(geometry: &RingGeometry) -> sys::Result<Self> {
        let bytes = usize::try_from(geometry.capacity.max(geometry.extent)).unwrap_or(usize::MAX);
        let ring = Memfd::create("streamline-ring", bytes.saturating_add(PAGE_SIZE))?;
        // Memory beyond the present capacity is not allocated.
        let used =
            usize::try_from(geometry.capacity).unwrap_or(usize::MAX).saturating_add(PAGE_SIZE);
        Ok(Self { geometry: create_geometry_file(geometry)?, ring, used })
    }

    /// Maps the ring for its writer, allocates its pages on the writer's node, and seals the file
    /// with `seals`.
    fn map_and_seal(&self, seals: Seals) -> sys::Result<Region> {
        let mapping = self.ring.map()?;
        PageChoice::for_this_machine(self.used).prepare(&self.ring, &mapping, self.used)?;
        self.ring.seal(seals)?;
        Ok(Region::mapped(mapping))
    }

    /// Creates and maps the page of a reader. The writer may store into this page only before it
    /// sends the offer.
    fn create_reader_page(&self) -> sys::Result<(Memfd, Region)> {
        let cursor = Memfd::create("streamline-cursor", PAGE_SIZE)?;
        cursor.allocate(0, PAGE_SIZE)?;
        let page = Region::mapped(cursor.map()?);
        cursor.seal(Seals::SIZE)?;
        Ok((cursor, page))
    }

    /// Creates a page and an offer for each reader.
    fn create_offers(
        &self,
        writer: Region,
        readers: u32,
        capacity: u64,
        policy: OverflowPolicy,
    ) -> sys::Result<(Arc<RingMemory>, Vec<RingOffer>)> {
        let (mut pages, mut offers) = (Vec::new(), Vec::new());
        for _ in 0..readers {
            let (cursor, page) = self.create_reader_page()?;
            pages.push(Arc::new(page));
            offers.push(self.create_offer(cursor)?);
        }
        Ok((RingMemory::new(writer, pages.into(), capacity, policy), offers))
    }

    fn create_offer(&self, cursor: Memfd) -> sys::Result<RingOffer> {
        let (geometry, ring) = (duplicate(&self.geometry)?, duplicate(&self.ring)?);
        Ok(RingOffer { geometry, ring, cursor: cursor.into() })
    }
}

/// Creates a sealed file that contains a geometry. Writes the file without mapping it: a process
/// forked in the meantime would inherit the mapping until it executes another program, and a file
/// with a writable mapping cannot be sealed against writes.
fn create_geometry_file(geometry: &RingGeometry) -> sys::Result<Memfd> {
    let file = File::from(OwnedFd::from(Memfd::create("streamline-geometry", PAGE_SIZE)?));
    file.write_all_at(geometry.as_bytes(), 0)
        .map_err(|why| sys::Error::new("pwrite", "a geometry", why.raw_os_error().unwrap_or(0)))?;
    let file = Memfd::from_fd(OwnedFd::from(file))?;
    file.seal(Seals::FROZEN)?;
    Ok(file)
}

fn duplicate(file: &impl AsFd) -> sys::Result<OwnedFd> {
    let failed = |e: std::io::Error| e.raw_os_error().unwrap_or(0);
    let copy = file.as_fd().try_clone_to_owned();
    copy.map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", failed(e)))
}

/// Reads a sealed geometry. Returns the geometry and its policy. Fails unless the geometry has this
/// magic number and valid dimensions.
fn read_geometry(
    geometry: &OwnedFd,
    magic: u64,
) -> Result<(RingGeometry, OverflowPolicy), OfferRefusal> {
    let file = check_file(geometry, "geometry", Seals::FROZEN, PAGE_SIZE)?;
    let mapping = Region::read_only(file.map_read()?);
    let mut bytes = [0; size_of::<RingGeometry>()];
    crate::foreign_memory::copy_out(mapping.words(), 0, &mut bytes);
    let geometry = RingGeometry::read_from_bytes(&bytes).unwrap_or_default();
    let policy =
        OverflowPolicy::from_code(geometry.policy).ok_or(OfferRefusal::Geometry(geometry))?;
    let capacity = geometry.capacity;
    let plausible = geometry.magic == magic
        && capacity.is_power_of_two()
        && (PAGE_SIZE as u64..=CAPACITY_MAX).contains(&capacity)
        && (geometry.extent == 0
            || (capacity..=CAPACITY_MAX).contains(&geometry.extent)
                && policy != OverflowPolicy::Overwrite);
    if plausible { Ok((geometry, policy)) } else { Err(OfferRefusal::Geometry(geometry)) }
}

/// Maps a ring read-only. Fails unless the file has the size in the geometry and at least these
/// seals. With [`Seals::READER`], the seals that a reader requires of an untrusted writer, also
/// fails if the capacity of the ring can change in place.
fn map_ring(file: &OwnedFd, geometry: &RingGeometry, seals: Seals) -> Result<Region, OfferRefusal> {
    // A ring that changes capacity is read only by readers that trust its writer.
    if seals == Seals::READER && geometry.extent > 0 {
        return Err(OfferRefusal::Geometry(*geometry));
    }
    let bytes = usize::try_from(geometry.capacity.max(geometry.extent)).unwrap_or(usize::MAX);
    let ring = check_file(file, "ring", seals, bytes.saturating_add(PAGE_SIZE))?;
    Ok(Region::read_only(ring.map_read()?))
}

/// Returns a received file after checking it. Fails unless the file has at least these seals and
/// exactly this size.
fn check_file(
    fd: &OwnedFd,
    part: &'static str,
    seals: Seals,
    size: usize,
) -> Result<Memfd, OfferRefusal> {
    let file = Memfd::from_fd(duplicate(fd)?)?;
    let on = file.seals()?;
    if !on.contains(seals) {
        return Err(OfferRefusal::Unsealed { file: part, seals: on });
    }
    // The size was read before the seals; it is final only now, so it is read again.
    let file = Memfd::from_fd(file.into())?;
    if file.len() != size {
        return Err(OfferRefusal::Size { file: part, is: file.len(), expected: size });
    }
    Ok(file)
}

pub(crate) mod segment;

#[cfg(test)]
mod tests;
