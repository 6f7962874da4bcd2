//! Aggregated counters of several processes, for every form of the way to the filter that shares
//! out.

use super::share::SHARD;
use super::*;
use crate::catalogue::House;
use runtime::ledger::{Edge, EdgeKind, NodeName};

fn amount(blocks: u64) -> Amount {
    Amount { blocks, bytes: blocks * 100 }
}

/// Builds a worker process's report of `replay x | shard N of=3 | discard`: `came` blocks in all,
/// `own` of its share.
fn engine(came: u64, own: u64, killed: bool) -> Engine {
    let node = |planned, name: &str| {
        let name = name.into();
        let (taken, passed) = (amount(came), amount(own));
        Filtered { name, planned, taken, passed, ..Filtered::default() }
    };
    let edge = |planned, from: &str, to: &str, n| Edge {
        from: from.into(),
        to: to.into(),
        kind: EdgeKind::Call,
        planned,
        put: amount(n),
        taken: amount(n),
        dropped: Vec::new(),
        missing: Vec::new(),
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
    Engine { outcome: Outcome { ledger, ..Outcome::default() }, killed, quiet: true }
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
    assert_eq!(share.dropped, [(ENGINE_ENDED, amount(40))]);
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

/// The place of a process's own where it loses blocks of all shares.
const SOCKET: DropReason = DropReason::Other("socket");
const RING: DropReason = DropReason::Ring;

/// The same engine whose source lost so many at these places.
fn losing(mut engine: Engine, places: &[(DropReason, Option<u64>)]) -> Engine {
    let seen = &mut engine.outcome.ledger.sources[0].1;
    seen.dropped = places.to_vec();
    let lost: Option<u64> = places.iter().map(|(_, blocks)| *blocks).sum();
    seen.seen = lost.map(|lost| amount(seen.given.blocks + lost));
    assert_eq!(engine.outcome.ledger.imbalances(), []);
    engine
}

/// Returns the source's entry, and the number of lost blocks.
fn said(engines: Vec<Engine>) -> (Seen, u64) {
    let mut joint = joint(&graph(), engines);
    assert_eq!(joint.ledger.imbalances(), []);
    let lost = joint.ledger.lost();
    (joint.ledger.sources.remove(0).1, lost)
}

/// An engine whose edge `at` crosses a thread: two ends of a ring stand between.
fn crossing(mut engine: Engine, at: usize, of: [usize; 2]) -> Engine {
    let ledger = &mut engine.outcome.ledger;
    let call = ledger.edges.remove(at);
    let ends = ["ring to thread1", "ring from thread0"].map(NodeName::read);
    for (name, planned) in ends.iter().zip(of) {
        let (name, taken, passed) = (name.clone(), call.put, call.put);
        ledger.filters.push(Filtered { name, planned, taken, passed, ..Filtered::default() });
    }
    let kind = EdgeKind::Ring;
    ledger.edges.extend([
        Edge { to: ends[0].clone(), ..call.clone() },
        Edge { from: ends[0].clone(), to: ends[1].clone(), kind, ..call.clone() },
        Edge { from: ends[1].clone(), ..call },
    ]);
    assert_eq!(ledger.imbalances(), []);
    engine
}

#[test]
fn n7_each_block_is_counted_once_wherever_a_ring_stands() {
    // Before `shard`, behind it, and on both sides.
    let before: fn(Engine) -> Engine = |engine| crossing(engine, 0, [0, 1]);
    let behind: fn(Engine) -> Engine = |engine| crossing(engine, 1, [1, 2]);
    for (form, put) in [("before", before), ("behind", behind), ("both", |e| before_both(e))] {
        let all = [(100, 30), (100, 0), (100, 70)];
        let all = all.map(|(came, own)| put(engine(came, own, false)));
        let joint = joint(&graph(), all.into());
        assert_eq!(joint.ledger.imbalances(), [], "{form}");
        assert_eq!(joint.ledger.sources, [("replay".to_owned(), Seen::all(amount(100)))], "{form}");
        for row in &joint.ledger.filters {
            assert_eq!(row.taken.blocks + row.made.blocks, 100, "{form}: {}", row.name);
            assert_eq!(row.unselected.blocks, 0, "{form}: {}", row.name);
        }
        assert!(joint.ledger.edges.iter().all(|edge| edge.put == amount(100)), "{form}");
    }
}

fn before_both(engine: Engine) -> Engine {
    // The edge behind first: the other one is still at its place then.
    let mut engine = crossing(engine, 1, [1, 2]);
    let ends = ["ring to thread2", "ring from thread1"];
    let ledger = &mut engine.outcome.ledger;
    for (old, new) in ["ring to thread1", "ring from thread0"].into_iter().zip(ends) {
        let of = |name: &mut NodeName| {
            if *name == old {
                *name = NodeName::read(new);
            }
        };
        ledger.filters.iter_mut().for_each(|row| of(&mut row.name));
        ledger.edges.iter_mut().for_each(|edge| {
            of(&mut edge.from);
            of(&mut edge.to);
        });
    }
    crossing(engine, 0, [0, 1])
}

#[test]
fn n7_loss_of_equal_views_is_what_came_of_no_share() {
    // Both saw 100; 60 of share 1, 40 of share 2. Of these 50 and 35 came.
    let all = [(80, 50, 20), (90, 35, 10)];
    let all = all.map(|(came, own, lost)| losing(engine(came, own, false), &[(RING, Some(lost))]));
    let (seen, lost) = said(all.into());
    assert_eq!((seen.given, lost), (amount(85), 15));
    assert_eq!(seen.dropped, [(RING, Some(15))]);
    assert_eq!(seen.seen.map(|seen| seen.blocks), Some(100));
    assert_eq!(seen.remark, None);
}

#[test]
fn n7_loss_of_unequal_views_is_bounded_and_never_a_number() {
    let all = [(80, 50, 20), (90, 35, 12)];
    let lose = |(came, own, lost)| losing(engine(came, own, false), &[(RING, Some(lost))]);
    let (seen, lost) = said(all.map(lose).into());
    assert_eq!((seen.seen, lost), (None, 15), "100 and 102 seen, 85 came");
    assert_eq!(seen.dropped, [(RING, None), (losses::AT_LEAST, Some(15))]);
    assert!(seen.remark.unwrap().starts_with("from 15 to 17 blocks are missing by ring"));
    // Where traffic was there before all of them were, equal numbers prove nothing.
    let mut all = [(80, 50, 20), (90, 35, 10)].map(lose);
    all[1].quiet = false;
    let (seen, lost) = said(all.into());
    assert_eq!((seen.seen, lost), (None, 0));
    assert_eq!(seen.dropped, [(RING, None)]);
    assert!(seen.remark.unwrap().starts_with("from 0 to 30 blocks are missing by ring"));
    // Two places: how many, but not where.
    let all = [(80, 50, [20, 0]), (90, 35, [4, 6])].map(|(came, own, [ring, socket])| {
        losing(engine(came, own, false), &[(SOCKET, Some(socket)), (RING, Some(ring))])
    });
    let (seen, lost) = said(all.into());
    assert_eq!((seen.dropped[0], seen.dropped[1], lost), ((SOCKET, None), (RING, None), 15));
}

#[test]
fn n7_loss_before_all_processes_is_counted_once() {
    let lose = |driver| {
        move |own| {
            let places =
                [(DropReason::Driver, driver), (DropReason::Backlog, Some(0)), (RING, Some(0))];
            losing(engine(100, own, false), &places)
        }
    };
    let (seen, lost) = said([30, 70].map(lose(Some(7))).into());
    assert_eq!((seen.given, lost), (amount(100), 7));
    assert_eq!(seen.seen.map(|seen| seen.blocks), Some(107));
    let (seen, lost) = said(vec![lose(Some(7))(30), lose(Some(9))(70)]);
    assert_eq!((seen.dropped[0], seen.seen, lost), ((DropReason::Driver, None), None, 0));
    let (seen, _) = said([30, 70].map(lose(None)).into());
    assert_eq!(seen.dropped[0], (DropReason::Driver, None));
}

#[test]
fn n7_loss_on_the_ring_before_the_share_is_the_sources() {
    let lossy = |came, own, lost| {
        let mut engine = crossing(engine(came, own, false), 0, [0, 1]);
        let ledger = &mut engine.outcome.ledger;
        let ring = ledger.edges.iter_mut().find(|edge| edge.kind == EdgeKind::Ring).unwrap();
        ring.put = plus(ring.put, amount(lost));
        ring.dropped = vec![("ring full".into(), amount(lost))];
        let first = ledger.edges.iter_mut().find(|edge| edge.from == "replay").unwrap();
        (first.put, first.taken) = (amount(came + lost), amount(came + lost));
        for row in ledger.filters.iter_mut().filter(|row| row.planned == 0) {
            row.passed = amount(came + lost);
            let side = if row.name == "replay" { &mut row.made } else { &mut row.taken };
            *side = amount(came + lost);
        }
        ledger.sources[0].1 = Seen::all(amount(came + lost));
        assert_eq!(ledger.imbalances(), []);
        engine
    };
    let (seen, lost) = said(vec![lossy(80, 50, 20), lossy(90, 35, 10)]);
    assert_eq!((seen.given, lost), (amount(85), 15));
    assert_eq!(seen.dropped, [("ring full".into(), Some(15))]);
}
