//! Functions that make room for entries and free memory for blocks, by waiting for readers or by
//! overwriting.

use super::{HotSegment, Output};
use abi::RichPointer;
use abi::ring::writer;
use buffer::crossing::Origin;
use buffer::scale::SidePlacement;
use buffer::wait::Urgency;
use buffer::{Fault, OverflowPolicy};

impl Output {
    /// Ensures that there is room for an entry. If there is none, blocks or returns false,
    /// depending on the policy.
    #[cold]
    pub(super) fn make_room(&mut self) -> Result<bool, Fault> {
        if self.has_room()? {
            return Ok(true);
        }
        if self.policy == OverflowPolicy::DropNew {
            return Ok(false);
        }
        let (capacity, head) = (self.ring.cursor.store.capacity, self.ring.cursor.head);
        // Waiting for half a lap costs two wakeups per lap instead of one per block. If both sides
        // share a processor, the reader may as well continue until few entries are left.
        let left = if self.spins == 0 { capacity / 8 } else { capacity / 2 };
        self.wait_until_passed(head - left, Self::has_room)?;
        Ok(true)
    }

    fn has_room(&mut self) -> Result<bool, Fault> {
        let (capacity, head) = (self.ring.cursor.store.capacity, self.ring.cursor.head);
        let passed = self.refresh_passed_position()?;
        self.limit = match self.policy {
            // At intervals of half a lap, check for departed readers and releasable memory.
            OverflowPolicy::Overwrite => head + capacity / 2,
            OverflowPolicy::Block | OverflowPolicy::DropNew => passed + capacity,
        };
        self.update_stop_position();
        Ok(head < self.limit)
    }

    /// Loads the positions of the readers, and releases the memory that all readers have passed.
    /// Returns the lowest reader position. In a ring that overwrites, overwritten entries count as
    /// passed. Fails with [`Fault::Abandoned`] if no reader is left.
    pub(super) fn refresh_passed_position(&mut self) -> Result<u64, Fault> {
        let oldest = self.ring.cursor.refresh_reader_positions()?;
        if self.ring.cursor.is_abandoned() {
            return Err(Fault::Abandoned);
        }
        let passed = match self.policy {
            // F2: entries below this position were announced to be overwritten, and have been.
            OverflowPolicy::Overwrite => {
                let capacity = self.ring.cursor.store.capacity;
                oldest.max(self.ring.cursor.head.max(self.announced_min).saturating_sub(capacity))
            }
            OverflowPolicy::Block | OverflowPolicy::DropNew => oldest,
        };
        self.release_passed_memory(passed);
        Ok(passed)
    }

    fn release_passed_memory(&mut self, passed: u64) {
        self.extend_hot_segment_hold();
        if !self.flights.release_passed(passed) {
            self.hot = HotSegment::default();
        }
    }

    /// Releases memory that all readers have passed. Writes call this when they need room. Callers
    /// should also call it while the writer is idle for a long time, and before they wait for a
    /// followed input.
    pub fn reclaim_passed_memory(&mut self) -> Result<(), Fault> {
        self.refresh_passed_position().map(|_| ())
    }

    /// Frees memory in the backing dbuf. First releases the memory of blocks that readers have
    /// already passed. If that frees nothing, the policy decides: the function blocks until readers
    /// have passed some blocks of this stream, releases the oldest blocks, or returns false. Fails
    /// with [`Fault::NoRoom`] if this stream holds no memory.
    #[cold]
    pub(super) fn free_memory(&mut self) -> Result<bool, Fault> {
        self.extend_hot_segment_hold();
        let Some(oldest) = self.flights.first_release_position() else {
            return Err(Fault::NoRoom(self.backing.dbuf()));
        };
        let before = self.flights.len();
        let passed = self.refresh_passed_position()?;
        if self.end_round() || self.flights.len() < before {
            return Ok(true);
        }
        match self.policy {
            OverflowPolicy::DropNew => Ok(false),
            OverflowPolicy::Overwrite => {
                // SYNC POINT: writing begins; see `announce_overwrite`. Readers that have not
                // passed `oldest` detect it after their copy.
                self.announced_min =
                    self.announced_min.max(oldest + self.ring.cursor.store.capacity);
                self.announce_overwrite(0);
                self.release_passed_memory(oldest.max(passed));
                Ok(true)
            }
            OverflowPolicy::Block => {
                let until = self.flights.release_position(if self.spins == 0 { 7 } else { 4 });
                self.wait_until_passed(until.max(oldest), |output| {
                    output.refresh_passed_position()?;
                    Ok(output.flights.len() < before)
                })?;
                Ok(true)
            }
        }
    }

