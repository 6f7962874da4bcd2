//! Stall detection in a replay.
//!
//! A replaying space waits for the next event of its record: for blocks from another space, for
//! free entries in a ring, or for a hot swap. An invalid record may cause all spaces to wait for
//! each other. Each space therefore registers its wait after a poll without a result. When all
//! spaces have registered a wait since the last progress of any space, no further progress is
//! possible. Every waiting space then receives, at its next poll, a verdict with the positions of
//! all spaces.
//!
//! The detector reads no clock. A space inside a filter or sink counts as active, no matter how
//! long the call takes. A space reports its own progress before it registers a wait, because
//! another space may wait for that progress. Therefore a valid replay never fails because of the
//! order in which threads run. docs/book/decisions/0042-changes-in-a-record.md

use crate::status::SpaceStatus;
use buffer::signal::Doorbell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The state that the spaces of one replay share, and the position of one of these spaces in its
/// record.
#[derive(Clone, Debug)]
pub struct ReplayState {
    /// Detector that notices when all spaces of the replay wait for each other.
    pub stalls: Arc<StallDetector>,
    /// Byte offset, in the record, of the event that this space read last.
    pub byte: Arc<AtomicU64>,
    /// True if the record covers the entire run.
    pub is_complete: bool,
}

/// Number of consecutive polls without a result after which a space counts as waiting. One poll
/// would suffice for correctness; by the second poll, the space has also published its output and
/// reclaimed memory.
const FRUITLESS_POLLS_MIN: u32 = 2;

/// Maximum time that a waiting space sleeps between two polls.
pub const POLL_WAIT_MAX: Duration = Duration::from_millis(2);

/// A detector of spaces that wait for each other.
#[derive(Debug, Default)]
pub struct StallDetector(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    /// Number of progress reports so far. A space, or the thread that replays hot swaps, reports
    /// progress after each step for which another space may have been waiting.
    progress_count: u64,
    spaces: Vec<SpaceActivity>,
    changer: SwapThreadActivity,
    verdict: Option<String>,
}

#[derive(Debug)]
struct SpaceActivity {
    space: Arc<SpaceStatus>,
    doing: Activity,
    /// True if the space no longer accepts commands. A hot swap that waits for this space then
    /// fails instead of waiting forever.
    rejects_commands: bool,
}

#[derive(Debug)]
enum Activity {
    Active,
    /// The space waits for its next event.
    Waiting {
        /// Value of [`StallState::progress_count`] when the space last polled.
        progress_at_poll: u64,
        /// Number of this space's polls since any space last made progress.
        polls: u32,
        /// True if the space waits for a hot swap to begin.
        awaits_swap: bool,
        what: String,
    },
    /// A hot swap has borrowed the space.
    Lent,
}

/// The activity of the thread that replays hot swaps.
#[derive(Debug, Default)]
enum SwapThreadActivity {
    /// The replay repeats no hot swaps, or all of them have been repeated.
    #[default]
    Finished,
    Active,
    /// The thread waits until this space reaches the recorded hot swap and executes the command of
    /// the swap.
    AwaitsCommand(Arc<SpaceStatus>),
    /// The thread that replays hot swaps waits until this space has ended.
    AwaitsEnd(Arc<SpaceStatus>),
    /// The thread waits until spaces have drained the rings that the swap removes. Contains the
    /// number of these spaces.
    AwaitsDraining(usize),
}

impl StallDetector {
    fn lock_state(&self) -> MutexGuard<'_, StallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the thread that replays hot swaps with the stall detector.
    pub fn register_swap_thread(&self) {
        self.lock_state().changer = SwapThreadActivity::Active;
    }

    /// Reports that no more recorded hot swaps follow.
    pub fn unregister_swap_thread(&self) {
        self.set_swap_thread_activity(SwapThreadActivity::Finished);
    }

    fn set_swap_thread_activity(&self, changer: SwapThreadActivity) {
        let mut state = self.lock_state();
        state.progress_count += 1;
        state.changer = changer;
    }

    /// Reports that the hot swap waits for this space to reach the swap. The next command to the
    /// space belongs to the swap.
    pub fn report_swap_awaits_command(&self, space: &Arc<SpaceStatus>) {
        self.set_swap_thread_activity(SwapThreadActivity::AwaitsCommand(Arc::clone(space)));
    }

