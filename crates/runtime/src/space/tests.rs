//! Tests of small graphs built by hand: order at joins, sections, cycles, panics, and rings. Each
//! test checks that the ledger balances.

use super::arc::NodeId;
use super::assemble::Assembly;
use super::class_selection::SelectedClasses;
use super::node::{Operator, SinkOperator, SourceOperator};
use super::section::Section;
use super::*;
use crate::ledger::Ledger;
use crate::report::final_ledger;
use crate::ring::RingImport;
use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
use buffer::crossing::{RingConfig, crossing};
use buffer::signal::wakeup_moderation::WakeupThreshold;
use endpoint::{Failure, Intake, Sink, Source, SourceCounters, SourceProperties, SourceStatus};
use filter::{
    Amount, Batch, Block, Classify, ClassifyContext, Counts, Filter, HeldList, HoldTable,
    LaneContext, LaneFilter, Report, Stream, StreamContext,
};
use std::sync::Mutex;

mod edits;
mod operands;
mod signals;
mod writers;

/// A source of ascending numbers from 0, as blocks of four bytes.
struct NumberSource {
    next: u32,
    end: u32,
    given: Amount,
}

impl Source for NumberSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        while self.next < self.end && intake.room() > 0 {
            let bytes = self.next.to_be_bytes();
            let appended = intake.pool.append(4, |room| {
                room.copy_from_slice(&bytes);
                4
            });
            let Some((place, _)) = appended else {
                return Ok(SourceStatus::Wait { until: None, readable: false });
            };
            let pointer = RichPointer::new(intake.pool.id(), place, Class::YES);
            intake.append_block_entry(Entry::new(
                pointer,
                BlockMetadata::default(),
                Marks::for_plain_block(4),
            ));
            self.given.add_block(4);
            self.next += 1;
        }
        Ok(if self.next == self.end { SourceStatus::End } else { SourceStatus::Blocks })
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.given)
    }
}

/// A sink that stores the number and the class of each block.
struct Collector(Arc<Mutex<Vec<(u32, u32)>>>);

impl Sink for Collector {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let mut kept = self.0.lock().unwrap();
        kept.extend(batch.blocks().map(|(_, b)| (block_number(&b), b.pointer.class.0)));
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

fn block_number(block: &Block<'_>) -> u32 {
    u32::from_be_bytes(block.bytes().try_into().expect("four bytes"))
}

/// A classifier that gives class 1 to multiples of a number, and class 0 to all other blocks.
struct MultipleClassifier(u32);

impl Classify for MultipleClassifier {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        Class(u32::from(block_number(block).is_multiple_of(self.0)))
    }
}

/// A filter that holds each block until three more have arrived.
struct HoldThreeFilter(HeldList);

impl Stream for HoldThreeFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.hold(&mut self.0, &block, block_number(&block));
        if self.0.len() > 3 {
            cx.release_front_block(&mut self.0, |b| b);
        }
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        while !self.0.is_empty() {
            cx.release_front_block(&mut self.0, |b| b);
        }
    }
}

/// A filter that edits every block to add 100 to its number.
struct AddHundredFilter;

impl LaneFilter for AddHundredFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in filter::lanes(batch.live_lanes()) {
            let more = block_number(&batch.block(l)) + 100;
            cx.edit(batch, l, filter::OldBytes::Keep, |bytes| {
                bytes.copy_from_slice(&more.to_be_bytes());
            });
        }
    }
}

/// A filter that panics on every block.
struct PanicFilter;

impl Classify for PanicFilter {
    fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        assert!(block_number(block) != 40, "forty is too much");
        Class::YES
    }
}

fn create_node(name: &str, part: Operator) -> Node {
    let mut node = Node::new(name, 0, part, Counts::new(0, 0));
    node.holds = HoldTable::new(1000, 1 << 20);
    node
}

fn number_source(end: u32) -> Node {
    let source = Box::new(NumberSource { next: 0, end, given: Amount::default() });
    create_node("numbers", Operator::Source(SourceOperator::new(source)))
}

fn collector_sink(kept: &Arc<Mutex<Vec<(u32, u32)>>>) -> Node {
    let sink = Box::new(Collector(Arc::clone(kept)));
    create_node("kept", Operator::Sink(SinkOperator::new(sink)))
}

fn filter_node(name: &str, filter: Filter) -> Node {
    create_node(name, Operator::Filter(filter))
}

