//! What a writer does in the middle of a call of its reader: a race that is always lost, for tests.
//!
//! Two news come from a writer by two ways: what it has shown, in memory, and that it is gone,
//! by its bell. A reader that looks first and hears then knows less than it thinks:
//!
//! ```text
//! reader   looks: nothing                 hears: the writer is gone      → so nothing is lost?
//! writer                   shows, is killed
//! ```
//!
//! Every kind of reader sits one exam: between its look and the question whether that was all,
//! its writer shows a block and is killed, or ends. The block must be read, and then the end be
//! what it is.

use std::fmt;

/// What happens once, in the middle of the next call that finds nothing.
#[derive(Default)]
pub(crate) struct Meanwhile(Option<Box<dyn FnOnce() + Send>>);

impl Meanwhile {
    /// Has this happen.
    pub(crate) fn comes(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// Has it happen now; answers whether there was anything. The reader is to hear of it.
    pub(crate) fn passes(&mut self) -> bool {
        self.0.take().map(|act| act()).is_some()
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meanwhile({})", self.0.is_some())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
