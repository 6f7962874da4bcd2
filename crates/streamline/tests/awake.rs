//! Test of captures whose reader sleeps on a socket and is woken by the host. Each frame must reach
//! either the ring or the socket, and no frame may enter the ring while the reader sleeps.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]
#![allow(clippy::print_stdout, reason = "the figures are printed with the result")]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use streamline::Options;
use streamline::capture::{Capture, CaptureSettings, FRAME_BYTES_MAX};
use testkit::need;
use testkit::net::{CLIENT, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, wait_until};

/// Number of times that the reader wakes up and falls asleep again.
const ROUNDS: u32 = 3000;
/// Maximum number of frames that are sent and not yet received, so that the receive buffer of the
/// socket never overflows.
const UNRECEIVED_FRAMES_MAX: u32 = 100;
/// Number of frames that the test has received so far, from the ring and from the socket.
static FRAMES_RECEIVED: AtomicU32 = AtomicU32::new(0);
/// Length of the Ethernet, IPv4 and UDP headers in bytes; the number of the frame follows them.
const HEADERS_SIZE: usize = 14 + 20 + 8;

#[test]
fn frame_reaches_the_ring_of_an_awake_reader_or_the_socket() {
    if need::require_bpf().is_none() {
        return;
    }
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let client = pair.client.run_in_network_namespace(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    client.connect((SERVER, 9)).unwrap();
    let (mut capture, server) = pair.server.run_in_network_namespace(open_capture_and_socket);
    let is_over = AtomicBool::new(false);
    let (received, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                if sent - FRAMES_RECEIVED.load(Ordering::Relaxed) >= UNRECEIVED_FRAMES_MAX {
                    std::thread::yield_now();
                    continue;
                }
                client.send(&sent.to_be_bytes()).unwrap();
                sent += 1;
            }
            sent
        });
        let mut received = receive_frames_alternately(&mut capture, &server);
        is_over.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        wait_until("all have arrived", || {
            received.extend(receive_frame_numbers(&server));
            received.extend(receive_ring_frame_numbers(&mut capture));
            received.len() as u32 >= sent
        });
        assert_eq!(capture.counts().lost, 0);
        (received, sent)
    });
    let mut received = received;
    received.sort_unstable();
    assert_eq!(received, (0..sent).collect::<Vec<_>>());
}

/// Opens a capture and a UDP socket that receive the same frames: from the ring while the reader is
/// awake, otherwise from the socket.
fn open_capture_and_socket() -> (Capture, UdpSocket) {
    let server = UdpSocket::bind((SERVER, 9)).unwrap();
    server.set_nonblocking(true).unwrap();
    let settings = CaptureSettings {
        interface: SERVER_DEVICE.to_owned(),
        take_filter: Some("udp dst port 9".to_owned()),
        host_wakes: true,
        ..CaptureSettings::default()
    };
    (Capture::open(&settings, &Options::default()).unwrap(), server)
}

/// Receives from the ring and the socket while the reader wakes up and falls asleep in turn.
/// Returns the numbers of the received frames.
fn receive_frames_alternately(capture: &mut Capture, server: &UdpSocket) -> Vec<u32> {
    let mut received = Vec::new();
    let [mut by_ring, mut by_socket] = [0; 2];
    for round in 0..ROUNDS {
        capture.wake_up();
        for _ in 0..round % 20 {
            let found = receive_ring_frame_numbers(capture);
            by_ring += found.len();
            received.extend(found);
        }
        capture.fall_asleep();
        let found = receive_ring_frame_numbers(capture);
        by_ring += found.len();
        received.extend(found);
        for _ in 0..round % 7 {
            let found = receive_frame_numbers(server);
            by_socket += found.len();
            received.extend(found);
            let late = receive_ring_frame_numbers(capture);
            assert!(late.is_empty(), "{} frames enter the ring of a sleeping reader", late.len());
        }
    }
    println!("{by_ring} by the ring, {by_socket} by the socket");
    assert!(by_ring > 0 && by_socket > 0);
    received
}

fn receive_ring_frame_numbers(capture: &mut Capture) -> Vec<u32> {
    let mut room = vec![0; FRAME_BYTES_MAX];
    let mut numbers = Vec::new();
    capture.load_arrived_frames();
    while let Some((_, length)) = capture.next_frame(&mut room, 0, |frame, _| Some(frame.captured))
    {
        assert!(length >= HEADERS_SIZE + 4);
        let number = room[HEADERS_SIZE..HEADERS_SIZE + 4].try_into().unwrap();
        numbers.push(u32::from_be_bytes(number));
    }
    FRAMES_RECEIVED.fetch_add(numbers.len() as u32, Ordering::Relaxed);
    numbers
}

fn receive_frame_numbers(socket: &UdpSocket) -> Vec<u32> {
    let mut room = [0; 100];
    let receive = || socket.recv(&mut room).ok().map(|_| room);
    let all = std::iter::from_fn(receive);
    let all = all.map(|room| u32::from_be_bytes(room[..4].try_into().unwrap()));
    let numbers: Vec<u32> = all.collect();
    FRAMES_RECEIVED.fetch_add(numbers.len() as u32, Ordering::Relaxed);
    numbers
}
