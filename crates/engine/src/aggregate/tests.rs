//! Tests of the aggregation of counters over worker processes. A ring may be on any edge between
//! the source and the `shard` filter, which divides the blocks.

use super::worker_share::SHARD_FILTER;
use super::*;
use crate::registry::MachineRegistry;
use runtime::ledger::{Edge, EdgeKind, NodeName};

fn block_amount(blocks: u64) -> Amount {
    Amount { blocks, bytes: blocks * 100 }
}

/// Builds the report of a worker process that runs `replay x | shard N of=3 | discard`: `arrived`
/// blocks arrived, `in_share` of them in the worker's share. `killed` is true if the process was
/// killed.
fn worker_report(arrived: u64, in_share: u64, killed: bool) -> WorkerReport {
    let node = |planned, name: &str| {
        let name = name.into();
        let (taken, passed) = (block_amount(arrived), block_amount(in_share));
        NodeEntry { name, planned, taken, passed, ..NodeEntry::default() }
    };
    let edge = |planned, from: &str, to: &str, n| Edge {
        from: from.into(),
        to: to.into(),
        kind: EdgeKind::Call,
        planned,
        put: block_amount(n),
        taken: block_amount(n),
        dropped: Vec::new(),
        missing: Vec::new(),
        resident: Amount::default(),
        events: None,
        size: None,
    };
    let none = Amount::default();
    let source = NodeEntry { taken: none, made: block_amount(arrived), ..node(0, "replay") };
    let share = NodeEntry { unselected: block_amount(arrived - in_share), ..node(1, SHARD_FILTER) };
    let ledger = Ledger {
        sources: vec![("replay".to_owned(), SourceCounters::lossless(block_amount(arrived)))],
        filters: vec![
            NodeEntry { passed: block_amount(arrived), ..source },
            share,
            NodeEntry { taken: block_amount(in_share), ..node(2, "discard") },
        ],
        edges: vec![
            edge(0, "replay", SHARD_FILTER, arrived),
            edge(1, SHARD_FILTER, "discard", in_share),
        ],
    };
    assert_eq!(ledger.imbalances(), []);
    WorkerReport {
        outcome: RunOutcome { ledger, ..RunOutcome::default() },
        killed,
        started_before_traffic: true,
    }
}

fn shard_graph() -> Graph {
    let (shard_graph, mistakes) =
        pipeline::read_request("replay x | shard 1 of=3 | discard", &MachineRegistry::Local);
    assert!(mistakes.is_empty());
    shard_graph
}

#[test]
fn n7_reports_of_all_workers_add_up_to_one_process() {
    let all = [(100, 30), (100, 0), (100, 70)]
        .map(|(arrived, in_share)| worker_report(arrived, in_share, false));
    let merged = merge_reports(&shard_graph(), all.into());
    assert_eq!(merged.ledger.imbalances(), []);
    assert_eq!(merged.ledger.lost_blocks(), 0);
    assert_eq!(
        merged.ledger.sources,
        [("replay".to_owned(), SourceCounters::lossless(block_amount(100)))]
    );
    let taken: Vec<u64> = merged.ledger.filters.iter().map(|row| row.taken.blocks).collect();
    assert_eq!(taken, [0, 100, 100]);
}

#[test]
fn n7_survivors_account_for_blocks_of_a_killed_worker() {
    // The worker had reported 40 blocks, 10 of them in its own share. The other workers received
    // all 100.
    let all =
        [worker_report(100, 30, false), worker_report(40, 10, true), worker_report(100, 20, false)];
    let merged = merge_reports(&shard_graph(), all.into());
    assert_eq!(merged.ledger.imbalances(), []);
    assert_eq!(merged.ledger.lost_blocks(), 100 - 30 - 10 - 20);
    assert_eq!(merged.ledger.sources[0].1.given, block_amount(100));
    let share = &merged.ledger.filters[1];
    assert_eq!(share.dropped, [(WORKER_ENDED_REASON, block_amount(40))]);
    assert_eq!((share.passed, share.taken), (block_amount(60), block_amount(100)));
}

#[test]
fn n7_blocks_in_flight_in_a_killed_worker_count_as_dropped() {
    let mut killed = worker_report(100, 50, true);
    let edge = &mut killed.outcome.ledger.edges[1];
    (edge.taken, edge.resident) = (block_amount(45), block_amount(5));
    killed.outcome.ledger.filters[2].taken = block_amount(45);
    killed.outcome.ledger.filters[2].passed = block_amount(40);
    killed.outcome.ledger.filters[2].held = block_amount(5);
    let merged = merge_reports(&shard_graph(), vec![killed, worker_report(100, 50, false)]);
    assert_eq!(merged.ledger.imbalances(), []);
    assert_eq!(merged.ledger.lost_blocks(), 10);
}

/// The drop reason for losses at one worker's socket, which loses blocks of all shares.
const SOCKET_LOSS: DropReason = DropReason::Named("socket");
/// The drop reason for losses in a ring between two threads, upstream of the `shard` filter.
const RING_LOSS: DropReason = DropReason::Ring;

