//! Event moderation: how often a sleeping reader is woken. [SL §6.2], [Th §5.2.2]
//!
//! The rule, per buffer: a counter is incremented for every published block of which the reader has
//! not been notified. When it reaches T_b, an event (a wake-up of the reader) is sent and the
//! counter is reset. The first increment sets an alarm that fires after time T_t. If the alarm
//! fires before T_b is reached, the timer sends the event in place of the writer. An event sent for
//! T_b cancels the alarm. Deviation: a block is not counted if its reader is awake. A reader checks
//! for blocks once more before it sleeps, so an awake reader needs no event, and a stream whose
//! reader keeps up sends no events.
//!
//! T_b may adapt ([`WakeupModerator::set_adaptation_max`]): it doubles while an event would follow
//! the previous one within the time that a wake-up takes, and halves while blocks arrive slowly. A
//! reader that keeps falling asleep while the writer is busy then costs one task switch per wake-up
//! time, not one per 32 blocks. Its blocks wait for about as long as a processor takes to wake up.
//!
//! No timer is armed per wait (5 µs, BASELINES). There is one [`WakeupTimer`] per process, a thread
//! that runs while an alarm is set and for a few T_t longer, and otherwise sleeps without a limit.
//! While the thread runs, setting an alarm is a single store. The bound T_t therefore also holds
//! while the writer is busy elsewhere, for example in a long computation or a blocking source.
//!
//! SYNC POINTS:
//! - *alarm set*: [`WakeupModerator::count_published`] stores the deadline with Release after the
//!   blocks were published, [`WakeupTimer::fire_due_alarms`] loads it with Acquire and then
//!   notifies: a woken reader sees the blocks.
//! - *next check*: the writer stores the deadline, issues a fence, and reads the time of the
//!   timer's next check; the timer stores that time, issues a fence, and reads the deadlines once
//!   more before it sleeps. The fences are sequentially consistent: at least one sees the other's
//!   store.

use super::Doorbell;
use crate::atomic::{AtomicU64, Ordering, fence};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The two limits that decide when a sleeping reader of a buffer is woken: a number of blocks and a
/// time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WakeupThreshold {
    /// Number of blocks after which an event is sent (T_b): a power of two.
    pub blocks: u64,
    /// Time in nanoseconds after which an event is sent for fewer blocks (T_t).
    pub ns: u64,
}

impl Default for WakeupThreshold {
    /// Returns the default thresholds: 32 blocks or 1 ms. [Th §5.2.2]
    fn default() -> Self {
        Self { blocks: 32, ns: 1_000_000 }
    }
}

impl WakeupThreshold {
    /// Returns these thresholds, with the number of blocks limited to half of a ring of `entries`
    /// entries. The number is rounded down to a power of two, and is at least 1.
    #[must_use]
    pub fn limited_to_ring(self, entries: usize) -> Self {
        let half = (entries as u64 / 2).max(1);
        let blocks = self.blocks.clamp(1, half);
        Self { blocks: 1 << blocks.ilog2(), ..self }
    }
}

/// The action that wakes the readers of one buffer. The timer performs it if the writer is busy
/// elsewhere.
pub trait WakeReaders: Send + Sync {
    /// Publishes written blocks and wakes the readers. Must not block.
    fn wake_readers(&self);
}

impl WakeReaders for Doorbell {
    fn wake_readers(&self) {
        self.notify();
    }
}

/// Numbers of wake-ups that a writer's readers were sent, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WakeupCounts {
    /// Wake-ups after the threshold number of blocks (T_b).
    pub batch: u64,
    /// Wake-ups by the timer, after the threshold time (T_t).
    pub timer: u64,
    /// Wake-ups that the writer sent before it waited itself.
    pub idle: u64,
}

impl WakeupCounts {
    /// Returns the total number of wake-ups.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.batch + self.timer + self.idle
    }
}

/// The state with which a writer decides when to wake the sleeping reader of one buffer.
#[derive(Debug)]
pub struct WakeupModerator {
    threshold: WakeupThreshold,
    /// Range within which the number of blocks per wake-up (T_b) may adapt.
    range: (u64, u64),
    /// Half of the ring's entries, the upper bound of the number of blocks per wake-up (T_b);
    /// `u64::MAX` if the size of the ring is unknown.
    half_ring: u64,
    /// Number of published blocks of which the sleeping reader has not been notified (pending
    /// blocks).
    pending: u64,
    /// Time in nanoseconds at which the first pending block was counted; `None` if no alarm was set
    /// for that block.
    first_pending_at: Option<u64>,
    alarm: Arc<Alarm>,
    timer: Arc<WakeupTimer>,
    events: WakeupCounts,
}

