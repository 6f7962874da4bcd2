//! Comparison of a run's measurements with the planner's estimates (`explain --analyze`), and the
//! resulting changes in the next plan.
//!
//! The measurements update the saved cost table. The plan is saved with them, so that the next
//! `explain` of the same request can report the differences and their causes.

use crate::ready::RunResults;
use engine::calibrate::{self, StoredCosts};
use engine::run::RunOutcome;
use pipeline::explain::{self, DrawnFigures, Measurements, ProgramMeasurement};
use pipeline::graph::NodeId;
use pipeline::plan::{COSTS_VERSION, Costs, Machine, PersistedPlan, Plan, PlannedEdge};
use runtime::ledger::{Amount, DropReason};
use std::fs;
use std::path::{Path, PathBuf};

/// The measurements of a run, and the changes that they cause in the next plan.
#[derive(Debug)]
pub struct Analysis {
    /// Table that compares the planner's estimates with the measurements of the run.
    pub text: String,
    /// Number of filters that received too few blocks for their cost to be measured, or the reason
    /// why the measurements were not saved.
    pub saved: Result<usize, SaveError>,
    /// Differences between the plan of the run and the plan that the saved measurements now
    /// produce, as sentences.
    pub changes: Vec<String>,
}

/// A failure to save measurements.
#[derive(Debug)]
pub enum SaveError {
    /// No directory for measurements is known, because neither `XDG_STATE_HOME` nor `HOME` is set.
    NoStateDirectory,
    /// A file operation failed; the text names the operation and the reason.
    Failed(String),
}

/// Compares a run with its plan and saves its measurements in the user's state directory. If that
/// succeeds, plans the request again and describes the changes.
#[must_use]
pub fn analyze_run(results: &RunResults) -> Analysis {
    let RunResults { text, plan, outcome, .. } = results;
    let measurements = run_measurements(plan, outcome);
    let saved = match calibrate::state_directory() {
        None => Err(SaveError::NoStateDirectory),
        Some(folder) => {
            save_measurements(&folder, text, plan, &measurements).map_err(SaveError::Failed)
        }
    };
    let changes = match saved {
        Ok(_) => changes_with_current_costs(plan, &engine::machine::inspect_machine()),
        Err(_) => Vec::new(),
    };
    Analysis { text: explain::format_analysis(plan, &measurements), saved, changes }
}

/// Returns the measurements and losses of a run, which `explain --analyze` shows in the drawing of
/// the run's plan.
#[must_use]
pub fn drawn_figures(results: &RunResults) -> DrawnFigures {
    let RunResults { plan, outcome, .. } = results;
    let names = explain::unique_names(&plan.graph);
    let mut lost_in_nodes = vec![0; plan.graph.nodes.len()];
    let mut lost_on_edges = vec![0; plan.graph.edges.len()];
    let blocks = |lost: &mut dyn Iterator<Item = (DropReason, Amount)>| -> u64 {
        lost.map(|(_, amount)| amount.blocks).sum()
    };
    for filter in &outcome.ledger.filters {
        let node = lost_in_nodes.get_mut(filter.planned);
        node.into_iter().for_each(|lost| *lost += blocks(&mut filter.losses()));
    }
    for edge in &outcome.ledger.edges {
        let place = lost_on_edges.get_mut(edge.planned);
        let mut dropped = edge.dropped.iter().filter(|(why, _)| why.is_loss()).copied();
        place.into_iter().for_each(|lost| *lost += blocks(&mut dropped));
    }
    for (name, source) in &outcome.ledger.sources {
        let lost = source.dropped.iter().filter(|(place, _)| place.is_loss());
        let lost: u64 = lost.filter_map(|(_, blocks)| *blocks).sum();
        let node = names.iter().position(|known| known == name);
        node.into_iter().for_each(|node| lost_in_nodes[node] += lost);
    }
    DrawnFigures { measured: run_measurements(plan, outcome), lost_in_nodes, lost_on_edges }
}

/// Returns the differences between a plan and the plan of the last analyzed run of the same
/// request, as sentences; empty if no run was analyzed.
#[must_use]
pub fn changes_since_last_analysis(text: &str, plan: &Plan) -> Vec<String> {
    let path = calibrate::state_directory().map(|folder| plan_file_path(&folder, text));
    let saved = path.and_then(|path| fs::read_to_string(path).ok());
    let last_plan = saved.as_deref().and_then(PersistedPlan::parse);
    last_plan.map_or_else(Vec::new, |last_plan| last_plan.describe_changes(plan))
}

/// Plans the request of `plan` again with the saved cost table. Returns the differences from
/// `plan`, as sentences.
fn changes_with_current_costs(plan: &Plan, machine: &Machine) -> Vec<String> {
    let next = plan.replan(machine).ok();
    next.map_or_else(Vec::new, |next| PersistedPlan::from_plan(plan).describe_changes(&next))
}

/// Saves the plan of a run, and adds the run's measurements to the user's cost table. Returns the
/// number of filters that received too few blocks for their cost to be measured.
fn save_measurements(
    folder: &Path,
    text: &str,
    plan: &Plan,
    measurements: &Measurements,
) -> Result<usize, String> {
    let loaded =
        calibrate::load_stored_costs(folder)?.filter(|stored| stored.check_machine().is_ok());
    let base = || Costs { version: COSTS_VERSION, ..Costs::default() };
    let mut stored = loaded.unwrap_or_else(|| StoredCosts::measured_now(base()));
    let too_few = explain::learn_costs(plan, measurements, &mut stored.costs);
    stored.store(folder)?;
    let path = plan_file_path(folder, text);
    let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(why)?;
    sys::replace::replace_file(&path, PersistedPlan::from_plan(plan).to_text().as_bytes())
        .map_err(why)?;
    Ok(too_few)
}

/// Returns the path of the file that stores the plan of a request.
fn plan_file_path(folder: &Path, text: &str) -> PathBuf {
    // The hash is FNV-1a. It only names files, so collisions need no protection.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join("plans").join(format!("{hash:016x}"))
}

/// Returns a run's measurements by node and edge of its plan.
fn run_measurements(plan: &Plan, outcome: &RunOutcome) -> Measurements {
    let elapsed_ns = outcome.elapsed_ns;
    let mut measurements =
        Measurements { elapsed_ns, ..engine::adapt::extract_measurements(plan, &outcome.ledger) };
    for program in &outcome.programs {
        // Notifications over an edge to another thread are counted at the ring into that thread.
        let leaves = |edge: &&usize| matches!(plan.edges.get(**edge), Some(PlannedEdge::Kernel(_)));
        for edge in program.edges.iter().filter(leaves) {
            if let Some(edge) = measurements.edges.get_mut(*edge) {
                edge.events = Some(program.notifications);
            }
        }
        measurements.programs.push(ProgramMeasurement {
            source: NodeId(program.source),
            frames: program.frames,
            notifications: program.notifications,
            measured: program.measured,
        });
    }
    measurements
}
