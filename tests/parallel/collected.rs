//! The test filters that the tests of replicas use, and functions that run a request and return its
//! output.
//!
//! The test filter `keep id=N` collects blocks in any thread; the test reads them once the request
//! has ended.

use crate::request::PlannedRequest;
use engine::build::RunSettings;
use engine::live::PathHandle;
use engine::run::RunOutcome;
use filter::prelude::*;
use pipeline::plan::{Costs, FilterCost, Machine};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The test filters that the requests of these tests use in addition to those of the catalog.
pub(crate) const TEST_FILTERS: &[&Description] =
    &[&KEEP_BLOCKS, &YIELD_PROCESSOR, &MULTIPLY_BLOCKS, &PANIC_AT_BLOCK];

const fn number_parameter(name: &'static str, high: u64) -> Parameter {
    Parameter::required(name, ParameterType::Number { low: 0, high }, "a number")
}

/// A filter that stores its blocks, so that the test can read them.
const KEEP_BLOCKS: Description = Description {
    name: "keep",
    summary: "keep what goes by for the test",
    state: StateFacts { scope: StateScope::Private, ..StateFacts::NONE },
    parameters: &[number_parameter("id", u64::MAX)],
    constructor: Some(|arguments| {
        Ok(Filter::lanes(KeepBlocksFilter(arguments.number("id").unwrap_or(0))))
    }),
    ..Description::FILTER_DEFAULTS
};

/// A filter that yields the processor at random, so that threads interleave differently.
const YIELD_PROCESSOR: Description = Description {
    name: "stumble",
    summary: "let others go first, by chance",
    parameters: &[number_parameter("seed", u64::MAX)],
    constructor: Some(|arguments| {
        let seed = arguments.number("seed").unwrap_or(1)
            ^ u64::from(arguments.replica_index_and_count().0) << 40;
        Ok(Filter::lanes(YieldProcessorFilter(testkit::Random::new(seed))))
    }),
    ..Description::FILTER_DEFAULTS
};

/// A filter that emits several blocks for some blocks, and none for others.
const MULTIPLY_BLOCKS: Description = Description {
    name: "times",
    summary: "give each block as often as its number says",
    kind: FilterKind::Reordering,
    parameters: &[number_parameter("most", 255)],
    constructor: Some(|arguments| {
        Ok(Filter::stream(MultiplyBlocksFilter(arguments.number("most").unwrap_or(1))))
    }),
    ..Description::FILTER_DEFAULTS
};

/// A filter that panics at a block whose low byte is 77.
const PANIC_AT_BLOCK: Description = Description {
    name: "fails",
    summary: "has a bug that a certain block finds",
    constructor: Some(|_| Ok(Filter::lanes(PanicAtBlock))),
    ..Description::FILTER_DEFAULTS
};

static COLLECTED_BY_ID: Mutex<Option<HashMap<u64, Vec<RecordedBlock>>>> = Mutex::new(None);

/// A block that the filter `keep` has collected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RecordedBlock {
    pub(crate) class: u32,
    pub(crate) session: u32,
    pub(crate) flags: u16,
    pub(crate) time: u64,
    pub(crate) length: u32,
    pub(crate) bytes: Vec<u8>,
    /// The record that the block carries if it is a description, else empty.
    pub(crate) record: Vec<u8>,
}

struct KeepBlocksFilter(u64);

impl LaneFilter for KeepBlocksFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        let mut kept = COLLECTED_BY_ID.lock().expect("nobody panics here");
        let kept = kept.get_or_insert_default().entry(self.0).or_default();
        kept.extend(batch.blocks().map(|(_, block)| RecordedBlock {
            class: block.pointer.class.0,
            session: block.context.session,
            flags: block.context.flags.0,
            time: block.context.time,
            length: block.length(),
            bytes: block.bytes().to_vec(),
            record: if block.marks.is_description() { block.frame.to_vec() } else { Vec::new() },
        }));
    }
}

/// Returns the low byte of the number in a generated block, or the first byte of any other block.
fn low_byte(block: &Block<'_>) -> u8 {
    let bytes = block.bytes();
    bytes.get(49).or_else(|| bytes.first()).copied().unwrap_or(1)
}

struct YieldProcessorFilter(testkit::Random);

impl LaneFilter for YieldProcessorFilter {
    fn process<'a>(&mut self, _: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for _ in 0..self.0.below(4) {
            std::thread::yield_now();
        }
    }
}

