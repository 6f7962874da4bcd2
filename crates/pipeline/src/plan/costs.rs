//! The cost table of a machine: times in ns per block, on which the choice of a plan depends.
//!
//! The table is built in, or parsed from the text of a table measured on this machine. A text with
//! another version or an unknown word is rejected entirely, because a partial table would compare
//! measured values with guesses. [SL §7.1; CONTRACT 27]
//!
//! The most specific value is used: the value measured for the filter with its arguments, else the
//! value measured for the filter, else the value for its kind.

use crate::graph::{Edge, Graph, NodeId};
use crate::names::cost_key;
use filter::{FilterKind, ReadDepth};
use std::fmt::Write as _;

/// The version of the text format of tables.
pub const COSTS_VERSION: u32 = 5;
/// The block size, in bytes, to which the costs in the table refer.
const REFERENCE_BLOCK_SIZE: f64 = 1024.0;

/// The costs on a machine, in ns. The built-in values are from BASELINES and PLATFORM, measured on
/// two cores of a virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// A description of the table's origin, for example the machine on which it was measured.
    pub origin: String,
    /// The version of the table's text format.
    pub version: u32,
    /// The cost in ns of calling a filter, per block of a full batch.
    pub call: f64,
    /// The cost in ns of reading the first bytes of a block.
    pub head: f64,
    /// The cost in ns of searching a block for header offsets; 0 if not measured. Only the first
    /// filter that needs the offsets searches for them. The search may also be included in the cost
    /// of the filter's input.
    pub header_search: f64,
    /// The cost in ns of reading 1,024 bytes.
    pub kilobyte: f64,
    /// The cost in ns of copying 1,024 bytes.
    pub copy: f64,
    /// The cost in ns of pushing and popping one ring entry.
    pub ring: f64,
    /// The cost in ns of waking a thread that waits at a ring.
    pub wake: f64,
    /// The cost in ns of receiving a frame through a packet socket and its ring.
    pub socket: f64,
    /// The cost in ns of calling a kernel program that observes frames, per frame.
    pub tap: f64,
    /// The cost in ns of calling a twin, per block.
    pub twin: f64,
    /// The cost in ns of searching a block for header offsets in a kernel program; 0 if not
    /// measured. [`Costs::header_search`] is the cost of the same search in a thread.
    pub twin_header_search: f64,
    /// The cost in ns of storing a record of a block, and a pointer to the record, in a kernel
    /// program.
    pub record: f64,
    /// The cost in ns of copying a record from a kernel program into a process, and of searching
    /// for its headers.
    pub fetch: f64,
    /// The cost in ns of a doorbell notification by a kernel program.
    pub notification: f64,
    /// The cost in ns of calling a kernel program that takes frames from the host, per frame.
    pub take: f64,
    /// The cost in ns of receiving a frame through an AF_XDP socket and its ring.
    pub xsk: f64,
    /// The cost in ns of receiving a frame that a kernel program redirects to an AF_XDP socket.
    pub redirect: f64,
    /// The measured costs of filters on this machine, by filter and space.
    pub filters: Vec<FilterCost>,
    /// The measured fractions of blocks that take an arc.
    pub shares: Vec<ArcShare>,
}

/// The measured cost of a filter in one space.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterCost {
    /// The name of the filter, or the filter with arguments in the syntax of a request.
    pub filter: String,
    /// True if the space is the kernel, false if it is a thread.
    pub kernel: bool,
    /// The cost per block in the filter, in ns.
    pub block: f64,
    /// The cost per byte in the filter, in ns.
    pub byte: f64,
}

/// The measured fraction of a filter's input that takes one of its arcs.
#[derive(Debug, Clone, PartialEq)]
pub struct ArcShare {
    /// The filter with arguments, in the syntax of a request.
    pub filter: String,
    /// The classes of the arc, formatted like a label.
    pub classes: String,
    /// The fraction of the filter's input that takes the arc, from 0 to 1.
    pub share: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            origin: "built in (two virtual cores, November 2026)".to_owned(),
            version: 1,
            call: 1.0,
            head: 2.0,
            header_search: 0.0,
            kilobyte: 8.0,
            copy: 8.0,
            ring: 10.0,
            wake: 7_000.0,
            socket: 450.0,
            tap: 15.0,
            twin: 3.0,
            twin_header_search: 0.0,
            record: 60.0,
            fetch: 40.0,
            notification: 12_000.0,
            take: 15.0,
            xsk: 450.0,
            redirect: 201.75,
            filters: Vec::new(),
            shares: Vec::new(),
        }
    }
}

