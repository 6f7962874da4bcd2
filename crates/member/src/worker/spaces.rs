//! Conversion of a path's spaces to protocol types, and commands that pin a space to a processor.
//! [SL §7; §6.2: affinity of spaces]

use crate::protocol::{Node, Space};
use engine::live::{CounterFreshness, PathHandle};
use engine::spaces::{CpuPinError, SpaceStatus, SpaceTask, pin_child_process};
use pipeline::binding::SpaceBinding;
use std::time::Duration;
use sys::task::{RunState, Task};

/// Converts a space to its protocol type. `edge` maps the index of an edge to the names of the
/// nodes at both ends.
pub(super) fn space_status<'e>(
    found: &SpaceStatus,
    edge: &dyn Fn(usize) -> Option<(&'e str, &'e str)>,
) -> Space {
    let (kind, process, thread) = match found.runner {
        Some(SpaceTask::Thread(thread)) => ("thread", Some(std::process::id()), Some(thread)),
        Some(SpaceTask::Process(process)) => ("process", Some(process), None),
        None => ("thread", None, None),
    };
    let late = match &found.freshness {
        CounterFreshness::Stale(why) => Some(why),
        CounterFreshness::Current | CounterFreshness::Ended => None,
    };
    let waits = found.blocked_edge.map(|number| match edge(number) {
        Some((from, to)) => format!("room in the ring from {from} to {to}"),
        None => "room in a ring".to_owned(),
    });
    let ended = found.freshness == CounterFreshness::Ended;
    let state =
        if waits.is_some() && !ended { "waits" } else { task_state(found.task.as_ref(), ended) };
    Space {
        name: found.name.clone(),
        kind: kind.to_owned(),
        process,
        thread,
        state: state.to_owned(),
        waits: waits.filter(|_| !ended),
        memory: found.memory,
        late: late.map(ToString::to_string),
        ..task_status(found.task.as_ref())
    }
}

/// Converts a worker process, given by name and process id, to the protocol type of a space.
pub(super) fn worker_status((name, process): (String, u32)) -> Space {
    let task = Task::read_process(process);
    let task = task.as_ref();
    Space {
        name,
        kind: "engine".to_owned(),
        process: Some(process),
        state: task_state(task, task.is_none()).to_owned(),
        memory: task.map(|task| task.resident),
        ..task_status(task)
    }
}

fn task_status(task: Option<&Task>) -> Space {
    let Some(task) = task else { return Space::default() };
    let (processors, processor) = (task.processors.clone(), task.processor);
    Space { processors, processor, processor_ns: task.processor_ns, ..Space::default() }
}

fn task_state(task: Option<&Task>, ended: bool) -> &'static str {
    match task.map(|task| task.run_state) {
        _ if ended => "ended",
        Some(RunState::Running) => "runs",
        Some(RunState::Sleeping) => "sleeps",
        Some(RunState::Stopped) => "stopped",
        Some(RunState::Ended) => "ended",
        // A thread of the caller runs the space.
        None => "runs",
    }
}

/// Pins a space of a path to a processor, or unpins it. Returns a confirmation for the user. Fails
/// with the reason. Blocks for at most `limit` for each component.
pub(super) fn pin_space(
    lives: &[PathHandle],
    binding: &SpaceBinding,
    (nodes, limit): (&[Node], Duration),
) -> Result<String, String> {
    // A node's name denotes its space if only one node has this name.
    let mut of_node = nodes.iter().filter(|node| node.name == binding.space);
    let named = match (of_node.next(), of_node.next()) {
        (Some(node), None) => &node.space,
        _ => &binding.space,
    };
    let mut names = Vec::new();
    for live in lives {
        for found in live.take_snapshot(limit).spaces {
            if found.name == *named {
                let processors = processors_of_binding(binding)?;
                let kept = live.pin_space(&found, &processors);
                return confirmation_text(named, binding, (&processors, kept));
            }
            names.push(found.name);
        }
    }
    if nodes.iter().any(|node| node.space == *named) {
        return Err(format!(
            "`{}` is a kernel program for all requests, and runs on the processor where a frame \
             arrives; the interface selects it (`ethtool -X`, /proc/irq/N/smp_affinity)",
            named
        ));
    }
    Err(unknown_space_message(binding, &names))
}

/// Pins a worker process, as [`pin_space`] does for a space, but without blocking.
pub(super) fn pin_worker(
    engines: &[(String, u32)],
    binding: &SpaceBinding,
) -> Result<String, String> {
    let Some((_, process)) = engines.iter().find(|(name, _)| *name == binding.space) else {
        let names: Vec<String> = engines.iter().map(|(name, _)| name.clone()).collect();
        return Err(unknown_space_message(binding, &names));
    };
    let processors = processors_of_binding(binding)?;
    confirmation_text(
        &binding.space,
        binding,
        (&processors, pin_child_process(*process, &processors)),
    )
}

fn unknown_space_message(binding: &SpaceBinding, names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("it has no space called `{}`: it has {}", binding.space, names.join(", "))
}

/// Returns the processors on which a space may run after a command that pins or unpins it: the
/// requested processor, or all processors that this thread may use. Fails if this thread may not
/// use the requested processor.
fn processors_of_binding(binding: &SpaceBinding) -> Result<Vec<usize>, String> {
    let allowed = sys::process::allowed_processors().map_err(|error| error.to_string())?;
    match binding.processor {
        None => Ok(allowed),
        Some(one) if allowed.contains(&one) => Ok(vec![one]),
        Some(one) => Err(format!(
            "there is no processor {one} for it: its process may run on {}",
            format_processors(&allowed)
        )),
    }
}

fn confirmation_text(
    space: &str,
    binding: &SpaceBinding,
    (processors, kept): (&[usize], Result<(), CpuPinError>),
) -> Result<String, String> {
    kept.map_err(|why| format!("`{space}` was not pinned: {why}"))?;
    Ok(match binding.processor {
        Some(processor) => format!("{space} is pinned to processor {processor}"),
        None => format!(
            "{space} runs on any processor of its process: {}",
            format_processors(processors)
        ),
    })
}

fn format_processors(processors: &[usize]) -> String {
    processors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