impl WakeupModerator {
    /// Creates the state for a writer with these thresholds. When the time threshold passes,
    /// `timer` calls `signal` to wake the readers.
    #[must_use]
    pub fn new(
        timer: &Arc<WakeupTimer>,
        threshold: WakeupThreshold,
        signal: Arc<dyn WakeReaders>,
    ) -> Self {
        let alarm = Arc::new(Alarm {
            deadline: AtomicU64::new(NO_DEADLINE),
            fired: AtomicU64::new(0),
            after: AtomicU64::new(threshold.ns),
            signal,
        });
        timer.alarms().push(Arc::downgrade(&alarm));
        let timer = Arc::clone(timer);
        let range = (threshold.blocks, threshold.blocks);
        let (half_ring, pending, events) = (u64::MAX, 0, WakeupCounts::default());
        Self { threshold, range, half_ring, pending, first_pending_at: None, alarm, timer, events }
    }

    /// Permits the number of blocks per wake-up (T_b) to adapt between its current value and
    /// `most`. Rounds `most` down to a power of two.
    pub fn set_adaptation_max(&mut self, most: u64) {
        self.range.1 = power_of_two_up_to(most).max(self.range.0);
    }

    /// Limits the number of blocks per wake-up (T_b) to half of a ring with `entries` entries.
    /// Called when the size of the ring has changed.
    pub fn limit_to_ring(&mut self, entries: usize) {
        self.half_ring = power_of_two_up_to(entries as u64 / 2);
        self.threshold.blocks = self.threshold.blocks.clamp(self.range.0, self.range.1);
        self.threshold.blocks = self.threshold.blocks.min(self.half_ring);
    }

    /// Adapts the number of blocks per wake-up (T_b) after a wake-up. `ns` is the time in
    /// nanoseconds from the first to the last block of this wake-up.
    #[cold]
    fn adapt_threshold(&mut self, ns: u64) {
        let (least, most) = self.range;
        let blocks = match ns {
            0..GROWTH_INTERVAL_NS => self.threshold.blocks * 2,
            _ if ns >= 4 * GROWTH_INTERVAL_NS => self.threshold.blocks / 2,
            _ => self.threshold.blocks,
        };
        self.threshold.blocks = blocks.clamp(least, most).min(self.half_ring);
    }

    /// Returns the current thresholds: blocks per wake-up (T_b) and maximum delay (T_t).
    #[must_use]
    pub const fn wakeup_threshold(&self) -> WakeupThreshold {
        self.threshold
    }

    /// Lowers the number of blocks per wake-up (T_b), and the range in which the number adapts, to
    /// at most `blocks`. Rounds the results down to powers of two.
    pub fn limit_blocks(&mut self, blocks: u64) {
        let within = |value: u64| power_of_two_up_to(value.min(blocks));
        self.range = (within(self.range.0), within(self.range.1));
        self.threshold.blocks = within(self.threshold.blocks);
    }

    /// Counts blocks that have just been published. Returns true if the caller must wake the reader
    /// now, and then counts the wake-up. `awaited` is the result of
    /// [`Doorbell::has_unnotified_sleeper`] after the publication; if it is false, the counter is
    /// reset instead. `now` reads the timer's clock in nanoseconds.
    #[inline]
    pub fn count_published(
        &mut self,
        blocks: u64,
        awaited: bool,
        now: impl FnOnce() -> u64,
    ) -> bool {
        if !awaited {
            self.reset();
            return false;
        }
        if self.pending > 0 && self.alarm.deadline.load(Ordering::Relaxed) == NO_DEADLINE {
            // The timer has already fired; these blocks may have been published too late for its
            // event.
            self.pending = 0;
            self.adapt_threshold(u64::MAX);
        }
        let first = self.pending == 0;
        self.pending += blocks;
        if self.pending >= self.threshold.blocks {
            if self.range.0 < self.range.1 {
                let since = self.first_pending_at.take().filter(|_| !first);
                self.adapt_threshold(since.map_or(0, |since| now().saturating_sub(since)));
            }
            self.reset();
            self.events.batch += 1;
            return true;
        }
        if first && blocks > 0 {
            let now = now();
            self.first_pending_at = Some(now);
            self.timer.set_alarm(&self.alarm, now.saturating_add(self.threshold.ns).max(1));
        }
        false
    }

