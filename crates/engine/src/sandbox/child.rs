//! The process of an untrusted filter: this program, started again with a special argument.
//!
//! The process creates the filter and a space around it, gives up all privileges, reports that it
//! is ready, and processes blocks until its input ends. Once ready, it has access only to its two
//! streams, the socket from which it received its parameters, and the system calls with which a
//! space waits. Through that socket it reports errors, panics and forbidden system calls.

use super::limits::{ADDRESS_SPACE_BYTES_MAX, stream_config};
use super::message::{self, FilterSpec, MESSAGE_SIZE_MAX, MessageDefect};
use super::state::{self, SandboxCounters, StateCollector, StateRecord};
use crate::description::{with_description, zero_counts};
use crate::pools::{create_unlogged_pool, intake_config_for_length};
use crate::registry::MachineRegistry;
use buffer::Fault;
use buffer::pool::PoolConfig;
use buffer::signal::Doorbell;
use buffer::stream::{self, BlockReadResult, Input, Offer, Output};
use endpoint::{Failure, Intake, Sink, Source, SourceCounters, SourceStatus};
use filter::{Amount, Batch, Counts, Description, Filter, Report, Time};
use pipeline::Registry as _;
use runtime::control::PathControl;
use runtime::failure::{FailureCause, PathFailure};
use runtime::space::assemble::Assembly;
use runtime::space::class_selection::SelectedClasses as Classes;
use runtime::space::node::{Node, Operator, SinkOperator, SourceOperator};
use runtime::space::{Clock, GENERAL_INTAKE, Input as SpaceInput, Space, SpaceOptions, SpaceParts};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{confine, descriptor};

/// The command-line argument that makes this program run an untrusted filter.
pub(super) const SERVE_UNTRUSTED_FILTER_ARGUMENT: &str = "serve-untrusted-filter";
/// The message that the filter is ready, sent once the process has given up its privileges.
pub(super) const READY_MESSAGE: &[u8] = b"ready";

/// Index of the filter's node in the space of the sandbox process. The inlet precedes it, and the
/// outlet follows it.
const FILTER_NODE_INDEX: usize = 1;
/// Exit status after a failure that the process has reported over its socket.
const EXIT_STATUS_FAILED: u8 = 101;

/// True once this program has declared that it can be started to run untrusted filters.
static CAN_SERVE_UNTRUSTED_FILTERS: AtomicBool = AtomicBool::new(false);

/// Returns true if this program can run untrusted filters, that is, has called
/// [`serve_untrusted_filter_if_asked`].
pub(super) fn can_serve_untrusted_filters() -> bool {
    CAN_SERVE_UNTRUSTED_FILTERS.load(Ordering::Relaxed)
}

/// Runs an untrusted filter if this process was started to run one, and returns the exit status;
/// otherwise returns `None`. A program that runs paths must call this function first; otherwise
/// `untrusted=yes` is unavailable.
#[must_use]
pub fn serve_untrusted_filter_if_asked() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    let alone = words.next().is_some_and(|word| word == SERVE_UNTRUSTED_FILTER_ARGUMENT)
        && words.next().is_none();
    if !alone || !descriptor::is_seqpacket_socket(std::io::stdin()) {
        CAN_SERVE_UNTRUSTED_FILTERS.store(true, Ordering::Relaxed);
        return None;
    }
    let ended = match serve_untrusted_filter() {
        Ok(()) => 0,
        Err(why) => {
            confine::report(&why);
            EXIT_STATUS_FAILED
        }
    };
    Some(ended)
}