    /// Reports that the hot swap in progress waits for the end of this space.
    pub fn report_swap_awaits_end(&self, space: &Arc<SpaceStatus>) {
        self.set_swap_thread_activity(SwapThreadActivity::AwaitsEnd(Arc::clone(space)));
    }

    /// Reports that a hot swap waits until `spaces` spaces have drained the rings that the swap
    /// removes.
    pub fn report_swap_awaits_draining(&self, spaces: usize) {
        if spaces > 0 {
            self.set_swap_thread_activity(SwapThreadActivity::AwaitsDraining(spaces));
        }
    }

    /// Reports that the thread that replays hot swaps no longer waits for a space.
    pub fn report_swap_resumed(&self) {
        self.set_swap_thread_activity(SwapThreadActivity::Active);
    }
}

impl StallState {
    fn space_activity(&mut self, space: &Arc<SpaceStatus>) -> Option<&mut SpaceActivity> {
        self.spaces.iter_mut().find(|entry| Arc::ptr_eq(&entry.space, space))
    }

    /// Returns true if no space and no hot swap of the replay can make further progress.
    fn is_stalled(&self) -> bool {
        let waits = |entry: &SpaceActivity| match &entry.doing {
            Activity::Active => false,
            Activity::Waiting { progress_at_poll, polls, .. } => {
                *progress_at_poll == self.progress_count && *polls >= FRUITLESS_POLLS_MIN
            }
            Activity::Lent => true,
        };
        let find = |space| self.spaces.iter().find(|entry| Arc::ptr_eq(&entry.space, space));
        let changer = match &self.changer {
            SwapThreadActivity::Finished | SwapThreadActivity::AwaitsDraining(_) => true,
            SwapThreadActivity::Active => false,
            // A space at a recorded swap executes the command: it joins the swap, or fails because
            // the record names another swap.
            SwapThreadActivity::AwaitsCommand(space) => find(space).is_some_and(|entry| {
                !entry.rejects_commands
                    && !matches!(entry.doing, Activity::Waiting { awaits_swap: true, .. })
            }),
            SwapThreadActivity::AwaitsEnd(space) => find(space).is_some(),
        };
        changer && self.spaces.iter().all(waits)
    }

    /// Formats the verdict that no further progress is possible. The text lists the event that each
    /// space is waiting for.
    fn format_verdict(&self) -> String {
        let waits = self.spaces.iter().filter_map(|entry| match &entry.doing {
            Activity::Waiting { what, .. } => Some(what.as_str()),
            _ => None,
        });
        let all: Vec<&str> = waits.collect();
        format!("the record is invalid: an awaited event never occurs ({})", all.join("; "))
    }
}

/// The handle through which a replaying space reports to the stall detector.
#[derive(Clone, Debug)]
pub struct StallProbe {
    stalls: Arc<StallDetector>,
    space: Arc<SpaceStatus>,
    byte: Arc<AtomicU64>,
    whole: bool,
}

impl StallProbe {
    /// Registers a space with the stall detector of its replay.
    #[must_use]
    pub fn new(state: ReplayState, space: Arc<SpaceStatus>) -> Self {
        let ReplayState { stalls, byte, is_complete: whole } = state;
        let entry = SpaceActivity {
            space: Arc::clone(&space),
            doing: Activity::Active,
            rejects_commands: false,
        };
        stalls.lock_state().spaces.push(entry);
        Self { stalls, space, byte, whole }
    }

    /// Returns the byte offset, in the record, of the event that the space read last.
    pub fn last_event_offset(&self) -> u64 {
        // Relaxed suffices: the word guards no other memory.
        self.byte.load(Ordering::Relaxed)
    }

    /// Returns true if the replayed record covers the entire run.
    pub const fn is_record_complete(&self) -> bool {
        self.whole
    }

    /// Reports that the space rejects commands from now on.
    pub fn report_rejected_commands(&self) {
        let mut state = self.stalls.lock_state();
        if let Some(entry) = state.space_activity(&self.space) {
            entry.rejects_commands = true;
        }
    }

    /// Reports that a hot swap has borrowed the space.
    pub fn report_space_lent(&self) {
        self.set_activity(Activity::Lent).changer = SwapThreadActivity::Active;
    }

