//! The process of a filter: this very program, started again for it.
//!
//! It makes the filter and a space of its own around it, gives up all that it may do, says that it
//! is ready, and walks blocks until its stream ends. From then on it has two sockets and two rings,
//! and what a space needs to wait; the rest of the machine is not there. What goes wrong before is
//! told over the socket that started it, and so are a panic and a call that is not allowed.

use super::message::{self, LONGEST, Wanted};
use super::{MEMORY, ring};
use crate::build::{counts, describe, intake_for, pool};
use crate::catalogue::House;
use crate::control::Control;
use crate::failure::{Cause, PathFailure};
use crate::process::Demand;
use crate::space::assemble::Assembly;
use crate::space::node::{Node, Part, SinkPart, SourcePart};
use crate::space::select::Wanted as Classes;
use crate::space::{BATCH, Clock, GENERAL, Input as SpaceInput, Parts, Space};
use buffer::Fault;
use buffer::pool::Config as PoolConfig;
use buffer::signal::Bell;
use buffer::stream::{self, Input, Offer, Output, Piece};
use endpoint::{Failure, Given, Intake, Seen, Sink, Source};
use filter::{Amount, Batch, Counts, Description, Filter, Report, Time};
use pipeline::{Catalogue as _, Graph};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::steps::Steps;
use sys::{confine, descriptor};

/// The word with which this program is started for a filter.
pub(super) const WORD: &str = "serve-untrusted-filter";
/// What is said once the filter is ready and nothing else may be done any more.
pub(super) const READY: &[u8] = b"ready";

/// The status of a process whose filter could not go on: it has said why.
const GONE_WRONG: u8 = 101;

/// Whether this program can be started for a filter.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Whether [`serve_if_asked`] was called.
pub(super) fn serves() -> bool {
    SERVES.load(Ordering::Relaxed)
}

/// Runs a filter that nobody vouches for, if that is what this process was started for; answers
/// then the status with which it is to end. Every program that runs paths calls this first of all:
/// it is what makes `untrusted=yes` possible.
#[must_use]
pub fn serve_if_asked() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    let alone = words.next().is_some_and(|word| word == WORD) && words.next().is_none();
    if !alone || !descriptor::is_one(std::io::stdin()) {
        SERVES.store(true, Ordering::Relaxed);
        return None;
    }
    let ended = match serve() {
        Ok(()) => 0,
        Err(why) => {
            confine::say(&why);
            GONE_WRONG
        }
    };
    Some(ended)
}

fn serve() -> Result<(), String> {
    let told = |error: sys::Error| error.to_string();
    confine::end_with_parent().map_err(told)?;
    confine::close_all_but_standard().map_err(told)?;
    let socket = sys::process::empty_input().map_err(told)?;
    let mut message = vec![0; 1 << 20];
    let (length, sockets) = descriptor::receive(&socket, &mut message).map_err(told)?;
    confine::last_words(socket);
    let wanted = Wanted::read(message.get(..length).unwrap_or_default());
    let wanted = wanted.ok_or("what is wanted cannot be read")?;
    let [from, to] = <[OwnedFd; 2]>::try_from(sockets).map_err(|_| "two sockets are missing")?;
    let offer = Offer::arrived(from).map_err(|error| error.to_string())?;
    let input = offer.ok_or("the path is gone")?.open().map_err(|error| error.to_string())?;
    let (output, sent) = stream::send_to(&ring(2), vec![to]).map_err(told)?;
    sent.into_iter().collect::<sys::Result<Vec<()>>>().map_err(told)?;
    let ends = Ends { input: Arc::new(Mutex::new(input)), gave: Arc::default() };
    let space = space(&wanted, &ends, output)?;
    stream::know_processors();
    std::panic::set_hook(Box::new(|_| {}));
    confine::confine(MEMORY).map_err(told)?;
    confine::ready(READY);
    walk(space, &ends)
}

/// The end from which blocks come, which is also where one waits.
#[derive(Clone, Debug)]
struct Ends {
    input: Arc<Mutex<Input>>,
    /// Whether any came since this was looked at.
    gave: Arc<AtomicBool>,
}