fn serve_untrusted_filter() -> Result<(), String> {
    let describe = |error: sys::Error| error.to_string();
    confine::set_parent_death_signal().map_err(describe)?;
    confine::close_all_but_standard_streams().map_err(describe)?;
    let socket = sys::process::detach_stdin().map_err(describe)?;
    let mut message = vec![0; 1 << 20];
    let (length, sockets) = descriptor::receive(&socket, &mut message).map_err(describe)?;
    confine::set_report_socket(socket);
    let wanted = serde_json::from_slice(message.get(..length).unwrap_or_default());
    let wanted: FilterSpec = wanted.map_err(|_| "the description of the filter cannot be read")?;
    let [from, to] = <[OwnedFd; 2]>::try_from(sockets).map_err(|_| "two sockets are missing")?;
    let offer = Offer::receive(from).map_err(|error| error.to_string())?;
    let input = offer.ok_or("the path has ended")?.open().map_err(|error| error.to_string())?;
    let (output, sent) =
        stream::stream_to_sockets(&stream_config(2), vec![to]).map_err(describe)?;
    sent.into_iter().collect::<sys::Result<Vec<()>>>().map_err(describe)?;
    let reader = InputStreamReader {
        input,
        message: vec![0; MESSAGE_SIZE_MAX],
        pending: None,
        unreleased: false,
    };
    let output = Arc::new(Mutex::new(Some(output)));
    let streams = SandboxStreams { reader: Arc::new(Mutex::new(reader)), output };
    let (space, held_max) = build_space(&wanted, &streams)?;
    stream::fix_processor_count();
    std::panic::set_hook(Box::new(|_| {}));
    confine::confine(ADDRESS_SPACE_BYTES_MAX).map_err(describe)?;
    confine::report_ready(READY_MESSAGE);
    process_blocks(space, &streams, held_max)
}

/// The input and output streams of a sandbox process, shared by its space and by the loop that runs
/// the space.
#[derive(Clone, Debug)]
struct SandboxStreams {
    /// The stream of input blocks. The process sleeps while this stream is empty.
    reader: Arc<Mutex<InputStreamReader>>,
    /// The stream of output blocks, or `None` once the output has ended.
    output: Arc<Mutex<Option<Output>>>,
}

/// The reader of a sandbox process's input stream.
#[derive(Debug)]
struct InputStreamReader {
    input: Input,
    /// The latest message from the path; it stays here until it has been processed.
    message: Vec<u8>,
    pending: Option<usize>,
    /// True if messages have been read but not yet released, so that they still occupy the ring.
    unreleased: bool,
}

impl SandboxStreams {
    fn lock_reader(&self) -> MutexGuard<'_, InputStreamReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_output(&self) -> MutexGuard<'_, Option<Output>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message. Blocks while the ring is full. Returns `None` if the path has ended.
    fn write_message(&self, message: &[u8]) -> Option<()> {
        let mut output = self.lock_output();
        output.as_mut()?.write(message).ok().filter(|put| *put).map(drop)
    }

    /// Makes all messages written so far visible to the path.
    fn flush(&self) {
        if let Some(output) = self.lock_output().as_mut() {
            output.flush();
        }
    }
}

impl InputStreamReader {
    fn next(&mut self) -> Result<BlockReadResult, Fault> {
        if let Some(length) = self.pending {
            return Ok(BlockReadResult::Block(length));
        }
        let piece = self.input.read_block(&mut self.message)?;
        if let BlockReadResult::Block(length) = piece {
            self.pending = Some(length);
            self.unreleased = true;
        }
        Ok(piece)
    }

    /// Waits for the next message and returns it; `None` if the path or stream has ended.
    fn wait_for_message(&mut self) -> Option<&[u8]> {
        loop {
            match self.next().ok()? {
                BlockReadResult::Block(length) => return self.message.get(..length),
                BlockReadResult::Nothing => drop(self.input.wait(None).ok()?),
                BlockReadResult::End => return None,
            }
        }
    }

    /// Decodes the latest message from the path as a state record. Returns `None` if the message is
    /// a block.
    fn decode_record(&self) -> Option<Result<StateRecord<'_>, MessageDefect>> {
        StateRecord::read(self.message.get(..self.pending?).unwrap_or_default())
    }

    /// Discards the latest message. The part of the ring that it occupies becomes free.
    fn consume_message(&mut self) {
        self.pending = None;
        self.input.release();
    }
}

