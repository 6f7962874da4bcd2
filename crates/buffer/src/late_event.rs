//! Test events, which fire in the middle of a reader's call to reproduce races deterministically.
//!
//! A reader observes its writer through two channels: published blocks in memory, and the doorbell,
//! which reports the exit. A reader that first checks memory and then drains the doorbell may miss
//! a block:
//!
//! ```text
//! reader   finds no block                    drains: the writer is gone    → reports the end
//! writer                   publishes, is killed
//! ```
//!
//! Every kind of reader passes the same test: between the reader's check for blocks and its
//! decision that none is left, the writer publishes a block and then closes the stream or is
//! killed. The reader must read the block, and then report the end correctly.

use std::fmt;

/// A test event that fires once, in the middle of a reader's next call that finds no block.
#[derive(Default)]
pub struct LateEvent(Option<Box<dyn FnOnce() + Send>>);

impl LateEvent {
    /// Arms the event: when it fires, it calls `act`.
    pub fn arm(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// Fires the event if it is armed. Returns true if the event was armed.
    pub fn fire(&mut self) -> bool {
        self.0.take().map(|act| act()).is_some()
    }
}

impl fmt::Debug for LateEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LateEvent({})", self.0.is_some())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
