//! Stall detection in a replay.
//!
//! A replaying space waits for what its record demands: blocks of another space, room in a ring, a
//! hot swap. An invalid record may make all spaces wait for one another. Each space therefore
//! registers its wait after a fruitless poll. When all have done so since the last progress of any
//! of them, no further progress is possible: every waiting space is notified, with the positions of
//! all.
//!
//! The detector reads no clock. A space inside a filter or sink counts as active, however long that
//! takes. A space that makes progress for which another one waits reports it before it waits
//! itself, so no thread schedule ends a valid replay.
//! docs/book/decisions/0042-changes-in-a-record.md

use crate::status::SpaceStatus;
use buffer::signal::Doorbell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// State shared by the spaces of one replay.
#[derive(Clone, Debug)]
pub struct SharedScript {
    /// Detector of spaces that wait for one another.
    pub stalls: Arc<StallDetector>,
    /// Byte offset of this space's last event in the record.
    pub byte: Arc<AtomicU64>,
    /// True if the record covers the whole run.
    pub whole: bool,
}

/// Number of fruitless polls since the last progress before a space counts as waiting. One would
/// suffice; between two polls the space has published its output and reclaimed memory.
const POLLS_MIN: u32 = 2;

/// Maximum sleep between two polls.
pub const WAIT: Duration = Duration::from_millis(2);

/// Detector of spaces that wait for one another.
#[derive(Debug, Default)]
pub struct StallDetector(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    /// Progress counter: number of steps that others may wait for.
    moves: u64,
    spaces: Vec<SpaceActivity>,
    changer: ChangerActivity,
    verdict: Option<String>,
}

#[derive(Debug)]
struct SpaceActivity {
    space: Arc<SpaceStatus>,
    doing: Activity,
    /// True if the space rejects commands.
    refuses: bool,
}

#[derive(Debug)]
enum Activity {
    Moves,
    Waits {
        /// Value of [`StallState::moves`] at the last poll, and the number of polls since it
        /// changed.
        seen: u64,
        looks: u32,
        /// True if the space waits for a hot swap.
        change: bool,
        what: String,
    },
    /// Exclusively borrowed by a hot swap.
    Lent,
}

/// Activity of the thread that replays hot swaps.
#[derive(Debug, Default)]
enum ChangerActivity {
    /// No such thread, or no further hot swap.
    #[default]
    Over,
    Moves,
    /// Waits until this space reaches the recorded swap, where it executes the command of the swap.
    Takes(Arc<SpaceStatus>),
    /// Waits until this space has ended.
    Ends(Arc<SpaceStatus>),
    /// Waits until this many spaces have been drained.
    Settles(usize),
}

impl StallDetector {
    fn state(&self) -> MutexGuard<'_, StallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the thread that replays hot swaps.
    pub fn changes_come(&self) {
        self.state().changer = ChangerActivity::Moves;
    }

    /// Reports that no further hot swap follows.
    pub fn changes_are_over(&self) {
        self.changer(ChangerActivity::Over);
    }

    fn changer(&self, changer: ChangerActivity) {
        let mut state = self.state();
        state.moves += 1;
        state.changer = changer;
    }

    /// Reports that the hot swap waits for this space, which gets a command next.
    pub fn takes(&self, space: &Arc<SpaceStatus>) {
        self.changer(ChangerActivity::Takes(Arc::clone(space)));
    }

    /// Reports that the hot swap waits for the end of this space.
    pub fn ends(&self, space: &Arc<SpaceStatus>) {
        self.changer(ChangerActivity::Ends(Arc::clone(space)));
    }

    /// Reports that the hot swap waits until this many spaces have been drained.
    pub fn settles(&self, spaces: usize) {
        if spaces > 0 {
            self.changer(ChangerActivity::Settles(spaces));
        }
    }

    /// Reports that the hot swap waits for no space.
    pub fn goes_on(&self) {
        self.changer(ChangerActivity::Moves);
    }
}

impl StallState {
    fn of(&mut self, space: &Arc<SpaceStatus>) -> Option<&mut SpaceActivity> {
        self.spaces.iter_mut().find(|stand| Arc::ptr_eq(&stand.space, space))
    }

    /// Returns true if no further progress is possible.
    fn is_stalled(&self) -> bool {
        let waits = |stand: &SpaceActivity| match &stand.doing {
            Activity::Moves => false,
            Activity::Waits { seen, looks, .. } => *seen == self.moves && *looks >= POLLS_MIN,
            Activity::Lent => true,
        };
        let find = |space| self.spaces.iter().find(|stand| Arc::ptr_eq(&stand.space, space));
        let changer = match &self.changer {
            ChangerActivity::Over | ChangerActivity::Settles(_) => true,
            ChangerActivity::Moves => false,
            // A space at a recorded swap executes the command: it joins the swap, or fails because
            // the swap is another one.
            ChangerActivity::Takes(space) => find(space).is_some_and(|stand| {
                !stand.refuses && !matches!(stand.doing, Activity::Waits { change: true, .. })
            }),
            ChangerActivity::Ends(space) => find(space).is_some(),
        };
        changer && self.spaces.iter().all(waits)
    }

