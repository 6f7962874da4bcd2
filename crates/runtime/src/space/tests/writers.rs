//! Tests of writers whose node is removed while filters hold the space's memory.

use super::super::node_key::NodeKey;
use super::*;
use endpoint::DropReason;
use endpoint::external_writers::{WriterForm, WriterSource, create_writer_pair};

/// A filter that holds every block until the end of the run.
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

/// A sink that sums the bytes that it receives.
struct ByteCounter(Arc<Mutex<u64>>);

impl Sink for ByteCounter {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let bytes = batch.blocks().map(|(_, block)| block.bytes().len() as u64);
        *self.0.lock().unwrap() += bytes.sum::<u64>();
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

/// Attaches a writer to the source of a space, writes until its socket is full, and removes the
/// source. Returns the number of bytes written.
fn write_and_remove_source(space: &mut Space) -> u64 {
    let (mut outside, inside) = create_writer_pair().unwrap();
    let writer = WriterSource::new(inside, WriterForm::Stream, Class::YES);
    space.attach_writer(SOURCE_NODE_NUMBER, writer).unwrap();
    let mut written = 0;
    while let Some(length) = outside.write(&[7; 16 << 10]).unwrap() {
        written += length as u64;
    }
    assert!(written > 4 << 16, "more than the pool has: {written}");
    space.retire_nodes(&|key| key != NodeKey::Node(SOURCE_NODE_NUMBER));
    assert!(outside.write(b"more").is_err(), "a removed node takes nothing more");
    written
}

/// Node number of the source in these tests.
const SOURCE_NODE_NUMBER: usize = 7;

fn silent_source() -> Node {
    let mut source = number_source(0);
    source.number = SOURCE_NODE_NUMBER;
    source
}

fn byte_counter(arrived: &Arc<Mutex<u64>>) -> Node {
    let sink = Box::new(ByteCounter(Arc::clone(arrived)));
    create_node("bytes", Operator::Sink(SinkOperator::new(sink)))
}

/// Returns the number of bytes that left the source, and the number of bytes that the node named
/// `node` dropped for the reason `why`.
fn emitted_and_dropped_bytes(ledger: &Ledger, node: &str, why: DropReason) -> (u64, u64) {
    let source = ledger.filters.iter().find(|node| node.planned == SOURCE_NODE_NUMBER).unwrap();
    let node = ledger.filters.iter().find(|entry| entry.name == node).unwrap();
    let dropped = node.dropped.iter().find(|(known, _)| *known == why);
    (source.made.bytes, dropped.map_or(0, |(_, amount)| amount.bytes))
}

#[test]
fn b7_written_bytes_at_removal_evict_held_blocks_and_are_counted() {
    let arrived = Arc::default();
    let mut assembly = Assembly::default();
    let from = assembly.add_node(silent_source());
    let hold = assembly.add_node(filter_node("hold", Filter::stream(HoldAll(HeldList::default()))));
    let to = assembly.add_node(byte_counter(&arrived));
    assembly.add_arc(from, hold, SelectedClasses::Answered, false, 0);
    assembly.add_arc(hold, to, SelectedClasses::Answered, false, 1);
    let mut space = create_space(assembly, vec![Input::Source { node: from, intake: 0 }], 32, 1);
    let written = write_and_remove_source(&mut space);
    let ledger = assert_balanced(&[space.end()]);
    let (made, evicted) = emitted_and_dropped_bytes(&ledger, "hold", DropReason::Evicted);
    assert!(evicted > 0, "{ledger:?}");
    assert_eq!((made, *arrived.lock().unwrap() + evicted), (written, written));
}

#[test]
fn b7_written_bytes_without_memory_at_removal_are_counted_as_lost() {
    let (near, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let config = RingConfig { entries: 256, ..RingConfig::default() };
    let (writer, mut readers) = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]).unwrap();
    let mut a = Assembly::default();
    let from = a.add_node(silent_source());
    let doorbells = (Arc::clone(&near), Arc::clone(&far));
    let export = crate::ring::RingExport::new(0, writer, doorbells, WakeupThreshold::default());
    let out = a.add_node(create_node("ring to thread1", Operator::Export(Box::new(export))));
    a.add_arc(from, out, SelectedClasses::Answered, false, 0);
    let mut first = create_space(a, vec![Input::Source { node: from, intake: 0 }], 32, 1);
    first.ports.doorbell = near;
    // The ring holds all memory until the other space runs.
    let written = write_and_remove_source(&mut first);
    let arrived = Arc::default();
    let mut b = Assembly::default();
    let enter = b.add_node(create_node("ring from thread0", Operator::Pass));
    let to = b.add_node(byte_counter(&arrived));
    b.add_arc(enter, to, SelectedClasses::Answered, false, 2);
    let import = RingImport::new(0, readers.pop().unwrap());
    let inputs = vec![Input::Ring { node: enter, import, ended: false }];
    let mut second = create_space(b, inputs, 32, 3);
    second.ports.doorbell = far;
    let other = std::thread::spawn(move || second.run());
    let ledger = assert_balanced(&[first.end(), other.join().unwrap()]);
    let (made, lost) = emitted_and_dropped_bytes(&ledger, "numbers", DropReason::NoRoom);
    assert!(lost > 0, "{ledger:?}");
    assert_eq!((made, *arrived.lock().unwrap() + lost), (written, written));
}
