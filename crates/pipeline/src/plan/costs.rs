//! The table of costs on a machine, in ns, by which plans are chosen.
//!
//! In: nothing (the table that is built in), or the text of a table that was measured here. Out:
//! what a node costs in a space, and which share of its blocks takes an arc. A text of another
//! version, or with a word that is not known, is refused as a whole: half a table would compare
//! what was measured with what was guessed. [SL §7.1; CONTRACT 27]
//!
//! Most particular first: what was seen when this very filter with these arguments ran, what was
//! measured of the filter, what is known of its kind.

use crate::explain;
use crate::graph::{Edge, Graph, NodeId};
use filter::{Kind, Reads};
use std::fmt::Write as _;

/// The version of the form of a table that is kept.
pub const COSTS_VERSION: u32 = 5;
/// Bytes of the block for which costs are told.
const BLOCK_BYTES: f64 = 1024.0;

/// Costs on a machine, in ns. The built-in values are from BASELINES and PLATFORM, measured on two
/// cores of a virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The name of the table.
    pub origin: String,
    /// Version of the table's form.
    pub version: u32,
    /// Calling a filter, per block of a full batch.
    pub call: f64,
    /// Looking at the head of a block.
    pub head: f64,
    /// Finding out where the headers of a block begin, for the first who looks, where that is not
    /// in the cost of what brings it; 0: not measured.
    pub look: f64,
    /// Looking at a kilobyte.
    pub kilobyte: f64,
    /// Copying a kilobyte.
    pub copy: f64,
    /// Putting an entry on a ring and taking it off.
    pub ring: f64,
    /// Waking the other side, once per event.
    pub wake: f64,
    /// A frame that a packet socket takes, and a thread out of its ring.
    pub socket: f64,
    /// A frame that a program in the kernel is shown.
    pub tap: f64,
    /// A twin, per block.
    pub twin: f64,
    /// The cost of [`Costs::look`] in a program, which finds headers by itself; 0 if not measured.
    pub twin_look: f64,
    /// A record of a block and a pointer to it, written by a program.
    pub record: f64,
    /// The same record, copied out by a process that finds the headers in it.
    pub fetch: f64,
    /// A bell that a program rings.
    pub bell: f64,
    /// A frame that a program is shown which takes it from the host.
    pub take: f64,
    /// A frame that a socket of AF_XDP takes, and a thread out of its ring.
    pub xsk: f64,
    /// A frame that a program has taken and led to such a socket, and a thread out of its ring.
    pub led: f64,
    /// Measured filters.
    pub filters: Vec<FilterCost>,
    /// Measured shares of arcs.
    pub shares: Vec<ArcShare>,
}

/// The measured cost of a filter in one place.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterCost {
    /// Its name, or the filter as a request says it, with its arguments.
    pub filter: String,
    /// True for the kernel.
    pub kernel: bool,
    /// For every block.
    pub block: f64,
    /// For every byte of it.
    pub byte: f64,
}

/// The measured fraction of a filter's input that took an arc.
#[derive(Debug, Clone, PartialEq)]
pub struct ArcShare {
    /// The filter as a request says it.
    pub filter: String,
    /// The classes of the arc, as in a label.
    pub classes: String,
    /// From 0 to 1.
    pub share: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            origin: "built in (two virtual cores, November 2026)".to_owned(),
            version: 1,
            call: 1.0,
            head: 2.0,
            look: 0.0,
            kilobyte: 8.0,
            copy: 8.0,
            ring: 10.0,
            wake: 7_000.0,
            socket: 450.0,
            tap: 15.0,
            twin: 3.0,
            twin_look: 0.0,
            record: 60.0,
            fetch: 40.0,
            bell: 12_000.0,
            take: 15.0,
            xsk: 450.0,
            led: 201.75,
            filters: Vec::new(),
            shares: Vec::new(),
        }
    }
}

/// A field of the table.
type Field = fn(&mut Costs) -> &mut f64;

/// The single numbers of a table, by the names that its text has for them.
const FIELDS: [(&str, Field); 17] = [
    ("call", |costs| &mut costs.call),
    ("head", |costs| &mut costs.head),
    ("look", |costs| &mut costs.look),
    ("kilobyte", |costs| &mut costs.kilobyte),
    ("copy", |costs| &mut costs.copy),
    ("ring", |costs| &mut costs.ring),
    ("wake", |costs| &mut costs.wake),
    ("socket", |costs| &mut costs.socket),
    ("tap", |costs| &mut costs.tap),
    ("twin", |costs| &mut costs.twin),
    ("twin_look", |costs| &mut costs.twin_look),
    ("record", |costs| &mut costs.record),
    ("fetch", |costs| &mut costs.fetch),
    ("bell", |costs| &mut costs.bell),
    ("take", |costs| &mut costs.take),
    ("xsk", |costs| &mut costs.xsk),
    ("led", |costs| &mut costs.led),
];

