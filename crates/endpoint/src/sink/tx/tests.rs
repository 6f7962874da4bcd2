//! Frames over a cable between two name spaces: what `tx` sends, `rx` gives at the other end, or
//! the sink says why not.

use super::*;
use crate::source::{generate, rx};
use crate::testing::{Gift, arguments, ask, bare, batch, block, frame, opening, refused};
use crate::{Given, Intake, Source};
use abi::{DbufId, Marks};
use buffer::pool::{Config, Pool};
use filter::{Columns, Room};
use testkit::Frame;
use testkit::net::{CLIENT_DEVICE, Cable, LIMIT, Namespace, Pair, SERVER_DEVICE, counters, until};

fn silent() -> Option<Pair> {
    Pair::new(Cable { addresses: false, ..Cable::default() })
}

/// The ways into an interface: the queue of the host, a packet socket past it, a ring.
type Way = &'static [(&'static str, &'static str)];
const QUEUE: Way = &[];
const PACKET: Way = &[("qdisc", "no"), ("by", "packet")];
const RING: Way = &[("qdisc", "no"), ("by", "xdp")];

/// All ways that this machine has.
fn ways(space: &Namespace) -> Vec<Way> {
    let ring = space.enter(sys::probe::xdp_socket);
    let ring = ring.or_else(|why| testkit::need::skip(&why.to_string()).ok_or(why));
    [QUEUE, PACKET].into_iter().chain(ring.ok().map(|()| RING)).collect()
}

fn tx(space: &Namespace, form: Form) -> Result<Box<dyn Sink>, Failure> {
    tx_by(space, form, QUEUE)
}

fn tx_by(space: &Namespace, form: Form, way: Way) -> Result<Box<dyn Sink>, Failure> {
    let words = [&[("interface", CLIENT_DEVICE), ("netns", space.name())], way].concat();
    let given = arguments(&TX, &words);
    open(&Opening { form, ..opening(&given, &[]) })
}

/// The sink itself.
fn tx_of(space: &Namespace, way: Way) -> Tx {
    let words = [&[("interface", CLIENT_DEVICE), ("netns", space.name())], way].concat();
    let given = arguments(&TX, &words);
    let way = (given.flag("qdisc"), given.text("by").unwrap_or_default());
    Tx::new(Device::open(&opening(&given, &[]), way).unwrap(), true)
}

/// Does this with a cable of its own for each way into it.
fn by_each_way(test: impl Fn(&Pair, Way)) {
    let Some(pair) = silent() else { return };
    for way in ways(&pair.client) {
        println!("by {way:?}");
        let Some(pair) = silent() else { return };
        test(&pair, way);
    }
}

/// Returns a value of the report.
fn reported(sink: &mut dyn Sink, name: &str) -> Option<u64> {
    let rows = sink.finish().unwrap().rows;
    rows.into_iter().find(|(what, _)| what == name).map(|(_, number)| number)
}

/// The other end: `rx` with the pool that a space would make for it.
struct Ear {
    source: Box<dyn Source>,
    pool: Pool,
}

impl Ear {
    fn at(space: &Namespace) -> Self {
        let given = [("interface", SERVER_DEVICE), ("netns", space.name())];
        let given = arguments(&rx::RX, &given);
        let source = (rx::ENTRY.open)(&opening(&given, &[])).unwrap();
        let lender = source.properties().lender.unwrap();
        Self { source, pool: Pool::lent(DbufId::new(9).unwrap(), lender).unwrap() }
    }

    /// Receives exactly the frames that have come.
    fn hear(&mut self, heard: &mut Vec<Gift>) {
        loop {
            let (given, more) = ask(&mut *self.source, &mut self.pool, 64, 0).unwrap();
            heard.extend(more);
            if given != Given::Blocks {
                return;
            }
        }
    }

    /// Hears until there are so many.
    fn wait_for(&mut self, count: usize) -> Vec<Gift> {
        let mut heard = Vec::new();
        until(&format!("{count} frames"), || {
            self.hear(&mut heard);
            heard.len() >= count
        });
        heard
    }
}

fn number(frame: &[u8]) -> u64 {
    let at = generate::SEQUENCE;
    u64::from_be_bytes(frame[at..at + 8].try_into().unwrap())
}