/// A function that returns a field of the cost table.
type FieldAccessor = fn(&mut Costs) -> &mut f64;

/// The fields of the table: the name in the table's text, the accessor, and the measured operation.
const COST_FIELDS: [(&str, FieldAccessor, &str); 17] = [
    ("call", |costs| &mut costs.call, "calling a filter, per block of a full batch"),
    ("head", |costs| &mut costs.head, "reading the head of a block"),
    (
        "look",
        |costs| &mut costs.header_search,
        "finding the offsets of headers, for the first \
                                                filter",
    ),
    ("kilobyte", |costs| &mut costs.kilobyte, "reading a kilobyte"),
    ("copy", |costs| &mut costs.copy, "copying a kilobyte"),
    ("ring", |costs| &mut costs.ring, "writing and reading an entry of a ring"),
    ("wake", |costs| &mut costs.wake, "waking a sleeping thread, once"),
    ("socket", |costs| &mut costs.socket, "a frame at a packet socket"),
    ("tap", |costs| &mut costs.tap, "a frame at a program in the kernel"),
    ("twin", |costs| &mut costs.twin, "a filter in the kernel, the median of all"),
    ("twin_look", |costs| &mut costs.twin_header_search, "the same in a program in the kernel"),
    ("record", |costs| &mut costs.record, "writing a frame to the ring of a program"),
    ("fetch", |costs| &mut costs.fetch, "copying that frame out in a process"),
    ("bell", |costs| &mut costs.notification, "a notification by a program"),
    ("take", |costs| &mut costs.take, "a frame at a program that takes it"),
    ("xsk", |costs| &mut costs.xsk, "a frame at a socket of AF_XDP"),
    ("led", |costs| &mut costs.redirect, "redirecting a frame to such a socket"),
];

impl Costs {
    /// Returns the cost of handing a block to another thread, in ns: the ring entry, and 1/32 of a
    /// wakeup. [Th §5.2.2]
    #[must_use]
    pub fn crossing_cost(&self) -> f64 {
        self.ring + self.wake / 32.0
    }

    /// Returns the cost of handing a block of 1,024 bytes from the kernel to a process, in ns. It
    /// consists of storing a record of the block, fetching the record, copying the bytes, and 1/128
    /// of a notification. The rate of notifications is limited, which results in about 128 blocks
    /// per notification at 250,000 blocks per second.
    #[must_use]
    pub fn kernel_exit_cost(&self) -> f64 {
        self.record + self.fetch + self.copy + self.notification / 128.0
    }

