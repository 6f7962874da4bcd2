//! Waiting on the descriptor of an input outside of this crate: in an event loop, or in a C program
//! with poll(2).

use super::Input;
use crate::Fault;

impl Input {
    /// Makes the descriptor become readable at the next block or the end of the stream, and returns
    /// false; [`Input::unwatch`] must then be the next call. Returns true, without effect, if there
    /// is something to read already.
    pub fn watch(&mut self) -> Result<bool, Fault> {
        let something = self.fall_asleep();
        if something != Ok(false) {
            self.wake(false);
        }
        something
    }

    /// Ends [`Input::watch`]: drains the notification that made the descriptor readable.
    pub fn unwatch(&mut self) {
        self.drain_doorbell();
        self.wake(false);
    }
}
