//! Status and placement of a running path's spaces. [SL §6.1, §7: a space lists its resources and
//! takes commands]
//!
//! A space reports its resources together with its counters ([`PathHandle::take_snapshot`]). The
//! kernel reports the state of a space's thread; it is queried before the space, because a query to
//! the space wakes the thread and would change that state. A process in the path (a program or a
//! sandboxed filter) is reported by the space that feeds it.

use crate::live::{CounterFreshness, PathHandle};
use pipeline::plan::Plan;
use runtime::space::SpaceResources;
use sys::task::{self, Task};

/// The status of a space: the thread or process that runs it, and its memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceStatus {
    /// Name of the space.
    pub name: String,
    /// Freshness of the space's counters.
    pub freshness: CounterFreshness,
    /// The thread or process that runs the space; `None` if its thread has not started or has
    /// ended, or if a thread of the caller runs the space.
    pub runner: Option<SpaceTask>,
    /// The kernel's statistics for the thread or process that runs the space, read before the space
    /// was queried. `None` if `runs` is `None` or the task has ended.
    pub task: Option<Task>,
    /// Index in the plan of the edge at whose full ring the space waits; `None` if it does not
    /// wait.
    pub blocked_edge: Option<usize>,
    /// For a thread, the memory in bytes that backs the space's own pools, as of its last response;
    /// for a process, its resident memory in bytes. `None` if unknown.
    pub memory: Option<u64>,
}

/// The task that runs a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceTask {
    /// A thread of this process, by its thread id.
    Thread(u32),
    /// A child of this process, by its process id.
    Process(u32),
}

/// A failure to pin a space to processors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CpuPinError {
    /// The space has ended or has not started.
    #[error("it has ended")]
    Ended,
    /// The kernel refused to pin the thread or process of the space to the processors.
    #[error("{0}")]
    System(sys::Error),
}

impl PathHandle {
    /// Returns the status of each child process in the path: a program or a sandboxed filter. `has`
    /// contains the resources that the path's spaces have reported.
    pub(crate) fn process_statuses(&self, has: &[SpaceResources]) -> Vec<SpaceStatus> {
        let Some(whole) = self.running_path() else { return Vec::new() };
        let state = whole.lock_state();
        let (node, _) = state.plan_indices();
        let mut found: Vec<SpaceStatus> = Vec::new();
        for (number, process) in has.iter().flat_map(|has| &has.processes) {
            let runs = Some(SpaceTask::Process(*process));
            if found.iter().any(|known| known.runner == runs) {
                continue;
            }
            let name = space_name(&state.plan, node.index_of(*number));
            let task = Task::read_process(*process);
            // The id of an ended process may belong to a child of another process now.
            let task = task.filter(|task| task.parent == std::process::id());
            let fresh =
                if task.is_some() { CounterFreshness::Current } else { CounterFreshness::Ended };
            let memory = task.as_ref().map(|task| task.resident);
            found.push(SpaceStatus {
                name,
                freshness: fresh,
                runner: runs,
                task,
                blocked_edge: None,
                memory,
            });
        }
        found
    }

    /// Pins a space to these processors until its end or the next call.
    ///
    /// # Errors
    ///
    /// Fails if the space has ended or has not started, if a thread of the caller runs it, or if
    /// the kernel refuses.
    pub fn pin_space(&self, found: &SpaceStatus, processors: &[usize]) -> Result<(), CpuPinError> {
        match found.runner {
            Some(SpaceTask::Process(process)) => pin_child_process(process, processors),
            Some(SpaceTask::Thread(thread)) => {
                let all = self.command_queues();
                let those = all.iter().find(|queue| queue.thread_id() == Some(thread));
                let kept = those.and_then(|queue| queue.pin_thread(processors));
                kept.ok_or(CpuPinError::Ended)?.map_err(CpuPinError::System)
            }
            None => Err(CpuPinError::Ended),
        }
    }
}

/// Pins a child of this process to these processors. Fails if the process is not a child or has
/// ended, or if the kernel refuses.
pub fn pin_child_process(process: u32, processors: &[usize]) -> Result<(), CpuPinError> {
    let ours = |task: &Task| task.parent == std::process::id();
    Task::read_process(process).filter(ours).ok_or(CpuPinError::Ended)?;
    task::pin_process(process, processors).map_err(CpuPinError::System)
}

/// Returns the name of a node's space, or "gone" if the current plan does not contain the node.
fn space_name(plan: &Plan, place: usize) -> String {
    let space = plan.placements.get(place).and_then(|placed| plan.spaces.get(placed.space));
    space.map_or_else(|| "gone".to_owned(), |space| space.name.clone())
}