/// Drives `generate` into a sink, as a space does; `between` is called after each batch.
fn drive(request: &[(&str, &str)], sink: &mut dyn Sink, mut between: impl FnMut()) -> u64 {
    let given = arguments(&generate::GENERATE, request);
    let mut source = (generate::ENTRY.open)(&opening(&given, &[])).unwrap();
    let config = Config { segment: 1 << 18, segments: 4 };
    let mut pool = Pool::new(DbufId::new(3).unwrap(), config).unwrap();
    let mut taken = 0;
    loop {
        let mut columns = Box::new(Columns::default());
        let answer = source.give(&mut Intake::new(&pool, &mut columns, LANES, 0)).unwrap();
        taken += columns.len() as u64;
        let batch = Batch::new(Room::from(columns), |columns, l| {
            pool.resolve(columns.entry(l).frame()).unwrap()
        });
        sink.take(&batch, 0).unwrap();
        drop(batch);
        pool.turn();
        between();
        if answer == Given::End {
            return taken;
        }
    }
}

#[test]
fn g1_a_hundred_thousand_numbers_arrive_one_by_one() {
    by_each_way(numbers_arrive);
}

fn numbers_arrive(pair: &Pair, way: Way) {
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx_by(&pair.client, Form::Frame, way).unwrap();
    let mut heard = Vec::new();
    let mut next = 0;
    let mut check = |ear: &mut Ear| {
        ear.hear(&mut heard);
        for gift in heard.drain(..) {
            assert_eq!((number(&gift.bytes), gift.bytes.len()), (next, 100));
            next += 1;
        }
        next
    };
    let request = [("count", "100000"), ("seq", "yes"), ("size", "100")];
    let taken = drive(&request, &mut *sink, || _ = check(&mut ear));
    until("the last have come", || check(&mut ear) == taken);
    assert_eq!(taken, 100_000);
    assert_eq!(sink.written(), Some(Amount { blocks: 100_000, bytes: 10_000_000 }));
    assert_eq!(sink.dropped(), []);
    let rows = [("frames".to_owned(), 100_000), ("bytes".to_owned(), 10_000_000)];
    assert_eq!(sink.finish().unwrap().rows[..2], rows);
    let copied = reported(&mut *sink, "copied to AF_XDP");
    assert_eq!(copied, (way == RING).then_some(100_000), "memory of others is copied");
    let seen = ear.source.seen();
    assert_eq!(seen.given.blocks, 100_000);
    assert!(seen.dropped.iter().all(|(_, count)| count.unwrap_or(0) == 0), "{seen:?}");
}

/// The queue holds six frames and lets through a thousand in a second: it drops, and says so, and
/// each frame is sent again until it went.
#[test]
fn a_full_queue_is_waited_for() {
    let Some(pair) = silent() else { return };
    if testkit::need::command("tc").is_none() {
        return;
    }
    let shape = format!("qdisc add dev {CLIENT_DEVICE} root tbf rate 8mbit burst 3k limit 6k");
    pair.client.run("tc", &shape);
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx_of(&pair.client, QUEUE);
    sink.patience = LIMIT;
    let taken = drive(&[("count", "300"), ("seq", "yes"), ("size", "1000")], &mut sink, || ());
    let heard = ear.wait_for(300);
    let numbers: Vec<u64> = heard.iter().map(|gift| number(&gift.bytes)).collect();
    assert_eq!(numbers, (0..taken).collect::<Vec<_>>());
    assert_eq!(sink.written(), Some(Amount { blocks: 300, bytes: 300_000 }));
    let told = pair.client.run("tc", &format!("-s qdisc show dev {CLIENT_DEVICE}"));
    assert!(!told.contains("dropped 0,"), "the queue was never full: {told}");
}

/// A queue that stands still costs a second once, and each frame that finds no room is counted.
#[test]
fn a_queue_that_stands_still_is_not_waited_for_forever() {
    let Some(pair) = silent() else { return };
    if testkit::need::command("tc").is_none() {
        return;
    }
    // The third frame of 1,000 bytes would leave after eight seconds.
    let shape = format!("qdisc add dev {CLIENT_DEVICE} root tbf rate 1kbit burst 2k limit 3k");
    pair.client.run("tc", &shape);
    let mut sink = tx_of(&pair.client, QUEUE);
    drive(&[("count", "2000"), ("size", "1000")], &mut sink, || ());
    // Not one wait for each of the 32 batches: one whenever it stands still again.
    let went = sink.written().unwrap().blocks;
    assert!((1..=1 + went).contains(&sink.vain), "{} waits, {went} went", sink.vain);
    assert!((1..200).contains(&went), "{went}");
    let lost = Amount { blocks: 2000 - went, bytes: (2000 - went) * 1000 };
    assert_eq!(sink.dropped(), [("queue full".into(), lost)]);
}

