//! `explain --analyze`: measurements of a run beside its estimates, and changes of the next plan.
//!
//! The measurements go into the table of costs that is kept, and the plan beside it, so that the
//! next `explain` of the same request can say what became different and why.

use crate::ready::Results;
use engine::calibrate::{self, Kept};
use engine::run::Outcome;
use pipeline::explain::{self, Measurements, ProgramMeasurement};
use pipeline::graph::NodeId;
use pipeline::plan::{COSTS_VERSION, Costs, Machine, Plan, PlannedEdge, Remembered};
use std::fs;
use std::path::{Path, PathBuf};

/// Measurements of a run, and their effect on the next plan.
#[derive(Debug)]
pub struct Analysis {
    /// A table: estimates and measurements.
    pub text: String,
    /// The number of filters that saw too few blocks to be learned from; or why nothing is kept.
    pub kept: Result<usize, Unkept>,
    /// Changes of the next plan.
    pub changes: Vec<String>,
}

/// Measurements that cannot be kept, with the reason.
#[derive(Debug)]
pub enum Unkept {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set.
    Homeless,
    /// Something failed.
    Failed(String),
}

/// Compares a run with its plan and keeps its measurements.
#[must_use]
pub fn analyze(results: &Results) -> Analysis {
    let Results { text, plan, outcome, .. } = results;
    let seen = seen(plan, outcome);
    let kept = match calibrate::folder() {
        None => Err(Unkept::Homeless),
        Some(folder) => keep(&folder, text, plan, &seen).map_err(Unkept::Failed),
    };
    let changes = match kept {
        Ok(_) => next(plan, &engine::machine::look()),
        Err(_) => Vec::new(),
    };
    Analysis { text: explain::analysis(plan, &seen), kept, changes }
}

/// Differences between a plan and that of the last analyzed run; none if it never was analyzed.
#[must_use]
pub fn changes(text: &str, plan: &Plan) -> Vec<String> {
    let kept = calibrate::folder().map(|folder| place(&folder, text));
    let known = kept.and_then(|path| fs::read_to_string(path).ok());
    let known = known.as_deref().and_then(Remembered::parse);
    known.map_or_else(Vec::new, |known| known.changes(plan))
}

/// Changes that a plan by the costs known now would make.
fn next(plan: &Plan, machine: &Machine) -> Vec<String> {
    let next = plan.once_more(machine).ok();
    next.map_or_else(Vec::new, |next| Remembered::of(plan).changes(&next))
}

/// Keeps measurements of filters and arcs, and the plan. Returns the number of filters that saw too
/// few blocks.
fn keep(folder: &Path, text: &str, plan: &Plan, seen: &Measurements) -> Result<usize, String> {
    let known = calibrate::load(folder)?.filter(|kept| kept.is_here().is_ok());
    let base = || Costs { version: COSTS_VERSION, ..Costs::default() };
    let mut kept = known.unwrap_or_else(|| Kept::now(base()));
    let too_few = explain::learn(plan, seen, &mut kept.costs);
    kept.keep(folder)?;
    let path = place(folder, text);
    let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(why)?;
    sys::replace::replace_file(&path, Remembered::of(plan).text().as_bytes()).map_err(why)?;
    Ok(too_few)
}

/// The file for the plan of a request.
fn place(folder: &Path, text: &str) -> PathBuf {
    // FNV-1a: names files, protects nothing.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join("plans").join(format!("{hash:016x}"))
}

/// Counts of a run, by node and edge of its plan.
fn seen(plan: &Plan, outcome: &Outcome) -> Measurements {
    let elapsed_ns = outcome.elapsed_ns;
    let mut seen = Measurements { elapsed_ns, ..engine::adapt::seen(plan, &outcome.ledger) };
    for program in &outcome.programs {
        // What goes on to another thread is told of when it gets there.
        let leaves = |edge: &&usize| matches!(plan.edges.get(**edge), Some(PlannedEdge::Kernel(_)));
        for edge in program.edges.iter().filter(leaves) {
            if let Some(edge) = seen.edges.get_mut(*edge) {
                edge.events = Some(program.bells);
            }
        }
        seen.programs.push(ProgramMeasurement {
            source: NodeId(program.source),
            frames: program.frames,
            bells: program.bells,
            measured: program.measured,
        });
    }
    seen
}
