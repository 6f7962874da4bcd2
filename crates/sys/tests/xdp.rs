//! Tests of AF_XDP on virtual devices: every frame sent is received, only descriptors move, and
//! each frame of the memory has exactly one owner.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use std::os::fd::AsFd as _;
use streamline_sys as sys;
use sys::bpf::XdpMode;
use sys::net::RouteSocket;
use sys::packet::{PacketSender, PacketSocket, QdiscMode};
use sys::poll;
use sys::xdp::{
    CopyMode, SocketSettings, Umem, UmemSizes, WakeOutcome, XdpDescriptor, XdpRedirect, XdpSocket,
};
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, wait_until};
use testkit::{Frame, Random, need};

const RING_ENTRIES: u32 = 64;
const FRAME_COUNT: u32 = 128;
const UMEM_SIZES: UmemSizes = UmemSizes { frame: 4096, frames: FRAME_COUNT, headroom: 0 };
const SILENT_PAIR: DevicePairSettings =
    DevicePairSettings { addresses: false, mtu: 1500, queues: 1 };

fn interface_index(name: &str) -> u32 {
    RouteSocket::open().unwrap().interface_by_name(name).unwrap().index
}

fn open_pair(cable: DevicePairSettings) -> Option<NamespacePair> {
    need::require_bpf()?;
    need::require_net_raw()?;
    let pair = NamespacePair::new(cable)?;
    let probe = pair.server.run_in_network_namespace(sys::probe::probe_xdp_socket);
    probe.or_else(|why| need::report_skip(&why.to_string()).ok_or(why)).ok()?;
    Some(pair)
}

/// Builds numbered frames of many lengths, up to `longest` bytes.
fn numbered_frames(count: u32, longest: usize) -> Vec<Vec<u8>> {
    let mut random = Random::with_replayable_seed();
    let payload = |number: u32, length: usize| {
        let fill = (0..length).map(|at| (number as usize + at) as u8);
        [&number.to_be_bytes()[..], &fill.collect::<Vec<u8>>()].concat()
    };
    let made = |number: u32| {
        let length = if number.is_multiple_of(7) { longest } else { random.within(14..longest) };
        Frame::ethernet().link_payload(0x88b5, &payload(number, length - 4))
    };
    (0..count).map(made).collect()
}

fn open_socket(umem: &Arc<Umem>, settings: SocketSettings) -> Option<XdpSocket> {
    match XdpSocket::open(umem, settings) {
        Ok(socket) => Some(socket),
        Err(error) => need::report_skip(&error.to_string()),
    }
}

/// Sends frames from the client in batches that fit the receiver's rings. After each batch, calls
/// `between` with the number of frames sent.
fn send_batches(
    pair: &NamespacePair,
    device: &str,
    frames: &[Vec<u8>],
    mut between: impl FnMut(usize) + Send,
) {
    let mut sender = pair.client.run_in_network_namespace(|| {
        PacketSender::open(interface_index(device), QdiscMode::Through).unwrap()
    });
    let mut sent = 0;
    for batch in frames.chunks(RING_ENTRIES as usize / 2) {
        for frame in batch {
            wait_until("there is room", || sender.send(&[frame]).frames == 1);
        }
        sent += batch.len();
        between(sent);
    }
}

#[test]
fn sent_frames_are_received_and_all_returned() {
    let Some(pair) = open_pair(SILENT_PAIR) else { return };
    let frames = numbered_frames(5_000, 1400);
    let umem = Arc::new(Umem::create("xdp-test", UMEM_SIZES).unwrap());
    let (mut socket, redirect, _link) = {
        let made = pair.server.run_in_network_namespace(|| {
            let index = interface_index(SERVER_DEVICE);
            let socket = open_socket(&umem, SocketSettings::new(index, 0, RING_ENTRIES))?;
            let redirect = XdpRedirect::load("to_xdp", 4, false).unwrap();
            redirect.redirect_to_socket(0, &socket).unwrap();
            let link = redirect.attach(index, XdpMode::Native).unwrap();
            Some((socket, redirect, link))
        });
        let Some(made) = made else { return };
        made
    };
    println!("zero-copy: {}", socket.is_zero_copy());
    let mut free: Vec<u64> = (0..FRAME_COUNT).map(|number| umem.address(number)).collect();
    let mut received: Vec<Vec<u8>> = Vec::new();
    let mut pieces = Vec::new();
    send_batches(&pair, CLIENT_DEVICE, &[], |_| {});
    lend_all_frames(&mut socket, &mut free);
    send_batches(&pair, CLIENT_DEVICE, &frames, |sent| {
        wait_until("they have come", || {
            pieces.clear();
            socket.rx.as_mut().unwrap().take(&mut pieces, 1000).unwrap();
            for piece in &pieces {
                let mut bytes = vec![0; piece.length as usize];
                assert!(umem.memory().copy(piece.address as usize, &mut bytes));
                received.push(bytes);
                free.push(piece.address - piece.address % u64::from(UMEM_SIZES.frame));
            }
            lend_all_frames(&mut socket, &mut free);
            received.len() == sent
        });
    });
    assert!(received == frames, "the same frames in the same order");
    let lent = socket.fill.as_ref().unwrap().pending_entries().unwrap();
    assert_eq!(free.len() as u32 + lent, FRAME_COUNT, "each frame in one place");
    let statistics = socket.statistics().unwrap();
    assert_eq!((statistics.rx_dropped, statistics.rx_full, statistics.rx_invalid), (0, 0, 0));
    redirect.pass_to_host(0).unwrap();
    send_batches(&pair, CLIENT_DEVICE, &frames[..10], |_| {});
    let quiet = poll::wait_until_readable(&[socket.as_fd()], Some(Duration::from_millis(50)));
    assert_eq!(quiet, [false], "frames of a queue without a socket go to the host");
}