/// The frames that these numbers stand for.
fn numbered(range: Range<u16>, length: usize) -> Vec<Vec<u8>> {
    let made = |n| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, n, &vec![0; length]);
    range.map(made).collect()
}

/// While the other end is down the device refuses what it is given; when it is up again all goes,
/// in order.
#[test]
fn g1_what_a_device_refuses_is_sent_again_in_its_place() {
    let Some(pair) = silent() else { return };
    if !ways(&pair.client).contains(&RING) {
        return;
    }
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx_of(&pair.client, RING);
    // However long it takes on this machine until the other end is up again.
    sink.patience = LIMIT;
    let frames = numbered(0..60, 20);
    let mut send = |from: usize, to: usize| {
        let blocks: Vec<_> = frames[from..to].iter().map(|bytes| frame(bytes)).collect();
        sink.take(&batch(&blocks), 0).unwrap();
    };
    send(0, 10);
    pair.server.ip(&format!("link set dev {SERVER_DEVICE} down"));
    let refused = || counters(&pair.client, CLIENT_DEVICE).unwrap().send_dropped;
    let before = refused();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("something was refused", || refused() > before + 3);
            pair.server.ip(&format!("link set dev {SERVER_DEVICE} up"));
        });
        send(10, 60);
    });
    let heard: Vec<Vec<u8>> = ear.wait_for(60).into_iter().map(|gift| gift.bytes).collect();
    assert!(heard == frames, "each once, in order: {}", heard.len());
    assert_eq!((sink.written().unwrap().blocks, sink.dropped()), (60, Vec::new()));
    assert!(reported(&mut sink, "sent again").unwrap() > 3);
}

/// The other end takes shorter frames than this one: what it refuses for ever is dropped after a
/// while, and those before and behind it go.
#[test]
fn g1_what_a_device_refuses_for_ever_is_dropped_and_the_rest_leaves() {
    let Some(pair) = silent() else { return };
    if !ways(&pair.client).contains(&RING) {
        return;
    }
    pair.server.ip(&format!("link set dev {SERVER_DEVICE} mtu 500"));
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx_by(&pair.client, Form::Frame, RING).unwrap();
    let (short, long) = (numbered(0..40, 20), numbered(7..8, 1000));
    let mut blocks: Vec<_> = short.iter().map(|bytes| frame(bytes)).collect();
    blocks.insert(5, frame(&long[0]));
    sink.take(&batch(&blocks), 0).unwrap();
    let heard: Vec<Vec<u8>> = ear.wait_for(40).into_iter().map(|gift| gift.bytes).collect();
    assert!(heard == short, "each once, in order: {}", heard.len());
    let lost = Amount { blocks: 1, bytes: long[0].len() as u64 };
    assert_eq!(sink.dropped(), [("queue full".into(), lost)]);
    assert_eq!(sink.written().unwrap().blocks, 40);
    assert!(reported(&mut *sink, "sent again").unwrap() > 3);
}

#[test]
fn what_cannot_leave_is_counted_and_the_rest_leaves() {
    by_each_way(what_cannot_leave);
}

fn what_cannot_leave(pair: &Pair, way: Way) {
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx_by(&pair.client, Form::Frame, way).unwrap();
    let good: Vec<Vec<u8>> =
        (0..3).map(|n| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, n, b"good")).collect();
    let long = vec![0xee; 1600];
    let snapped = block(Marks::frame(1, 42, 60), &good[0][..42]);
    let viewed = frame(&good[1]).narrow(34, 8);
    sink.take(
        &batch(&[
            frame(&good[0]),
            frame(&long),
            frame(&[0; 5]),
            viewed,
            snapped,
            block(Marks::frame(101, 20, 20), &[0x45; 20]),
            bare(b"not a frame"),
            frame(&good[2]),
        ]),
        0,
    )
    .unwrap();
    let heard: Vec<Vec<u8>> = ear.wait_for(3).into_iter().map(|gift| gift.bytes).collect();
    assert_eq!(heard, good, "whole frames, whatever was in view");
    let [first, _, third] = [0, 1, 2].map(|n: usize| good[n].len() as u64);
    assert_eq!(sink.written(), Some(Amount { blocks: 3, bytes: first + 8 + third }));
    let amount = |blocks, bytes| Amount { blocks, bytes };
    let lost = [
        ("another link type".into(), amount(2, 31)),
        ("cut short when captured".into(), amount(1, 42)),
        ("longer than the interface takes".into(), amount(1, 1600)),
        ("refused by the kernel".into(), amount(1, 5)),
    ];
    assert_eq!(sink.dropped(), lost);
}

