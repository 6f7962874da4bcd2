//! The spaces of a running path as whoever asks finds them: what each has, what it does at this
//! moment, and on which processors it is to run. [SL §6.1, §7: a space lists what it has, and takes
//! orders]
//!
//! What a space has it tells itself, with what it has counted ([`Live::counters`]). What its thread
//! does is the kernel's to say, and is asked before: who is asked wakes to answer. A process that
//! stands in the path, a program or a filter apart, is told by the space that hands blocks to it.

use crate::live::{Fresh, Live};
use pipeline::plan::Plan;
use runtime::space::SpaceResources;
use sys::task::{self, Task};

/// A space as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name in the plan.
    pub name: String,
    /// Freshness of its counters.
    pub fresh: Fresh,
    /// The thread, or the process, in which it runs; none before it has begun, and where somebody
    /// else's thread runs it.
    pub runs: Option<Runs>,
    /// The kernel's statistics of its task, read before the space was queried; `None` if it has
    /// ended.
    pub task: Option<Task>,
    /// The edge of the plan on which it waits for room.
    pub held_up: Option<usize>,
    /// Bytes of its own pools that have memory; of a thread, when it answered last.
    pub memory: Option<u64>,
}

/// As what a space runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// A thread of this process, by its number.
    Thread(u32),
    /// A process that this one has started.
    Process(u32),
}

/// The reason that a space does not run on its assigned processors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotKept {
    /// It has ended, or has not begun.
    Ended,
    /// The kernel refuses it.
    System(sys::Error),
}

impl std::fmt::Display for NotKept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended => f.write_str("it has ended"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotKept {}

impl Live {
    /// The processes of which spaces have said that they stand in the path, each once.
    pub(crate) fn processes(&self, has: &[SpaceResources]) -> Vec<Found> {
        let Some(whole) = self.whole() else { return Vec::new() };
        let state = whole.state();
        let (node, _) = state.place_of();
        let mut found: Vec<Found> = Vec::new();
        for (number, process) in has.iter().flat_map(|has| &has.processes) {
            let runs = Some(Runs::Process(*process));
            if found.iter().any(|known| known.runs == runs) {
                continue;
            }
            let name = space_of(&state.plan, node.of(*number));
            let task = Task::of_process(*process);
            // One of another parent has the number of one that has ended.
            let task = task.filter(|task| task.parent == std::process::id());
            let fresh = if task.is_some() { Fresh::Now } else { Fresh::Ended };
            let memory = task.as_ref().map(|task| task.resident);
            found.push(Found { name, fresh, runs, task, held_up: None, memory });
        }
        found
    }

    /// Keeps a space that was found on these processors while it runs, or as long as nobody says
    /// anything else.
    pub fn keep(&self, found: &Found, processors: &[usize]) -> Result<(), NotKept> {
        match found.runs {
            Some(Runs::Process(process)) => keep_child(process, processors),
            Some(Runs::Thread(thread)) => {
                let all = self.all();
                let those = all.iter().find(|orders| orders.thread() == Some(thread));
                let kept = those.and_then(|queue| queue.keep(processors));
                kept.ok_or(NotKept::Ended)?.map_err(NotKept::System)
            }
            None => Err(NotKept::Ended),
        }
    }
}

/// Keeps a process that this one has started on these processors.
pub fn keep_child(process: u32, processors: &[usize]) -> Result<(), NotKept> {
    let ours = |task: &Task| task.parent == std::process::id();
    Task::of_process(process).filter(ours).ok_or(NotKept::Ended)?;
    task::pin_process(process, processors).map_err(NotKept::System)
}

/// The space of a node.
fn space_of(plan: &Plan, place: usize) -> String {
    let space = plan.placed.get(place).and_then(|placed| plan.spaces.get(placed.space));
    space.map_or_else(|| "gone".to_owned(), |space| space.name.clone())
}
