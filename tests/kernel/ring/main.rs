//! Tests of the kernel as the writer of a ring (CONTRACT 29), on a veth pair: for each of several
//! reading processes, the packets received and lost add up to the packets sent, no copy is torn,
//! and doorbells are rate-limited. Ignored tests measure the cost per packet.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "figures are told with the result")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod in_place;
mod program;
mod reader;
#[path = "../../common/scratch.rs"]
mod scratch;

use ebpf::emit::tap::{WakePolicy, WakeupTarget};
use endpoint::source::kernel::reader::KernelRingReader as Walk;
use program::NO_DOORBELL;
use reader::{FrameContent, Reader, ReaderCounts};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::bpf::RunStatisticsGuard;
use sys::bpf::ring::region_offset::{FAILED_COPIES, NOTIFICATION_COUNTS};
use sys::bpf::{
    ChainPosition, Link, Program, ProgramKind, ProgramRings, RingBuffer, RingBufferListener,
    RingsLayout, TrafficDirection,
};
use sys::net::RouteSocket;
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, wait_until,
};
use testkit::{Frame, Random, need};

const MILLISECOND_NS: u32 = 1_000_000;
const RING_WAIT_MAX: Duration = Duration::from_secs(60);
const WAKE_POLICY: WakePolicy = WakePolicy {
    blocks: 32,
    apart_ns: MILLISECOND_NS,
    wait_ns: 10 * MILLISECOND_NS,
    bytes: 1 << 20,
    frames: 1 << 10,
    target: WakeupTarget::Everyone,
};

/// A tap at the receiving end of a veth pair.
struct Tap {
    rings: Arc<ProgramRings>,
    doorbell: RingBuffer,
    program: Program,
    _link: Link,
}

impl Tap {
    fn new(pair: &NamespacePair, shape: RingsLayout, when: WakePolicy) -> Self {
        let rings = Arc::new(ProgramRings::create("ring", shape).unwrap());
        let doorbell = RingBuffer::create("bell", 1 << 16).unwrap();
        let program = program::load_ring_program(&rings, &doorbell, when);
        let link = pair.server.run_in_network_namespace(|| {
            let index =
                RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
            Link::attach_tcx(&program, index, TrafficDirection::Ingress, ChainPosition::Head, None)
                .unwrap()
        });
        Self { rings, doorbell, program, _link: link }
    }

    fn sum_rings(&self, one: impl Fn(u32) -> u64) -> u64 {
        (0..self.rings.layout().cpus).map(one).sum()
    }

    fn frames_produced(&self) -> u64 {
        self.sum_rings(|cpu| self.rings.cpu_ring(cpu).unwrap().sink_pointer_count(0))
    }

    fn sum_ring_word(&self, at: u32) -> u64 {
        self.sum_rings(|cpu| self.rings.cpu_ring(cpu).unwrap().scratch_word(at).unwrap())
    }

    fn start_readers(&self, count: usize, content: FrameContent) -> Vec<Reader> {
        (0..count).map(|_| Reader::start(&self.rings, &self.doorbell, content)).collect()
    }
}

fn processor_count() -> u32 {
    sys::machine::count_possible_processors().unwrap() as u32
}

fn veth_pair(addresses: bool) -> Option<NamespacePair> {
    need::require_bpf()?;
    need::require_root()?;
    NamespacePair::new(DevicePairSettings { addresses, ..DevicePairSettings::default() })
}

/// Returns a frame that contains `number` and bytes derived from it.
fn numbered_frame(number: u32, length: usize) -> Vec<u8> {
    let fill = (0..length).map(|at| (number as usize + at) as u8);
    let payload = [&number.to_be_bytes()[..], &fill.collect::<Vec<u8>>()].concat();
    Frame::ethernet().link_payload(0x88b5, &payload)
}

