//! Sleeps of a reader. While blocks arrive, the reader rests for a fixed time after it has read all
//! of them, so the writer does not wake each of its readers each time that its input pauses. A rest
//! in which no block has arrived is followed by a sleep that the next block ends.

use super::Shared;

/// Duration of a rest in ns, at most which a block waits for its reader while blocks arrive.
pub(super) const REST: u64 = 10_000_000;

/// A sleep for a limited time, which the writer ends only if much is unread.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    /// Time of its end.
    until: u64,
    /// True if the source has been called since it began.
    is_checked: bool,
}

impl Shared {
    /// Announces to the writer that the source rests until this time.
    pub(super) fn announce_rest(&mut self, until: u64) {
        if let Some(input) = &mut self.input {
            self.asleep = true;
            self.rest = Some(Rest { until, is_checked: false });
            input.announce_rest();
        }
    }

    /// Returns the end of the current rest, if it is not over.
    pub(super) fn remaining_rest(&mut self, now: u64) -> Option<u64> {
        let rest = self.rest.as_mut().filter(|rest| now < rest.until)?;
        if self.end_number.is_some() || !self.created.is_empty() {
            return None;
        }
        // The space calls once more before it sleeps, and then only if something has happened.
        let drain = std::mem::replace(&mut rest.is_checked, true);
        let until = rest.until;
        let is_over = self.input.as_mut()?.is_rest_over(drain);
        (!is_over.unwrap_or(true)).then_some(until)
    }

    /// Notifies the writer that the source is about to sleep. Returns true if there is something to
    /// read after all.
    pub(super) fn announce_sleep(&mut self) -> bool {
        let Some(input) = &mut self.input else { return true };
        self.asleep = true;
        let has_more = input.announce_sleep_until_flush().unwrap_or(true);
        if has_more {
            self.asleep = false;
            input.wake(true);
        }
        has_more
    }
}
