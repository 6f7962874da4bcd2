//! Pauses and sleeps of a reader that has read all blocks. If blocks have arrived recently, the
//! reader first pauses: it waits for a fixed time, during which the writer does not wake it unless
//! many blocks are unread. If no block arrives during the pause, the reader sleeps, and the writer
//! wakes it for the next block. A short gap in the input therefore costs no wakeups.

use super::SharedSource;

/// Duration of a pause in ns. While blocks arrive, a block waits at most this long for its reader.
pub(super) const PAUSE_DURATION_NS: u64 = 10_000_000;

/// A pause of a reader. The pause ends at a fixed time, or earlier if the writer notifies the
/// reader because many blocks are unread.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    /// Time at which the pause ends, in ns.
    until: u64,
    /// True if the space has called the source since the pause began. A further call then means
    /// that the writer has notified the source.
    is_checked: bool,
}

impl SharedSource {
    /// Starts a pause that lasts until time `until`, in ns, and tells the writer not to wake this
    /// reader for a few blocks.
    pub(super) fn announce_pause(&mut self, until: u64) {
        if let Some(input) = &mut self.input {
            self.asleep = true;
            self.rest = Some(Pause { until, is_checked: false });
            input.announce_pause();
        }
    }

    /// Returns the end of the current pause, or `None` if the source is not pausing or must end the
    /// pause early.
    pub(super) fn current_pause_end(&mut self, now: u64) -> Option<u64> {
        let rest = self.rest.as_mut().filter(|rest| now < rest.until)?;
        if self.end_number.is_some() || !self.created_blocks.is_empty() {
            return None;
        }
        // The space calls the source once more before it sleeps. Any later call follows a
        // notification, which must be drained.
        let drain = std::mem::replace(&mut rest.is_checked, true);
        let until = rest.until;
        let is_over = self.input.as_mut()?.is_pause_over(drain);
        (!is_over.unwrap_or(true)).then_some(until)
    }

    /// Notifies the writer that the source is about to sleep. Returns true if the source must not
    /// sleep: if there are already unread blocks, or if the ring has ended or cannot be read.
    pub(super) fn announce_sleep(&mut self) -> bool {
        let Some(input) = &mut self.input else { return true };
        self.asleep = true;
        let has_more = input.announce_sleep_until_flush().unwrap_or(true);
        if has_more {
            self.asleep = false;
            input.announce_wake(true);
        }
        has_more
    }
}