fn create_space(assembly: Assembly, inputs: Vec<Input>, batch: usize, ids: u32) -> Space {
    let (nodes, shape) = assembly.finish();
    let pool = |n| {
        let config = buffer::pool::PoolConfig { segment: 1 << 16, segments: 4 };
        Pool::new(DbufId::new(n).unwrap(), config).unwrap()
    };
    Space::new(SpaceParts {
        name: "thread0".to_owned(),
        nodes,
        shape,
        intakes: vec![pool(ids)],
        work: pool(ids + 1),
        inputs,
        control: Arc::new(PathControl::new().unwrap()),
        doorbell: Arc::new(Doorbell::new()),
        clock: Clock::Live,
        epoch: 0,
        options: SpaceOptions { batch_max: batch, ..SpaceOptions::default() },
    })
}

fn assert_balanced(results: &[SpaceResults]) -> Ledger {
    let ledger = final_ledger(results);
    assert_eq!(ledger.imbalances(), []);
    ledger
}

/// Runs `numbers | GRAPH | sink`, where the function `build` creates GRAPH. Returns the number and
/// the class of each block at the sink, and the results of the space.
fn run_graph(
    end: u32,
    batch: usize,
    build: impl FnOnce(&mut Assembly, NodeId, NodeId),
) -> (Vec<(u32, u32)>, SpaceResults) {
    let kept = Arc::default();
    let mut assembly = Assembly::default();
    let from = assembly.add_node(number_source(end));
    let to = assembly.add_node(collector_sink(&kept));
    build(&mut assembly, from, to);
    let results =
        create_space(assembly, vec![Input::Source { node: from, intake: 0 }], batch, 1).run();
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    (kept, results)
}

#[test]
fn join_keeps_input_order_at_every_batch_size() {
    for batch in [1, 7, 32, 64] {
        let (kept, results) = run_graph(500, batch, |a, from, to| {
            let even = a.add_node(filter_node("even", Filter::classify(MultipleClassifier(2))));
            let third = a.add_node(filter_node("third", Filter::classify(MultipleClassifier(3))));
            let late = a.add_node(filter_node(
                "late",
                Filter::stream(HoldThreeFilter(HeldList::default())),
            ));
            a.add_arc(from, even, SelectedClasses::Answered, false, 0);
            a.add_arc(from, third, SelectedClasses::Answered, false, 1);
            a.add_arc(even, to, SelectedClasses::Answered, false, 2);
            a.add_arc(third, late, SelectedClasses::Answered, false, 3);
            a.add_arc(late, to, SelectedClasses::Answered, false, 4);
        });
        assert_balanced(&[results]);
        // A block that leaves `late` has the number of the block whose arrival released it.
        let mut expected = Vec::new();
        for n in 0..500u32 {
            if n % 2 == 0 {
                expected.push((n, 1));
            }
            if n % 3 == 0 && n >= 9 {
                expected.push((n - 9, 1));
            }
        }
        let thirds: Vec<u32> = (0..500).filter(|n| n % 3 == 0).collect();
        expected.extend(thirds[thirds.len() - 3..].iter().map(|n| (*n, 1)));
        assert_eq!(kept, expected, "batches of {batch}");
    }
}

/// A filter that emits three blocks for each input block.
struct TripleFilter;

impl Stream for TripleFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.pass(block);
        cx.emit_created_block(block);
        cx.emit_created_block(block);
    }
}

#[test]
fn k2_blocks_made_before_a_fork_are_joined_block_by_block() {
    for batch in [1, 32] {
        let (kept, results) = run_graph(100, batch, |a, from, to| {
            let thrice = a.add_node(filter_node("thrice", Filter::stream(TripleFilter)));
            let left = a.add_node(filter_node("left", Filter::classify(MultipleClassifier(1))));
            let right = a.add_node(filter_node("right", Filter::lanes(AddHundredFilter)));
            a.add_arc(from, thrice, SelectedClasses::Answered, false, 0);
            a.add_arc(thrice, left, SelectedClasses::Answered, false, 1);
            a.add_arc(thrice, right, SelectedClasses::Answered, false, 2);
            a.add_arc(left, to, SelectedClasses::Answered, false, 3);
            a.add_arc(right, to, SelectedClasses::Answered, false, 4);
        });
        assert_balanced(&[results]);
        let one = |n: u32| [(n, 1), (n + 100, 1)];
        let expected: Vec<_> = (0..100).flat_map(|n| [one(n), one(n), one(n)].concat()).collect();
        assert_eq!(kept, expected, "batches of {batch}");
    }
}

/// A source that alternates between its two arcs, as a kernel program may do.
struct AlternatingArcSource(NumberSource, usize);

