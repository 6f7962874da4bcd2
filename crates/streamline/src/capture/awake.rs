//! Captures whose caller sleeps on a socket and is woken by the host
//! ([`CaptureSettings::host_wakes`]).
//!
//! [`CaptureSettings::host_wakes`]: super::CaptureSettings::host_wakes

use super::Capture;

impl Capture {
    /// Takes frames from the host from now on, until [`Self::fall_asleep`]. Only for captures with
    /// [`host_wakes`](super::CaptureSettings::host_wakes).
    pub fn wake_up(&self) {
        self.directions.iter().for_each(|direction| direction.attached.doorbell.set_awake(true));
    }

    /// Leaves frames to the host from now on, until [`Self::wake_up`]. Waits until the kernel
    /// programs have stored all frames that they have taken, and makes these frames available to
    /// the next reads.
    pub fn fall_asleep(&mut self) {
        self.directions.iter().for_each(|direction| direction.attached.doorbell.set_awake(false));
        // A program runs for less than a microsecond, unless the machine runs something else.
        while self.directions.iter().any(|direction| direction.attached.rings.has_active_writer()) {
            std::thread::yield_now();
        }
        self.load_arrived_frames();
    }
}
