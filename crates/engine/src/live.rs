//! Control over a running path: commands to its spaces, access to their counters, and automatic
//! changes.
//!
//! A [`PathHandle`] outlives its path. After the end of the path, commands fail with
//! [`CommandError::Ended`] and queries return the final counters. [`runtime::commands`] describes
//! how commands reach a space.

use crate::kernel::{self, GenerationCounters, KernelSpace, ProgramTotals};
use crate::path::REMOVED_INDEX;
use crate::path::running_path::{AdaptationListener, RunningPath};
use crate::path::starter::ThreadStarter;
use crate::spaces::{SpaceStatus, SpaceTask};
use pipeline::graph::NodeId;
use pipeline::plan::Plan;
use runtime::commands::{CommandError, CommandQueue};
use runtime::control::{ControlEvent, PathControl};
use runtime::counters::SpaceCounters;
use runtime::latency::{LatencyBreach, LatencyReport};
use runtime::ledger::Ledger;
use runtime::report::{self, NodeReport};
use runtime::space::Space;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A handle to a path, valid from before the start of the path until after its end.
#[derive(Clone, Debug)]
pub struct PathHandle {
    pub(crate) control: Arc<PathControl>,
    spaces: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    /// The running path of the whole request, and the index of the connected component that this
    /// handle controls. `None` for a path that was not built from a plan.
    whole: Option<(Arc<RunningPath>, usize)>,
}

/// Maximum number of automatic changes that a path remembers for queries.
const ADAPTATIONS_MAX: usize = 32;

/// The counters of a path at one point in time.
#[derive(Clone, Debug, Default)]
pub struct PathSnapshot {
    /// Time at which the counters were queried, in ns of the monotonic clock.
    pub at: u64,
    /// Counters of nodes, edges and sources, as in the final ledger. The number of blocks in a ring
    /// is the number put minus the number taken. It is never negative, because the ring's reader is
    /// queried before the writer.
    pub ledger: Ledger,
    /// Latest reports from the filters.
    pub reports: Vec<NodeReport>,
    /// The status of each space: first the threads in the order of the plan, then the processes.
    pub spaces: Vec<SpaceStatus>,
}

/// The freshness of a space's counters in a [`PathSnapshot`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CounterFreshness {
    /// The space responded to the query for the snapshot, so the counters are current.
    Current,
    /// The space has ended; these are its final counters.
    Ended,
    /// The space did not respond, for the contained reason. The counters are those of its last
    /// response, if there was one.
    Stale(CommandError),
}

impl PathHandle {
    pub(crate) fn new(
        control: Arc<PathControl>,
        spaces: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    ) -> Self {
        Self { control, spaces, whole: None }
    }

    pub(crate) fn set_running_path(&mut self, whole: &Arc<RunningPath>, part: usize) {
        self.whole = Some((Arc::clone(whole), part));
    }

    /// Returns the running path of the whole request, and the index of the connected component that
    /// this handle controls. Returns `None` for a path that was not built from a plan.
    pub(crate) fn whole_path(&self) -> Option<(&Arc<RunningPath>, usize)> {
        self.whole.as_ref().map(|(whole, part)| (whole, *part))
    }

    pub(crate) fn running_path(&self) -> Option<&Arc<RunningPath>> {
        self.whole.as_ref().map(|(whole, _)| whole)
    }

    /// Sets the handle that starts threads for added spaces of this path. `None` means that the
    /// path has ended or runs without threads.
    pub(crate) fn set_thread_starter(&self, starter: Option<ThreadStarter>) {
        if let Some((whole, part)) = &self.whole {
            whole.set_thread_starter(*part, starter);
        }
    }

    /// Replaces node and edge numbers in a ledger and in reports with plan indices, in place.
    pub(crate) fn convert_to_plan_indices(&self, ledger: &mut Ledger, reports: &mut [NodeReport]) {
        let Some(whole) = self.running_path() else { return };
        let (node, edge) = whole.lock_state().plan_indices();
        ledger.filters.iter_mut().for_each(|line| line.planned = node.index_of(line.planned));
        ledger.edges.iter_mut().for_each(|line| line.planned = edge.index_of(line.planned));
        reports.iter_mut().for_each(|report| report.planned = node.index_of(report.planned));
    }