fn lend_all_frames(socket: &mut XdpSocket, free: &mut Vec<u64>) {
    let fill = socket.fill.as_mut().unwrap();
    let lent = fill.lend(free).unwrap();
    free.drain(..lent);
    if fill.needs_wakeup() {
        socket.wake_rx().unwrap();
    }
}

/// Receives frames on one interface and sends them on another from the same memory. Expects only
/// descriptors to move, and no frame to be lost.
#[test]
fn frame_received_by_one_socket_is_sent_by_another() {
    let Some(pair) = open_pair(SILENT_PAIR) else { return };
    let client = pair.client.name();
    pair.server.run_ip(&format!("link add back0 type veth peer name back1 netns {client}"));
    for (space, device) in [(&pair.server, "back0"), (&pair.client, "back1")] {
        space.run_ip(&format!("link set dev {device} addrgenmode none arp off up"));
    }
    pair.server.wait_until_up("back0");
    let frames = numbered_frames(5_000, 1400);
    let umem = Arc::new(Umem::create("xdp-test", UMEM_SIZES).unwrap());
    let made = pair.server.run_in_network_namespace(|| {
        let (from, to) = (interface_index(SERVER_DEVICE), interface_index("back0"));
        let first = open_socket(&umem, SocketSettings::new(from, 0, RING_ENTRIES))?;
        let second = first.open_sharing_memory(SocketSettings::new(to, 0, RING_ENTRIES)).unwrap();
        let redirect = XdpRedirect::load("to_xdp", 1, false).unwrap();
        redirect.redirect_to_socket(0, &first).unwrap();
        let link = redirect.attach(from, XdpMode::Native).unwrap();
        Some((first, second, redirect, link))
    });
    let Some((mut first, mut second, _redirect, _link)) = made else { return };
    let watch = pair.client.run_in_network_namespace(|| {
        let socket = PacketSocket::open().unwrap();
        let shape = sys::packet::PacketRingParameters {
            segment: 1 << 16,
            segments: 2,
            retire_ms: 1,
            reserve: 0,
        };
        let ring = socket.into_ring(shape).unwrap();
        ring.bind(interface_index("back1")).unwrap();
        ring
    });
    let mut free: Vec<u64> = (0..FRAME_COUNT).map(|number| umem.address(number)).collect();
    let (mut moving, mut used_frames) = (Vec::<XdpDescriptor>::new(), HashSet::new());
    lend_all_frames(&mut first, &mut free);
    let mut passed = 0;
    send_batches(&pair, CLIENT_DEVICE, &frames, |sent| {
        wait_until("they have gone on", || {
            first.rx.as_mut().unwrap().take(&mut moving, 1000).unwrap();
            used_frames
                .extend(moving.iter().map(|piece| piece.address / u64::from(UMEM_SIZES.frame)));
            let given = second.tx.as_mut().unwrap().enqueue(&moving).unwrap();
            moving.drain(..given);
            assert_ne!(second.wake_tx().unwrap(), WakeOutcome::Refused);
            let mut back = Vec::new();
            passed += second.completion.as_mut().unwrap().take(&mut back, 1000).unwrap();
            free.extend(back.iter().map(|at| at - at % u64::from(UMEM_SIZES.frame)));
            lend_all_frames(&mut first, &mut free);
            passed == sent
        });
    });
    wait_until("the other end has counted them", || {
        watch.statistics().unwrap().packets == frames.len() as u64
    });
    assert!(moving.is_empty() && used_frames.len() > 1);
    let lent = first.fill.as_ref().unwrap().pending_entries().unwrap();
    assert_eq!(free.len() as u32 + lent, FRAME_COUNT, "each frame in one place");
    let (first_statistics, second_statistics) =
        (first.statistics().unwrap(), second.statistics().unwrap());
    assert_eq!(
        (first_statistics.rx_dropped, first_statistics.rx_full, second_statistics.tx_invalid),
        (0, 0, 0),
        "{first_statistics:?} {second_statistics:?}"
    );
}

