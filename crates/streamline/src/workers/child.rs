//! A worker: a process that runs a request for its share of the sessions.
//!
//! The process pins itself to its processor before it allocates memory, so that its memory is on
//! that processor's NUMA node. It builds the request, reports that it is ready, and runs the
//! request on command. It sends its output ([`super::output`]) and its counters to the parent as
//! messages. The kernel kills it when the parent exits.

use super::message::{self, Assignment, Command, Message};
use crate::crash;
use crate::error::OpenError;
use crate::notice::{Notice, Notices};
use crate::options::Options;
use crate::prepared::{self, PreparedRequest};
use crate::snapshot::collect_outcome;
use engine::build::{BuiltPath, PathOptions, RunSettings};
use engine::latency_breach;
use engine::live::PathHandle;
use engine::path::AdaptationSettings;
use engine::run::{self, LatencyAlarm, StopConditions};
use engine::signal;
use pipeline::edit::Edit;
use pipeline::plan::MovePeriod;
use runtime::latency::LatencyBreach;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::poll::PollSet;

/// Argument with which a program runs as a worker.
pub(super) const WORKER_SUBCOMMAND: &str = "serve-engine";
/// Maximum time to wait until the spaces report their counters; the same as in `member::worker`.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time to wait until a change of the request is complete; the same as in `member::worker`.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs as a worker if this process was started as a worker; returns `None` otherwise.
pub(crate) fn serve_if_asked(notices: &Notices) -> Option<Result<(), OpenError>> {
    let mut words = std::env::args_os().skip(1);
    let alone =
        words.next().is_some_and(|word| word == WORKER_SUBCOMMAND) && words.next().is_none();
    alone.then(|| serve_parent(notices))
}

/// The connection to the parent process.
struct SupervisorConnection {
    socket: Mutex<UnixStream>,
}

impl SupervisorConnection {
    /// Sends a message. Errors are ignored, because this process is killed when its parent exits.
    fn send(&self, message: &Message) {
        let _ = message::send(&self.socket.lock().unwrap_or_else(PoisonError::into_inner), message);
    }
}

fn serve_parent(notices: &Notices) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::worker_io_error("read", &error);
    sys::confine::set_parent_death_signal()?;
    let socket = UnixStream::from(sys::process::detach_stdin()?);
    let mut commands = BufReader::new(socket.try_clone().map_err(failed)?);
    let mut first = String::new();
    commands.read_line(&mut first).map_err(failed)?;
    let assignment = serde_json::from_str(&first);
    let assignment: Assignment = assignment.map_err(|error| OpenError::Unfit(error.to_string()))?;
    let parent = Arc::new(SupervisorConnection { socket: Mutex::new(socket) });
    // If pinning is refused, the worker runs on any processor.
    let _ = sys::process::pin_to_processor(assignment.processor);
    build_and_run(&assignment, commands, (&parent, notices))
}

/// Builds the request, and runs it once the parent sends [`Command::Go`].
fn build_and_run(
    assignment: &Assignment,
    mut commands: BufReader<UnixStream>,
    (parent, notices): (&Arc<SupervisorConnection>, &Notices),
) -> Result<(), OpenError> {
    let options =
        Options { embedded: assignment.embedded, notices: notices.clone(), ..Options::default() };
    let mut prepared = PreparedRequest::plan_for_worker(&assignment.text, &options)?;
    // Each worker receives different first blocks, so no worker may move filters on the basis of
    // its first blocks.
    let adapt = AdaptationSettings::permitted_by(&prepared.plan, &prepared.machine)
        .filter(|adapt| adapt.may_replicate || adapt.moves == MovePeriod::Always);
    let extras = PathOptions {
        history_bytes: assignment.history,
        adaptation: adapt,
        ..PathOptions::default()
    };
    let of = (assignment.number - 1, assignment.of);
    let settings =
        RunSettings { timed: assignment.timed, worker: Some(of), ..RunSettings::default() };
    let signals = signal::watch_stop_signals()?;
    let paths = prepared.build_paths(settings, &extras)?;
    let lives: Vec<PathHandle> = paths.iter().map(BuiltPath::live).collect();
    let stop = Arc::new(EventFd::new()?);
    let either = PollSet::new(&[signals, stop.as_fd()])?;
    parent.send(&Message::Ready);
    if !matches!(next_command(&mut commands), Some(Command::Go)) {
        // Another worker failed; returning releases everything that was built.
        return Ok(());
    }
    // All workers are built, so each receives its complete share of the input from now on.
    parent.send(&Message::RunStarted { quiet: paths.iter().all(BuiltPath::has_received_nothing) });
    let command_loop = CommandLoop { parent: Arc::clone(parent), lives: lives.clone(), stop };
    let thread = std::thread::Builder::new().name("commands".to_owned());
    let spawned = thread.spawn(move || command_loop.execute_all_commands(commands));
    spawned.map_err(|error| OpenError::worker_io_error("clone", &error))?;
    let number = assignment.number;
    let late = |breach: &LatencyBreach| {
        notices
            .raise_warning(&format!("engine {number}: {}", latency_breach::describe_breach(breach)))
    };
    let alarm = Some(LatencyAlarm(&late));
    let outcome = run::run(
        paths,
        StopConditions {
            stop_descriptor: Some(either.as_fd()),
            alarm,
            ..StopConditions::default()
        },
    )?;
    let last = lives.first().and_then(PathHandle::request_text);
    let last = last.unwrap_or_else(|| assignment.text.clone());
    // The failing block is in this worker's share, so only the worker's own request reproduces the
    // failure.
    let quiet = Options::default();
    let graph = prepared::parse_graph(&last, &quiet.own, &quiet)?;
    for capture in
        crash::save_crash_blocks(&last, &graph, &outcome.failures, notices).iter().flatten()
    {
        notices.raise(&Notice::Crash(capture));
    }
    parent.send(&Message::Ended(Box::new(outcome), last));
    Ok(())
}

/// Blocks until the next command arrives. Returns `None` if the parent has exited or the command is
/// invalid.
fn next_command(commands: &mut BufReader<UnixStream>) -> Option<Command> {
    let mut text = String::new();
    let read = commands.read_line(&mut text).ok()?;
    (read > 0).then(|| serde_json::from_str(&text).ok()).flatten()
}

/// The thread that executes commands while the request runs.
struct CommandLoop {
    parent: Arc<SupervisorConnection>,
    lives: Vec<PathHandle>,
    stop: Arc<EventFd>,
}

impl CommandLoop {
    fn execute_all_commands(self, mut commands: BufReader<UnixStream>) {
        while let Some(command) = next_command(&mut commands) {
            match command {
                Command::Go => {}
                Command::Stop => self.stop.notify(),
                Command::Count => {
                    let counts = collect_outcome(&self.lives, COUNTERS_TIMEOUT);
                    self.parent.send(&Message::Counted(Box::new(counts)));
                }
                Command::Change(number, text) => {
                    self.parent.send(&Message::Changed(number, self.apply_change(text)));
                }
            }
        }
        self.stop.notify();
    }

    fn apply_change(&self, line: String) -> Result<(String, String), String> {
        let [live] = self.lives.as_slice() else {
            return Err("it has several unconnected parts".to_owned());
        };
        let edit = Edit::ReplaceText(line);
        let machine = engine::machine::inspect_machine();
        let switched = engine::change::change(live, &edit, &machine, CHANGE_TIMEOUT);
        let switched = switched.map_err(|why| why.to_string())?;
        Ok((switched.to_string(), switched.text))
    }
}
