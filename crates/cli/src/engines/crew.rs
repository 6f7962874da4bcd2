//! The processes of a line: started, told to run, watched, asked what they have counted.

use super::child::WORD;
use super::output::Output;
use super::panel::{Answer, Counted, Panel};
use super::told::{Order, Said, Told, Wanted};
use super::{processors, refused, refused_io};
use crate::arguments::RunArguments;
use crate::progress::Teller;
use crate::report::Part;
use crate::status::Status;
use crate::terminal;
use engine::joint::{self, joint};
use engine::run::{Outcome, Progress};
use pipeline::Graph;
use runtime::failure::{Cause, PathFailure};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::group::Ended;
use sys::kept::Kept;

/// How often engines are asked what they have counted, in ns: of one that is killed no more is
/// known.
const COUNT_NS: u64 = 200_000_000;
/// How long a process that has closed everything may take to be gone.
const GONE: Duration = Duration::from_secs(60);

/// One engine, as whoever started it sees it.
#[derive(Debug)]
struct Engine {
    number: u32,
    processor: usize,
    process: Kept,
    orders: UnixStream,
    /// What it told last, and the line that it ran when it ended.
    told: Option<Told>,
    line: Option<String>,
    /// True if nothing had come to its sources when all engines had been built.
    quiet: bool,
    /// Whether it was asked what it has counted, and has not answered.
    asked: bool,
    gone: bool,
}

/// All engines of a line.
#[derive(Debug)]
pub(super) struct Crew {
    engines: Vec<Engine>,
    /// What they say: which of them, and what; nothing: it has ended.
    heard: mpsc::Receiver<(usize, Option<Said>)>,
    says: mpsc::Sender<(usize, Option<Said>)>,
    /// Is told with each of these.
    rung: Arc<EventFd>,
    /// For whoever looks at the path or changes it from outside.
    panel: Option<Arc<Panel>>,
    answers: Option<mpsc::Sender<Answer>>,
}

impl Crew {
    /// Starts all engines; answers when all are ready. The first one comes first and alone, so that
    /// what cannot be is said once.
    pub(super) fn start(lines: &[String], given: &RunArguments) -> Result<(Self, Output), Status> {
        let rung = Arc::new(EventFd::new().map_err(|error| refused(&error))?);
        let (says, heard) = mpsc::channel();
        let mut crew = Self { engines: Vec::new(), heard, says, rung, panel: None, answers: None };
        let mut outputs = Vec::new();
        let of = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let processors = processors();
        for (number, text) in (1..).zip(lines) {
            let at = number as usize - 1;
            let wanted = Wanted {
                text: text.clone(),
                number,
                of,
                processor: processors.get(at % processors.len().max(1)).copied().unwrap_or(0),
                timed: given.is_timed(),
                embedded: given.embedded,
                quiet: given.quiet,
                history: given.history,
            };
            outputs.push(crew.add(&wanted)?);
            if number == 1 {
                crew.are_ready(1)?;
            }
        }
        crew.are_ready(lines.len().saturating_sub(1))?;
        let output = Output::begin(outputs).map_err(|error| refused_io("clone", &error))?;
        Ok((crew, output))
    }

