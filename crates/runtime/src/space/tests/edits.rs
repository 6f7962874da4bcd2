//! Tests of write isolation: each rule in [Th §5.3.1], and the property that only nodes downstream
//! of an edit see the edit. L1 to L8, D15, D20.

use super::*;
use crate::ledger::EditCounts;
use crate::space::edit::FRAGMENTED_FRAME_BYTES_MIN;
use filter::{Edit, EditableBlock, OldBytes};
use testkit::Random;

/// An editing filter that adds a constant to every number, in place if the space permits.
struct AddFilter(u32);

impl Edit for AddFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        if let Some(Ok(bytes)) = block.write(OldBytes::Keep).map(<&mut [u8; 4]>::try_from) {
            *bytes = u32::from_be_bytes(*bytes).wrapping_add(self.0).to_be_bytes();
        }
        block.class()
    }
}

/// A variant of [`AddFilter`] that uses the batch interface, where all edits are made in copies.
struct CopyingAddFilter(u32);

impl LaneFilter for CopyingAddFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in filter::lanes(batch.live_lanes()) {
            let more = block_number(&batch.block(l)).wrapping_add(self.0);
            cx.edit(batch, l, OldBytes::Keep, |bytes| bytes.copy_from_slice(&more.to_be_bytes()));
        }
    }
}

/// An editing filter that changes no block.
struct NoEditFilter;

impl Edit for NoEditFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        Class(u32::from(!block.bytes().is_empty()))
    }
}

/// An editing filter that replaces every block with a new one that contains twice the number.
struct DoublingFilter;

impl Edit for DoublingFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        let old = u32::from_be_bytes(block.bytes().try_into().expect("four bytes"));
        block.replace(4, |room| {
            room.copy_from_slice(&(old * 2).to_be_bytes());
            4
        });
        block.class()
    }
}

/// An editing filter that narrows the view to the last two bytes.
struct NarrowingFilter;

impl Edit for NarrowingFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        block.narrow(2, 2);
        block.class()
    }
}

fn node_edit_counts(results: &SpaceResults, name: &str) -> EditCounts {
    results.nodes.iter().find(|node| node.name == name).expect("a node").flow.edits
}

fn direct_edit_counts(direct: u64) -> EditCounts {
    EditCounts { direct, ..EditCounts::default() }
}

fn copied_edit_counts(copied: u64) -> EditCounts {
    EditCounts { copied, ..EditCounts::default() }
}

type ReceivedNumbers = Arc<Mutex<Vec<(u32, u32)>>>;

fn received_numbers(kept: &ReceivedNumbers) -> Vec<u32> {
    kept.lock().unwrap().iter().map(|(n, _)| *n).collect()
}

#[test]
fn l8_rule_1_filter_without_edits_copies_nothing() {
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let looks = a.add_node(filter_node("looks", Filter::edit(NoEditFilter)));
        a.add_arc(from, looks, SelectedClasses::Answered, false, 0);
        a.add_arc(looks, to, SelectedClasses::Answered, false, 1);
    });
    assert_eq!((kept.len(), node_edit_counts(&results, "looks")), (100, EditCounts::default()));
    assert_balanced(&[results]);
}

#[test]
fn l8_rule_2_block_read_only_downstream_is_edited_in_place() {
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let (one, two) =
            (a.add_node(filter_node("one", Filter::edit(AddFilter(100)))), AddFilter(1000));
        let two = a.add_node(filter_node("two", Filter::edit(two)));
        a.add_arc(from, one, SelectedClasses::Answered, false, 0);
        a.add_arc(one, two, SelectedClasses::Answered, false, 1);
        a.add_arc(two, to, SelectedClasses::Answered, false, 2);
    });
    assert!(kept.iter().map(|(n, _)| *n).eq((0..100).map(|n| n + 1100)));
    assert_eq!(
        [node_edit_counts(&results, "one"), node_edit_counts(&results, "two")],
        [direct_edit_counts(100), direct_edit_counts(100)]
    );
    assert_balanced(&[results]);
}

