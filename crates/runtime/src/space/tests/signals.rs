//! Tests of the notifications between spaces on real threads: which space is woken, and when. K4,
//! K7, A16.

use super::*;
use buffer::signal::wakeup_moderation::WakeupCounts;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source that emits one number at a time. Before the next number, it waits until the previous
/// one has arrived and the reader is asleep again.
struct TrickleSource {
    numbers: NumberSource,
    arrived: Arc<AtomicU64>,
    given_at: Arc<Mutex<Vec<u64>>>,
    idle_since: Option<u64>,
}

/// Time allowed for the reader to fall asleep, in nanoseconds.
const READER_SLEEP_PAUSE_NS: u64 = 200_000;

impl Source for TrickleSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        if self.numbers.next == self.numbers.end {
            return Ok(SourceStatus::End);
        }
        let now = sys::clock::monotonic_ns();
        let later =
            Ok(SourceStatus::Wait { until: Some(now + READER_SLEEP_PAUSE_NS), readable: false });
        if self.arrived.load(Ordering::Acquire) < u64::from(self.numbers.next) {
            return later;
        }
        if now < *self.idle_since.get_or_insert(now) + READER_SLEEP_PAUSE_NS {
            return later;
        }
        self.idle_since = None;
        let end = std::mem::replace(&mut self.numbers.end, self.numbers.next + 1);
        self.given_at.lock().unwrap().push(sys::clock::monotonic_ns());
        let given = self.numbers.produce(intake);
        self.numbers.end = end;
        given.map(|_| SourceStatus::Blocks)
    }

    fn counters(&self) -> SourceCounters {
        self.numbers.counters()
    }
}

/// A source that emits numbers without pause until the counter in the second field reaches the
/// limit in the third field. Its space therefore never sleeps or flushes.
struct FloodSource(NumberSource, Arc<AtomicU64>, u64);

impl Source for FloodSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        if self.1.load(Ordering::Acquire) >= self.2 {
            return Ok(SourceStatus::End);
        }
        self.0.end = self.0.next + 8;
        self.0.produce(intake).map(|_| SourceStatus::Blocks)
    }

    fn counters(&self) -> SourceCounters {
        self.0.counters()
    }
}

/// A sink that records the arrival time of each block.
struct ArrivalSink {
    arrived: Arc<AtomicU64>,
    at: Arc<Mutex<Vec<u64>>>,
}

impl Sink for ArrivalSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let now = sys::clock::monotonic_ns();
        let mut at = self.at.lock().unwrap();
        batch.blocks().for_each(|_| at.push(now));
        self.arrived.store(at.len() as u64, Ordering::Release);
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

/// A filter that spins for a given number of nanoseconds per block.
struct SpinFilter(u64);

impl Classify for SpinFilter {
    fn classify(&mut self, _: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
        let until = sys::clock::monotonic_ns() + self.0;
        while sys::clock::monotonic_ns() < until {
            std::hint::spin_loop();
        }
        Class::NONE
    }
}

/// Runs a writer and a reader in two spaces. The first space runs `source | (ring to a second
/// space) + busy`, and also `flood | none` if `flood` is given. The second space runs the sink.
/// Returns the results of both spaces.
fn run_two_spaces(
    source: Box<dyn Source>,
    flood: Option<FloodSource>,
    sink: Box<dyn Sink>,
    threshold: WakeupThreshold,
    busy_ns: u64,
) -> [SpaceResults; 2] {
    let (near, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let config = RingConfig { entries: 256, ..RingConfig::default() };
    let (writer, mut readers) = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]).unwrap();
    let mut a = Assembly::default();
    let from = a.add_node(create_node("source", Operator::Source(SourceOperator::new(source))));
    let doorbells = (Arc::clone(&near), Arc::clone(&far));
    let export = crate::ring::RingExport::new(0, writer, doorbells, threshold);
    let out = a.add_node(create_node("ring to thread1", Operator::Export(Box::new(export))));
    let busy = a.add_node(filter_node("busy", Filter::classify(SpinFilter(busy_ns))));
    a.add_arc(from, out, SelectedClasses::Answered, false, 0);
    a.add_arc(from, busy, SelectedClasses::Answered, false, 1);
    let mut inputs = vec![Input::Source { node: from, intake: 0 }];
    if let Some(flood) = flood {
        let source = Box::new(flood);
        let flood = a.add_node(create_node("flood", Operator::Source(SourceOperator::new(source))));
        let none = a.add_node(filter_node("none", Filter::classify(SpinFilter(0))));
        a.add_arc(flood, none, SelectedClasses::Answered, false, 3);
        inputs.push(Input::Source { node: flood, intake: 0 });
    }
    let mut first = create_space(a, inputs, 32, 1);
    first.ports.doorbell = near;
    let mut b = Assembly::default();
    let enter = b.add_node(create_node("ring from thread0", Operator::Pass));
    let to = b.add_node(create_node("sink", Operator::Sink(SinkOperator::new(sink))));
    b.add_arc(enter, to, SelectedClasses::Answered, false, 2);
    let import = RingImport::new(0, readers.pop().unwrap());
    let mut second =
        create_space(b, vec![Input::Ring { node: enter, import, ended: false }], 32, 3);
    second.ports.doorbell = far;
    let other = std::thread::spawn(move || second.run());
    let results = [first.run(), other.join().unwrap()];
    assert_balanced(&results);
    results
}

