//! Writes that become pointers, and what other streams lend.

use super::{Hot, Output};
use crate::indirect::ranges::RANGES;
use crate::indirect::{Home, Lent};
use abi::{Class, Extent, RichPointer};
use buffer::{Fault, foreign};

impl Output {
    /// A block that does not lie in the segment that was hit last.
    pub(super) fn write_elsewhere(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if let Some(name) = self.ranges.find(block.as_ptr().addr())
            && self.splice_from(name, block)
        {
            return Ok(true);
        }
        if let Some((upstream, pointer)) = self.flights.looked_at(block)
            && !block.is_empty()
            && self.flights.claim(upstream, pointer, self.ring.side.head + 1)
        {
            self.put(pointer);
            return Ok(true);
        }
        if let Some(name) = self.beyond_the_line(block)
            && self.splice_from(name, block)
        {
            return Ok(true);
        }
        self.write_through(block.len(), |room| {
            foreign::copy(block, room);
            block.len()
        })
    }

    /// Puts a pointer to a slice of a known dbuf, if the bytes are shown there.
    fn splice_from(&mut self, name: usize, block: &[u8]) -> bool {
        let Some(known) = self.known.get_mut(name) else { return false };
        // What was no hit where one was expected is not tried again at once. [SL §5.3.3]
        if !known.back_off.is_over() {
            return false;
        }
        let Some(around) = known.memory.around_slice(block) else {
            known.back_off.failed();
            return false;
        };
        known.back_off.succeeded();
        let home = RichPointer::new(around.lease.dbuf(), Extent::default(), Class::YES);
        let until = self.ring.side.head + 1;
        self.hot = Hot {
            address: around.address,
            filled: around.filled,
            segment: around.segment,
            position: around.position,
            home,
        };
        let from = block.as_ptr().addr().wrapping_sub(around.address);
        let pointer = self.hot.pointer(from, block.len());
        // F1, S3: kept before it is put.
        if self.flights.advance_to(pointer, until, || Ok(around.lease)).is_err() {
            return false;
        }
        self.put(pointer);
        true
    }

    /// More dbufs are known than the line has room for: whoever is hit takes a place in it.
    fn beyond_the_line(&mut self, block: &[u8]) -> Option<usize> {
        if self.known.len() <= RANGES {
            return None;
        }
        let at = block.as_ptr().addr();
        let extents = self.known.iter().map(|known| known.memory.extent());
        let is_in = |(from, length): (usize, usize)| at.wrapping_sub(from) < length;
        let (name, (from, length)) = extents.enumerate().find(|(_, extent)| is_in(*extent))?;
        self.ranges.insert(from, length, name);
        Some(name)
    }

    /// Puts a pointer to what another stream lent, which stays there until our readers have passed.
    /// `None`: so much of it is kept already that its writer might have to wait for us; copy, or
    /// wait until readers have passed ([`Output::settle_some`]).
    pub(crate) fn put_lent(&mut self, lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        if self.ring.side.head >= self.limit && !self.make_room()? {
            return Ok(Some(self.drop_one(lent.pointer.length() as usize)));
        }
        let until = self.ring.side.head + 1;
        match lent.home {
            Home::Entry(keeper) => {
                let Some(upstream) = self.flights.follow(keeper) else { return Ok(None) };
                if !self.flights.claim(upstream, lent.pointer, until) {
                    return Ok(None);
                }
            }
            Home::File => {}
            Home::Lease(lease) if self.hot.covers(lent.pointer) => {
                debug_assert!(lease.keeps(lent.pointer));
            }
            Home::Lease(lease) => {
                self.flights.advance_to(lent.pointer, until, || Ok(lease.clone()))?;
                self.hot.advance_to(lent.pointer, lease);
            }
        }
        self.put(lent.pointer);
        Ok(Some(true))
    }
}
