//! Wake-ups between threads: one doorbell per space. [SL §5.4, event moderation]
//!
//! A space sleeps on its own doorbell, whatever ring it waits for, and its peers notify the
//! doorbell when there is work. `notify` checks a waiter flag and costs one atomic operation while
//! no thread waits (a futex wake costs about 300 ns even then, and 7 µs once the other processor
//! has halted: BASELINES). Sleeping without a limit arms no timer.
//!
//! The word is `epoch << 1 | waiting`. No wake-up is lost: *listen* and *notify* are
//! read-modify-writes of the same word, so they are ordered. If *notify* is second, it finds the
//! flag and wakes the sleeper. If *listen* is second, it reads the value that *notify* wrote, so
//! the sleeper's next check sees everything published before (Release to Acquire). The epoch
//! prevents a notified sleeper from going back to sleep after another sleeper has set the flag
//! again.
//!
//! Testing for sleepers does not write ([`Doorbell::has_unnotified_sleeper`]). SYNC POINT *falling
//! asleep*: the sleeper sets the flag, issues a fence, and checks its condition once more; the
//! other side publishes, issues a fence, and reads the flag. The fences are sequentially
//! consistent: at least one of the two sees the other's store.
//!
//! The frequency of notifications is decided in [`wakeup_moderation`].

#[cfg(not(loom))]
mod spin;
pub mod wakeup_moderation;

#[cfg(not(loom))]
pub use spin::SpinState;

use crate::atomic::{AtomicU32, Ordering, fence, pause};
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(not(loom))]
use std::sync::OnceLock;
use std::time::Duration;
#[cfg(not(loom))]
use sys::eventfd::EventFd;

/// The doorbell of one space: a futex on which the space sleeps until it is notified.
#[derive(Debug, Default)]
pub struct Doorbell {
    word: AtomicU32,
    /// 1 if [`Doorbell::notify_freed_room`] does not wake the sleepers, because they do not wait
    /// for room; otherwise 0.
    ignores_room: AtomicU32,
    /// Event that each notification signals as well, for a sleeper that polls descriptors.
    #[cfg(not(loom))]
    alarm: OnceLock<EventFd>,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

/// The result of [`Doorbell::prepare_to_sleep`], required by [`Doorbell::sleep`]: proof that the
/// caller listened before its last check for work.
#[derive(Clone, Copy, Debug)]
pub struct SleepTicket(u32);

const WAITING_FLAG: u32 = 1;
const EPOCH_STEP: u32 = 2;

impl Doorbell {
    /// Creates a doorbell without sleepers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a doorbell for [`Doorbell::sleep_with_descriptors`]. Every notification that wakes a
    /// sleeper then costs one more system call. Fails if the kernel refuses an event descriptor.
    #[cfg(not(loom))]
    pub fn with_alarm() -> sys::Result<Self> {
        let doorbell = Self::new();
        doorbell.add_alarm_descriptor()?;
        Ok(doorbell)
    }

