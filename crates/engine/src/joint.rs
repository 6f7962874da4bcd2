//! From what the engines of a request counted, each by itself, to what the request counted.
//! [Par §V-B]; CONTRACT 19
//!
//! In: the outcome of each engine, or what one that was killed had told last. Out: one outcome.
//! Each engine sees all that its sources give, and leaves to the others what is theirs; so of a
//! source only what was the engine's own share is added up. What an engine that was killed had not
//! told is known by the others: they have passed over it. It is dropped (`engine ended`).

use crate::ledger::{Edge, Filtered, Ledger};
use crate::report::{Reported, together};
use crate::run::Outcome;
use endpoint::Seen;
use filter::Amount;
use pipeline::Graph;
use pipeline::graph::NodeId;

/// Why blocks are dropped that were the share of an engine that was killed.
pub const ENGINE_ENDED: &str = "engine ended";

/// What stands behind each source of an engine.
const SHARD: &str = "shard";

/// What one engine has told.
#[derive(Debug, Default)]
pub struct Engine {
    /// At its end, or when it was asked last.
    pub outcome: Outcome,
    /// Whether it was killed, so that there was more than it told.
    pub killed: bool,
}

/// Where a source is shared out.
#[derive(Clone, Debug)]
struct Shared {
    /// The source, the filter behind it, and the arc between them.
    source: usize,
    share: usize,
    edge: usize,
    name: String,
    /// Which of the sources of this name it is.
    nth: usize,
}

/// What all engines of a request came to. The graph is that of the line of any of them.
#[must_use]
pub fn joint(graph: &Graph, mut engines: Vec<Engine>) -> Outcome {
    engines
        .iter_mut()
        .filter(|engine| engine.killed)
        .for_each(|engine| settle(&mut engine.outcome));
    for shared in shared(graph) {
        let edges = engines.iter().flat_map(|engine| &engine.outcome.ledger.edges);
        let edge = edges.into_iter().find(|edge| edge.planned == shared.edge).cloned();
        for engine in engines.iter_mut().filter(|engine| engine.killed) {
            arrived(graph, &shared, edge.clone(), &mut engine.outcome.ledger);
        }
        let missing = missing(&shared, &engines);
        let heir = engines.iter().position(|engine| engine.killed);
        for (at, engine) in engines.iter_mut().enumerate() {
            let more = if Some(at) == heir { missing } else { Amount::default() };
            own(&shared, &mut engine.outcome.ledger, more);
        }
    }
    let mut joint = Outcome::default();
    let mut reports: Vec<Reported> = Vec::new();
    for engine in engines {
        let Outcome { ledger, reports: said, failures, programs, adapted, latency, .. } =
            engine.outcome;
        add(&mut joint.ledger, ledger);
        reports.extend(said);
        joint.failures.extend(failures);
        if let Some(latency) = latency {
            joint.latency.get_or_insert_default().add(latency);
        }
        joint.programs.extend(programs);
        joint.adapted.extend(adapted);
        joint.stopped |= engine.outcome.stopped;
        joint.elapsed_ns = joint.elapsed_ns.max(engine.outcome.elapsed_ns);
    }
    joint.reports = together(reports.into_iter());
    joint
}

/// The sources of a line of an engine.
fn shared(graph: &Graph) -> Vec<Shared> {
    let mut names: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for source in graph.heads() {
        let Some((edge, to)) = only(graph, source) else { continue };
        let name = graph.node(source).filter().map_or_else(String::new, crate::build::title);
        let nth = names.iter().filter(|known| **known == name).count();
        names.push(name.clone());
        if graph.node(to).name() == SHARD {
            found.push(Shared { source: source.0, share: to.0, edge, name, nth });
        }
    }
    found
}

/// The only arc behind a node.
fn only(graph: &Graph, from: NodeId) -> Option<(usize, NodeId)> {
    let mut out = graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == from);
    let (number, edge) = out.next()?;
    out.next().is_none().then_some((number, edge.to))
}

/// What has come to an engine and what was its own share, as it was told.
fn came(shared: &Shared, engine: &Engine) -> (Amount, Amount) {
    let rows = engine.outcome.ledger.filters.iter().filter(|row| row.planned == shared.share);
    rows.fold(Default::default(), |(taken, passed), row| {
        (plus(taken, row.taken), plus(passed, row.passed))
    })
}

