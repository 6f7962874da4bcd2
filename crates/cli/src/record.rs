//! Records: `run --record=FILE` and `run --replay FILE`.
//!
//! A run that is repeated writes its files into a folder of its own, sends nothing and starts no
//! program, whoever made the record: it may come from a stranger. At its end it is compared with
//! the run that was recorded, line by line of the ledger.

use crate::arguments::RunArguments;
use crate::run::{self, Gone};
use crate::shared::hosts::Hosts;
use crate::shared::member::Starter;
use crate::status::Status;
use crate::{line, terminal};
use engine::build::Extras;
use engine::catalogue::Repeated;
use engine::digest::{differences, digest};
use engine::record::{Head, Record, Recording, Replay, Tape, Whole, layout, write};
use engine::run::Outcome;
use pipeline::Graph;
use pipeline::explain;
use pipeline::plan::{Machine, Plan};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::steps::Steps;

/// The machine of a run: where it is recorded, nothing runs in the kernel.
pub(crate) fn machine(machine: Machine, given: &RunArguments) -> Machine {
    if given.record.is_some() { Head::outside_kernel(machine) } else { machine }
}

/// Begins the record of a run, if one is asked for.
pub(crate) fn begin(
    text: &str,
    plan: &Plan,
    machine: &Machine,
    given: &RunArguments,
    steps: &Steps,
) -> Result<Option<Arc<Recording>>, Status> {
    let Some(path) = &given.record else { return Ok(None) };
    if !plan.copied.is_empty() {
        terminal::complain(
            "a run with copies of filters cannot be recorded: leave `--parallel` out",
        );
        return Err(Status::Usage);
    }
    let adapts = plan.adapts();
    if (adapts.copies || adapts.moves) && !given.quiet {
        terminal::note(
            "`--adapt` does nothing while the path is recorded: it makes copies and moves filters \
             into the kernel, and a record has neither",
        );
    }
    let head = Head::new(text, plan, machine, given.count);
    let most = given.record_bytes.unwrap_or(write::BYTES);
    Recording::create(path, &head, most, steps).map(Some).map_err(|failure| {
        terminal::complain(&failure.to_string());
        Status::Failed
    })
}

/// Ends a record, and tells what is not in it.
pub(crate) fn end(recording: &Recording, outcome: &Outcome, given: &RunArguments) {
    let summary = recording.finish(&digest(outcome));
    let target = &summary.target;
    if let Some(why) = summary.failure {
        terminal::warn(&format!("the record {target} is not whole: {why}"));
        return;
    }
    let beyond = summary.beyond;
    if beyond.since.is_some() {
        let (blocks, bytes) = (beyond.blocks, beyond.bytes);
        terminal::warn(&format!(
            "the record {target} was full at {} bytes: {blocks} blocks with {bytes} bytes came \
             after that (--record-bytes sets how much it may hold)",
            summary.bytes_max
        ));
    }
    if !given.quiet {
        terminal::note(&format!(
            "recorded into {target} ({} bytes): `streamline run --replay {target}` repeats it",
            summary.bytes
        ));
    }
}

/// Opens a record, and tells why it cannot be.
pub(crate) fn open(path: &Path) -> Result<Record, Status> {
    Record::open(path).map_err(|broken| {
        terminal::complain(&broken.to_string());
        if broken.is_missing() { Status::Nothing } else { Status::Failed }
    })
}

/// The plan of a record: the same as then, or it cannot be played.
pub(crate) fn planned(record: &Record) -> Result<Plan, Status> {
    let text = &record.head.request;
    let plan = line::planned(text, line::graph_of(text, &Repeated)?, &record.head.machine)?;
    if layout(&plan) == record.head.layout {
        return Ok(plan);
    }
    let (target, program) = (record.target(), &record.head.program);
    terminal::complain(&format!(
        "{target} was recorded by streamline {program}, which runs this line in other places than \
         this version does; `replay {target} | …` runs a line over the frames in it"
    ));
    Err(Status::Failed)
}

