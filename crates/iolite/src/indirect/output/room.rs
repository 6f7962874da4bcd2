//! Room for entries: made by readers that have passed, or by overwriting.

use super::{Hot, Output};
use abi::RichPointer;
use abi::ring::writer;
use buffer::crossing::Origin;
use buffer::wait::Urgency;
use buffer::{Fault, Policy};
use std::time::Duration;

impl Output {
    /// Looks for room for an entry, and waits for it. `false`: there is none, and the policy is not
    /// to wait.
    #[cold]
    pub(super) fn make_room(&mut self) -> Result<bool, Fault> {
        if self.has_room()? {
            return Ok(true);
        }
        if self.policy == Policy::DropNew {
            return Ok(false);
        }
        let (capacity, head) = (self.ring.side.store.capacity, self.ring.side.head);
        // A lap costs two events, and not one for each block. Where both sides share a processor
        // the reader may as well go on until little is left.
        let left = if self.spins == 0 { capacity / 8 } else { capacity / 2 };
        self.wait_until_passed(head - left, Self::has_room)?;
        Ok(true)
    }

    fn has_room(&mut self) -> Result<bool, Fault> {
        let (capacity, head) = (self.ring.side.store.capacity, self.ring.side.head);
        let passed = self.look()?;
        self.limit = match self.policy {
            // From time to time it is looked whether anybody reads, and what can be given back.
            Policy::Overwrite => head + capacity / 2,
            Policy::Block | Policy::DropNew => passed + capacity,
        };
        self.set_stop();
        Ok(head < self.limit)
    }

    /// Looks where readers are, gives back what they have passed, and answers that position.
    pub(super) fn look(&mut self) -> Result<u64, Fault> {
        let oldest = self.ring.side.refresh()?;
        if self.ring.side.abandoned() {
            return Err(Fault::Abandoned);
        }
        let passed = match self.policy {
            // F2: an entry before this was announced to be overwritten, and has been.
            Policy::Overwrite => {
                let capacity = self.ring.side.store.capacity;
                oldest.max(self.ring.side.head.max(self.floor).saturating_sub(capacity))
            }
            Policy::Block | Policy::DropNew => oldest,
        };
        self.give_back(passed);
        Ok(passed)
    }

    fn give_back(&mut self, passed: u64) {
        self.settle();
        if !self.flights.reap(passed) {
            self.hot = Hot::default();
        }
    }

    /// Gives back what all readers have passed. Done by itself when there is no room; for a writer
    /// that does nothing for long, and before it waits for an input that it follows.
    pub fn reap(&mut self) -> Result<(), Fault> {
        self.look().map(|_| ())
    }

    /// Looks for memory in the backing dbuf, and waits for it: for readers to pass what they may
    /// still look at there, and not what others keep. `false`: the policy is not to wait.
    #[cold]
    pub(super) fn make_memory(&mut self) -> Result<bool, Fault> {
        self.settle();
        let Some(oldest) = self.flights.first() else {
            return Err(Fault::NoRoom(self.backing.dbuf()));
        };
        let before = self.flights.len();
        let passed = self.look()?;
        if self.flights.len() < before {
            return Ok(true);
        }
        match self.policy {
            Policy::DropNew => Ok(false),
            Policy::Overwrite => {
                // SYNC POINT: writing begins; see `begin`. Readers that are not beyond `oldest` by
                // the time they have copied find that out.
                self.floor = self.floor.max(oldest + self.ring.side.store.capacity);
                self.begin(0);
                self.give_back(oldest.max(passed));
                Ok(true)
            }
            Policy::Block => {
                let until = self.flights.part(if self.spins == 0 { 7 } else { 4 });
                self.wait_until_passed(until.max(oldest), |output| {
                    output.look()?;
                    Ok(output.flights.len() < before)
                })?;
                Ok(true)
            }
        }
    }

    /// Waits until readers have passed something of what is kept. `false`: nothing is, or it is not
    /// waited for.
    pub(crate) fn settle_some(&mut self) -> Result<bool, Fault> {
        self.settle();
        let Some(oldest) = self.flights.first() else { return Ok(false) };
        if self.policy != Policy::Block {
            return Ok(false);
        }
        self.wait_until_passed(oldest, |output| {
            output.look()?;
            Ok(output.flights.first() != Some(oldest))
        })?;
        Ok(true)
    }

