//! Wake-ups of a stream's readers beyond those that they ask for. [Th §5.2.2]
//!
//! By itself a stream shows what was written after T_b blocks, and wakes a reader that sleeps when
//! there is as much as that reader asked for, or when its writer turns to something else. With a
//! bound on the latency ([`super::Config::latency`]) every block is shown at once, and a reader
//! that sleeps is woken after T_b blocks or T_t time, by the timer of the process if the writer is
//! busy elsewhere (`signal::moderate`). The timer has doorbells of its own to ring; it touches
//! nothing else of the stream, and a ring too many only makes a reader look once more.

use crate::signal::moderate::{Events, Moderator, Signal, Threshold, Timer};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::doorbell::SocketDoorbell;

/// Overrides of how readers are woken and room is waited for, for measurements. By default: as
/// above, and never with a timer for a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waking {
    /// Every flush rings, whether somebody sleeps or not.
    pub always: bool,
    /// A wait for room ends after this time, and is begun again.
    pub limit: Option<Duration>,
}

/// The bound on the latency of one stream.
#[derive(Debug)]
pub(super) struct Latency {
    moderator: Moderator,
    doorbells: Arc<TimerDoorbells>,
    /// Count of blocks at the last publication.
    shown: u64,
}

/// The doorbells that the timer rings.
#[derive(Debug, Default)]
struct TimerDoorbells(Mutex<Vec<SocketDoorbell>>);

impl Signal for TimerDoorbells {
    fn signal(&self) {
        for doorbell in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // Who is gone is noticed by the writer.
            let _ = doorbell.notify();
        }
    }
}

impl Latency {
    pub(super) fn new(blocks: u64, ns: u64, entries: usize) -> Self {
        let doorbells = Arc::<TimerDoorbells>::default();
        let threshold = Threshold { blocks, ns }.within(entries);
        let moderator = Moderator::new(Timer::of_process(), threshold, doorbells.clone());
        Self { moderator, doorbells, shown: 0 }
    }

    /// Gives the timer copies of these readers' doorbells.
    pub(super) fn knows<'a>(&mut self, readers: impl Iterator<Item = &'a SocketDoorbell>) {
        let copy = |of: &SocketDoorbell| of.as_fd().try_clone_to_owned().map(SocketDoorbell::from);
        let copies: Result<Vec<SocketDoorbell>, _> = readers.map(copy).collect();
        match copies {
            Ok(copies) => *self.doorbells.0.lock().unwrap_or_else(PoisonError::into_inner) = copies,
            // No descriptor is left for the timer: then the writer rings for every block.
            Err(_) => self.moderator.bound(1),
        }
    }

    /// So many blocks were put in all and are shown now; whether a reader sleeps. Answers whether
    /// those that sleep are to be woken.
    pub(super) fn shows(&mut self, put: u64, awaited: bool) -> bool {
        let blocks = put - self.shown;
        self.shown = put;
        self.moderator.published(blocks, awaited, sys::clock::monotonic)
    }

    /// Wakes sleeping readers now, because the writer turns to something else.
    pub(super) fn flushes(&mut self, put: u64) {
        self.shown = put;
        self.moderator.idle();
    }

    pub(super) fn events(&self) -> Events {
        self.moderator.events()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::{Config, Output, stream};
    use abi::DbufId;
    use std::sync::mpsc;
    use std::thread;

    /// Waits until the reader of a stream sleeps.
    fn falls_asleep(output: &mut Output) {
        while !output.is_awaited() {
            thread::yield_now();
        }
    }

    #[test]
    fn a16_a_sleeping_reader_gets_a_block_within_the_latency_though_nobody_flushes() {
        const NS: u64 = 2_000_000;
        let config = Config::new(DbufId::new(1).unwrap()).latency(NS);
        let (mut output, offers) = stream(&config).unwrap();
        let mut input = offers.into_iter().next().unwrap().open().unwrap();
        let (came, comes) = mpsc::channel();
        let reader = thread::spawn(move || {
            input.spin(0);
            let mut out = [0; 5];
            while input.read(&mut out).unwrap() > 0 {
                came.send(sys::clock::monotonic()).unwrap();
            }
        });
        let mut waits: Vec<u64> = (0..10)
            .map(|_| {
                falls_asleep(&mut output);
                let begin = sys::clock::monotonic();
                output.write(b"block").unwrap();
                comes.recv().unwrap() - begin
            })
            .collect();
        // A reader that was about to sleep looks once more, and then needs nobody. How soon after
        // T_t the others are woken is the machine's; that they are, though nobody flushes, is ours.
        waits.retain(|wait| *wait >= NS);
        let events = output.events().unwrap();
        assert!(!waits.is_empty() && events.timer > 0, "the timer, not the writer: {events:?}");
        assert_eq!(events.batch, 0, "{events:?}");
        // A batch is not held back until T_t.
        let is_event = |output: &Output| output.events().unwrap().batch > 0;
        for _ in 0..20 {
            if is_event(&output) {
                break;
            }
            falls_asleep(&mut output);
            for _ in 0..config.every {
                output.write(b"block").unwrap();
            }
            (0..config.every).for_each(|_| _ = comes.recv().unwrap());
        }
        assert!(is_event(&output), "T_b blocks were an event");
        drop(output);
        reader.join().unwrap();
    }
}