/// Repeats the run of a record, and tells whether it did the same.
pub(crate) fn replay(path: &Path, given: &RunArguments) -> Result<Status, Status> {
    let record = open(path)?;
    let plan = planned(&record)?;
    let graphs = graphs(&record, &plan);
    tell_beginning(&record, &graphs, given);
    let (text, machine) = (record.head.request.clone(), record.head.machine.clone());
    let (whole, count) = (record.whole.clone(), record.head.count);
    let into = folder(path, &graphs, given)?;
    let replay = Replay::new(record);
    let tape = Tape::Play(Arc::clone(&replay));
    let extras = Extras { tape, into: into.clone(), steps: given.steps(), ..Extras::default() };
    let again = RunArguments { count, ..given.clone() };
    let Gone { plan, outcome, file, .. } =
        run::go(&text, plan, (&machine, &Hosts::alone()), (&again, Starter::NOBODY), &extras)?;
    let status = run::told(&text, &plan, &again, &outcome, file);
    if let (Some(into), false) = (into, given.quiet) {
        terminal::note(&format!("what it wrote lies in {}", into.display()));
    }
    match whole {
        Whole::Whole { told: before } if !outcome.stopped => {
            Ok(compared(&before, &digest(&outcome), given, status))
        }
        _ => Ok(status),
    }
}

/// The graphs of all lines that a run had, one after the other.
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

/// Tells what of a record is missing, and what is not done again.
fn tell_beginning(record: &Record, graphs: &[Graph], given: &RunArguments) {
    let target = record.target();
    match &record.whole {
        Whole::Whole { .. } => {}
        Whole::Full { beyond } => terminal::warn(&format!(
            "{target} was full before the run ended: {} blocks with {} bytes that came later are \
             not in it",
            beyond.blocks, beyond.bytes
        )),
        Whole::Cut { at } => terminal::warn(&format!(
            "{target} ends at byte {at}, before its end: what is there is played"
        )),
        Whole::Changed => terminal::warn(&format!(
            "{target} is not as it was written (its digest is another): what can be is played"
        )),
    }
    if given.quiet {
        return;
    }
    for change in &record.changes {
        terminal::note(&format!("it was changed while it ran, and is again: {}", change.edit));
    }
    let used = || graphs.iter().flat_map(Graph::ids).filter_map(|(_, node)| node.filter());
    if used().any(|used| used.endpoint.process) {
        terminal::note("programs are not run again: what they wrote is in the record");
    }
    let sends = |name: &str| used().any(|used| used.description.name == name);
    if graphs.iter().any(|graph| {
        graph.ids().any(|(id, node)| {
            ["tx", "redirect"].contains(&node.name()) && graph.outputs(id).next().is_none()
        })
    }) {
        terminal::note("nothing is sent: `tx` and `redirect` only count");
    }
    let zone = engine::record::zone();
    if sends("weblog") && record.head.zone != zone {
        let then = &record.head.zone;
        terminal::warn(&format!(
            "`weblog` wrote times of the zone {then:?}, and this is {zone:?}: begin the command \
             with `TZ={then}`"
        ));
    }
}

/// Where the files of a repeated run go: none if it writes none.
fn folder(path: &Path, graphs: &[Graph], given: &RunArguments) -> Result<Option<PathBuf>, Status> {
    if let Some(into) = &given.into {
        return Ok(Some(into.clone()));
    }
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
    terminal::complain(&format!("too many folders {name}.replay are there: name one by --into"));
    Err(Status::Failed)
}

/// How many differences are told.
const TOLD: usize = 8;

/// Tells whether a run did what the recorded one did.
fn compared(before: &str, now: &str, given: &RunArguments, status: Status) -> Status {
    let found = differences(before, now);
    if found.is_empty() {
        if !given.quiet {
            terminal::note("it did what the recorded run did, to the block");
        }
        return status;
    }
    terminal::complain("it did not do what the recorded run did");
    for (before, now) in found.iter().take(TOLD) {
        let line = |text: &Option<String>| text.clone().unwrap_or_else(|| "nothing".to_owned());
        terminal::tell(&format!("  then {}\n   now {}\n", line(before), line(now)));
    }
    if found.len() > TOLD {
        terminal::tell(&format!("  and {} more\n", found.len() - TOLD));
    }
    Status::Failed
}
