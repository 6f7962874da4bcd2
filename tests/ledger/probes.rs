//! Test filters that pass or drop blocks and report their numbers, and functions that read
//! outcomes.

use engine::run::RunOutcome;
use filter::prelude::*;
use runtime::ledger::DropReason;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// All test filters that requests of these tests use.
pub(crate) const PROBE_FILTERS: &[&Description] = &[
    &REPORT_NUMBERS,
    &DROP_EVERY_THIRD,
    &CLASSIFY_EVEN,
    &HOLD_UP_TO_LIMIT,
    &HOLD_ALL,
    &PANIC_AT_BLOCK,
];

/// Returns the number of a generated frame, or `u64::MAX` if the frame is too short.
fn block_number(block: &Block<'_>) -> u64 {
    let bytes = block.frame.get(42..50).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(u64::MAX, u64::from_be_bytes)
}

/// Counts of the blocks that a filter reports, by block number.
#[derive(Default)]
struct NumberCounts(BTreeMap<u64, u64>);

impl NumberCounts {
    fn add(&mut self, number: u64) {
        *self.0.entry(number).or_default() += 1;
    }

    fn report(&self) -> Report {
        Report::from_rows(self.0.iter().map(|(n, times)| (n.to_string(), *times)))
    }
}

/// The fields that the descriptions of all reporting test filters have in common.
const REPORTING_PROBE: Description =
    Description { has_report: true, ..Description::FILTER_DEFAULTS };

/// A filter that passes all blocks, and reports their numbers.
const REPORT_NUMBERS: Description = Description {
    name: "watch",
    constructor: Some(|_| Ok(Filter::lanes(ReportNumbersFilter::default()))),
    ..REPORTING_PROBE
};

#[derive(Default)]
struct ReportNumbersFilter(NumberCounts);

impl LaneFilter for ReportNumbersFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        batch.blocks().for_each(|(_, block)| self.0.add(block_number(&block)));
    }

    fn report(&self) -> Report {
        self.0.report()
    }
}

/// A filter that drops every third block, and reports the numbers of the dropped blocks.
const DROP_EVERY_THIRD: Description = Description {
    name: "third",
    kind: FilterKind::Classification,
    reasons: &["third"],
    constructor: Some(|_| Ok(Filter::lanes(DropEveryThirdFilter::default()))),
    ..REPORTING_PROBE
};
const THIRD_BLOCK_REASON: Reason = DROP_EVERY_THIRD.reason("third");

#[derive(Default)]
struct DropEveryThirdFilter(NumberCounts);

impl LaneFilter for DropEveryThirdFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for lane in lanes(batch.live_lanes()) {
            let number = block_number(&batch.block(lane));
            if number.is_multiple_of(3) {
                self.0.add(number);
                cx.drop(batch, lane, THIRD_BLOCK_REASON);
            }
        }
    }

    fn report(&self) -> Report {
        self.0.report()
    }
}

/// A filter that gives even numbers a class, gives odd numbers none, and reports the odd numbers.
/// An arc without classes does not pass the odd numbers.
const CLASSIFY_EVEN: Description = Description {
    name: "even",
    kind: FilterKind::Classification,
    classes: Classes::YesNo,
    reasons: &["odd"],
    constructor: Some(|_| Ok(Filter::classify(ClassifyEven::default()))),
    ..REPORTING_PROBE
};
const ODD_NUMBER_REASON: Reason = CLASSIFY_EVEN.reason("odd");

#[derive(Default)]
struct ClassifyEven(NumberCounts);

impl Classify for ClassifyEven {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let number = block_number(block);
        if number.is_multiple_of(2) {
            return Class::YES;
        }
        self.0.add(number);
        cx.answer_absent(ODD_NUMBER_REASON)
    }

    fn report(&self) -> Report {
        self.0.report()
    }
}

/// A filter that holds blocks, up to a small limit, until the end, and reports the numbers of
/// evicted blocks.
const HOLD_UP_TO_LIMIT: Description = Description {
    name: "few",
    state: HOLD_ALL.state.with_held_max(100),
    constructor: Some(|_| Ok(Filter::stream(HoldBlocksFilter::default()))),
    ..HOLD_ALL
};

