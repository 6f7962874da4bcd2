//! Captures of which the host wakes the caller ([`CaptureSettings::host_wakes`]).
//!
//! [`CaptureSettings::host_wakes`]: super::CaptureSettings::host_wakes

use super::Capture;

impl Capture {
    /// Takes frames from the host from now on, until [`Self::fall_asleep`]. For captures that the
    /// host wakes.
    pub fn wake_up(&self) {
        self.directions.iter().for_each(|direction| direction.attached.doorbell.set_awake(true));
    }

    /// Leaves frames to the host from now on, which is the state at the start. Waits until the
    /// frames that were taken before are in the rings, and makes them visible.
    pub fn fall_asleep(&mut self) {
        self.directions.iter().for_each(|direction| direction.attached.doorbell.set_awake(false));
        // A program runs for less than a microsecond, unless the machine runs something else.
        while self.directions.iter().any(|direction| direction.attached.rings.is_written()) {
            std::thread::yield_now();
        }
        self.load();
    }
}