/// Of an engine that was killed nobody has what its program in the kernel had counted. What came
/// out of it is known by those behind it in the process.
fn arrived(graph: &Graph, shared: &Shared, edge: Option<Edge>, ledger: &mut Ledger) {
    if ledger.sources.iter().filter(|(name, _)| *name == shared.name).nth(shared.nth).is_some() {
        return;
    }
    let reached = reached(graph, shared.share);
    let mut came = Amount::default();
    for row in ledger.filters.iter().filter(|row| reached.contains(&row.planned)) {
        let into = ledger.edges.iter().filter(|edge| {
            let planned = graph.edges.get(edge.planned);
            planned.is_some_and(|planned| planned.to.0 == row.planned)
        });
        let told = into.fold(Amount::default(), |sum, edge| plus(sum, edge.taken));
        came = plus(came, minus(row.taken, told));
    }
    let named = |planned: usize, name: &str| Filtered {
        name: name.to_owned(),
        planned,
        passed: came,
        ..Filtered::default()
    };
    ledger.filters.retain(|row| ![shared.source, shared.share].contains(&row.planned));
    ledger.filters.push(Filtered { made: came, ..named(shared.source, &shared.name) });
    ledger.filters.push(Filtered { taken: came, ..named(shared.share, SHARD) });
    ledger.sources.push((shared.name.clone(), Seen::all(came)));
    ledger.edges.extend(edge.map(|edge| Edge {
        put: came,
        taken: came,
        dropped: Vec::new(),
        events: None,
        ..edge
    }));
}

/// All nodes behind one.
fn reached(graph: &Graph, from: usize) -> Vec<usize> {
    let mut found = vec![from];
    let mut at = 0;
    while let Some(here) = found.get(at).copied() {
        for edge in graph.outputs(NodeId(here)) {
            if !found.contains(&edge.to.0) {
                found.push(edge.to.0);
            }
        }
        at += 1;
    }
    found.remove(0);
    found
}

/// What was the share of engines that were killed and they had not told, as the others saw it: all
/// that came, less what was somebody's. Those who were stopped may not have seen as much as each
/// other, then the least counts.
fn missing(shared: &Shared, engines: &[Engine]) -> Amount {
    if engines.iter().all(|engine| !engine.killed) {
        return Amount::default();
    }
    let all = engines.iter().map(|engine| came(shared, engine));
    let own = all.fold(Amount::default(), |sum, (_, own)| plus(sum, own));
    let alive = engines.iter().filter(|engine| !engine.killed);
    let stopped = engines.iter().any(|engine| engine.outcome.stopped);
    let seen = alive.map(|engine| came(shared, engine).0);
    let seen = match stopped {
        true => seen.min_by_key(|seen| seen.blocks),
        false => seen.max_by_key(|seen| seen.blocks),
    };
    seen.map_or_else(Amount::default, |seen| minus(seen, own))
}

