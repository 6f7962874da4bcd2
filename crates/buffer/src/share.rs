//! Rings between processes: three sealed descriptors, checked before the first access.
//! (RELIABILITY T1, T2; CONTRACT 24)
//!
//! ```text
//! geometry   sealed against everything                what both sides must agree on
//! ring       sealed against every new way to write    the writer's page and the data
//! cursor     sealed in its size                       the page that the reader writes
//! ```
//!
//! The writer maps the ring before it seals it, and only then hands anything out: what a reader
//! gets is no way to write, cut or empty the ring, however it opens it again. The reader trusts
//! none of it: it asks the kernel for seals and sizes, compares them with the geometry, and refuses
//! what does not fit. From then on every position and every record is checked as it is read
//! (`cursor`, `dbuf`).
//!
//! A reader can hold up a writer that blocks: so rings between untrusted peers overwrite, or the
//! writer sets a deadline and shuts the reader out ([`crate::dbuf::Writer::shut_out`], T8). There
//! is no futex here: untrusted peers signal each other through eventfds.

use crate::atomic::acquire;
use crate::cursor::{Consumer, POSITION_MAX, Store};
use crate::join::{Contact, Door, Ticket};
use crate::pages::Choice;
use crate::region::Region;
use crate::trust::Trusted;
use crate::{Policy, dbuf, ibuf};
use abi::DbufId;
use abi::ring::{Geometry, PAGE, RecordHeader, reader, writer};
use segment::OfferedSegment;
use std::fmt;
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
pub use slots::slots;

/// Makes a ring of blocks whose readers are other processes: one offer for each of them.
pub fn blocks(config: &dbuf::Config) -> sys::Result<(dbuf::Writer, Vec<Offer>)> {
    let geometry = geometry(config.id, config.bytes(), 0, config.policy, config.readers);
    let (store, offers) = create(geometry, config.bytes() as u64, config.policy)?;
    Ok((dbuf::Writer::new(store, config.id), offers))
}

/// As [`blocks`], of a ring whose capacity may change in place: its readers trust its writer, who
/// can empty the memory.
pub(crate) fn blocks_that_are_cut(
    config: &dbuf::Config,
    extent: usize,
) -> sys::Result<(dbuf::Writer, Vec<Offer>)> {
    let mut geometry = geometry(config.id, config.bytes(), 0, config.policy, config.readers);
    geometry.extent = geometry.capacity.max(extent.next_power_of_two() as u64);
    let (store, offers) = create(geometry, config.bytes() as u64, config.policy)?;
    Ok((dbuf::Writer::new(store, config.id), offers))
}

/// Makes a ring of rich pointers whose readers are other processes. What the pointers name must be
/// handed to them too; to them each entry is an allegation.
pub fn pointers(config: &ibuf::Config, id: DbufId) -> sys::Result<(ibuf::Writer, Vec<Offer>)> {
    let (entries, stride) = (config.entries.max(1).next_power_of_two(), config.lanes.stride());
    let bytes = (entries * stride).max(PAGE);
    let geometry = geometry(id, bytes, stride, config.policy, config.readers);
    let (store, offers) = create(geometry, (bytes / stride) as u64, config.policy)?;
    Ok((ibuf::Writer::new(store, config.lanes), offers))
}

/// The three descriptors that one reader of a ring gets.
#[derive(Debug)]
pub struct Offer {
    geometry: OwnedFd,
    ring: OwnedFd,
    cursor: OwnedFd,
}

/// Makes a ring of blocks whose readers come while it runs, through the door ([`crate::join`]).
pub(crate) fn blocks_with_door(config: &dbuf::Config) -> sys::Result<(dbuf::Writer, Hall)> {
    let geometry = geometry(config.id, config.bytes(), 0, config.policy, 0);
    let files = Files::create(&geometry)?;
    let readers = Box::default();
    let (capacity, policy) = (config.bytes() as u64, config.policy);
    let store = Arc::new(Store { writer: files.map()?, readers, capacity, policy });
    let current = OfferedSegment { files, geometry, store: store.clone() };
    let mut writer = dbuf::Writer::new(store, config.id);
    let door = Arc::new(Door::new());
    writer.side().open(door.clone());
    Ok((writer, Hall { current: Mutex::new(current), door }))
}

