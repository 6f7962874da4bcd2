//! The head of a record: enough to build the same path again.

use pipeline::plan::{Costs, Kernel, Machine, Plan};
use std::fmt::Write as _;

/// The version of the file's form. A later one cannot be read.
pub const VERSION: u32 = 3;
/// The first version: it knew of no changes, and is read as well.
pub(super) const FIRST: u32 = 1;
/// The first version of runs in which no two filters give sessions the same number; in those before
/// each counted for itself.
pub(super) const NUMBERS: u32 = 3;

/// The head of a record: enough to build the same path again.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    /// The version of the program that wrote it.
    pub program: String,
    /// The line.
    pub request: String,
    /// The planner's view of the machine.
    pub machine: Machine,
    /// Placement of the nodes, in the form of [`layout`].
    pub layout: String,
    /// Seed that filters take in place of randomness.
    pub seed: u64,
    /// After how many blocks the run was to end (`-c`).
    pub count: Option<u64>,
    /// The zone of the clock on the wall ([`zone`]).
    pub zone: String,
}

impl Head {
    /// The head of a record of this plan, which is about to run here.
    #[must_use]
    pub fn new(request: &str, plan: &Plan, machine: &Machine, count: Option<u64>) -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            request: request.to_owned(),
            machine: machine.clone(),
            layout: layout(plan),
            seed: filter::Arguments::default().seed(),
            count,
            zone: zone(),
        }
    }

    /// The machine of a path that is to be recorded: this one, with nothing run in its
    /// kernel, and one processor.
    #[must_use]
    pub fn outside_kernel(machine: Machine) -> Machine {
        let release = match &machine.kernel {
            Kernel::Open { release, .. } | Kernel::Closed { release, .. } => release.clone(),
        };
        let why = "a record is to hold what a program there would refuse".to_owned();
        // One processor: copies that share work are not recorded.
        Machine { kernel: Kernel::Closed { release, why }, processors: 1, ..machine }
    }

    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
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

    /// The head that these words tell; what is missing, if anything is.
    pub(super) fn of(pairs: &[(String, String)]) -> Result<Self, &'static str> {
        let text = |name: &'static str| {
            let found = pairs.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).ok_or(name)
        };
        let number = |name| text(name)?.parse::<u64>().map_err(|_| name);
        let size = |name| text(name)?.parse::<usize>().map_err(|_| name);
        let release = text("release")?;
        let mut costs = Costs::parse(&text("costs")?).unwrap_or_default();
        costs.origin = text("costs origin")?;
        costs.version = u32::try_from(number("costs version")?).map_err(|_| "costs version")?;
        let machine = Machine {
            processors: size("processors")?,
            l1d: size("l1d")?,
            l2: size("l2")?,
            kernel: Kernel::Closed { release, why: String::new() },
            costs,
        };
        Ok(Self {
            program: text("program")?,
            request: text("request")?,
            machine: Self::outside_kernel(machine),
            layout: text("layout")?,
            seed: number("seed")?,
            count: number("count").ok(),
            zone: text("zone")?,
        })
    }
}

/// The zone of the clock on the wall: what `TZ` says, or what the machine is set to.
#[must_use]
pub fn zone() -> String {
    if let Ok(zone) = std::env::var("TZ") {
        return zone;
    }
    let link = std::fs::read_link("/etc/localtime").unwrap_or_default();
    let name = link.to_string_lossy().into_owned();
    name.split_once("zoneinfo/").map_or_else(|| "UTC".to_owned(), |(_, zone)| zone.to_owned())
}

/// Describes the placement of a plan as text: plans with equal text are built alike.
#[must_use]
pub fn layout(plan: &Plan) -> String {
    let mut text = String::new();
    for (id, node) in plan.graph.ids() {
        let placed = &plan.placed[id.0];
        let (space, enters, leaves) = (placed.space, placed.enters, placed.leaves);
        // Writing into a text cannot fail.
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