/// Sends `count` frames of mixed lengths.
fn send_numbered_frames(pair: &NamespacePair, count: u32) {
    let mut random = Random::with_replayable_seed();
    let length = |random: &mut Random| {
        *random.pick(&[10, 42, 60, 98, 200, 700, 1482]) + random.within(0..14)
    };
    let frames: Vec<Vec<u8>> =
        (0..1_000).map(|number| numbered_frame(number, length(&mut random))).collect();
    let mut left = count as usize;
    while left > 0 {
        let bunch = left.min(frames.len());
        send_frames(pair, &frames[..bunch]);
        left -= bunch;
    }
}

/// Sends frames unchanged and in order from the client's end of a veth pair.
fn send_frames(pair: &NamespacePair, frames: &[Vec<u8>]) {
    pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(CLIENT_DEVICE).unwrap().index;
        let mut sender = PacketSender::open(index, QdiscMode::Bypass).unwrap();
        let mut parts: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        while !parts.is_empty() {
            let sent = sender.send(&parts);
            parts.drain(..sent.frames);
        }
    });
}

/// Sends `packets` frames to a tap with `readers` readers. Asserts that every reader accounts for
/// every frame. Returns the counts of the readers.
fn send_and_check_counts(
    pair: &NamespacePair,
    shape: RingsLayout,
    packets: u32,
    readers: usize,
) -> Vec<ReaderCounts> {
    let mut tap = Tap::new(pair, shape, WAKE_POLICY);
    let running = tap.start_readers(readers, FrameContent::Numbered);
    let begin = Instant::now();
    send_numbered_frames(pair, packets);
    wait_until("all have been written", || tap.frames_produced() == u64::from(packets));
    let took = begin.elapsed();
    let counts: Vec<ReaderCounts> = running.into_iter().map(Reader::stop).collect();
    let (doorbells, failed) =
        (tap.sum_ring_word(NOTIFICATION_COUNTS), tap.sum_ring_word(NOTIFICATION_COUNTS + 8));
    println!("{shape:?}: {packets} in {took:?}, {doorbells} bells ({failed} failed): {counts:?}");
    assert_eq!(tap.sum_ring_word(FAILED_COPIES), 0);
    for one in &counts {
        assert_eq!(one.got + one.lost, u64::from(packets), "{one:?}");
        assert_eq!(one.torn, 0, "{one:?}");
        assert!(one.got > 0, "{one:?}");
    }
    // Doorbells ring by time, by bytes, and once more per CPU.
    let committed = tap.sum_rings(|cpu| tap.rings.cpu_ring(cpu).unwrap().committed_position());
    let limit =
        took.as_millis() as u64 + committed / u64::from(WAKE_POLICY.bytes) + u64::from(shape.cpus);
    assert!(doorbells > 0 && doorbells <= limit, "{doorbells} of {limit}");
    assert_eq!(tap.doorbell.drain(|record| assert_eq!(record.len(), 8)) as u64, doorbells);
    counts
}

#[test]
fn readers_account_for_every_packet() {
    let Some(pair) = veth_pair(false) else { return };
    let roomy = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 16,
        bytes: 1 << 26,
        record_max: 2048,
    };
    for one in send_and_check_counts(&pair, roomy, 30_000, 3) {
        assert_eq!(one.lost, 0, "the writer never comes round");
    }
    let tight = RingsLayout { pointers: 64, bytes: 1 << 15, ..roomy };
    let lossy = send_and_check_counts(&pair, tight, 200_000, 3);
    assert!(lossy.iter().any(|one| one.lost > 0), "the writer comes round");
    // More pointers than records fit the ring: records are lapped before their pointers.
    send_and_check_counts(
        &pair,
        RingsLayout { pointers: 1 << 12, bytes: 1 << 14, ..roomy },
        200_000,
        2,
    );
}

/// A notification wakes a reader only if the reader has drained all earlier notifications.
#[test]
fn reader_with_pending_notifications_is_not_woken() {
    let Some(pair) = veth_pair(false) else { return };
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 10,
        bytes: 1 << 20,
        record_max: 2048,
    };
    let each = WakePolicy { blocks: 1, apart_ns: 0, target: WakeupTarget::Consumer, ..NO_DOORBELL };
    let mut tap = Tap::new(&pair, shape, each);
    let listener = RingBufferListener::new(&[tap.doorbell.as_fd()]).unwrap();
    for _ in 0..3 {
        send_numbered_frames(&pair, 1);
        assert!(listener.wait(RING_WAIT_MAX), "all was taken out before");
        send_numbered_frames(&pair, 5);
        assert!(!listener.wait(Duration::ZERO), "it has yet to take the first");
        assert_eq!(tap.doorbell.drain(|_| ()), 6, "each bell is there all the same");
    }
    assert_eq!(
        (tap.sum_ring_word(NOTIFICATION_COUNTS), tap.sum_ring_word(NOTIFICATION_COUNTS + 8)),
        (18, 0)
    );
}