    /// Replaces node and edge numbers in the totals of programs with plan indices, in place.
    pub(crate) fn convert_programs_to_plan_indices(&self, programs: &mut [ProgramTotals]) {
        let Some(whole) = self.running_path() else { return };
        let (node, edge) = whole.lock_state().plan_indices();
        for program in programs {
            program.source = node.index_of(program.source);
            program.edges.iter_mut().for_each(|number| *number = edge.index_of(*number));
        }
    }

    /// Sets the text of the request that this path runs. Edits require a text.
    pub fn set_request_text(&self, text: &str) {
        if let Some(whole) = self.running_path() {
            whole.lock_state().text = Some(text.to_owned());
        }
    }

    /// Returns the text of the current request, or `None` if it was never set.
    #[must_use]
    pub fn request_text(&self) -> Option<String> {
        self.running_path()?.lock_state().text.clone()
    }

    /// Returns the current plan, whose indices are used in ledgers and reports, or `None` if the
    /// path was not built from a plan. The index [`REMOVED_INDEX`] denotes a node or edge of an
    /// earlier plan.
    #[must_use]
    pub fn plan(&self) -> Option<Plan> {
        Some(self.running_path()?.lock_state().plan.clone())
    }

    /// Returns the numbers of the current plan's nodes. A number stays the same across changes to
    /// the path. Empty if the path was not built from a plan.
    #[must_use]
    pub fn node_numbers(&self) -> Vec<usize> {
        self.running_path().map_or_else(Vec::new, |whole| whole.lock_state().ids.nodes.clone())
    }

