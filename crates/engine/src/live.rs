//! A running path as its controller reaches it: commands to its spaces, their counters, and what
//! the path did by itself.
//!
//! A [`Live`] outlives its path: what has ended answers [`NotTaken::Ended`], and its counters are
//! those with which it ended. How commands reach a space: [`runtime::commands`].

use crate::kernel::{Kernel, ProgramRan, SoFar};
use crate::path::crew::Crew;
use crate::path::running::Whole;
use crate::spaces::{Found, Runs};
use pipeline::plan::Plan;
use runtime::commands::{CommandQueue, NotTaken};
use runtime::control::Control;
use runtime::latency::{Breach, Latency};
use runtime::ledger::Ledger;
use runtime::report::{self, Reported};
use runtime::space::Space;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A path as somebody outside reaches it, from before it starts until long after it has ended.
#[derive(Clone, Debug)]
pub struct Live {
    control: Arc<Control>,
    spaces: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    /// The whole request, and which part of it this is.
    whole: Option<(Arc<Whole>, usize)>,
}

/// Maximum number of adaptations remembered per path.
const ADAPTED_MAX: usize = 32;

/// The counters of a path at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time of the request: the monotonic clock, in ns.
    pub at: u64,
    /// Nodes, edges and sources as in the ledger at the end. The position of an edge is what was
    /// put on it; what is resident in a ring is what had been put and not taken, the far side asked
    /// first.
    pub ledger: Ledger,
    /// Reports of filters so far.
    pub reports: Vec<Reported>,
    /// Each space, in the order of the plan; processes behind the threads.
    pub spaces: Vec<Found>,
}

/// Freshness of a space's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fresh {
    /// It answered.
    Now,
    /// It has ended, and these are its last.
    Ended,
    /// It did not answer: these are those of the last time, if there was one.
    Old(NotTaken),
}

impl Live {
    pub(crate) fn new(control: Arc<Control>, spaces: Arc<Mutex<Vec<Arc<CommandQueue>>>>) -> Self {
        Self { control, spaces, whole: None }
    }

    pub(crate) fn belongs_to(&mut self, whole: &Arc<Whole>, part: usize) {
        self.whole = Some((Arc::clone(whole), part));
    }

    pub(crate) fn whole(&self) -> Option<&Arc<Whole>> {
        self.whole.as_ref().map(|(whole, _)| whole)
    }

    /// Sets or clears the crew that runs it.
    pub(crate) fn is_run_by(&self, crew: Option<Crew>) {
        if let Some((whole, part)) = &self.whole {
            whole.is_run_by(*part, crew);
        }
    }

    /// Gives nodes and edges of a ledger the places that they have in the plan.
    pub(crate) fn place(&self, ledger: &mut Ledger, reports: &mut [Reported]) {
        let Some(whole) = self.whole() else { return };
        let (node, edge) = whole.state().place_of();
        ledger.filters.iter_mut().for_each(|line| line.planned = node.of(line.planned));
        ledger.edges.iter_mut().for_each(|line| line.planned = edge.of(line.planned));
        reports.iter_mut().for_each(|report| report.planned = node.of(report.planned));
    }

    /// Gives nodes and edges of programs the places that they have in the plan.
    pub(crate) fn place_programs(&self, programs: &mut [ProgramRan]) {
        let Some(whole) = self.whole() else { return };
        let (node, edge) = whole.state().place_of();
        for program in programs {
            program.source = node.of(program.source);
            program.edges.iter_mut().for_each(|number| *number = edge.of(*number));
        }
    }

    /// Says which request this path runs: only then can it be changed by edits.
    pub fn says(&self, text: &str) {
        if let Some(whole) = self.whole() {
            whole.state().text = Some(text.to_owned());
        }
    }

