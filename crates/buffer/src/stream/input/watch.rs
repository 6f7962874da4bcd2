//! Being woken through the descriptor of an end, by whoever polls it together with others: an event
//! loop, or a C program with poll(2).

use super::Input;
use crate::Fault;

impl Input {
    /// Has the descriptor become readable when something comes, or the end. `true`: there is
    /// something already, and nothing was asked for. After `false` comes [`Input::unwatch`],
    /// before anything else is called.
    pub fn watch(&mut self) -> Result<bool, Fault> {
        let something = self.fall_asleep();
        if something != Ok(false) {
            self.wake(false);
        }
        something
    }

    /// Says that we look again, and takes back what made the descriptor readable.
    pub fn unwatch(&mut self) {
        self.hear();
        self.wake(false);
    }
}
