//! Stall detection in a run that is replayed.
//!
//! A space that replays waits for what its record demands: for blocks that another space puts, for
//! room, for a change. An invalid record may have all of them wait for one another. So each space
//! registers what it waits for whenever it has looked in vain. When all have done so since anything
//! moved last, nothing will move any more: each waiting space is notified, with the positions of
//! all of them.
//!
//! No clock is read. A space in a filter or a sink counts as moving, however long that takes. A
//! space that does something for which another one waits counts that move before it waits itself,
//! so no order of threads makes a valid record end so.
//! docs/book/decisions/0042-changes-in-a-record.md

use super::events::SharedScript;
use crate::commands::CommandQueue;
use buffer::signal::Doorbell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of looks in vain after the last move before a space counts as waiting. Once would do;
/// between two looks it has published what it put and taken back what the others passed.
const LOOKS: u32 = 2;

/// Maximum sleep of a space whose record demands what is not there yet.
pub const WAIT: Duration = Duration::from_millis(2);

/// A detector of spaces that wait for one another.
#[derive(Debug, Default)]
pub struct StallDetector(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    /// Number of moves that others may wait for.
    moves: u64,
    spaces: Vec<SpaceActivity>,
    changer: ChangerActivity,
    verdict: Option<String>,
}

#[derive(Debug)]
struct SpaceActivity {
    orders: Arc<CommandQueue>,
    doing: Activity,
    /// True if it takes no more commands.
    refuses: bool,
}

#[derive(Debug)]
enum Activity {
    Moves,
    Waits {
        /// Value of [`StallState::moves`] observed at its last look, and the number of looks since.
        seen: u64,
        looks: u32,
        /// True if it waits for a change.
        change: bool,
        what: String,
    },
    /// Exclusively borrowed by the changer.
    Lent,
}

/// Activity of the changer.
#[derive(Debug, Default)]
enum ChangerActivity {
    /// There is nobody, or no change comes any more.
    #[default]
    Over,
    Moves,
    /// Waits until this space stands where the change was made.
    Takes(Arc<CommandQueue>),
    /// Waits until this space has ended.
    Ends(Arc<CommandQueue>),
    /// Waits until so many spaces have settled their accounts.
    Settles(usize),
}

impl StallDetector {
    fn state(&self) -> MutexGuard<'_, StallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a changer.
    pub fn changes_come(&self) {
        self.state().changer = ChangerActivity::Moves;
    }

    /// No change is made any more.
    pub fn changes_are_over(&self) {
        self.changer(ChangerActivity::Over);
    }

    fn changer(&self, changer: ChangerActivity) {
        let mut state = self.state();
        state.moves += 1;
        state.changer = changer;
    }

    /// Registers that the changer waits for this space, which is given a command next.
    pub fn takes(&self, orders: &Arc<CommandQueue>) {
        self.changer(ChangerActivity::Takes(Arc::clone(orders)));
    }

    /// It waits for the end of this space.
    pub fn ends(&self, orders: &Arc<CommandQueue>) {
        self.changer(ChangerActivity::Ends(Arc::clone(orders)));
    }

    /// So many spaces settle their accounts.
    pub fn settles(&self, spaces: usize) {
        if spaces > 0 {
            self.changer(ChangerActivity::Settles(spaces));
        }
    }

    /// It waits for nobody.
    pub fn goes_on(&self) {
        self.changer(ChangerActivity::Moves);
    }
}

impl StallState {
    fn of(&mut self, orders: &Arc<CommandQueue>) -> Option<&mut SpaceActivity> {
        self.spaces.iter_mut().find(|stand| Arc::ptr_eq(&stand.orders, orders))
    }

    /// Returns true if nothing will move any more.
    fn is_still(&self) -> bool {
        let waits = |stand: &SpaceActivity| match &stand.doing {
            Activity::Moves => false,
            Activity::Waits { seen, looks, .. } => *seen == self.moves && *looks >= LOOKS,
            Activity::Lent => true,
        };
        let find = |orders| self.spaces.iter().find(|stand| Arc::ptr_eq(&stand.orders, orders));
        let changer = match &self.changer {
            ChangerActivity::Over | ChangerActivity::Settles(_) => true,
            ChangerActivity::Moves => false,
            // One that stands at a change takes the order, and goes or says that it is another.
            ChangerActivity::Takes(orders) => find(orders).is_some_and(|stand| {
                !stand.refuses && !matches!(stand.doing, Activity::Waits { change: true, .. })
            }),
            ChangerActivity::Ends(orders) => find(orders).is_some(),
        };
        changer && self.spaces.iter().all(waits)
    }

