//! Event moderation: how often who sleeps is woken. [SL §6.2], [Th §5.2.2]
//!
//! The rule, for each buffer: a counter goes up with every block that nobody was told of. When it
//! comes to T_b one event is sent and the counter begins anew. When it is first incremented an
//! alarm is set T_t ahead; if that goes off first, the timer sends the event in place of the
//! writer, and the batch event takes the alarm back. Deviation: a block that finds its reader awake
//! is not counted. A reader looks once more before it sleeps, so it needs no event, and a stream
//! whose reader keeps up has none at all.
//!
//! Nobody arms a timer for a wait (5 µs here, BASELINES). There is one [`Timer`] for each process,
//! a thread that runs while an alarm is set, and for a few T_t after that; in between it sleeps
//! without a limit. Setting an alarm is a store while it runs. So the bound also holds for a writer
//! that is busy elsewhere, in a filter that computes for long or a source that waits: it is not
//! needed for the event.
//!
//! SYNC POINTS:
//! - *alarm set*: [`Moderator::published`] stores the deadline with Release after the blocks were
//!   published, [`Timer::look`] loads it with Acquire and then rings: who is woken finds the
//!   blocks.
//! - *looking ahead*: who sets an alarm stores the deadline, makes a fence, and looks when the
//!   timer looks next; the timer stores that, makes a fence, and looks at the deadlines once more
//!   before it sleeps. The fences are sequentially consistent: at least one sees what the other
//!   stored.

use super::Doorbell;
use crate::atomic::{AtomicU64, Ordering, fence};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// After how much an event is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// After so many blocks (T_b): a power of two.
    pub blocks: u64,
    /// After so many ns (T_t), if fewer have come.
    pub ns: u64,
}

impl Default for Threshold {
    /// 32 blocks or 1 ms. [Th §5.2.2]
    fn default() -> Self {
        Self { blocks: 32, ns: 1_000_000 }
    }
}

impl Threshold {
    /// The same, with T_b a power of two, at most half of a ring of so many entries, and at least
    /// one block.
    #[must_use]
    pub fn within(self, entries: usize) -> Self {
        let half = (entries as u64 / 2).max(1);
        let blocks = self.blocks.clamp(1, half);
        Self { blocks: 1 << blocks.ilog2(), ..self }
    }
}

/// Work that the timer does in place of a writer: publishes what was written, and wakes its
/// readers.
pub trait Signal: Send + Sync {
    /// Sends an event. Must not block.
    fn signal(&self);
}

impl Signal for Doorbell {
    fn signal(&self) {
        self.notify();
    }
}

/// Counts of events by their cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// T_b blocks were there.
    pub batch: u64,
    /// T_t had passed: the timer sent them.
    pub timer: u64,
    /// The writer was about to sleep, or waits because the ring is full.
    pub idle: u64,
}

impl Events {
    /// All of them.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.batch + self.timer + self.idle
    }
}

/// The writer's side of one buffer: when to send an event.
#[derive(Debug)]
pub struct Moderator {
    threshold: Threshold,
    /// Blocks that a sleeping reader was not told of.
    pending: u64,
    alarm: Arc<Alarm>,
    timer: Arc<Timer>,
    events: Events,
}

impl Moderator {
    /// A moderator whose alarms go off on this timer, which then calls `signal`.
    #[must_use]
    pub fn new(timer: &Arc<Timer>, threshold: Threshold, signal: Arc<dyn Signal>) -> Self {
        let alarm = Arc::new(Alarm {
            deadline: AtomicU64::new(UNSET),
            fired: AtomicU64::new(0),
            after: AtomicU64::new(threshold.ns),
            signal,
        });
        timer.alarms().push(Arc::downgrade(&alarm));
        let timer = Arc::clone(timer);
        Self { threshold, pending: 0, alarm, timer, events: Events::default() }
    }