impl Source for AlternatingArcSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        self.1 = 1 - self.1;
        intake.arc = Some(self.1);
        self.0.produce(intake)
    }

    fn counters(&self) -> SourceCounters {
        self.0.counters()
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { chooses_arc: true, ..SourceProperties::default() }
    }
}

#[test]
fn k2_source_that_chooses_arcs_keeps_its_order_at_joins() {
    for batch in [1, 7, 32] {
        let (kept, results) = run_graph(200, batch, |a, from, to| {
            let numbers = NumberSource { next: 0, end: 200, given: Amount::default() };
            a.replace_operator(
                from,
                Operator::Source(SourceOperator::new(Box::new(AlternatingArcSource(numbers, 1)))),
            );
            let both = a.add_node(filter_node("both", Filter::classify(MultipleClassifier(1))));
            let left = a.add_node(filter_node("left", Filter::classify(MultipleClassifier(1))));
            let right = a.add_node(filter_node("right", Filter::lanes(AddHundredFilter)));
            a.add_arc(from, both, SelectedClasses::Answered, false, 0);
            a.add_arc(from, left, SelectedClasses::Answered, false, 1);
            a.add_arc(both, left, SelectedClasses::Answered, false, 2);
            a.add_arc(both, right, SelectedClasses::Answered, false, 3);
            a.add_arc(left, to, SelectedClasses::Answered, false, 4);
            a.add_arc(right, to, SelectedClasses::Answered, false, 5);
        });
        assert_balanced(&[results]);
        let parted = |n: u32| (n as usize / batch).is_multiple_of(2);
        let of = |n: u32| if parted(n) { vec![(n, 1), (n + 100, 1)] } else { vec![(n, 1)] };
        let expected: Vec<_> = (0..200).flat_map(of).collect();
        assert_eq!(kept, expected, "batches of {batch}");
    }
}

#[test]
fn edit_is_invisible_to_a_sibling_branch() {
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let edited = a.add_node(filter_node("hundred", Filter::lanes(AddHundredFilter)));
        let plain = a.add_node(filter_node("plain", Filter::classify(MultipleClassifier(1))));
        a.add_arc(from, edited, SelectedClasses::Answered, false, 0);
        a.add_arc(from, plain, SelectedClasses::Answered, false, 1);
        a.add_arc(edited, to, SelectedClasses::Answered, false, 2);
        a.add_arc(plain, to, SelectedClasses::Answered, false, 3);
    });
    assert_balanced(&[results]);
    let expected: Vec<_> = (0..100).flat_map(|n| [(n + 100, 1), (n, 1)]).collect();
    assert_eq!(kept, expected);
}

#[test]
fn section_evaluates_its_operands_in_sequence() {
    // (even +* !third) ++ seventh, and all other blocks take the other arc.
    let (kept, results) = run_graph(300, 32, |a, from, to| {
        let even = a.add_operand(filter_node("even", Filter::classify(MultipleClassifier(2))));
        let third = a.add_operand(filter_node("third", Filter::classify(MultipleClassifier(3))));
        let seventh =
            a.add_operand(filter_node("seventh", Filter::classify(MultipleClassifier(7))));
        let all = |part| (SelectedClasses::All, part);
        let not = Section::Not(Box::new(Section::Filter(third)));
        let both = Section::All(vec![all(Section::Filter(even)), all(not)]);
        let any = Section::Any(vec![all(both), all(Section::Filter(seventh))]);
        let section = a.add_node(create_node("section", Operator::Section(Arc::new(any))));
        a.add_arc(from, section, SelectedClasses::Answered, false, 0);
        a.add_arc(section, to, SelectedClasses::Answered, false, 1);
    });
    assert_balanced(&[results]);
    let wanted = |n: &u32| (n.is_multiple_of(2) && !n.is_multiple_of(3)) || n.is_multiple_of(7);
    let expected: Vec<_> = (0..300).filter(wanted).map(|n| (n, 1)).collect();
    assert_eq!(kept, expected);
}

#[test]
fn block_in_a_cycle_is_dropped_at_the_hop_limit_and_counted() {
    let (kept, results) = run_graph(10, 4, |a, from, to| {
        let again = a.add_node(filter_node("again", Filter::classify(MultipleClassifier(1))));
        a.add_arc(from, again, SelectedClasses::Answered, false, 0);
        a.add_arc(again, again, SelectedClasses::Answered, true, 1);
        a.add_arc(again, to, SelectedClasses::Answered, false, 2);
    });
    let ledger = assert_balanced(&[results]);
    assert_eq!(kept.len(), 10 * (1 + usize::from(walk::HOPS_MAX)));
    let hops = ledger.edges.iter().flat_map(|e| &e.dropped);
    let hops: u64 =
        hops.filter(|(why, _)| why.text() == "too many hops").map(|(_, a)| a.blocks).sum();
    assert_eq!(hops, 10);
}