impl Costs {
    /// Handing a block to another thread: the entry, and its part of an event for 32. [Th §5.2.2]
    #[must_use]
    pub fn crossing(&self) -> f64 {
        self.ring + self.wake / 32.0
    }

    /// Handing a block to a process out of the kernel: the record, its part of a bell that is
    /// limited by time (128 blocks at 250,000 a second), and copying it out.
    #[must_use]
    pub fn leaving(&self) -> f64 {
        self.record + self.fetch + self.copy + self.bell / 128.0
    }

    /// Returns true if filters were measured one by one on this machine.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        self.look > 0.0
    }

    /// The single numbers, by name.
    pub fn numbers(&self) -> Vec<(&'static str, f64)> {
        let mut copy = self.clone();
        FIELDS.iter().map(|(name, field)| (*name, *field(&mut copy))).collect()
    }

    /// Sets a single number; answers whether there is one of this name.
    pub fn set(&mut self, name: &str, value: f64) -> bool {
        let field = FIELDS.iter().find(|(known, _)| *known == name);
        field.is_some_and(|(_, field)| {
            *field(self) = value;
            true
        })
    }

    /// Puts in what a filter costs, in the place of what was known of it there.
    pub fn put(&mut self, new: FilterCost) {
        self.filters.retain(|old| old.filter != new.filter || old.kernel != new.kernel);
        self.filters.push(new);
    }

    /// Puts in a share, in the place of the one that was known.
    pub fn put_share(&mut self, new: ArcShare) {
        self.shares.retain(|old| old.filter != new.filter || old.classes != new.classes);
        self.shares.push(new);
    }

    /// Returns the measured cost of this filter for a block of 1 KB, with these arguments or with
    /// any.
    fn measured(&self, graph: &Graph, id: NodeId, kernel: bool) -> Option<f64> {
        let used = graph.node(id).filter()?;
        let of = |name: &str| {
            self.filters.iter().find(|known| known.kernel == kernel && known.filter == name)
        };
        let known = of(&explain::plain_text(graph, id)).or_else(|| of(used.description.name))?;
        Some(known.block + known.byte * BLOCK_BYTES)
    }

    /// Returns the cost of a block in a thread.
    pub(super) fn in_thread(&self, graph: &Graph, id: NodeId) -> f64 {
        let Some(used) = graph.node(id).filter() else { return self.call };
        if let Some(ns) = self.measured(graph, id, false) {
            return ns;
        }
        // What it takes in is in the figures of what brings it.
        if used.endpoint.attaches.is_some() {
            return self.call;
        }
        let effect = used.effect();
        let reads = match effect.reads {
            Reads::Nothing => 0.0,
            Reads::Head(_) => self.head,
            Reads::All => self.kilobyte,
        };
        let writes = if effect.kind == Kind::Editing { self.copy } else { 0.0 };
        self.call + reads + writes
    }

    /// Returns the cost of a block in the kernel.
    pub(super) fn in_kernel(&self, graph: &Graph, id: NodeId) -> f64 {
        match graph.node(id).kind() {
            Some(Kind::Source) if takes(graph, id) => self.take,
            Some(Kind::Source) => self.tap,
            // Nothing is left to do there, and what ends is not to be handed over first.
            Some(Kind::Sink) if graph.node(id).name() == "drop" => 0.0,
            _ => self.measured(graph, id, true).unwrap_or(self.twin),
        }
    }

    /// Returns the fraction of a node's input routed to this edge: measured if known, else the
    /// filter's estimate, else 1.0.
    pub(super) fn share(&self, graph: &Graph, edge: &Edge) -> f64 {
        if self.shares.is_empty() {
            return by_itself(graph, edge);
        }
        let (filter, classes) =
            (explain::plain_text(graph, edge.from), edge.classes.to_string().replace(' ', ""));
        let known = self.shares.iter().find(|s| s.filter == filter && s.classes == classes);
        known.map_or_else(|| by_itself(graph, edge), |known| known.share)
    }

    /// The table as text, to be kept.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("costs {COSTS_VERSION}\n");
        for (name, value) in self.numbers() {
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

    /// The table that a text holds, or what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(&format!("costs {COSTS_VERSION}")) {
            return Err(format!("not a table of version {COSTS_VERSION}"));
        }
        let mut costs = Self { version: COSTS_VERSION, ..Self::default() };
        for (number, line) in lines.enumerate() {
            costs.line(line).ok_or_else(|| format!("line {} says nothing", number + 2))?;
        }
        Ok(costs)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "filter" => {
                let mut words = rest.splitn(4, ' ');
                let kernel = match words.next()? {
                    "kernel" => true,
                    "thread" => false,
                    _ => return None,
                };
                let (block, byte) = (number(words.next()?)?, number(words.next()?)?);
                self.put(FilterCost { filter: words.next()?.to_owned(), kernel, block, byte });
            }
            "share" => {
                let mut words = rest.splitn(3, ' ');
                let share = number(words.next()?).filter(|share| *share <= 1.0)?;
                let classes = words.next()?.to_owned();
                self.put_share(ArcShare { filter: words.next()?.to_owned(), classes, share });
            }
            name => return self.set(name, number(rest)?).then_some(()),
        }
        Some(())
    }
}