    /// Counts blocks like [`WakeupModerator::count_published`], but for a writer that is about to
    /// wait. Sets no alarm, because the wait would cancel it immediately. Returns true if the
    /// caller must wake the reader now, and then counts the wake-up.
    #[inline]
    pub fn count_last_published(&mut self, blocks: u64, awaited: bool) -> bool {
        if !awaited {
            self.reset();
            return false;
        }
        self.pending += blocks;
        self.must_notify_before_wait()
    }

    /// Returns true if the writer must wake the reader before the writer waits, and then counts the
    /// wake-up.
    pub fn must_notify_before_wait(&mut self) -> bool {
        let is_due = self.pending > 0;
        self.reset();
        self.events.idle += u64::from(is_due);
        is_due
    }

    /// Resets the counter of pending blocks and the alarm. Called when the reader is awake or is
    /// being woken.
    #[inline]
    fn reset(&mut self) {
        if self.pending > 0 {
            self.pending = 0;
            self.alarm.deadline.store(NO_DEADLINE, Ordering::Relaxed);
        }
    }

    /// Returns the numbers of wake-ups so far, by cause.
    #[must_use]
    pub fn wakeup_counts(&self) -> WakeupCounts {
        WakeupCounts { timer: self.alarm.fired.load(Ordering::Relaxed), ..self.events }
    }
}

/// Interval between two wake-ups, in nanoseconds, below which the number of blocks per wake-up
/// (T_b) grows: half of the longest time that a wake-up takes (2 to 25 µs, BASELINES). The number
/// shrinks if the interval exceeds four times this value.
const GROWTH_INTERVAL_NS: u64 = 12_500;

/// Returns the greatest power of two that does not exceed `value`, at least 1.
const fn power_of_two_up_to(value: u64) -> u64 {
    1 << if value < 2 { 0 } else { value.ilog2() }
}

/// The alarm that wakes the reader of one buffer after the time T_t. The writer sets the alarm, and
/// the timer fires it.
struct Alarm {
    /// Time in nanoseconds at which the alarm fires, or [`NO_DEADLINE`].
    deadline: AtomicU64,
    /// Number of times that the alarm has fired, each of which is a wake-up.
    fired: AtomicU64,
    /// Delay of the alarm in nanoseconds (T_t).
    after: AtomicU64,
    signal: Arc<dyn WakeReaders>,
}

/// Value of [`Alarm::deadline`] while the alarm is not set.
const NO_DEADLINE: u64 = 0;
/// Value of [`WakeupTimer::next`] while no check of the alarms is scheduled.
const NO_NEXT_CHECK: u64 = u64::MAX;
/// Number of checks, at intervals of T_t, that the timer's thread makes after the last alarm before
/// it sleeps without a limit. A slow stream sets an alarm again soon, and waking the thread would
/// cost its writer 7 µs.
const LINGER_CHECKS: u32 = 8;

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A thread that wakes readers in place of writers that are busy elsewhere, when the maximum delay
/// of a published block (T_t) has passed.
#[derive(Debug)]
pub struct WakeupTimer {
    alarms: Mutex<Vec<Weak<Alarm>>>,
    /// Time in nanoseconds of the next check. Setting an alarm for a later time does not wake the
    /// timer.
    next: AtomicU64,
    doorbell: Doorbell,
    #[cfg(not(loom))]
    started: std::sync::Once,
}

impl Default for WakeupTimer {
    fn default() -> Self {
        Self {
            alarms: Mutex::default(),
            next: AtomicU64::new(NO_NEXT_CHECK),
            doorbell: Doorbell::new(),
            #[cfg(not(loom))]
            started: std::sync::Once::new(),
        }
    }
}

