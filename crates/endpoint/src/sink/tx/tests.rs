//! Tests of `tx` over a veth pair between two network namespaces. At the other end, `rx` receives
//! the sent frames; frames that are not sent must be reported with the reason.

use super::*;
use crate::source::{generate, rx};
use crate::testing::{
    EmittedBlock, batch_from_blocks, block_with_marks, checked_arguments, expect_failure,
    frame_block, frameless_block, produce_once, sink_opening,
};
use crate::{Intake, Source, SourceStatus};
use abi::{DbufId, Marks};
use buffer::pool::{Pool, PoolConfig};
use filter::{BatchMemory, Columns};
use testkit::Frame;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT,
    device_counters, wait_until,
};

/// Creates a veth pair without addresses, and pins the calling thread, which sends the frames, to
/// one CPU. Returns `None` if this machine does not permit veth pairs. A veth end delivers frames
/// through a queue of the sending CPU, and a queueing discipline sends on the CPU that armed its
/// timer. Frames sent on two CPUs could therefore arrive out of order.
fn veth_pair_without_addresses() -> Option<NamespacePair> {
    let processors = sys::process::allowed_processors().unwrap();
    sys::process::pin_to_processor(processors[0]).unwrap();
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

/// Arguments of `tx` that select the transmitter: a packet socket with queueing discipline, a
/// packet socket without it, or an AF_XDP ring.
type TransmitterArguments = &'static [(&'static str, &'static str)];
const QUEUEING_SOCKET: TransmitterArguments = &[];
const BYPASSING_SOCKET: TransmitterArguments = &[("qdisc", "no"), ("by", "packet")];
const XDP_RING: TransmitterArguments = &[("qdisc", "no"), ("by", "xdp")];

/// Returns all transmitters that this machine supports.
fn supported_transmitters(space: &Namespace) -> Vec<TransmitterArguments> {
    let ring = space.run_in_network_namespace(sys::probe::probe_xdp_socket);
    let ring = ring.or_else(|why| testkit::need::report_skip(&why.to_string()).ok_or(why));
    [QUEUEING_SOCKET, BYPASSING_SOCKET].into_iter().chain(ring.ok().map(|()| XDP_RING)).collect()
}

fn open_tx(space: &Namespace, form: Form) -> Result<Box<dyn Sink>, Failure> {
    open_tx_with_transmitter(space, form, QUEUEING_SOCKET)
}

fn open_tx_with_transmitter(
    space: &Namespace,
    form: Form,
    transmitter: TransmitterArguments,
) -> Result<Box<dyn Sink>, Failure> {
    let arguments =
        [&[("interface", CLIENT_DEVICE), ("netns", space.name())], transmitter].concat();
    let checked = checked_arguments(&TX, &arguments);
    open(&OpenArguments { form, ..sink_opening(&checked, &[]) })
}

/// Opens the sink on this end of the veth pair, and returns it as its concrete type.
fn open_concrete_tx(space: &Namespace, transmitter: TransmitterArguments) -> TxSink {
    let arguments =
        [&[("interface", CLIENT_DEVICE), ("netns", space.name())], transmitter].concat();
    let checked = checked_arguments(&TX, &arguments);
    let transmitter = (checked.flag("qdisc"), checked.text("by").unwrap_or_default());
    TxSink::new(TxDevice::open(&sink_opening(&checked, &[]), transmitter).unwrap(), true)
}

/// Runs the test once for each transmitter, each time over a new veth pair.
fn for_each_transmitter(test: impl Fn(&NamespacePair, TransmitterArguments)) {
    let Some(pair) = veth_pair_without_addresses() else { return };
    for transmitter in supported_transmitters(&pair.client) {
        println!("by {transmitter:?}");
        let Some(pair) = veth_pair_without_addresses() else { return };
        test(&pair, transmitter);
    }
}

/// Finishes the sink. Returns the value of the row `name` in its report. Returns `None` if the
/// report has no such row.
fn finish_and_read_row(sink: &mut dyn Sink, name: &str) -> Option<u64> {
    let rows = sink.finish().unwrap().rows;
    rows.into_iter().find(|(what, _)| what == name).map(|(_, number)| number)
}

/// The receiving end: an `rx` source, with a pool like that of a space.
struct Receiver {
    source: Box<dyn Source>,
    pool: Pool,
}

impl Receiver {
    fn open_in_namespace(space: &Namespace) -> Self {
        let arguments = [("interface", SERVER_DEVICE), ("netns", space.name())];
        let checked = checked_arguments(&rx::RX, &arguments);
        let source = (rx::ENTRY.open)(&sink_opening(&checked, &[])).unwrap();
        let lender = source.properties().lender.unwrap();
        Self { source, pool: Pool::lent(DbufId::new(9).unwrap(), lender).unwrap() }
    }

    /// Receives the frames that have already arrived, without waiting for more.
    fn receive_arrived_frames(&mut self, received: &mut Vec<EmittedBlock>) {
        loop {
            let (status, more) = produce_once(&mut *self.source, &mut self.pool, 64, 0).unwrap();
            received.extend(more);
            if status != SourceStatus::Blocks {
                return;
            }
        }
    }

    /// Receives frames until `count` of them have arrived.
    fn receive_frames(&mut self, count: usize) -> Vec<EmittedBlock> {
        let mut received = Vec::new();
        wait_until(&format!("{count} frames"), || {
            self.receive_arrived_frames(&mut received);
            received.len() >= count
        });
        received
    }
}

fn frame_number(frame: &[u8]) -> u64 {
    let at = generate::SEQUENCE_OFFSET;
    u64::from_be_bytes(frame[at..at + 8].try_into().unwrap())
}

/// Runs `generate` with the arguments `request`, and passes its frames to a sink, as a space does.
/// Calls `between` after each batch. Returns the number of frames.
fn send_generated_frames(
    request: &[(&str, &str)],
    sink: &mut dyn Sink,
    mut between: impl FnMut(),
) -> u64 {
    let checked = checked_arguments(&generate::GENERATE, request);
    let mut source = (generate::ENTRY.open)(&sink_opening(&checked, &[])).unwrap();
    let config = PoolConfig { segment: 1 << 18, segments: 4 };
    let mut pool = Pool::new(DbufId::new(3).unwrap(), config).unwrap();
    let mut taken = 0;
    loop {
        let mut columns = Box::new(Columns::default());
        let answer = source.produce(&mut Intake::new(&pool, &mut columns, LANES, 0)).unwrap();
        taken += columns.len() as u64;
        let batch = Batch::new(BatchMemory::from(columns), |columns, l| {
            pool.resolve(columns.entry(l).frame()).unwrap()
        });
        sink.consume(&batch, 0).unwrap();
        drop(batch);
        pool.end_pass();
        between();
        if answer == SourceStatus::End {
            return taken;
        }
    }
}

#[test]
fn g1_hundred_thousand_frames_arrive_in_order() {
    for_each_transmitter(assert_numbered_frames_arrive);
}

fn assert_numbered_frames_arrive(pair: &NamespacePair, transmitter: TransmitterArguments) {
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_tx_with_transmitter(&pair.client, Form::Frame, transmitter).unwrap();
    let mut received = Vec::new();
    let mut next = 0;
    let mut check = |receiver: &mut Receiver| {
        receiver.receive_arrived_frames(&mut received);
        for block in received.drain(..) {
            assert_eq!((frame_number(&block.bytes), block.bytes.len()), (next, 100));
            next += 1;
        }
        next
    };
    let request = [("count", "100000"), ("seq", "yes"), ("size", "100")];
    let taken = send_generated_frames(&request, &mut *sink, || _ = check(&mut receiver));
    wait_until("the last have come", || check(&mut receiver) == taken);
    assert_eq!(taken, 100_000);
    assert_eq!(sink.amount_written(), Some(Amount { blocks: 100_000, bytes: 10_000_000 }));
    assert_eq!(sink.drops_by_reason(), []);
    let rows = [("frames".to_owned(), 100_000), ("bytes".to_owned(), 10_000_000)];
    assert_eq!(sink.finish().unwrap().rows[..2], rows);
    let copied = finish_and_read_row(&mut *sink, "copied to AF_XDP");
    assert_eq!(
        copied,
        (transmitter == XDP_RING).then_some(100_000),
        "frames in other memory are copied"
    );
    let counters = receiver.source.counters();
    assert_eq!(counters.given.blocks, 100_000);
    assert!(counters.dropped.iter().all(|(_, count)| count.unwrap_or(0) == 0), "{counters:?}");
}

/// The queue holds six frames and passes a thousand per second, so it rejects many frames. Each
/// rejected frame must be sent again until it is accepted.
#[test]
fn full_queue_delays_frames_without_loss() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    if testkit::need::require_command("tc").is_none() {
        return;
    }
    let shape = format!("qdisc add dev {CLIENT_DEVICE} root tbf rate 8mbit burst 3k limit 6k");
    pair.client.run_program("tc", &shape);
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_concrete_tx(&pair.client, QUEUEING_SOCKET);
    sink.room_wait_max = WAIT_TIMEOUT;
    let taken = send_generated_frames(
        &[("count", "300"), ("seq", "yes"), ("size", "1000")],
        &mut sink,
        || (),
    );
    let received = receiver.receive_frames(300);
    let numbers: Vec<u64> = received.iter().map(|block| frame_number(&block.bytes)).collect();
    assert_eq!(numbers, (0..taken).collect::<Vec<_>>());
    assert_eq!(sink.amount_written(), Some(Amount { blocks: 300, bytes: 300_000 }));
    let statistics = pair.client.run_program("tc", &format!("-s qdisc show dev {CLIENT_DEVICE}"));
    assert!(!statistics.contains("dropped 0,"), "the queue was never full: {statistics}");
}

