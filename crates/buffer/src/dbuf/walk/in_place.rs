//! Reading of blocks where they lie in a ring that overwrites: the bytes are used first, and the
//! lap is checked before the result takes effect. [SL §5.1, peek; CONTRACT 14]

use super::{ATTEMPTS, CheckedRecord, RecordWalk};
use crate::Fault;

impl RecordWalk {
    /// Locates the next block without passing it; first passes what has been overwritten. Returns
    /// `None` if no block is published, or if the writer is overwriting all of them.
    pub(crate) fn locate_lossy(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        for _ in 0..ATTEMPTS {
            let start = self.side.next;
            let found = self.find();
            if !self.is_torn(start) {
                return found;
            }
            match self.side.resume(start)? {
                Some(next) => self.side.next = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Passes and releases the next block. Returns false if the writer has begun to overwrite it;
    /// then everything read from it since [`RecordWalk::locate_lossy`] may mix two laps, and the
    /// block counts as lost once the next one is passed.
    pub(crate) fn take_lossy(&mut self) -> Result<bool, Fault> {
        let start = self.side.next;
        let found = self.find();
        if self.is_torn(start) {
            if let Some(next) = self.side.resume(start)? {
                self.side.next = next;
            }
            return Ok(false);
        }
        if let Some(found) = found? {
            self.pass(&found);
            self.release();
        }
        Ok(true)
    }
}
