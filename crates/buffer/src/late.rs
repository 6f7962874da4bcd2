//! Test events that fire in the middle of a reader's call and so reproduce a race
//! deterministically.
//!
//! A reader learns of its writer by two channels: published blocks in memory, and its exit by the
//! doorbell. A reader that first checks memory and then drains the doorbell may miss a block:
//!
//! ```text
//! reader   looks: nothing                    drains: the writer is gone    → so nothing is lost?
//! writer                   publishes, is killed
//! ```
//!
//! Every kind of reader passes the same test: between its check and the decision that nothing is
//! left, its writer publishes a block and is killed, or ends. The reader must read the block, and
//! then report the end correctly.

use std::fmt;

/// An event that fires once, in the middle of the next call that finds no block.
#[derive(Default)]
pub struct LateEvent(Option<Box<dyn FnOnce() + Send>>);

impl LateEvent {
    /// Arms the event.
    pub fn arm(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// Fires the event. Returns true if it was armed.
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
