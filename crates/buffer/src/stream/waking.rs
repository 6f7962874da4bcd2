//! Wake-ups of a stream's readers within a bound on the latency. [Th §5.2.2]
//!
//! A stream without other settings publishes after a number of blocks (T_b), and wakes a sleeping
//! reader when the position for which the reader waits is reached or the writer pauses. With a
//! latency bound ([`super::Config::latency`]) every block is published immediately, and a sleeping
//! reader is woken after T_b blocks or after the bound on the latency (T_t), by the timer of the
//! process if the writer is busy elsewhere (`signal::wakeup_moderation`). The timer has its own
//! doorbell descriptors, and accesses no other part of the stream. A superfluous notification only
//! makes a reader check once more.

use crate::signal::wakeup_moderation::{
    WakeReaders, WakeupCounts, WakeupModerator, WakeupThreshold, WakeupTimer,
};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::doorbell::SocketDoorbell;

/// Settings that change, for measurements, how readers are woken and how the writer waits for room.
/// The default changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WakingOverrides {
    /// True if every flush notifies all readers, asleep or not.
    pub notifies_always: bool,
    /// Time limit of each sleep in which the writer waits for room. After it, the writer checks for
    /// room again. `None` if there is no limit.
    pub sleep_limit: Option<Duration>,
}

/// The state with which a stream's writer wakes its readers within the latency bound.
#[derive(Debug)]
pub(super) struct LatencyState {
    moderator: WakeupModerator,
    doorbells: Arc<TimerDoorbells>,
    /// Number of blocks published so far.
    published: u64,
}

/// Doorbells that the timer notifies: duplicates of the present readers' doorbells.
#[derive(Debug, Default)]
struct TimerDoorbells(Mutex<Vec<SocketDoorbell>>);

impl WakeReaders for TimerDoorbells {
    fn wake_readers(&self) {
        for doorbell in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // A departed reader is noticed by the writer.
            let _ = doorbell.notify();
        }
    }
}

impl LatencyState {
    pub(super) fn new(blocks: u64, ns: u64, entries: usize) -> Self {
        let doorbells = Arc::<TimerDoorbells>::default();
        let threshold = WakeupThreshold { blocks, ns }.limited_to_ring(entries);
        let moderator =
            WakeupModerator::new(WakeupTimer::for_process(), threshold, doorbells.clone());
        Self { moderator, doorbells, published: 0 }
    }

    /// Gives the timer duplicates of these readers' doorbells, so that it can wake the readers.
    pub(super) fn set_readers<'a>(&mut self, readers: impl Iterator<Item = &'a SocketDoorbell>) {
        let copy = |of: &SocketDoorbell| of.as_fd().try_clone_to_owned().map(SocketDoorbell::from);
        let copies: Result<Vec<SocketDoorbell>, _> = readers.map(copy).collect();
        match copies {
            Ok(copies) => *self.doorbells.0.lock().unwrap_or_else(PoisonError::into_inner) = copies,
            // Without descriptors for the timer, every block causes an event.
            Err(_) => self.moderator.limit_blocks(1),
        }
    }

    /// Records a publication. `put` is the total number of blocks published so far, and `awaited`
    /// is true if a reader is asleep. Returns true if the caller must wake sleeping readers now.
    pub(super) fn record_publication(&mut self, put: u64, awaited: bool) -> bool {
        let blocks = put - self.published;
        self.published = put;
        self.moderator.count_published(blocks, awaited, sys::clock::monotonic_ns)
    }

    pub(super) fn record_flush(&mut self, put: u64) {
        self.published = put;
        self.moderator.must_notify_before_wait();
    }

    pub(super) fn wakeup_counts(&self) -> WakeupCounts {
        self.moderator.wakeup_counts()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::{Config, Output, stream};
    use abi::DbufId;
    use std::sync::mpsc;
    use std::thread;

    /// Waits until the stream's reader is asleep.
    fn wait_until_asleep(output: &mut Output) {
        while !output.has_unnotified_sleeper() {
            thread::yield_now();
        }
    }

    #[test]
    fn a16_sleeping_reader_gets_block_within_latency_bound() {
        const LATENCY_NS: u64 = 2_000_000;
        let config = Config::new(DbufId::new(1).unwrap()).latency(LATENCY_NS);
        let (mut output, offers) = stream(&config).unwrap();
        let mut input = offers.into_iter().next().unwrap().open().unwrap();
        let (arrived, arrivals) = mpsc::channel();
        let reader = thread::spawn(move || {
            input.set_spin_limit(0);
            let mut out = [0; 5];
            while input.read(&mut out).unwrap() > 0 {
                arrived.send(sys::clock::monotonic_ns()).unwrap();
            }
        });
        let mut waits: Vec<u64> = (0..10)
            .map(|_| {
                wait_until_asleep(&mut output);
                let begin = sys::clock::monotonic_ns();
                output.write(b"block").unwrap();
                arrivals.recv().unwrap() - begin
            })
            .collect();
        // A reader about to sleep checks once more and may then not need an event; such waits are
        // ignored. How soon after T_t the others end depends on the machine, but they must end
        // without a flush.
        waits.retain(|wait| *wait >= LATENCY_NS);
        let events = output.wakeup_counts().unwrap();
        assert!(!waits.is_empty() && events.timer > 0, "the timer, not the writer: {events:?}");
        assert_eq!(events.batch, 0, "{events:?}");
        // A batch is not held back until T_t.
        let is_event = |output: &Output| output.wakeup_counts().unwrap().batch > 0;
        for _ in 0..20 {
            if is_event(&output) {
                break;
            }
            wait_until_asleep(&mut output);
            for _ in 0..config.every {
                output.write(b"block").unwrap();
            }
            (0..config.every).for_each(|_| _ = arrivals.recv().unwrap());
        }
        assert!(is_event(&output), "T_b blocks were an event");
        drop(output);
        reader.join().unwrap();
    }
}
