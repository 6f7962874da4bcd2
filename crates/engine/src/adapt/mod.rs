//! A path that looks at what it costs while it runs, and takes another shape when that pays.
//! [Th §5.4], [SL §7.1]
//!
//! In: paths that run, and what they may do by themselves ([`Adapt`]). Out: changes of their shape
//! ([`crate::change::reshape`]), each told with its reason ([`Live::adapted`]). One thread beside
//! the spaces looks for a moment ([`look`]): what filters cost, how many blocks come, whether
//! somebody sleeps. From that the planner says what would pay, by the table of costs with what was
//! seen put in; [`copies`] and [`moves`] decide, which have no clock and know no thread.
//!
//! Nobody is believed for ever: what was changed is measured again, and what has not paid goes back
//! and is not tried again soon. Between two looks nothing is measured and nothing is asked.

mod copies;
mod look;
mod moves;

pub use look::seen;

use crate::change::{Place, Unchanged, reshape, worth_copies, worth_moves};
use crate::live::Live;
use crate::path::Adapt;
use copies::{Copies, Sight, Step};
use look::{Look, Mark};
use moves::{Moves, Offer};
use pipeline::explain;
use pipeline::plan::{Costs, Machine, Plan};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait until a space is at a block boundary; past it, the change is abandoned.
const LIMIT: Duration = Duration::from_secs(2);

/// The thread that looks. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watcher {
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
}

/// A shutdown flag that wakes the thread which sleeps between two observations.
#[derive(Debug, Default)]
struct Ending {
    ended: Mutex<bool>,
    told: Condvar,
}

impl Ending {
    /// Sleeps for so long; answers whether it is to end.
    fn sleeps(&self, ns: u64) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_nanos(ns);
        let slept = self.told.wait_timeout_while(ended, limit, |ended| !*ended);
        *slept.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Watcher {
    /// Begins to look at paths that run, if they are to adapt. That no thread can be had for it
    /// leaves them as they are.
    pub(crate) fn of(lives: &[Live]) -> Option<Self> {
        let adapt = lives.first()?.whole()?.extras.adapt.clone()?;
        let ending = Arc::new(Ending::default());
        let (lives, its) = (lives.to_vec(), Arc::clone(&ending));
        let body = move || Watch::new(lives, adapt).run(&its);
        let thread = std::thread::Builder::new().name("looks".to_owned()).spawn(body).ok()?;
        Some(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        *self.ending.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ending.told.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it has panicked the paths are as they were.
            let _ended = thread.join();
        }
    }
}

struct Watch {
    lives: Vec<Live>,
    adapt: Arc<Adapt>,
    /// The table of costs, with all that was seen put in.
    known: Costs,
    /// Current length of an observation, in ns: longer at low traffic.
    look_ns: u64,
    copies: Copies,
    moves: Moves,
    /// True once the missing counters of programs have been reported.
    blind: bool,
}

/// A look in which fewer blocks came says little.
const BLOCKS_MIN: u64 = 256;
/// A look takes at most so many times as long as one should.
const LOOK_TIMES_MAX: u64 = 64;

impl Watch {
    fn new(lives: Vec<Live>, adapt: Arc<Adapt>) -> Self {
        let (copies, moves) = (Copies::new(adapt.pace), Moves::new(adapt.pace));
        let (known, look_ns) = (adapt.machine.costs.clone(), adapt.pace.look_ns);
        Self { lives, adapt, known, look_ns, copies, moves, blind: false }
    }

    fn run(mut self, ending: &Ending) {
        let mut sleep = 0;
        while !ending.sleeps(sleep) {
            let Some(look) = self.look(ending) else { return };
            let soon = look.is_some_and(|look| self.judge(&look));
            self.lives.iter().for_each(Live::has_looked);
            sleep = self.copies.sleeps(soon);
        }
    }

