//! Probe 3: a message that spans five blocks is consumed as fragments, without gathering.
//!
//! Five datagrams form one message; the first and the last are flagged (CONTRACT 6). The consumer
//! reads the fragments in place: each stays in the source's pool, after its own headers.

use crate::catalog_fixture::{reported_counter, run_request};
use filter::prelude::*;
use std::collections::BTreeSet;

const BLOCKS_PER_MESSAGE: u64 = 5;

/// A filter that combines five consecutive blocks into a message.
const COMBINE_BLOCKS: Description = Description {
    name: "five",
    summary: "five datagrams are a message",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Frame]),
    output_form: OutputForm::Form(Form::Message),
    constructor: Some(|_| Ok(Filter::stream(CombineBlocksFilter(0)))),
    ..Description::FILTER_DEFAULTS
};

struct CombineBlocksFilter(u64);

impl Stream for CombineBlocksFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let mut fragment = block.narrow(42, block.length() - 42);
        let place = self.0 % BLOCKS_PER_MESSAGE;
        fragment.context.session = u32::try_from(self.0 / BLOCKS_PER_MESSAGE).unwrap() + 1;
        if place == 0 {
            fragment.context.flags = fragment.context.flags.with(BlockFlags::FIRST);
        }
        if place == BLOCKS_PER_MESSAGE - 1 {
            fragment.context.flags = fragment.context.flags.with(BlockFlags::LAST);
        }
        self.0 += 1;
        cx.pass(fragment);
    }
}

/// A filter that reads the fragments of a message one by one. It stores the sum of the numbers in
/// the fragments, but none of their bytes.
const SUM_FRAGMENTS: Description = Description {
    name: "sum",
    summary: "adds up the numbers in messages",
    kind: FilterKind::Inspection,
    input_forms: Forms::of(&[Form::Message]),
    has_report: true,
    constructor: Some(|_| Ok(Filter::stream(SumFragmentsFilter::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct SumFragmentsFilter {
    open: Option<(u32, u64)>,
    messages: u64,
    total: u64,
    pools: BTreeSet<u32>,
    torn: u64,
}

impl Stream for SumFragmentsFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let flags = block.context.flags;
        if flags.contains(BlockFlags::FIRST) {
            self.torn += u64::from(self.open.is_some());
            self.open = Some((block.context.session, 0));
        }
        let number = block.bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        self.pools.insert(block.pointer.dbuf().number());
        match &mut self.open {
            Some((session, sum)) if *session == block.context.session => *sum += number,
            _ => self.torn += 1,
        }
        if flags.contains(BlockFlags::LAST)
            && let Some((_, sum)) = self.open.take()
        {
            self.messages += 1;
            self.total += sum;
        }
        cx.consume(&block);
    }

    fn report(&self) -> Report {
        let rows = [
            ("messages", self.messages),
            ("total", self.total),
            ("pools", self.pools.len() as u64),
            ("torn", self.torn),
        ];
        Report::from_rows(rows)
    }
}

#[test]
fn message_of_five_blocks_is_consumed_in_place() {
    let outcome = run_request(
        "generate count=10000 seq=yes size=200 | five | sum",
        &[&COMBINE_BLOCKS, &SUM_FRAGMENTS],
    );
    assert_eq!(reported_counter(&outcome, "sum", "messages"), 2000);
    assert_eq!(reported_counter(&outcome, "sum", "total"), (0..10_000u64).sum::<u64>());
    assert_eq!(reported_counter(&outcome, "sum", "torn"), 0);
    assert_eq!(reported_counter(&outcome, "sum", "pools"), 1, "no fragment was copied anywhere");
}
