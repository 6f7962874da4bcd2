//! The process of a filter: this very program, started again for it.
//!
//! It makes the filter and a space of its own around it, gives up all that it may do, says that it
//! is ready, and walks blocks until its stream ends. From then on it has two sockets and two rings,
//! and what a space needs to wait; the rest of the machine is not there. What goes wrong before is
//! told over the socket that started it, and so are a panic and a call that is not allowed.

use super::limits::{MEMORY, ring};
use super::message::{self, LONGEST, Lie, Wanted};
use super::state::{self, Account, Gathering, Record};
use crate::catalogue::House;
use crate::described::{counts, describe};
use crate::pools::{intake_for, pool_unasked};
use buffer::Fault;
use buffer::pool::Config as PoolConfig;
use buffer::signal::Doorbell;
use buffer::stream::{self, Input, Offer, Output, Piece};
use endpoint::{Failure, Given, Intake, Seen, Sink, Source};
use filter::{Amount, Batch, Counts, Description, Filter, Report, Time};
use pipeline::Catalogue as _;
use runtime::control::Control;
use runtime::failure::{Cause, PathFailure};
use runtime::space::assemble::Assembly;
use runtime::space::node::{Node, Part, SinkPart, SourcePart};
use runtime::space::select::Wanted as Classes;
use runtime::space::{Clock, GENERAL, Input as SpaceInput, Parts, Space, SpaceOptions};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{confine, descriptor};

/// The word with which this program is started for a filter.
pub(super) const WORD: &str = "serve-untrusted-filter";
/// The message that reports the filter ready; sent once the process is confined.
pub(super) const READY: &[u8] = b"ready";

/// The number of the filter in its space.
const FILTER: usize = 1;
/// The status of a process whose filter could not go on: it has said why.
const GONE_WRONG: u8 = 101;

/// True if this program can be started to run a filter.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Returns true if [`serve_if_asked`] was called.
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
    if !alone || !descriptor::is_packet_socket(std::io::stdin()) {
        SERVES.store(true, Ordering::Relaxed);
        return None;
    }
    let ended = match serve() {
        Ok(()) => 0,
        Err(why) => {
            confine::report(&why);
            GONE_WRONG
        }
    };
    Some(ended)
}

fn serve() -> Result<(), String> {
    let told = |error: sys::Error| error.to_string();
    confine::end_with_parent().map_err(told)?;
    confine::close_all_but_standard().map_err(told)?;
    let socket = sys::process::detach_stdin().map_err(told)?;
    let mut message = vec![0; 1 << 20];
    let (length, sockets) = descriptor::receive(&socket, &mut message).map_err(told)?;
    confine::set_report_socket(socket);
    let wanted = Wanted::read(message.get(..length).unwrap_or_default());
    let wanted = wanted.ok_or("what is wanted cannot be read")?;
    let [from, to] = <[OwnedFd; 2]>::try_from(sockets).map_err(|_| "two sockets are missing")?;
    let offer = Offer::arrived(from).map_err(|error| error.to_string())?;
    let input = offer.ok_or("the path is gone")?.open().map_err(|error| error.to_string())?;
    let (output, sent) = stream::send_to(&ring(2), vec![to]).map_err(told)?;
    sent.into_iter().collect::<sys::Result<Vec<()>>>().map_err(told)?;
    let reader = Reader { input, message: vec![0; LONGEST], pending: None, gave: false };
    let output = Arc::new(Mutex::new(Some(output)));
    let ends = Ends { reader: Arc::new(Mutex::new(reader)), output };
    let (space, held_max) = space(&wanted, &ends)?;
    stream::know_processors();
    std::panic::set_hook(Box::new(|_| {}));
    confine::confine(MEMORY).map_err(told)?;
    confine::report_ready(READY);
    walk(space, &ends, held_max)
}

/// The two ends, which the space and who walks it both use.
#[derive(Clone, Debug)]
struct Ends {
    /// From which blocks come, which is also where one waits.
    reader: Arc<Mutex<Reader>>,
    /// To which blocks go, until nothing more does.
    output: Arc<Mutex<Option<Output>>>,
}