    /// Adapts the size of the memory for copied bytes. Called when the stream has used all of this
    /// memory, or as much since the last call. Returns true if the memory has grown.
    pub(super) fn end_round(&mut self) -> bool {
        let Self { backing, ring, spins, .. } = self;
        backing.end_round(|| {
            let alone = *spins == 0;
            match ring.cursor.are_readers_on_processor(sys::machine::current_processor(), || alone)
            {
                true => SidePlacement::SameProcessor,
                false => SidePlacement::DifferentProcessors,
            }
        })
    }

    /// Blocks until `done` returns true. Calls `done` again each time that readers wake the writer
    /// because they have passed position `until`. Fails with [`Fault::Abandoned`] if no reader is
    /// left.
    pub(super) fn wait_until_passed(
        &mut self,
        until: u64,
        done: impl Fn(&mut Self) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        self.publish(Urgency::Last);
        for _ in 0..self.spins {
            if done(self)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            self.sleeper.announce_sleep(&self.ring.cursor.store.writer, writer::WAIT, until);
            let slept = match done(self) {
                Ok(true) => Ok(true),
                Ok(false) => match self.doorbells.sleep(&mut self.ring.cursor, None) {
                    true => Ok(false),
                    false => Err(Fault::Abandoned),
                },
                Err(fault) => Err(fault),
            };
            self.sleeper.announce_wake(&self.ring.cursor.store.writer, writer::WAIT);
            if slept? || done(self)? {
                self.doorbells.reset_false_alarms();
                return Ok(());
            }
        }
    }

    /// Announces that `count` entries are about to be overwritten, in a ring that overwrites.
    #[inline]
    pub(super) fn announce_overwrite(&mut self, count: u64) {
        // SYNC POINT: writing begins; an announcement is never withdrawn.
        self.ring
            .cursor
            .announce_overwrite((self.ring.cursor.head + count).max(self.announced_min));
    }

    /// Counts a block that was dropped for lack of room. Always returns false.
    pub(super) const fn count_dropped(&mut self, length: usize) -> bool {
        self.ring.cursor.counts.dropped += 1;
        self.ring.cursor.counts.dropped_bytes += length as u64;
        false
    }

    /// Writes pointers to blocks of `origin`. Before the first pointer into a segment is written,
    /// `origin` must prove that it holds the segment. From then on, this stream holds the segment
    /// as well. Waits for room like `write`; pointers that find no room are counted as dropped.
    /// Returns the number of pointers written. This is cheaper than individual writes if all blocks
    /// of a batch are in one segment.
    pub fn write_all_pointers(
        &mut self,
        pointers: &[RichPointer],
        origin: &dyn Origin,
    ) -> Result<usize, Fault> {
        let mut put = 0;
        while let Some(rest) = pointers.get(put..).filter(|rest| !rest.is_empty()) {
            let room = self.limit.saturating_sub(self.ring.cursor.head);
            let count = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            if count == 0 {
                if !self.make_room()? {
                    rest.iter()
                        .for_each(|pointer| _ = self.count_dropped(pointer.length() as usize));
                    break;
                }
                continue;
            }
            let batch = rest.get(..count).unwrap_or_default();
            put += self.write_pointer_batch(batch, origin)?;
        }
        Ok(put)
    }

    /// Writes the leading pointers that refer to one segment. The caller must ensure that there is
    /// room for all of `batch`. Returns the number of pointers written.
    fn write_pointer_batch(
        &mut self,
        batch: &[RichPointer],
        origin: &dyn Origin,
    ) -> Result<usize, Fault> {
        let Some(first) = batch.first() else { return Ok(0) };
        let (mut count, mut bytes) = self.hot.count_covered(batch);
        if count == 0 {
            self.hold_and_cache_segment(*first, origin)?;
            (count, bytes) = self.hot.count_covered(batch);
        }
        let same = batch.get(..count.max(1)).unwrap_or_default();
        if self.policy == OverflowPolicy::Overwrite {
            self.announce_overwrite(same.len() as u64);
        }
        self.ring.put_uncounted_pointers(same, bytes);
        self.publish_if_due();
        Ok(same.len())
    }

    /// Takes a hold on the segment of a pointer for this output (F1). `origin` proves that another
    /// party holds the segment at this moment.
    fn hold_and_cache_segment(
        &mut self,
        pointer: RichPointer,
        origin: &dyn Origin,
    ) -> Result<(), Fault> {
        let until = self.ring.cursor.head + 1;
        let lease = self.flights.hold_segment(pointer, until, || origin.lease(pointer))?;
        self.hot.advance_to(pointer, &lease);
        Ok(())
    }
}
