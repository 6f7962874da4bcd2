//! `--engines=N`: a line once for each of N processors, each in a process of its own. [Par §V-B]
//!
//! ```text
//!                 ┌─► engine 1: rx eth0 | shard 1 of=2 | tcp | … ─┐ what it prints, in blocks
//! streamline run ─┤                                               ├─► standard output
//!                 └─► engine 2: rx eth0 | shard 2 of=2 | tcp | … ─┘
//!        ▲ what each has counted: one report
//! ```
//!
//! What each of them runs says `pipeline::engines`; here they are started ([`crew`], [`child`]),
//! told to run when all are ready, watched, and asked what they have counted ([`told`]). No block
//! comes through this process but what is printed ([`output`]). An engine that ends early ends
//! alone: the others go on, and what they see of its share is counted as dropped
//! (`engine::joint`). To a daemon they are one path ([`panel`]).
//! docs/book/decisions/0037-engines.md

mod child;
mod crew;
mod output;
mod panel;
mod told;

pub(crate) use child::serve_if_asked;

use crate::arguments::RunArguments;
use crate::progress::Teller;
use crate::report::Place;
use crate::run::{ended, quiet_panics, tell_outcome};
use crate::shared::hosts::Hosts;
use crate::shared::member::{Member, Starter};
use crate::status::Status;
use crate::{line, terminal};
use crew::Crew;
use engine::signal;
use member::worker::Joint;
use pipeline::plan::{Machine, Plan};
use pipeline::{Graph, engines};
use std::sync::Arc;
use told::Order;

/// Whether the line wants engines, and how many.
pub(crate) fn wanted(graph: &Graph) -> Option<u32> {
    engines::wanted(graph, processors().len())
}

/// Where engines can run.
fn processors() -> Vec<usize> {
    sys::process::allowed().unwrap_or_default()
}

/// The line of one engine.
pub(crate) fn line_of(graph: &Graph, number: u32, of: u32) -> Result<String, Status> {
    engines::line(graph, number, of).map_err(|why| {
        terminal::complain(&format!("the line of an engine cannot be written: {why}"));
        Status::Usage
    })
}

fn refused(error: &sys::Error) -> Status {
    terminal::complain(&error.to_string());
    Status::Failed
}

fn refused_io(call: &'static str, error: &std::io::Error) -> Status {
    refused(&sys::Error::new(call, "an engine", error.raw_os_error().unwrap_or(0)))
}

/// Runs a line in so many engines.
pub(crate) fn run(
    text: &str,
    graph: &Graph,
    of: u32,
    given: &RunArguments,
    starter: Starter,
) -> Result<Status, Status> {
    fits(given)?;
    let lines = (1..=of).map(|number| line_of(graph, number, of));
    let lines = lines.collect::<Result<Vec<String>, Status>>()?;
    let first = lines.first().map_or("", String::as_str);
    let (machine, plan) = planned(first, given.embedded)?;
    let file = given.report.as_deref().map(Place::open).transpose()?;
    quiet_panics();
    let signals = signal::watch().map_err(|error| refused(&error))?;
    let (mut crew, output) = Crew::start(&lines, given)?;
    let mut member = {
        let panel: Arc<dyn Joint> = crew.panel(&lines, &plan.graph, given.embedded)?;
        let joint = (Vec::new(), Some(panel));
        Member::begin((text, &plan), &machine, joint, given, (starter, &given.steps()))?
    };
    let teller = Teller::new(given, &plan);
    crew.order(&Order::Go);
    let begin = sys::clock::monotonic();
    crew.wait((begin, given.time), member.stop(signals)?, (&plan.graph, teller.as_ref()));
    terminal::wipe();
    let unread = output.end();
    let plan = match crew.changed_to(first) {
        Some(line) => planned(line, given.embedded)?.1,
        None => plan,
    };
    let (mut outcome, parts) = crew.outcome(&plan.graph);
    outcome.elapsed_ns = sys::clock::monotonic().saturating_sub(begin);
    if let Some(kind) = unread.filter(|kind| *kind != std::io::ErrorKind::BrokenPipe) {
        terminal::complain(&format!("cannot write standard output: {kind}"));
    }
    let status = tell_outcome(text, &plan, given, (&outcome, &parts), file);
    member.end(status, ended(&plan, &outcome));
    Ok(status)
}

/// What a run of one process does and several cannot.
fn fits(given: &RunArguments) -> Result<(), Status> {
    let what = match given {
        _ if given.count.is_some() => {
            "`-c` with `--engines`: nobody sees all blocks, so nobody knows which is the last; use \
             `--for`, or leave `--engines` out"
        }
        _ if given.record.is_some() => {
            "`--record` with `--engines`: what several processes did has no one order in which it \
             could be repeated; leave `--engines` out"
        }
        _ if given.analyze => {
            "`--analyze` with `--engines`: measure one of them, by the line that `explain` shows"
        }
        _ => return Ok(()),
    };
    terminal::complain(what);
    Err(Status::Usage)
}

/// The plan of a line as an engine makes it.
fn planned(text: &str, embedded: bool) -> Result<(Machine, Plan), Status> {
    let mut graph = line::graph(text)?;
    let (_, machine) = Hosts::find(&mut graph, embedded);
    let plan = line::planned(text, graph, &machine)?;
    Ok((machine, plan))
}
