//! `streamline doctor --calibrate`: measures what things cost here, keeps it, and shows it.

use crate::arguments::DoctorArguments;
use crate::status::Status;
use crate::terminal;
use engine::calibrate::{self, Calibration, Kept};
use pipeline::explain::COLUMNS;
use pipeline::explain::table::{Column, Table, wrap};
use pipeline::plan::FilterCost;
use serde::Serialize;
use std::fmt::Write as _;
use streamline::report::json_line;

/// The version of the form of `--json`.
const VERSION: u32 = 1;
/// For which length of a block the costs of filters are shown.
const KILOBYTE: f64 = 1024.0;

/// Measures, keeps and shows.
pub(super) fn run(given: &DoctorArguments) -> Status {
    let Some(folder) = calibrate::folder() else {
        terminal::complain("nothing can be kept: neither XDG_STATE_HOME nor HOME is set");
        return Status::Failed;
    };
    let calibration = calibrate::calibrate(&|what| {
        if terminal::can_rewrite() {
            terminal::status(&format!("measuring {what}"));
        }
    });
    if terminal::can_rewrite() {
        terminal::wipe();
    }
    let path = match Kept::of(&calibration).keep(&folder) {
        Ok(path) => path.display().to_string(),
        Err(why) => {
            terminal::complain(&why);
            return Status::Failed;
        }
    };
    terminal::print(&match given.json {
        true => json_line(&Told::new(&calibration, &path)),
        false => text(&calibration, &path),
    })
}

#[derive(Serialize, Debug)]
struct Told<'c> {
    version: u32,
    /// The file of the table.
    path: &'c str,
    /// Single figures by name, in ns.
    costs: std::collections::BTreeMap<&'static str, f64>,
    filters: Vec<Filter<'c>>,
    missing: Vec<Missing<'c>>,
}

#[derive(Serialize, Debug)]
struct Filter<'c> {
    filter: &'c str,
    /// `thread` or `kernel`.
    space: &'static str,
    block_ns: f64,
    byte_ns: f64,
}

#[derive(Serialize, Debug)]
struct Missing<'c> {
    what: &'c str,
    why: &'c str,
}

impl<'c> Told<'c> {
    fn new(calibration: &'c Calibration, path: &'c str) -> Self {
        let filter = |cost: &'c FilterCost| Filter {
            filter: &cost.filter,
            space: if cost.kernel { "kernel" } else { "thread" },
            block_ns: cost.block,
            byte_ns: cost.byte,
        };
        let missing = calibration.missing.iter().map(|(what, why)| Missing { what, why });
        Self {
            version: VERSION,
            path,
            costs: calibration.costs.numbers().into_iter().collect(),
            filters: calibration.costs.filters.iter().map(filter).collect(),
            missing: missing.collect(),
        }
    }
}

/// The meanings of the single figures.
const MEANT: [(&str, &str); 17] = [
    ("call", "calling a filter, per block of a full batch"),
    ("head", "looking at the head of a block"),
    ("look", "finding where headers begin, for who is first"),
    ("twin_look", "the same in a program in the kernel"),
    ("kilobyte", "looking at a kilobyte"),
    ("copy", "copying a kilobyte"),
    ("ring", "an entry put on a ring and taken off"),
    ("wake", "waking a thread that sleeps, once"),
    ("socket", "a frame that a packet socket takes"),
    ("tap", "a frame that a program in the kernel is shown"),
    ("twin", "a filter in the kernel, in the middle of all"),
    ("record", "a frame written to the ring of a program"),
    ("fetch", "that frame copied out by a process"),
    ("bell", "a bell that a program rings"),
    ("take", "a frame that a program is shown which takes it"),
    ("xsk", "a frame that a socket of AF_XDP takes"),
    ("led", "a frame led to such a socket by a program"),
];

fn text(calibration: &Calibration, path: &str) -> String {
    let costs = &calibration.costs;
    let mut out = String::new();
    let mut figures =
        Table::new(&[Column::left("figure"), Column::right("ns"), Column::left("of what")]);
    for (name, ns) in costs.numbers() {
        let meant = MEANT.iter().find(|(known, _)| *known == name).map_or("", |(_, what)| what);
        figures.row([name.to_owned(), format!("{ns:.1}"), meant.to_owned()]);
    }
    let _ = writeln!(out, "{}", figures.text(COLUMNS));
    let mut filters = Table::new(&[
        Column::left("filter"),
        Column::right("ns in a thread"),
        Column::right("ns per byte"),
        Column::right("1 KB"),
        Column::right("ns in the kernel"),
    ]);
    for one in costs.filters.iter().filter(|cost| !cost.kernel) {
        let twin = costs.filters.iter().find(|cost| cost.kernel && cost.filter == one.filter);
        filters.row([
            one.filter.clone(),
            format!("{:.1}", one.block),
            format!("{:.3}", one.byte),
            format!("{:.1}", one.block + one.byte * KILOBYTE),
            twin.map_or_else(|| "–".to_owned(), |twin| format!("{:.1}", twin.block)),
        ]);
    }
    let _ = writeln!(out, "{}", filters.text(COLUMNS));
    for (what, why) in &calibration.missing {
        for line in wrap(&format!("not measured: {what}: {why}"), COLUMNS - 1) {
            let _ = writeln!(out, " {line}");
        }
    }
    if cfg!(debug_assertions) {
        out.push_str(" this program was built for debugging: its own figures say little\n");
    }
    let _ = writeln!(out, " kept in {path}, and read at every start");
    out
}
