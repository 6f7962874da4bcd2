//! Records of runs: begun beside a run, and repeated.
//!
//! A run that is repeated writes its files into a folder of its own, sends nothing and starts no
//! program: its record may come from an untrusted peer. At its end it is compared with the run that
//! was recorded, line by line of the ledger.

use crate::error::OpenError;
use crate::hosts::Hosts;
use crate::options::{Notices, Options};
use crate::prepared::{self, Prepared};
use crate::ready::{Ready, Results};
use engine::build::Extras;
use engine::catalogue::Repeated;
use engine::digest::{differences, digest};
use engine::record::{Head, Record, Recording, Replay, Tape, Whole, layout, write};
use pipeline::Graph;
use pipeline::explain;
use pipeline::plan::Plan;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Begins the record of a run, if one is asked for.
pub(crate) fn begin(
    prepared: &Prepared,
    options: &Options,
) -> Result<Option<Arc<Recording>>, OpenError> {
    let Some(path) = &options.record else { return Ok(None) };
    let plan = &prepared.plan;
    if !plan.copied.is_empty() {
        let why = "a run with copies of filters cannot be recorded: leave `--parallel` out";
        return Err(OpenError::Unfit(why.to_owned()));
    }
    let adapts = plan.adapts();
    if adapts.copies || adapts.moves {
        options.notices.note(
            "`--adapt` does nothing while the path is recorded: it makes copies and moves filters \
             into the kernel, and a record has neither",
        );
    }
    let head = Head::new(&prepared.text, plan, &prepared.machine, options.count);
    let most = options.record_bytes.unwrap_or(write::BYTES);
    let recording = Recording::create(path, &head, most, &options.steps);
    recording.map(Some).map_err(OpenError::Unrecorded)
}

/// A recorded run that can be repeated.
#[derive(Debug)]
pub struct Recorded {
    prepared: Prepared,
    record: Record,
}

/// A recorded run that is about to be repeated.
#[derive(Debug)]
pub struct Repetition {
    /// The run.
    pub ready: Ready,
    /// The folder for its files, if it writes any.
    pub into: Option<PathBuf>,
    /// The completeness of the record.
    pub whole: Whole,
}

impl Recorded {
    /// Opens a record and plans its request as then; a program that would run it in other places
    /// cannot repeat it.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let record = Record::open(path)?;
        let (text, machine) = (record.head.request.clone(), record.head.machine.clone());
        let graph = prepared::graph(&text, &Repeated, &Options::default())?;
        let plan = prepared::plan(&text, graph, &Repeated, &machine)?;
        if layout(&plan) != record.head.layout {
            let (target, program) = (record.target(), &record.head.program);
            return Err(OpenError::Unrepeatable(format!(
                "{target} was recorded by streamline {program}, which runs this line in other \
                 places than this version does; `replay {target} | …` runs a line over the frames \
                 in it"
            )));
        }
        let (hosts, workers) = (Hosts::alone(), Vec::new());
        Ok(Self { prepared: Prepared { text, plan, machine, hosts, workers }, record })
    }

    /// Returns true if the path was changed while it ran.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        !self.record.changes.is_empty()
    }

    /// The request and its blocks, to be built with [`Prepared::build_with`].
    #[must_use]
    pub fn into_parts(self) -> (Prepared, Tape, Option<u64>) {
        let count = self.record.head.count;
        (self.prepared, Tape::Play(Replay::new(self.record)), count)
    }

    /// Builds it, to be repeated with its files in `into`, or in a new folder beside the record.
    pub fn repeat(
        self,
        path: &Path,
        into: Option<PathBuf>,
        options: &Options,
    ) -> Result<Repetition, OpenError> {
        let graphs = graphs(&self.record, &self.prepared.plan);
        announce(&self.record, &graphs, &options.notices);
        let whole = self.record.whole.clone();
        let into = match into {
            Some(into) => Some(into),
            None => folder(path, &graphs)?,
        };
        let (prepared, tape, count) = self.into_parts();
        let options = Options { count, ..options.clone() };
        let extras = Extras { tape, into: into.clone(), ..Extras::default() };
        Ok(Repetition { ready: prepared.build_with(&options, extras)?, into, whole })
    }
}

