//! Waking who waits: one bell per space. [SL §5.4, event moderation]
//!
//! A space sleeps on its own bell, whatever rings it reads and writes; whoever gives it something
//! to do rings. Nobody is woken who does not sleep: ringing looks at a waiter flag and costs one
//! atomic operation while nobody waits (a futex wake costs about 300 ns even then, and 7 µs once
//! the other processor has halted: BASELINES). Sleeping arms no timer.
//!
//! The word is `epoch << 1 | waiting`. No wake is lost: *listen* and *ring* are read-modify-writes
//! of the same word, so one comes after the other. If the ring comes second it sees the flag and
//! wakes; if listen comes second it reads what the ring wrote, hence (Release to Acquire) sees what
//! was published before the ring when it looks again. The epoch keeps a sleeper who was already
//! rung for from going to sleep because another one has set the flag anew.
//!
//! Who only wants to know whether somebody sleeps need not write ([`Bell::is_awaited`]). SYNC POINT
//! *falling asleep*: the sleeper sets the flag, makes a fence, and looks once more for what it
//! waits for; the other one publishes, makes a fence, and looks at the flag. The fences are
//! sequentially consistent: at least one of the two sees what the other one stored.
//!
//! How often somebody is rung for is the matter of [`moderate`].

pub mod moderate;
#[cfg(not(loom))]
mod spin;

#[cfg(not(loom))]
pub(crate) use spin::Spin;

use crate::atomic::{AtomicU32, Ordering, fence, pause};
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(not(loom))]
use std::sync::OnceLock;
use std::time::Duration;
#[cfg(not(loom))]
use sys::eventfd::EventFd;

