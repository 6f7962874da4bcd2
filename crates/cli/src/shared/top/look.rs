//! A view of a path: two counts, and the difference.

use super::super::rates::{self, Rate};
use member::protocol::{Amount, Counters, Described, Latency, Program, Space};
use runtime::ledger::NodeName;
use serde::Serialize;

/// The version of the form of `--json`.
const VERSION: u32 = 1;

/// A path that is looked at.
#[derive(Debug)]
pub(super) struct Watched {
    about: Described,
    uid: u32,
    before: Counters,
}

/// One look.
#[derive(Serialize, Debug)]
pub(super) struct Look {
    version: u32,
    pub(super) path: Described,
    pub(super) uid: u32,
    pub(super) elapsed_ns: u64,
    /// Rate of the sources.
    pub(super) rate: Rate,
    pub(super) given: Amount,
    pub(super) nodes: Vec<Seen>,
    pub(super) rings: Vec<Ring>,
    /// Losses by place and reason, most first, with new ones.
    pub(super) lost: Vec<Loss>,
    /// Spaces that did not answer in time.
    pub(super) late: Vec<String>,
    /// Its last change by itself.
    pub(super) adapted: Option<String>,
    /// Latency, if the line bounds it.
    pub(super) latency: Option<Latency>,
    /// Latencies beyond the bound, in a sentence.
    #[serde(skip)]
    pub(super) behind: Option<String>,
    /// The programs in the kernel in which parts of it run, beside lines of others.
    pub(super) kernel: Vec<Program>,
}

/// A node.
#[derive(Serialize, Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) space: String,
    /// Distance from its source.
    pub(super) depth: usize,
    /// The classes by which blocks come to it, where a line says so.
    pub(super) classes: String,
    /// Rate of its input, or of a source's output.
    pub(super) rate: Rate,
    pub(super) taken: Amount,
    pub(super) held: u64,
    pub(super) lost: u64,
    /// Time for one block, in ns, over the last stretch; none: nothing was measured.
    pub(super) block_ns: Option<f64>,
}

/// A ring between two spaces.
#[derive(Serialize, Debug)]
pub(super) struct Ring {
    pub(super) from: String,
    pub(super) to: String,
    /// Blocks in it.
    pub(super) fill: u64,
    /// Capacity.
    pub(super) room: u64,
}

/// Losses at one place.
#[derive(Serialize, Debug)]
pub(super) struct Loss {
    pub(super) place: String,
    pub(super) blocks: u64,
    pub(super) fresh: u64,
}

impl Watched {
    pub(super) fn new(about: Described, uid: u32) -> Self {
        Self { about, uid, before: Counters::default() }
    }

