//! Probe 8: a join of two branches keeps the input order with batches of 32.

use crate::catalog_fixture::{reported_counter, run_request};
use filter::prelude::*;

/// A filter that counts all blocks, and the blocks out of order: those whose number is smaller than
/// that of the previous block.
const ASSERT_ORDER: Description = Description {
    name: "ordered",
    summary: "counts numbers that come too late",
    kind: FilterKind::Inspection,
    has_report: true,
    constructor: Some(|_| Ok(Filter::lanes(AssertOrderFilter::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct AssertOrderFilter {
    last: u64,
    late: u64,
    blocks: u64,
}

impl LaneFilter for AssertOrderFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            let number = block.frame.get(42..50).and_then(|b| b.try_into().ok());
            let number = number.map_or(0, u64::from_be_bytes);
            self.late += u64::from(number < self.last);
            self.last = number;
            self.blocks += 1;
        }
    }

    fn report(&self) -> Report {
        Report::from_rows(vec![("late".to_owned(), self.late), ("blocks".to_owned(), self.blocks)])
    }
}

/// A filter that classifies even numbers as 1 and odd numbers as 2.
const CLASSIFY_EVEN: Description = Description {
    name: "even",
    summary: "tells even numbers from odd ones",
    kind: FilterKind::Classification,
    classes: Classes::Number {
        meaning: "parity",
        range: ValueRange { low: 1, high: 2 },
        names: &[],
    },
    constructor: Some(|_| Ok(Filter::classify(ClassifyEven))),
    ..Description::FILTER_DEFAULTS
};

struct ClassifyEven;

impl Classify for ClassifyEven {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        Class(if block.frame.get(49).is_some_and(|b| b % 2 == 0) { 1 } else { 2 })
    }
}

#[test]
fn n9_joined_branches_keep_the_input_order() {
    let text = "generate count=100000 seq=yes | even | ((|1 count | inspect) + |2 count) | ordered";
    let outcome = run_request(text, &[&ASSERT_ORDER, &CLASSIFY_EVEN]);
    assert_eq!(reported_counter(&outcome, "ordered", "late"), 0);
    assert_eq!(reported_counter(&outcome, "ordered", "blocks"), 100_000);
}