/// A queue that stalls must cause one timeout per stall, not one per batch, and every dropped frame
/// must be counted.
#[test]
fn stalled_queue_times_out_and_drops_are_counted() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    if testkit::need::require_command("tc").is_none() {
        return;
    }
    // The third frame of 1,000 bytes would leave after eight seconds.
    let shape = format!("qdisc add dev {CLIENT_DEVICE} root tbf rate 1kbit burst 2k limit 3k");
    pair.client.run_program("tc", &shape);
    let mut sink = open_concrete_tx(&pair.client, QUEUEING_SOCKET);
    send_generated_frames(&[("count", "2000"), ("size", "1000")], &mut sink, || ());
    // There must be one timeout per stall, not one for each of the 32 batches.
    let sent = sink.amount_written().unwrap().blocks;
    assert!(
        (1..=1 + sent).contains(&sink.timeouts),
        "{} timeouts, {sent} frames sent",
        sink.timeouts
    );
    assert!((1..200).contains(&sent), "{sent}");
    let lost = Amount { blocks: 2000 - sent, bytes: (2000 - sent) * 1000 };
    assert_eq!(sink.drops_by_reason(), [("queue full".into(), lost)]);
}

/// Returns a frame for each number in `range`: a UDP datagram with the number as its destination
/// port and with `length` bytes of payload.
fn numbered_frames(range: Range<u16>, length: usize) -> Vec<Vec<u8>> {
    let frame = |n| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, n, &vec![0; length]);
    range.map(frame).collect()
}

