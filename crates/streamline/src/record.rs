//! Records of runs: their creation and their replay.
//!
//! A replay writes its files into a separate directory, sends no frames and starts no programs,
//! because a record may come from an untrusted peer. When the replay ends, its ledger is compared
//! with the recorded ledger, line by line.

use crate::error::OpenError;
use crate::hosts::KernelHosts;
use crate::notice::Notices;
use crate::options::Options;
use crate::prepared::{self, PreparedRequest};
use crate::ready::{ReadyRequest, RunResults};
use engine::build::PathOptions;
use engine::digest::{changed_lines, digest};
use engine::record::{
    Completeness, Record, RecordMode, Recording, RecordingHead, Replay, format_placement, write,
};
use engine::registry::MachineRegistry;
use pipeline::Graph;
use pipeline::explain;
use pipeline::plan::{MovePeriod, Plan};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Creates the record of a run if the options name a file. Fails if the plan has replicas.
pub(crate) fn create_recording(
    prepared: &PreparedRequest,
    options: &Options,
) -> Result<Option<Arc<Recording>>, OpenError> {
    let Some(path) = &options.record else { return Ok(None) };
    let plan = &prepared.plan;
    if !plan.replicas.is_empty() {
        let why = "a run with replicas cannot be recorded: leave `--parallel` out";
        return Err(OpenError::Unfit(why.to_owned()));
    }
    let adapts = plan.runtime_changes();
    if adapts.replicas || adapts.moves == MovePeriod::Always {
        options.notices.raise_note(
            "`--adapt` has no effect on a recorded path: replicas and moves into the kernel cannot \
             be recorded",
        );
    }
    let head = RecordingHead::new(&prepared.text, plan, &prepared.machine, options.count);
    let most = options.record_bytes.unwrap_or(write::RECORDING_BYTES_DEFAULT);
    let recording = Recording::create(path, &head, most, &options.steps);
    recording.map(Some).map_err(OpenError::Unrecorded)
}

/// A record of a run, whose request this program can replay.
#[derive(Debug)]
pub struct ReplayableRecord {
    prepared: PreparedRequest,
    record: Record,
}

/// A replay that is built and ready to run.
#[derive(Debug)]
pub struct BuiltReplay {
    /// The built request, which repeats the recorded run when it is run.
    pub ready: ReadyRequest,
    /// Directory for the output files of the replay, or `None` if it writes none.
    pub output_directory: Option<PathBuf>,
    /// State of the record at its end: complete, cut off at the size limit, or truncated. Only the
    /// replay of a complete record can be compared with the recorded run.
    pub completeness: Completeness,
}

impl ReplayableRecord {
    /// Opens a record and plans its request for the recorded machine. Fails with
    /// [`OpenError::Unrepeatable`] if this program places the filters in other spaces.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let record = Record::open(path)?;
        let (text, machine) = (record.head.request.clone(), record.head.machine.clone());
        let graph = prepared::parse_graph(&text, &MachineRegistry::Recorded, &Options::default())?;
        let plan = prepared::plan_graph(&text, graph, &MachineRegistry::Recorded, &machine)?;
        if format_placement(&plan) != record.head.layout {
            let (target, program) = (record.path_for_messages(), &record.head.program);
            return Err(OpenError::Unrepeatable(format!(
                "{target} was recorded by streamline {program}, which places this request \
                 differently; `replay {target} | …` runs a request over its frames"
            )));
        }
        let (hosts, workers) = (KernelHosts::local_only(), Vec::new());
        Ok(Self { prepared: PreparedRequest { text, plan, machine, hosts, workers }, record })
    }

    /// Returns true if the request was changed while the recorded run was in progress.
    #[must_use]
    pub fn has_request_changes(&self) -> bool {
        !self.record.changes.is_empty()
    }

    /// Returns the reason why frames of the run are missing from the record, or `None` if the
    /// record is complete.
    #[must_use]
    pub fn missing_frames_reason(&self) -> Option<String> {
        describe_record_gap(&self.record)
    }

    /// Returns true if the record is truncated or was modified, so that its replay may differ from
    /// the recorded run.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        self.record.completeness.is_damaged()
    }

    /// Returns the planned request of the record, and the mode in which
    /// [`PreparedRequest::build_with`] replays the record. Also returns the number of blocks after
    /// which the recorded run was to end; `None` for no limit.
    #[must_use]
    pub fn into_parts(self) -> (PreparedRequest, RecordMode, Option<u64>) {
        let count = self.record.head.count;
        (self.prepared, RecordMode::Replay(Replay::new(self.record)), count)
    }

    /// Builds the replay. Its output files are written to the directory `into`, or otherwise to a
    /// new directory beside the record at `path`.
    pub fn build_replay(
        self,
        path: &Path,
        into: Option<PathBuf>,
        options: &Options,
    ) -> Result<BuiltReplay, OpenError> {
        let graphs = recorded_graphs(&self.record, &self.prepared.plan);
        raise_gap_notices(&self.record, &graphs, &options.notices);
        let whole = self.record.completeness.clone();
        let into = match into {
            Some(into) => Some(into),
            None => output_directory(path, &graphs)?,
        };
        let (prepared, record_mode, count) = self.into_parts();
        let options = Options { count, ..options.clone() };
        let extras =
            PathOptions { record_mode, output_directory: into.clone(), ..PathOptions::default() };
        Ok(BuiltReplay {
            ready: prepared.build_with(&options, extras)?,
            output_directory: into,
            completeness: whole,
        })
    }
}

