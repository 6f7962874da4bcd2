//! Held blocks: the space keeps them in a table, the filter keeps a [`HeldList`], 12 bytes of plain
//! data.
//!
//! So the space may copy the bytes away, move them with their session, count them, and evict them
//! when a bound is reached (CONTRACT 12).

use super::turn::Pin;
use abi::Entry;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A list of held blocks, ordered by key: plain data, part of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct HeldList {
    /// Slot number plus one of the first block; 0: none. So zeroed state is an empty list.
    head: u32,
    tail: u32,
    len: u32,
}

impl HeldList {
    /// The number of blocks held.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if nothing is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Fate of a block about which a Boolean section asked, where the filter's output does not tell.
/// Each variant names the block by its ticket ([`abi::Marks::ticket`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is held, once more.
    Held(u32),
    /// It is no longer held, once less.
    Left(u32),
    /// It was dropped, for a reason that the filter counted.
    Dropped(u32),
    /// It was put together with others, and goes on in the block of the second ticket.
    Joined(u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    next: u32,
    entry: Entry,
    pin: Pin,
}

/// All blocks that one filter holds, with the bounds on them.
#[derive(Debug)]
pub struct Holds {
    slots: Vec<Slot>,
    free: Vec<u32>,
    blocks_max: u32,
    bytes_max: u64,
    bytes: u64,
    /// Fates of blocks since the section asked last; `None`: no section asks.
    fates: Option<Vec<Fate>>,
}

impl Holds {
    /// A table for at most `blocks_max` blocks with `bytes_max` bytes in view.
    #[must_use]
    pub const fn new(blocks_max: u32, bytes_max: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), blocks_max, bytes_max, bytes: 0, fates: None }
    }

    /// Has the filter be an operand of a Boolean section, or no longer: it is written down what
    /// becomes of blocks with a ticket.
    pub fn be_asked(&mut self, asked: bool) {
        match asked {
            true => drop(self.fates.get_or_insert_default()),
            false => self.fates = None,
        }
    }

    /// Returns the fates of blocks since the last call, in order.
    pub fn take_fates(&mut self) -> Vec<Fate> {
        self.fates.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Writes down what becomes of the block of this ticket, if a section asks.
    #[inline]
    pub(super) fn note(&mut self, ticket: u32, fate: impl FnOnce(u32) -> Fate) {
        if let Some(fates) = self.fates.as_mut().filter(|_| ticket != 0) {
            fates.push(fate(ticket));
        }
    }

    /// Returns the number of blocks held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if one more block of this size may be held.
    #[must_use]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.len() < self.blocks_max as usize && self.bytes + u64::from(bytes) <= self.bytes_max
    }

    /// Puts a block into `list` behind all blocks whose key is not greater.
    pub fn insert(&mut self, list: &mut HeldList, key: u32, entry: Entry, pin: Pin) {
        self.bytes += u64::from(entry.pointer.length());
        self.note(entry.marks.ticket(), Fate::Held);
        let slot = Slot { key, next: 0, entry, pin };
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
        let behind = match self.slot(list.tail) {
            Some(tail) if !before(key, tail.key) => list.tail,
            _ => self.last_not_after(list, key),
        };
        if behind == 0 {
            self.set_next(this, list.head);
            list.head = this;
        } else {
            let next = self.slot(behind).map_or(0, |s| s.next);
            self.set_next(this, next);
            self.set_next(behind, this);
        }
        if behind == list.tail {
            list.tail = this;
        }
    }

    /// The key and the block at the front.
    #[must_use]
    pub fn front(&self, list: &HeldList) -> Option<(u32, Entry)> {
        self.slot(list.head).map(|s| (s.key, s.entry))
    }

    /// The key and the block at the back.
    #[must_use]
    pub fn back(&self, list: &HeldList) -> Option<(u32, Entry)> {
        self.slot(list.tail).map(|s| (s.key, s.entry))
    }

    /// Takes the block out that stands behind `before` others.
    pub fn remove(&mut self, list: &mut HeldList, before: u32) -> Option<(u32, Entry, Pin)> {
        let Some(nth) = before.checked_sub(1) else { return self.pop(list) };
        let mut behind = list.head;
        for _ in 0..nth {
            behind = self.slot(behind)?.next;
        }
        let number = self.slot(behind)?.next;
        let slot = *self.slot(number)?;
        self.set_next(behind, slot.next);
        if list.tail == number {
            list.tail = behind;
        }
        self.free.push(number - 1);
        list.len = list.len.saturating_sub(1);
        self.bytes -= u64::from(slot.entry.pointer.length());
        self.note(slot.entry.marks.ticket(), Fate::Left);
        Some((slot.key, slot.entry, slot.pin))
    }

    /// Takes the front block out.
    pub fn pop(&mut self, list: &mut HeldList) -> Option<(u32, Entry, Pin)> {
        let slot = *self.slot(list.head)?;
        self.free.push(list.head - 1);
        list.head = slot.next;
        list.len = list.len.saturating_sub(1);
        if list.head == 0 {
            list.tail = 0;
        }
        self.bytes -= u64::from(slot.entry.pointer.length());
        self.note(slot.entry.marks.ticket(), Fate::Left);
        Some((slot.key, slot.entry, slot.pin))
    }

    /// The blocks of `list`, first to last.
    pub fn blocks<'s>(&'s self, list: &HeldList) -> impl Iterator<Item = (u32, Entry, Pin)> + 's {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let slot = self.slot(at)?;
            at = slot.next;
            Some((slot.key, slot.entry, slot.pin))
        })
    }

    /// Has every held block lie elsewhere, as its filter moves to another space.
    pub fn relocate(&mut self, mut to: impl FnMut(&Entry, Pin) -> (Entry, Pin)) {
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

    fn last_not_after(&self, list: &HeldList, key: u32) -> u32 {
        let mut behind = 0;
        let mut at = list.head;
        while let Some(slot) = self.slot(at) {
            if before(key, slot.key) {
                break;
            }
            behind = at;
            at = slot.next;
        }
        behind
    }

    fn slot(&self, number_plus_one: u32) -> Option<&Slot> {
        self.slots.get(number_plus_one.checked_sub(1)? as usize)
    }

    fn set_next(&mut self, number_plus_one: u32, next: u32) {
        if let Some(slot) = self.slots.get_mut(number_plus_one as usize - 1) {
            slot.next = next;
        }
    }
}