#[test]
fn l3_l8_rule_2_parallel_reads_precede_an_edit_in_place() {
    for editor_first in [true, false] {
        let read: ReceivedNumbers = Arc::default();
        let (kept, results) = run_graph(100, 32, |a, from, to| {
            let reader = a.add_node(collector_sink(&read));
            let add = a.add_node(filter_node("add", Filter::edit(AddFilter(100))));
            let ends = if editor_first { [add, reader] } else { [reader, add] };
            for (i, end) in ends.into_iter().enumerate() {
                a.add_arc(from, end, SelectedClasses::Answered, false, i);
            }
            a.add_arc(add, to, SelectedClasses::Answered, false, 2);
        });
        assert!(kept.iter().map(|(n, _)| *n).eq(100..200));
        assert!(
            received_numbers(&read).into_iter().eq(0..100),
            "a sibling does not see the change"
        );
        assert_eq!(
            node_edit_counts(&results, "add"),
            direct_edit_counts(100),
            "editor first: {editor_first}"
        );
        assert_balanced(&[results]);
    }
}

#[test]
fn l4_l8_rule_3_new_block_in_place_of_an_edit_copies_nothing() {
    let read: ReceivedNumbers = Arc::default();
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let reader = a.add_node(collector_sink(&read));
        let doubles = a.add_node(filter_node("doubles", Filter::edit(DoublingFilter)));
        a.add_arc(from, doubles, SelectedClasses::Answered, false, 0);
        a.add_arc(from, reader, SelectedClasses::Answered, false, 1);
        a.add_arc(doubles, to, SelectedClasses::Answered, false, 2);
    });
    assert!(kept.iter().map(|(n, _)| *n).eq((0..100).map(|n| n * 2)));
    assert!(received_numbers(&read).into_iter().eq(0..100));
    let appended = EditCounts { appended: 100, ..EditCounts::default() };
    assert_eq!(node_edit_counts(&results, "doubles"), appended);
    assert_balanced(&[results]);
}

#[test]
fn l5_l8_rule_4_change_of_metadata_copies_and_writes_no_byte() {
    let lengths: Arc<Mutex<Vec<(RichPointer, u32)>>> = Arc::default();
    struct LengthSink(Arc<Mutex<Vec<(RichPointer, u32)>>>);
    impl Sink for LengthSink {
        fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
            let blocks = batch.blocks().map(|(_, b)| (b.entry().frame(), b.length()));
            self.0.lock().unwrap().extend(blocks);
            Ok(())
        }
        fn finish(&mut self) -> Result<Report, Failure> {
            Ok(Report::default())
        }
    }
    let (_, results) = run_graph(10, 32, |a, from, _| {
        let tails = a.add_node(filter_node("tails", Filter::edit(NarrowingFilter)));
        let sink = Box::new(LengthSink(Arc::clone(&lengths)));
        let sink = a.add_node(create_node("seen", Operator::Sink(SinkOperator::new(sink))));
        a.add_arc(from, tails, SelectedClasses::Answered, false, 0);
        a.add_arc(tails, sink, SelectedClasses::Answered, false, 1);
    });
    let lengths = lengths.lock().unwrap();
    assert!(
        lengths.len() == 10
            && lengths.iter().all(|(frame, length)| {
                frame.dbuf() == DbufId::new(1).unwrap() && frame.length() == 4 && *length == 2
            })
    );
    assert_eq!(node_edit_counts(&results, "tails"), EditCounts::default());
}

#[test]
fn l2_only_one_of_two_parallel_editors_copies() {
    let other: ReceivedNumbers = Arc::default();
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let one = a.add_node(filter_node("one", Filter::edit(AddFilter(100))));
        let two = a.add_node(filter_node("two", Filter::edit(AddFilter(1000))));
        let end = a.add_node(collector_sink(&other));
        a.add_arc(from, one, SelectedClasses::Answered, false, 0);
        a.add_arc(from, two, SelectedClasses::Answered, false, 1);
        a.add_arc(one, to, SelectedClasses::Answered, false, 2);
        a.add_arc(two, end, SelectedClasses::Answered, false, 3);
    });
    assert!(kept.iter().map(|(n, _)| *n).eq(100..200));
    assert!(received_numbers(&other).into_iter().eq(1000..1100));
    let both = [node_edit_counts(&results, "one"), node_edit_counts(&results, "two")];
    assert!(
        both == [copied_edit_counts(100), direct_edit_counts(100)]
            || both == [direct_edit_counts(100), copied_edit_counts(100)],
        "{both:?}"
    );
    assert_balanced(&[results]);
}

