//! Untrusted filters (`untrusted=yes`). Each runs in a process of its own, which can only compute.
//! [Th §5.2.1; RELIABILITY T3 to T5, T8 to T10]
//!
//! ```text
//! space before ── entrance ─► stream ─► inlet ─┐   process of the filter:
//!                                              filter            one space, confined
//! space after  ◄─ exit ◄───── stream ◄─ outlet ┘
//! ```
//!
//! An untrusted filter is placed like a program (`endpoint::process`): one node with two halves, in
//! two spaces that never wait for each other. A stream in each direction ([`buffer::stream`])
//! connects the spaces to the process. The reader of a stream cannot write to it and checks every
//! position. A message contains a complete block, with its frame, class, session and marks
//! ([`message`]). A block from the process is untrusted, and every field is checked before use
//! ([`output_half`]).
//!
//! The process runs the same program as the path ([`child`]). It creates the filter, gives up all
//! privileges ([`sys::confine`]), and then reports that it is ready. If the process exits for any
//! reason, only this filter ends: the path continues, further input is dropped (`filter ended`),
//! and the final report names the reason. docs/book/decisions/0030-untrusted-filters.md

mod child;
mod input_half;
mod limits;
mod message;
mod output_half;
mod state;
mod supervisor;

pub use child::serve_untrusted_filter_if_asked;

use buffer::stream::{self, Offer};
use child::{READY_MESSAGE, SERVE_UNTRUSTED_FILTER_ARGUMENT};
use endpoint::process::{Process, ProcessRole, StartedProcess};
use endpoint::{Failure, Origins, Sink, Source};
use filter::UNTRUSTED_PARAMETER;
pub(crate) use input_half::InputHalf;
use limits::stream_config;
pub use limits::{ADDRESS_SPACE_BYTES_MAX, BLOCK_TOO_LONG, FILTER_ENDED};
pub(crate) use message::FilterContext;
use message::FilterSpec;
pub(crate) use output_half::OutputHalf;
use pipeline::graph::FilterUse;
use runtime::space::node::{Node, Operator};
pub(crate) use state::SandboxCounters;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Supervisor;
use sys::descriptor;
use sys::helper::HelperProcess;
use sys::rollback::{RollbackLog, StepResource};

/// Maximum time that a process may take to create its filter. The process reads no files except its
/// own program and, if the filter needs them, libpcap and a key file.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a filter in a process of its own. Blocks until the filter is ready. Fails with the reason
/// if this takes longer than [`START_TIMEOUT`].
pub(crate) fn start(
    used: &FilterUse,
    (about, origins): (FilterContext, &Origins),
    (helper, steps): (Option<&Path>, &RollbackLog),
) -> Result<StartedProcess, Failure> {
    let name = used.description.name;
    let refused = |why: &dyn std::fmt::Display| Failure::new("start", failure_target(name), why);
    if helper.is_none() && !child::can_serve_untrusted_filters() {
        let why = "this program cannot run sandboxed filters";
        let hint = "name a program that does, such as the command `streamline`, as helper";
        return Err(refused(&why).with_hint(hint));
    }
    let message = serde_json::to_vec(&FilterSpec::new(used, about)).unwrap_or_default();
    let start = || -> sys::Result<_> {
        steps.announce_creation(StepResource::Descriptor, "the sockets of a process")?;
        let (here, there) = descriptor::socket_pair()?;
        let (entrance, inlet) = descriptor::socket_pair()?;
        let (exit, outlet) = descriptor::socket_pair()?;
        steps.announce_creation(StepResource::Thread, "a process for a filter")?;
        let kept = HelperProcess::start(helper, &[SERVE_UNTRUSTED_FILTER_ARGUMENT], there)?;
        steps.announce_creation(StepResource::Memory, "a ring to it")?;
        let (mut output, sent) = stream::stream_to_sockets(&stream_config(1), vec![entrance])?;
        sent.into_iter().collect::<sys::Result<Vec<()>>>()?;
        output.set_waking_overrides(stream::WakingOverrides {
            sleep_limit: Some(supervisor::CHECK_INTERVAL),
            ..stream::WakingOverrides::default()
        });
        descriptor::send(&here, &message, &[inlet.as_fd(), outlet.as_fd()])?;
        Ok((here, kept, output, exit))
    };
    let (here, kept, output, exit) = start().map_err(|error| refused(&error))?;
    // A process that is not ready sends at most the reason for a failure.
    let ready =
        sys::poll::wait_until_readable_despite_signals(&[here.as_fd()], Some(START_TIMEOUT))
            == [true];
    let mut received = [0; 512];
    let received = match ready.then(|| descriptor::try_receive(&here, &mut received)) {
        Some(Ok(Some((length, _)))) => received.get(..length).unwrap_or_default(),
        _ => &[],
    };
    if received != READY_MESSAGE {
        let why = match (supervisor::printable_text(received), kept.wait(Duration::from_secs(1))) {
            (Some(message), _) => message,
            (None, Some(ended)) => format!("its process {ended} before it was ready"),
            (None, None) => {
                format!("its process was not ready after {} s", START_TIMEOUT.as_secs())
            }
        };
        return Err(refused(&why));
    }
    steps
        .announce_creation(StepResource::Memory, "a ring from it")
        .map_err(|error| refused(&error))?;
    let offer = Offer::receive(exit).map_err(|error| refused(&error))?;
    let offer = offer.ok_or_else(|| refused(&"its process has ended"))?;
    let input = offer.open().map_err(|error| refused(&error))?;
    let supervisor = Arc::new(Supervisor::new(name, kept, here));
    let process = Arc::new(Process::new_controlled(name, Arc::<Supervisor>::clone(&supervisor)));
    let entrance = InputHalf::new(output, Arc::clone(&supervisor), Arc::clone(&process));
    let exit = OutputHalf::new(input, origins.clone(), used.description, supervisor, process);
    let (input, output): (Box<dyn Sink>, Box<dyn Source>) = (Box::new(entrance), Box::new(exit));
    Ok(StartedProcess { input: Some(input), output: Some(output) })
}

/// Returns the node's sink as an [`InputHalf`], which sends the input of a sandboxed filter to its
/// process. Returns `None` if the node has no such sink.
pub(crate) fn as_input_half(node: &mut Node) -> Option<&mut InputHalf> {
    match &mut node.operator {
        Operator::Sink(part) => part.sink.as_any()?.downcast_mut(),
        _ => None,
    }
}

/// Returns the node's source as an [`OutputHalf`], which receives the output of a sandboxed filter.
/// Returns `None` if the node has no such source.
pub(crate) fn as_output_half(node: &mut Node) -> Option<&mut OutputHalf> {
    match &mut node.operator {
        Operator::Source(part) => part.source.as_any()?.downcast_mut(),
        _ => None,
    }
}

/// The role of an untrusted filter's process, which is always between two nodes.
pub(crate) const PROCESS_ROLE: ProcessRole = ProcessRole::Middle;

fn failure_target(name: &str) -> String {
    format!("`{name}` with {}=yes", UNTRUSTED_PARAMETER.name)
}
