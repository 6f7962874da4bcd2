//! Support for waiting on an input's descriptor outside this crate, in an event loop or in a C
//! program with poll(2).

use super::Input;
use crate::Fault;

impl Input {
    /// Arranges for the descriptor to become readable at the next block or at the end of the
    /// stream, and returns false; the caller must call [`Input::unwatch`] next. If there is already
    /// something to read, does nothing and returns true.
    pub fn watch(&mut self) -> Result<bool, Fault> {
        let result = self.announce_sleep();
        if result != Ok(false) {
            self.announce_wake(false);
        }
        result
    }

    /// Ends [`Input::watch`]: drains the notification that made the descriptor readable.
    pub fn unwatch(&mut self) {
        self.drain_doorbell();
        self.announce_wake(false);
    }
}
