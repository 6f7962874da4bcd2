//! Rings of slots that processes share, with offers like those of rings of blocks.

use super::{
    OfferRefusal, RingOffer, SharedFiles, check_file, create_geometry_file, read_geometry,
    ring_geometry,
};
use crate::atomic::load_acquire;
use crate::cursor::{POSITION_MAX, ReaderCursor, RingMemory};
use crate::dbuf::fixed_size::{ForeignSlotReader, SlotConfig, SlotLayout, SlotWriter};
use crate::region::Region;
use abi::BLOCK_LENGTH_MAX;
use abi::ring::{PAGE_SIZE, RingGeometry, reader};
use sys::memory::{Memfd, Seals};

/// Creates a ring of slots for readers in other processes. Returns the writer and an offer per
/// reader.
pub fn slot_ring(config: &SlotConfig) -> sys::Result<(SlotWriter, Vec<RingOffer>)> {
    let shape = config.slot_layout();
    let geometry =
        ring_geometry(config.id, shape.slots_size(), shape.slot, config.policy, config.readers);
    let geometry = RingGeometry { magic: RingGeometry::SLOTS_MAGIC, ..geometry };
    let (used, geometry_file) = (ring_size(shape), create_geometry_file(&geometry)?);
    let ring = Memfd::create("streamline-ring", used)?;
    let files = SharedFiles { geometry: geometry_file, ring, used };
    let writer = files.map_and_seal(Seals::READER)?;
    let (store, offers) =
        files.create_offers(writer, geometry.readers, shape.slots as u64, config.policy)?;
    Ok((SlotWriter::new(store, shape, config.id), offers))
}

impl RingOffer {
    /// Validates the descriptors and opens a ring of slots.
    pub fn open_slot_reader(self) -> Result<ForeignSlotReader, OfferRefusal> {
        let (geometry, policy) = read_geometry(&self.geometry, RingGeometry::SLOTS_MAGIC)?;
        let shape = slot_layout(&geometry).ok_or(OfferRefusal::Geometry(geometry))?;
        let ring = check_file(&self.ring, "ring", Seals::READER, ring_size(shape))?;
        let cursor = check_file(&self.cursor, "cursor", Seals::SIZE, PAGE_SIZE)?;
        let (writer, page) = (Region::read_only(ring.map_read()?), Region::mapped(cursor.map()?));
        let start = load_acquire(page.word(reader::RELEASED_POSITION));
        if start > POSITION_MAX {
            return Err(OfferRefusal::Start(start));
        }
        let (readers, capacity) = (Box::new([page.into()]), shape.slots as u64);
        let store = RingMemory::new(writer, readers, capacity, policy);
        Ok(ForeignSlotReader::new(ReaderCursor::starting_at(store, 0, start), shape))
    }
}

/// Returns the size in bytes of the writer's memory: control page, table of lengths, and slots.
const fn ring_size(shape: SlotLayout) -> usize {
    PAGE_SIZE.saturating_add(shape.table_size()).saturating_add(shape.slots_size())
}

/// Returns the layout of the slots that a geometry describes, or `None` if the geometry is invalid
/// for a ring of slots.
fn slot_layout(geometry: &RingGeometry) -> Option<SlotLayout> {
    let (slot, data) = (geometry.stride as usize, usize::try_from(geometry.capacity).ok()?);
    let fits = slot.is_power_of_two()
        && (SlotLayout::SLOT_SIZE_MIN..=BLOCK_LENGTH_MAX + 1).contains(&slot);
    let is_slots = geometry.magic == RingGeometry::SLOTS_MAGIC && fits && slot <= data;
    is_slots.then(|| SlotLayout { slot, slots: data / slot })
}