/// Lines in which two ledgers differ, as pairs of recorded and replayed text. `None` represents a
/// line that one ledger lacks.
pub type LedgerDifferences = Vec<(Option<String>, Option<String>)>;

/// Compares the ledger of a replay with the recorded ledger, and returns the lines that differ.
/// Returns `None` if the record is incomplete or the replay was stopped.
#[must_use]
pub fn compare_with_record(
    whole: &Completeness,
    results: &RunResults,
) -> Option<LedgerDifferences> {
    match whole {
        Completeness::Complete { digest: before } if !results.outcome.stopped => {
            Some(changed_lines(before, &digest(&results.outcome)))
        }
        _ => None,
    }
}

/// Returns the graph of the recorded request, and the graph after each change to it, in order, up
/// to the first change that cannot be applied.
fn recorded_graphs(record: &Record, plan: &Plan) -> Vec<Graph> {
    let mut text = record.head.request.clone();
    let mut graphs = vec![plan.graph.clone()];
    for change in &record.changes {
        // The replay reports a change that does not apply.
        let Ok(edited) = change.edit.apply(&text, &MachineRegistry::Recorded) else { break };
        graphs.push(pipeline::read_request(&edited.text, &MachineRegistry::Recorded).0);
        text = edited.text;
    }
    graphs
}

/// Returns the reason why a replay of the record does not repeat the whole run, or `None` if it
/// does.
fn describe_record_gap(record: &Record) -> Option<String> {
    let target = record.path_for_messages();
    match &record.completeness {
        Completeness::Complete { .. } => None,
        Completeness::Full { beyond } => Some(format!(
            "{target} was full before the run ended: {} blocks with {} bytes that arrived later \
             are not in it",
            beyond.blocks, beyond.bytes
        )),
        Completeness::Truncated { at } => {
            Some(format!("{target} is truncated at byte {at}: the part before is replayed"))
        }
        Completeness::Changed => Some(format!(
            "{target} was modified (its digest differs): it is replayed as far as possible"
        )),
    }
}

/// Raises notices about the differences between a replay and the recorded run: parts that the
/// record lacks, changes that the replay repeats, and effects that the replay omits or cannot
/// repeat.
fn raise_gap_notices(record: &Record, graphs: &[Graph], notices: &Notices) {
    describe_record_gap(record).iter().for_each(|gap| notices.raise_warning(gap));
    for change in &record.changes {
        notices.raise_note(&format!(
            "the recorded path was changed, and the replay repeats it: {}",
            change.edit
        ));
    }
    let used =
        || graphs.iter().flat_map(Graph::nodes_with_ids).filter_map(|(_, node)| node.filter());
    if used().any(|used| used.endpoint.is_program) {
        notices.raise_note("programs do not run again: their output is in the record");
    }
    let sends = |name: &str| used().any(|used| used.description.name == name);
    if graphs.iter().any(|graph| {
        graph.nodes_with_ids().any(|(id, node)| {
            ["tx", "redirect"].contains(&node.name()) && graph.outputs(id).next().is_none()
        })
    }) {
        notices.raise_note("nothing is sent: `tx` and `redirect` only count");
    }
    let zone = engine::record::local_time_zone();
    if sends("weblog") && record.head.zone != zone {
        let then = &record.head.zone;
        notices.raise_warning(&format!(
            "`weblog` wrote times of the zone {then:?}, and this is {zone:?}: begin the command \
             with `TZ={then}`"
        ));
    }
}

/// Returns an unused path for the output directory, or `None` if no sink writes files. Fails if all
/// 999 candidates exist.
fn output_directory(path: &Path, graphs: &[Graph]) -> Result<Option<PathBuf>, OpenError> {
    let mut used =
        graphs.iter().flat_map(Graph::nodes_with_ids).filter_map(|(_, node)| node.filter());
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
    let why = format!("too many folders {name}.replay exist: name one with --into");
    Err(OpenError::Unrepeatable(why))
}
