//! Copies a block part by part, for a reader that decides from the first bytes of a block which
//! other bytes of the block it copies.

use super::{CheckedRecord, READ_ATTEMPTS_MAX, RecordWalk};
use crate::Fault;
use abi::ring::RecordHeader;

impl RecordWalk {
    /// Advances past the next block of a ring that overwrites, releases the block, and copies its
    /// first bytes into `head`, as many as fit. Returns `None` if no block is published. The other
    /// bytes can be copied with [`RecordWalk::copy_part`] until the writer overwrites them.
    pub(crate) fn open_block(&mut self, head: &mut [u8]) -> Result<Option<CheckedRecord>, Fault> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let start = self.side.next;
            let Some(found) = self.find().transpose() else { return Ok(None) };
            if let Ok(found) = &found {
                let length = head.len().min(found.length as usize);
                self.data.copy_out(found.at, head.get_mut(..length).unwrap_or_default());
            }
            if self.is_torn(start) {
                // The copy may mix two records: resume where the data is intact.
                match self.side.resume_position(start)? {
                    Some(next) => self.side.next = next,
                    None => return Ok(None),
                }
                continue;
            }
            let found = found?;
            self.pass_record(&found);
            self.release();
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Fills `out` with bytes of a block that [`RecordWalk::open_block`] has returned, from
    /// `offset` on. Returns false if the block has too few bytes, or if the writer has begun to
    /// overwrite the block, in which case `out` may mix two laps.
    pub(crate) fn copy_part(&self, block: &CheckedRecord, offset: usize, out: &mut [u8]) -> bool {
        let end = offset.checked_add(out.len());
        if end.is_none_or(|end| end > block.length as usize) {
            return false;
        }
        self.data.copy_out(block.at + offset as u64, out);
        !self.is_torn(block.at - RecordHeader::SIZE as u64)
    }

    /// Returns the sequence number of the next block, where the first block of the ring has number
    /// 0. Returns `None` if the reader joined later and has not passed a block yet.
    pub(crate) fn next_block_number(&self) -> Option<u64> {
        self.is_expected_valid.then_some(self.expected)
    }
}
