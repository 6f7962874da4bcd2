//! Automatic changes: a path measures its own costs while it runs, and changes its placement or its
//! replicas when the change pays off. [Th §5.4], [SL §7.1]
//!
//! Input: running paths, and the changes that the user permits ([`AdaptationSettings`]). Output:
//! changes to the shape of a path ([`crate::change::reshape`]), each reported with its reason
//! ([`PathHandle::adaptations`]). A separate thread measures each arc's share of the blocks in the
//! first seconds ([`first_seconds`]), and then ends or waits for reports of stalled sinks
//! ([`stalls`]). If requested, it instead makes short observations for as long as the path runs
//! ([`observation`]): costs of filters, block rates, idle time. The planner predicts gains from its
//! cost table, corrected by the observations. [`replicas`] and [`filter_moves`] then decide on a
//! change, without using a clock or threads. If one thread has too much work, some of its work
//! moves to other threads ([`work_spreading`]): replicas of its filters, or a *stage*, which is a
//! filter with everything downstream of it. If one replica has more work than the others, some of
//! its sessions move to another replica ([`sessions`]).
//!
//! The gain from more threads is verified: the rate is measured again, and a change that does not
//! pay is undone and not repeated soon. A moved filter moves back only if later observations
//! predict a gain. Nothing is measured between two observations.

mod filter_moves;
mod first_seconds;
mod observation;
mod replicas;
mod sessions;
mod stalls;
mod work_spreading;

pub use observation::extract_measurements;

use crate::change::{ChangeError, NodePlacement, predicted_moves, reshape};
use crate::live::PathHandle;
use crate::path::AdaptationSettings;
use filter_moves::{MovePolicy, MoveProposal, MoveThreshold};
use observation::{CounterSnapshot, Observation};
use pipeline::explain;
use pipeline::plan::{Costs, Machine, MovePeriod, Plan};
use replicas::ReplicaPolicy;
use runtime::control::ControlEvent;
use sessions::SessionBalance;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use work_spreading::StagesInThreads;

/// Maximum wait for a space to end its current pass. After it, the change or the observation that
/// needs the space is abandoned.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Handle of the thread that observes paths. Dropping the handle stops and joins the thread.
#[derive(Debug)]
pub(crate) struct AdaptationThread {
    wakes: Sender<ObserverMessage>,
    thread: Option<JoinHandle<()>>,
}

/// A message to the thread that observes paths ([`AdaptationThread`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObserverMessage {
    /// Requests the end of the observing thread.
    End,
    /// Reports an event in a space of an observed path.
    SpaceEvent(ControlEvent),
}

impl AdaptationThread {
    /// Starts a thread that observes the paths in `lives` and adapts them. Returns `None` if the
    /// paths may not adapt, or if the kernel refuses to start a thread; the paths then never adapt.
    pub(crate) fn start_for(lives: &[PathHandle]) -> Option<Self> {
        let adapt = lives.first()?.running_path()?.extras.adaptation.clone()?;
        let (wakes, received) = mpsc::channel();
        let lives = lives.to_vec();
        let listening = lives.clone();
        let body = move || PathObserver::new(lives, adapt).run(&received);
        let thread = std::thread::Builder::new().name("adapt".to_owned()).spawn(body).ok()?;
        for live in listening {
            let wakes = wakes.clone();
            live.set_event_listener(move |event| {
                // The send fails if the thread has ended, and then no events are needed.
                let _sent = wakes.send(ObserverMessage::SpaceEvent(event));
            });
        }
        Some(Self { wakes, thread: Some(thread) })
    }
}

impl Drop for AdaptationThread {
    fn drop(&mut self) {
        // The send fails if the thread has ended.
        let _sent = self.wakes.send(ObserverMessage::End);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the paths stay as they are.
            let _ended = thread.join();
        }
    }
}

