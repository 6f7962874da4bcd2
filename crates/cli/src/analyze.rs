//! `streamline explain --analyze`: what a run measured beside what was expected of it, and what the
//! next plan learns from it.
//!
//! What was seen goes into the table of costs that is kept, and the plan beside it, so that the
//! next `explain` of the same line can say what became different and why.

use crate::terminal;
use engine::calibrate::{self, Kept};
use engine::run::Outcome;
use pipeline::explain::{self, Measurements, ProgramMeasurement};
use pipeline::graph::NodeId;
use pipeline::plan::{COSTS_VERSION, Costs, Machine, Plan, PlannedEdge, Remembered};
use std::fs;
use std::path::{Path, PathBuf};

/// Tells what was measured, keeps it, and says what the next plan would change.
pub(crate) fn tell(text: &str, plan: &Plan, outcome: &Outcome) {
    let seen = seen(plan, outcome);
    terminal::tell(&format!("{}\n", explain::analysis(plan, &seen)));
    let Some(folder) = calibrate::folder() else {
        terminal::note("nothing is kept of this: neither XDG_STATE_HOME nor HOME is set");
        return;
    };
    match keep(&folder, text, plan, &seen) {
        Err(why) => {
            terminal::warn(&format!("nothing is kept of this: {why}"));
            return;
        }
        Ok(0) => {}
        Ok(filters) => terminal::note(&format!(
            "what a filter costs is learned from {} blocks on: too few came to {filters} of them",
            explain::LEARNED_MIN
        )),
    }
    let machine = engine::machine::look();
    let changes = next(plan, &machine);
    if changes.is_empty() {
        terminal::note("kept for the next plan, which would be the same");
    }
    changes.iter().for_each(|change| terminal::note(&format!("next time {change}")));
}

/// What became different since the line was analyzed; nothing if it never was.
pub(crate) fn changes(text: &str, plan: &Plan) -> Vec<String> {
    let kept = calibrate::folder().map(|folder| place(&folder, text));
    let known = kept.and_then(|path| fs::read_to_string(path).ok());
    let known = known.as_deref().and_then(Remembered::parse);
    known.map_or_else(Vec::new, |known| known.changes(plan))
}

/// What a plan by the costs that are known now would change.
fn next(plan: &Plan, machine: &Machine) -> Vec<String> {
    let next = plan.once_more(machine).ok();
    next.map_or_else(Vec::new, |next| Remembered::of(plan).changes(&next))
}

/// Keeps what was seen of filters and arcs, and the plan. Answers of how many filters too little
/// was seen.
fn keep(folder: &Path, text: &str, plan: &Plan, seen: &Measurements) -> Result<usize, String> {
    let known = calibrate::load(folder)?.filter(|kept| kept.is_here().is_ok());
    let base = || Costs { version: COSTS_VERSION, ..Costs::default() };
    let mut kept = known.unwrap_or_else(|| Kept::now(base()));
    let too_few = explain::learn(plan, seen, &mut kept.costs);
    kept.keep(folder)?;
    let path = place(folder, text);
    let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(why)?;
    sys::replace::whole(&path, Remembered::of(plan).text().as_bytes()).map_err(why)?;
    Ok(too_few)
}

/// Where the plan of a line lies.
fn place(folder: &Path, text: &str) -> PathBuf {
    // FNV-1a: names files, protects nothing.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join("plans").join(format!("{hash:016x}"))
}

/// What a run counted, by node and edge of its plan.
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