    /// Returns the number of changes to the path so far, requested and automatic.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.running_path().map_or(0, |whole| whole.lock_state().changes)
    }

    /// Returns the counters that each kernel program has collected since the last change of the
    /// path. They are listed by plan index of the node or edge. Omits programs whose counters this
    /// process cannot read.
    pub(crate) fn kernel_counters(&self) -> Vec<GenerationCounters> {
        let Some((whole, part)) = &self.whole else { return Vec::new() };
        let state = whole.lock_state();
        let kernels = state.parts.get(*part).and_then(|part| part.kernels.upgrade());
        let (node, edge) = state.plan_indices();
        let Some(kernels) = kernels else { return Vec::new() };
        let kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = kernels.iter().filter_map(KernelSpace::generation_counters).collect();
        for counts in &mut all {
            counts.nodes.iter_mut().for_each(|(number, _)| *number = node.index_of(*number));
            counts.edges.iter_mut().for_each(|(number, _)| *number = edge.index_of(*number));
        }
        all
    }

    /// Returns the counters of the kernel programs, or their final counters after the end of the
    /// path. `threads` contains the counters of the threads. Blocks for at most `limit`.
    fn kernel_space_counters(
        &self,
        threads: &[SpaceCounters],
        limit: Duration,
    ) -> Vec<SpaceCounters> {
        let Some((whole, part)) = &self.whole else { return Vec::new() };
        let running = {
            let state = whole.lock_state();
            let Some(part) = state.parts.get(*part) else { return Vec::new() };
            if !part.final_kernel_counters.is_empty() {
                return part.final_kernel_counters.clone();
            }
            part.kernels.upgrade()
        };
        let Some(kernels) = running else { return Vec::new() };
        kernel::query_counters(&kernels, threads, limit)
    }

    /// Stores the final counters of the kernel programs, for queries after the end of the path.
    pub(crate) fn store_kernel_counters(&self, counted: Vec<SpaceCounters>) {
        let Some((whole, number)) = &self.whole else { return };
        if let Some(part) = whole.lock_state().parts.get_mut(*number) {
            part.final_kernel_counters = counted;
        }
    }

    /// Returns the latest automatic changes to the path, with their reasons.
    #[must_use]
    pub fn adaptations(&self) -> Vec<String> {
        self.running_path()
            .map_or_else(Vec::new, |whole| whole.lock_state().adaptations.iter().cloned().collect())
    }

    /// Returns the latency of blocks, or `None` if the request does not bound the latency.
    #[must_use]
    pub fn latency(&self) -> Option<LatencyReport> {
        self.running_path()?.extras.budget.measurements(sys::clock::monotonic_ns())
    }

    /// Returns the worst latency breach since the last call, if any.
    pub(crate) fn take_worst_breach(&self) -> Option<LatencyBreach> {
        self.running_path()?.extras.budget.take_breach(sys::clock::monotonic_ns())
    }

    /// Returns the number of observations made so far. Each observation measures the path's costs
    /// in order to decide on automatic changes.
    #[must_use]
    pub fn observation_count(&self) -> u64 {
        self.running_path().map_or(0, |whole| whole.lock_state().observations)
    }

    /// Increments the number of observations made for automatic changes.
    pub(crate) fn count_observation(&self) {
        if let Some(whole) = self.running_path() {
            whole.lock_state().observations += 1;
        }
    }

    /// Appends an automatic change to the list of the latest [`ADAPTATIONS_MAX`] changes, and calls
    /// the listener, if any.
    pub(crate) fn add_adaptation(&self, what: String) {
        if let Some(whole) = self.running_path() {
            let mut state = whole.lock_state();
            let listener = state.listener.clone();
            state.adaptations.push_back(what.clone());
            if state.adaptations.len() > ADAPTATIONS_MAX {
                state.adaptations.pop_front();
            }
            drop(state);
            if let Some(AdaptationListener(listener)) = listener {
                listener(&what);
            }
        }
    }

    /// Sets the listener that is called with each later automatic change, and replaces any earlier
    /// listener. The listener runs in the thread that makes the change, and must return quickly.
    pub fn set_adaptation_listener(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        if let Some(whole) = self.running_path() {
            whole.lock_state().listener = Some(AdaptationListener(Arc::new(listener)));
        }
    }

    /// Returns the names of the spaces by number, which is the order of the plan.
    #[must_use]
    pub fn space_names(&self) -> Vec<String> {
        self.command_queues().iter().map(|commands| commands.status.name.clone()).collect()
    }

    /// Returns true if all spaces have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.command_queues().iter().all(|commands| commands.lock_inbox().ended)
    }

    /// Returns the node with this number, or `None` if the current plan has none.
    pub(crate) fn node_with_number(&self, number: usize) -> Option<NodeId> {
        let (node, _) = self.running_path()?.lock_state().plan_indices();
        Some(node.index_of(number)).filter(|place| *place != REMOVED_INDEX).map(NodeId)
    }

    /// Sets the listener for events of the spaces. The listener must not block.
    pub(crate) fn set_event_listener(
        &self,
        listener: impl Fn(ControlEvent) + Send + Sync + 'static,
    ) {
        self.control.set_listener(listener);
    }

    /// Stops the sources of the path; blocks in flight drain. Does not wait.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Executes a command in the space with this index, between two passes, and returns its result.
    /// Blocks for at most `limit` until the command has started, and then until it has ended. The
    /// command must neither block nor send commands to its own path.
    ///
    /// # Errors
    ///
    /// Fails if the space has ended or does not start the command in time.
    pub fn execute<A: Send + 'static>(
        &self,
        space: usize,
        limit: Duration,
        order: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, CommandError> {
        let commands = self.command_queues().get(space).cloned().ok_or(CommandError::Ended)?;
        commands.execute(limit, order)
    }

    /// Returns the counters of all spaces and kernel programs. `limit` is divided among the spaces;
    /// a space that does not respond within its share is reported with its previous counters.
    /// Another process that runs a kernel program is queried for at most `limit`; if it does not
    /// respond, the program's counters are lower bounds derived from the frames that arrived.
    #[must_use]
    pub fn take_snapshot(&self, limit: Duration) -> PathSnapshot {
        self.collect_snapshot(limit, true)
    }

    /// Returns the same ledger as [`Self::take_snapshot`], but by node and edge number instead of
    /// plan index. Omits filter reports.
    #[must_use]
    pub fn ledger_by_number(&self, limit: Duration) -> Ledger {
        let all = self.command_queues();
        let share = limit / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        let query = |commands: &Arc<CommandQueue>| {
            let answer = commands.execute(share, |space| space.counters_without_reports());
            answer.ok().or_else(|| commands.lock_inbox().latest_counters.clone())
        };
        // The reader of a ring is queried before the writer.
        let mut counted: Vec<_> = all.iter().rev().filter_map(query).collect();
        counted.reverse();
        self.add_ended_and_kernel_counters(&mut counted, limit, true);
        report::merge_ledger(counted, true)
    }

    /// Returns the counters like [`Self::take_snapshot`], without the counters of kernel programs.
    pub(crate) fn take_thread_snapshot(&self, limit: Duration) -> PathSnapshot {
        self.collect_snapshot(limit, false)
    }

    fn collect_snapshot(&self, limit: Duration, with_kernel: bool) -> PathSnapshot {
        let all = self.command_queues();
        let at = sys::clock::monotonic_ns();
        let share = limit / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        let (mut spaces, mut counted, mut has) = (Vec::new(), Vec::new(), Vec::new());
        // Readers are queried before writers, so no reader seems to have taken more than was put.
        for commands in all.iter().rev() {
            let mut held_up = commands.status.full_ring();
            let task = commands.thread_task();
            let given = commands.send(|space: &mut Space| (space.counters(), space.resources()));
            let answer = given.and_then(|given| given.wait_for_result(share));
            let mut inbox = commands.lock_inbox();
            let fresh = match answer {
                Ok((now, has)) => {
                    (inbox.latest_counters, inbox.resources) = (Some(now), Some(has));
                    CounterFreshness::Current
                }
                Err(CommandError::Ended) => CounterFreshness::Ended,
                Err(why) => {
                    held_up = why.full_ring_edge().or(held_up);
                    CounterFreshness::Stale(why)
                }
            };
            let (name, runs) =
                (commands.status.name.clone(), task.as_ref().map(|(id, _)| SpaceTask::Thread(*id)));
            let memory = inbox.resources.as_ref().map(|has| has.memory);
            let task = task.map(|(_, task)| task);
            spaces.push(SpaceStatus {
                name,
                freshness: fresh,
                runner: runs,
                task,
                blocked_edge: held_up,
                memory,
            });
            counted.extend(inbox.latest_counters.clone());
            has.extend(inbox.resources.clone());
        }
        spaces.reverse();
        counted.reverse();
        has.reverse();
        spaces.extend(self.process_statuses(&has));
        self.add_ended_and_kernel_counters(&mut counted, limit, with_kernel);
        let mut reports = report::merge_reports(&counted);
        let mut ledger = report::merge_ledger(counted, true);
        self.convert_to_plan_indices(&mut ledger, &mut reports);
        if let Some(whole) = self.running_path() {
            let (_, edge) = whole.lock_state().plan_indices();
            let edges = spaces.iter_mut().filter_map(|space| space.blocked_edge.as_mut());
            edges.for_each(|number| *number = edge.index_of(*number));
        }
        PathSnapshot { at, ledger, reports, spaces }
    }

    /// Completes the counters `counted` of the running threads. Adds the final counters of removed
    /// spaces and, if `kernel` is true, the counters of kernel programs. Blocks for at most
    /// `limit`.
    fn add_ended_and_kernel_counters(
        &self,
        counted: &mut Vec<SpaceCounters>,
        limit: Duration,
        kernel: bool,
    ) {
        // The final counters of removed spaces contain the blocks that crossed to these spaces.
        if let Some((whole, part)) = &self.whole {
            let removed =
                whole.lock_state().parts.get(*part).map(|part| part.removed_queues.clone());
            let ended = removed.into_iter().flatten();
            counted.extend(ended.filter_map(|one| one.wait_for_end(Duration::ZERO)));
        }
        if kernel {
            // Programs write to the threads, so the programs are queried last.
            let in_kernel = self.kernel_space_counters(counted, limit);
            counted.splice(0..0, in_kernel);
        }
    }

    /// Enables or disables time measurement in the filters of all spaces. `limit` is divided among
    /// the spaces; a space that does not respond within its share is left unchanged.
    pub fn set_time_measurement(&self, on: bool, limit: Duration) {
        let spaces = self.command_queues().len();
        let share = limit / u32::try_from(spaces.max(1)).unwrap_or(u32::MAX);
        for number in 0..spaces {
            let _ = self.execute(number, share, move |space| space.set_time_measurement(on));
        }
    }

    pub(crate) fn command_queues(&self) -> Vec<Arc<CommandQueue>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
