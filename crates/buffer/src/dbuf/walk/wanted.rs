//! Reading of the blocks that a reader wants, by their first bytes.

use super::{ATTEMPTS, RecordWalk};
use crate::Fault;

impl RecordWalk {
    /// Copies the first `head` bytes of the next block into `out`, and, if `wants` returns true for
    /// them, the rest of the block. Releases the block in both cases. Returns its length, and true
    /// if it was copied; `None` if no block is published. Fails with [`Fault::TooLong`] if `out` is
    /// too short. `wants` may be called several times for a block, also with bytes that the writer
    /// is overwriting.
    pub(crate) fn read_wanted(
        &mut self,
        out: &mut [u8],
        head: usize,
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<(usize, bool)>, Fault> {
        for _ in 0..ATTEMPTS {
            let start = self.side.next;
            let Some(found) = self.find().transpose() else { return Ok(None) };
            let limit = out.len();
            let copied = found.and_then(|found| {
                let length = found.length as usize;
                let too_long = Fault::TooLong { length, limit };
                let to = out.get_mut(..length.min(head)).ok_or(too_long)?;
                self.data.copy_out(found.at, to);
                let is_wanted = wants(to);
                if is_wanted {
                    let to = out.get_mut(..length).ok_or(too_long)?;
                    self.data.copy_out(found.at, to);
                }
                Ok((found, is_wanted))
            });
            if self.is_torn(start) {
                // The copy may mix two records: resume where the data is intact.
                match self.side.resume_position(start)? {
                    Some(next) => self.side.next = next,
                    None => return Ok(None),
                }
                continue;
            }
            let (found, is_wanted) = copied?;
            self.pass(&found);
            self.release();
            return Ok(Some((found.length as usize, is_wanted)));
        }
        Ok(None)
    }
}