impl WakeupTimer {
    /// Returns the timer of this process. Its thread starts with the first alarm.
    #[cfg(not(loom))]
    #[must_use]
    pub fn for_process() -> &'static Arc<Self> {
        static PROCESS_TIMER: std::sync::LazyLock<Arc<WakeupTimer>> =
            std::sync::LazyLock::new(Arc::default);
        &PROCESS_TIMER
    }

    /// Sets an alarm. Wakes the timer only if its next check would be after the deadline.
    fn set_alarm(self: &Arc<Self>, alarm: &Alarm, deadline: u64) {
        // SYNC POINT: alarm set; pairs with the load in `fire`.
        alarm.deadline.store(deadline, Ordering::Release);
        // SYNC POINT: next check; pairs with the fence in `fire_and_schedule`.
        fence(Ordering::SeqCst);
        if self.next.load(Ordering::Relaxed) > deadline {
            self.wake();
        }
    }

    #[cold]
    fn wake(self: &Arc<Self>) {
        #[cfg(not(loom))]
        self.start();
        self.doorbell.notify();
    }

    /// Starts the thread of the timer. If the kernel refuses a thread, only the maximum delay T_t
    /// no longer holds: readers are still woken after T_b blocks, and by writers about to wait.
    #[cfg(not(loom))]
    fn start(self: &Arc<Self>) {
        self.started.call_once(|| {
            let timer = Arc::clone(self);
            let thread = std::thread::Builder::new().name("signals".to_owned());
            // Runs until the process exits.
            let _ = thread.spawn(move || {
                sys::process::set_minimal_timer_slack();
                let mut quiet = LINGER_CHECKS;
                loop {
                    timer.check_and_sleep(&mut quiet, sys::clock::monotonic_ns);
                }
            });
        });
    }

    /// Fires all alarms that are due, and sleeps until the next check. `quiet` is the number of
    /// consecutive checks that found no alarm set.
    #[cfg(not(loom))]
    fn check_and_sleep(&self, quiet: &mut u32, clock: impl Fn() -> u64) {
        let ticket = self.doorbell.prepare_to_sleep();
        let now = clock();
        match self.fire_and_schedule(quiet, now) {
            None => {}
            Some(NO_NEXT_CHECK) => {
                self.doorbell.sleep(ticket);
                // Notified: an alarm was set, which the next round checks, and others may follow
                // soon.
                *quiet = 0;
            }
            Some(until) => {
                self.doorbell.sleep_for(ticket, std::time::Duration::from_nanos(until - now));
            }
        }
    }

    /// Fires the alarms that are due, and schedules the next check. `quiet` is the number of
    /// consecutive checks that found no alarm set. Returns the time until which to sleep, or `None`
    /// to check again immediately. Call this after [`Doorbell::prepare_to_sleep`].
    fn fire_and_schedule(&self, quiet: &mut u32, now: u64) -> Option<u64> {
        let until = match self.fire_due_alarms(now) {
            Some(earliest) => {
                *quiet = 0;
                earliest
            }
            None if *quiet < LINGER_CHECKS => {
                *quiet += 1;
                now.saturating_add(self.shortest_delay())
            }
            None => NO_NEXT_CHECK,
        };
        self.next.store(until, Ordering::Relaxed);
        // SYNC POINT: next check; pairs with the fence in `set_alarm`.
        fence(Ordering::SeqCst);
        let overtaken = self.next_deadline().is_some_and(|earliest| earliest < until);
        (!overtaken && until > now).then_some(until)
    }

    /// Fires the alarms that are due at `now`. Returns the time of the next alarm, or `None` if no
    /// alarm is set.
    fn fire_due_alarms(&self, now: u64) -> Option<u64> {
        let mut alarms = self.alarms();
        // Alarms of dropped writers are removed.
        alarms.retain(|alarm| alarm.upgrade().is_some_and(|alarm| alarm.fire(now)));
        drop(alarms);
        self.next_deadline()
    }

    /// Returns the time of the next alarm, or `None` if no alarm is set.
    fn next_deadline(&self) -> Option<u64> {
        let set = |alarm: &Weak<Alarm>| {
            let deadline = alarm.upgrade()?.deadline.load(Ordering::Relaxed);
            (deadline != NO_DEADLINE).then_some(deadline)
        };
        self.alarms().iter().filter_map(set).min()
    }

    /// Returns the shortest delay of all alarms, in nanoseconds; 0 if there are no alarms.
    fn shortest_delay(&self) -> u64 {
        let after = |alarm: &Weak<Alarm>| Some(alarm.upgrade()?.after.load(Ordering::Relaxed));
        self.alarms().iter().filter_map(after).min().unwrap_or(0)
    }

    fn alarms(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Alarm>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarm {
    /// Fires the alarm if it is due, which wakes the readers. Always returns true, so that `retain`
    /// in the caller keeps the alarm.
    fn fire(&self, now: u64) -> bool {
        // SYNC POINT: alarm set; pairs with the store in `set_alarm`.
        let deadline = self.deadline.load(Ordering::Acquire);
        let is_due = deadline != NO_DEADLINE && deadline <= now;
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if is_due && self.deadline.compare_exchange(deadline, NO_DEADLINE, acquire, relaxed).is_ok()
        {
            self.fired.fetch_add(1, Ordering::Relaxed);
            self.signal.wake_readers();
        }
        true
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