    /// Adds the descriptor that [`Doorbell::sleep_with_descriptors`] polls, unless there is one
    /// already. A thread that is already sleeping is not affected.
    #[cfg(not(loom))]
    pub fn add_alarm_descriptor(&self) -> sys::Result<()> {
        if self.alarm.get().is_none() {
            // Two threads may race here: the second descriptor is dropped.
            let _ = self.alarm.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Announces that the caller is about to sleep, and returns a ticket. The caller must then
    /// check for work once more and, if there is none, call [`Doorbell::sleep`] with the ticket.
    pub fn prepare_to_sleep(&self) -> SleepTicket {
        // SYNC POINT: listen; pairs with the Release in `notify`.
        let ticket = SleepTicket(self.word.fetch_or(WAITING_FLAG, Ordering::AcqRel) | WAITING_FLAG);
        // SYNC POINT: falling asleep; pairs with the fence in `has_unnotified_sleeper`.
        fence(Ordering::SeqCst);
        ticket
    }

    /// Returns true if a thread is sleeping on this doorbell or is about to sleep on it. Call this
    /// after publishing work. If the result is false, the work needs no notification: a thread
    /// checks for work once more before it falls asleep, and finds it.
    #[inline]
    #[must_use]
    pub fn has_unnotified_sleeper(&self) -> bool {
        // SYNC POINT: falling asleep; pairs with the fence in `listen`.
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) & WAITING_FLAG != 0
    }

    /// Blocks until a notification arrives that was sent after the ticket was issued. May return
    /// spuriously.
    pub fn sleep(&self, ticket: SleepTicket) {
        self.wait(ticket, None);
    }

    /// Blocks like [`Doorbell::sleep`], for at most `limit`. Arming the timer costs about 5 µs, so
    /// call this only where a limit is needed, for example in a writer that sleeps before it has
    /// notified its readers of all blocks.
    pub fn sleep_for(&self, ticket: SleepTicket, limit: Duration) {
        self.wait(ticket, Some(limit));
    }

    /// Blocks like [`Doorbell::sleep`], but also returns when one of the descriptors is readable or
    /// `limit` has passed (`None` means no limit). If the doorbell has no alarm
    /// ([`Doorbell::add_alarm_descriptor`]), notifications do not end the wait. May wake
    /// spuriously.
    #[cfg(not(loom))]
    pub fn sleep_with_descriptors(
        &self,
        ticket: SleepTicket,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) {
        let mut all = descriptors.to_vec();
        if let Some(alarm) = self.alarm.get() {
            // `notify` changes the word first: either that change is visible here, or the alarm is
            // signalled after it was cleared.
            alarm.clear();
            if self.word.load(Ordering::Acquire) != ticket.0 {
                return;
            }
            all.push(alarm.as_fd());
        }
        sys::poll::wait_until_readable(&all, limit);
    }

    /// Wakes all sleepers. Returns true if there were any. The caller must publish its work before
    /// this call.
    pub fn notify(&self) -> bool {
        // SYNC POINT: notify; pairs with the Acquire in `listen`.
        let before = self.word.fetch_and(!WAITING_FLAG, Ordering::AcqRel);
        if before & WAITING_FLAG == 0 {
            return false;
        }
        self.word.fetch_add(EPOCH_STEP, Ordering::AcqRel);
        self.wake();
        true
    }

    /// Wakes all sleepers because room or memory has been released. Returns true if there were any
    /// sleepers. Does nothing and returns false if the sleepers have declared that they do not wait
    /// for room ([`Doorbell::set_waits_for_room`]).
    pub fn notify_freed_room(&self) -> bool {
        // SYNC POINT: room released. A sleeper that waits for room sets the flag, listens, which
        // issues a fence, and checks for room: either it sees the room released before this fence,
        // or the flag is visible here.
        fence(Ordering::SeqCst);
        self.ignores_room.load(Ordering::Relaxed) == 0 && self.notify()
    }

    /// Declares whether the sleepers of this doorbell wait for room, so that
    /// [`Doorbell::notify_freed_room`] wakes them. By default, it does. Call this with true before
    /// waiting for room.
    pub fn set_waits_for_room(&self, waits: bool) {
        self.ignores_room.store(u32::from(!waits), Ordering::Relaxed);
    }

    /// Waits until `ready` returns true: polls `ready` up to `spins` times, then sleeps between
    /// calls. Polling for as long as a wake-up takes (2 to 25 µs) pays off with two processors and
    /// never with one; [`spin_limit_for_processors`] returns a suitable number.
    pub fn wait_until(&self, spins: u32, mut ready: impl FnMut() -> bool) {
        for _ in 0..spins {
            if ready() {
                return;
            }
            pause();
        }
        loop {
            let ticket = self.prepare_to_sleep();
            if ready() {
                return;
            }
            self.sleep(ticket);
        }
    }

    #[cfg(not(loom))]
    fn wait(&self, ticket: SleepTicket, limit: Option<Duration>) {
        use sys::futex::{FutexScope, wait, wait_for};
        match limit {
            None => wait(&self.word, ticket.0, FutexScope::Private),
            Some(limit) => {
                wait_for(&self.word, ticket.0, FutexScope::Private, limit);
            }
        }
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        sys::futex::wake(&self.word, u32::MAX, sys::futex::FutexScope::Private);
        if let Some(alarm) = self.alarm.get() {
            alarm.notify();
        }
    }

    /// Sleeps as the kernel's futex does in a model: reading the word and falling asleep are one
    /// step.
    #[cfg(loom)]
    fn wait(&self, ticket: SleepTicket, _limit: Option<Duration>) {
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

/// Returns the number of times to poll before sleeping, on a machine with this many processors.
#[must_use]
pub const fn spin_limit_for_processors(processors: usize) -> u32 {
    if processors > 1 { 2000 } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sleeper_not_waiting_for_room_sleeps_on_when_room_is_freed() {
        let doorbell = Doorbell::new();
        let wakes = |waits| {
            let _ticket = doorbell.prepare_to_sleep();
            doorbell.set_waits_for_room(waits);
            doorbell.notify_freed_room()
        };
        assert!(wakes(true));
        assert!(!wakes(false) && doorbell.has_unnotified_sleeper());
        assert!(doorbell.notify() && !doorbell.has_unnotified_sleeper(), "for anything else");
        assert!(!doorbell.notify_freed_room());
        assert!(wakes(true), "waits for room again");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no poll(2)")]
    fn sleeper_among_descriptors_is_woken_at_any_moment() {
        let doorbell = Doorbell::with_alarm().unwrap();
        let event = EventFd::new().unwrap();
        for round in 0..200 {
            let done = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    done.store(1, Ordering::Release);
                    match round % 2 {
                        0 => drop(doorbell.notify()),
                        _ => event.notify(),
                    }
                });
                while done.load(Ordering::Acquire) == 0 {
                    let ticket = doorbell.prepare_to_sleep();
                    if done.load(Ordering::Acquire) == 0 {
                        doorbell.sleep_with_descriptors(ticket, &[event.as_fd()], None);
                    }
                }
            });
            event.clear();
        }
    }
}
