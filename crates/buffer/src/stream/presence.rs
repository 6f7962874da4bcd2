//! Presence of readers, for a writer that treats blocks differently while no reader is present, and
//! reports to readers about earlier losses.

use super::Output;
use crate::atomic::Ordering;
use abi::ring::writer;
use std::os::fd::AsFd;
use std::time::Duration;

impl Output {
    /// Returns the number of readers that have joined and whose departure the writer has not
    /// noticed.
    pub fn present_reader_count(&mut self) -> usize {
        self.ring.cursor_mut().poll_joins();
        self.update_readers();
        self.reader_records.iter().filter(|end| !end.has_left).count()
    }

    /// Reports to the readers the total number of blocks that this program has lost before it could
    /// write them to the ring. The number applies to the current segment.
    pub fn report_lost_before_ring(&mut self, blocks: u64) {
        let page = &self.ring.cursor_mut().store.writer;
        page.word(writer::LOST_BEFORE_RING).store(blocks, Ordering::Relaxed);
    }

    /// Waits until a reader is present, for at most `limit` (`None` means no limit). Returns true
    /// if a reader is present. Returns immediately if the stream was created without admission of
    /// readers. Fails if the kernel refuses an event descriptor.
    pub fn wait_for_reader(&mut self, limit: Option<Duration>) -> sys::Result<bool> {
        let Some(queue) = self.ring.cursor_mut().join_queue() else {
            return Ok(self.present_reader_count() > 0);
        };
        let joined = queue.join_event()?;
        // Cleared before the check: a reader that joins after the check makes the event readable
        // again.
        joined.clear();
        if self.present_reader_count() > 0 {
            return Ok(true);
        }
        sys::poll::wait_until_readable(&[joined.as_fd()], limit);
        Ok(self.present_reader_count() > 0)
    }
}