/// A filter that holds all blocks until the end.
const HOLD_ALL: Description = Description {
    name: "hoard",
    kind: FilterKind::Reordering,
    state: StateFacts::pinned_to_space("a list of its own").with_held_max(100_000),
    constructor: Some(|_| Ok(Filter::stream(HoldBlocksFilter::default()))),
    ..REPORTING_PROBE
};

#[derive(Default)]
struct HoldBlocksFilter {
    list: HeldList,
    evicted: NumberCounts,
}

impl Stream for HoldBlocksFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        if !cx.hold(&mut self.list, &block, 0) {
            self.evicted.add(block_number(&block));
        }
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        while !self.list.is_empty() {
            cx.release_front_block(&mut self.list, |block| block);
        }
    }

    fn report(&self) -> Report {
        self.evicted.report()
    }
}

/// The number of the block at which the test filter `breaks` panics.
pub(crate) const PANICKING_BLOCK: u64 = 5000;

/// A filter that panics at block [`PANICKING_BLOCK`].
const PANIC_AT_BLOCK: Description = Description {
    name: "breaks",
    kind: FilterKind::Classification,
    constructor: Some(|_| Ok(Filter::classify(PanicAtBlock))),
    ..Description::FILTER_DEFAULTS
};

struct PanicAtBlock;

impl Classify for PanicAtBlock {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        assert!(block_number(block) != PANICKING_BLOCK, "a bug on purpose");
        Class::YES
    }
}

/// Returns the report of the test filter `probe` as counts by number. The result is empty if the
/// filter made no report.
pub(crate) fn reported_numbers(outcome: &RunOutcome, probe: &str) -> BTreeMap<u64, u64> {
    let mut numbers = BTreeMap::new();
    for reported in outcome.reports.iter().filter(|reported| reported.name == probe) {
        for (number, times) in &reported.report.rows {
            *numbers.entry(number.parse().expect("a number")).or_default() += times;
        }
    }
    numbers
}

/// Returns the numbers of the frames in a capture, in order.
pub(crate) fn captured_frame_numbers(capture: &Path) -> Vec<u64> {
    let bytes = std::fs::read(capture).expect("what the sink wrote");
    let frames = wire::capture::packets(&bytes).map_while(Result::ok);
    let number_of = |frame: &[u8]| u64::from_be_bytes(frame[42..50].try_into().expect("8 bytes"));
    frames.map(|(_, frame)| number_of(frame)).collect()
}

/// Returns the number of blocks from all sources.
pub(crate) fn blocks_sent(outcome: &RunOutcome) -> u64 {
    outcome.ledger.sources.iter().map(|(_, counters)| counters.given.blocks).sum()
}

/// Returns the number of blocks that the ledger of a request without branches reports missing: lost
/// on edges and in filters, selected by no arc, or beyond the block limit.
pub(crate) fn missing_block_count(outcome: &RunOutcome) -> u64 {
    let nodes = &outcome.ledger.filters;
    let unselected: u64 = nodes.iter().map(|node| node.unselected.blocks).sum();
    let beyond = nodes.iter().flat_map(|node| &node.dropped);
    let beyond = beyond.filter(|(why, _)| *why == DropReason::BeyondCount);
    outcome.ledger.lost_blocks() + unselected + beyond.map(|(_, amount)| amount.blocks).sum::<u64>()
}

/// Returns the number of blocks that edges dropped for this reason.
pub(crate) fn edge_drop_count(outcome: &RunOutcome, reason: &str) -> u64 {
    let dropped = outcome.ledger.edges.iter().flat_map(|edge| &edge.dropped);
    dropped.filter(|(why, _)| why.text() == reason).map(|(_, amount)| amount.blocks).sum()
}

/// Asserts that the numbers are distinct, and returns them as a set.
pub(crate) fn distinct_numbers(numbers: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    let set: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(set.len(), numbers.len(), "a number came twice");
    set
}