    /// Formats the positions of all spaces.
    fn told(&self) -> String {
        let waits = self.spaces.iter().filter_map(|stand| match &stand.doing {
            Activity::Waits { what, .. } => Some(what.as_str()),
            _ => None,
        });
        let all: Vec<&str> = waits.collect();
        format!("the record is wrong: what is waited for never comes ({})", all.join("; "))
    }
}

/// A space among those that play a record.
#[derive(Clone, Debug)]
pub struct StallProbe {
    stalls: Arc<StallDetector>,
    orders: Arc<CommandQueue>,
    byte: Arc<AtomicU64>,
    whole: bool,
}

impl StallProbe {
    /// Registers a space with the detector of its script.
    #[must_use]
    pub fn new(script: SharedScript, orders: Arc<CommandQueue>) -> Self {
        let SharedScript { stalls, byte, whole } = script;
        let stand =
            SpaceActivity { orders: Arc::clone(&orders), doing: Activity::Moves, refuses: false };
        stalls.state().spaces.push(stand);
        Self { stalls, orders, byte, whole }
    }

    /// Returns the byte offset of its last event in the record.
    pub fn byte(&self) -> u64 {
        // It only says where; nothing else travels with it.
        self.byte.load(Ordering::Relaxed)
    }

    /// Returns true if the script has all that the run did.
    pub const fn is_of_whole(&self) -> bool {
        self.whole
    }

    /// It is about to take no orders any more.
    pub fn refuses(&self) {
        let mut state = self.stalls.state();
        if let Some(stand) = state.of(&self.orders) {
            stand.refuses = true;
        }
    }

    /// Marks the space as exclusively borrowed by the changer, which goes on.
    pub fn is_lent(&self) {
        self.set(Activity::Lent).changer = ChangerActivity::Moves;
    }

    /// It is not begun yet, and with whoever makes the changes.
    pub fn comes_later(&self) {
        drop(self.set(Activity::Lent));
    }

    /// It goes on by itself, settles its accounts, or has done something that others see.
    pub fn moves(&self) {
        drop(self.set(Activity::Moves));
    }

    /// It has settled its accounts. When all have, whoever makes the changes goes on.
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
        if let Some(stand) = state.of(&self.orders) {
            stand.doing = doing;
        }
        state
    }

    /// Sleeps on this bell until `ready`. It does not end when nothing moves any more: another one
    /// does, which makes room.
    pub fn wait_until(
        &self,
        bell: &Doorbell,
        what: impl FnOnce() -> String,
        ready: &mut dyn FnMut() -> bool,
    ) {
        if ready() {
            return;
        }
        let mut wait = self.waits(what, false);
        loop {
            let ticket = bell.listen();
            wait.looks();
            if ready() {
                return;
            }
            wait.in_vain();
            bell.sleep_for(ticket, WAIT);
        }
    }

    /// Begins to wait: what it did until now, others can see.
    pub fn waits(&self, what: impl FnOnce() -> String, change: bool) -> StallWait {
        self.moves();
        let what = format!("{} (byte {})", what(), self.byte());
        StallWait { post: self.clone(), what, change, seen: 0, looks: 0 }
    }
}

/// The place of a space among those that play. When it goes, the space has ended, and everything
/// that others see of it has.
#[derive(Debug)]
pub struct StallRegistration(pub(crate) StallProbe);

impl Drop for StallRegistration {
    fn drop(&mut self) {
        let mut state = self.0.stalls.state();
        state.moves += 1;
        state.spaces.retain(|stand| !Arc::ptr_eq(&stand.orders, &self.0.orders));
    }
}

/// A space that waits; when this goes, it goes on.
#[derive(Debug)]
pub struct StallWait {
    post: StallProbe,
    what: String,
    change: bool,
    seen: u64,
    looks: u32,
}

impl StallWait {
    /// It is about to look.
    pub fn looks(&mut self) {
        let moves = self.post.stalls.state().moves;
        self.looks = if self.seen == moves { self.looks + 1 } else { 1 };
        self.seen = moves;
    }

    /// It has looked in vain. Answers why it does so for ever, if it does.
    pub fn in_vain(&self) -> Option<String> {
        let mut state = self.post.stalls.state();
        let Self { seen, looks, change, .. } = *self;
        if let Some(stand) = state.of(&self.post.orders) {
            stand.doing = Activity::Waits { seen, looks, change, what: self.what.clone() };
        }
        if state.verdict.is_none() && state.is_still() {
            state.verdict = Some(state.told());
        }
        state.verdict.clone()
    }
}

impl Drop for StallWait {
    fn drop(&mut self) {
        // What it saw had moved; that it goes on is nothing that another one waits for.
        let mut state = self.post.stalls.state();
        if let Some(stand) = state.of(&self.post.orders) {
            stand.doing = Activity::Moves;
        }
    }
}
