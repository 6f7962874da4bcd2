//! A scripted source for changes in the middle of messages. It emits many connections, each with
//! one message whose third quarter arrives before the second.

use crate::common::{StopGuard, TIME_LIMIT};
use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};
use endpoint::{
    Failure, Intake, Sink, SinkEntry, Source, SourceCounters, SourceEntry, SourceProperties,
    SourceStatus,
};
use engine::build::{RunSettings, build};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use filter::{Amount, Batch, Report, Time};
use pipeline::plan::{Machine, plan};
use runtime::ledger::NodeEntry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::{Frame, TcpHeader};

/// Number of connections in a long run of the scripted source.
pub(crate) const CONNECTION_COUNT: u32 = 10_000;

/// An output block: its session, class and bytes.
pub(crate) type OutputBlock = (u32, u32, Vec<u8>);

/// A lock that lets one test at a time use the script and its output.
static SCRIPT_LOCK: Mutex<()> = Mutex::new(());
/// The frames that the next script emits.
static SCRIPT_FRAMES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// Number of frames, from the first one on, that the script may emit until the test opens the gate
/// further.
static GATE_POSITION: AtomicUsize = AtomicUsize::new(0);
/// The output of the script that ran last.
static SCRIPT_OUTPUT: Mutex<Vec<OutputBlock>> = Mutex::new(Vec::new());

/// A source that emits the frames of the script up to [`GATE_POSITION`].
struct ScriptSource {
    next: usize,
    given: Amount,
}

impl Source for ScriptSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let frames = SCRIPT_FRAMES.lock().expect("no panic");
        let gate = GATE_POSITION.load(Ordering::Acquire).min(frames.len());
        while self.next < gate && intake.room() > 0 {
            let frame = &frames[self.next];
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(frame);
                frame.len()
            };
            let Some((place, _)) = intake.pool.append(frame.len(), fill) else { break };
            let length = u32::try_from(frame.len()).expect("a frame");
            let pointer = RichPointer::new(intake.pool.id(), place, Class::YES);
            // The time is constant, so that no timeout of a session filter expires.
            let context = BlockMetadata { time: 1, ..BlockMetadata::default() };
            intake.append_block_entry(Entry::new(
                pointer,
                context,
                Marks::frame(1, length, length),
            ));
            self.given.add_block(length);
            self.next += 1;
        }
        match self.next {
            all if all == frames.len() => Ok(SourceStatus::End),
            some if some < gate => Ok(SourceStatus::Blocks),
            _ => Ok(SourceStatus::Wait { until: Some(intake.now + 1_000_000), readable: false }),
        }
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.given)
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { block_max: 2048, drives_clock: true, ..SourceProperties::default() }
    }
}

/// A sink that stores its input in `SCRIPT_OUTPUT`.
struct OutputSink;

impl Sink for OutputSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let mut out = SCRIPT_OUTPUT.lock().expect("no panic");
        out.extend(batch.blocks().map(|(_, block)| {
            (block.context.session, block.pointer.class.0, block.bytes().to_vec())
        }));
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

/// Index that stands for a connection's SYN segment, which has no data, instead of a quarter of its
/// message.
const SYN_INDEX: usize = 9;

/// Builds the frames of every connection. Before the gate are the SYN segment and the first and
/// third quarters of a message; after the gate are the second and last quarters. Returns the frames
/// and the number of frames before the gate.
fn script_frames(connections: u32) -> (Vec<Vec<u8>>, usize) {
    let message = |connection: u32| {
        let body = format!("{connection:08} is what this connection says {:08}", !connection);
        format!("POST /{connection} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let frame = |connection: u32, part: usize| {
        let payload = message(connection).into_bytes();
        let quarter = payload.len() / 4;
        let from = if part == SYN_INDEX { 0 } else { part * quarter };
        let to = if part == 3 { payload.len() } else { from + quarter };
        let source = format!("10.{}.{}.9", connection >> 8, connection & 0xff);
        let number = 7 + u32::try_from(from).expect("short");
        let (sequence, flags) = if part == SYN_INDEX { (6, 0x02) } else { (number, 0x10) };
        let payload = if part == SYN_INDEX { &[] } else { &payload[from..to] };
        let ports = TcpHeader { source: 4000, target: 80, window: 8192, ..TcpHeader::default() };
        let segment = TcpHeader { sequence, flags, ..ports };
        Frame::ethernet().ipv4(&source, "192.0.2.1").tcp(&segment, payload)
    };
    let parts = |part: usize| (0..connections).map(move |connection| frame(connection, part));
    let before: Vec<_> = parts(SYN_INDEX).chain(parts(0)).chain(parts(2)).collect();
    let gate = before.len();
    (before.into_iter().chain(parts(1)).chain(parts(3)).collect(), gate)
}

/// Runs the script. Calls `act` while every message is half complete, after all frames before the
/// gate have arrived at `node`. Returns the output and the outcome.
pub(crate) fn run_script_with_request(
    (text, node): (&str, &str),
    connections: u32,
    act: impl FnOnce(&PathHandle),
) -> (Vec<OutputBlock>, RunOutcome) {
    let _one = SCRIPT_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (frames, gate) = script_frames(connections);
    *SCRIPT_FRAMES.lock().expect("no panic") = frames;
    GATE_POSITION.store(gate, Ordering::Release);
    SCRIPT_OUTPUT.lock().expect("no panic").clear();
    let source = endpoint::catalog::find_source("generate").expect("it is there").description;
    let sink = endpoint::catalog::find_sink("pcap").expect("it is there").description;
    let open: fn(&endpoint::OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> =
        |_| Ok(Box::new(ScriptSource { next: 0, given: Amount::default() }));
    let settings = RunSettings {
        sources: Box::leak(Box::new([SourceEntry::new(source, open)])),
        sinks: Box::leak(Box::new([SinkEntry::new(sink, |_| Ok(Box::new(OutputSink)))])),
        ..RunSettings::default()
    };
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    let live = paths[0].live();
    live.set_request_text(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let _stop = StopGuard(&live);
        while ledger_entry(&live, node).is_none_or(|line| line.taken.blocks < gate as u64) {
            assert!(!live.has_ended(), "it has ended");
            std::thread::yield_now();
        }
        act(&live);
        GATE_POSITION.store(usize::MAX, Ordering::Release);
        run.join().expect("a run")
    });
    assert_eq!(outcome.ledger.imbalances(), []);
    (std::mem::take(&mut *SCRIPT_OUTPUT.lock().expect("no panic")), outcome)
}

/// Returns the current ledger entry of the filter with this name, or `None` if there is no such
/// filter.
pub(crate) fn ledger_entry(live: &PathHandle, name: &str) -> Option<NodeEntry> {
    live.take_snapshot(TIME_LIMIT).ledger.filters.into_iter().find(|node| node.name == name)
}

/// Returns the number of blocks that `tcp` holds, according to the path's counters.
pub(crate) fn tcp_blocks_held(live: &PathHandle) -> u64 {
    ledger_entry(live, "tcp").map_or(0, |tcp| tcp.held.blocks)
}

/// Asserts that no connection was assigned a second session.
pub(crate) fn assert_one_session_per_connection(outcome: &RunOutcome) {
    let named = outcome.ledger.filters.iter().filter(|node| node.name == "tcp");
    let [tcp] = named.collect::<Vec<_>>()[..] else { panic!("one line: {:?}", outcome.ledger) };
    let new = tcp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(new.1, u64::from(CONNECTION_COUNT), "no connection began a second time");
}