    /// Returns the threshold.
    #[must_use]
    pub const fn threshold(&self) -> Threshold {
        self.threshold
    }

    /// Never waits for more than so many blocks from now on.
    pub fn bound(&mut self, blocks: u64) {
        let blocks = self.threshold.blocks.min(blocks.max(1));
        self.threshold.blocks = 1 << blocks.ilog2();
    }

    /// Counts blocks that were just published; `awaited` is [`Doorbell::is_awaited`] as read after
    /// the publication. Returns true if the caller must send an event now, which is counted. `now`
    /// reads the clock of the timer.
    #[inline]
    pub fn published(&mut self, blocks: u64, awaited: bool, now: impl FnOnce() -> u64) -> bool {
        if !awaited {
            self.take_back();
            return false;
        }
        if self.pending > 0 && self.alarm.deadline.load(Ordering::Relaxed) == UNSET {
            // The timer was first: these blocks may have come too late for its event.
            self.pending = 0;
        }
        let first = self.pending == 0;
        self.pending += blocks;
        if self.pending >= self.threshold.blocks {
            self.take_back();
            self.events.batch += 1;
            return true;
        }
        if first && blocks > 0 {
            self.timer.set(&self.alarm, now().saturating_add(self.threshold.ns).max(1));
        }
        false
    }

    /// As [`Moderator::published`], by a writer that has nothing more and is about to wait: no
    /// alarm is set that it would take back at once. Answers whether it must send an event now.
    #[inline]
    pub fn published_last(&mut self, blocks: u64, awaited: bool) -> bool {
        if !awaited {
            self.take_back();
            return false;
        }
        self.pending += blocks;
        self.idle()
    }

    /// The writer is about to wait. Answers whether it must send an event before; it is counted.
    pub fn idle(&mut self) -> bool {
        let due = self.pending > 0;
        self.take_back();
        self.events.idle += u64::from(due);
        due
    }

    /// Starts counting anew: the reader needs no event, or gets one now.
    #[inline]
    fn take_back(&mut self) {
        if self.pending > 0 {
            self.pending = 0;
            self.alarm.deadline.store(UNSET, Ordering::Relaxed);
        }
    }

    /// Returns the counts of events.
    #[must_use]
    pub fn events(&self) -> Events {
        Events { timer: self.alarm.fired.load(Ordering::Relaxed), ..self.events }
    }
}

/// The alarm that a writer and the timer share for one buffer.
struct Alarm {
    /// Time at which it goes off, or [`UNSET`].
    deadline: AtomicU64,
    /// Times that it went off.
    fired: AtomicU64,
    /// Delay for which it is set.
    after: AtomicU64,
    signal: Arc<dyn Signal>,
}

/// No alarm is set.
const UNSET: u64 = 0;
/// The timer looks at nothing before it is rung.
const DORMANT: u64 = u64::MAX;
/// Looks of the timer, T_t apart, while no alarm is set: a stream that trickles sets one again
/// soon, and waking a thread costs its writer 7 µs.
const LINGER: u32 = 8;

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// Sends the events of writers that have not sent them by their deadline.
#[derive(Debug)]
pub struct Timer {
    alarms: Mutex<Vec<Weak<Alarm>>>,
    /// Time of its next look: a later alarm need not wake it.
    next: AtomicU64,
    doorbell: Doorbell,
    #[cfg(not(loom))]
    started: std::sync::Once,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            alarms: Mutex::default(),
            next: AtomicU64::new(DORMANT),
            doorbell: Doorbell::new(),
            #[cfg(not(loom))]
            started: std::sync::Once::new(),
        }
    }
}