/// What one space sleeps on.
#[derive(Debug)]
pub struct Bell {
    word: AtomicU32,
    /// 1 while nobody who sleeps here waits for room.
    heedless: AtomicU32,
    /// What is rung beside the word, for who sleeps on descriptors too.
    #[cfg(not(loom))]
    alarm: OnceLock<EventFd>,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

/// Proof that one has listened before looking: what [`Bell::sleep`] asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u32);

const WAITING: u32 = 1;
const EPOCH: u32 = 2;

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A bell on which nobody sleeps.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            heedless: AtomicU32::new(0),
            #[cfg(not(loom))]
            alarm: OnceLock::new(),
            #[cfg(loom)]
            sleepers: Default::default(),
        }
    }

    /// A bell on which one can sleep together with descriptors ([`Bell::sleep_among`]). Every ring
    /// that wakes somebody costs a system call more.
    #[cfg(not(loom))]
    pub fn with_alarm() -> sys::Result<Self> {
        let bell = Self::new();
        bell.add_alarm()?;
        Ok(bell)
    }

    /// From now on one can sleep on this bell together with descriptors, if one could not before.
    /// Whoever sleeps on it meanwhile is woken as before.
    #[cfg(not(loom))]
    pub fn add_alarm(&self) -> sys::Result<()> {
        if self.alarm.get().is_none() {
            // Of two that add one at the same time one does it in vain.
            let _ = self.alarm.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Says that we are about to sleep. Look once more whether there is something to do, then
    /// [`Bell::sleep`].
    pub fn listen(&self) -> Ticket {
        // SYNC POINT: listen; pairs with the Release in `ring`.
        let ticket = Ticket(self.word.fetch_or(WAITING, Ordering::AcqRel) | WAITING);
        // SYNC POINT: falling asleep; pairs with the fence in `is_awaited`.
        fence(Ordering::SeqCst);
        ticket
    }

    /// Whether somebody sleeps on this bell, or is about to. Asked after something was published:
    /// if not, whoever falls asleep from now on sees that before.
    #[inline]
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        // SYNC POINT: falling asleep; pairs with the fence in `listen`.
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) & WAITING != 0
    }

    /// Sleeps until the bell has been rung since the ticket was taken. May come back for no reason.
    pub fn sleep(&self, ticket: Ticket) {
        self.wait(ticket, None);
    }

    /// As [`Bell::sleep`], but no longer than `limit`. Arming the timer costs about 5 µs: for the
    /// few waits that need it, such as while blocks are unsignalled.
    pub fn sleep_for(&self, ticket: Ticket, limit: Duration) {
        self.wait(ticket, Some(limit));
    }

    /// Sleeps until the bell has been rung since the ticket was taken, one of the descriptors can
    /// be read, or `limit` is over. A bell without an alarm is not heard. May come back for no
    /// reason.
    #[cfg(not(loom))]
    pub fn sleep_among(
        &self,
        ticket: Ticket,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) {
        let mut all = descriptors.to_vec();
        if let Some(alarm) = self.alarm.get() {
            // Whoever rings changes the word first: either we see that, or we sleep on an alarm
            // that is rung after it was taken back.
            alarm.clear();
            if self.word.load(Ordering::Acquire) != ticket.0 {
                return;
            }
            all.push(alarm.as_fd());
        }
        sys::poll::readable(&all, limit);
    }

    /// Wakes everybody who sleeps on this bell; answers whether somebody did. What is to be found
    /// must be published before.
    pub fn ring(&self) -> bool {
        // SYNC POINT: ring; pairs with the Acquire in `listen`.
        let before = self.word.fetch_and(!WAITING, Ordering::AcqRel);
        if before & WAITING == 0 {
            return false;
        }
        self.word.fetch_add(EPOCH, Ordering::AcqRel);
        self.wake();
        true
    }

    /// As [`Bell::ring`], by who has given back room or memory: whoever sleeps here and has said
    /// that it waits for something else ([`Bell::heed_room`]) sleeps on.
    pub fn ring_for_room(&self) -> bool {
        // SYNC POINT: room given back. Whoever waits for room heeds it, listens, which makes a
        // fence, and looks for room: either it sees what was given back before this fence, or we
        // see that it heeds.
        fence(Ordering::SeqCst);
        self.heedless.load(Ordering::Relaxed) == 0 && self.ring()
    }

    /// Whether who sleeps here from now on wants to know of room: it does unless it has said
    /// otherwise, and must say that it does again before it waits for some.
    pub fn heed_room(&self, heeds: bool) {
        self.heedless.store(u32::from(!heeds), Ordering::Relaxed);
    }

    /// Waits until `ready`: looks `spins` times, then sleeps. Spinning for as long as a wake costs
    /// (2 to 25 µs) pays between two processors and never on one: pass [`spins`].
    pub fn wait_until(&self, spins: u32, mut ready: impl FnMut() -> bool) {
        for _ in 0..spins {
            if ready() {
                return;
            }
            pause();
        }
        loop {
            let ticket = self.listen();
            if ready() {
                return;
            }
            self.sleep(ticket);
        }
    }

    #[cfg(not(loom))]
    fn wait(&self, ticket: Ticket, limit: Option<Duration>) {
        use sys::futex::{Reach, wait, wait_for};
        match limit {
            None => wait(&self.word, ticket.0, Reach::Private),
            Some(limit) => {
                wait_for(&self.word, ticket.0, Reach::Private, limit);
            }
        }
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        sys::futex::wake(&self.word, u32::MAX, sys::futex::Reach::Private);
        if let Some(alarm) = self.alarm.get() {
            alarm.notify();
        }
    }

    /// A futex as the kernel does it: looking at the word and falling asleep are one step.
    #[cfg(loom)]
    fn wait(&self, ticket: Ticket, _limit: Option<Duration>) {
        let guard = self.sleepers.0.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == ticket.0 {
            drop(self.sleepers.1.wait(guard).unwrap());
        }
    }

    #[cfg(loom)]
    fn wake(&self) {
        drop(self.sleepers.0.lock().unwrap());
        self.sleepers.1.notify_all();
    }
}

/// How often to look before sleeping, on a machine with this many processors.
#[must_use]
pub const fn spins(processors: usize) -> u32 {
    if processors > 1 { 2000 } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_something_else_sleeps_on_when_room_is_given_back() {
        let bell = Bell::new();
        let rung = |heeds| {
            let _ticket = bell.listen();
            bell.heed_room(heeds);
            bell.ring_for_room()
        };
        assert!(rung(true));
        assert!(!rung(false) && bell.is_awaited());
        assert!(bell.ring() && !bell.is_awaited(), "for anything else");
        assert!(!bell.ring_for_room());
        assert!(rung(true), "heeded again");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no poll(2)")]
    fn who_sleeps_among_descriptors_is_rung_for_whenever_that_is() {
        let bell = Bell::with_alarm().unwrap();
        let event = EventFd::new().unwrap();
        for round in 0..200 {
            let done = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    done.store(1, Ordering::Release);
                    match round % 2 {
                        0 => drop(bell.ring()),
                        _ => event.notify(),
                    }
                });
                while done.load(Ordering::Acquire) == 0 {
                    let ticket = bell.listen();
                    if done.load(Ordering::Acquire) == 0 {
                        bell.sleep_among(ticket, &[event.as_fd()], None);
                    }
                }
            });
            event.clear();
        }
    }
}