    /// Looks for a moment; nothing of use if the path changed meanwhile, none when all has ended.
    fn look(&self, ending: &Ending) -> Option<Option<Look>> {
        let live = self.lives.first()?;
        let measures = |on| self.lives.iter().for_each(|live| live.measure_time(on, LIMIT));
        measures(true);
        let before = Mark::take(&self.lives, LIMIT);
        let ends = ending.sleeps(self.look_ns);
        let after = Mark::take(&self.lives, LIMIT);
        if !live.whole().is_some_and(|whole| whole.settings.timed) {
            measures(false);
        }
        if ends || self.lives.iter().all(Live::is_ended) {
            return None;
        }
        let between = before.zip(after).zip(live.plan());
        Some(between.and_then(|((before, after), plan)| Look::between(&before, &after, &plan)))
    }

    /// Changes what is to be changed; answers whether anything is about to be.
    fn judge(&mut self, look: &Look) -> bool {
        let most = self.adapt.pace.look_ns.saturating_mul(LOOK_TIMES_MAX);
        let little = look.came() < BLOCKS_MIN;
        self.look_ns = if little { self.look_ns.saturating_mul(2).min(most) } else { self.look_ns };
        if look.is_blind() && !std::mem::replace(&mut self.blind, true) && self.adapt.moves {
            let why = "no filter moves: whoever holds the program does not say what it counts";
            self.lives.iter().take(1).for_each(|live| live.adapts(why.to_owned()));
        }
        let plan = self.lives.first().and_then(Live::plan);
        let Some(plan) = plan.filter(|_| look.came() > 0) else { return false };
        if plan.copied.iter().any(|copied| copied.sharing.is_some()) {
            return false;
        }
        self.known = look.costs(&self.known);
        let machine = Machine { costs: self.known.clone(), ..self.adapt.machine.clone() };
        let moves = self.adapt.moves && plan.copied.is_empty();
        let enough = !little || self.look_ns == most;
        if moves && enough && self.moves(look.at, &plan, &machine) {
            return true;
        }
        self.adapt.copies && self.share(look, &plan, &machine)
    }

    /// Moves what is to be moved.
    fn moves(&mut self, at: u64, plan: &Plan, machine: &Machine) -> bool {
        let offer = worth_moves(plan, machine);
        let offer = offer.map(|(now, then, places)| Offer { now, then, places });
        let Some(places) = self.moves.next(at, offer.as_ref()) else {
            return self.moves.is_near();
        };
        let Some(live) = self.lives.first() else { return false };
        let names = explain::names(&plan.graph);
        let to = |(node, space): &Place| format!("`{}` to {space}", names[node.0]);
        let what = places.iter().map(to).collect::<Vec<_>>().join(", ");
        let cost = offer.map_or_else(String::new, |Offer { now, then, .. }| {
            let (then, now) = (explain::spent(then), explain::spent(now));
            format!("a block takes {then} by what was seen, {now} before")
        });
        match reshape(live, (&places, false), machine, LIMIT) {
            Ok(switched) => live.adapts(format!("{what}: {cost}; {switched}")),
            // It ends, or somebody keeps a space: perhaps next time.
            Err(Unchanged::NotTaken(_) | Unchanged::Again(_)) => {}
            Err(refused) => {
                self.moves.is_refused(places);
                live.adapts(format!("not {what}: {refused}"));
            }
        }
        true
    }

    /// Shares out what is to be shared out, or goes back.
    fn share(&mut self, look: &Look, plan: &Plan, machine: &Machine) -> bool {
        let Some(live) = self.lives.first() else { return false };
        let shared = !plan.copied.is_empty();
        let worth = if shared { None } else { worth_copies(plan, machine) };
        let (rate, busy, idle) = (look.rate(), look.busy(), look.idle());
        let sight = Sight { shared, worth: worth.is_some(), rate, busy, idle };
        let Some(step) = self.copies.next(look.at, &sight) else { return self.copies.is_near() };
        let done = reshape(live, (&[], step.shares()), machine, LIMIT);
        let why = match &step {
            Step::Share => worth.unwrap_or_default(),
            Step::Join(why) => why.clone(),
        };
        let what = if step.shares() { "copies" } else { "one copy again" };
        match done {
            Ok(switched) => live.adapts(format!("{what}: {why}; {switched}")),
            // It ends, or somebody keeps a space: perhaps next time.
            Err(Unchanged::NotTaken(_) | Unchanged::Again(_)) => {}
            Err(refused) => {
                self.copies.is_refused();
                live.adapts(format!("no {what}: {refused}"));
            }
        }
        true
    }
}