/// Adds losses of the source to a report of a worker process, and returns the report. `places`
/// pairs each drop reason with the number of blocks.
fn report_with_losses(
    mut worker_report: WorkerReport,
    places: &[(DropReason, Option<u64>)],
) -> WorkerReport {
    let source = &mut worker_report.outcome.ledger.sources[0].1;
    source.dropped = places.to_vec();
    let lost: Option<u64> = places.iter().map(|(_, blocks)| *blocks).sum();
    source.observed = lost.map(|lost| block_amount(source.given.blocks + lost));
    assert_eq!(worker_report.outcome.ledger.imbalances(), []);
    worker_report
}

/// Merges the reports of several worker processes. Returns the merged counters of the source, and
/// the number of lost blocks.
fn merge_source_counters(engines: Vec<WorkerReport>) -> (SourceCounters, u64) {
    let mut merged = merge_reports(&shard_graph(), engines);
    assert_eq!(merged.ledger.imbalances(), []);
    let lost = merged.ledger.lost_blocks();
    (merged.ledger.sources.remove(0).1, lost)
}

/// Replaces the edge at index `at` of a report's ledger by a ring between two threads, and returns
/// the report. `of` contains the plan indices under which the writing end and the reading end of
/// the ring are counted.
fn report_with_ring(mut worker_report: WorkerReport, at: usize, of: [usize; 2]) -> WorkerReport {
    let ledger = &mut worker_report.outcome.ledger;
    let call = ledger.edges.remove(at);
    let ends = ["ring to thread1", "ring from thread0"].map(NodeName::from);
    for (name, planned) in ends.iter().zip(of) {
        let (name, taken, passed) = (name.clone(), call.put, call.put);
        ledger.filters.push(NodeEntry { name, planned, taken, passed, ..NodeEntry::default() });
    }
    let kind = EdgeKind::Ring;
    ledger.edges.extend([
        Edge { to: ends[0].clone(), ..call.clone() },
        Edge { from: ends[0].clone(), to: ends[1].clone(), kind, ..call.clone() },
        Edge { from: ends[1].clone(), ..call },
    ]);
    assert_eq!(ledger.imbalances(), []);
    worker_report
}

#[test]
fn n7_block_is_counted_once_with_a_ring_on_any_edge() {
    // The ring is before `shard`, after `shard`, or both.
    let view: fn(WorkerReport) -> WorkerReport =
        |worker_report| report_with_ring(worker_report, 0, [0, 1]);
    let behind: fn(WorkerReport) -> WorkerReport =
        |worker_report| report_with_ring(worker_report, 1, [1, 2]);
    for (form, put) in
        [("before", view), ("behind", behind), ("both", |e| report_with_two_rings(e))]
    {
        let all = [(100, 30), (100, 0), (100, 70)];
        let all = all.map(|(arrived, in_share)| put(worker_report(arrived, in_share, false)));
        let merged = merge_reports(&shard_graph(), all.into());
        assert_eq!(merged.ledger.imbalances(), [], "{form}");
        assert_eq!(
            merged.ledger.sources,
            [("replay".to_owned(), SourceCounters::lossless(block_amount(100)))],
            "{form}"
        );
        for row in &merged.ledger.filters {
            assert_eq!(row.taken.blocks + row.made.blocks, 100, "{form}: {}", row.name);
            assert_eq!(row.unselected.blocks, 0, "{form}: {}", row.name);
        }
        assert!(merged.ledger.edges.iter().all(|edge| edge.put == block_amount(100)), "{form}");
    }
}

/// Inserts a ring on each of the two edges of a report, and returns the report.
fn report_with_two_rings(worker_report: WorkerReport) -> WorkerReport {
    // The later edge is handled first, while the index of the other edge is still valid.
    let mut worker_report = report_with_ring(worker_report, 1, [1, 2]);
    let ends = ["ring to thread2", "ring from thread1"];
    let ledger = &mut worker_report.outcome.ledger;
    for (old, new) in ["ring to thread1", "ring from thread0"].into_iter().zip(ends) {
        let of = |name: &mut NodeName| {
            if *name == old {
                *name = NodeName::from(new);
            }
        };
        ledger.filters.iter_mut().for_each(|row| of(&mut row.name));
        ledger.edges.iter_mut().for_each(|edge| {
            of(&mut edge.from);
            of(&mut edge.to);
        });
    }
    report_with_ring(worker_report, 0, [0, 1])
}

#[test]
fn n7_loss_of_equal_views_is_input_less_all_shares() {
    // The source emitted 100 blocks: 60 of share 1 and 40 of share 2. Each worker lost some of
    // them, so that 50 and 35 blocks of the two shares arrived.
    let all = [(80, 50, 20), (90, 35, 10)];
    let all = all.map(|(arrived, in_share, lost)| {
        report_with_losses(worker_report(arrived, in_share, false), &[(RING_LOSS, Some(lost))])
    });
    let (source, lost) = merge_source_counters(all.into());
    assert_eq!((source.given, lost), (block_amount(85), 15));
    assert_eq!(source.dropped, [(RING_LOSS, Some(15))]);
    assert_eq!(source.observed.map(|observed| observed.blocks), Some(100));
    assert_eq!(source.remark, None);
}

