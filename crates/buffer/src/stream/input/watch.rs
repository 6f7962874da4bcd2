//! Waiting on the descriptor of an input by code outside of this crate: an event loop, or a C
//! program with poll(2).

use super::Input;
use crate::Fault;

impl Input {
    /// Arranges that the descriptor becomes readable at the next block or the end of the stream,
    /// and returns false; the next call must then be [`Input::unwatch`]. Returns true, without
    /// effect, if there is something to read already.
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
