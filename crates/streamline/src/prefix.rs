//! Shared prefixes: the beginning of a request runs in a separate process, which other requests of
//! the same user share. docs/book/decisions/0096-shared-prefixes.md

use crate::error::OpenError;
use crate::options::Options;
use crate::prepared;
use endpoint::Failure;
use endpoint::shared_prefix::{self, PrefixStartOutcome};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use member::client::Client;
use pipeline::prefix::{RequestSplit, SharedPrefixes};
use pipeline::{Graph, prefix};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;

/// The program to start for running a shared prefix. The latest request that shares a prefix sets
/// it; `None` if no program can be started.
static PREFIX_PROGRAM: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Maximum number of bytes read from the error output of a process that was started to run a prefix
/// and failed to start.
const ERROR_OUTPUT_BYTES_MAX: u64 = 4 << 10;

/// Replaces the prefix of a request with a source that reads the output of a process that runs this
/// prefix, if the request asks for sharing. If the prefix cannot be shared, returns the request
/// unchanged and raises a notice with the reason. A request that does not ask for sharing may still
/// [join](join_running_prefix) a prefix that is already running.
pub(crate) fn share_prefix(
    (text, graph): (String, Graph),
    options: &Options,
) -> Result<(String, Graph), OpenError> {
    let mut filters = graph.nodes.iter().filter_map(pipeline::graph::Node::filter);
    if filters.any(|used| used.description.name == prefix::SHARED_SOURCE) {
        permit_prefix_start(options);
    }
    if !prefix::is_shared_prefix_requested(&graph.options) {
        return join_running_prefix((text, graph), options);
    }
    let split = match () {
        () if options.embedded => Err("it runs without the daemon".to_owned()),
        () if options.record.is_some() => Err("it is recorded".to_owned()),
        () if graph.options.get("engines").is_some() => Err("several processes run it".to_owned()),
        () if Client::find(None).is_err() => Err("no daemon replies".to_owned()),
        () => prefix::split_prefix(&text, &options.own).map_err(|why| why.to_string()),
    };
    match split.map(choose_shared_prefix) {
        Ok(cut) => {
            permit_prefix_start(options);
            let graph = prepared::parse_graph(&cut.rest, &options.own, options)?;
            Ok((cut.rest, graph))
        }
        Err(why) => {
            options.notices.raise_note(&format!("this request runs its beginning itself: {why}"));
            Ok((text, graph))
        }
    }
}

/// Replaces the prefix of a request with a source if a process of this user already runs this
/// prefix. The options must permit it, the request must have no option `--prefix=`, the prefix must
/// output messages, and a daemon must reply. Otherwise, or if the run is recorded or uses worker
/// processes, returns the request unchanged.
fn join_running_prefix(
    (text, graph): (String, Graph),
    options: &Options,
) -> Result<(String, Graph), OpenError> {
    let is_open = options.joins_prefixes && !options.serves_prefix && !options.embedded;
    let is_plain = options.record.is_none() && graph.options.get("engines").is_none();
    if !is_open || !is_plain || prefix::is_private_prefix_requested(&graph.options) {
        return Ok((text, graph));
    }
    let cuts =
        prefix::split_prefix(&text, &options.own).map_or_else(|_| vec![], |prefixes| prefixes.cuts);
    let mut message_cuts = cuts.into_iter().filter(|cut| cut.outputs_messages);
    let running = message_cuts.find(|cut| shared_prefix::is_prefix_running(&cut.prefix));
    let Some(cut) = running.filter(|_| Client::find(None).is_ok()) else {
        return Ok((text, graph));
    };
    permit_prefix_start(options);
    options.notices.raise_note(&format!(
        "this request reads `{}` from the process that runs it for your other requests; with \
         `--prefix=private` it runs its own",
        cut.prefix
    ));
    let graph = prepared::parse_graph(&cut.rest, &options.own, options)?;
    Ok((cut.rest, graph))
}

/// Chooses the prefix of a request that is read from a shared process. This is the longest prefix
/// that a process already runs and that is longer than [`SharedPrefixes::start`]. If there is none,
/// it is the prefix [`SharedPrefixes::start`], for which a process may have to be started.
fn choose_shared_prefix(mut prefixes: SharedPrefixes) -> RequestSplit {
    let longer = prefixes.cuts.iter().take(prefixes.start);
    let running = longer.into_iter().position(|cut| shared_prefix::is_prefix_running(&cut.prefix));
    prefixes.cuts.swap_remove(running.unwrap_or(prefixes.start))
}

/// Permits the sources of this process that read shared prefixes to start the processes of these
/// prefixes. Records the program to start.
fn permit_prefix_start(options: &Options) {
    let program = options.helper.clone().or_else(|| std::env::current_exe().ok());
    *PREFIX_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner) = program;
    shared_prefix::set_prefix_starter(start_prefix_process);
}