#[test]
fn a_checksum_that_was_left_to_a_device_is_computed() {
    let Some(pair) = silent() else { return };
    let mut ear = Ear::at(&pair.server);
    let mut sink = tx(&pair.client, Form::Frame).unwrap();
    let right = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, b"sum");
    let mut unset = right.clone();
    unset[40..42].copy_from_slice(&[0x12, 0x34]);
    let left = |bytes| {
        let mut block = frame(bytes);
        block.context.flags = Flags::CHECKSUM_UNSET;
        block
    };
    let arp = vec![0; 60];
    // The same bytes without the flag leave as they are.
    sink.take(&batch(&[left(&unset), frame(&unset), left(&arp), left(&unset)]), 0).unwrap();
    let heard: Vec<Vec<u8>> = ear.wait_for(3).into_iter().map(|gift| gift.bytes).collect();
    assert_eq!(heard, [&right, &unset, &right].map(Clone::clone));
    assert_eq!(sink.dropped(), [("checksum unknown".into(), Amount { blocks: 1, bytes: 60 })]);
    assert!(sink.finish().unwrap().rows.contains(&("checksums computed".to_owned(), 2)));
}

#[test]
fn an_interface_that_is_down_is_a_reason_and_one_that_is_gone_a_failure() {
    by_each_way(down_and_gone);
}

fn down_and_gone(pair: &Pair, way: Way) {
    let mut sink = tx_by(&pair.client, Form::Frame, way).unwrap();
    let bytes = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, b"x");
    let mut send = || sink.take(&batch(&[frame(&bytes)]), 0).map(|()| sink.written().unwrap());
    assert_eq!(send().unwrap().blocks, 1);
    pair.client.ip(&format!("link set dev {CLIENT_DEVICE} down"));
    assert_eq!(send().unwrap().blocks, 1);
    pair.client.ip(&format!("link set dev {CLIENT_DEVICE} up"));
    pair.client.until_up(CLIENT_DEVICE);
    assert_eq!(send().unwrap().blocks, 2);
    pair.client.ip(&format!("link delete dev {CLIENT_DEVICE}"));
    let failure = refused(send());
    assert_eq!(
        failure.to_string(),
        "cannot send through client0: the interface was removed after 2 frames"
    );
    let down = Amount { blocks: 1, bytes: bytes.len() as u64 };
    assert_eq!(sink.dropped(), [("interface down".into(), down)]);
}

#[test]
fn packets_need_an_interface_without_a_link_layer() {
    let Some(pair) = silent() else { return };
    let failure = refused(tx(&pair.client, Form::Packet));
    assert!(failure.to_string().contains("packets without a link layer"), "{failure}");
    if testkit::need::file("/dev/net/tun").is_none() {
        return;
    }
    pair.client.ip("tuntap add dev tunnel0 mode tun");
    pair.client.ip("link set dev tunnel0 up");
    let given = arguments(&TX, &[("interface", "tunnel0"), ("netns", pair.client.name())]);
    for form in [Form::Packet, Form::Frame] {
        let sink = open(&Opening { form, ..opening(&given, &[]) });
        assert!(sink.is_ok(), "{:?}", sink.err());
    }
}

#[test]
fn what_is_not_there_is_refused_at_the_door() {
    let Some(pair) = silent() else { return };
    let try_open = |interface: &str, netns: &str| {
        let given = arguments(&TX, &[("interface", interface), ("netns", netns)]);
        refused(open(&opening(&given, &[]))).to_string()
    };
    assert_eq!(
        try_open("eth7", pair.client.name()),
        "cannot send through eth7: there is no such interface in this name space; \
         there are lo, client0"
    );
    assert_eq!(
        try_open("eth7", "nowhere"),
        "cannot enter name space nowhere: open: no such file or directory; `ip netns list` shows \
         those with a name; a path or a process id also works"
    );
}
