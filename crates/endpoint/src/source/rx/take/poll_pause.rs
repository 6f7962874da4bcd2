//! Pauses between polls of the queues at high frame rates. [Th §5.2.2]
//!
//! An AF_XDP socket wakes its poller for every frame. If a wakeup takes longer than the interval
//! between frames, every frame costs a wakeup. A reader that has drained the queues and expects
//! more frames soon therefore sleeps for a limited time instead of polling. Frames that arrive
//! during this sleep cause no wakeup, and are received together.
//!
//! The time of the next poll is computed from frame counts and the clock.

use filter::Time;

/// Maximum length of a pause in nanoseconds: half of the latency that a block may have by default.
const PAUSE_MAX_NS: Time = 500_000;
/// Divisor that limits a pause: the frames expected during a pause fill at most the capacity of a
/// queue divided by this number.
const QUEUE_FILL_DIVISOR: u64 = 4;
/// Minimum number of frames expected during a pause. If fewer are expected, the reader does not
/// pause.
const EXPECTED_FRAMES_MIN: u64 = 2;

/// The pause policy of a reader, with arrival statistics since its last pause.
#[derive(Debug)]
pub(super) struct PollPause {
    pause_max_ns: Time,
    /// Capacity of a receive queue in frames.
    queue_frames: u64,
    received: u64,
    /// Time at which the queues were last empty.
    last_empty: Time,
    /// End of the latest pause, which may lie in the future.
    pause_until: Time,
}

impl PollPause {
    /// Creates the pause policy for queues of `room` frames. `latency` is the maximum time for
    /// which a block may wait.
    pub(super) fn new(latency: Option<Time>, room: usize) -> Self {
        let pause_max_ns = latency.map_or(PAUSE_MAX_NS, |latency| PAUSE_MAX_NS.min(latency / 2));
        Self { pause_max_ns, queue_frames: room as u64, received: 0, last_empty: 0, pause_until: 0 }
    }

    /// Counts `frames` frames as received since the last pause.
    pub(super) const fn count_received_frames(&mut self, frames: usize) {
        self.received = self.received.saturating_add(frames as u64);
    }

    /// Returns the end of a pause that begins now, when the queues are empty, or `None` if too few
    /// frames are expected. A repeated call within a pause returns the same time, because a space
    /// polls once more before it sleeps.
    pub(super) fn begin_pause(&mut self, now: Time) -> Option<Time> {
        if self.received == 0 && now < self.pause_until {
            return Some(self.pause_until);
        }
        let passed = now.saturating_sub(std::mem::replace(&mut self.last_empty, now)).max(1);
        let received = std::mem::take(&mut self.received);
        let is_worthwhile = received.saturating_mul(self.pause_max_ns)
            >= EXPECTED_FRAMES_MIN.saturating_mul(passed);
        let time_to_fill =
            passed.saturating_mul(self.queue_frames / QUEUE_FILL_DIVISOR).checked_div(received)?;
        if !is_worthwhile {
            return None;
        }
        self.pause_until = now.saturating_add(self.pause_max_ns.min(time_to_fill));
        Some(self.pause_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length, in microseconds, of the pause after `frames` frames have been received
    /// in `us` microseconds, or `None` if there is no pause.
    fn pause_after(pause: &mut PollPause, frames: usize, us: Time) -> Option<Time> {
        let now = pause.last_empty + us * 1000;
        pause.count_received_frames(frames);
        pause.begin_pause(now).map(|until| (until - now) / 1000)
    }

    #[test]
    fn pause_begins_only_at_high_frame_rates() {
        let pause = &mut PollPause::new(None, 4096);
        assert_eq!(pause_after(pause, 0, 10), None, "no frame was received");
        assert_eq!(pause_after(pause, 1, 10), Some(500));
        assert_eq!(
            pause.begin_pause(pause.last_empty + 3000),
            Some(pause.last_empty + 500_000),
            "the pause is not over yet"
        );
        assert_eq!(pause_after(pause, 1, 249), Some(500));
        assert_eq!(pause_after(pause, 1, 251), None, "one frame per pause is too few");
        assert_eq!(pause_after(pause, 100, 1000), Some(500), "the pause ended late");
        assert_eq!(pause_after(pause, 3, 1000), None, "the rate has decreased");
    }

    #[test]
    fn pause_is_limited_by_queue_room_and_latency() {
        let pause = &mut PollPause::new(None, 4096);
        assert_eq!(pause_after(pause, 1000, 100), Some(102), "a quarter is 1024 frames");
        let pause = &mut PollPause::new(Some(200_000), 4096);
        assert_eq!(pause_after(pause, 100, 1000), Some(100));
        let pause = &mut PollPause::new(Some(0), 4096);
        assert_eq!(pause_after(pause, 100, 1000), None);
    }
}