/// Builds the space of a sandbox process. It contains one filter between the input stream and the
/// output stream.
fn build_space(wanted: &FilterSpec, streams: &SandboxStreams) -> Result<(Space, u32), String> {
    let missing = || format!("no filter is called `{}`", wanted.name);
    let description = MachineRegistry::Local.find_filter(&wanted.name).ok_or_else(missing)?;
    let make = description.constructor.ok_or_else(missing)?;
    let arguments = wanted.arguments(description).with_compiler(MachineRegistry::Local.compiler());
    let arguments = arguments.with_key_reader(MachineRegistry::Local.key_reader());
    let filter = make(&arguments).map_err(|mistake| mistake.to_string())?;
    let (nodes, shape) = assemble_nodes(wanted, description, filter, streams);
    let describe = |error: &dyn std::fmt::Display| error.to_string();
    let clock = if wanted.about.drives_clock { Clock::BlockTime(0) } else { Clock::Live };
    let space = Space::new(SpaceParts {
        name: "sandbox".to_owned(),
        nodes,
        shape,
        intakes: vec![
            create_unlogged_pool(intake_config_for_length(MESSAGE_SIZE_MAX))
                .map_err(|error| describe(&error))?,
        ],
        work: create_unlogged_pool(PoolConfig::default()).map_err(|error| describe(&error))?,
        inputs: vec![SpaceInput::Source { node: 0, intake: GENERAL_INTAKE }],
        control: Arc::new(PathControl::new().map_err(|error| describe(&error))?),
        doorbell: Arc::new(Doorbell::new()),
        clock,
        // The filter's state contains times of the path's clock.
        epoch: wanted.about.epoch,
        options: SpaceOptions::default(),
    });
    Ok((space, description.state.held_max))
}

fn assemble_nodes(
    wanted: &FilterSpec,
    description: &'static Description,
    filter: Filter,
    streams: &SandboxStreams,
) -> (Vec<Node>, runtime::space::graph_shape::GraphShape) {
    let mut assembly = Assembly::default();
    let inlet = SandboxSource { streams: streams.clone(), given: Amount::default() };
    let source = Operator::Source(SourceOperator::new(Box::new(inlet)));
    let outlet = SandboxSink { streams: streams.clone(), written: Amount::default() };
    let sink = Operator::Sink(SinkOperator::new(Box::new(outlet)));
    let from = assembly.add_node(Node::new("inlet", 0, source, Counts::default()));
    let (filter, counts) = (Operator::Filter(filter), zero_counts(description));
    let mut made = with_description(
        Node::new(description.name, FILTER_NODE_INDEX, filter, counts),
        description,
    );
    made.fragments = wanted.about.fragments;
    let at = assembly.add_node(made);
    let to = assembly.add_node(Node::new("outlet", 2, sink, Counts::default()));
    assembly.add_arc(from, at, Classes::All, false, 0);
    // The arcs in the path select the classes, so this arc passes all classes.
    assembly.add_arc(at, to, Classes::All, false, 1);
    assembly.finish()
}

/// Processes blocks until the stream ends, then releases held blocks and sends the counters.
fn process_blocks(mut space: Space, streams: &SandboxStreams, held_max: u32) -> Result<(), String> {
    while space.step() {
        if streams.lock_reader().decode_record().is_some() {
            // All earlier blocks have been processed, and their output has been written.
            let answered = catch_unwind(AssertUnwindSafe(|| {
                save_or_restore_state(&mut space, streams, held_max)
            }));
            answered.unwrap_or_else(|panic| {
                Err(failure_message(PathFailure::from_panicked_filter("", &*panic, None)))
            })?;
            continue;
        }
        let mut reader = streams.lock_reader();
        if std::mem::take(&mut reader.unreleased) {
            // The path counts the blocks as consumed once they are released from the ring.
            reader.input.release();
            continue;
        }
        let waited = reader.input.wait(space.time_until_next_timer());
        if let Err(fault) = waited.map(drop).or_else(ignore_path_end) {
            return Err(fault.to_string());
        }
    }
    let results = space.end();
    match results.failure {
        None => {
            // This is a final report; its reader may already be gone.
            let account = results.nodes.iter().find(|node| node.number == FILTER_NODE_INDEX);
            let _ = account.map(|node| {
                streams
                    .write_message(&StateRecord::Account(SandboxCounters::from_node(node)).encode())
            });
            *streams.lock_output() = None;
            Ok(())
        }
        Some(failure) => Err(failure_message(failure)),
    }
}

/// Formats a failure as the final message of this process.
fn failure_message(failure: PathFailure) -> String {
    match failure {
        PathFailure { cause: FailureCause::Panic { message, .. }, .. } => {
            format!("a panic, {message}")
        }
        failure => failure.to_string(),
    }
}

