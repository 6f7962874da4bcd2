//! The spaces of a path for those who ask, and orders to them: on which processor each is to run.
//! [SL §7; §6.2: affinity of spaces]

use crate::protocol::{Node, Space};
use engine::live::{Fresh, Live};
use engine::spaces::{Found, NotKept, Runs, keep_child};
use pipeline::keep::Keep;
use runtime::commands::NotTaken;
use std::time::Duration;
use sys::task::{RunState, Task};

/// A space as it was found. `edge` knows from where to where the edges of the plan lead.
pub(super) fn told<'e>(found: &Found, edge: &dyn Fn(usize) -> Option<(&'e str, &'e str)>) -> Space {
    let (kind, process, thread) = match found.runs {
        Some(Runs::Thread(thread)) => ("thread", Some(std::process::id()), Some(thread)),
        Some(Runs::Process(process)) => ("process", Some(process), None),
        None => ("thread", None, None),
    };
    let late = match &found.fresh {
        Fresh::Old(why) => Some(why),
        Fresh::Now | Fresh::Ended => None,
    };
    let held_up = match late {
        Some(NotTaken::HeldUp { edge, .. }) => Some(*edge),
        _ => found.held_up,
    };
    let waits = held_up.map(|number| match edge(number) {
        Some((from, to)) => format!("room in the ring from {from} to {to}"),
        None => "room in a ring".to_owned(),
    });
    let ended = found.fresh == Fresh::Ended;
    let state = if waits.is_some() && !ended { "waits" } else { state(found.task.as_ref(), ended) };
    Space {
        name: found.name.clone(),
        kind: kind.to_owned(),
        process,
        thread,
        state: state.to_owned(),
        waits: waits.filter(|_| !ended),
        memory: found.memory,
        late: late.map(ToString::to_string),
        ..of_task(found.task.as_ref())
    }
}

/// An engine.
pub(super) fn of_engine((name, process): (String, u32)) -> Space {
    let task = Task::of_process(process);
    let task = task.as_ref();
    Space {
        name,
        kind: "engine".to_owned(),
        process: Some(process),
        state: state(task, task.is_none()).to_owned(),
        memory: task.map(|task| task.resident),
        ..of_task(task)
    }
}

fn of_task(task: Option<&Task>) -> Space {
    let Some(task) = task else { return Space::default() };
    let (processors, processor_ns) = (task.processors.clone(), task.processor_ns);
    Space { processors, processor_ns, ..Space::default() }
}

fn state(task: Option<&Task>, ended: bool) -> &'static str {
    match task.map(|task| task.run_state) {
        _ if ended => "ended",
        Some(RunState::Runs) => "runs",
        Some(RunState::Sleeps) => "sleeps",
        Some(RunState::Stopped) => "stopped",
        Some(RunState::Ended) => "ended",
        // Somebody else's thread runs it.
        None => "runs",
    }
}

/// Keeps a space of a path on a processor, or lets it run on any; answers what is said of that.
pub(super) fn keep(
    lives: &[Live],
    keep: &Keep,
    (nodes, limit): (&[Node], Duration),
) -> Result<String, String> {
    // A node may be named for its space, if it is the only one of that name.
    let mut of_node = nodes.iter().filter(|node| node.name == keep.space);
    let named = match (of_node.next(), of_node.next()) {
        (Some(node), None) => &node.space,
        _ => &keep.space,
    };
    let mut names = Vec::new();
    for live in lives {
        for found in live.counters(limit).spaces {
            if found.name == *named {
                let processors = processors(keep)?;
                let kept = live.keep(&found, &processors);
                return said(named, keep, (&processors, kept));
            }
            names.push(found.name);
        }
    }
    if nodes.iter().any(|node| node.space == *named) {
        return Err(format!(
            "`{}` runs on the processor to which a frame comes, in a program of all lines there: \
             where frames come says the interface (`ethtool -X`, /proc/irq/N/smp_affinity)",
            named
        ));
    }
    Err(unknown(keep, &names))
}

/// The same for one of several engines.
pub(super) fn keep_engine(engines: &[(String, u32)], keep: &Keep) -> Result<String, String> {
    let Some((_, process)) = engines.iter().find(|(name, _)| *name == keep.space) else {
        let names: Vec<String> = engines.iter().map(|(name, _)| name.clone()).collect();
        return Err(unknown(keep, &names));
    };
    let processors = processors(keep)?;
    said(&keep.space, keep, (&processors, keep_child(*process, &processors)))
}

fn unknown(keep: &Keep, names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("no space of it is called `{}`: it has {}", keep.space, names.join(", "))
}

/// The processors that are meant: those on which this thread may run, or one of them.
fn processors(keep: &Keep) -> Result<Vec<usize>, String> {
    let allowed = sys::process::allowed_processors().map_err(|error| error.to_string())?;
    match keep.processor {
        None => Ok(allowed),
        Some(one) if allowed.contains(&one) => Ok(vec![one]),
        Some(one) => Err(format!(
            "there is no processor {one} for it: its process may run on {}",
            list(&allowed)
        )),
    }
}

fn said(
    space: &str,
    keep: &Keep,
    (processors, kept): (&[usize], Result<(), NotKept>),
) -> Result<String, String> {
    kept.map_err(|why| format!("`{space}` runs where it did: {why}"))?;
    Ok(match keep.processor {
        Some(processor) => format!("{space} keeps to processor {processor}"),
        None => format!("{space} runs on any processor of its process: {}", list(processors)),
    })
}

fn list(processors: &[usize]) -> String {
    processors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
