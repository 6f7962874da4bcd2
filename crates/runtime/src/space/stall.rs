//! Whether anything still moves in a run that is repeated.
//!
//! A space that plays waits for what its record says: for blocks that another one puts, for room,
//! for a change. A record that lies may have all of them wait for one another. So each says for
//! what it waits whenever it has looked in vain. When all have, since anything moved last, nothing
//! will any more: each that waits is told so, with where all of them stand.
//!
//! No clock is asked. A space in a filter or a sink moves, however long that takes. Whoever does
//! something that another one waits for counts that before it waits itself, so no order of threads
//! makes a record that is right end so. docs/book/decisions/0042-changes-in-a-record.md

use super::events::SharedScript;
use crate::commands::CommandQueue;
use buffer::signal::Doorbell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a space must have looked in vain since anything moved. Once would do; between two
/// looks it has told the others of what it put and taken back what they passed.
const LOOKS: u32 = 2;

/// How long a space sleeps at most when what a record says is not there yet.
pub const WAIT: Duration = Duration::from_millis(2);

/// A detector of spaces that wait for one another.
#[derive(Debug, Default)]
pub struct StallDetector(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    /// How often something may have become of what others look for.
    moves: u64,
    spaces: Vec<SpaceActivity>,
    changer: ChangerActivity,
    verdict: Option<String>,
}

#[derive(Debug)]
struct SpaceActivity {
    orders: Arc<CommandQueue>,
    doing: Activity,
    /// Whether it takes no orders any more.
    refuses: bool,
}

#[derive(Debug)]
enum Activity {
    Moves,
    Waits {
        /// What of [`StallState::moves`] it had seen when it looked, and how often it has looked
        /// since.
        seen: u64,
        looks: u32,
        /// Whether it is there for a change.
        change: bool,
        what: String,
    },
    /// Whoever makes the changes has it.
    Lent,
}

/// What whoever makes the changes does.
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

    /// Somebody makes changes.
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

    /// Who makes the changes waits for this space, which is given an order behind this.
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

    /// Whether nothing will move any more.
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

    /// Where all of them stand.
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

    /// At which byte of the record its last turn stands.
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

    /// Whoever makes the changes has it, and goes on.
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