/// Leaves of a source what was this engine's own, and `more` that it had not told.
fn own(shared: &Shared, ledger: &mut Ledger, more: Amount) {
    let mut kept = more;
    for row in ledger.filters.iter_mut().filter(|row| row.planned == shared.share) {
        let extra = std::mem::take(&mut kept);
        let lost = row.dropped.iter().fold(extra, |sum, (_, amount)| plus(sum, *amount));
        let rest = plus(row.consumed, row.held);
        row.taken = plus(plus(row.passed, lost), rest);
        row.unselected = Amount::default();
        row.unanswered.clear();
        if extra.blocks > 0 {
            row.dropped.push((ENGINE_ENDED.to_owned(), extra));
        }
    }
    let mine = ledger.filters.iter().filter(|row| row.planned == shared.share);
    let mine = mine.fold(Amount::default(), |sum, row| plus(sum, row.taken));
    let mut left = mine;
    let edges = ledger.edges.iter_mut().filter(|edge| edge.planned == shared.edge);
    let mut edges: Vec<&mut Edge> = edges.collect();
    let last = edges.len().saturating_sub(1);
    for (at, edge) in edges.iter_mut().enumerate() {
        let taken = if at == last || left.blocks < edge.taken.blocks { left } else { edge.taken };
        left = minus(left, taken);
        edge.taken = taken;
        edge.put = edge.dropped.iter().fold(taken, |sum, (_, amount)| plus(sum, *amount));
        edge.put = plus(edge.put, edge.resident);
    }
    // What was lost on the way to where it is shared out was given, whosever it was.
    let lost =
        edges.iter().fold(Amount::default(), |sum, edge| plus(sum, minus(edge.put, edge.taken)));
    let given = plus(mine, lost);
    if let Some(row) = ledger.filters.iter_mut().find(|row| row.planned == shared.source) {
        (row.made, row.passed) = (given, given);
        row.unselected = Amount::default();
        row.made = row.dropped.iter().fold(row.made, |sum, (_, amount)| plus(sum, *amount));
    }
    let mut named = ledger.sources.iter_mut().filter(|(name, _)| *name == shared.name);
    if let Some((_, seen)) = named.nth(shared.nth) {
        seen.given = given;
        let dropped: Option<u64> = seen.dropped.iter().map(|(_, n)| *n).sum();
        seen.seen = match (seen.seen, dropped) {
            (Some(_), Some(dropped)) => {
                Some(Amount { blocks: given.blocks + dropped, bytes: given.bytes })
            }
            _ => None,
        };
    }
}

/// What an engine that was killed had under way when it was asked last is dropped. What one of its
/// spaces told a moment later than another is brought together: nobody can be asked again.
pub fn settle(outcome: &mut Outcome) {
    for edge in &mut outcome.ledger.edges {
        let under_way = std::mem::take(&mut edge.resident);
        if under_way.blocks > 0 {
            edge.dropped.push((ENGINE_ENDED, under_way));
        }
        edge.put = edge.dropped.iter().fold(edge.taken, |sum, (_, amount)| plus(sum, *amount));
    }
    for row in &mut outcome.ledger.filters {
        let held = std::mem::take(&mut row.held);
        let (came, became) = row.balance();
        let rest = Amount { blocks: came.saturating_sub(became), bytes: held.bytes };
        if rest.blocks > 0 {
            row.dropped.push((ENGINE_ENDED.to_owned(), rest));
        }
        row.taken.blocks += became.saturating_sub(came);
    }
}

/// Adds what an engine counted to what others did.
fn add(joint: &mut Ledger, other: Ledger) {
    let mut before: Vec<&str> = Vec::new();
    let mut places = Vec::new();
    for (name, _) in &other.sources {
        places.push(before.iter().filter(|known| *known == name).count());
        before.push(name);
    }
    for ((name, seen), nth) in other.sources.iter().zip(places) {
        let mut known = joint.sources.iter_mut().filter(|(known, _)| known == name);
        match known.nth(nth) {
            Some((_, known)) => add_seen(known, seen),
            None => joint.sources.push((name.clone(), seen.clone())),
        }
    }
    for row in other.filters {
        let same = |known: &&mut Filtered| known.planned == row.planned && known.name == row.name;
        match joint.filters.iter_mut().find(same) {
            Some(known) => known.join(row),
            None => joint.filters.push(row),
        }
    }
    for edge in other.edges {
        joint.add_edge(edge);
    }
    for row in &mut joint.filters {
        row.dropped = by_name(&row.dropped);
    }
    for edge in &mut joint.edges {
        edge.dropped = by_name(&edge.dropped);
    }
}

fn add_seen(to: &mut Seen, more: &Seen) {
    to.given = plus(to.given, more.given);
    to.seen = to.seen.zip(more.seen).map(|(one, other)| plus(one, other));
    for (place, blocks) in &more.dropped {
        match to.dropped.iter_mut().find(|(known, _)| known == place) {
            Some((_, known)) => *known = known.zip(*blocks).map(|(one, other)| one + other),
            None => to.dropped.push((place, *blocks)),
        }
    }
    if to.remark.is_none() {
        to.remark.clone_from(&more.remark);
    }
}

/// Amounts of one name, added.
fn by_name<N: Clone + PartialEq>(all: &[(N, Amount)]) -> Vec<(N, Amount)> {
    let mut sums: Vec<(N, Amount)> = Vec::new();
    for (name, amount) in all {
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = plus(*known, *amount),
            None => sums.push((name.clone(), *amount)),
        }
    }
    sums
}