impl Timer {
    /// The timer of this process. Its thread begins with the first alarm that is set.
    #[cfg(not(loom))]
    #[must_use]
    pub fn of_process() -> &'static Arc<Self> {
        static TIMER: std::sync::LazyLock<Arc<Timer>> = std::sync::LazyLock::new(Arc::default);
        &TIMER
    }

    /// Sets an alarm: a store, unless the timer sleeps beyond that time.
    fn set(self: &Arc<Self>, alarm: &Alarm, deadline: u64) {
        // SYNC POINT: alarm set; pairs with the load in `fire`.
        alarm.deadline.store(deadline, Ordering::Release);
        // SYNC POINT: looking ahead; pairs with the fence in `plan`.
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

    /// Without a thread, because the machine has none to give, T_b and idle writers still send
    /// events; only the bound T_t is lost.
    #[cfg(not(loom))]
    fn start(self: &Arc<Self>) {
        self.started.call_once(|| {
            let timer = Arc::clone(self);
            let thread = std::thread::Builder::new().name("signals".to_owned());
            // It ends with the process.
            let _ = thread.spawn(move || {
                sys::process::set_exact_timers();
                let mut quiet = LINGER;
                loop {
                    timer.round(&mut quiet, sys::clock::monotonic);
                }
            });
        });
    }

    /// Looks once and sleeps until there is something to look at.
    #[cfg(not(loom))]
    fn round(&self, quiet: &mut u32, clock: impl Fn() -> u64) {
        let ticket = self.doorbell.listen();
        let now = clock();
        match self.plan(quiet, now) {
            None => {}
            Some(DORMANT) => {
                self.doorbell.sleep(ticket);
                // Rung: an alarm was set that is looked at now, and others may be soon.
                *quiet = 0;
            }
            Some(until) => {
                self.doorbell.sleep_for(ticket, std::time::Duration::from_nanos(until - now));
            }
        }
    }

    /// Sends what is due and says until when to sleep; `None`: not at all. Asked after listening.
    fn plan(&self, quiet: &mut u32, now: u64) -> Option<u64> {
        let until = match self.look(now) {
            Some(earliest) => {
                *quiet = 0;
                earliest
            }
            None if *quiet < LINGER => {
                *quiet += 1;
                now.saturating_add(self.shortest())
            }
            None => DORMANT,
        };
        self.next.store(until, Ordering::Relaxed);
        // SYNC POINT: looking ahead; pairs with the fence in `set`.
        fence(Ordering::SeqCst);
        let overtaken = self.earliest().is_some_and(|earliest| earliest < until);
        (!overtaken && until > now).then_some(until)
    }

    /// Sends what is due at this time; answers when the next alarm goes off, if one is set.
    fn look(&self, now: u64) -> Option<u64> {
        let mut alarms = self.alarms();
        // What nobody writes to any more needs no events.
        alarms.retain(|alarm| alarm.upgrade().is_some_and(|alarm| alarm.fire(now)));
        drop(alarms);
        self.earliest()
    }

    /// Returns the time of the next alarm.
    fn earliest(&self) -> Option<u64> {
        let set = |alarm: &Weak<Alarm>| {
            let deadline = alarm.upgrade()?.deadline.load(Ordering::Relaxed);
            (deadline != UNSET).then_some(deadline)
        };
        self.alarms().iter().filter_map(set).min()
    }

    /// Returns the shortest delay of any alarm.
    fn shortest(&self) -> u64 {
        let after = |alarm: &Weak<Alarm>| Some(alarm.upgrade()?.after.load(Ordering::Relaxed));
        self.alarms().iter().filter_map(after).min().unwrap_or(0)
    }

    fn alarms(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Alarm>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarm {
    /// Sends the event if it is due. Answers true, so that the alarm stays in the list.
    fn fire(&self, now: u64) -> bool {
        // SYNC POINT: alarm set; pairs with the store in `set`.
        let deadline = self.deadline.load(Ordering::Acquire);
        let due = deadline != UNSET && deadline <= now;
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if due && self.deadline.compare_exchange(deadline, UNSET, acquire, relaxed).is_ok() {
            self.fired.fetch_add(1, Ordering::Relaxed);
            self.signal.signal();
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