/// Checks that two sockets can share one queue and its fill ring, and that the map selects which
/// socket receives a frame.
#[test]
fn two_sockets_share_one_queue() {
    let Some(pair) = open_pair(SILENT_PAIR) else { return };
    let umem = Arc::new(Umem::create("xdp-test", UMEM_SIZES).unwrap());
    let made = pair.server.run_in_network_namespace(|| {
        let index = interface_index(SERVER_DEVICE);
        let settings = SocketSettings::new(index, 0, RING_ENTRIES);
        let one = open_socket(&umem, settings)?;
        let two =
            one.open_sharing_memory(SocketSettings { fill: 0, completion: 0, ..settings }).unwrap();
        let redirect = XdpRedirect::load("to_xdp", 1, false).unwrap();
        let link = redirect.attach(index, XdpMode::Native).unwrap();
        Some((one, two, redirect, link))
    });
    let Some((mut one, mut two, redirect, _link)) = made else { return };
    let mut free: Vec<u64> = (0..FRAME_COUNT).map(|number| umem.address(number)).collect();
    lend_all_frames(&mut one, &mut free);
    let frames = numbered_frames(20, 200);
    for round in 0..2 {
        redirect.redirect_to_socket(0, if round == 0 { &one } else { &two }).unwrap();
        let mut pieces = Vec::new();
        send_batches(&pair, CLIENT_DEVICE, &frames, |sent| {
            let socket = if round == 0 { &mut one } else { &mut two };
            wait_until("they have come", || {
                socket.rx.as_mut().unwrap().take(&mut pieces, 1000).unwrap();
                pieces.len() == sent
            });
        });
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.length as usize).collect();
        assert_eq!(lengths, frames.iter().map(Vec::len).collect::<Vec<_>>());
    }
}

/// Sends a packet that is longer than a UMEM frame, and expects it to span several frames in order
/// (Linux 6.6).
#[test]
fn long_frames_span_several_descriptors() {
    let Some(pair) = open_pair(DevicePairSettings { mtu: 9000, ..SILENT_PAIR }) else { return };
    let umem = Arc::new(Umem::create("xdp-test", UMEM_SIZES).unwrap());
    let made = pair.server.run_in_network_namespace(|| {
        let index = interface_index(SERVER_DEVICE);
        let settings =
            SocketSettings { fragments: true, ..SocketSettings::new(index, 0, RING_ENTRIES) };
        let socket = open_socket(&umem, settings)?;
        let redirect = XdpRedirect::load("to_xdp", 1, true).unwrap();
        redirect.redirect_to_socket(0, &socket).unwrap();
        let link = redirect.attach(index, XdpMode::Native).unwrap();
        Some((socket, redirect, link))
    });
    let Some((mut socket, _redirect, _link)) = made else { return };
    let mut free: Vec<u64> = (0..FRAME_COUNT).map(|number| umem.address(number)).collect();
    lend_all_frames(&mut socket, &mut free);
    let frames = numbered_frames(15, 8900);
    let (mut received, mut descriptors, mut whole, mut pieces) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    send_batches(&pair, CLIENT_DEVICE, &frames, |sent| {
        wait_until("they have come", || {
            descriptors.clear();
            socket.rx.as_mut().unwrap().take(&mut descriptors, 1000).unwrap();
            for XdpDescriptor { address, length, is_continued: continues } in &descriptors {
                let begin = whole.len();
                whole.resize(begin + *length as usize, 0);
                assert!(umem.memory().copy(*address as usize, &mut whole[begin..]));
                pieces += 1;
                if !continues {
                    received.push(std::mem::take(&mut whole));
                }
            }
            received.len() == sent
        });
    });
    assert!(received == frames && pieces > frames.len(), "{pieces} pieces");
}

/// Expects socket errors to name the queue and the interface.
#[test]
fn xdp_socket_errors_name_queue_and_interface() {
    let Some(pair) = open_pair(SILENT_PAIR) else { return };
    let umem = Arc::new(Umem::create("xdp-test", UMEM_SIZES).unwrap());
    pair.server.run_in_network_namespace(|| {
        let index = interface_index(SERVER_DEVICE);
        let settings = SocketSettings::new(index, 0, RING_ENTRIES);
        let far = XdpSocket::open(&umem, SocketSettings { queue: 9, ..settings }).unwrap_err();
        assert!(far.to_string().contains(&format!("queue 9 of interface {index}")), "{far}");
        match XdpSocket::open(&umem, SocketSettings { mode: CopyMode::ZeroCopy, ..settings }) {
            Ok(socket) => assert!(socket.is_zero_copy()),
            Err(why) => assert_eq!(why.errno, Errno::OPNOTSUPP.raw_os_error(), "{why}"),
        }
        let Some(mut socket) = open_socket(&umem, settings) else { return };
        let outside = umem.bytes();
        assert_eq!(
            socket.fill.as_mut().unwrap().lend(&[outside]).unwrap_err().errno,
            Errno::INVAL.raw_os_error()
        );
        let long = XdpDescriptor { address: 100, length: UMEM_SIZES.frame, is_continued: false };
        assert!(socket.tx.as_mut().unwrap().enqueue(&[long]).is_err());
        assert_eq!(socket.fill.as_ref().unwrap().pending_entries().unwrap(), 0);
    });
}