fn export_wakeup_counts(results: &SpaceResults) -> WakeupCounts {
    let mut exports = results.nodes.iter().filter_map(|node| match &node.operator {
        Operator::Export(export) => Some(export.wakeup_counts()),
        _ => None,
    });
    exports.next().expect("an export")
}

/// Sends `blocks` single blocks over a ring. `ns` is the time after which the ring notifies its
/// reader of a few blocks (T_t). `busy_ns` is the time for which the writer's space is busy per
/// block. Returns the sorted latencies of the blocks in nanoseconds, and the number of the ring's
/// notifications by cause.
fn run_trickle(ns: u64, busy_ns: u64, blocks: u32) -> (Vec<u64>, WakeupCounts) {
    let (given_at, at) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::<Mutex<Vec<u64>>>::default());
    let arrived = Arc::<AtomicU64>::default();
    let numbers = |end| NumberSource { next: 0, end, given: Amount::default() };
    let flood = FloodSource(numbers(0), Arc::clone(&arrived), u64::from(blocks));
    let source = TrickleSource {
        numbers: numbers(blocks),
        arrived: Arc::clone(&arrived),
        given_at: Arc::clone(&given_at),
        idle_since: None,
    };
    let sink = Box::new(ArrivalSink { arrived, at: Arc::clone(&at) });
    let threshold = WakeupThreshold { blocks: 32, ns };
    let flood = (busy_ns == 0).then_some(flood);
    let results = run_two_spaces(Box::new(source), flood, sink, threshold, busy_ns);
    let (given_at, at) = (given_at.lock().unwrap(), at.lock().unwrap());
    let mut waits: Vec<u64> = at.iter().zip(&*given_at).map(|(at, given)| at - given).collect();
    waits.sort_unstable();
    (waits, export_wakeup_counts(&results[0]))
}

#[test]
fn a16_trickle_of_a_busy_writer_arrives_within_the_latency() {
    let (waits, events) = run_trickle(1_000_000, 0, 50);
    assert_eq!(waits.len(), 50);
    // Each block arrived although the source emits the next block only after the arrival of the
    // previous one, so the timer sent the notification. Only the shortest of many latencies is
    // checked, because other programs may use this machine.
    assert!(waits[0] < 20_000_000, "1 ms and a wake: {waits:?}");
    assert_eq!(events.batch, 0, "no batch ever fills");
    assert!(events.timer > 0, "the timer sends them, where the reader sleeps: {events:?}");
}

#[test]
fn k4_slow_filter_does_not_delay_its_siblings() {
    const BUSY_NS: u64 = 200_000_000;
    let (waits, events) = run_trickle(1_000_000, BUSY_NS, 5);
    assert!(waits[0] < BUSY_NS, "not as long as the space is busy: {waits:?}");
    assert!(events.timer > 0, "{events:?}");
}

#[test]
fn k7_steady_stream_is_signalled_in_batches() {
    let kept = Arc::default();
    let numbers = NumberSource { next: 0, end: 200_000, given: Amount::default() };
    let sink = Box::new(Collector(Arc::clone(&kept)));
    let results = run_two_spaces(Box::new(numbers), None, sink, WakeupThreshold::default(), 0);
    assert_eq!(kept.lock().unwrap().len(), 200_000);
    let events = export_wakeup_counts(&results[0]);
    assert!(events.total() <= 200_000 / 32, "at most one for 32 blocks: {events:?}");
}
