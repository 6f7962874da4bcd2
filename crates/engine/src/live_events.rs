//! Events of a running path for threads that sleep while the path has no input.

use crate::live::Live;
use std::sync::Arc;
use sys::eventfd::EventFd;

impl Live {
    /// Notifies `event` once, after the next pass of a space with input or an expired timer.
    /// Without such a pass, the counters of the path do not change. Replaces the event of an
    /// earlier call.
    pub fn notify_after_input(&self, event: &Arc<EventFd>) {
        self.control.notify_after_input(event);
    }

    /// Wakes the sleeping spaces of the path. Each woken space calls [`endpoint::Sink::on_idle`] of
    /// its sinks before it sleeps again.
    pub fn wake(&self) {
        self.control.notify_spaces();
    }
}
