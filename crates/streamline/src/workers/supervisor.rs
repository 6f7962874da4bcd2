//! Supervision of a request's worker processes: start, release, commands, counts, exit.

use super::child::WORKER_SUBCOMMAND;
use super::control::{GroupControl, LatestCounts, NumberedChangeReply};
use super::message::{self, Assignment, Command, Message};
use super::output::WorkerOutput;
use super::requests::allowed_processors;
use super::run::WorkerRun;
use crate::error::OpenError;
use crate::notice::Notices;
use crate::options::Options;
use crate::prepared::PreparedRequest;
use engine::aggregate::{self, merge_reports};
use engine::run::{Progress, ProgressWatch, RunOutcome, StopConditions};
use pipeline::Graph;
use pipeline::plan::Plan;
use runtime::failure::{FailureCause, PathFailure};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::helper::HelperProcess;

/// Interval, in ns, at which the parent requests counters from the workers. A worker that has not
/// replied to the last of these requests gets no new one.
const COUNT_INTERVAL_NS: u64 = 200_000_000;
/// Maximum time to wait for a process to exit after it has closed its sockets.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker process, and its state as the parent knows it.
#[derive(Debug)]
struct Worker {
    number: u32,
    /// Request with which the worker was started.
    initial_request: String,
    processor: usize,
    process: HelperProcess,
    commands: UnixStream,
    /// The last counts from the worker; `None` if it has sent none.
    counts: Option<RunOutcome>,
    /// Request that the worker ran last; `None` until the worker has sent its final counts.
    last_request: Option<String>,
    /// True if the worker's sources had received nothing when all workers were ready.
    started_idle: bool,
    /// True while the worker has not replied to the last [`Command::Count`].
    count_pending: bool,
    /// True once the worker has closed its end of the socket to the supervisor.
    has_closed_socket: bool,
}

/// The worker processes of a request.
#[derive(Debug)]
pub(crate) struct Supervisor {
    workers: Vec<Worker>,
    /// Messages from the workers, each with the worker's index; `None` means that the worker has
    /// closed its socket.
    inbox: mpsc::Receiver<(usize, Option<Message>)>,
    sender: mpsc::Sender<(usize, Option<Message>)>,
    /// Doorbell that is notified when a message from a worker arrives.
    message_doorbell: Arc<EventFd>,
    /// Handle that controls all workers as one path, or `None` until it is created.
    control: Option<Arc<GroupControl>>,
    /// Sending end of the channel that passes the workers' replies to changes to [`GroupControl`];
    /// `None` until the control is created.
    change_replies: Option<mpsc::Sender<NumberedChangeReply>>,
    /// Options for planning a changed request.
    options: Options,
}

/// The results of a run in worker processes.
pub(crate) struct SupervisedRunResult {
    pub(crate) plan: Plan,
    pub(crate) outcome: RunOutcome,
    pub(crate) workers: Vec<WorkerRun>,
}

impl Supervisor {
    /// Starts all workers, and blocks until they are ready. Starts the other workers only after the
    /// first one is ready, so that an error in the request is reported only once.
    pub(super) fn start(
        requests: &[String],
        options: &Options,
        program: &Path,
    ) -> Result<(Self, WorkerOutput), OpenError> {
        let (sender, inbox) = mpsc::channel();
        let mut supervisor = Self {
            workers: Vec::new(),
            inbox,
            sender,
            message_doorbell: Arc::new(EventFd::new()?),
            control: None,
            change_replies: None,
            options: options.clone(),
        };
        let mut outputs = Vec::new();
        let of = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let processors = allowed_processors();
        for (number, text) in (1..).zip(requests) {
            let at = number as usize - 1;
            let assignment = Assignment {
                text: text.clone(),
                number,
                of,
                processor: processors.get(at % processors.len().max(1)).copied().unwrap_or(0),
                timed: options.timed,
                embedded: options.embedded,
                history: options.history,
            };
            outputs.push(supervisor.start_worker(&assignment, program)?);
            if number == 1 {
                supervisor.wait_until_workers_ready(1)?;
            }
        }
        supervisor.wait_until_workers_ready(requests.len().saturating_sub(1))?;
        let output = WorkerOutput::start(outputs);
        let output = output.map_err(|error| OpenError::worker_io_error("clone", &error))?;
        Ok((supervisor, output))
    }