/// The inner side of a door: all that a reader needs to join.
#[derive(Debug)]
pub(crate) struct Hall {
    /// The segment that is written: locked while somebody enters and while the ring goes on in
    /// another one, so that who comes gets each segment from where it starts.
    current: Mutex<OfferedSegment>,
    pub(crate) door: Arc<Door>,
}

impl Hall {
    /// Lets a reader in whom we ring by this doorbell. `None`: the writer is gone.
    pub(crate) fn enter(&self, doorbell: SocketDoorbell) -> sys::Result<Option<(Ticket, Offer)>> {
        let current = self.current();
        let (cursor, page) = current.files.page()?;
        let shown = || acquire(current.store.writer.word(writer::COMMIT));
        let contact = Contact { doorbell, page: copy(&cursor)? };
        let ticket = self.door.enter(Arc::new(page), Some(contact), shown);
        ticket.map(|ticket| Ok((ticket, current.files.offer(cursor)?))).transpose()
    }

    /// The segment that is written; nobody enters meanwhile.
    pub(crate) fn current(&self) -> MutexGuard<'_, OfferedSegment> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offer {
    /// The descriptors, in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.geometry.as_fd(), self.ring.as_fd(), self.cursor.as_fd()]
    }

    /// An offer that was received. It proves nothing yet.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let count = descriptors.len();
        let [geometry, ring, cursor] =
            <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| Refusal::Descriptors(count))?;
        Ok(Self { geometry, ring, cursor })
    }

    /// Returns proof that the ring's maker can be trusted.
    pub(crate) fn maker(&self) -> Option<Trusted> {
        Trusted::maker(&self.ring)
    }

    /// Reads a ring of blocks.
    pub fn read_blocks(self) -> Result<dbuf::Visitor, Refusal> {
        Ok(self.read_blocks_of(Seals::READER)?.0)
    }

    /// Reads a ring of blocks that has at least these seals, and tells its geometry.
    pub(crate) fn read_blocks_of(self, seals: Seals) -> Result<(dbuf::Visitor, Geometry), Refusal> {
        let (geometry, policy) = self.agreed(Geometry::MAGIC)?;
        if geometry.stride != 0 {
            return Err(Refusal::Geometry(geometry));
        }
        let (store, start) = self.attach(&geometry, geometry.capacity, policy, seals)?;
        Ok((dbuf::Visitor::new(Consumer::starting(store, 0, start)), geometry))
    }

    /// Reads a ring of rich pointers.
    pub fn read_pointers(self) -> Result<ibuf::Reader, Refusal> {
        let (geometry, policy) = self.agreed(Geometry::MAGIC)?;
        let lanes = match geometry.stride {
            16 => ibuf::Lanes::Pointer,
            32 => ibuf::Lanes::Context,
            64 => ibuf::Lanes::Marks,
            _ => return Err(Refusal::Geometry(geometry)),
        };
        let entries = geometry.capacity / u64::from(geometry.stride);
        let (store, start) = self.attach(&geometry, entries, policy, Seals::READER)?;
        Ok(ibuf::Reader::new(Consumer::starting(store, 0, start), lanes))
    }

    /// The geometry, if it is one of these and nobody can change it any more.
    fn agreed(&self, magic: u64) -> Result<(Geometry, Policy), Refusal> {
        agreed(&self.geometry, magic)
    }

    /// Maps the ring for reading and our page for writing, if both are what the geometry says; and
    /// tells where we start.
    fn attach(
        &self,
        geometry: &Geometry,
        capacity: u64,
        policy: Policy,
        seals: Seals,
    ) -> Result<(Arc<Store>, u64), Refusal> {
        let writer = ring(&self.ring, geometry, seals)?;
        let cursor = checked(&self.cursor, "cursor", Seals::SIZE, PAGE)?;
        let page = Region::mapped(cursor.map()?);
        let start = acquire(page.word(reader::CURSOR));
        if start > POSITION_MAX
            || (geometry.stride == 0 && !start.is_multiple_of(RecordHeader::SIZE as u64))
        {
            return Err(Refusal::Start(start));
        }
        Ok((
            Arc::new(Store { writer, readers: Box::new([Arc::new(page)]), capacity, policy }),
            start,
        ))
    }
}

