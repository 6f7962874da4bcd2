//! The worker processes of a request: started, released, watched, asked for their counts.

use super::child::WORD;
use super::message::{Command, Counts, Message, Wanted};
use super::output::Output;
use super::panel::{Answer, Counted, Panel};
use super::{WorkerRun, processors};
use crate::error::OpenError;
use crate::options::{Notices, Options};
use crate::prepared::Prepared;
use engine::joint::{self, joint};
use engine::run::{Outcome, Progress, Until, Watch};
use pipeline::Graph;
use pipeline::plan::Plan;
use runtime::failure::{Cause, PathFailure};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::helper::HelperProcess;

/// The time between two questions for counts, in ns: of a killed worker no more is known.
const COUNT_NS: u64 = 200_000_000;
/// The time that a process has to be gone after it closed everything.
const GONE: Duration = Duration::from_secs(60);

/// A worker, seen from the process that started it.
#[derive(Debug)]
struct Worker {
    number: u32,
    /// Its request.
    text: String,
    processor: usize,
    process: HelperProcess,
    orders: UnixStream,
    /// Its last counts, and the request that it ran when it ended.
    counts: Option<Counts>,
    line: Option<String>,
    /// True if nothing had come to its sources when all engines had been built.
    quiet: bool,
    /// True while it owes an answer to a question for counts.
    asked: bool,
    gone: bool,
}

/// All workers of a request.
#[derive(Debug)]
pub(crate) struct Crew {
    workers: Vec<Worker>,
    /// Messages, with the place of the worker; none: it has ended.
    inbox: mpsc::Receiver<(usize, Option<Message>)>,
    sender: mpsc::Sender<(usize, Option<Message>)>,
    /// Notified with each message.
    arrived: Arc<EventFd>,
    /// The side that answers for the path.
    panel: Option<Arc<Panel>>,
    answers: Option<mpsc::Sender<Answer>>,
    /// The wishes under which a changed request is planned again.
    options: Options,
}

/// The end of all workers.
pub(crate) struct Ended {
    pub(crate) plan: Plan,
    pub(crate) outcome: Outcome,
    pub(crate) workers: Vec<WorkerRun>,
}

impl Crew {
    /// Starts all workers; returns when all are ready. The first one comes first and alone, so that
    /// what cannot be is said once.
    pub(super) fn start(
        requests: &[String],
        options: &Options,
        program: &Path,
    ) -> Result<(Self, Output), OpenError> {
        let (sender, inbox) = mpsc::channel();
        let mut crew = Self {
            workers: Vec::new(),
            inbox,
            sender,
            arrived: Arc::new(EventFd::new()?),
            panel: None,
            answers: None,
            options: options.clone(),
        };
        let mut outputs = Vec::new();
        let of = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let processors = processors();
        for (number, text) in (1..).zip(requests) {
            let at = number as usize - 1;
            let wanted = Wanted {
                text: text.clone(),
                number,
                of,
                processor: processors.get(at % processors.len().max(1)).copied().unwrap_or(0),
                timed: options.timed,
                embedded: options.embedded,
                history: options.history,
            };
            outputs.push(crew.add(&wanted, program)?);
            if number == 1 {
                crew.are_ready(1)?;
            }
        }
        crew.are_ready(requests.len().saturating_sub(1))?;
        let output = Output::begin(outputs);
        let output = output.map_err(|error| OpenError::of_worker("clone", &error))?;
        Ok((crew, output))
    }

