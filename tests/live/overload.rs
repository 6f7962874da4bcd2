//! Tests with more traffic than the reader can process. The numbers that arrive, and the numbers
//! that the ledger reports as dropped at each location, are together exactly the numbers sent.
//!
//! The reader writes a capture into a pipe, from which the test reads one frame for every ten
//! frames sent. So the rate of the flood is ten times the reader's rate on any machine.

use crate::frame_sending::send_frames;
use crate::numbered_frames::{
    assert_missing_is_reported, frame_number, frame_numbers, numbered_frames,
};
use crate::observer::{Observer, ObserverResult};
use std::io::{BufReader, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, device_counters, wait_until,
};

/// Number of frames that a test sends to the request.
const FRAMES_SENT: u64 = 60_000;
const FRAME_SIZE: usize = 400;
/// Number of frames sent per frame read.
const FRAMES_SENT_PER_READ: u64 = 10;
/// Length of a record header in the capture, in bytes.
const RECORD_HEADER_LENGTH: usize = 16;

/// Sends more frames to a request than it can process. `behind` contains the filters between the
/// source and the sink of the request. Returns the result of the request, and the numbers of the
/// frames that arrived, in order.
fn send_more_than_request_reads(pair: &NamespacePair, behind: &str) -> (ObserverResult, Vec<u64>) {
    let frames = numbered_frames(0..FRAMES_SENT, FRAME_SIZE);
    let line = format!("rx@thread0 {SERVER_DEVICE} ring=1MB {behind} | pcap -");
    let (observer, out) = Observer::start_piped(&pair.server, &line);
    let mut capture = BufReader::with_capacity(RECORD_HEADER_LENGTH + FRAME_SIZE, out);
    let (mut record, mut numbers) = (vec![0; RECORD_HEADER_LENGTH + FRAME_SIZE], Vec::new());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames(&pair.client, CLIENT_DEVICE, &frames));
        wait_until("the flood ends", || {
            let sent = frames_received(pair);
            if sent > 0 && numbers.is_empty() {
                capture.read_exact(&mut [0; 24]).expect("a capture begins");
            }
            // The ring may have lost so many frames that there is nothing to read.
            let has_record = |capture: &BufReader<_>| {
                !capture.buffer().is_empty() || is_readable(capture.get_ref())
            };
            while (numbers.len() as u64) * FRAMES_SENT_PER_READ < sent && has_record(&capture) {
                capture.read_exact(&mut record).expect("a record");
                numbers.push(frame_number(&record[RECORD_HEADER_LENGTH..]));
            }
            sender.is_finished()
        });
    });
    observer.signal("INT");
    // The pipe may be full: reads until the observer closes it.
    while capture.read_exact(&mut record).is_ok() {
        numbers.push(frame_number(&record[RECORD_HEADER_LENGTH..]));
    }
    (observer.wait(), numbers)
}

/// Returns true if a read from the pipe would not block.
fn is_readable(pipe: &impl AsFd) -> bool {
    sys::poll::wait_until_readable(&[pipe.as_fd()], Some(Duration::ZERO)) == [true]
}

/// Returns the number of frames that the device received or dropped.
fn frames_received(pair: &NamespacePair) -> u64 {
    let counters = device_counters(&pair.server, SERVER_DEVICE).expect("the device is there");
    counters.received + counters.receive_dropped
}

fn assert_accounted_for(ran: &ObserverResult, numbers: &[u64]) {
    ran.assert_balanced();
    let source = ran.source();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert!(numbers.last().is_some_and(|last| *last < FRAMES_SENT));
    let arrived = numbers.len() as u64;
    assert!(source.dropped.iter().all(|(_, number)| number.is_some()), "{source:?}");
    assert_eq!(source.observed, Some(FRAMES_SENT), "{source:?}");
    assert_eq!(source.given + source.total_lost(), FRAMES_SENT, "{source:?}");
    assert_eq!(
        arrived + ran.ledger["lost"].as_u64().expect("a number"),
        FRAMES_SENT,
        "{}",
        ran.ledger
    );
    // Driver and backlog report how many frames they dropped, not which.
    if source.total_lost() == source.losses_at_location("ring").unwrap_or(0) {
        let missing = &ran.ledger["sources"][0]["missing"]["ring"];
        assert_eq!(
            assert_missing_is_reported(numbers, missing, FRAMES_SENT),
            [None].into(),
            "one stream"
        );
    }
}

#[test]
fn v2_every_frame_of_a_flood_is_accounted_for() {
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let (ran, numbers) = send_more_than_request_reads(&pair, "");
    assert_accounted_for(&ran, &numbers);
    let source = ran.source();
    // The reader and the ring can hold fewer than half of the frames, so the rest is lost.
    assert!(source.total_lost() * 2 > FRAMES_SENT, "there was no overload: {source:?}");
    assert!(
        source.losses_at_location("ring").is_some_and(|ring| ring * 2 > FRAMES_SENT),
        "{source:?}"
    );
}

#[test]
fn flood_through_a_filter_is_accounted_for() {
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let (ran, numbers) = send_more_than_request_reads(&pair, "| bpf \"udp port 9\"");
    assert_accounted_for(&ran, &numbers);
    assert!(
        ran.source().total_lost() * 2 > FRAMES_SENT,
        "there was no overload: {:?}",
        ran.source()
    );
}

#[test]
fn stopped_reader_losses_are_reported_by_number() {
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let observer =
        Observer::start(&pair.server, &format!("rx@thread0 {SERVER_DEVICE} ring=1MB | count"));
    observer.signal("STOP");
    send_frames(&pair.client, CLIENT_DEVICE, &numbered_frames(0..20_000, FRAME_SIZE));
    wait_until("all have come", || frames_received(&pair) == 20_000);
    observer.signal("CONT");
    let ran = observer.stop();
    ran.assert_balanced();
    let source = ran.source();
    assert_eq!(source.observed, Some(20_000), "{source:?}");
    assert_eq!(source.losses_at_location("ring"), Some(20_000 - source.given), "{source:?}");
    assert!(source.given > 0 && source.total_lost() > 0, "{source:?}");
    let kept: Vec<u64> = (0..source.given).collect();
    assert_missing_is_reported(&kept, &ran.ledger["sources"][0]["missing"]["ring"], 20_000);
}

#[test]
fn stop_during_a_flood_balances_the_ledger() {
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let line = format!("rx@thread0 {SERVER_DEVICE} ring=1MB | pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    let ended = AtomicBool::new(false);
    let (ran, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                send_frames(
                    &pair.client,
                    CLIENT_DEVICE,
                    &numbered_frames(sent..sent + FRAMES_SENT / 10, FRAME_SIZE),
                );
                sent += FRAMES_SENT / 10;
            }
            sent
        });
        observer.wait_until_file_has_length("seen.pcap", 1_000_000);
        let ran = observer.stop();
        ended.store(true, Ordering::Relaxed);
        (ran, sender.join().expect("a sender"))
    });
    ran.assert_balanced();
    let (source, numbers) = (ran.source(), frame_numbers(&ran.frames("seen.pcap")));
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert_eq!(numbers.len() as u64, source.given, "{source:?}");
    assert_eq!(source.observed, Some(source.given + source.total_lost()), "{source:?}");
    assert!(numbers.last().is_some_and(|last| *last < sent), "{source:?}");
}