/// Differences between a recorded run and its repetition: what was, and what is now.
pub type Differences = Vec<(Option<String>, Option<String>)>;

/// Compares a repetition with its record; none where either is not whole.
#[must_use]
pub fn compared(whole: &Whole, results: &Results) -> Option<Differences> {
    match whole {
        Whole::Whole { told: before } if !results.outcome.stopped => {
            Some(differences(before, &digest(&results.outcome)))
        }
        _ => None,
    }
}

/// The graphs of all requests that a run had, one after the other.
fn graphs(record: &Record, plan: &Plan) -> Vec<Graph> {
    let mut text = record.head.request.clone();
    let mut graphs = vec![plan.graph.clone()];
    for change in &record.changes {
        // One that does not fit is told when it is made.
        let Ok(edited) = change.edit.apply(&text) else { break };
        graphs.push(pipeline::read(&edited.text, &Repeated).0);
        text = edited.text;
    }
    graphs
}

/// Gives notice of missing parts of a record, and of effects that are not repeated.
fn announce(record: &Record, graphs: &[Graph], notices: &Notices) {
    let target = record.target();
    match &record.whole {
        Whole::Whole { .. } => {}
        Whole::Full { beyond } => notices.warn(&format!(
            "{target} was full before the run ended: {} blocks with {} bytes that came later are \
             not in it",
            beyond.blocks, beyond.bytes
        )),
        Whole::Cut { at } => notices
            .warn(&format!("{target} ends at byte {at}, before its end: what is there is played")),
        Whole::Changed => notices.warn(&format!(
            "{target} is not as it was written (its digest is another): what can be is played"
        )),
    }
    for change in &record.changes {
        notices.note(&format!("it was changed while it ran, and is again: {}", change.edit));
    }
    let used = || graphs.iter().flat_map(Graph::ids).filter_map(|(_, node)| node.filter());
    if used().any(|used| used.endpoint.process) {
        notices.note("programs are not run again: what they wrote is in the record");
    }
    let sends = |name: &str| used().any(|used| used.description.name == name);
    if graphs.iter().any(|graph| {
        graph.ids().any(|(id, node)| {
            ["tx", "redirect"].contains(&node.name()) && graph.outputs(id).next().is_none()
        })
    }) {
        notices.note("nothing is sent: `tx` and `redirect` only count");
    }
    let zone = engine::record::zone();
    if sends("weblog") && record.head.zone != zone {
        let then = &record.head.zone;
        notices.warn(&format!(
            "`weblog` wrote times of the zone {then:?}, and this is {zone:?}: begin the command \
             with `TZ={then}`"
        ));
    }
}

/// A new folder for the files of a repeated run; none if it writes none.
fn folder(path: &Path, graphs: &[Graph]) -> Result<Option<PathBuf>, OpenError> {
    let mut used = graphs.iter().flat_map(Graph::ids).filter_map(|(_, node)| node.filter());
    let writes = used.any(|used| {
        let sink = used.is_sink();
        let paths = used.description.parameters.iter().filter(|known| explain::is_path(known));
        let named = |name: &str| used.arguments.text(name).is_some_and(|text| text != "-");
        sink && paths.map(|known| known.name).any(named)
    });
    if !writes {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for number in 1..1000 {
        let into = path.with_file_name(match number {
            1 => format!("{name}.replay"),
            _ => format!("{name}.replay.{number}"),
        });
        if !into.exists() {
            return Ok(Some(into));
        }
    }
    let why = format!("too many folders {name}.replay are there: name one by --into");
    Err(OpenError::Unrepeatable(why))
}
