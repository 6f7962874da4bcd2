//! `streamline doctor --calibrate`: measures costs on this machine, saves them for the planner, and
//! prints them.

use crate::arguments::DoctorArguments;
use crate::status::Status;
use crate::terminal;
use engine::calibrate::{self, Calibration, StoredCosts};
use pipeline::explain::TEXT_COLUMNS_MAX;
use pipeline::explain::table::{Table, wrap_text};
use pipeline::plan::{Costs, FilterCost};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use streamline::report::{JsonObject, json_line, to_object};

/// Version of the output format of `doctor --calibrate --json`.
const JSON_VERSION: u32 = 1;
/// Length of the block for which filter costs are printed, in bytes.
const BLOCK_BYTES: f64 = 1024.0;

/// Measures the costs of this machine, saves them for the planner, and prints them.
pub(super) fn run(arguments: &DoctorArguments) -> Status {
    let Some(folder) = calibrate::state_directory() else {
        terminal::print_error("nothing can be saved: neither XDG_STATE_HOME nor HOME is set");
        return Status::Failed;
    };
    let calibration = calibrate::calibrate(&|what| {
        if terminal::can_rewrite_line() {
            terminal::show_status_line(&format!("measuring {what}"));
        }
    });
    if terminal::can_rewrite_line() {
        terminal::erase_status_line();
    }
    let path = match StoredCosts::measured_now(calibration.costs.clone()).store(&folder) {
        Ok(path) => path.display().to_string(),
        Err(why) => {
            terminal::print_error(&why);
            return Status::Failed;
        }
    };
    terminal::print_text(&match arguments.json {
        true => json_line(&to_json(&calibration, &path)),
        false => to_text(&calibration, &path),
    })
}

/// Returns the measured costs as JSON, and, for each cost that could not be measured, the reason.
/// `path` is the path of the cost table.
fn to_json(calibration: &Calibration, path: &str) -> JsonObject {
    let filter = |cost: &FilterCost| {
        to_object(&[
            ("filter", &cost.filter),
            ("space", &if cost.kernel { "kernel" } else { "thread" }),
            ("block_ns", &cost.block),
            ("byte_ns", &cost.byte),
        ])
    };
    let missing = calibration.missing.iter();
    let missing = missing.map(|(what, why)| to_object(&[("what", what), ("why", why)]));
    to_object(&[
        ("version", &JSON_VERSION),
        // Path of the cost table.
        ("path", &path),
        // Costs of basic operations by name, in ns.
        ("costs", &calibration.costs.named_costs().into_iter().collect::<BTreeMap<_, _>>()),
        ("filters", &calibration.costs.filters.iter().map(filter).collect::<Vec<_>>()),
        ("missing", &missing.collect::<Vec<_>>()),
    ])
}

fn to_text(calibration: &Calibration, path: &str) -> String {
    let costs = &calibration.costs;
    let mut out = String::new();
    let mut figures = Table::new(&["figure", ">ns", "operation"]);
    for ((name, ns), what) in costs.named_costs().into_iter().zip(Costs::descriptions()) {
        figures.add_row([name.to_owned(), format!("{ns:.1}"), what.to_owned()]);
    }
    let _ = writeln!(out, "{}", figures.format_within(TEXT_COLUMNS_MAX));
    let mut filters =
        Table::new(&["filter", ">ns in a thread", ">ns per byte", ">1 KB", ">ns in the kernel"]);
    for one in costs.filters.iter().filter(|cost| !cost.kernel) {
        let twin = costs.filters.iter().find(|cost| cost.kernel && cost.filter == one.filter);
        filters.add_row([
            one.filter.clone(),
            format!("{:.1}", one.block),
            format!("{:.3}", one.byte),
            format!("{:.1}", one.block + one.byte * BLOCK_BYTES),
            twin.map_or_else(|| "–".to_owned(), |twin| format!("{:.1}", twin.block)),
        ]);
    }
    let _ = writeln!(out, "{}", filters.format_within(TEXT_COLUMNS_MAX));
    for (what, why) in &calibration.missing {
        for line in wrap_text(&format!("not measured: {what}: {why}"), TEXT_COLUMNS_MAX - 1) {
            let _ = writeln!(out, " {line}");
        }
    }
    if cfg!(debug_assertions) {
        out.push_str(" this is a debug build: its figures mean little\n");
    }
    let _ = writeln!(out, " saved in {path}, and read at every start");
    out
}