#[test]
fn n7_loss_of_unequal_views_is_reported_as_bounds() {
    let all = [(80, 50, 20), (90, 35, 12)];
    let lose = |(arrived, in_share, lost)| {
        report_with_losses(worker_report(arrived, in_share, false), &[(RING_LOSS, Some(lost))])
    };
    let (source, lost) = merge_source_counters(all.map(lose).into());
    assert_eq!((source.observed, lost), (None, 15), "100 and 102 seen, 85 arrived");
    assert_eq!(source.dropped, [(RING_LOSS, None), (losses::LOSS_LOWER_BOUND_REASON, Some(15))]);
    assert!(source.remark.unwrap().starts_with("from 15 to 17 blocks are missing by ring"));
    // If there was traffic before the start, equal counts prove nothing.
    let mut all = [(80, 50, 20), (90, 35, 10)].map(lose);
    all[1].started_before_traffic = false;
    let (source, lost) = merge_source_counters(all.into());
    assert_eq!((source.observed, lost), (None, 0));
    assert_eq!(source.dropped, [(RING_LOSS, None)]);
    assert!(source.remark.unwrap().starts_with("from 0 to 30 blocks are missing by ring"));
    // With two loss locations, the total is known but not how it is divided between them.
    let all = [(80, 50, [20, 0]), (90, 35, [4, 6])].map(|(arrived, in_share, [ring, socket])| {
        report_with_losses(
            worker_report(arrived, in_share, false),
            &[(SOCKET_LOSS, Some(socket)), (RING_LOSS, Some(ring))],
        )
    });
    let (source, lost) = merge_source_counters(all.into());
    assert_eq!(
        (source.dropped[0], source.dropped[1], lost),
        ((SOCKET_LOSS, None), (RING_LOSS, None), 15)
    );
}

#[test]
fn n7_loss_before_all_processes_is_counted_once() {
    let lose = |driver| {
        move |in_share| {
            let places = [
                (DropReason::Driver, driver),
                (DropReason::Backlog, Some(0)),
                (RING_LOSS, Some(0)),
            ];
            report_with_losses(worker_report(100, in_share, false), &places)
        }
    };
    let (source, lost) = merge_source_counters([30, 70].map(lose(Some(7))).into());
    assert_eq!((source.given, lost), (block_amount(100), 7));
    assert_eq!(source.observed.map(|observed| observed.blocks), Some(107));
    let (source, lost) = merge_source_counters(vec![lose(Some(7))(30), lose(Some(9))(70)]);
    assert_eq!((source.dropped[0], source.observed, lost), ((DropReason::Driver, None), None, 0));
    let (source, _) = merge_source_counters([30, 70].map(lose(None)).into());
    assert_eq!(source.dropped[0], (DropReason::Driver, None));
}

#[test]
fn n7_loss_on_the_ring_before_shard_counts_for_the_source() {
    let lossy = |arrived, in_share, lost| {
        let mut worker_report =
            report_with_ring(worker_report(arrived, in_share, false), 0, [0, 1]);
        let ledger = &mut worker_report.outcome.ledger;
        let ring = ledger.edges.iter_mut().find(|edge| edge.kind == EdgeKind::Ring).unwrap();
        ring.put += block_amount(lost);
        ring.dropped = vec![("ring full".into(), block_amount(lost))];
        let first = ledger.edges.iter_mut().find(|edge| edge.from == "replay").unwrap();
        (first.put, first.taken) = (block_amount(arrived + lost), block_amount(arrived + lost));
        for row in ledger.filters.iter_mut().filter(|row| row.planned == 0) {
            row.passed = block_amount(arrived + lost);
            let side = if row.name == "replay" { &mut row.made } else { &mut row.taken };
            *side = block_amount(arrived + lost);
        }
        ledger.sources[0].1 = SourceCounters::lossless(block_amount(arrived + lost));
        assert_eq!(ledger.imbalances(), []);
        worker_report
    };
    let (source, lost) = merge_source_counters(vec![lossy(80, 50, 20), lossy(90, 35, 10)]);
    assert_eq!((source.given, lost), (block_amount(85), 15));
    assert_eq!(source.dropped, [("ring full".into(), Some(15))]);
}

#[test]
fn unread_blocks_of_an_edge_are_not_lost() {
    let mut outcome = worker_report(100, 30, false).outcome;
    let drops = [(DropReason::Unread, block_amount(7)), (DropReason::Ring, block_amount(5))];
    outcome.ledger.edges[1].dropped = drops.into();
    assert_eq!(outcome.ledger.lost_blocks(), 5);
}
