//! Table of held blocks.
//!
//! The space stores all held blocks of a filter in one table ([`HoldTable`]). A session contains
//! only a [`HeldList`], which is 12 bytes of plain data. The space can therefore copy the bytes of
//! held blocks, move blocks together with their session, count them, and evict them at a limit
//! (CONTRACT 12).

use super::context::PinId;
use abi::Entry;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A list of held blocks, in key order. Plain data, stored in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct HeldList {
    /// Index of the first block's slot plus 1, or 0 if the list is empty. A list in zeroed memory
    /// is therefore empty.
    head: u32,
    tail: u32,
    len: u32,
}

impl HeldList {
    /// Returns the number of held blocks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// An event that affects a block in a Boolean section, but is not visible in the output of the
/// operand. Each number is the ticket that identifies a block ([`abi::Marks::ticket`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockFate {
    /// The block with this ticket, or a part of it, was added to a list of held blocks.
    Held(u32),
    /// The block with this ticket, or a part of it, was removed from a list of held blocks.
    Released(u32),
    /// The block with this ticket was dropped and counted under a reason.
    Dropped(u32),
    /// The block with the first ticket was merged into the block with the second ticket. Only the
    /// second block remains.
    Merged(u32, u32),
}

/// A slot of the table: a held block, linked to the next slot of its list.
#[derive(Clone, Copy, Debug)]
struct HoldSlot {
    key: u32,
    next: u32,
    entry: Entry,
    pin: PinId,
}

/// The table of all blocks that a filter holds, with limits on their number and size.
#[derive(Debug)]
pub struct HoldTable {
    slots: Vec<HoldSlot>,
    free: Vec<u32>,
    blocks_max: u32,
    bytes_max: u64,
    bytes: u64,
    /// Events of tracked blocks since the last [`HoldTable::take_fates`]. `None` if no section
    /// tracks blocks.
    fates: Option<Vec<BlockFate>>,
}

