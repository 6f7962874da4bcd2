//! Worker processes: `--engines=N` runs a request once for each of N processors, in separate
//! processes. [Par §V-B]
//!
//! ```text
//!          ┌─► worker 1: rx eth0 | shard 1 of=2 | tcp | … ─┐ printed text, in blocks
//! caller ──┤                                               ├─► standard output
//!          └─► worker 2: rx eth0 | shard 2 of=2 | tcp | … ─┘
//!        ▲ counts of each: one report
//! ```
//!
//! `pipeline::workers` derives the request of each worker. The caller's process starts the workers
//! ([`supervisor`], [`child`]), releases them once all are ready, watches them, and collects their
//! counts ([`message`]). Only printed blocks pass through this process ([`output`]). A worker that
//! ends early does not stop the others; its share of the input counts as dropped
//! (`engine::aggregate`). The daemon sees one path ([`control`]).
//! docs/book/decisions/0037-engines.md

pub(crate) mod child;
mod control;
mod message;
mod output;
pub(crate) mod requests;
pub(crate) mod run;
mod supervisor;

pub(crate) use control::GroupControl;
pub(crate) use output::WorkerOutput;
pub(crate) use supervisor::Supervisor;

use crate::error::OpenError;
use crate::options::Options;
use crate::prepared::PreparedRequest;
use crate::ready::{Executor, ReadyRequest};
use crate::registration::Registration;
use member::worker::WorkerGroup;
use std::path::PathBuf;
use std::sync::Arc;

/// Starts the workers of a request. Blocks until all are ready.
pub(crate) fn build(
    prepared: PreparedRequest,
    options: &Options,
) -> Result<ReadyRequest, OpenError> {
    check_worker_options(options)?;
    let program = worker_program_path(options)?;
    let (mut crew, output) = Supervisor::start(&prepared.workers, options, &program)?;
    let control: Arc<dyn WorkerGroup> =
        crew.create_group_control(&prepared.workers, &prepared.plan.graph, options)?;
    let member = Registration::register(&prepared, (Vec::new(), Some(control)), options)?;
    Ok(ReadyRequest::new(prepared, Executor::Workers(Box::new((crew, output))), member, options))
}

/// Returns the program to start as a worker.
fn worker_program_path(options: &Options) -> Result<PathBuf, OpenError> {
    match &options.helper {
        Some(helper) => Ok(helper.clone()),
        // This link denotes the running program, even if its file has been replaced.
        None if crate::serve::can_serve() => Ok(PathBuf::from("/proc/self/exe")),
        None => Err(OpenError::Unfit(
            "`--engines` starts other processes, and this program cannot run as one: name a \
             helper (the command `streamline`), or leave `--engines` out"
                .to_owned(),
        )),
    }
}

/// Rejects options that are impossible with several processes.
fn check_worker_options(options: &Options) -> Result<(), OpenError> {
    let why = match options {
        _ if options.count.is_some() => {
            "`-c` with `--engines`: no process sees all blocks, so none knows which is the last; \
             use \
             `--for`, or leave `--engines` out"
        }
        _ if options.record.is_some() => {
            "`--record` with `--engines`: the events of several processes have no common order to \
             repeat; leave `--engines` out"
        }
        _ if options.programs_timed => {
            "`--analyze` with `--engines`: measure one of them, with the request that `explain` \
             shows"
        }
        _ if !options.own.is_empty() => {
            "filters, sources and sinks of this program with `--engines`: other processes \
             have none of them; leave `--engines` out"
        }
        _ => return Ok(()),
    };
    Err(OpenError::Unfit(why.to_owned()))
}