struct MultiplyBlocksFilter(u64);

impl Stream for MultiplyBlocksFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let last = u64::from(low_byte(&block));
        match last % (self.0 + 1) {
            0 => cx.consume(&block),
            times => {
                cx.pass(block);
                for number in 1..times {
                    let bytes = [last as u8, number as u8];
                    cx.append(2, Class(7), block.context, |room| {
                        room.copy_from_slice(&bytes);
                        2
                    });
                }
            }
        }
    }
}

struct PanicAtBlock;

impl LaneFilter for PanicAtBlock {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            assert!(low_byte(&block) != 77, "seventy-seven is too much");
        }
    }
}

/// Runs a request with `keep` on a machine with `processors` processors. On this machine, filters
/// are so costly that they get threads of their own. Returns the collected blocks and the number of
/// threads.
pub(crate) fn collect_staged(text: &str, processors: usize) -> (Vec<RecordedBlock>, usize) {
    let (blocks, line) = collect_on_costly_machine(text, processors);
    (blocks, line.space_count())
}

/// Runs a request like [`collect_staged`], with as many replicas as the planner chooses. Returns
/// the collected blocks and the number of replicas.
pub(crate) fn collect_adaptive(text: &str, processors: usize) -> (Vec<RecordedBlock>, usize) {
    let (blocks, line) = collect_on_costly_machine(&format!("--parallel=auto {text}"), processors);
    (blocks, line.replica_count())
}

fn collect_on_costly_machine(
    text: &str,
    processors: usize,
) -> (Vec<RecordedBlock>, PlannedRequest) {
    let mut costs = Costs::default();
    for filter in ["compress", "times", "match", "stumble", "regex", "tcp", "http"] {
        let filter = filter.to_owned();
        costs.set_filter_cost(FilterCost { filter, kernel: false, block: 2_000.0, byte: 0.0 });
    }
    let machine = Machine { processors, costs, ..Machine::example() };
    let id = next_collector_id();
    let text = text.replace("KEEP", &format!("keep id={id}"));
    let line = PlannedRequest::plan_on_machine(&machine, &text, TEST_FILTERS);
    let outcome = line.run_threaded(RunSettings::default());
    assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    (take_collected(id), line)
}

fn next_collector_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the blocks that the filter `keep` with this id has collected.
fn take_collected(id: u64) -> Vec<RecordedBlock> {
    let mut kept = COLLECTED_BY_ID.lock().expect("nobody panics here");
    kept.get_or_insert_default().remove(&id).unwrap_or_default()
}

/// Runs a request that contains the test filter `keep`, with `replicas` replicas. Returns the
/// collected blocks and the outcome.
pub(crate) fn run_replicated(text: &str, replicas: usize) -> (Vec<RecordedBlock>, RunOutcome) {
    let id = next_collector_id();
    let text = text.replace("KEEP", &format!("keep id={id}"));
    let text = format!("--parallel={replicas} {text}");
    let line = PlannedRequest::with_filters(&text, TEST_FILTERS);
    assert_eq!(line.replica_count(), if replicas > 1 { replicas } else { 0 }, "{text}");
    let outcome = line.run_threaded(RunSettings::default());
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    (take_collected(id), outcome)
}

/// Runs a request like [`run_replicated`], while another thread calls `work` with the running path.
/// Also returns the result of `work`.
pub(crate) fn run_replicated_concurrently_with<T: Send>(
    text: &str,
    replicas: usize,
    work: impl FnOnce(&PathHandle) -> T + Send,
) -> (Vec<RecordedBlock>, RunOutcome, T) {
    let id = next_collector_id();
    let text = text.replace("KEEP", &format!("keep id={id}"));
    let text = format!("--parallel={replicas} {text}");
    let line = PlannedRequest::with_filters(&text, TEST_FILTERS);
    let (outcome, result) = line.run_concurrently_with(RunSettings::default(), work);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    (take_collected(id), outcome, result)
}

/// Runs a request, which must succeed; returns the collected blocks.
pub(crate) fn collect_replicated(text: &str, replicas: usize) -> Vec<RecordedBlock> {
    let (blocks, outcome) = run_replicated(text, replicas);
    assert!(outcome.failures.is_empty(), "{text}, {replicas} copies: {:?}", outcome.failures);
    blocks
}
