//! Events of a running path for threads that sleep while the path has no input.

use crate::live::PathHandle;
use std::sync::Arc;
use sys::eventfd::EventFd;

impl PathHandle {
    /// Requests a single notification of `event`. It is sent after the next pass in which a space
    /// has input or an expired timer. Until then, the counters of the path do not change. Replaces
    /// the event of an earlier call.
    pub fn notify_after_input(&self, event: &Arc<EventFd>) {
        self.control.set_input_event(event);
    }

    /// Wakes all sleeping spaces of the path, each of which then calls [`endpoint::Sink::on_idle`]
    /// for its sinks before it sleeps again.
    pub fn wake(&self) {
        self.control.notify_spaces();
    }
}
