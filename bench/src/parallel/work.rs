//! A filter with configurable cost, and a sink that detects reordering, for `bench parallel`.

use endpoint::{Failure, OpenArguments, Sink, SinkEntry};
use filter::prelude::*;
use filter::{OutputForm, Report, Time};

/// Name under which the sink reports the number of blocks that it received.
pub(super) const BLOCKS_COUNTER: &str = "blocks";
/// Name of the sink's counter for the order-dependent sum.
pub(super) const SUM_COUNTER: &str = "order-dependent sum";

/// Number of bytes at the beginning of a block that enter the order-dependent sum: the headers, and
/// the sequence number after them.
const SUMMED_BYTES: usize = 64;

/// The filter `bench_work`, whose cost per block is configurable.
pub(crate) const WORK_FILTER: Description = Description {
    name: "bench_work",
    summary: "goes around so many times for each block",
    kind: FilterKind::Inspection,
    parameters: &[Parameter::required(
        "times",
        ParameterType::Number { low: 0, high: 1 << 30 },
        "how often",
    )],
    constructor: Some(make_work),
    ..Description::FILTER_DEFAULTS
};

struct WorkFilter(u64);

fn make_work(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::classify(WorkFilter(arguments.number("times").unwrap_or(0))))
}

impl Classify for WorkFilter {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        let mut word = u64::from(block.length());
        for _ in 0..self.0 {
            // Each iteration depends on the previous one, so iterations cannot overlap.
            word = std::hint::black_box(word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
        std::hint::black_box(word);
        block.pointer.class
    }
}

/// The sink that computes an order-dependent sum of its blocks: the same blocks in another order
/// give another sum.
pub(crate) const DIGEST_SINK: SinkEntry = SinkEntry::new(&DIGEST_DESCRIPTION, open_digest_sink);

const DIGEST_DESCRIPTION: Description = Description {
    name: "bench_digest",
    summary: "adds up blocks in their order",
    kind: FilterKind::Sink,
    output_form: OutputForm::Nothing,
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct DigestSink {
    blocks: u64,
    sum: u64,
}

fn open_digest_sink(_: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::<DigestSink>::default())
}

impl Sink for DigestSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        batch.for_each_view(|bytes| {
            for word in bytes.chunks(8).take(SUMMED_BYTES / 8) {
                let mut whole = [0; 8];
                whole[..word.len()].copy_from_slice(word);
                // Earlier blocks are multiplied more often, so the sum depends on the order.
                let word = u64::from_le_bytes(whole);
                self.sum = self.sum.wrapping_mul(0x0100_0000_01b3).wrapping_add(word);
            }
            self.blocks += 1;
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let rows =
            vec![(BLOCKS_COUNTER.to_owned(), self.blocks), (SUM_COUNTER.to_owned(), self.sum)];
        Ok(Report::from_rows(rows))
    }
}