/// Frames without a reader are counted but not copied; once the reader drains a notification,
/// frames are copied again.
#[test]
fn frames_without_a_reader_are_only_counted() {
    const BATCH_FRAMES: u32 = 1_000;
    let Some(pair) = veth_pair(false) else { return };
    // The sender's processor writes: pinned, so that it is always the same.
    let _ = sys::process::pin_to_processor(0);
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 12,
        bytes: 1 << 17,
        record_max: 2048,
    };
    let doorbell =
        WakePolicy { bytes: shape.bytes / 4, target: WakeupTarget::Consumer, ..WAKE_POLICY };
    let mut tap = Tap::new(&pair, shape, doorbell);
    let committed =
        |tap: &Tap| tap.sum_rings(|cpu| tap.rings.cpu_ring(cpu).unwrap().committed_position());
    let mut sent = 0;
    let mut copies = |tap: &Tap, count: u32| {
        let before = committed(tap);
        send_numbered_frames(&pair, count);
        sent += u64::from(count);
        wait_until("all have been seen", || tap.frames_produced() == sent);
        assert_eq!(tap.sum_ring_word(FAILED_COPIES), 0);
        committed(tap) > before
    };
    // While notifications are drained now and then, everything is copied: here 60 rings.
    for _ in 0..20 {
        assert!(copies(&tap, BATCH_FRAMES), "somebody takes bells");
        assert!(tap.doorbell.drain(|_| ()) > 0);
    }
    wait_until("it copies no more", || !copies(&tap, BATCH_FRAMES));
    let gone = tap.frames_produced();
    let mut walk = Walk::new(Arc::clone(&tap.rings), vec![0]);
    let whole = |reader: &mut Walk| {
        let mut numbers = Vec::new();
        reader.load_writer_positions();
        while let Some(handed) = reader.front_frame() {
            let mut bytes = [0; 18];
            assert!(reader.copy_bytes(&handed, 0, &mut bytes));
            assert!(reader.is_intact(&handed, reader.reserved_position(handed.cpu)));
            numbers.push(u32::from_be_bytes(bytes[14..].try_into().unwrap()));
            reader.advance_past_frame(&handed);
        }
        (numbers, reader.exit_losses()[0].lost)
    };
    assert_eq!(whole(&mut walk), (vec![], gone), "nothing of it is there any more");
    assert!(!copies(&tap, BATCH_FRAMES));
    assert!(tap.doorbell.drain(|_| ()) > 0, "it was called");
    assert!(copies(&tap, 10), "somebody has come");
    assert_eq!(whole(&mut walk), ((0..10).collect(), gone + u64::from(BATCH_FRAMES)));
    assert!(tap.doorbell.drain(|_| ()) > 0, "and is called");
}

/// A GSO frame of up to 64 KB, which the sender's kernel did not segment, fits into one record.
#[test]
fn gso_frames_up_to_64_kb_fit_into_one_record() {
    let Some(pair) = veth_pair(true) else { return };
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 14,
        bytes: 1 << 26,
        record_max: 66_000,
    };
    let tap = Tap::new(&pair, shape, WAKE_POLICY);
    let readers = tap.start_readers(2, FrameContent::Counting);
    let listener = pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, 7)).unwrap());
    let mut near =
        pair.client.run_in_network_namespace(|| TcpStream::connect((SERVER, 7)).unwrap());
    let (mut far, _) = listener.accept().unwrap();
    let counting: Vec<u8> = (0..1 << 20).map(|at: u32| at as u8).collect();
    let swallowed = std::thread::scope(|scope| {
        let reads = scope.spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
        for _ in 0..20 {
            near.write_all(&counting).unwrap();
        }
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let swallowed = reads.join().unwrap();
        near.read_to_end(&mut Vec::new()).unwrap();
        swallowed
    });
    assert_eq!(swallowed, 20 << 20);
    let counts: Vec<ReaderCounts> = readers.into_iter().map(Reader::stop).collect();
    println!("{counts:?}");
    for one in counts {
        assert_eq!((one.torn, one.lost), (0, 0), "{one:?}");
        assert!(one.bytes >= swallowed && one.longest > 9_000, "{one:?}");
    }
}