/// The device rejects all frames while the other end is down. When the other end is up again, all
/// frames must be sent in order.
#[test]
fn g1_rejected_frames_are_resent_in_order() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    if !supported_transmitters(&pair.client).contains(&XDP_RING) {
        return;
    }
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_concrete_tx(&pair.client, XDP_RING);
    // Waits for as long as this machine needs to bring the other end up.
    sink.room_wait_max = WAIT_TIMEOUT;
    let frames = numbered_frames(0..60, 20);
    let mut send = |from: usize, to: usize| {
        let blocks: Vec<_> = frames[from..to].iter().map(|bytes| frame_block(bytes)).collect();
        sink.consume(&batch_from_blocks(&blocks), 0).unwrap();
    };
    send(0, 10);
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} down"));
    let refused = || device_counters(&pair.client, CLIENT_DEVICE).unwrap().send_dropped;
    let before = refused();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("something was refused", || refused() > before + 3);
            pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} up"));
        });
        send(10, 60);
    });
    let received: Vec<Vec<u8>> =
        receiver.receive_frames(60).into_iter().map(|block| block.bytes).collect();
    assert!(received == frames, "each frame arrives once and in order: {}", received.len());
    assert_eq!((sink.amount_written().unwrap().blocks, sink.drops_by_reason()), (60, Vec::new()));
    assert!(finish_and_read_row(&mut sink, "sent again").unwrap() > 3);
}