    /// Formats the verdict: the waits of all spaces.
    fn verdict_text(&self) -> String {
        let waits = self.spaces.iter().filter_map(|stand| match &stand.doing {
            Activity::Waits { what, .. } => Some(what.as_str()),
            _ => None,
        });
        let all: Vec<&str> = waits.collect();
        format!("the record is wrong: what is waited for never comes ({})", all.join("; "))
    }
}

/// Handle of one replaying space on the detector.
#[derive(Clone, Debug)]
pub struct StallProbe {
    stalls: Arc<StallDetector>,
    space: Arc<SpaceStatus>,
    byte: Arc<AtomicU64>,
    whole: bool,
}

impl StallProbe {
    /// Registers a space with the detector of its replay.
    #[must_use]
    pub fn new(script: SharedScript, space: Arc<SpaceStatus>) -> Self {
        let SharedScript { stalls, byte, whole } = script;
        let stand =
            SpaceActivity { space: Arc::clone(&space), doing: Activity::Moves, refuses: false };
        stalls.state().spaces.push(stand);
        Self { stalls, space, byte, whole }
    }

    /// Returns the byte offset of the space's last event in the record.
    pub fn byte(&self) -> u64 {
        // Relaxed: the word guards no other memory.
        self.byte.load(Ordering::Relaxed)
    }

    /// Returns true if the record covers the whole run.
    pub const fn is_of_whole(&self) -> bool {
        self.whole
    }

    /// Reports that the space is about to reject commands.
    pub fn refuses(&self) {
        let mut state = self.stalls.state();
        if let Some(stand) = state.of(&self.space) {
            stand.refuses = true;
        }
    }

    /// Reports that a hot swap has borrowed the space.
    pub fn is_lent(&self) {
        self.set(Activity::Lent).changer = ChangerActivity::Moves;
    }

    /// Reports that the space has not started, because a pending hot swap creates it.
    pub fn comes_later(&self) {
        drop(self.set(Activity::Lent));
    }

    /// Reports progress of the space.
    pub fn moves(&self) {
        drop(self.set(Activity::Moves));
    }

    /// Reports that the space has been drained for a hot swap. After the last one the swap
    /// continues.
    pub fn has_settled(&self) {
        let mut state = self.set(Activity::Lent);
        if let ChangerActivity::Settles(left) = &mut state.changer {
            *left -= 1;
            if *left == 0 {
                state.changer = ChangerActivity::Moves;
            }
        }
    }

    fn set(&self, doing: Activity) -> MutexGuard<'_, StallState> {
        let mut state = self.stalls.state();
        state.moves += 1;
        if let Some(stand) = state.of(&self.space) {
            stand.doing = doing;
        }
        state
    }

    /// Sleeps on this doorbell until `ready` returns true. Ignores a stall verdict: another space
    /// ends because of it, and that makes room.
    pub fn wait_until(
        &self,
        doorbell: &Doorbell,
        what: impl FnOnce() -> String,
        ready: &mut dyn FnMut() -> bool,
    ) {
        if ready() {
            return;
        }
        let mut wait = self.waits(what, false);
        loop {
            let ticket = doorbell.listen();
            wait.looks();
            if ready() {
                return;
            }
            wait.in_vain();
            doorbell.sleep_for(ticket, WAIT);
        }
    }

    /// Begins a wait; reports all output up to now as progress. `change`: the wait is for a hot
    /// swap.
    pub fn waits(&self, what: impl FnOnce() -> String, change: bool) -> StallWait {
        self.moves();
        let what = format!("{} (byte {})", what(), self.byte());
        StallWait { post: self.clone(), what, change, seen: 0, looks: 0 }
    }
}

/// Registration of a space. Dropping it, after everything else of the space, reports its end.
#[derive(Debug)]
pub struct StallRegistration(pub(crate) StallProbe);

impl Drop for StallRegistration {
    fn drop(&mut self) {
        let mut state = self.0.stalls.state();
        state.moves += 1;
        state.spaces.retain(|stand| !Arc::ptr_eq(&stand.space, &self.0.space));
    }
}

/// Wait of a space; ends when dropped.
#[derive(Debug)]
pub struct StallWait {
    post: StallProbe,
    what: String,
    change: bool,
    seen: u64,
    looks: u32,
}

impl StallWait {
    /// Records the progress counter before a poll.
    pub fn looks(&mut self) {
        let moves = self.post.stalls.state().moves;
        self.looks = if self.seen == moves { self.looks + 1 } else { 1 };
        self.seen = moves;
    }

    /// Registers a fruitless poll. Returns the verdict if no further progress is possible.
    pub fn in_vain(&self) -> Option<String> {
        let mut state = self.post.stalls.state();
        let Self { seen, looks, change, .. } = *self;
        if let Some(stand) = state.of(&self.post.space) {
            stand.doing = Activity::Waits { seen, looks, change, what: self.what.clone() };
        }
        if state.verdict.is_none() && state.is_stalled() {
            state.verdict = Some(state.verdict_text());
        }
        state.verdict.clone()
    }
}

impl Drop for StallWait {
    fn drop(&mut self) {
        // Resuming is no progress: the cause of it has been counted already.
        let mut state = self.post.stalls.state();
        if let Some(stand) = state.of(&self.post.space) {
            stand.doing = Activity::Moves;
        }
    }
}