    /// Starts a worker, and returns the reading end of its standard output.
    fn start_worker(
        &mut self,
        assignment: &Assignment,
        program: &Path,
    ) -> Result<OwnedFd, OpenError> {
        let pair = UnixStream::pair();
        let (own_end, worker_end) =
            pair.map_err(|error| OpenError::worker_io_error("socketpair", &error))?;
        let (output, stdout) = sys::descriptor::socket_pair()?;
        // In its own process group, the worker does not receive terminal signals such as ^C.
        let mut command = Process::new(program);
        command.arg(WORKER_SUBCOMMAND).process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(worker_end))).stdout(Stdio::from(stdout));
        let process = HelperProcess::spawn_command(command)?;
        let reader =
            own_end.try_clone().map_err(|error| OpenError::worker_io_error("dup", &error))?;
        // A failure means that the worker has ended, which `wait_until_workers_ready` detects.
        let _ = message::send(&own_end, assignment);
        let (at, to) = (self.workers.len(), self.sender.clone());
        let arrived = Arc::clone(&self.message_doorbell);
        let receive = move || {
            for text in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str::<Message>(&text) else { break };
                // Sending fails only after the end of the run.
                let _ = to.send((at, Some(message)));
                arrived.notify();
            }
            let _ = to.send((at, None));
            arrived.notify();
        };
        let thread = std::thread::Builder::new().name(format!("engine {}", assignment.number));
        thread.spawn(receive).map_err(|error| OpenError::worker_io_error("clone", &error))?;
        self.workers.push(Worker {
            number: assignment.number,
            initial_request: assignment.text.clone(),
            processor: assignment.processor,
            process,
            commands: own_end,
            counts: None,
            last_request: None,
            started_idle: false,
            count_pending: false,
            has_closed_socket: false,
        });
        Ok(output)
    }

    /// Blocks until `more` further workers have reported that they are ready. Fails if a worker
    /// ends before; unless it was killed, that worker has reported the reason.
    fn wait_until_workers_ready(&self, more: usize) -> Result<(), OpenError> {
        for _ in 0..more {
            let Ok((at, message)) = self.inbox.recv() else {
                return Err(OpenError::Worker { number: 0, ended: None });
            };
            if !matches!(message, Some(Message::Ready)) {
                let worker = &self.workers[at];
                let ended = worker.process.wait(EXIT_TIMEOUT);
                return Err(OpenError::Worker { number: worker.number, ended });
            }
        }
        Ok(())
    }

    /// Lets all workers start their run at the same time. Blocks until they have ended and their
    /// output has been written.
    pub(crate) fn run(
        mut self,
        plan: Plan,
        until: StopConditions<'_>,
        output: WorkerOutput,
        notices: &Notices,
    ) -> Result<SupervisedRunResult, OpenError> {
        self.send(&Command::Go);
        let begin = sys::clock::monotonic_ns();
        let first =
            self.workers.first().map(|worker| worker.initial_request.clone()).unwrap_or_default();
        self.wait_until_workers_exit(
            (begin, until.time_limit_ns),
            until.stop_descriptor,
            (&plan.graph, until.watch),
        );
        let unread = output.wait();
        let plan = match self.changed_request(&first) {
            Some(request) => PreparedRequest::plan_for_worker(request, &self.options)?.plan,
            None => plan,
        };
        let (mut outcome, workers) = self.outcome(&plan.graph);
        outcome.elapsed_ns = sys::clock::monotonic_ns().saturating_sub(begin);
        if let Some(kind) = unread.filter(|kind| *kind != ErrorKind::BrokenPipe) {
            notices.raise_warning(&format!("cannot write standard output: {kind}"));
        }
        Ok(SupervisedRunResult { plan, outcome, workers })
    }

    /// Sends a command to all workers.
    fn send(&self, command: &Command) {
        self.workers.iter().for_each(|worker| worker.send(command));
    }

    /// Blocks until all workers have exited. Stops them when `stop` becomes readable, or `time` ns
    /// after `begin`. Meanwhile, requests their counters, and reports progress to `watch`.
    fn wait_until_workers_exit(
        &mut self,
        (begin, time): (u64, Option<u64>),
        stop: Option<BorrowedFd<'_>>,
        (graph, watch): (&Graph, Option<ProgressWatch<'_>>),
    ) {
        let end = time.map(|ns| begin.saturating_add(ns));
        let mut counts = begin;
        let mut watches = watch.map(|watch| begin.saturating_add(watch.interval_ns));
        let mut stopped = false;
        while self.workers.iter().any(|worker| !worker.has_closed_socket) {
            let now = sys::clock::monotonic_ns();
            let next =
                [Some(counts), end.filter(|_| !stopped), watches].into_iter().flatten().min();
            let limit = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
            let mut waits = vec![self.message_doorbell.as_fd()];
            waits.extend(stop.filter(|_| !stopped));
            let ready = sys::poll::wait_until_readable(&waits, limit);
            let now = sys::clock::monotonic_ns();
            self.process_worker_messages();
            if !stopped && (ready.get(1) == Some(&true) || end.is_some_and(|end| now >= end)) {
                stopped = true;
                self.send(&Command::Stop);
            }
            if now >= counts {
                counts = now.saturating_add(COUNT_INTERVAL_NS);
                self.request_worker_counts();
            }
            if let (Some(at), Some(watch)) = (watches, watch)
                && now >= at
            {
                watches = Some(now.saturating_add(watch.interval_ns));
                let sources = self.outcome(graph).0.ledger.sources;
                let elapsed_ns = now.saturating_sub(begin);
                let held_up = Vec::new();
                (watch.report)(&Progress { elapsed_ns, sources, stopped, unresponsive: held_up });
            }
        }
    }

    /// Requests counts from all running workers that have answered the last request.
    fn request_worker_counts(&mut self) {
        let idle = |worker: &&mut Worker| !worker.count_pending && worker.last_request.is_none();
        for worker in self.workers.iter_mut().filter(idle) {
            worker.count_pending = true;
            worker.send(&Command::Count);
        }
    }

    /// Processes all queued messages, and publishes the latest counters of the workers.
    fn process_worker_messages(&mut self) {
        self.message_doorbell.clear();
        while let Ok((at, message)) = self.inbox.try_recv() {
            let worker = &mut self.workers[at];
            match message {
                Some(Message::Ready) => {}
                Some(Message::RunStarted { quiet }) => worker.started_idle = quiet,
                Some(Message::Changed(number, answer)) => {
                    // The thread that requested the change may have timed out.
                    let _ = self.change_replies.as_ref().map(|to| to.send((number, answer)));
                }
                Some(Message::Counted(counts)) => {
                    worker.count_pending = false;
                    // Once the final counts have arrived, no others are stored.
                    if worker.last_request.is_none() {
                        worker.counts = Some(*counts);
                    }
                }
                Some(Message::Ended(counts, line)) => {
                    (worker.counts, worker.last_request) = (Some(*counts), Some(line));
                }
                None => worker.has_closed_socket = true,
            }
        }
        if let Some(control) = &self.control {
            control.replace_latest_counts(self.workers.iter().map(Worker::latest_counts).collect());
        }
    }

    /// Returns the handle that controls the path, or `None` if the path has not been created yet.
    pub(crate) fn control(&self) -> Option<Arc<GroupControl>> {
        self.control.clone()
    }

    /// Creates the control of the path, through which the daemon's clients reach all workers.
    pub(super) fn create_group_control(
        &mut self,
        requests: &[String],
        graph: &Graph,
        options: &Options,
    ) -> Result<Arc<GroupControl>, OpenError> {
        let commands = self.workers.iter().map(|worker| worker.commands.try_clone());
        let commands = commands.collect::<std::io::Result<_>>();
        let commands = commands.map_err(|error| OpenError::worker_io_error("dup", &error))?;
        let (answers, receiver) = mpsc::channel();
        self.change_replies = Some(answers);
        let process = |worker: &Worker| (format!("engine{}", worker.number), worker.process.pid());
        let processes = self.workers.iter().map(process).collect();
        let control =
            GroupControl::new(commands, receiver, (requests, graph), (processes, options.clone()));
        Ok(Arc::clone(self.control.insert(Arc::new(control))))
    }

    /// Returns the request that the first worker ran last, if it differs from `first`, the request
    /// with which this worker was started. Returns `None` if it is the same or unknown.
    fn changed_request(&self, first: &str) -> Option<&str> {
        let line = self.workers.first()?.last_request.as_deref()?;
        (line != first).then_some(line)
    }

    /// Returns the aggregated outcome and the outcome of each worker, according to their latest
    /// counts. In the aggregated outcome, a worker that died counts as a failure.
    fn outcome(&self, graph: &Graph) -> (RunOutcome, Vec<WorkerRun>) {
        let (mut all, mut runs, mut failure) = (Vec::new(), Vec::new(), Vec::new());
        for worker in &self.workers {
            let counted = worker.latest_counts();
            let killed = counted.killed;
            let mut outcome = counted.outcome();
            all.push(counted.report());
            if killed {
                aggregate::balance_killed_ledger(&mut outcome);
                failure.push(worker.describe_failure());
            }
            let (number, process) = (worker.number, worker.process.pid());
            runs.push(WorkerRun { number, process, processor: worker.processor, outcome });
        }
        let mut outcome = merge_reports(graph, all);
        outcome.failures.extend(failure);
        (outcome, runs)
    }
}

impl Worker {
    /// Returns the latest counts of this worker. Sets `killed` if the worker died without sending
    /// its final counts.
    fn latest_counts(&self) -> LatestCounts {
        LatestCounts {
            counts: self.counts.clone(),
            killed: self.has_closed_socket && self.last_request.is_none(),
            started_idle: self.started_idle,
        }
    }

    /// Sends a command to the worker. Has no effect if the worker has exited.
    fn send(&self, command: &Command) {
        let _ = message::send(&self.commands, command);
    }

    /// Describes the end of a worker that died without sending its final counts. Waits for at most
    /// [`EXIT_TIMEOUT`] until the worker's process has exited.
    fn describe_failure(&self) -> PathFailure {
        let how =
            self.process.wait(EXIT_TIMEOUT).map_or_else(|| "is gone".to_owned(), |e| e.to_string());
        let what = format!(
            "engine {}, process {}, {how}: blocks of its share that it had not reported are \
             counted as dropped \
             ({})",
            self.number,
            self.process.pid(),
            aggregate::WORKER_ENDED_REASON
        );
        PathFailure {
            node: format!("engine {}", self.number),
            cause: FailureCause::OtherProcess { what, errno: None, quiet: false },
        }
    }
}