/// The other end accepts only shorter frames. The longer frames must be dropped after the timeout,
/// and the others must be sent.
#[test]
fn g1_permanently_rejected_frames_are_dropped_and_others_sent() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    if !supported_transmitters(&pair.client).contains(&XDP_RING) {
        return;
    }
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} mtu 500"));
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_tx_with_transmitter(&pair.client, Form::Frame, XDP_RING).unwrap();
    let (short, long) = (numbered_frames(0..40, 20), numbered_frames(7..8, 1000));
    let mut blocks: Vec<_> = short.iter().map(|bytes| frame_block(bytes)).collect();
    blocks.insert(5, frame_block(&long[0]));
    sink.consume(&batch_from_blocks(&blocks), 0).unwrap();
    let received: Vec<Vec<u8>> =
        receiver.receive_frames(40).into_iter().map(|block| block.bytes).collect();
    assert!(received == short, "each frame arrives once and in order: {}", received.len());
    let lost = Amount { blocks: 1, bytes: long[0].len() as u64 };
    assert_eq!(sink.drops_by_reason(), [("queue full".into(), lost)]);
    assert_eq!(sink.amount_written().unwrap().blocks, 40);
    assert!(finish_and_read_row(&mut *sink, "sent again").unwrap() > 3);
}

#[test]
fn unsendable_frames_are_counted_and_others_sent() {
    for_each_transmitter(assert_unsendable_counted);
}

fn assert_unsendable_counted(pair: &NamespacePair, transmitter: TransmitterArguments) {
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_tx_with_transmitter(&pair.client, Form::Frame, transmitter).unwrap();
    let good: Vec<Vec<u8>> =
        (0..3).map(|n| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, n, b"good")).collect();
    let long = vec![0xee; 1600];
    let snapped = block_with_marks(Marks::frame(1, 42, 60), &good[0][..42]);
    let viewed = frame_block(&good[1]).narrow(34, 8);
    sink.consume(
        &batch_from_blocks(&[
            frame_block(&good[0]),
            frame_block(&long),
            frame_block(&[0; 5]),
            viewed,
            snapped,
            block_with_marks(Marks::frame(101, 20, 20), &[0x45; 20]),
            frameless_block(b"not a frame"),
            frame_block(&good[2]),
        ]),
        0,
    )
    .unwrap();
    let received: Vec<Vec<u8>> =
        receiver.receive_frames(3).into_iter().map(|block| block.bytes).collect();
    assert_eq!(received, good, "entire frames are sent, whatever their views");
    let [first, _, third] = [0, 1, 2].map(|n: usize| good[n].len() as u64);
    assert_eq!(sink.amount_written(), Some(Amount { blocks: 3, bytes: first + 8 + third }));
    let amount = |blocks, bytes| Amount { blocks, bytes };
    let lost = [
        ("another link type".into(), amount(2, 31)),
        ("cut short when captured".into(), amount(1, 42)),
        ("longer than the interface takes".into(), amount(1, 1600)),
        ("refused by the kernel".into(), amount(1, 5)),
    ];
    assert_eq!(sink.drops_by_reason(), lost);
}