    /// The request that the path runs now, if anybody said it.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        self.whole()?.state().text.clone()
    }

    /// The plan that the path follows now. What ledger and reports call by a place stands there;
    /// what has the place [`GONE`](crate::build::GONE) was in an earlier one.
    #[must_use]
    pub fn plan(&self) -> Option<Plan> {
        Some(self.whole()?.state().plan.clone())
    }

    /// Returns the number of changes, both requested and by the path itself.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.whole().map_or(0, |whole| whole.state().changes)
    }

    /// Returns the counters of kernel programs so far, for their current eras, by node and edge of
    /// the plan.
    pub(crate) fn in_kernel(&self) -> Vec<SoFar> {
        let Some((whole, part)) = &self.whole else { return Vec::new() };
        let state = whole.state();
        let kernels = state.parts.get(*part).and_then(|part| part.kernels.upgrade());
        let (node, edge) = state.place_of();
        let Some(kernels) = kernels else { return Vec::new() };
        let kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<SoFar> = kernels.iter().filter_map(Kernel::counts).collect();
        for counts in &mut all {
            counts.nodes.iter_mut().for_each(|(number, _)| *number = node.of(*number));
            counts.edges.iter_mut().for_each(|(number, _)| *number = edge.of(*number));
        }
        all
    }

    /// Returns the latest adaptations of the path, with their reasons.
    #[must_use]
    pub fn adapted(&self) -> Vec<String> {
        self.whole().map_or_else(Vec::new, |whole| whole.state().adapted.iter().cloned().collect())
    }

    /// Returns the latency of blocks, where the request bounds it.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        self.whole()?.extras.budget.told(sys::clock::monotonic())
    }

    /// Returns the latency breach since the last call, if there was one.
    pub(crate) fn breach(&self) -> Option<Breach> {
        self.whole()?.extras.budget.breach(sys::clock::monotonic())
    }

    /// Returns the number of times the path checked if it should adapt.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.whole().map_or(0, |whole| whole.state().looks)
    }

    /// It has looked.
    pub(crate) fn has_looked(&self) {
        if let Some(whole) = self.whole() {
            whole.state().looks += 1;
        }
    }

    /// It did this by itself.
    pub(crate) fn adapts(&self, what: String) {
        if let Some(whole) = self.whole() {
            let adapted = &mut whole.state().adapted;
            adapted.push_back(what);
            if adapted.len() > ADAPTED_MAX {
                adapted.pop_front();
            }
        }
    }

    /// The names of the spaces, in the order of the plan: their places are their numbers.
    #[must_use]
    pub fn spaces(&self) -> Vec<String> {
        self.all().iter().map(|orders| orders.name.clone()).collect()
    }

    /// Returns true if all spaces have ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.all().iter().all(|orders| orders.inbox().ended)
    }

    /// Lets the sources of the path end: what is under way drains.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Has a space do this between two passes, and waits for its answer, at most until `limit` is
    /// over; what has been begun by then is waited for. It must not block, and no space may order
    /// anything of its own path.
    pub fn order<A: Send + 'static>(
        &self,
        space: usize,
        limit: Duration,
        order: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, NotTaken> {
        let orders = self.all().get(space).cloned().ok_or(NotTaken::Ended)?;
        orders.ask(limit, order)
    }

    /// Returns the counters of all spaces. A space that does not answer in its share of `limit` is
    /// reported with its previous counters.
    #[must_use]
    pub fn counters(&self, limit: Duration) -> Snapshot {
        let all = self.all();
        let at = sys::clock::monotonic();
        let share = limit / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        let (mut spaces, mut counted, mut has) = (Vec::new(), Vec::new(), Vec::new());
        // The far side of a ring has not taken more than the near side has put when that is asked
        // later.
        for orders in all.iter().rev() {
            let held_up = orders.held_up();
            let task = orders.task();
            let given = orders.send(|space: &mut Space| (space.counted(), space.resources()));
            let answer = given.and_then(|given| given.answer(share));
            let mut inbox = orders.inbox();
            let fresh = match answer {
                Ok((now, has)) => {
                    (inbox.last, inbox.resources) = (Some(now), Some(has));
                    Fresh::Now
                }
                Err(NotTaken::Ended) => Fresh::Ended,
                Err(why) => Fresh::Old(why),
            };
            let (name, runs) =
                (orders.name.clone(), task.as_ref().map(|(id, _)| Runs::Thread(*id)));
            let memory = inbox.resources.as_ref().map(|has| has.memory);
            let task = task.map(|(_, task)| task);
            spaces.push(Found { name, fresh, runs, task, held_up, memory });
            counted.extend(inbox.last.clone());
            has.extend(inbox.resources.clone());
        }
        spaces.reverse();
        counted.reverse();
        has.reverse();
        spaces.extend(self.processes(&has));
        // What crossed to spaces that are no more, they have counted.
        if let Some((whole, part)) = &self.whole {
            let gone = whole.state().parts.get(*part).map(|part| part.gone.clone());
            let last = gone.into_iter().flatten().filter_map(|one| one.last(Duration::ZERO));
            counted.extend(last);
        }
        let mut reports = report::joined_reports(&counted);
        let mut ledger = report::joined(counted, true);
        self.place(&mut ledger, &mut reports);
        if let Some(whole) = self.whole() {
            let (_, edge) = whole.state().place_of();
            let edges = spaces.iter_mut().filter_map(|space| space.held_up.as_mut());
            edges.for_each(|number| *number = edge.of(*number));
        }
        Snapshot { at, ledger, reports, spaces }
    }

    /// Has the spaces measure the time in their filters from now on, or no more. One that does not
    /// come to it in its share of `limit` goes on as before.
    pub fn measure_time(&self, on: bool, limit: Duration) {
        let spaces = self.all().len();
        let share = limit / u32::try_from(spaces.max(1)).unwrap_or(u32::MAX);
        for number in 0..spaces {
            let _ = self.order(number, share, move |space| space.measure_time(on));
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<CommandQueue>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
