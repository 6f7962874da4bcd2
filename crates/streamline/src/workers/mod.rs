//! Worker processes: `--engines=N` runs a request once for each of N processors, each in a process
//! of its own. [Par §V-B]
//!
//! ```text
//!          ┌─► worker 1: rx eth0 | shard 1 of=2 | tcp | … ─┐ what it prints, in blocks
//! caller ──┤                                               ├─► standard output
//!          └─► worker 2: rx eth0 | shard 2 of=2 | tcp | … ─┘
//!        ▲ counts of each: one report
//! ```
//!
//! `pipeline::engines` writes the request of each; here they are started ([`crew`], [`child`]),
//! released when all are ready, watched, and asked for their counts ([`message`]). Of their blocks
//! only printed ones come through this process ([`output`]). A worker that ends early ends alone:
//! the others go on, and their view of its share is counted as dropped (`engine::joint`). To a
//! daemon they are one path ([`panel`]). docs/book/decisions/0037-engines.md

mod child;
mod crew;
mod message;
mod output;
mod panel;

pub(crate) use child::serve_if_asked;
pub(crate) use crew::Crew;
pub(crate) use output::Output;
pub(crate) use panel::Panel;

use crate::error::OpenError;
use crate::membership::Member;
use crate::options::Options;
use crate::prepared::Prepared;
use crate::ready::{Body, Ready};
use engine::run::Outcome;
use member::worker::Joint;
use pipeline::{Graph, engines};
use std::path::PathBuf;
use std::sync::Arc;

/// One of several workers that ran a request, and its outcome.
#[derive(Debug)]
pub struct WorkerRun {
    /// Its number, from 1 on.
    pub number: u32,
    /// Its process.
    pub process: u32,
    /// Its processor.
    pub processor: usize,
    /// The outcome.
    pub outcome: Outcome,
}

/// The number of workers that a request asks for; none: this process runs it.
pub(crate) fn wanted(graph: &Graph) -> Option<u32> {
    engines::wanted(graph, processors().len())
}

/// Processors on which workers can run.
fn processors() -> Vec<usize> {
    sys::process::allowed_processors().unwrap_or_default()
}

/// The requests of all workers.
pub(crate) fn requests(graph: &Graph, of: u32) -> Result<Vec<String>, OpenError> {
    let one = |number| {
        engines::line(graph, number, of).map_err(|why| {
            OpenError::Unfit(format!("the line of an engine cannot be written: {why}"))
        })
    };
    (1..=of).map(one).collect()
}

/// Starts the workers of a request; returns when all are ready.
pub(crate) fn build(prepared: Prepared, options: &Options) -> Result<Ready, OpenError> {
    fits(options)?;
    let program = program(options)?;
    let (mut crew, output) = Crew::start(&prepared.workers, options, &program)?;
    let panel: Arc<dyn Joint> = crew.panel_of(&prepared.workers, &prepared.plan.graph, options)?;
    let member = Member::begin(&prepared, (Vec::new(), Some(panel)), options)?;
    Ok(Ready::new(prepared, Body::Workers(Box::new((crew, output))), member, options))
}

/// The program that serves as a worker.
fn program(options: &Options) -> Result<PathBuf, OpenError> {
    match &options.helper {
        Some(helper) => Ok(helper.clone()),
        // Itself, even where the file has been replaced meanwhile.
        None if crate::serves() => Ok(PathBuf::from("/proc/self/exe")),
        None => Err(OpenError::Unfit(
            "`--engines` starts other processes, and this program does not serve as one: name a \
             helper (the command `streamline`), or leave `--engines` out"
                .to_owned(),
        )),
    }
}

/// Refuses options that one process honors and several cannot.
fn fits(options: &Options) -> Result<(), OpenError> {
    let why = match options {
        _ if options.count.is_some() => {
            "`-c` with `--engines`: nobody sees all blocks, so nobody knows which is the last; use \
             `--for`, or leave `--engines` out"
        }
        _ if options.record.is_some() => {
            "`--record` with `--engines`: what several processes did has no one order in which it \
             could be repeated; leave `--engines` out"
        }
        _ if options.programs_timed => {
            "`--analyze` with `--engines`: measure one of them, by the line that `explain` shows"
        }
        _ if !options.own.is_empty() => {
            "filters, sources and sinks of this program with `--engines`: other processes \
             have none of them; leave `--engines` out"
        }
        _ => return Ok(()),
    };
    Err(OpenError::Unfit(why.to_owned()))
}