    /// Returns true if the table contains filter costs measured on this machine.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        self.header_search > 0.0
    }

    /// Returns the name and the value in ns of each field of the table.
    pub fn named_costs(&self) -> Vec<(&'static str, f64)> {
        let mut copy = self.clone();
        COST_FIELDS.iter().map(|(name, field, _)| (*name, *field(&mut copy))).collect()
    }

    /// Returns a description of the measured operation for each of the
    /// [`numbers`](Self::named_costs), in the same order.
    pub fn descriptions() -> impl Iterator<Item = &'static str> {
        COST_FIELDS.iter().map(|(.., description)| *description)
    }

    /// Sets the field with this name; returns false if the name is unknown.
    pub fn set_field(&mut self, name: &str, value: f64) -> bool {
        let field = COST_FIELDS.iter().find(|(known, ..)| *known == name);
        field.is_some_and(|(_, field, _)| {
            *field(self) = value;
            true
        })
    }

    /// Sets the cost of a filter, replacing any old cost.
    pub fn set_filter_cost(&mut self, new: FilterCost) {
        self.filters.retain(|old| old.filter != new.filter || old.kernel != new.kernel);
        self.filters.push(new);
    }

    /// Sets the measured fraction of blocks that takes an arc, replacing an older measurement of
    /// this arc.
    pub fn set_arc_share(&mut self, new: ArcShare) {
        self.shares.retain(|old| old.filter != new.filter || old.classes != new.classes);
        self.shares.push(new);
    }

    /// Returns the measured cost of a filter for a block of 1,024 bytes, in ns: the cost measured
    /// with these arguments if known, otherwise with any arguments; `None` if not measured.
    /// `kernel` is true for the cost in the kernel, false for the cost in a thread.
    fn measured_cost(&self, graph: &Graph, id: NodeId, kernel: bool) -> Option<f64> {
        let used = graph.node(id).filter()?;
        let of = |name: &str| {
            self.filters.iter().find(|known| known.kernel == kernel && known.filter == name)
        };
        let known = of(&cost_key(graph, id)).or_else(|| of(used.description.name))?;
        Some(known.block + known.byte * REFERENCE_BLOCK_SIZE)
    }

    /// Returns the cost of a block in a node that runs in a thread, in ns. It is the measured cost
    /// or, if there is none, an estimate based on how much of the block the filter reads and
    /// writes. The cost of receiving frames is not included.
    pub(super) fn thread_cost(&self, graph: &Graph, id: NodeId) -> f64 {
        let Some(used) = graph.node(id).filter() else { return self.call };
        if let Some(ns) = self.measured_cost(graph, id, false) {
            return ns;
        }
        // The costs of receiving a frame already include the cost of the input.
        if used.endpoint.attach_point.is_some() {
            return self.call;
        }
        let effect = used.effect();
        let reads = match effect.reads {
            ReadDepth::Nothing => 0.0,
            ReadDepth::Head(_) => self.head,
            ReadDepth::All => self.kilobyte,
        };
        let writes = if effect.kind == FilterKind::Editing { self.copy } else { 0.0 };
        self.call + reads + writes
    }

    /// Returns the cost of a block in the kernel, in ns.
    pub(super) fn kernel_cost(&self, graph: &Graph, id: NodeId) -> f64 {
        match graph.node(id).kind() {
            Some(FilterKind::Source) if takes_frames_from_host(graph, id) => self.take,
            Some(FilterKind::Source) => self.tap,
            // A dropped frame stays in place, so nothing is handed over.
            Some(FilterKind::Sink) if graph.node(id).name() == "drop" => 0.0,
            _ => self.measured_cost(graph, id, true).unwrap_or(self.twin),
        }
    }

    /// Returns the fraction of a node's input that takes this edge: measured if known, else the
    /// filter's estimate, else 1.0.
    pub(super) fn arc_share(&self, graph: &Graph, edge: &Edge) -> f64 {
        if self.shares.is_empty() {
            return estimated_share(graph, edge);
        }
        let (filter, classes) =
            (cost_key(graph, edge.from), edge.classes.to_string().replace(' ', ""));
        let known = self.shares.iter().find(|s| s.filter == filter && s.classes == classes);
        known.map_or_else(|| estimated_share(graph, edge), |known| known.share)
    }

    /// Formats the table in the format that `parse` reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("costs {COSTS_VERSION}\n");
        for (name, value) in self.named_costs() {
            let _ = writeln!(out, "{name} {value:.4}");
        }
        for FilterCost { filter, kernel, block, byte } in &self.filters {
            let place = if *kernel { "kernel" } else { "thread" };
            let _ = writeln!(out, "filter {place} {block:.4} {byte:.6} {filter}");
        }
        for ArcShare { filter, classes, share } in &self.shares {
            let _ = writeln!(out, "share {share:.6} {classes} {filter}");
        }
        out
    }

    /// Parses a table; fails with a description of the first invalid line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(&format!("costs {COSTS_VERSION}")) {
            return Err(format!("not a table of version {COSTS_VERSION}"));
        }
        let mut costs = Self { version: COSTS_VERSION, ..Self::default() };
        for (number, line) in lines.enumerate() {
            costs.parse_line(line).ok_or_else(|| format!("line {} is malformed", number + 2))?;
        }
        Ok(costs)
    }

    fn parse_line(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "filter" => {
                let mut words = rest.splitn(4, ' ');
                let kernel = match words.next()? {
                    "kernel" => true,
                    "thread" => false,
                    _ => return None,
                };
                let (block, byte) = (parse_number(words.next()?)?, parse_number(words.next()?)?);
                self.set_filter_cost(FilterCost {
                    filter: words.next()?.to_owned(),
                    kernel,
                    block,
                    byte,
                });
            }
            "share" => {
                let mut words = rest.splitn(3, ' ');
                let share = parse_number(words.next()?).filter(|share| *share <= 1.0)?;
                let classes = words.next()?.to_owned();
                self.set_arc_share(ArcShare { filter: words.next()?.to_owned(), classes, share });
            }
            name => return self.set_field(name, parse_number(rest)?).then_some(()),
        }
        Some(())
    }
}

/// Returns true if a source takes its frames from the host, which then does not receive them.
pub(super) fn takes_frames_from_host(graph: &Graph, id: NodeId) -> bool {
    let used = graph.node(id).filter();
    let attach = used.and_then(|used| used.attachment()?.ok());
    attach.is_some_and(|attach| attach.redirects)
}