    /// Computes the view from the difference to the last counts.
    pub(super) fn look(&mut self, now: Counters) -> Look {
        let before = std::mem::replace(&mut self.before, now);
        let now = &self.before;
        let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns);
        let old = rates::losses(&before);
        let fresh = |place: &str, blocks: u64| {
            let known = old.iter().find(|(known, _)| known == place);
            blocks.saturating_sub(known.map_or(0, |(_, blocks)| *blocks))
        };
        let lost = rates::losses(now).into_iter();
        let lost = lost.map(|(place, blocks)| Loss { fresh: fresh(&place, blocks), place, blocks });
        Look {
            version: VERSION,
            path: self.about.clone(),
            uid: self.uid,
            elapsed_ns: now.elapsed_ns,
            rate: rates::rate(rates::given(&before), rates::given(now), ns),
            given: rates::given(now),
            nodes: self.nodes(&before, ns),
            rings: self.rings(),
            lost: lost.collect(),
            late: now.spaces.iter().filter_map(late).collect(),
            adapted: now.adapted.last().cloned(),
            latency: now.latency.clone(),
            behind: rates::late(now),
            kernel: Vec::new(),
        }
    }

    /// All nodes of the plan, each below the first that leads to it.
    fn nodes(&self, before: &Counters, ns: u64) -> Vec<Seen> {
        let about = &self.about;
        let mut depth: Vec<Option<usize>> = vec![None; about.nodes.len()];
        let mut order = Vec::new();
        // Heads first, in the order of the text; what nothing leads to is a head.
        let heads = (0..about.nodes.len()).filter(|n| !about.links.iter().any(|l| l.to == *n));
        for head in heads.collect::<Vec<_>>() {
            self.below(head, 0, &mut depth, &mut order);
        }
        for node in 0..about.nodes.len() {
            self.below(node, 0, &mut depth, &mut order);
        }
        let seen = order.into_iter().filter_map(|node| {
            Some(self.seen(node, depth.get(node).copied().flatten()?, before, ns))
        });
        seen.collect()
    }

    fn below(
        &self,
        node: usize,
        level: usize,
        depth: &mut [Option<usize>],
        order: &mut Vec<usize>,
    ) {
        // A stack, since what a path says of itself may be as deep as it likes.
        let mut waiting = vec![(node, level)];
        while let Some((node, level)) = waiting.pop() {
            match depth.get_mut(node) {
                Some(place @ None) => *place = Some(level),
                _ => continue,
            }
            order.push(node);
            let next = self.about.links.iter().filter(|link| link.from == node);
            let next: Vec<usize> = next.map(|link| link.to).collect();
            let alone = if next.len() > 1 { 1 } else { 0 };
            waiting.extend(next.into_iter().rev().map(|to| (to, level + alone)));
        }
    }

    fn seen(&self, node: usize, depth: usize, before: &Counters, ns: u64) -> Seen {
        let planned = self.about.nodes.get(node);
        let sum = |counters: &Counters| {
            let mut sum = Sum::default();
            let own = counters.filters.iter().filter(|filter| filter.node == node);
            for filter in own.filter(|filter| !NodeName::read(&filter.name).is_ring()) {
                let (came, made) = (filter.taken, filter.made);
                sum.taken.blocks += if came.blocks > 0 { came.blocks } else { made.blocks };
                sum.taken.bytes += if came.blocks > 0 { came.bytes } else { made.bytes };
                sum.held += filter.held.blocks;
                sum.lost += filter.lost.iter().filter_map(|lost| lost.blocks).sum::<u64>();
                sum.busy_ns += filter.busy_ns;
            }
            sum
        };
        let (old, now) = (sum(before), sum(&self.before));
        let blocks = now.taken.blocks.saturating_sub(old.taken.blocks);
        let busy = now.busy_ns.saturating_sub(old.busy_ns);
        let labels = self.about.links.iter().filter(|link| link.to == node);
        let labels: Vec<&str> =
            labels.map(|link| link.classes.as_str()).filter(|label| !label.is_empty()).collect();
        Seen {
            name: planned.map(|node| node.name.clone()).unwrap_or_default(),
            space: planned.map(|node| node.space.clone()).unwrap_or_default(),
            depth,
            classes: labels.join(" "),
            rate: rates::rate(old.taken, now.taken, ns),
            taken: now.taken,
            held: now.held,
            lost: now.lost,
            block_ns: (blocks > 0 && busy > 0).then(|| busy as f64 / blocks as f64),
        }
    }

    fn rings(&self) -> Vec<Ring> {
        let name = |node: usize| {
            self.about.nodes.get(node).map(|node| node.name.clone()).unwrap_or_default()
        };
        let links = self.about.links.iter().enumerate();
        let rings = links.filter_map(|(number, link)| {
            let room = link.room?;
            let edges = self.before.edges.iter().filter(|edge| edge.edge == number);
            let fill = edges.map(|edge| edge.resident.blocks).sum();
            Some(Ring { from: name(link.from), to: name(link.to), fill, room })
        });
        rings.collect()
    }
}

/// Describes a space that did not answer in time.
fn late(space: &Space) -> Option<String> {
    Some(format!("{}: {}", space.name, space.late.as_ref()?))
}

/// The sum over all instances of one node.
#[derive(Default)]
struct Sum {
    taken: Amount,
    held: u64,
    lost: u64,
    busy_ns: u64,
}