#[test]
fn l2_d15_held_block_is_copied_before_an_edit() {
    let late: ReceivedNumbers = Arc::default();
    let (kept, results) = run_graph(100, 32, |a, from, to| {
        let add = a.add_node(filter_node("add", Filter::edit(AddFilter(100))));
        let holds =
            a.add_node(filter_node("late", Filter::stream(HoldThreeFilter(HeldList::default()))));
        let end = a.add_node(collector_sink(&late));
        a.add_arc(from, add, SelectedClasses::Answered, false, 0);
        a.add_arc(from, holds, SelectedClasses::Answered, false, 1);
        a.add_arc(add, to, SelectedClasses::Answered, false, 2);
        a.add_arc(holds, end, SelectedClasses::Answered, false, 3);
    });
    assert!(kept.iter().map(|(n, _)| *n).eq(100..200));
    assert!(received_numbers(&late).into_iter().eq(0..100), "what was held left as it had come");
    assert_eq!(node_edit_counts(&results, "add"), copied_edit_counts(100));
    assert_balanced(&[results]);
}

#[test]
fn l2_blocks_that_share_bytes_are_edited_in_copies() {
    let (kept, results) = run_graph(30, 8, |a, from, to| {
        let thrice = a.add_node(filter_node("thrice", Filter::stream(TripleFilter)));
        let add = a.add_node(filter_node("add", Filter::edit(AddFilter(100))));
        a.add_arc(from, thrice, SelectedClasses::Answered, false, 0);
        a.add_arc(thrice, add, SelectedClasses::Answered, false, 1);
        a.add_arc(add, to, SelectedClasses::Answered, false, 2);
    });
    let thrice = (100..130).flat_map(|n| [n; 3]);
    assert!(kept.iter().map(|(n, _)| *n).eq(thrice), "each is changed once: {kept:?}");
    assert_eq!(node_edit_counts(&results, "add"), copied_edit_counts(90));
    assert_balanced(&[results]);
}

/// Runs `numbers | (ring to a second space | add | sink)`. If `edits_here` is true, the first space
/// also runs `add | sink`. Returns the numbers at the sink of the second space, those at the sink
/// of the first space, and the results of both spaces, first space first.
fn run_edit_over_ring(edits_here: bool) -> (Vec<u32>, Vec<u32>, [SpaceResults; 2]) {
    let (there, here): (ReceivedNumbers, ReceivedNumbers) = (Arc::default(), Arc::default());
    let (near, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let config = RingConfig { entries: 64, ..RingConfig::default() };
    let (writer, mut readers) = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]).unwrap();
    let mut a = Assembly::default();
    let from = a.add_node(number_source(10_000));
    let doorbells = (Arc::clone(&near), Arc::clone(&far));
    let export = crate::ring::RingExport::new(0, writer, doorbells, WakeupThreshold::default());
    let out = a.add_node(create_node("ring to thread1", Operator::Export(Box::new(export))));
    a.add_arc(from, out, SelectedClasses::Answered, false, 0);
    if edits_here {
        let add = a.add_node(filter_node("here", Filter::edit(AddFilter(500_000))));
        let end = a.add_node(collector_sink(&here));
        a.add_arc(from, add, SelectedClasses::Answered, false, 1);
        a.add_arc(add, end, SelectedClasses::Answered, false, 2);
    }
    let mut first = create_space(a, vec![Input::Source { node: from, intake: 0 }], 32, 1);
    first.ports.doorbell = near;
    let mut b = Assembly::default();
    let enter = b.add_node(create_node("ring from thread0", Operator::Pass));
    let add = b.add_node(filter_node("there", Filter::edit(AddFilter(100_000))));
    let to = b.add_node(collector_sink(&there));
    b.add_arc(enter, add, SelectedClasses::Answered, false, 1);
    b.add_arc(add, to, SelectedClasses::Answered, false, 2);
    let import = RingImport::new(0, readers.pop().unwrap());
    let mut second =
        create_space(b, vec![Input::Ring { node: enter, import, ended: false }], 32, 3);
    second.ports.doorbell = far;
    let other = std::thread::spawn(move || second.run());
    let results = [first.run(), other.join().unwrap()];
    assert_balanced(&results);
    (received_numbers(&there), received_numbers(&here), results)
}