/// Returns the filter's own estimate of the fraction of its blocks on an edge. Only `sample` has an
/// estimate; for other filters returns 1.0.
fn estimated_share(graph: &Graph, edge: &Edge) -> f64 {
    let used = graph.node(edge.from).filter();
    let sample = used.filter(|used| used.description.name == "sample" && !edge.classes.contains(0));
    let every = sample.and_then(|used| used.arguments.number("every"));
    every.map_or(1.0, |every| 1.0 / every.max(1) as f64)
}

/// Returns true if the planner cannot know, without a measurement, which fraction of a filter's
/// blocks takes an edge. Sources, back edges and edges that pass all classes need no measurement.
/// The same holds for filters that estimate the fraction themselves.
pub(super) fn is_share_unknown(graph: &Graph, edge: &Edge) -> bool {
    let source = graph.node(edge.from).kind() == Some(FilterKind::Source);
    let decides = graph.node(edge.from).filter().is_some() && !source;
    decides && !edge.back && !edge.classes.is_all() && estimated_share(graph, edge) >= 1.0
}

/// Parses a finite, non-negative number; returns `None` for other texts.
fn parse_number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// Returns the expected fraction of all input blocks that arrives at each node, and that passes
/// each edge, at most 1.0.
pub(super) fn compute_input_shares(
    graph: &Graph,
    order: &[NodeId],
    costs: &Costs,
) -> (Vec<f64>, Vec<f64>) {
    let (mut nodes, mut edges) = (vec![1.0; graph.nodes.len()], vec![1.0; graph.edges.len()]);
    for id in order {
        if let Some(owner) = graph.node(*id).inside {
            nodes[id.0] = nodes[owner.0];
            continue;
        }
        let numbered = || graph.edges.iter().enumerate().filter(|(_, edge)| !edge.back);
        let inputs: Vec<f64> =
            numbered().filter(|(_, edge)| edge.to == *id).map(|(at, _)| edges[at]).collect();
        if !inputs.is_empty() {
            nodes[id.0] = inputs.iter().sum::<f64>().min(1.0);
        }
        let leaves: Vec<(usize, f64)> = numbered()
            .filter(|(_, edge)| edge.from == *id)
            .map(|(at, edge)| (at, nodes[id.0] * costs.arc_share(graph, edge)))
            .collect();
        leaves.into_iter().for_each(|(at, flow)| edges[at] = flow);
    }
    (nodes, edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o3_printed_cost_table_parses_to_the_same_table() {
        let mut costs = Costs { version: COSTS_VERSION, ..Costs::default() };
        for (at, (name, ..)) in COST_FIELDS.iter().enumerate() {
            assert!(costs.set_field(name, 1.25 * at as f64));
        }
        assert!(!costs.set_field("nonsense", 1.0));
        let filter = |filter: &str, kernel, block, byte| FilterCost {
            filter: filter.to_owned(),
            kernel,
            block,
            byte,
        };
        costs.set_filter_cost(filter("bpf", false, 12.5, 0.0));
        costs.set_filter_cost(filter("bpf", true, 3.5, 0.0));
        costs.set_filter_cost(filter("bpf \"tcp port 80\"", false, 14.0, 0.25));
        costs.set_filter_cost(filter("bpf", false, 12.75, 0.125));
        let (filter, classes) = ("bpf \"tcp port 80\"".to_owned(), "!0".to_owned());
        costs.set_arc_share(ArcShare { filter, classes, share: 0.015_625 });
        assert_eq!(costs.filters.len(), 3, "the newer one stands for the older");
        assert_eq!(Costs::parse(&costs.text()), Ok(costs));
    }

    #[test]
    fn cost_table_without_a_number_is_rejected() {
        let head = format!("costs {COSTS_VERSION}\n");
        for wrong in [
            "",
            "costs 1\ncall 1\n",
            "call 1\n",
            &format!("{head}call\n"),
            &format!("{head}call x\n"),
            &format!("{head}call -1\n"),
            &format!("{head}call inf\n"),
            &format!("{head}color 1\n"),
            &format!("{head}filter user 1 1 bpf\n"),
            &format!("{head}filter kernel 1 bpf\n"),
            &format!("{head}share 1.5 !0 bpf\n"),
            &format!("{head}\n"),
        ] {
            assert!(Costs::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Costs::parse(&head).is_ok(), "what it does not say is as built in");
    }
}