/// Handles a message from the path that concerns the filter's state. The message either requests
/// the state, which is then sent, or begins a state, which is then restored. Blocks until this is
/// complete. After sending the state, also blocks until the next message from the path.
fn save_or_restore_state(
    space: &mut Space,
    streams: &SandboxStreams,
    held_max: u32,
) -> Result<(), String> {
    let gone = || "the path has ended".to_owned();
    let asked = match streams.lock_reader().decode_record() {
        Some(Ok(StateRecord::Save)) => true,
        Some(Ok(StateRecord::Session(..) | StateRecord::End(_))) => false,
        _ => return Err("the command of the path cannot be read".to_owned()),
    };
    if asked {
        let account =
            space.node(FILTER_NODE_INDEX).map(SandboxCounters::from_node).unwrap_or_default();
        streams.write_message(&StateRecord::Account(account).encode()).ok_or_else(gone)?;
        let mut give = |message: &[u8]| streams.write_message(message);
        let wake = space.save_sessions(FILTER_NODE_INDEX, &mut |session| {
            state::send_session(&session, &mut give)
        });
        let wake = wake.ok_or_else(|| "its state is longer than a ring accepts".to_owned())?;
        streams.write_message(&StateRecord::End(wake).encode()).ok_or_else(gone)?;
        streams.flush();
        // The state may continue in another process, so this filter and its timers pause until the
        // path resumes it.
        let mut reader = streams.lock_reader();
        reader.consume_message();
        let resume = reader.wait_for_message().map(StateRecord::read);
        if resume == Some(Some(Ok(StateRecord::Resume))) {
            reader.consume_message();
        }
        return Ok(());
    }
    let mut gathering = StateCollector::new(held_max, u16::MAX);
    loop {
        let mut reader = streams.lock_reader();
        let taken = reader
            .wait_for_message()
            .map(|message| gathering.add_message(message))
            .ok_or_else(gone)?;
        reader.consume_message();
        if taken.map_err(|lie| format!("its state cannot be loaded: {lie}"))? {
            break;
        }
    }
    let saved = gathering.into_state().unwrap_or_default();
    space
        .load_filter_state(FILTER_NODE_INDEX, &saved)
        .map_err(|why| format!("its state cannot be loaded: {why}"))?;
    streams.write_message(&StateRecord::Restored.encode()).ok_or_else(gone)?;
    streams.flush();
    Ok(())
}

/// Ignores the fault that the path has ended, because the next read reports that end anyway.
/// Returns any other fault as an error.
const fn ignore_path_end(fault: Fault) -> Result<(), Fault> {
    match fault {
        Fault::Abandoned => Ok(()),
        fault => Err(fault),
    }
}

/// The source in the process of a sandboxed filter. It emits the blocks that the path has sent to
/// the process.
#[derive(Debug)]
struct SandboxSource {
    streams: SandboxStreams,
    given: Amount,
}

impl Source for SandboxSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let mut gave = false;
        let mut reader = self.streams.lock_reader();
        let cannot = |fault| Failure::new("read", "the message of the path", fault);
        while intake.room() > 0 {
            let length = match reader.next().map_err(cannot)? {
                // The loop that drives this space handles messages that are not blocks.
                BlockReadResult::Block(_) if reader.decode_record().is_some() => break,
                BlockReadResult::Block(length) => length,
                BlockReadResult::Nothing => break,
                BlockReadResult::End => return Ok(SourceStatus::End),
            };
            let message = reader.message.get(..length).unwrap_or_default();
            // The path checks origins, so any origin is accepted here.
            let put = message::copy_into_intake(message, u16::MAX, intake)
                .map_err(|lie| Failure::new("take", "a block of the path", lie))?;
            let Some(length) = put else { break };
            self.given.add_block(length);
            reader.pending = None;
            gave = true;
        }
        // The loop that drives this space waits for input.
        let wait = SourceStatus::Wait { until: None, readable: false };
        Ok(if gave { SourceStatus::Blocks } else { wait })
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.given)
    }
}

/// The sink in the process of a sandboxed filter. It sends the filter's output back to the path.
#[derive(Debug)]
struct SandboxSink {
    streams: SandboxStreams,
    written: Amount,
}

impl Sink for SandboxSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut output = self.streams.lock_output();
        let Some(output) = output.as_mut() else { return Ok(()) };
        for (_, block) in batch.blocks() {
            let length = message::message_length(&block);
            let put = output.write_with(length, |room| message::write(&block, room));
            put.map_err(|fault| Failure::new("write", "the output of the filter", fault))?;
            self.written.add_block(block.length());
        }
        output.flush();
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }
}