    /// Starts a worker; returns the reading end of its standard output.
    fn add(&mut self, wanted: &Wanted, program: &Path) -> Result<OwnedFd, OpenError> {
        let pair = UnixStream::pair();
        let (near, far) = pair.map_err(|error| OpenError::of_worker("socketpair", &error))?;
        let (printed, prints) = sys::descriptor::pair()?;
        // In a group of its own: keys typed at the terminal are for the process that started it.
        let mut command = Process::new(program);
        command.arg(WORD).process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(far))).stdout(Stdio::from(prints));
        let process = HelperProcess::spawn_command(command)?;
        let mut text = serde_json::to_vec(wanted).unwrap_or_default();
        text.push(b'\n');
        let reader = near.try_clone().map_err(|error| OpenError::of_worker("dup", &error))?;
        // An early end is noticed where it is waited for.
        let _ = (&near).write_all(&text);
        let (at, to) = (self.workers.len(), self.sender.clone());
        let arrived = Arc::clone(&self.arrived);
        let receive = move || {
            for text in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str::<Message>(&text) else { break };
                // The receiver is gone only when the run is over.
                let _ = to.send((at, Some(message)));
                arrived.notify();
            }
            let _ = to.send((at, None));
            arrived.notify();
        };
        let thread = std::thread::Builder::new().name(format!("engine {}", wanted.number));
        thread.spawn(receive).map_err(|error| OpenError::of_worker("clone", &error))?;
        self.workers.push(Worker {
            number: wanted.number,
            text: wanted.text.clone(),
            processor: wanted.processor,
            process,
            orders: near,
            counts: None,
            line: None,
            quiet: false,
            asked: false,
            gone: false,
        });
        Ok(printed)
    }

    /// Waits until so many more workers are ready. One that is not has said why.
    fn are_ready(&self, more: usize) -> Result<(), OpenError> {
        for _ in 0..more {
            let Ok((at, message)) = self.inbox.recv() else {
                return Err(OpenError::Worker { number: 0, ended: None });
            };
            if !matches!(message, Some(Message::Ready)) {
                let worker = &self.workers[at];
                let ended = worker.process.wait(GONE);
                return Err(OpenError::Worker { number: worker.number, ended });
            }
        }
        Ok(())
    }

    /// Runs all workers to their end, and takes what they print with it.
    pub(crate) fn run(
        mut self,
        plan: Plan,
        until: Until<'_>,
        output: Output,
        notices: &Notices,
    ) -> Result<Ended, OpenError> {
        self.order(&Command::Go);
        let begin = sys::clock::monotonic();
        let first = self.workers.first().map(|worker| worker.text.clone()).unwrap_or_default();
        self.wait((begin, until.elapsed), until.readable, (&plan.graph, until.watch));
        let unread = output.end();
        let plan = match self.changed_to(&first) {
            Some(request) => Prepared::worker(request, &self.options)?.plan,
            None => plan,
        };
        let (mut outcome, workers) = self.outcome(&plan.graph);
        outcome.elapsed_ns = sys::clock::monotonic().saturating_sub(begin);
        if let Some(kind) = unread.filter(|kind| *kind != ErrorKind::BrokenPipe) {
            notices.warn(&format!("cannot write standard output: {kind}"));
        }
        Ok(Ended { plan, outcome, workers })
    }

    /// Sends all a command.
    fn order(&mut self, command: &Command) {
        self.workers.iter_mut().for_each(|worker| worker.order(command));
    }

    /// Waits until all have ended; ends them when `stop` can be read, or the time is over.
    fn wait(
        &mut self,
        (begin, time): (u64, Option<u64>),
        stop: Option<BorrowedFd<'_>>,
        (graph, watch): (&Graph, Option<Watch<'_>>),
    ) {
        let end = time.map(|ns| begin.saturating_add(ns));
        let mut counts = begin;
        let mut watches = watch.map(|watch| begin.saturating_add(watch.every_ns));
        let mut early = false;
        while self.workers.iter().any(|worker| !worker.gone) {
            let now = sys::clock::monotonic();
            let next = [Some(counts), end.filter(|_| !early), watches].into_iter().flatten().min();
            let limit = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
            let mut waits = vec![self.arrived.as_fd()];
            waits.extend(stop.filter(|_| !early));
            let ready = sys::poll::readable(&waits, limit);
            let now = sys::clock::monotonic();
            self.receive();
            if !early && (ready.get(1) == Some(&true) || end.is_some_and(|end| now >= end)) {
                early = true;
                self.order(&Command::Stop);
            }
            if now >= counts {
                counts = now.saturating_add(COUNT_NS);
                self.count();
            }
            if let (Some(at), Some(watch)) = (watches, watch)
                && now >= at
            {
                watches = Some(now.saturating_add(watch.every_ns));
                let sources = self.outcome(graph).0.ledger.sources;
                let elapsed_ns = now.saturating_sub(begin);
                let held_up = Vec::new();
                (watch.tell)(&Progress { elapsed_ns, sources, stopped: early, held_up });
            }
        }
    }

    /// Asks workers that owe no answer for their counts.
    fn count(&mut self) {
        let idle = |worker: &&mut Worker| !worker.asked && worker.line.is_none();
        for worker in self.workers.iter_mut().filter(idle) {
            worker.asked = true;
            worker.order(&Command::Count);
        }
    }

    /// Takes all messages that have come.
    fn receive(&mut self) {
        self.arrived.clear();
        while let Ok((at, message)) = self.inbox.try_recv() {
            let worker = &mut self.workers[at];
            match message {
                Some(Message::Ready) => {}
                Some(Message::Began { quiet }) => worker.quiet = quiet,
                Some(Message::Changed(answer)) => {
                    // The side that asked may not wait any more.
                    let _ = self.answers.as_ref().map(|to| to.send((at, answer)));
                }
                Some(Message::Counted(counts)) => {
                    worker.asked = false;
                    // Its last counts are more.
                    if worker.line.is_none() {
                        worker.counts = Some(*counts);
                    }
                }
                Some(Message::Ended(counts, line)) => {
                    (worker.counts, worker.line) = (Some(*counts), Some(line));
                }
                None => worker.gone = true,
            }
        }
        if let Some(panel) = &self.panel {
            panel.update(self.workers.iter().map(Worker::counted).collect());
        }
    }

    /// The side that answers for the path, once it is made.
    pub(crate) fn panel(&self) -> Option<Arc<Panel>> {
        self.panel.clone()
    }

    /// Makes the side that answers for the path.
    pub(super) fn panel_of(
        &mut self,
        requests: &[String],
        graph: &Graph,
        options: &Options,
    ) -> Result<Arc<Panel>, OpenError> {
        let orders = self.workers.iter().map(|worker| worker.orders.try_clone());
        let orders = orders.collect::<std::io::Result<_>>();
        let orders = orders.map_err(|error| OpenError::of_worker("dup", &error))?;
        let (answers, comes) = mpsc::channel();
        self.answers = Some(answers);
        let process =
            |worker: &Worker| (format!("engine{}", worker.number), worker.process.number());
        let processes = self.workers.iter().map(process).collect();
        let panel = Panel::new(orders, comes, (requests, graph), (processes, options.clone()));
        Ok(Arc::clone(self.panel.insert(Arc::new(panel))))
    }

    /// The request that the first worker ran last, if it is another than this.
    fn changed_to(&self, first: &str) -> Option<&str> {
        let line = self.workers.first()?.line.as_deref()?;
        (line != first).then_some(line)
    }

    /// The outcome of all, and of each by itself, as far as it is known.
    fn outcome(&self, graph: &Graph) -> (Outcome, Vec<WorkerRun>) {
        let (mut all, mut runs, mut died) = (Vec::new(), Vec::new(), Vec::new());
        for worker in &self.workers {
            let counted = worker.counted();
            let killed = counted.killed;
            let mut outcome = counted.outcome();
            all.push(counted.engine());
            if killed {
                joint::settle(&mut outcome);
                died.push(worker.died());
            }
            let (number, process) = (worker.number, worker.process.number());
            runs.push(WorkerRun { number, process, processor: worker.processor, outcome });
        }
        let mut outcome = joint(graph, all);
        outcome.failures.extend(died);
        (outcome, runs)
    }
}

impl Worker {
    /// Its last counts, and how far they can be relied on.
    fn counted(&self) -> Counted {
        Counted {
            counts: self.counts.clone(),
            killed: self.gone && self.line.is_none(),
            quiet: self.quiet,
        }
    }

    /// Sends it a command; one that has ended takes none.
    fn order(&mut self, command: &Command) {
        let mut text = serde_json::to_vec(command).unwrap_or_default();
        text.push(b'\n');
        let _ = self.orders.write_all(&text);
    }

    /// The failure of a worker that ended before it had sent everything.
    fn died(&self) -> PathFailure {
        let how = self.process.wait(GONE).map_or_else(|| "is gone".to_owned(), |e| e.to_string());
        let what = format!(
            "engine {}, process {}, {how}: of its share what it had not told is counted as dropped \
             ({})",
            self.number,
            self.process.number(),
            joint::ENGINE_ENDED
        );
        PathFailure {
            node: format!("engine {}", self.number),
            cause: Cause::Elsewhere { what, errno: None, quiet: false },
        }
    }
}