struct PathObserver {
    lives: Vec<PathHandle>,
    adapt: Arc<AdaptationSettings>,
    /// The machine's cost table, with the costs that the observations of these paths have
    /// corrected.
    costs: Costs,
    /// Current length of an observation in ns; grows while few blocks arrive.
    observation_ns: u64,
    replica_policy: ReplicaPolicy,
    move_policy: MovePolicy,
    session_balance: SessionBalance,
    /// Stages (filters with everything downstream of them) that now run in threads of their own;
    /// `None` if there are none.
    made_stages: Option<StagesInThreads>,
    /// True once the user has been told that this process cannot read the counters of the path's
    /// kernel programs.
    reported_unreadable: bool,
    /// Node numbers of sinks for which a move to a thread of their own succeeded or was refused.
    tried_sinks: HashSet<usize>,
}

/// Minimum number of blocks in an observation; an observation with fewer blocks is ignored.
const OBSERVED_BLOCKS_MIN: u64 = 256;
/// Maximum length of an observation, as a multiple of the length in the settings.
const OBSERVATION_LENGTH_FACTOR_MAX: u64 = 64;

impl PathObserver {
    fn new(lives: Vec<PathHandle>, adapt: Arc<AdaptationSettings>) -> Self {
        let replica_policy = ReplicaPolicy::new(adapt.rate_policy);
        let move_policy = MovePolicy::new(adapt.rate_policy, MoveThreshold::AFTER_START);
        let (costs, observation_ns) =
            (adapt.machine.costs.clone(), adapt.rate_policy.observation_ns);
        Self {
            lives,
            adapt,
            costs,
            observation_ns,
            replica_policy,
            move_policy,
            session_balance: SessionBalance::default(),
            made_stages: None,
            reported_unreadable: false,
            tried_sinks: HashSet::new(),
        }
    }