/// Reads the messages of the input ring.
#[derive(Debug)]
struct Reader {
    input: Input,
    /// The message that was read last, until it is done with.
    message: Vec<u8>,
    pending: Option<usize>,
    /// True if any message was read since the last check.
    gave: bool,
}

impl Ends {
    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn output(&self) -> MutexGuard<'_, Option<Output>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a message; waits for room. None: nobody takes it.
    fn give(&self, message: &[u8]) -> Option<()> {
        let mut output = self.output();
        output.as_mut()?.write(message).ok().filter(|put| *put).map(drop)
    }

    /// Shows all that was given.
    fn flush(&self) {
        if let Some(output) = self.output().as_mut() {
            output.flush();
        }
    }
}

impl Reader {
    fn next(&mut self) -> Result<Piece, Fault> {
        if let Some(length) = self.pending {
            return Ok(Piece::Block(length));
        }
        let piece = self.input.read_block(&mut self.message)?;
        if let Piece::Block(length) = piece {
            self.pending = Some(length);
            self.gave = true;
        }
        Ok(piece)
    }

    /// The next message; waits for it. None: the path is gone, or wants nothing more.
    fn wait(&mut self) -> Option<&[u8]> {
        loop {
            match self.next().ok()? {
                Piece::Block(length) => return self.message.get(..length),
                Piece::Nothing => drop(self.input.wait(None).ok()?),
                Piece::End => return None,
            }
        }
    }

    /// The message that was read last, if it is no block.
    fn record(&self) -> Option<Result<Record<'_>, Lie>> {
        Record::read(self.message.get(..self.pending?).unwrap_or_default())
    }

    /// The message that was read last is done with, and the room that it took is given back.
    fn done(&mut self) {
        self.pending = None;
        self.input.give_back();
    }
}

/// A space with one filter between the two streams.
fn space(wanted: &Wanted, ends: &Ends) -> Result<(Space, u32), String> {
    let missing = || format!("no filter is called `{}`", wanted.name);
    let description = House.find(&wanted.name).ok_or_else(missing)?;
    let make = description.user.ok_or_else(missing)?;
    let arguments = wanted.arguments(description).served_by(House.compiler());
    let arguments = arguments.trusted_with(House.keys());
    let filter = make(&arguments).map_err(|mistake| mistake.to_string())?;
    let (nodes, shape) = assembled(wanted, description, filter, ends);
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let clock = if wanted.about.tells_time { Clock::Blocks(0) } else { Clock::Live };
    let space = Space::new(Parts {
        name: "sandbox".to_owned(),
        nodes,
        shape,
        intakes: vec![pool_unasked(intake_for(LONGEST)).map_err(|error| told(&error))?],
        work: pool_unasked(PoolConfig::default()).map_err(|error| told(&error))?,
        inputs: vec![SpaceInput::Source { node: 0, intake: GENERAL }],
        control: Arc::new(Control::new().map_err(|error| told(&error))?),
        bell: Arc::new(Doorbell::new()),
        clock,
        // What it knows of times is of the clock of the path, wherever it is.
        epoch: wanted.about.epoch,
        options: SpaceOptions::default(),
    });
    Ok((space, description.state.held_max))
}

