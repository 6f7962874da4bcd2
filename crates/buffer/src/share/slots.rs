//! Rings of slots between processes: the same three descriptors, with a table of lengths before the
//! slots.

use super::{Files, Offer, Refusal, checked, geometry, sealed};
use crate::atomic::acquire;
use crate::cursor::{Consumer, POSITION_MAX, Store};
use crate::dbuf::fixed::{Config, SlotShape, Visitor, Writer};
use crate::region::Region;
use abi::BLOCK_MAX;
use abi::ring::{Geometry, PAGE, reader};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// Makes a ring of slots whose readers are other processes: one offer for each of them.
pub fn slots(config: &Config) -> sys::Result<(Writer, Vec<Offer>)> {
    let shape = config.shape();
    let geometry = geometry(config.id, shape.data(), shape.slot, config.policy, config.readers);
    let geometry = Geometry { magic: Geometry::SLOTS, ..geometry };
    let (used, geometry) = (bytes(shape), sealed(&geometry)?);
    let files = Files { geometry, ring: Memfd::create("streamline-ring", used)?, used };
    let (writer, mut readers, mut offers) = (files.map()?, Vec::new(), Vec::new());
    for _ in 0..config.readers {
        let (cursor, page) = files.page()?;
        readers.push(page.into());
        offers.push(files.offer(cursor)?);
    }
    let (readers, capacity, policy) = (readers.into(), shape.slots as u64, config.policy);
    let store = Arc::new(Store { writer, readers, capacity, policy });
    Ok((Writer::new(store, shape, config.id), offers))
}

impl Offer {
    /// Reads a ring of slots.
    pub fn read_slots(self) -> Result<Visitor, Refusal> {
        let (geometry, policy) = self.agreed(Geometry::SLOTS)?;
        let shape = shape(&geometry).ok_or(Refusal::Geometry(geometry))?;
        let ring = checked(&self.ring, "ring", Seals::READER, bytes(shape))?;
        let cursor = checked(&self.cursor, "cursor", Seals::SIZE, PAGE)?;
        let (writer, page) = (Region::reading(ring.map_read()?), Region::mapped(cursor.map()?));
        let start = acquire(page.word(reader::CURSOR));
        if start > POSITION_MAX {
            return Err(Refusal::Start(start));
        }
        let (readers, capacity) = (Box::new([page.into()]), shape.slots as u64);
        let store = Arc::new(Store { writer, readers, capacity, policy });
        Ok(Visitor::new(Consumer::starting(store, 0, start), shape))
    }
}

/// Bytes of the writer's memory: its page, the table, the slots.
const fn bytes(shape: SlotShape) -> usize {
    PAGE.saturating_add(shape.table()).saturating_add(shape.data())
}

/// The shape that a geometry alleges, if a ring of slots can have it.
fn shape(geometry: &Geometry) -> Option<SlotShape> {
    let (slot, data) = (geometry.stride as usize, usize::try_from(geometry.capacity).ok()?);
    let fits = slot.is_power_of_two() && (SlotShape::SLOT_MIN..=BLOCK_MAX + 1).contains(&slot);
    let is_slots = geometry.magic == Geometry::SLOTS && fits && slot <= data;
    is_slots.then(|| SlotShape { slot, slots: data / slot })
}