#[test]
fn l7_block_of_another_space_is_edited_in_the_local_pool() {
    let (there, _, results) = run_edit_over_ring(false);
    assert!(there.into_iter().eq(100_000..110_000));
    assert_eq!(node_edit_counts(&results[1], "there"), copied_edit_counts(10_000));
}

#[test]
fn l2_d15_block_in_a_ring_is_copied_before_an_edit() {
    let (there, here, results) = run_edit_over_ring(true);
    assert!(there.into_iter().eq(100_000..110_000), "the other space saw no change");
    assert!(here.into_iter().eq(500_000..510_000));
    assert_eq!(node_edit_counts(&results[0], "here"), copied_edit_counts(10_000));
}

/// A source of long blocks whose bytes are all equal.
struct LongBlockSource(u8);

impl Source for LongBlockSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        if self.0 == 3 {
            return Ok(SourceStatus::End);
        }
        let fill = |room: &mut [u8]| {
            room.fill(self.0);
            room.len()
        };
        let (place, _) = intake.pool.append(FRAGMENTED_FRAME_BYTES_MIN, fill).expect("memory");
        let pointer = RichPointer::new(intake.pool.id(), place, Class::YES);
        let whole = abi::BlockFlags::FIRST.with(abi::BlockFlags::LAST);
        let context = BlockMetadata { flags: whole, ..BlockMetadata::default() };
        intake.append_block_entry(Entry::new(
            pointer,
            context,
            Marks::for_plain_block(FRAGMENTED_FRAME_BYTES_MIN as u32),
        ));
        self.0 += 1;
        Ok(SourceStatus::Blocks)
    }

    fn counters(&self) -> SourceCounters {
        let bytes = u64::from(self.0) * FRAGMENTED_FRAME_BYTES_MIN as u64;
        SourceCounters::lossless(Amount { blocks: self.0.into(), bytes })
    }
}

/// An editing filter that writes a few bytes in the middle of the block.
struct StampFilter;

impl Edit for StampFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        if let Some(bytes) = block.write_part(1000, 8, OldBytes::Discard) {
            bytes.fill(0xee);
        }
        block.class()
    }
}

type ReceivedFragments = Vec<(DbufId, u16, Vec<u8>)>;

struct FragmentSink(Arc<Mutex<ReceivedFragments>>);

impl Sink for FragmentSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let piece = |b: &Block<'_>| (b.pointer.dbuf(), b.context.flags.0, b.bytes().to_vec());
        self.0.lock().unwrap().extend(batch.blocks().map(|(_, b)| piece(&b)));
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