    /// Reports that the space has not started because a pending hot swap is still creating it.
    pub fn report_space_unstarted(&self) {
        drop(self.set_activity(Activity::Lent));
    }

    /// Reports that the space has made progress.
    pub fn report_progress(&self) {
        drop(self.set_activity(Activity::Active));
    }

    /// Reports that the space has drained its removed rings for a hot swap. The swap continues once
    /// every space has reported this.
    pub fn report_rings_drained(&self) {
        let mut state = self.set_activity(Activity::Lent);
        if let SwapThreadActivity::AwaitsDraining(left) = &mut state.changer {
            *left -= 1;
            if *left == 0 {
                state.changer = SwapThreadActivity::Active;
            }
        }
    }

    fn set_activity(&self, doing: Activity) -> MutexGuard<'_, StallState> {
        let mut state = self.stalls.lock_state();
        state.progress_count += 1;
        if let Some(entry) = state.space_activity(&self.space) {
            entry.doing = doing;
        }
        state
    }

    /// Sleeps on `doorbell` until `ready` returns true. `what` describes the wait. A verdict of the
    /// stall detector does not end the wait, because the verdict also ends the awaited space;
    /// `ready` then returns true.
    pub fn wait_until(
        &self,
        doorbell: &Doorbell,
        what: impl FnOnce() -> String,
        ready: &mut dyn FnMut() -> bool,
    ) {
        if ready() {
            return;
        }
        let mut wait = self.begin_wait(what, false);
        loop {
            let ticket = doorbell.prepare_to_sleep();
            wait.begin_poll();
            if ready() {
                return;
            }
            wait.report_fruitless_poll();
            doorbell.sleep_for(ticket, POLL_WAIT_MAX);
        }
    }

    /// Begins a wait of the space. First reports the space's earlier work as progress. `what`
    /// describes the wait; `change` is true if the space waits for a hot swap.
    pub fn begin_wait(&self, what: impl FnOnce() -> String, change: bool) -> StallWait {
        self.report_progress();
        let what = format!("{} (byte {})", what(), self.last_event_offset());
        StallWait { probe: self.clone(), what, change, progress_at_poll: 0, polls: 0 }
    }
}

/// The registration of a space with the stall detector of a replay. It is dropped after all other
/// fields of the space, and reports the end of the space when dropped.
#[derive(Debug)]
pub struct StallRegistration(pub(crate) StallProbe);

impl Drop for StallRegistration {
    fn drop(&mut self) {
        let mut state = self.0.stalls.lock_state();
        state.progress_count += 1;
        state.spaces.retain(|entry| !Arc::ptr_eq(&entry.space, &self.0.space));
    }
}

/// A wait of a replaying space, which the stall detector observes. Dropping this value reports that
/// the space is active again. `what` describes the wait.
#[derive(Debug)]
pub struct StallWait {
    probe: StallProbe,
    what: String,
    change: bool,
    progress_at_poll: u64,
    polls: u32,
}

impl StallWait {
    /// Begins a poll for the event for which the space waits. Counts the polls since any space last
    /// made progress.
    pub fn begin_poll(&mut self) {
        let progress_count = self.probe.stalls.lock_state().progress_count;
        self.polls = if self.progress_at_poll == progress_count { self.polls + 1 } else { 1 };
        self.progress_at_poll = progress_count;
    }

    /// Registers a poll of the waiting space that found nothing. Returns the verdict of the stall
    /// detector if no further progress is possible; otherwise returns `None`.
    pub fn report_fruitless_poll(&self) -> Option<String> {
        let mut state = self.probe.stalls.lock_state();
        let Self { progress_at_poll, polls, change, .. } = *self;
        if let Some(entry) = state.space_activity(&self.probe.space) {
            entry.doing = Activity::Waiting {
                progress_at_poll,
                polls,
                awaits_swap: change,
                what: self.what.clone(),
            };
        }
        if state.verdict.is_none() && state.is_stalled() {
            state.verdict = Some(state.format_verdict());
        }
        state.verdict.clone()
    }
}

impl Drop for StallWait {
    fn drop(&mut self) {
        // Resuming is not progress: the event that ended the wait has been counted already.
        let mut state = self.probe.stalls.lock_state();
        if let Some(entry) = state.space_activity(&self.probe.space) {
            entry.doing = Activity::Active;
        }
    }
}