fn assembled(
    wanted: &Wanted,
    description: &'static Description,
    filter: Filter,
    ends: &Ends,
) -> (Vec<Node>, runtime::space::walk::Shape) {
    let mut assembly = Assembly::default();
    let inlet = Inlet { ends: ends.clone(), given: Amount::default() };
    let source = Part::Source(SourcePart::new(Box::new(inlet)));
    let outlet = Outlet { ends: ends.clone(), written: Amount::default() };
    let sink = Part::Sink(SinkPart::new(Box::new(outlet)));
    let from = assembly.node(Node::new("inlet", 0, source, Counts::default()));
    let made = Node::new(description.name, FILTER, Part::Filter(filter), counts(description));
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
fn walk(mut space: Space, ends: &Ends, held_max: u32) -> Result<(), String> {
    while space.step() {
        if ends.reader().record().is_some() {
            // All that came before it has been walked, and what was made of that given.
            let answered = catch_unwind(AssertUnwindSafe(|| answer(&mut space, ends, held_max)));
            answered.unwrap_or_else(|panic| {
                Err(said(PathFailure::panicked(String::new(), &*panic, None)))
            })?;
            continue;
        }
        let mut reader = ends.reader();
        if std::mem::take(&mut reader.gave) {
            // So that it is seen that they were taken.
            reader.input.give_back();
            continue;
        }
        let waited = reader.input.wait(space.wakes_in());
        if let Err(fault) = waited.map(drop).or_else(only_gone) {
            return Err(fault.to_string());
        }
    }
    let remains = space.end();
    match remains.failure {
        None => {
            // Whether it is heard is nothing to wait for.
            let account = remains.nodes.iter().find(|node| node.planned == FILTER);
            let _ = account.map(|node| ends.give(&Record::Account(Account::of(node)).written()));
            *ends.output() = None;
            Ok(())
        }
        Some(failure) => Err(said(failure)),
    }
}

/// Formats the failure as the child's final message.
fn said(failure: PathFailure) -> String {
    match failure {
        PathFailure { cause: Cause::Panic { message, .. }, .. } => format!("a panic, {message}"),
        failure => failure.to_string(),
    }
}

/// Does what the path asks for beside walking blocks.
fn answer(space: &mut Space, ends: &Ends, held_max: u32) -> Result<(), String> {
    let gone = || "the path is gone".to_owned();
    let asked = match ends.reader().record() {
        Some(Ok(Record::Save)) => true,
        Some(Ok(Record::Session(..) | Record::Known(_))) => false,
        _ => return Err("what is asked cannot be read".to_owned()),
    };
    if asked {
        let account = space.node(FILTER).map(Account::of).unwrap_or_default();
        ends.give(&Record::Account(account).written()).ok_or_else(gone)?;
        let mut give = |message: &[u8]| ends.give(message);
        let wake = space.save_each(FILTER, &mut |session| state::tell_session(&session, &mut give));
        let wake = wake.ok_or_else(|| "what it knows is longer than a ring takes".to_owned())?;
        ends.give(&Record::Known(wake).written()).ok_or_else(gone)?;
        ends.flush();
        // What it knows runs elsewhere from now on, unless it is told otherwise: until then not
        // even time goes on here.
        let mut reader = ends.reader();
        reader.done();
        let goes_on = reader.wait().map(Record::read);
        if goes_on == Some(Some(Ok(Record::GoOn))) {
            reader.done();
        }
        return Ok(());
    }
    let mut gathering = Gathering::new(held_max, u16::MAX);
    loop {
        let mut reader = ends.reader();
        let taken = reader.wait().map(|message| gathering.take(message)).ok_or_else(gone)?;
        reader.done();
        if taken.map_err(|lie| format!("what it is to know: {lie}"))? {
            break;
        }
    }
    let saved = gathering.done().unwrap_or_default();
    space.learn_all(FILTER, &saved).map_err(|why| format!("what it is to know: {why}"))?;
    ends.give(&Record::Taught.written()).ok_or_else(gone)?;
    ends.flush();
    Ok(())
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
    given: Amount,
}

impl Source for Inlet {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let mut gave = false;
        let mut reader = self.ends.reader();
        let cannot = |fault| Failure::new("read", "what the path hands over", fault);
        while intake.room() > 0 {
            let length = match reader.next().map_err(cannot)? {
                // What is no block is for who walks this space.
                Piece::Block(_) if reader.record().is_some() => break,
                Piece::Block(length) => length,
                Piece::Nothing => break,
                Piece::End => return Ok(Given::End),
            };
            let message = reader.message.get(..length).unwrap_or_default();
            // Which sources there are the path knows.
            let put = message::put(message, u16::MAX, intake)
                .map_err(|lie| Failure::new("take", "a block of the path", lie))?;
            let Some(length) = put else { break };
            self.given.add(length);
            reader.pending = None;
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
    ends: Ends,
    written: Amount,
}

impl Sink for Outlet {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut output = self.ends.output();
        let Some(output) = output.as_mut() else { return Ok(()) };
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
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }
}
