//! The head of a recording: all parameters needed to build the same path again, without the path's
//! input.

use pipeline::plan::{Costs, Kernel, Machine, Plan, Processors};
use std::fmt::Write as _;

/// The version of the file format. Files of later versions cannot be read.
pub const FORMAT_VERSION: u32 = 3;
/// The oldest version of the recording format that can be read. Recordings of this version contain
/// no changes to the path.
pub(super) const READABLE_VERSION_MIN: u32 = 1;
/// The first version in which session numbers are unique in the request. In earlier versions each
/// filter numbered its sessions independently.
pub(super) const UNIQUE_SESSION_NUMBERS_VERSION: u32 = 3;

/// The head of a recording: all parameters needed to build the same path again.
#[derive(Clone, PartialEq, Debug)]
pub struct RecordingHead {
    /// The version of the program that wrote the recording.
    pub program: String,
    /// The text of the request.
    pub request: String,
    /// The machine as the planner saw it.
    pub machine: Machine,
    /// Placement of the nodes of the plan, in the text form of [`format_placement`].
    pub layout: String,
    /// Seed from which the randomness of all filters is derived.
    pub seed: u64,
    /// The block limit of the run (`-c`), or `None` if there was none.
    pub count: Option<u64>,
    /// The time zone of the local clock ([`local_time_zone`]).
    pub zone: String,
}

impl RecordingHead {
    /// Returns the head for a recording of this plan.
    #[must_use]
    pub fn new(request: &str, plan: &Plan, machine: &Machine, count: Option<u64>) -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            request: request.to_owned(),
            machine: machine.clone(),
            layout: format_placement(plan),
            seed: filter::Arguments::default().seed(),
            count,
            zone: local_time_zone(),
        }
    }

    /// Returns the machine for which the path of a recording is planned. Its kernel accepts no
    /// programs, and it has one processor.
    #[must_use]
    pub fn replay_machine(machine: Machine) -> Machine {
        let release = match &machine.kernel {
            Kernel::Open { release, .. } | Kernel::Closed { release, .. } => release.clone(),
        };
        let why = "a record must contain the frames that a program there would reject".to_owned();
        // There is only one processor, because replicas are not recorded.
        Machine { kernel: Kernel::Closed { release, why }, processors: 1, ..machine }
    }

    pub(super) fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let machine = &self.machine;
        let release = match &machine.kernel {
            Kernel::Open { release, .. } | Kernel::Closed { release, .. } => release,
        };
        let mut pairs = vec![
            ("program", self.program.clone()),
            ("request", self.request.clone()),
            ("processors", machine.processors.to_string()),
            ("l1d", machine.l1d.to_string()),
            ("l2", machine.l2.to_string()),
            ("release", release.clone()),
            ("costs", machine.costs.text()),
            ("costs version", machine.costs.version.to_string()),
            ("costs origin", machine.costs.origin.clone()),
            ("layout", self.layout.clone()),
            ("seed", self.seed.to_string()),
            ("zone", self.zone.clone()),
        ];
        pairs.extend(self.count.map(|count| ("count", count.to_string())));
        pairs
    }

    /// Decodes the head. Fails with the name of the first item that is missing or is not a number
    /// although a number is required.
    pub(super) fn from_pairs(pairs: &[(String, String)]) -> Result<Self, &'static str> {
        let text = |name: &'static str| {
            let block_at = pairs.iter().find(|(known, _)| known == name);
            block_at.map(|(_, value)| value.clone()).ok_or(name)
        };
        let number = |name| text(name)?.parse::<u64>().map_err(|_| name);
        let size = |name| text(name)?.parse::<usize>().map_err(|_| name);
        let release = text("release")?;
        let mut costs = Costs::parse(&text("costs")?).unwrap_or_default();
        costs.origin = text("costs origin")?;
        costs.version = u32::try_from(number("costs version")?).map_err(|_| "costs version")?;
        let machine = Machine {
            processors: size("processors")?,
            path_processors: Processors::default(),
            l1d: size("l1d")?,
            l2: size("l2")?,
            kernel: Kernel::Closed { release, why: String::new() },
            costs,
        };
        Ok(Self {
            program: text("program")?,
            request: text("request")?,
            machine: Self::replay_machine(machine),
            layout: text("layout")?,
            seed: number("seed")?,
            count: number("count").ok(),
            zone: text("zone")?,
        })
    }
}

/// Returns the time zone of the local clock: the variable `TZ`, or else the machine's setting, or
/// else "UTC".
#[must_use]
pub fn local_time_zone() -> String {
    if let Ok(zone) = std::env::var("TZ") {
        return zone;
    }
    let link = std::fs::read_link("/etc/localtime").unwrap_or_default();
    let name = link.to_string_lossy().into_owned();
    name.split_once("zoneinfo/").map_or_else(|| "UTC".to_owned(), |(_, zone)| zone.to_owned())
}

/// Formats the placement of a plan. If two plans of one request have equal texts, the same path is
/// built from both.
#[must_use]
pub fn format_placement(plan: &Plan) -> String {
    let mut text = String::new();
    for (id, node) in plan.graph.nodes_with_ids() {
        let placed = &plan.placements[id.0];
        let (space, enters, leaves) = (placed.space, placed.input_space, placed.output_space);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {} in {space} {enters} {leaves}", id.0, node.name());
    }
    for (edge, planned) in plan.graph.edges.iter().zip(&plan.edges) {
        let kind = match planned {
            pipeline::plan::PlannedEdge::Call => "call".to_owned(),
            pipeline::plan::PlannedEdge::Back => "back".to_owned(),
            pipeline::plan::PlannedEdge::Pipe => "pipe".to_owned(),
            pipeline::plan::PlannedEdge::Ring(ring) => format!("ring {}", ring.entries),
            pipeline::plan::PlannedEdge::Kernel(_) => "kernel".to_owned(),
        };
        let _ = writeln!(text, "{} {} {} {kind}", edge.from.0, edge.to.0, edge.classes);
    }
    text
}
