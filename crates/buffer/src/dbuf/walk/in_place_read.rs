//! In-place reading of blocks in a ring that overwrites. The caller first reads the bytes, then
//! checks that the writer has not lapped the reader, and only then relies on the bytes read. [SL
//! §5.1, peek; CONTRACT 14]

use super::{CheckedRecord, READ_ATTEMPTS_MAX, RecordWalk};
use crate::Fault;

impl RecordWalk {
    /// Advances past overwritten blocks, and locates the next block without advancing past it.
    /// Returns `None` if no block is published, or if the writer is overwriting all blocks.
    pub(crate) fn locate_in_lossy_ring(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let start = self.side.next;
            let found = self.find();
            if !self.is_torn(start) {
                return found;
            }
            match self.side.resume_position(start)? {
                Some(next) => self.side.next = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Advances past the next block and releases it. Returns false if the writer has begun to
    /// overwrite the block. The bytes that the caller has read since
    /// [`RecordWalk::locate_in_lossy_ring`] may then mix two laps. The block is counted as lost
    /// when the reader passes the next block.
    pub(crate) fn take_unless_overwritten(&mut self) -> Result<bool, Fault> {
        let start = self.side.next;
        let found = self.find();
        if self.is_torn(start) {
            if let Some(next) = self.side.resume_position(start)? {
                self.side.next = next;
            }
            return Ok(false);
        }
        if let Some(found) = found? {
            self.pass_record(&found);
            self.release();
        }
        Ok(true)
    }
}
