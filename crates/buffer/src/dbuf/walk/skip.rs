//! Leaving blocks out: a reader that wants the newest, or only what is yet to come.
//! ([`crate::pace`])
//!
//! Where the newest block of variable length begins is written nowhere, so a reader goes from
//! header to header; the blocks themselves are not touched. Each header is checked as when it is
//! read.

use super::{ATTEMPTS, FoundRecord, Walk};
use crate::{Fault, Policy, Taken};

impl Walk {
    /// Passes over all blocks but the newest; answers how many.
    pub(in crate::dbuf) fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip_until(true)
    }

    /// Passes over all blocks that are there; answers how many.
    pub(in crate::dbuf) fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip_until(false)
    }

    fn skip_until(&mut self, keep_last: bool) -> Result<u64, Fault> {
        let before = self.side.taken.skipped;
        let commit = self.side.refresh()?;
        let mut laps = 0;
        while self.side.next < commit && laps < ATTEMPTS {
            let start = self.side.next;
            let found = self.find();
            if self.side.policy == Policy::Overwrite && self.side.overtaken(start) {
                let Some(next) = self.side.resume(start)? else { break };
                self.side.next = next;
                laps += 1;
                continue;
            }
            match found? {
                None => break,
                Some(found) if keep_last && found.end >= commit => break,
                Some(found) => self.leave_out(&found),
            }
        }
        self.release();
        Ok(self.side.taken.skipped.wrapping_sub(before))
    }

    /// Passes a block and all that was lost before it, and counts them as skipped.
    fn leave_out(&mut self, found: &FoundRecord) {
        let taken = self.side.taken;
        self.pass(found);
        let skipped = self.side.taken.skipped.wrapping_add(found.lost).wrapping_add(1);
        self.side.taken = Taken { lost: taken.lost, bytes: taken.bytes, skipped, ..taken };
        self.first = self.first.wrapping_add(1);
    }
}
