//! A filter is made anew, or moved, in the middle of messages of many connections: what comes out
//! is what comes out undisturbed, byte by byte.

use crate::common::{LONG, Stop, set};
use abi::{Class, ContextLane, Entry, Marks, RichPointer};
use endpoint::{Failure, Given, Intake, Seen, Sink, SinkEntry, Source, SourceEntry};
use engine::build::{Settings, build};
use engine::catalogue::House;
use engine::run::{Outcome, Until, run};
use filter::{Amount, Batch, Report, Time};
use pipeline::plan::{Machine, plan};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::{Frame, Segment};

/// How many connections are open.
const CONNECTIONS: u32 = 10_000;

/// What came out of a block: its session, its class, its bytes.
type Out = (u32, u32, Vec<u8>);

/// One test at a time has the script and what came of it.
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
            let context = ContextLane { time: 1, ..ContextLane::default() };
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

    fn block_max(&self) -> usize {
        2048
    }

    fn tells_time(&self) -> bool {
        true
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

/// Of every connection: a beginning, the third quarter of a message before the second, the rest.
fn script() -> (Vec<Vec<u8>>, usize) {
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
    let parts = |part: usize| (0..CONNECTIONS).map(move |connection| frame(connection, part));
    let before: Vec<_> = parts(SYN).chain(parts(0)).chain(parts(2)).collect();
    let gate = before.len();
    (before.into_iter().chain(parts(1)).chain(parts(3)).collect(), gate)
}

/// What comes out of the script, when this is done to the path in the middle of all messages.
fn run_with(edits: &[&str]) -> (Vec<Out>, Outcome) {
    let (frames, gate) = script();
    *FRAMES.lock().expect("no panic") = frames;
    GATE.store(gate, Ordering::Release);
    OUT.lock().expect("no panic").clear();
    let source = endpoint::catalog::source("generate").expect("it is there").description;
    let sink = endpoint::catalog::sink("pcap").expect("it is there").description;
    let open: fn(&endpoint::Opening<'_>) -> Result<Box<dyn Source>, Failure> =
        |_| Ok(Box::new(Script { next: 0, given: Amount::default() }));
    let settings = Settings {
        sources: Box::leak(Box::new([SourceEntry { description: source, open }])),
        sinks: Box::leak(Box::new([SinkEntry { description: sink, open: |_| Ok(Box::new(Kept)) }])),
        ..Settings::default()
    };
    let text = "generate | tcp | http | pcap x";
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    let live = paths[0].live();
    live.says(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let _stop = Stop(&live);
        let held = || {
            let ledger = live.counters(LONG).ledger;
            let tcp = ledger.filters.iter().find(|node| node.name == "tcp").map(|node| node.held);
            tcp.map_or(0, |held| held.blocks)
        };
        while held() < u64::from(CONNECTIONS) {
            assert!(!live.is_ended(), "it has ended");
            std::thread::yield_now();
        }
        for words in edits {
            set(&live, words);
            assert_eq!(held(), u64::from(CONNECTIONS), "{words}: all of it came along");
        }
        GATE.store(usize::MAX, Ordering::Release);
        run.join().expect("a run")
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    (std::mem::take(&mut *OUT.lock().expect("no panic")), outcome)
}

#[test]
fn v18_m4_tcp_and_http_are_made_anew_amid_10000_open_connections() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (undisturbed, _) = run_with(&[]);
    let messages = undisturbed.iter().filter(|(_, class, _)| *class != 0).count();
    assert!(messages >= CONNECTIONS as usize, "{messages}");
    let edits = ["upgrade tcp", "upgrade http", "move http to thread1", "upgrade http"];
    let (upgraded, outcome) = run_with(&edits);
    assert!(undisturbed == upgraded, "what comes out is the same, byte by byte");
    let tcp = outcome.ledger.filters.iter().find(|node| node.name == "tcp").expect("a node");
    let new = tcp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(new.1, u64::from(CONNECTIONS), "no connection began a second time");
}

#[test]
fn v18_m4_held_blocks_move_with_tcp_to_another_space() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (undisturbed, _) = run_with(&[]);
    let (moved, _) = run_with(&["move http to thread1", "move tcp to thread1", "upgrade tcp"]);
    assert!(undisturbed == moved, "what comes out is the same, byte by byte");
}
