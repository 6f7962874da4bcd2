//! Skipping of blocks, for a reader that takes only the newest block or only future blocks
//! ([`crate::rate`]).
//!
//! The position of the newest variable-length block is not stored, so the reader walks from header
//! to header without touching the blocks. Each header is checked as for a read.

use super::{CheckedRecord, READ_ATTEMPTS_MAX, RecordWalk};
use crate::{Fault, OverflowPolicy, ReaderCounts};

impl RecordWalk {
    /// Skips all published blocks, or all but the newest if `keep_last` is true. Returns the number
    /// of skipped blocks.
    pub(super) fn skip_published(&mut self, keep_last: bool) -> Result<u64, Fault> {
        let before = self.side.taken.skipped;
        let commit = self.side.refresh_published_position()?;
        let mut laps = 0;
        while self.side.next < commit && laps < READ_ATTEMPTS_MAX {
            let start = self.side.next;
            let found = self.find();
            if self.side.policy == OverflowPolicy::Overwrite && self.side.is_overtaken(start) {
                let Some(next) = self.side.resume_position(start)? else { break };
                self.side.next = next;
                laps += 1;
                continue;
            }
            match found? {
                None => break,
                Some(found) if keep_last && found.end >= commit => break,
                Some(found) => self.skip_record(&found),
            }
        }
        self.release();
        Ok(self.side.taken.skipped.wrapping_sub(before))
    }

    /// Advances past a block, and counts it and all blocks lost before it as skipped.
    fn skip_record(&mut self, found: &CheckedRecord) {
        let taken = self.side.taken;
        self.pass_record(found);
        let skipped = self.side.taken.skipped.wrapping_add(found.lost).wrapping_add(1);
        self.side.taken = ReaderCounts { lost: taken.lost, bytes: taken.bytes, skipped, ..taken };
        self.untaken_blocks = self.untaken_blocks.wrapping_add(1);
    }
}
