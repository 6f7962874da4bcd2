//! Filters that nobody vouches for (`untrusted=yes`): each in a process of its own that may do
//! nothing but compute. [Th §5.2.1; RELIABILITY T3 to T5, T8 to T10]
//!
//! ```text
//! space before ── entrance ─► stream ─► inlet ─┐   process of the filter:
//!                                              filter            one space, confined
//! space behind ◄─ exit ◄───── stream ◄─ outlet ┘
//! ```
//!
//! Such a filter is placed as a program is (`endpoint::process`): one node, two halves, in two
//! spaces that never wait for each other. Between them and the process there is a stream each way
//! ([`buffer::stream`]): who reads one cannot write it, and checks every position. A block travels
//! whole, with its frame, its class, its session and its marks ([`message`]); what comes back is an
//! allegation, and is checked field by field before anybody looks at it ([`exit`]).
//!
//! The process is this very program, started again ([`child`]); it makes the filter, gives
//! everything up ([`sys::confine`]), and only then says that it is ready. However it ends, its end
//! is that of this filter alone: the path goes on, what comes to it is dropped (`filter ended`),
//! and in the end the path says what happened. docs/book/decisions/0030-untrusted-filters.md

mod child;
mod entrance;
mod exit;
mod limits;
mod message;
mod state;
mod watch;

pub use child::serve_if_asked;

use buffer::stream::{self, Offer};
use child::{READY, WORD};
use endpoint::process::{Process, Stands, Started};
use endpoint::{Failure, Origins, Sink, Source};
pub(crate) use entrance::Entrance;
pub(crate) use exit::Exit;
use filter::UNTRUSTED;
use limits::ring;
pub use limits::{FILTER_ENDED, MEMORY, TOO_LONG};
pub(crate) use message::About;
use message::Wanted;
use pipeline::graph::Use;
use runtime::space::node::{Node, Part};
pub(crate) use state::Account;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::descriptor;
use sys::helper::HelperProcess;
use sys::steps::{Resource, Steps};
use watch::Watch;

/// Time limit for a process to get its filter ready. It reads no more than its own program.
const START: Duration = Duration::from_secs(30);

/// Starts a filter in a process of its own.
pub(crate) fn start(
    used: &Use,
    (about, origins): (About, &Origins),
    (helper, steps): (Option<&Path>, &Steps),
) -> Result<Started, Failure> {
    let name = used.description.name;
    let refused = |why: &dyn std::fmt::Display| Failure::new("start", target(name), why);
    if helper.is_none() && !child::serves() {
        let why = "this program does not serve as one";
        let hint = "name a program that does, such as the command `streamline`, as helper";
        return Err(refused(&why).hint(hint));
    }
    let message = Wanted::of(used, about).written();
    let start = || -> sys::Result<_> {
        steps.take(Resource::Descriptor, "the sockets of a process")?;
        let (here, there) = descriptor::pair()?;
        let (entrance, inlet) = descriptor::pair()?;
        let (exit, outlet) = descriptor::pair()?;
        steps.take(Resource::Thread, "a process for a filter")?;
        let kept = HelperProcess::start(helper, &[WORD], there)?;
        steps.take(Resource::Memory, "a ring to it")?;
        let (mut output, sent) = stream::send_to(&ring(1), vec![entrance])?;
        sent.into_iter().collect::<sys::Result<Vec<()>>>()?;
        output.waking(stream::Waking { limit: Some(watch::LOOK), ..stream::Waking::default() });
        descriptor::send(&here, &message, &[inlet.as_fd(), outlet.as_fd()])?;
        Ok((here, kept, output, exit))
    };
    let (here, kept, output, exit) = start().map_err(|error| refused(&error))?;
    // What it has to say before it is ready is why it will not be.
    let ready = sys::poll::readable_within(&[here.as_fd()], Some(START)) == [true];
    let mut said = [0; 512];
    let said = match ready.then(|| descriptor::try_receive(&here, &mut said)) {
        Some(Ok(Some((length, _)))) => said.get(..length).unwrap_or_default(),
        _ => &[],
    };
    if said != READY {
        let why = match (watch::text(said), kept.wait(Duration::from_secs(1))) {
            (Some(said), _) => said,
            (None, Some(ended)) => format!("its process {ended} before it was ready"),
            (None, None) => format!("its process was not ready after {} s", START.as_secs()),
        };
        return Err(refused(&why));
    }
    steps.take(Resource::Memory, "a ring from it").map_err(|error| refused(&error))?;
    let offer = Offer::arrived(exit).map_err(|error| refused(&error))?;
    let offer = offer.ok_or_else(|| refused(&"its process is gone"))?;
    let input = offer.open().map_err(|error| refused(&error))?;
    let watch = Arc::new(Watch::new(name, kept, here));
    let process = Arc::new(Process::apart(name, Arc::<Watch>::clone(&watch)));
    let entrance = Entrance::new(output, Arc::clone(&watch), Arc::clone(&process));
    let exit = Exit::new(input, origins.clone(), used.description, watch, process);
    let (input, output): (Box<dyn Sink>, Box<dyn Source>) = (Box::new(entrance), Box::new(exit));
    Ok(Started { input: Some(input), output: Some(output) })
}

/// Returns the entrance to the process of a filter, if the node is one.
pub(crate) fn entrance_of(node: &mut Node) -> Option<&mut Entrance> {
    match &mut node.part {
        Part::Sink(part) => part.sink.as_any()?.downcast_mut(),
        _ => None,
    }
}

/// Returns the exit from the process of a filter, if the node is one.
pub(crate) fn exit_of(node: &mut Node) -> Option<&mut Exit> {
    match &mut node.part {
        Part::Source(part) => part.source.as_any()?.downcast_mut(),
        _ => None,
    }
}

/// Position in a path: always with a node before and a node behind.
pub(crate) const STANDS: Stands = Stands::Middle;

fn target(name: &str) -> String {
    format!("`{name}` with {}=yes", UNTRUSTED.name)
}