#[test]
fn offloaded_checksum_is_computed_before_sending() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    let mut receiver = Receiver::open_in_namespace(&pair.server);
    let mut sink = open_tx(&pair.client, Form::Frame).unwrap();
    let right = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, b"sum");
    let mut unset = right.clone();
    unset[40..42].copy_from_slice(&[0x12, 0x34]);
    let left = |bytes| {
        let mut block = frame_block(bytes);
        block.context.flags = BlockFlags::CHECKSUM_UNSET;
        block
    };
    let arp = vec![0; 60];
    // Without the flag, the same bytes are sent unchanged.
    sink.consume(
        &batch_from_blocks(&[left(&unset), frame_block(&unset), left(&arp), left(&unset)]),
        0,
    )
    .unwrap();
    let received: Vec<Vec<u8>> =
        receiver.receive_frames(3).into_iter().map(|block| block.bytes).collect();
    assert_eq!(received, [&right, &unset, &right].map(Clone::clone));
    assert_eq!(
        sink.drops_by_reason(),
        [("checksum unknown".into(), Amount { blocks: 1, bytes: 60 })]
    );
    assert!(sink.finish().unwrap().rows.contains(&("checksums computed".to_owned(), 2)));
}

#[test]
fn down_interface_drops_frames_and_removed_one_fails() {
    for_each_transmitter(assert_down_drops_and_removed_fails);
}

fn assert_down_drops_and_removed_fails(pair: &NamespacePair, transmitter: TransmitterArguments) {
    let mut sink = open_tx_with_transmitter(&pair.client, Form::Frame, transmitter).unwrap();
    let bytes = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, b"x");
    let mut send = || {
        sink.consume(&batch_from_blocks(&[frame_block(&bytes)]), 0)
            .map(|()| sink.amount_written().unwrap())
    };
    assert_eq!(send().unwrap().blocks, 1);
    pair.client.run_ip(&format!("link set dev {CLIENT_DEVICE} down"));
    assert_eq!(send().unwrap().blocks, 1);
    pair.client.run_ip(&format!("link set dev {CLIENT_DEVICE} up"));
    pair.client.wait_until_up(CLIENT_DEVICE);
    assert_eq!(send().unwrap().blocks, 2);
    pair.client.run_ip(&format!("link delete dev {CLIENT_DEVICE}"));
    let failure = expect_failure(send());
    assert_eq!(
        failure.to_string(),
        "cannot send through client0: the interface was removed after 2 frames"
    );
    let down = Amount { blocks: 1, bytes: bytes.len() as u64 };
    assert_eq!(sink.drops_by_reason(), [("interface down".into(), down)]);
}

#[test]
fn packets_need_an_interface_without_a_link_layer() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    let failure = expect_failure(open_tx(&pair.client, Form::Packet));
    assert!(failure.to_string().contains("packets without a link layer"), "{failure}");
    if testkit::need::require_file("/dev/net/tun").is_none() {
        return;
    }
    pair.client.run_ip("tuntap add dev tunnel0 mode tun");
    pair.client.run_ip("link set dev tunnel0 up");
    let checked =
        checked_arguments(&TX, &[("interface", "tunnel0"), ("netns", pair.client.name())]);
    for form in [Form::Packet, Form::Frame] {
        let sink = open(&OpenArguments { form, ..sink_opening(&checked, &[]) });
        assert!(sink.is_ok(), "{:?}", sink.err());
    }
}

#[test]
fn missing_interface_fails_open() {
    let Some(pair) = veth_pair_without_addresses() else { return };
    let try_open = |interface: &str, netns: &str| {
        let checked = checked_arguments(&TX, &[("interface", interface), ("netns", netns)]);
        expect_failure(open(&sink_opening(&checked, &[]))).to_string()
    };
    assert_eq!(
        try_open("eth7", pair.client.name()),
        "cannot send through eth7: there is no such interface in this namespace; \
         there are lo, client0"
    );
    assert_eq!(
        try_open("eth7", "nowhere"),
        "cannot enter namespace nowhere: open: no such file or directory; `ip netns list` shows \
         those with a name; a path or a process id also works"
    );
}