/// Minimum interval between two counts of losses in a process that offers a shared prefix to other
/// requests. Each count wakes the spaces of the path once.
const LOSS_COUNT_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time to wait for the counters of a path.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns true if a request offers a prefix to other requests.
pub(crate) fn has_offered_prefix(graph: &Graph) -> bool {
    graph.nodes.iter().filter_map(pipeline::graph::Node::filter).any(is_shared_prefix_filter)
}

fn is_shared_prefix_filter(used: &pipeline::graph::FilterUse) -> bool {
    used.description.name == shared_prefix::share::SHARE.name
}

/// A thread that counts the lost blocks of a process that offers a prefix to other requests. It
/// publishes their number, so that the readers of the prefix can report it. The thread sleeps while
/// the paths have no input. Dropping this value ends the thread.
#[derive(Debug)]
pub(crate) struct LossPublisher {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl LossPublisher {
    pub(crate) fn start(paths: Vec<PathHandle>) -> sys::Result<Self> {
        let stop = Arc::new(EventFd::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("losses".to_owned());
        let upstream = shared_prefix::upstream_loss_descriptor()?;
        let input = Arc::new(EventFd::new()?);
        let thread = thread.spawn(move || {
            let mut published = 0;
            loop {
                // The event is armed before the count, so that losses during the count cause
                // another count.
                paths.iter().for_each(|path| path.notify_after_input(&input));
                let lost = paths.iter().map(count_upstream_losses).sum();
                if std::mem::replace(&mut published, lost) != lost {
                    shared_prefix::set_upstream_losses(lost);
                    // Idle sinks report the number when they are woken.
                    paths.iter().for_each(PathHandle::wake);
                }
                let events = [stopped.as_fd(), input.as_fd(), upstream];
                if sys::poll::wait_until_readable_despite_signals(&events, None).first()
                    != Some(&false)
                {
                    return;
                }
                input.clear();
                let limit = Some(LOSS_COUNT_INTERVAL);
                if sys::poll::wait_until_readable_despite_signals(&[stopped.as_fd()], limit)
                    != [false]
                {
                    return;
                }
                shared_prefix::clear_upstream_loss();
            }
        });
        let thread = thread
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for LossPublisher {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// Returns the number of blocks that a path has lost before its sinks `share`, which offer the
/// path's output to other requests. The readers of these sinks count the blocks that the sinks
/// lose.
fn count_upstream_losses(path: &PathHandle) -> u64 {
    let mut ledger = path.ledger_by_number(COUNTERS_TIMEOUT);
    let is_offer = |name: &str| name.split('#').next() == Some(shared_prefix::share::SHARE.name);
    ledger.filters.retain(|filter| !is_offer(&filter.name));
    ledger.lost_blocks()
}

/// Starts the process of a prefix, and waits until the prefix is running or the process has exited.
/// The process detaches from the terminal, because it does not belong to a single request.
fn start_prefix_process(text: &str) -> Result<PrefixStartOutcome, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new("start", "a shared prefix", why);
    let program = PREFIX_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let program = program.ok_or_else(|| failed(&"this program cannot be started again"))?;
    let (own_end, prefix_end) = sys::descriptor::socket_pair().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    let request = prefix::build_prefix_request(
        text,
        &MachineRegistry::Local,
        shared_prefix::is_prefix_running,
    );
    command.args(["run", "--quiet", "--serves-prefix", "--", &request]);
    command.stdin(Stdio::from(prefix_end)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    drop(command);
    let mut buffer = [0; 64];
    let received = sys::descriptor::receive(&own_end, &mut buffer).map_or(0, |(length, _)| length);
    if received > 0 {
        // Reaps the process after it has ended.
        let thread = std::thread::Builder::new().name("prefix".to_owned());
        let _ = thread.spawn(move || child.wait());
        return Ok(PrefixStartOutcome::Running);
    }
    Ok(PrefixStartOutcome::Ended(wait_for_error_output(&mut child)))
}

/// Returns the error output of a process, or its exit status if it wrote no error output. Blocks
/// until the process has exited.
fn wait_for_error_output(child: &mut Child) -> String {
    let mut stderr = Vec::new();
    if let Some(errors) = child.stderr.take() {
        // If the output cannot be read, only the exit status is known.
        let _ = errors.take(ERROR_OUTPUT_BYTES_MAX).read_to_end(&mut stderr);
    }
    let ended = child.wait().map_or_else(|_| String::new(), |status| status.to_string());
    let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
    if stderr.is_empty() { ended } else { stderr }
}