/// The longest ring that a reader maps: less than the window that 44 bits of position tell apart.
const CAPACITY_MAX: u64 = 1 << 40;

/// The reason for which an offer was refused. No part of it has been touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There must be three descriptors.
    Descriptors(usize),
    /// A descriptor lacks seals that must be on: its owner could cut, empty or change the file.
    Unsealed {
        /// Name of the part.
        part: &'static str,
        /// The seals that are on.
        seals: Seals,
    },
    /// A file is not as long as the geometry says.
    Size {
        /// Name of the part.
        part: &'static str,
        /// Bytes that it has.
        is: usize,
        /// Bytes that it should have.
        should: usize,
    },
    /// This is no ring that we can read.
    Geometry(Geometry),
    /// No reader can start at this position.
    Start(u64),
    /// The next segment of a ring does not go on where the last one ended.
    Segment(Geometry),
    /// The kernel refused a call; also where it knows no seals at all.
    System(sys::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptors(count) => write!(f, "a ring comes as 3 descriptors, not {count}"),
            Self::Unsealed { part, seals } => {
                write!(f, "the {part} of the ring is not sealed as it must be ({seals:?})")
            }
            Self::Size { part, is, should } => {
                write!(f, "the {part} of the ring has {is} bytes instead of {should}")
            }
            Self::Geometry(geometry) => write!(f, "not a ring that can be read: {geometry:?}"),
            Self::Start(position) => {
                write!(f, "no reader of a ring can start at position {position}")
            }
            Self::Segment(geometry) => {
                write!(f, "a segment that does not go on where the last one ended: {geometry:?}")
            }
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sys::Error> for Refusal {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

/// The geometry of a ring of blocks.
pub(crate) fn geometry_of(config: &dbuf::Config) -> Geometry {
    geometry(config.id, config.bytes(), 0, config.policy, config.readers)
}

fn geometry(id: DbufId, bytes: usize, stride: usize, policy: Policy, readers: usize) -> Geometry {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Geometry {
        magic: Geometry::MAGIC,
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

/// The writer's side: makes, maps, seals, and only then offers.
fn create(
    geometry: Geometry,
    capacity: u64,
    policy: Policy,
) -> sys::Result<(Arc<Store>, Vec<Offer>)> {
    let files = Files::create(&geometry)?;
    // Who takes memory away by punching holes must not be sealed off from it.
    let is_cut = geometry.extent > 0;
    let writer = files.map_and_seal(if is_cut { Seals::SIZE } else { Seals::READER })?;
    let mut readers = Vec::new();
    let mut offers = Vec::new();
    for _ in 0..geometry.readers {
        let (cursor, page) = files.page()?;
        readers.push(Arc::new(page));
        offers.push(files.offer(cursor)?);
    }
    Ok((Arc::new(Store { writer, readers: readers.into(), capacity, policy }), offers))
}

/// The files that all readers of a ring share.
#[derive(Debug)]
struct Files {
    geometry: Memfd,
    ring: Memfd,
    /// Bytes of the ring that have pages.
    used: usize,
}

impl Files {
    /// Makes both; the geometry is sealed.
    fn create(geometry: &Geometry) -> sys::Result<Self> {
        let bytes = usize::try_from(geometry.capacity.max(geometry.extent)).unwrap_or(usize::MAX);
        let ring = Memfd::create("streamline-ring", bytes.saturating_add(PAGE))?;
        // What lies behind the cut is left out, if there is a cut.
        let used = usize::try_from(geometry.capacity).unwrap_or(usize::MAX).saturating_add(PAGE);
        Ok(Self { geometry: sealed(geometry)?, ring, used })
    }

    /// Maps the ring for its writer, and seals it.
    fn map(&self) -> sys::Result<Region> {
        self.map_and_seal(Seals::READER)
    }

    /// Its pages are taken here: near its writer, who is us, and such as suit its size.
    fn map_and_seal(&self, seals: Seals) -> sys::Result<Region> {
        let mapping = self.ring.map()?;
        Choice::here(self.used).take(&self.ring, &mapping, self.used)?;
        self.ring.seal(seals)?;
        Ok(Region::mapped(mapping))
    }

    /// Makes the page of a reader, and maps it here: we write it only before anybody else has it.
    fn page(&self) -> sys::Result<(Memfd, Region)> {
        let cursor = Memfd::create("streamline-cursor", PAGE)?;
        cursor.allocate(0, PAGE)?;
        let page = Region::mapped(cursor.map()?);
        cursor.seal(Seals::SIZE)?;
        Ok((cursor, page))
    }

    fn offer(&self, cursor: Memfd) -> sys::Result<Offer> {
        let (geometry, ring) = (copy(&self.geometry)?, copy(&self.ring)?);
        Ok(Offer { geometry, ring, cursor: cursor.into() })
    }
}

/// The file that tells the geometry, for ever. It is written without a mapping: a process that is
/// forked at this moment would have a copy of that until it runs another program, and as long as
/// there is one that writes nothing can be frozen.
fn sealed(geometry: &Geometry) -> sys::Result<Memfd> {
    let plan = File::from(OwnedFd::from(Memfd::create("streamline-geometry", PAGE)?));
    plan.write_all_at(geometry.as_bytes(), 0)
        .map_err(|why| sys::Error::new("pwrite", "a geometry", why.raw_os_error().unwrap_or(0)))?;
    let plan = Memfd::from_fd(OwnedFd::from(plan))?;
    plan.seal(Seals::FROZEN)?;
    Ok(plan)
}

fn copy(file: &Memfd) -> sys::Result<OwnedFd> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(0);
    file.as_fd()
        .try_clone_to_owned()
        .map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", errno(e)))
}

/// The geometry, if it is one of this kind and nobody can change it any more.
fn agreed(geometry: &OwnedFd, magic: u64) -> Result<(Geometry, Policy), Refusal> {
    let file = checked(geometry, "geometry", Seals::FROZEN, PAGE)?;
    let mapping = Region::reading(file.map_read()?);
    let mut bytes = [0; size_of::<Geometry>()];
    crate::foreign::copy_out(mapping.words(), 0, &mut bytes);
    let geometry = Geometry::read_from_bytes(&bytes).unwrap_or_default();
    let policy = Policy::from_code(geometry.policy).ok_or(Refusal::Geometry(geometry))?;
    let capacity = geometry.capacity;
    let plausible = geometry.magic == magic
        && capacity.is_power_of_two()
        && (PAGE as u64..=CAPACITY_MAX).contains(&capacity)
        && (geometry.extent == 0
            || (capacity..=CAPACITY_MAX).contains(&geometry.extent) && policy != Policy::Overwrite);
    if plausible { Ok((geometry, policy)) } else { Err(Refusal::Geometry(geometry)) }
}

/// Maps a ring for reading, if it is what the geometry says and has these seals.
fn ring(file: &OwnedFd, geometry: &Geometry, seals: Seals) -> Result<Region, Refusal> {
    // Nobody but who trusts the writer reads a ring that is cut.
    if seals == Seals::READER && geometry.extent > 0 {
        return Err(Refusal::Geometry(*geometry));
    }
    let bytes = usize::try_from(geometry.capacity.max(geometry.extent)).unwrap_or(usize::MAX);
    let ring = checked(file, "ring", seals, bytes.saturating_add(PAGE))?;
    Ok(Region::reading(ring.map_read()?))
}

/// A received file, if it has these seals and this size.
fn checked(fd: &OwnedFd, part: &'static str, seals: Seals, size: usize) -> Result<Memfd, Refusal> {
    let fd = fd
        .try_clone()
        .map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", e.raw_os_error().unwrap_or(0)))?;
    let file = Memfd::from_fd(fd)?;
    let on = file.seals()?;
    if !on.has(seals) {
        return Err(Refusal::Unsealed { part, seals: on });
    }
    // The size was read before the seals; now that it cannot change any more, it is read again.
    let file = Memfd::from_fd(file.into())?;
    if file.len() != size {
        return Err(Refusal::Size { part, is: file.len(), should: size });
    }
    Ok(file)
}

pub(crate) mod segment;

#[cfg(test)]
mod tests;