/// Entry point of the child processes that run the readers of other tests.
#[test]
#[ignore = "is a reader, started by other tests"]
fn child_process_runs_reader() {
    reader::run_reader();
}

/// Measures the cost per packet of the program that writes the ring. Run alone with `--ignored
/// --nocapture nanoseconds_per_packet`.
#[test]
#[ignore = "a measurement"]
fn ring_program_reports_ns_per_packet() {
    const PACKETS: u32 = 300_000;
    let Some(pair) = veth_pair(false) else { return };
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 14,
        bytes: 1 << 22,
        record_max: 2048,
    };
    let counting = RunStatisticsGuard::enable().unwrap();
    for round in 0..3 {
        for (doorbell, readers) in [
            (NO_DOORBELL, 0),
            (WAKE_POLICY, 0),
            (WAKE_POLICY, 1),
            (WAKE_POLICY, 2),
            (WAKE_POLICY, 10),
        ] {
            let tap = Tap::new(&pair, shape, doorbell);
            let running = tap.start_readers(readers, FrameContent::Numbered);
            let begin = Instant::now();
            send_numbered_frames(&pair, PACKETS);
            wait_until("all have been written", || tap.frames_produced() == u64::from(PACKETS));
            let took = begin.elapsed();
            let info = tap.program.info().unwrap();
            let counts: Vec<ReaderCounts> = running.into_iter().map(Reader::stop).collect();
            let lost: u64 = counts.iter().map(|one| one.lost).sum();
            assert!(counts.iter().all(|one| one.torn == 0));
            println!(
                "round {round}, doorbell {}, {readers} readers: {:.0} ns a run, {:.0} thousand a \
                 second, {} doorbells, {lost} lost",
                doorbell != NO_DOORBELL,
                info.ns_per_run().unwrap(),
                f64::from(PACKETS) / took.as_secs_f64() / 1e3,
                tap.sum_ring_word(NOTIFICATION_COUNTS),
            );
        }
    }
    drop(counting);
}

/// Measures the cost of BPF_PROG_TEST_RUN. Run alone with `--ignored --nocapture test_runs`.
#[test]
#[ignore = "a measurement"]
fn test_runs_report_ns_per_run() {
    let Some(()) = need::require_bpf() else { return };
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 14,
        bytes: 1 << 22,
        record_max: 66_000,
    };
    let rings = ProgramRings::create("ring", shape).unwrap();
    let doorbell = RingBuffer::create("bell", 1 << 16).unwrap();
    let empty = [ebpf::insn::Insn::mov(ebpf::insn::R0, -1), ebpf::insn::Insn::exit()];
    let empty = Program::load(ProgramKind::Tc, "empty", &ebpf::insn::encode(&empty)).unwrap();
    let silent = program::load_ring_program(&rings, &doorbell, NO_DOORBELL);
    let ringing = program::load_ring_program(&rings, &doorbell, WAKE_POLICY);
    for length in [46, 1482] {
        let frame = numbered_frame(1, length);
        let mut best = [u32::MAX; 3];
        for _ in 0..9 {
            for (best, program) in best.iter_mut().zip([&empty, &silent, &ringing]) {
                *best = program.test_run(&frame, 300_000).unwrap().duration_ns.min(*best);
            }
        }
        let [empty, silent, ringing] = best;
        let bytes = frame.len();
        println!("{bytes} bytes: empty {empty} ns, tap {silent} ns, with bell {ringing} ns");
    }
}