/// Runs `long | (stamps | sink) + hold`. The filter `hold` holds the blocks, so that the edits of
/// `stamps` meet shared blocks. If `fragments` is true, the node after `stamps` accepts fragments.
/// Returns the fragments at the sink, and the number of edits by method.
fn run_stamp_filter(fragments: bool) -> (ReceivedFragments, EditCounts) {
    let (edited, held): (Arc<Mutex<ReceivedFragments>>, Arc<Mutex<ReceivedFragments>>) =
        (Arc::default(), Arc::default());
    let mut a = Assembly::default();
    let source = Box::new(LongBlockSource(0));
    let from = a.add_node(create_node("long", Operator::Source(SourceOperator::new(source))));
    let mut stamps = filter_node("stamps", Filter::edit(StampFilter));
    stamps.fragments = fragments;
    let stamps = a.add_node(stamps);
    let part = |to: &Arc<Mutex<ReceivedFragments>>| {
        Operator::Sink(SinkOperator::new(Box::new(FragmentSink(Arc::clone(to)))))
    };
    let (to, end) = (
        a.add_node(create_node("edited", part(&edited))),
        a.add_node(create_node("read", part(&held))),
    );
    // Holds every block to the end, so that it is shared.
    struct HoldAll(HeldList);
    impl Stream for HoldAll {
        fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
            cx.hold(&mut self.0, &block, 0);
        }
        fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
            while !self.0.is_empty() {
                cx.release_front_block(&mut self.0, |b| b);
            }
        }
    }
    let keeps = a.add_node(filter_node("keeps", Filter::stream(HoldAll(HeldList::default()))));
    a.add_arc(from, stamps, SelectedClasses::Answered, false, 0);
    a.add_arc(from, keeps, SelectedClasses::Answered, false, 1);
    a.add_arc(stamps, to, SelectedClasses::Answered, false, 2);
    a.add_arc(keeps, end, SelectedClasses::Answered, false, 3);
    let results = create_space(a, vec![Input::Source { node: from, intake: 0 }], 32, 1).run();
    let held = held.lock().unwrap();
    assert!(held.len() == 3, "{}", held.len());
    for (n, (_, _, bytes)) in held.iter().enumerate() {
        assert!(bytes.iter().all(|b| usize::from(*b) == n), "what was held is as it was");
    }
    let how = node_edit_counts(&results, "stamps");
    assert_balanced(&[results]);
    let pieces = edited.lock().unwrap().clone();
    (pieces, how)
}

#[test]
fn l6_edit_of_a_large_block_copies_only_the_written_part() {
    let (pieces, how) = run_stamp_filter(true);
    assert_eq!(how, EditCounts { fragmented: 3, ..EditCounts::default() });
    let (intake, work) = (DbufId::new(1).unwrap(), DbufId::new(2).unwrap());
    let lengths: Vec<_> = pieces.iter().map(|(dbuf, flags, b)| (*dbuf, *flags, b.len())).collect();
    let three = [(intake, 1, 1000), (work, 0, 8), (intake, 2, FRAGMENTED_FRAME_BYTES_MIN - 1008)];
    assert_eq!(lengths, [three, three, three].concat(), "first, middle and last");
    let (whole, how) = run_stamp_filter(false);
    assert_eq!(how, copied_edit_counts(3), "those behind take no fragments");
    let together = |pieces: &ReceivedFragments| -> Vec<u8> {
        pieces.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect()
    };
    assert_eq!(together(&pieces), together(&whole), "the same bytes");
}

#[test]
fn d20_linear_pipe_reuses_its_rich_pointers() {
    // Filters record the addresses of the columns that they read.
    struct ColumnAddressSink(Arc<Mutex<Vec<usize>>>);
    impl filter::Statistics for ColumnAddressSink {
        fn record(&mut self, tags: filter::MetadataView<'_>, _: Time) {
            self.0.lock().unwrap().push(tags.pointers.as_ptr().addr());
        }
    }
    let addresses: Arc<Mutex<Vec<usize>>> = Arc::default();
    let looks = |a: &mut Assembly| {
        a.add_node(filter_node("w", Filter::statistics(ColumnAddressSink(Arc::clone(&addresses)))))
    };
    run_graph(10, 32, |a, from, to| {
        let (one, add, two) =
            (looks(a), a.add_node(filter_node("add", Filter::edit(AddFilter(1)))), looks(a));
        let three = looks(a);
        for (i, (from, to)) in
            [(from, one), (one, two), (two, three), (three, add), (add, to)].into_iter().enumerate()
        {
            a.add_arc(from, to, SelectedClasses::Answered, false, i);
        }
    });
    let linear = std::mem::take(&mut *addresses.lock().unwrap());
    assert!(linear.len() == 3 && linear.iter().all(|at| *at == linear[0]), "{linear:?}");
    run_graph(10, 32, |a, from, to| {
        let (one, two) = (looks(a), looks(a));
        a.add_arc(from, one, SelectedClasses::Answered, false, 0);
        a.add_arc(from, two, SelectedClasses::Answered, false, 1);
        a.add_arc(one, to, SelectedClasses::Answered, false, 2);
    });
    let split = addresses.lock().unwrap();
    assert!(split.len() == 2 && split[0] != split[1], "copied where paths part: {split:?}");
}