impl HoldTable {
    /// Creates a table for at most `blocks_max` blocks, with at most `bytes_max` bytes in view.
    #[must_use]
    pub const fn new(blocks_max: u32, bytes_max: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), blocks_max, bytes_max, bytes: 0, fates: None }
    }

    /// Enables or disables the recording of [`BlockFate`]s. The engine enables it for an operand of
    /// a section, and for a section whose operands may hold blocks.
    pub fn set_fate_tracking(&mut self, enabled: bool) {
        match enabled {
            true => drop(self.fates.get_or_insert_default()),
            false => self.fates = None,
        }
    }

    /// Returns the fates recorded since the last call, in order; empty if recording is disabled.
    pub fn take_fates(&mut self) -> Vec<BlockFate> {
        self.fates.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records an event of the tracked block that `ticket` identifies. Does nothing if recording is
    /// disabled, or if the ticket is 0, which means that the block is not tracked.
    #[inline]
    pub(super) fn record_fate(&mut self, ticket: u32, fate: impl FnOnce(u32) -> BlockFate) {
        if let Some(fates) = self.fates.as_mut().filter(|_| ticket != 0) {
            fates.push(fate(ticket));
        }
    }

    /// Returns the number of held blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if no block is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sum of the lengths in bytes of the held blocks' views.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if the limits permit the filter to hold one more block with `bytes` bytes in
    /// view.
    #[must_use]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.len() < self.blocks_max as usize && self.bytes + u64::from(bytes) <= self.bytes_max
    }

    /// Inserts a block into `list`, after all blocks with keys not greater than `key`.
    pub fn insert(&mut self, list: &mut HeldList, key: u32, entry: Entry, pin: PinId) {
        self.bytes += u64::from(entry.pointer.length());
        self.record_fate(entry.marks.section_ticket(), BlockFate::Held);
        let slot = HoldSlot { key, next: 0, entry, pin };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(place) = self.slots.get_mut(number as usize) {
                    *place = slot;
                }
                number
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let this = number + 1;
        list.len += 1;
        let previous = match self.slot(list.tail) {
            Some(tail) if !sequence_precedes(key, tail.key) => list.tail,
            _ => self.last_slot_up_to_key(list, key),
        };
        if previous == 0 {
            self.set_next_slot(this, list.head);
            list.head = this;
        } else {
            let next = self.slot(previous).map_or(0, |s| s.next);
            self.set_next_slot(this, next);
            self.set_next_slot(previous, this);
        }
        if previous == list.tail {
            list.tail = this;
        }
    }

    /// Returns the key and the block at the front of `list`, or `None` if it is empty.
    #[must_use]
    pub fn front(&self, list: &HeldList) -> Option<(u32, Entry)> {
        self.slot(list.head).map(|s| (s.key, s.entry))
    }

    /// Returns the key and the block at the back of `list`, or `None` if it is empty.
    #[must_use]
    pub fn back(&self, list: &HeldList) -> Option<(u32, Entry)> {
        self.slot(list.tail).map(|s| (s.key, s.entry))
    }

    /// Removes and returns the block at `index` of `list`, counted from 0 at the front, or `None`
    /// if `index` is beyond the end.
    pub fn remove(&mut self, list: &mut HeldList, index: u32) -> Option<(u32, Entry, PinId)> {
        let Some(nth) = index.checked_sub(1) else { return self.pop(list) };
        let mut previous = list.head;
        for _ in 0..nth {
            previous = self.slot(previous)?.next;
        }
        let number = self.slot(previous)?.next;
        let slot = *self.slot(number)?;
        self.set_next_slot(previous, slot.next);
        if list.tail == number {
            list.tail = previous;
        }
        Some(self.free_slot(list, number, slot))
    }

    /// Removes and returns the front block, or `None` if the list is empty.
    pub fn pop(&mut self, list: &mut HeldList) -> Option<(u32, Entry, PinId)> {
        let slot = *self.slot(list.head)?;
        let number = std::mem::replace(&mut list.head, slot.next);
        if list.head == 0 {
            list.tail = 0;
        }
        Some(self.free_slot(list, number, slot))
    }

    /// Frees the slot of a block that was removed from `list`. Returns the key, the entry and the
    /// pin of the block.
    fn free_slot(
        &mut self,
        list: &mut HeldList,
        number: u32,
        slot: HoldSlot,
    ) -> (u32, Entry, PinId) {
        self.free.push(number - 1);
        list.len = list.len.saturating_sub(1);
        self.bytes -= u64::from(slot.entry.pointer.length());
        self.record_fate(slot.entry.marks.section_ticket(), BlockFate::Released);
        (slot.key, slot.entry, slot.pin)
    }

    /// Returns the blocks of `list` with their keys and pins, from front to back.
    pub fn blocks<'s>(&'s self, list: &HeldList) -> impl Iterator<Item = (u32, Entry, PinId)> + 's {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let slot = self.slot(at)?;
            at = slot.next;
            Some((slot.key, slot.entry, slot.pin))
        })
    }

    /// Calls `to` with the entry and the pin of every held block, and replaces both with the
    /// returned values. Called when the filter moves to another space.
    pub fn relocate_blocks(&mut self, mut to: impl FnMut(&Entry, PinId) -> (Entry, PinId)) {
        let mut held = vec![true; self.slots.len()];
        for free in &self.free {
            if let Some(held) = held.get_mut(*free as usize) {
                *held = false;
            }
        }
        for (slot, _) in self.slots.iter_mut().zip(held).filter(|(_, held)| *held) {
            (slot.entry, slot.pin) = to(&slot.entry, slot.pin);
        }
    }

    /// Returns the index plus 1 of the last slot in `list` whose key is not greater than `key`, or
    /// 0 if there is no such slot.
    fn last_slot_up_to_key(&self, list: &HeldList, key: u32) -> u32 {
        let mut previous = 0;
        let mut at = list.head;
        while let Some(slot) = self.slot(at) {
            if sequence_precedes(key, slot.key) {
                break;
            }
            previous = at;
            at = slot.next;
        }
        previous
    }

    fn slot(&self, number_plus_one: u32) -> Option<&HoldSlot> {
        self.slots.get(number_plus_one.checked_sub(1)? as usize)
    }

    fn set_next_slot(&mut self, number_plus_one: u32, next: u32) {
        if let Some(slot) = self.slots.get_mut(number_plus_one as usize - 1) {
            slot.next = next;
        }
    }
}

/// Returns true if sequence number `a` precedes `b`, with wrap-around (RFC 9293 §3.4).
fn sequence_precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_blocks_are_popped_in_key_order() {
        let mut holds = HoldTable::new(16, 1 << 20);
        let mut list = HeldList::default();
        for key in [30, 10, 20, u32::MAX, 10, 40] {
            holds.insert(&mut list, key, Entry::default(), PinId(u64::from(key)));
        }
        let mut keys = Vec::new();
        while let Some((key, _, _)) = holds.pop(&mut list) {
            keys.push(key);
        }
        assert_eq!(keys, [u32::MAX, 10, 10, 20, 30, 40], "the wrapped number comes first");
        assert!(holds.is_empty() && list.is_empty());
        holds.insert(&mut list, 5, Entry::default(), PinId(1));
        assert_eq!(holds.front(&list).map(|(key, _)| key), Some(5));
        assert_eq!(holds.len(), 1);
    }

    #[test]
    fn block_is_removed_from_the_middle() {
        let mut holds = HoldTable::new(16, 1 << 20);
        let mut list = HeldList::default();
        for key in 1..=5 {
            holds.insert(&mut list, key, Entry::default(), PinId(key.into()));
        }
        let mut removed = |before| holds.remove(&mut list, before).map(|(key, _, _)| key);
        assert_eq!(
            [removed(4), removed(1), removed(0), removed(2)],
            [Some(5), Some(2), Some(1), None]
        );
        assert_eq!(holds.back(&list).map(|(key, _)| key), Some(4));
        holds.insert(&mut list, 9, Entry::default(), PinId(9));
        let keys: Vec<u32> = holds.blocks(&list).map(|(key, _, _)| key).collect();
        assert_eq!((keys, list.len(), holds.len()), (vec![3, 4, 9], 3, 3));
    }
}