    /// Sleeps for `ns` nanoseconds, and handles events of spaces in the meantime. Returns true if
    /// the observing thread must end; the sleep may then be shorter.
    fn sleep_or_stop(&mut self, wakes: &Receiver<ObserverMessage>, ns: u64) -> bool {
        let end = sys::clock::monotonic_ns().saturating_add(ns);
        loop {
            let left = Duration::from_nanos(end.saturating_sub(sys::clock::monotonic_ns()));
            match wakes.recv_timeout(left) {
                Ok(ObserverMessage::SpaceEvent(ControlEvent::FirstBlocks)) => {}
                Ok(ObserverMessage::SpaceEvent(ControlEvent::Stalled(stall))) => {
                    self.move_stalled_sink(stall)
                }
                Ok(ObserverMessage::End) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    fn run(mut self, wakes: &Receiver<ObserverMessage>) {
        let always = self.adapt.may_replicate || self.adapt.moves == MovePeriod::Always;
        let starts = self.adapt.moves == MovePeriod::Start || self.adapt.may_move_stages && !always;
        if starts && !self.observe_first_seconds(wakes) {
            return;
        }
        if !always {
            return match (self.adapt.may_move_sessions, self.adapt.may_move_sinks) {
                (true, _) => self.balance_sessions(wakes),
                (false, true) => self.move_stalled_sinks_until_end(wakes),
                (false, false) => {}
            };
        }
        let mut sleep = 0;
        while !self.sleep_or_stop(wakes, sleep) {
            let Some(observation) = self.observe_paths(wakes) else { return };
            let soon = observation.is_some_and(|observation| self.adapt(&observation));
            self.lives.iter().for_each(PathHandle::count_observation);
            sleep = self.replica_policy.next_sleep_ns(soon);
        }
    }

    /// Makes one observation of the paths, and blocks for its length. Returns `None` if the paths
    /// have ended or the observing thread must end. Returns `Some(None)` if the first path changed
    /// during the observation or a space did not respond.
    fn observe_paths(&mut self, wakes: &Receiver<ObserverMessage>) -> Option<Option<Observation>> {
        let live = self.lives.first()?.clone();
        let lives = self.lives.clone();
        let measures =
            |on| lives.iter().for_each(|live| live.set_time_measurement(on, SPACE_WAIT_MAX));
        measures(true);
        let before = CounterSnapshot::capture(&self.lives, SPACE_WAIT_MAX);
        let ends = self.sleep_or_stop(wakes, self.observation_ns);
        let after = CounterSnapshot::capture(&self.lives, SPACE_WAIT_MAX);
        if !live.running_path().is_some_and(|whole| whole.settings.timed) {
            measures(false);
        }
        if ends || self.lives.iter().all(PathHandle::has_ended) {
            return None;
        }
        let between = before.zip(after).zip(live.plan());
        Some(between.and_then(|((before, after), plan)| {
            Observation::from_snapshots(&before, &after, &plan)
        }))
    }

    /// Adapts the paths to an observation: corrects the cost table, and makes a change if one is
    /// due. Also doubles the length of later observations, up to a limit, while few blocks arrive.
    /// Returns true if a change was made or refused, or will be made if the next observations agree
    /// with this one.
    fn adapt(&mut self, observation: &Observation) -> bool {
        let most =
            self.adapt.rate_policy.observation_ns.saturating_mul(OBSERVATION_LENGTH_FACTOR_MAX);
        let little = observation.input_blocks() < OBSERVED_BLOCKS_MIN;
        self.observation_ns = if little {
            self.observation_ns.saturating_mul(2).min(most)
        } else {
            self.observation_ns
        };
        let moves = self.adapt.moves == MovePeriod::Always;
        if observation.counters_unreadable
            && !std::mem::replace(&mut self.reported_unreadable, true)
            && moves
        {
            let why = "no filter moves: the daemon that holds the kernel program does not report \
                       its counters";
            self.lives.iter().take(1).for_each(|live| live.add_adaptation(why.to_owned()));
        }
        let plan = self.lives.first().and_then(PathHandle::plan);
        let Some(plan) = plan.filter(|_| observation.input_blocks() > 0) else { return false };
        if plan.replicas.iter().any(|copied| copied.shard_key.is_some()) {
            self.balance_sessions_once();
            return false;
        }
        self.costs = observation.corrected_costs(&self.costs);
        let machine = Machine { costs: self.costs.clone(), ..self.adapt.machine.clone() };
        let moves = moves && plan.replicas.is_empty();
        let enough = !little || self.observation_ns == most;
        if moves
            && enough
            && self.move_filters(observation.at, &plan, &machine, "by measured costs")
        {
            return true;
        }
        (self.adapt.may_replicate || self.adapt.may_move_stages)
            && self.spread_work(observation, &plan, &machine)
    }

    /// Moves filters between the kernel and threads if a move is due. `why` is the reason that the
    /// report of the move states. Returns true if a move was made, was refused, or will be made if
    /// the next observations agree with this one.
    fn move_filters(&mut self, at: u64, plan: &Plan, machine: &Machine, why: &str) -> bool {
        let offer = predicted_moves(plan, machine);
        let offer = offer.map(|(now, then, places)| MoveProposal {
            current_cost_ns: now,
            predicted_cost_ns: then,
            placements: places,
        });
        let Some(places) = self.move_policy.decide(at, offer.as_ref()) else {
            return self.move_policy.is_imminent();
        };
        let Some(live) = self.lives.first() else { return false };
        let names = explain::unique_names(&plan.graph);
        let to = |(node, space): &NodePlacement| format!("`{}` to {space}", names[node.0]);
        let what = places.iter().map(to).collect::<Vec<_>>().join(", ");
        let cost = offer.map_or_else(
            String::new,
            |MoveProposal { current_cost_ns: now, predicted_cost_ns: then, .. }| {
                let (then, now) =
                    (explain::format_short_duration(then), explain::format_short_duration(now));
                format!("a block takes {then}, {now} before, {why}")
            },
        );
        match reshape(live, (&places, false), machine, SPACE_WAIT_MAX) {
            Ok(switched) => live.add_adaptation(format!("{what}: {cost}; {switched}")),
            // Either the path is ending or a space was busy. A later observation tries again.
            Err(ChangeError::SpaceUnavailable(_) | ChangeError::KernelHostRestarted(_)) => {}
            Err(refused) => {
                self.move_policy.record_refusal(places);
                live.add_adaptation(format!("not {what}: {refused}"));
            }
        }
        true
    }
}