/// A node of a random graph: its operation, and the nodes from which it receives blocks.
#[derive(Clone, Debug)]
struct GraphNode {
    what: u32,
    amount: u32,
    from: Vec<usize>,
    all: bool,
}

fn random_graph(random: &mut Random) -> Vec<GraphNode> {
    let count = 2 + random.below(9) as usize;
    let step = |i: usize, random: &mut Random| {
        let mut from = vec![random.below(i as u64 + 1) as usize];
        if random.below(3) == 0 {
            let other = random.below(i as u64 + 1) as usize;
            if !from.contains(&other) {
                from.push(other);
            }
        }
        let (what, amount) = (random.below(7) as u32, 1 + random.below(1 << 20) as u32);
        GraphNode { what, amount, from, all: random.below(2) == 0 }
    };
    (0..count).map(|i| step(i, random)).collect()
}

/// The editing mode of the filters in a random graph.
#[derive(Clone, Copy, PartialEq)]
enum EditMode {
    Free,
    Copies,
    InBatches,
}

/// Runs a random graph with a sink after every node. Returns the numbers at each sink, and the
/// number of in-place edits.
fn run_random_graph(steps: &[GraphNode], how: EditMode, batch: usize) -> (Vec<Vec<u32>>, u64) {
    let mut kept: Vec<ReceivedNumbers> = Vec::new();
    let mut a = Assembly::default();
    let mut nodes = vec![a.add_node(number_source(150))];
    let mut edges = 0;
    let mut arc = |a: &mut Assembly, from, to, wanted| {
        a.add_arc(from, to, wanted, false, edges);
        edges += 1;
    };
    for step in steps {
        let made = match step.what {
            0..=2 if how == EditMode::InBatches => {
                filter_node("add", Filter::lanes(CopyingAddFilter(step.amount)))
            }
            0..=2 => filter_node("add", Filter::edit(AddFilter(step.amount))),
            3 => filter_node("late", Filter::stream(HoldThreeFilter(HeldList::default()))),
            4 => filter_node("thrice", Filter::stream(TripleFilter)),
            _ => filter_node("multiple", Filter::classify(MultipleClassifier(2 + step.amount % 3))),
        };
        let at = a.add_node(made);
        for from in &step.from {
            let wanted = if step.all { SelectedClasses::All } else { SelectedClasses::Answered };
            arc(&mut a, nodes[*from], at, wanted);
        }
        let keeps: ReceivedNumbers = Arc::default();
        let end = a.add_node(collector_sink(&keeps));
        // Some sinks precede the other branches, and some follow them.
        arc(&mut a, at, end, SelectedClasses::All);
        kept.push(keeps);
        nodes.push(at);
    }
    let input = Input::Source { node: nodes[0], intake: 0 };
    let mut space = create_space(a, vec![input], batch, 1);
    space.graph.pass.edits_in_copies = how == EditMode::Copies;
    let results = space.run();
    let direct = results.nodes.iter().map(|node| node.flow.edits.direct).sum();
    assert_balanced(&[results]);
    (kept.iter().map(received_numbers).collect(), direct)
}

#[test]
fn l1_random_graph_edits_are_visible_only_downstream() {
    let mut random = Random::with_replayable_seed();
    let mut in_place = 0;
    for round in 0..400 {
        let steps = random_graph(&mut random);
        let batch = [1, 7, 32, 64][round % 4];
        let (free, direct) = run_random_graph(&steps, EditMode::Free, batch);
        let (copies, none) = run_random_graph(&steps, EditMode::Copies, batch);
        let (batches, _) = run_random_graph(&steps, EditMode::InBatches, batch);
        assert_eq!(free, copies, "{steps:?}");
        let sorted = |all: Vec<Vec<u32>>| -> Vec<Vec<u32>> {
            let sort = |mut one: Vec<u32>| {
                one.sort_unstable();
                one
            };
            all.into_iter().map(sort).collect()
        };
        assert_eq!(sorted(free), sorted(batches), "{steps:?}");
        assert_eq!(none, 0);
        in_place += direct;
    }
    assert!(in_place > 10_000, "the graphs let {in_place} blocks be changed where they lay");
}
