//! Decides how long to leave queues alone while frames come one after the other. [Th §5.2.2] [Th
//! §5.2.2]
//!
//! A socket of AF_XDP wakes who waits for it with every frame. Where that takes longer than a frame
//! takes to come, each frame is woken for. So whoever has taken all there was, and may expect more
//! in a moment, does not wait for the socket but sleeps for that moment: what comes meanwhile wakes
//! nobody, and is taken at once.
//!
//! In: how many frames came, and the clock. Out: until when to sleep, if at all.

use filter::Time;

/// Half of what a block may wait for its signal by default, in ns.
const REST_NS: Time = 500_000;
/// The part of the room that the frames of a rest may fill.
const PART: u64 = 4;
/// So many frames at least are worth to wait for.
const WORTH: u64 = 2;

/// The measured arrival of frames.
#[derive(Debug)]
pub(super) struct Rest {
    most_ns: Time,
    /// Frames that a queue has room for.
    room: u64,
    came: u64,
    /// Time at which the queues were last empty.
    since: Time,
    /// Time at which the last rest ends.
    until: Time,
}

impl Rest {
    /// For queues with room for so many frames each, where a block may wait for so long.
    pub(super) fn new(latency: Option<Time>, room: usize) -> Self {
        let most_ns = latency.map_or(REST_NS, |latency| REST_NS.min(latency / 2));
        Self { most_ns, room: room as u64, came: 0, since: 0, until: 0 }
    }

    /// So many frames came.
    pub(super) const fn came(&mut self, frames: usize) {
        self.came = self.came.saturating_add(frames as u64);
    }

    /// None is left: until when to leave the queues alone, if that is worth it. Who asks again
    /// before that gets the same answer: a space looks once more before it sleeps.
    pub(super) fn until(&mut self, now: Time) -> Option<Time> {
        if self.came == 0 && now < self.until {
            return Some(self.until);
        }
        let passed = now.saturating_sub(std::mem::replace(&mut self.since, now)).max(1);
        let came = std::mem::take(&mut self.came);
        let worth = came.saturating_mul(self.most_ns) >= WORTH.saturating_mul(passed);
        let full = passed.saturating_mul(self.room / PART).checked_div(came)?;
        if !worth {
            return None;
        }
        self.until = now.saturating_add(self.most_ns.min(full));
        Some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length of a rest that begins after so many frames in so many us.
    fn after(rest: &mut Rest, frames: usize, us: Time) -> Option<Time> {
        let now = rest.since + us * 1000;
        rest.came(frames);
        rest.until(now).map(|until| (until - now) / 1000)
    }

    #[test]
    fn only_who_may_expect_more_rests() {
        let rest = &mut Rest::new(None, 4096);
        assert_eq!(after(rest, 0, 10), None, "nothing came");
        assert_eq!(after(rest, 1, 10), Some(500));
        assert_eq!(rest.until(rest.since + 3000), Some(rest.since + 500_000), "it rests already");
        assert_eq!(after(rest, 1, 249), Some(500));
        assert_eq!(after(rest, 1, 251), None, "one in a rest is none to wait for");
        assert_eq!(after(rest, 100, 1000), Some(500), "rested, and was late");
        assert_eq!(after(rest, 3, 1000), None, "it has become quiet");
    }

    #[test]
    fn a_rest_ends_before_the_queue_is_full_or_a_block_has_waited_too_long() {
        let rest = &mut Rest::new(None, 4096);
        assert_eq!(after(rest, 1000, 100), Some(102), "a quarter is 1024 frames");
        let rest = &mut Rest::new(Some(200_000), 4096);
        assert_eq!(after(rest, 100, 1000), Some(100));
        let rest = &mut Rest::new(Some(0), 4096);
        assert_eq!(after(rest, 100, 1000), None);
    }
}