/// Returns true if a source takes its frames from the host.
pub(super) fn takes(graph: &Graph, id: NodeId) -> bool {
    let used = graph.node(id).filter();
    let attach = used.and_then(|used| used.attach()?.ok());
    attach.is_some_and(|attach| attach.takes)
}

/// The share that a filter is asked to let through: of those that are told apart by it, `sample`
/// alone says so.
fn by_itself(graph: &Graph, edge: &Edge) -> f64 {
    let used = graph.node(edge.from).filter();
    let sample = used.filter(|used| used.description.name == "sample" && !edge.classes.contains(0));
    let every = sample.and_then(|used| used.arguments.number("every"));
    every.map_or(1.0, |every| 1.0 / every.max(1) as f64)
}

/// A number that a cost can be.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// Returns the fraction of all input that comes to every node and takes every edge, at most 1.0.
pub(super) fn flows(graph: &Graph, order: &[NodeId], costs: &Costs) -> (Vec<f64>, Vec<f64>) {
    let (mut nodes, mut edges) = (vec![1.0; graph.nodes.len()], vec![1.0; graph.edges.len()]);
    for id in order {
        if let Some(owner) = graph.node(*id).inside {
            nodes[id.0] = nodes[owner.0];
            continue;
        }
        let numbered = || graph.edges.iter().enumerate().filter(|(_, edge)| !edge.back);
        let comes: Vec<f64> =
            numbered().filter(|(_, edge)| edge.to == *id).map(|(at, _)| edges[at]).collect();
        if !comes.is_empty() {
            nodes[id.0] = comes.iter().sum::<f64>().min(1.0);
        }
        let leaves: Vec<(usize, f64)> = numbered()
            .filter(|(_, edge)| edge.from == *id)
            .map(|(at, edge)| (at, nodes[id.0] * costs.share(graph, edge)))
            .collect();
        leaves.into_iter().for_each(|(at, flow)| edges[at] = flow);
    }
    (nodes, edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o3_a_table_is_read_as_it_was_written() {
        let mut costs = Costs { version: COSTS_VERSION, ..Costs::default() };
        for (at, (name, _)) in FIELDS.iter().enumerate() {
            assert!(costs.set(name, 1.25 * at as f64));
        }
        assert!(!costs.set("nonsense", 1.0));
        let filter = |filter: &str, kernel, block, byte| FilterCost {
            filter: filter.to_owned(),
            kernel,
            block,
            byte,
        };
        costs.put(filter("bpf", false, 12.5, 0.0));
        costs.put(filter("bpf", true, 3.5, 0.0));
        costs.put(filter("bpf \"tcp port 80\"", false, 14.0, 0.25));
        costs.put(filter("bpf", false, 12.75, 0.125));
        let (filter, classes) = ("bpf \"tcp port 80\"".to_owned(), "!0".to_owned());
        costs.put_share(ArcShare { filter, classes, share: 0.015_625 });
        assert_eq!(costs.filters.len(), 3, "the newer one stands for the older");
        assert_eq!(Costs::parse(&costs.text()), Ok(costs));
    }

    #[test]
    fn half_a_table_is_none() {
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
