//! A script of frames in the middle of which a path is changed: many connections, each with a
//! message of which the third quarter came before the second.

use crate::common::{LONG, Stop};
use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};
use endpoint::{
    Failure, Given, Intake, Seen, Sink, SinkEntry, Source, SourceEntry, SourceProperties,
};
use engine::build::{Settings, build};
use engine::catalogue::House;
use engine::live::Live;
use engine::run::{Outcome, Until, run};
use filter::{Amount, Batch, Report, Time};
use pipeline::plan::{Machine, plan};
use runtime::ledger::Filtered;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::{Frame, Segment};

/// Number of open connections.
pub(crate) const CONNECTIONS: u32 = 10_000;

/// An output block: its session, its class, its bytes.
pub(crate) type Out = (u32, u32, Vec<u8>);

/// A lock that gives one test at a time the script and its output.
static ONE: Mutex<()> = Mutex::new(());
static FRAMES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
static GATE: AtomicUsize = AtomicUsize::new(0);
static OUT: Mutex<Vec<Out>> = Mutex::new(Vec::new());

/// Gives the frames of the script as far as the gate is open.
struct Script {
    next: usize,
    given: Amount,
}

impl Source for Script {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let frames = FRAMES.lock().expect("no panic");
        let gate = GATE.load(Ordering::Acquire).min(frames.len());
        while self.next < gate && intake.room() > 0 {
            let frame = &frames[self.next];
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(frame);
                frame.len()
            };
            let Some((place, _)) = intake.pool.append(frame.len(), fill) else { break };
            let length = u32::try_from(frame.len()).expect("a frame");
            let pointer = RichPointer::new(intake.pool.id(), place, Class::YES);
            // Session filters give each connection a time; here nothing ever falls due.
            let context = BlockMetadata { time: 1, ..BlockMetadata::default() };
            intake.put(Entry::new(pointer, context, Marks::frame(1, length, length)));
            self.given.add(length);
            self.next += 1;
        }
        match self.next {
            all if all == frames.len() => Ok(Given::End),
            some if some < gate => Ok(Given::Blocks),
            _ => Ok(Given::Wait { until: Some(intake.now + 1_000_000), readable: false }),
        }
    }

    fn seen(&self) -> Seen {
        Seen::all(self.given)
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { block_max: 2048, tells_time: true, ..SourceProperties::default() }
    }
}

/// Keeps what comes.
struct Kept;

impl Sink for Kept {
    fn take(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let mut out = OUT.lock().expect("no panic");
        out.extend(batch.blocks().map(|(_, block)| {
            (block.context.session, block.pointer.class.0, block.bytes().to_vec())
        }));
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

/// The part of a connection that says nothing yet.
const SYN: usize = 9;

/// Builds the frames of every connection: a beginning, the third quarter of a message before the
/// second, the rest.
fn script(connections: u32) -> (Vec<Vec<u8>>, usize) {
    let message = |connection: u32| {
        let body = format!("{connection:08} is what this connection says {:08}", !connection);
        format!("POST /{connection} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let frame = |connection: u32, part: usize| {
        let said = message(connection).into_bytes();
        let quarter = said.len() / 4;
        let from = if part == SYN { 0 } else { part * quarter };
        let to = if part == 3 { said.len() } else { from + quarter };
        let source = format!("10.{}.{}.9", connection >> 8, connection & 0xff);
        let number = 7 + u32::try_from(from).expect("short");
        let (sequence, flags) = if part == SYN { (6, 0x02) } else { (number, 0x10) };
        let said = if part == SYN { &[] } else { &said[from..to] };
        let ports = Segment { source: 4000, target: 80, window: 8192, ..Segment::default() };
        let segment = Segment { sequence, flags, ..ports };
        Frame::ethernet().ipv4(&source, "192.0.2.1").tcp(&segment, said)
    };
    let parts = |part: usize| (0..connections).map(move |connection| frame(connection, part));
    let before: Vec<_> = parts(SYN).chain(parts(0)).chain(parts(2)).collect();
    let gate = before.len();
    (before.into_iter().chain(parts(1)).chain(parts(3)).collect(), gate)
}

/// Runs the script and calls `act` in the middle of all messages, once they have come to `node`;
/// returns the output.
pub(crate) fn amid(
    (text, node): (&str, &str),
    connections: u32,
    act: impl FnOnce(&Live),
) -> (Vec<Out>, Outcome) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (frames, gate) = script(connections);
    *FRAMES.lock().expect("no panic") = frames;
    GATE.store(gate, Ordering::Release);
    OUT.lock().expect("no panic").clear();
    let source = endpoint::catalog::source("generate").expect("it is there").description;
    let sink = endpoint::catalog::sink("pcap").expect("it is there").description;
    let open: fn(&endpoint::Opening<'_>) -> Result<Box<dyn Source>, Failure> =
        |_| Ok(Box::new(Script { next: 0, given: Amount::default() }));
    let settings = Settings {
        sources: Box::leak(Box::new([SourceEntry::new(source, open)])),
        sinks: Box::leak(Box::new([SinkEntry::new(sink, |_| Ok(Box::new(Kept)))])),
        ..Settings::default()
    };
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    let live = paths[0].live();
    live.says(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let _stop = Stop(&live);
        while line_of(&live, node).is_none_or(|line| line.taken.blocks < gate as u64) {
            assert!(!live.is_ended(), "it has ended");
            std::thread::yield_now();
        }
        act(&live);
        GATE.store(usize::MAX, Ordering::Release);
        run.join().expect("a run")
    });
    assert_eq!(outcome.ledger.imbalances(), []);
    (std::mem::take(&mut *OUT.lock().expect("no panic")), outcome)
}

/// Returns the current ledger row of the filter of this name.
pub(crate) fn line_of(live: &Live, name: &str) -> Option<Filtered> {
    live.counters(LONG).ledger.filters.into_iter().find(|node| node.name == name)
}

/// Returns the number of blocks that `tcp` holds, as the path knows.
pub(crate) fn held(live: &Live) -> u64 {
    line_of(live, "tcp").map_or(0, |tcp| tcp.held.blocks)
}

/// Asserts that no connection began a second time.
pub(crate) fn assert_sessions(outcome: &Outcome) {
    let named = outcome.ledger.filters.iter().filter(|node| node.name == "tcp");
    let [tcp] = named.collect::<Vec<_>>()[..] else { panic!("one line: {:?}", outcome.ledger) };
    let new = tcp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(new.1, u64::from(CONNECTIONS), "no connection began a second time");
}