impl Ends {
    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A space with one filter between the two streams.
fn space(wanted: &Wanted, ends: &Ends, output: Output) -> Result<Space, String> {
    let missing = || format!("no filter is called `{}`", wanted.name);
    let description = House.find(&wanted.name).ok_or_else(missing)?;
    let make = description.user.ok_or_else(missing)?;
    let arguments = wanted.arguments(description).served_by(House.compiler());
    let arguments = arguments.trusted_with(House.keys());
    let filter = make(&arguments).map_err(|mistake| mistake.to_string())?;
    let (nodes, shape) = assembled(wanted, description, filter, ends, output);
    let told = |error: &dyn std::fmt::Display| error.to_string();
    // A process that ends as a whole when one fails has none to undo.
    let steps = Steps::default();
    let clock = if wanted.about.tells_time { Clock::Blocks(0) } else { Clock::Live };
    let epoch = sys::clock::real().wrapping_sub(sys::clock::monotonic());
    Ok(Space::new(Parts {
        name: "sandbox".to_owned(),
        nodes,
        shape,
        intakes: vec![pool(intake_for(LONGEST), &steps).map_err(|error| told(&error))?],
        work: pool(PoolConfig::default(), &steps).map_err(|error| told(&error))?,
        inputs: vec![SpaceInput::Source { node: 0, intake: GENERAL }],
        left: None,
        timed: false,
        copies: false,
        batch: BATCH,
        control: Arc::new(Control::new().map_err(|error| told(&error))?),
        demand: Arc::new(Demand::new(&Graph::default())),
        bell: Arc::new(Bell::new()),
        clock,
        epoch,
        tape: Default::default(),
        why: None,
    }))
}

fn assembled(
    wanted: &Wanted,
    description: &'static Description,
    filter: Filter,
    ends: &Ends,
    output: Output,
) -> (Vec<Node>, crate::space::walk::Shape) {
    let mut assembly = Assembly::default();
    let inlet = Inlet {
        ends: ends.clone(),
        message: vec![0; LONGEST],
        pending: None,
        origins: wanted.about.origins,
        given: Amount::default(),
    };
    let source = Part::Source(SourcePart::new(Box::new(inlet)));
    let outlet = Outlet { output: Some(output), written: Amount::default() };
    let sink = Part::Sink(SinkPart::new(Box::new(outlet)));
    let from = assembly.node(Node::new("inlet", 0, source, Counts::default()));
    let made = Node::new(description.name, 1, Part::Filter(filter), counts(description));
    let mut made = describe(made, description);
    made.fragments = wanted.about.fragments;
    let at = assembly.node(made);
    let to = assembly.node(Node::new("outlet", 2, sink, Counts::default()));
    assembly.arc(from, at, Classes::All, false, 0);
    // Where it goes on, arcs choose.
    assembly.arc(at, to, Classes::All, false, 1);
    assembly.done()
}

/// Walks blocks until there are no more, and lets go what is held.
fn walk(mut space: Space, ends: &Ends) -> Result<(), String> {
    while space.step() {
        if ends.gave.swap(false, Ordering::Relaxed) {
            // So that it is seen that they were taken.
            ends.input().give_back();
            continue;
        }
        let limit = space.wakes_in();
        let waited = ends.input().wait(limit);
        if let Err(fault) = waited.map(drop).or_else(only_gone) {
            return Err(fault.to_string());
        }
    }
    match space.end().failure {
        None => Ok(()),
        Some(PathFailure { cause: Cause::Panic { message, .. }, .. }) => {
            Err(format!("a panic, {message}"))
        }
        Some(failure) => Err(failure.to_string()),
    }
}

/// A path that is gone is noticed when it is asked for blocks.
const fn only_gone(fault: Fault) -> Result<(), Fault> {
    match fault {
        Fault::Abandoned => Ok(()),
        fault => Err(fault),
    }
}

/// The source of that space: what the path hands over.
#[derive(Debug)]
struct Inlet {
    ends: Ends,
    message: Vec<u8>,
    pending: Option<usize>,
    origins: u16,
    given: Amount,
}

impl Inlet {
    fn next(&mut self) -> Result<Piece, Failure> {
        if let Some(length) = self.pending {
            return Ok(Piece::Block(length));
        }
        let piece = self.ends.input().read_block(&mut self.message);
        let piece =
            piece.map_err(|fault| Failure::new("read", "what the path hands over", fault))?;
        if let Piece::Block(length) = piece {
            self.pending = Some(length);
            self.ends.gave.store(true, Ordering::Relaxed);
        }
        Ok(piece)
    }
}

impl Source for Inlet {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let mut gave = false;
        while intake.room() > 0 {
            let length = match self.next()? {
                Piece::Block(length) => length,
                Piece::Nothing => break,
                Piece::End => return Ok(Given::End),
            };
            let message = self.message.get(..length).unwrap_or_default();
            let put = message::put(message, self.origins, intake)
                .map_err(|lie| Failure::new("take", "a block of the path", lie))?;
            let Some(length) = put else { break };
            self.given.add(length);
            self.pending = None;
            gave = true;
        }
        // One waits elsewhere.
        let wait = Given::Wait { until: None, readable: false };
        Ok(if gave { Given::Blocks } else { wait })
    }

    fn seen(&self) -> Seen {
        Seen::all(self.given)
    }
}

/// The sink of that space: what the filter gives.
#[derive(Debug)]
struct Outlet {
    output: Option<Output>,
    written: Amount,
}

impl Sink for Outlet {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let Some(output) = &mut self.output else { return Ok(()) };
        for (_, block) in batch.blocks() {
            let length = message::length_of(&block);
            let put = output.write_with(length, |room| message::write(&block, room));
            put.map_err(|fault| Failure::new("write", "what the filter gives", fault))?;
            self.written.add(block.length());
        }
        output.flush();
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.output = None;
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }
}