#[test]
fn panic_of_a_filter_ends_the_path_and_captures_the_block() {
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let fails = a.add_node(filter_node("fails", Filter::classify(PanicFilter)));
        a.add_arc(from, fails, SelectedClasses::Answered, false, 0);
        a.add_arc(fails, to, SelectedClasses::Answered, false, 1);
    });
    assert_eq!(kept.len(), 32, "the batch before the one with the bug");
    let failure = results.failure.as_ref().expect("the path failed");
    let crate::failure::FailureCause::Panic { message, block } = &failure.cause else {
        panic!("{failure}");
    };
    assert!(message.contains("forty is too much"));
    assert_eq!(block.as_ref().map(|b| b.bytes.clone()), Some(40u32.to_be_bytes().to_vec()));
    assert_balanced(&[results]);
}

#[test]
fn two_spaces_with_a_small_ring_lose_no_block() {
    let kept: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let (near, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let config = RingConfig { entries: 64, ..RingConfig::default() };
    let (writer, mut readers) = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]).unwrap();
    let mut a = Assembly::default();
    let from = a.add_node(number_source(100_000));
    let out = a.add_node(create_node(
        "ring to thread1",
        Operator::Export(Box::new(crate::ring::RingExport::new(
            0,
            writer,
            (Arc::clone(&near), Arc::clone(&far)),
            WakeupThreshold::default(),
        ))),
    ));
    a.add_arc(from, out, SelectedClasses::Answered, false, 0);
    let mut first = create_space(a, vec![Input::Source { node: from, intake: 0 }], 32, 1);
    first.ports.doorbell = near;
    let mut b = Assembly::default();
    let enter = b.add_node(create_node("ring from thread0", Operator::Pass));
    let late =
        b.add_node(filter_node("late", Filter::stream(HoldThreeFilter(HeldList::default()))));
    let to = b.add_node(collector_sink(&kept));
    b.add_arc(enter, late, SelectedClasses::Answered, false, 1);
    b.add_arc(late, to, SelectedClasses::Answered, false, 2);
    let import = RingImport::new(0, readers.pop().unwrap());
    let input = Input::Ring { node: enter, import, ended: false };
    let mut second = create_space(b, vec![input], 32, 3);
    second.ports.doorbell = far;
    let other = std::thread::spawn(move || second.run());
    let results = [first.run(), other.join().unwrap()];
    assert_balanced(&results);
    let kept = kept.lock().unwrap();
    assert!(kept.iter().map(|(n, _)| *n).eq(0..100_000), "{} blocks", kept.len());
}

/// A filter that delays every block by a millisecond.
struct DelayFilter(HeldList);

impl Stream for DelayFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.hold(&mut self.0, &block, block_number(&block));
        cx.wake_at(cx.now + 1_000_000);
    }

    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        while !self.0.is_empty() {
            cx.release_front_block(&mut self.0, |b| b);
        }
    }
}

/// A source that emits one block, then emits nothing until the sink has received that block, and
/// then ends.
struct SingleBlockSource(NumberSource, Arc<Mutex<Vec<(u32, u32)>>>);

impl Source for SingleBlockSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        if self.0.next == 0 {
            return self.0.produce(intake).map(|_| SourceStatus::Blocks);
        }
        match self.1.lock().unwrap().is_empty() {
            true => Ok(SourceStatus::Wait { until: None, readable: false }),
            false => Ok(SourceStatus::End),
        }
    }

    fn counters(&self) -> SourceCounters {
        self.0.counters()
    }
}

#[test]
fn timer_of_a_filter_fires_without_input() {
    let kept: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let numbers = NumberSource { next: 0, end: 1, given: Amount::default() };
    let source = Box::new(SingleBlockSource(numbers, Arc::clone(&kept)));
    let mut a = Assembly::default();
    let from = a.add_node(create_node("one", Operator::Source(SourceOperator::new(source))));
    let delay = a.add_node(filter_node("delay", Filter::stream(DelayFilter(HeldList::default()))));
    let to = a.add_node(collector_sink(&kept));
    a.add_arc(from, delay, SelectedClasses::Answered, false, 0);
    a.add_arc(delay, to, SelectedClasses::Answered, false, 1);
    let results = create_space(a, vec![Input::Source { node: from, intake: 0 }], 32, 1).run();
    assert_balanced(&[results]);
    assert_eq!(*kept.lock().unwrap(), [(0, 1)]);
}
