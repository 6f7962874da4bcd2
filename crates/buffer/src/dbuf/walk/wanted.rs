//! Selective reading, in which a reader selects blocks by their first bytes.

use super::{READ_ATTEMPTS_MAX, RecordWalk};
use crate::Fault;
use crate::wait::Wanted;

/// Maximum number of blocks passed in one call, so that the caller can handle other events.
const PASSED_BLOCKS_MAX: u64 = 4096;

impl RecordWalk {
    /// Calls `wants` with the first `head` bytes of each block until `wants` selects a block by
    /// returning a value other than [`Wanted::Nothing`]. Copies these bytes, or the entire block,
    /// into `out`, and releases all blocks passed so far. Returns the length of the selected block
    /// with the value that `wants` returned, and the number of blocks passed before it. Returns
    /// `None` for the block if no selected block is published, or after [`PASSED_BLOCKS_MAX`]
    /// blocks. Fails with [`Fault::TooLong`] if `out` is too short. `wants` may be called several
    /// times for a block, and also with bytes that the writer is overwriting.
    pub(crate) fn read_wanted(
        &mut self,
        out: &mut [u8],
        head: usize,
        wants: &dyn Fn(&[u8]) -> Wanted,
    ) -> Result<(Option<(usize, Wanted)>, u64), Fault> {
        let (mut passed, mut attempts) = (0, 0);
        while attempts < READ_ATTEMPTS_MAX && passed < PASSED_BLOCKS_MAX {
            let start = self.side.next;
            let Some(found) = self.find().transpose() else { break };
            let limit = out.len();
            let copied = found.and_then(|found| {
                let length = found.length as usize;
                let too_long = Fault::TooLong { length, limit };
                let (to, rest) = out.split_at_mut_checked(length.min(head)).ok_or(too_long)?;
                self.data.copy_out(found.at, to);
                let wanted = wants(to);
                if wanted == Wanted::Block {
                    let rest = rest.get_mut(..length - to.len()).ok_or(too_long)?;
                    self.data.copy_out(found.at + to.len() as u64, rest);
                }
                Ok((found, wanted))
            });
            if self.is_torn(start) {
                // The copy may mix two records: resume where the data is intact.
                attempts += 1;
                match self.side.resume_position(start)? {
                    Some(next) => self.side.next = next,
                    None => break,
                }
                continue;
            }
            let (found, wanted) = match copied {
                Ok(copied) => copied,
                Err(fault) => {
                    self.release();
                    return Err(fault);
                }
            };
            self.pass(&found);
            attempts = 0;
            if wanted != Wanted::Nothing {
                self.release();
                return Ok((Some((found.length as usize, wanted)), passed));
            }
            passed += 1;
        }
        if passed > 0 {
            self.release();
        }
        Ok((None, passed))
    }

    /// Returns the sequence number of the next block, where the first block of the ring has number
    /// 0. Returns `None` if the reader joined later and has not passed a block yet.
    pub(crate) fn next_number(&self) -> Option<u64> {
        self.is_expected_valid.then_some(self.expected)
    }
}