/// Returns true if sequence number `a` lies before `b`, with wrap-around (RFC 9293 §3.4).
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_out_in_order_of_their_keys() {
        let mut holds = Holds::new(16, 1 << 20);
        let mut list = HeldList::default();
        for key in [30, 10, 20, u32::MAX, 10, 40] {
            holds.insert(&mut list, key, Entry::default(), Pin(u64::from(key)));
        }
        let mut keys = Vec::new();
        while let Some((key, _, _)) = holds.pop(&mut list) {
            keys.push(key);
        }
        assert_eq!(keys, [u32::MAX, 10, 10, 20, 30, 40], "the wrapped number comes first");
        assert!(holds.is_empty() && list.is_empty());
        holds.insert(&mut list, 5, Entry::default(), Pin(1));
        assert_eq!(holds.front(&list).map(|(key, _)| key), Some(5));
        assert_eq!(holds.len(), 1);
    }

    #[test]
    fn a_block_is_taken_out_of_the_middle() {
        let mut holds = Holds::new(16, 1 << 20);
        let mut list = HeldList::default();
        for key in 1..=5 {
            holds.insert(&mut list, key, Entry::default(), Pin(key.into()));
        }
        let mut removed = |before| holds.remove(&mut list, before).map(|(key, _, _)| key);
        assert_eq!(
            [removed(4), removed(1), removed(0), removed(2)],
            [Some(5), Some(2), Some(1), None]
        );
        assert_eq!(holds.back(&list).map(|(key, _)| key), Some(4));
        holds.insert(&mut list, 9, Entry::default(), Pin(9));
        let keys: Vec<u32> = holds.blocks(&list).map(|(key, _, _)| key).collect();
        assert_eq!((keys, list.len(), holds.len()), (vec![3, 4, 9], 3, 3));
    }
}