    /// Says that we are about to sleep on the descriptors until readers have passed something of
    /// what is kept. `false`: they have, or nothing is.
    pub(crate) fn falls_asleep(&mut self) -> Result<bool, Fault> {
        self.settle();
        let Some(oldest) = self.flights.first() else { return Ok(false) };
        self.sleeper.falls_asleep(&self.ring.side.store.writer, writer::WAIT, oldest);
        let looked = self.look();
        let asleep = self.flights.first() == Some(oldest) && looked.is_ok();
        if !asleep {
            self.sleeper.wakes(&self.ring.side.store.writer, writer::WAIT);
        }
        looked.map(|_| asleep)
    }

    /// Says that we are awake again, and gives back what readers have passed.
    pub(crate) fn wakes(&mut self) -> Result<(), Fault> {
        self.sleeper.wakes(&self.ring.side.store.writer, writer::WAIT);
        let before = self.flights.len();
        self.doorbells.sleep(&mut self.ring.side, Some(Duration::ZERO));
        self.look()?;
        if self.flights.len() < before {
            self.doorbells.progressed();
        }
        Ok(())
    }

    /// Waits until readers have come to `until` and `done` says so.
    fn wait_until_passed(
        &mut self,
        until: u64,
        done: impl Fn(&mut Self) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        self.show(Urgency::Last);
        for _ in 0..self.spins {
            if done(self)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            self.sleeper.falls_asleep(&self.ring.side.store.writer, writer::WAIT, until);
            let slept = match done(self) {
                Ok(true) => Ok(true),
                Ok(false) => match self.doorbells.sleep(&mut self.ring.side, None) {
                    true => Ok(false),
                    false => Err(Fault::Abandoned),
                },
                Err(fault) => Err(fault),
            };
            self.sleeper.wakes(&self.ring.side.store.writer, writer::WAIT);
            if slept? || done(self)? {
                self.doorbells.progressed();
                return Ok(());
            }
        }
    }

    /// Announces that so many entries are written next (lossy rings).
    #[inline]
    pub(super) fn begin(&mut self, count: u64) {
        // SYNC POINT: writing begins; what readers were told once stays so.
        self.ring.side.begin((self.ring.side.head + count).max(self.floor));
    }

    /// A block for which there is no room, and which nobody waits for.
    pub(super) const fn drop_one(&mut self, length: usize) -> bool {
        self.ring.side.put.dropped += 1;
        self.ring.side.put.dropped_bytes += length as u64;
        false
    }

    /// Puts pointers to blocks of `origin`, each of which is checked to lie in a segment that is
    /// kept from here on; waits as [`Output::write`] does, and answers how many were put. For
    /// batches: where all lie in one segment that costs less than a write for each.
    pub fn put_all(
        &mut self,
        pointers: &[RichPointer],
        origin: &dyn Origin,
    ) -> Result<usize, Fault> {
        let mut put = 0;
        while let Some(rest) = pointers.get(put..).filter(|rest| !rest.is_empty()) {
            let room = self.limit.saturating_sub(self.ring.side.head);
            let count = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            if count == 0 {
                if !self.make_room()? {
                    rest.iter().for_each(|pointer| _ = self.drop_one(pointer.length() as usize));
                    break;
                }
                continue;
            }
            let batch = rest.get(..count).unwrap_or_default();
            put += self.put_batch(batch, origin)?;
        }
        Ok(put)
    }

    /// Puts the first of these pointers, for all of which there is room: as many as lie in one
    /// segment.
    fn put_batch(&mut self, batch: &[RichPointer], origin: &dyn Origin) -> Result<usize, Fault> {
        let Some(first) = batch.first() else { return Ok(0) };
        let (mut count, mut bytes) = self.hot.covers_first(batch);
        if count == 0 {
            self.advance_to(*first, origin)?;
            (count, bytes) = self.hot.covers_first(batch);
        }
        let same = batch.get(..count.max(1)).unwrap_or_default();
        if self.policy == Policy::Overwrite {
            self.begin(same.len() as u64);
        }
        self.ring.put_all_bare(same, bytes);
        self.pause();
        Ok(same.len())
    }

    /// Keeps the segment that a pointer leads into (F1): its origin proves that it is kept now.
    fn advance_to(&mut self, pointer: RichPointer, origin: &dyn Origin) -> Result<(), Fault> {
        let until = self.ring.side.head + 1;
        let lease = self.flights.advance_to(pointer, until, || origin.lease(pointer))?;
        self.hot.advance_to(pointer, &lease);
        Ok(())
    }
}
