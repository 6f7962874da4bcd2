//! Events in the middle of a reader's call: a race that the reader always loses, for tests.
//!
//! Two news come from a writer by two ways: what it has published, in memory, and that it is gone,
//! by its doorbell. A reader that looks first and then drains the doorbell knows less than it
//! thinks:
//!
//! ```text
//! reader   looks: nothing                    drains: the writer is gone    → so nothing is lost?
//! writer                   publishes, is killed
//! ```
//!
//! Every kind of reader sits one exam: between its look and the question whether that was all, its
//! writer publishes a block and is killed, or ends. The block must be read, and then the end must
//! be reported as it is.

use std::fmt;

/// An event that fires once, in the middle of the next call that finds nothing.
#[derive(Default)]
pub struct LateEvent(Option<Box<dyn FnOnce() + Send>>);

impl LateEvent {
    /// Arms the event.
    pub fn arm(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// Fires the event; returns true if it was armed.
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