const fn plus(one: Amount, other: Amount) -> Amount {
    Amount { blocks: one.blocks + other.blocks, bytes: one.bytes + other.bytes }
}

const fn minus(one: Amount, other: Amount) -> Amount {
    let blocks = one.blocks.saturating_sub(other.blocks);
    Amount { blocks, bytes: one.bytes.saturating_sub(other.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::House;

    fn amount(blocks: u64) -> Amount {
        Amount { blocks, bytes: blocks * 100 }
    }

    /// What an engine tells of `replay x | shard N of=3 | discard`: so much came, so much was its
    /// own.
    fn engine(came: u64, own: u64, killed: bool) -> Engine {
        let node = |planned, name: &str| {
            let name = name.to_owned();
            let (taken, passed) = (amount(came), amount(own));
            Filtered { name, planned, taken, passed, ..Filtered::default() }
        };
        let edge = |planned, from: &str, to: &str, n| Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            kind: crate::ledger::EdgeKind::Call,
            planned,
            put: amount(n),
            taken: amount(n),
            dropped: Vec::new(),
            resident: Amount::default(),
            events: None,
        };
        let none = Amount::default();
        let source = Filtered { taken: none, made: amount(came), ..node(0, "replay") };
        let share = Filtered { unselected: amount(came - own), ..node(1, SHARD) };
        let ledger = Ledger {
            sources: vec![("replay".to_owned(), Seen::all(amount(came)))],
            filters: vec![
                Filtered { passed: amount(came), ..source },
                share,
                Filtered { taken: amount(own), ..node(2, "discard") },
            ],
            edges: vec![edge(0, "replay", SHARD, came), edge(1, SHARD, "discard", own)],
        };
        assert_eq!(ledger.imbalances(), []);
        Engine { outcome: Outcome { ledger, ..Outcome::default() }, killed }
    }

    fn graph() -> Graph {
        let (graph, mistakes) = pipeline::read("replay x | shard 1 of=3 | discard", &House);
        assert!(mistakes.is_empty());
        graph
    }

    #[test]
    fn n7_what_engines_count_adds_up_to_what_one_process_counts() {
        let all = [(100, 30), (100, 0), (100, 70)].map(|(came, own)| engine(came, own, false));
        let joint = joint(&graph(), all.into());
        assert_eq!(joint.ledger.imbalances(), []);
        assert_eq!(joint.ledger.lost(), 0);
        assert_eq!(joint.ledger.sources, [("replay".to_owned(), Seen::all(amount(100)))]);
        let taken: Vec<u64> = joint.ledger.filters.iter().map(|row| row.taken.blocks).collect();
        assert_eq!(taken, [0, 100, 100]);
    }

    #[test]
    fn n7_what_one_that_was_killed_had_not_told_the_others_know() {
        // It had told of 40 blocks, 10 of which were its own; the others saw all 100.
        let all = [engine(100, 30, false), engine(40, 10, true), engine(100, 20, false)];
        let joint = joint(&graph(), all.into());
        assert_eq!(joint.ledger.imbalances(), []);
        assert_eq!(joint.ledger.lost(), 100 - 30 - 10 - 20);
        assert_eq!(joint.ledger.sources[0].1.given, amount(100));
        let share = &joint.ledger.filters[1];
        assert_eq!(share.dropped, [(ENGINE_ENDED.to_owned(), amount(40))]);
        assert_eq!((share.passed, share.taken), (amount(60), amount(100)));
    }

    #[test]
    fn n7_what_was_under_way_in_one_that_was_killed_is_dropped() {
        let mut killed = engine(100, 50, true);
        let edge = &mut killed.outcome.ledger.edges[1];
        (edge.taken, edge.resident) = (amount(45), amount(5));
        killed.outcome.ledger.filters[2].taken = amount(45);
        killed.outcome.ledger.filters[2].passed = amount(40);
        killed.outcome.ledger.filters[2].held = amount(5);
        let joint = joint(&graph(), vec![killed, engine(100, 50, false)]);
        assert_eq!(joint.ledger.imbalances(), []);
        assert_eq!(joint.ledger.lost(), 10);
    }
}
