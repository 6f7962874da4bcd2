//! All workers of a path as one, for `top` and `set`.
//!
//! A change is made in one worker after the other. They run the same request, so what one does the
//! next can do too; if one does not all the same, those before it go back to the request that they
//! had.

use super::message::{Command, Counts};
use crate::options::Options;
use crate::prepared::Prepared;
use engine::joint::{Engine, joint, shares_out};
use engine::run::Outcome;
use member::worker::Joint;
use pipeline::Graph;
use pipeline::edit::Edit;
use pipeline::plan::Plan;
use runtime::latency::Latency;
use runtime::ledger::Ledger;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The place of a worker, and its answer to a change: a sentence of the ledger and the request that
/// runs; or why it was not made.
pub(super) type Answer = (usize, Result<(String, String), String>);

/// The time that a worker has to answer: longer than it waits itself.
const ANSWERED: Duration = Duration::from_secs(20);

/// The last counts of a worker, and how far they can be relied on.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    pub(super) counts: Option<Counts>,
    pub(super) killed: bool,
    pub(super) quiet: bool,
}

impl Counted {
    /// Its outcome, as far as it is known.
    pub(super) fn outcome(&self) -> Outcome {
        self.counts.as_ref().map(Counts::outcome).unwrap_or_default()
    }

    /// Its part in the ledger of all.
    pub(super) fn engine(&self) -> Engine {
        Engine { outcome: self.outcome(), killed: self.killed, quiet: self.quiet }
    }
}

/// All workers of a path.
#[derive(Debug)]
pub(crate) struct Panel {
    /// The last counts of each.
    counted: Mutex<Vec<Counted>>,
    running: Mutex<Running>,
    /// The name of each, and its process.
    processes: Vec<(String, u32)>,
    options: Options,
}

/// The requests that run; one change at a time.
#[derive(Debug)]
struct Running {
    orders: Vec<UnixStream>,
    answers: Receiver<Answer>,
    /// The request of each, and the graph of the first.
    lines: Vec<String>,
    graph: Graph,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Panel {
    pub(super) fn new(
        orders: Vec<UnixStream>,
        answers: Receiver<Answer>,
        (lines, graph): (&[String], &Graph),
        (processes, options): (Vec<(String, u32)>, Options),
    ) -> Self {
        let (lines, graph) = (lines.to_vec(), graph.clone());
        let running = Mutex::new(Running { orders, answers, lines, graph });
        Self { counted: Mutex::default(), running, processes, options }
    }

    /// Takes the last counts of all.
    pub(super) fn update(&self, counted: Vec<Counted>) {
        *locked(&self.counted) = counted;
    }
}

impl Running {
    /// Has a worker run this request; returns its sentence.
    fn change(&mut self, at: usize, line: &str) -> Result<String, String> {
        let mut text = serde_json::to_vec(&Command::Change(line.to_owned())).unwrap_or_default();
        text.push(b'\n');
        let gone = |_| format!("engine {} has ended", at + 1);
        self.orders[at].write_all(&text).map_err(gone)?;
        loop {
            let answer = self.answers.recv_timeout(ANSWERED);
            let (from, answer) =
                answer.map_err(|_| format!("engine {} does not answer", at + 1))?;
            // Another one may have been late.
            if from == at {
                return answer.map(|(said, _)| said);
            }
        }
    }
}

impl Panel {
    /// The outcome of all, as far as it is known.
    pub(crate) fn outcome(&self) -> Outcome {
        let engines = locked(&self.counted).iter().map(Counted::engine).collect();
        joint(&locked(&self.running).graph, engines)
    }
}

impl Joint for Panel {
    fn ledger(&self) -> Ledger {
        self.outcome().ledger
    }

    fn latency(&self) -> Option<Latency> {
        self.outcome().latency
    }

    fn processes(&self) -> Vec<(String, u32)> {
        self.processes.clone()
    }

    fn change(&self, edit: &Edit) -> Result<(String, Plan), String> {
        let mut running = locked(&self.running);
        let before = running.lines.clone();
        let new = before.iter().map(|line| edit.apply(line).map(|edited| edited.text));
        let new = new.collect::<Result<Vec<String>, _>>().map_err(|why| why.to_string())?;
        let first = new.first().map_or("", String::as_str);
        let planned = Prepared::worker(first, &self.options);
        let plan = planned.map_err(|_| "the new line cannot be planned".to_owned())?.plan;
        if shares_out(&running.graph) && !shares_out(&plan.graph) {
            let what = "each process sees all blocks up to `shard`: what is to be counted once \
                        goes behind it";
            return Err(what.to_owned());
        }
        let mut said = Vec::new();
        for (at, line) in new.iter().enumerate() {
            match running.change(at, line) {
                Ok(told) => said.push(format!("engine {}: {told}", at + 1)),
                Err(why) => {
                    for (back, line) in before.iter().enumerate().take(at) {
                        // One that does not go back says so in `top`.
                        let _ = running.change(back, line);
                    }
                    return Err(why);
                }
            }
        }
        running.graph = plan.graph.clone();
        running.lines = new;
        Ok((said.join("; "), plan))
    }
}