    /// Starts an engine; answers where it prints.
    fn add(&mut self, wanted: &Wanted) -> Result<OwnedFd, Status> {
        let (near, far) = UnixStream::pair().map_err(|error| refused_io("socketpair", &error))?;
        let (printed, prints) = sys::descriptor::pair().map_err(|error| refused(&error))?;
        // Itself, even where the file has been replaced meanwhile. In a group of its own: what is
        // typed at the terminal is for whoever started it.
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORD).process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(far))).stdout(Stdio::from(prints));
        let process = Kept::of(command).map_err(|error| refused(&error))?;
        let mut text = serde_json::to_vec(wanted).unwrap_or_default();
        text.push(b'\n');
        let reader = near.try_clone().map_err(|error| refused_io("dup", &error))?;
        // Who has ended already is noticed where it is waited for.
        let _ = (&near).write_all(&text);
        let (at, says, rung) = (self.engines.len(), self.says.clone(), Arc::clone(&self.rung));
        let hear = move || {
            for text in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(said) = serde_json::from_str::<Said>(&text) else { break };
                // Nobody listens any more only when the run is over.
                let _ = says.send((at, Some(said)));
                rung.notify();
            }
            let _ = says.send((at, None));
            rung.notify();
        };
        let thread = std::thread::Builder::new().name(format!("engine {}", wanted.number));
        thread.spawn(hear).map_err(|error| refused_io("clone", &error))?;
        self.engines.push(Engine {
            number: wanted.number,
            processor: wanted.processor,
            process,
            orders: near,
            told: None,
            line: None,
            quiet: false,
            asked: false,
            gone: false,
        });
        Ok(printed)
    }

    /// Waits until so many more engines are ready. One that is not has said why.
    fn are_ready(&self, more: usize) -> Result<(), Status> {
        for _ in 0..more {
            let Ok((at, said)) = self.heard.recv() else { return Err(Status::Failed) };
            if let Some(Said::Ready) = said {
                continue;
            }
            let engine = &self.engines[at];
            let ended = engine.process.wait(GONE);
            if let Some(Ended::Signal(_)) = ended {
                let (number, how) =
                    (engine.number, ended.map_or_else(String::new, |e| e.to_string()));
                terminal::complain(&format!("engine {number} {how} before it was ready"));
            }
            return Err(match ended {
                Some(Ended::Status(2)) => Status::Usage,
                Some(Ended::Status(3)) => Status::Nothing,
                _ => Status::Failed,
            });
        }
        Ok(())
    }

    /// Gives all an order.
    pub(super) fn order(&mut self, order: &Order) {
        self.engines.iter_mut().for_each(|engine| engine.order(order));
    }

    /// Waits until all have ended; ends them when somebody wants that, or the time is over.
    pub(super) fn wait(
        &mut self,
        (begin, time): (u64, Option<u64>),
        stop: BorrowedFd<'_>,
        (graph, teller): (&Graph, Option<&Teller>),
    ) {
        let end = time.map(|ns| begin.saturating_add(ns));
        let mut counts = begin;
        let mut tells = teller.map(|teller| begin.saturating_add(teller.every_ns()));
        let mut early = false;
        while self.engines.iter().any(|engine| !engine.gone) {
            let now = sys::clock::monotonic();
            let next = [Some(counts), end.filter(|_| !early), tells].into_iter().flatten().min();
            let limit = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
            let mut waits = vec![self.rung.as_fd()];
            waits.extend((!early).then_some(stop));
            let ready = sys::poll::readable(&waits, limit);
            let now = sys::clock::monotonic();
            self.hear();
            if !early && (ready.get(1) == Some(&true) || end.is_some_and(|end| now >= end)) {
                early = true;
                self.order(&Order::Stop);
            }
            if now >= counts {
                counts = now.saturating_add(COUNT_NS);
                self.count();
            }
            if let (Some(at), Some(teller)) = (tells, teller)
                && now >= at
            {
                tells = Some(now.saturating_add(teller.every_ns()));
                let sources = self.outcome(graph).0.ledger.sources;
                let elapsed_ns = now.saturating_sub(begin);
                let held_up = Vec::new();
                teller.tell(&Progress { elapsed_ns, sources, stopped: early, held_up });
            }
        }
    }

    /// Asks those who have answered what they have counted.
    fn count(&mut self) {
        for engine in
            self.engines.iter_mut().filter(|engine| !engine.asked && engine.line.is_none())
        {
            engine.asked = true;
            engine.order(&Order::Count);
        }
    }

    /// Takes what engines have said.
    fn hear(&mut self) {
        self.rung.clear();
        while let Ok((at, said)) = self.heard.try_recv() {
            let engine = &mut self.engines[at];
            match said {
                Some(Said::Ready) => {}
                Some(Said::Began { quiet }) => engine.quiet = quiet,
                Some(Said::Changed(answer)) => {
                    // Who asked may not wait any more.
                    let _ = self.answers.as_ref().map(|to| to.send((at, answer)));
                }
                Some(Said::Counted(told)) => {
                    engine.asked = false;
                    // What it ended with is more.
                    if engine.line.is_none() {
                        engine.told = Some(*told);
                    }
                }
                Some(Said::Ended(told, line)) => {
                    (engine.told, engine.line) = (Some(*told), Some(line));
                }
                None => engine.gone = true,
            }
        }
        if let Some(panel) = &self.panel {
            panel.tell(self.engines.iter().map(Engine::counted).collect());
        }
    }

    /// How whoever answers for the path reaches all engines.
    pub(super) fn panel(
        &mut self,
        lines: &[String],
        graph: &Graph,
        embedded: bool,
    ) -> Result<Arc<Panel>, Status> {
        let orders = self.engines.iter().map(|engine| engine.orders.try_clone());
        let orders = orders.collect::<std::io::Result<_>>();
        let orders = orders.map_err(|error| refused_io("dup", &error))?;
        let (answers, comes) = mpsc::channel();
        self.answers = Some(answers);
        let process =
            |engine: &Engine| (format!("engine{}", engine.number), engine.process.number());
        let processes = self.engines.iter().map(process).collect();
        let panel = Panel::new(orders, comes, (lines, graph), (processes, embedded));
        Ok(Arc::clone(self.panel.insert(Arc::new(panel))))
    }

    /// The line that the first engine ran last, if it is another than this.
    pub(super) fn changed_to(&self, first: &str) -> Option<&str> {
        let line = self.engines.first()?.line.as_deref()?;
        (line != first).then_some(line)
    }

    /// What all came to, and each by itself, as far as it is known.
    pub(super) fn outcome(&self, graph: &Graph) -> (Outcome, Vec<Part>) {
        let (mut all, mut parts, mut died) = (Vec::new(), Vec::new(), Vec::new());
        for engine in &self.engines {
            let counted = engine.counted();
            let killed = counted.killed;
            let mut outcome = counted.outcome();
            all.push(counted.engine());
            if killed {
                joint::settle(&mut outcome);
                died.push(engine.died());
            }
            let (number, process) = (engine.number, engine.process.number());
            parts.push(Part { number, process, processor: engine.processor, outcome });
        }
        let mut outcome = joint(graph, all);
        outcome.failures.extend(died);
        (outcome, parts)
    }
}

impl Engine {
    /// What it has told last.
    fn counted(&self) -> Counted {
        Counted {
            told: self.told.clone(),
            killed: self.gone && self.line.is_none(),
            quiet: self.quiet,
        }
    }

    /// Gives an order; who has ended takes none.
    fn order(&mut self, order: &Order) {
        let mut text = serde_json::to_vec(order).unwrap_or_default();
        text.push(b'\n');
        let _ = self.orders.write_all(&text);
    }

    /// How it ended before it had told everything.
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
