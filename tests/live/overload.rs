//! More than the reader can take: what arrived and what the ledger says was dropped is what was
//! sent, number by number, and by place.
//!
//! The reader writes a capture into a pipe that the test reads: one frame for each ten that have
//! been sent. So the flood is ten times what the reader can do, on a machine of any speed.

use crate::numbers::{assert_told, number, numbered, numbers};
use crate::observer::{Observer, Ran};
use crate::send::send;
use std::io::{BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::net::{CLIENT_DEVICE, Cable, Pair, SERVER_DEVICE, counters, until};

/// Frames that are sent, and bytes of each.
const FRAMES: u64 = 60_000;
const SIZE: usize = 400;
/// As many are sent as the reader reads one.
const TIMES: u64 = 10;
/// Bytes of a record's header in the capture.
const RECORD: usize = 16;

/// Floods a reader with a line behind its source; answers how it ended, and the numbers that came
/// through, in their order.
fn flood(pair: &Pair, behind: &str) -> (Ran, Vec<u64>) {
    let frames = numbered(0..FRAMES, SIZE);
    let line = format!("rx@thread0 {SERVER_DEVICE} ring=1MB {behind} | pcap -");
    let (observer, out) = Observer::piped(&pair.server, &line);
    let mut capture = BufReader::with_capacity(RECORD + SIZE, out);
    let (mut record, mut numbers) = (vec![0; RECORD + SIZE], Vec::new());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&pair.client, CLIENT_DEVICE, &frames));
        until("the flood ends", || {
            let sent = received(pair);
            if sent > 0 && numbers.is_empty() {
                capture.read_exact(&mut [0; 24]).expect("a capture begins");
            }
            while (numbers.len() as u64) * TIMES < sent {
                capture.read_exact(&mut record).expect("a record");
                numbers.push(number(&record[RECORD..]));
            }
            sender.is_finished()
        });
    });
    observer.signal("INT");
    // The pipe may be full: what still comes is read until the observer closes it.
    while capture.read_exact(&mut record).is_ok() {
        numbers.push(number(&record[RECORD..]));
    }
    (observer.wait(), numbers)
}

/// Frames that came to the device, or were dropped there.
fn received(pair: &Pair) -> u64 {
    let counters = counters(&pair.server, SERVER_DEVICE).expect("the device is there");
    counters.received + counters.receive_dropped
}

fn assert_accounted(ran: &Ran, numbers: &[u64]) {
    ran.assert_well();
    let source = ran.source();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert!(numbers.last().is_some_and(|last| *last < FRAMES));
    let arrived = numbers.len() as u64;
    assert!(source.dropped.iter().all(|(_, number)| number.is_some()), "{source:?}");
    assert_eq!(source.seen, Some(FRAMES), "{source:?}");
    assert_eq!(source.given + source.lost(), FRAMES, "{source:?}");
    assert_eq!(arrived + ran.ledger["lost"].as_u64().expect("a number"), FRAMES, "{}", ran.ledger);
    // Driver and backlog tell how many, and not which.
    if source.lost() == source.at("ring").unwrap_or(0) {
        let missing = &ran.ledger["sources"][0]["missing"]["ring"];
        assert_eq!(assert_told(numbers, missing, FRAMES), [None].into(), "one stream");
    }
}

#[test]
fn v2_a_flood_is_accounted_for_number_by_number() {
    let cable = Cable { addresses: false, ..Cable::default() };
    let Some(pair) = Pair::new(cable) else { return };
    let (ran, numbers) = flood(&pair, "");
    assert_accounted(&ran, &numbers);
    let source = ran.source();
    // Reader and ring hold some; the rest found no room.
    assert!(source.lost() * 2 > FRAMES, "there was no overload: {source:?}");
    assert!(source.at("ring").is_some_and(|ring| ring * 2 > FRAMES), "{source:?}");
}

#[test]
fn a_flood_through_a_filter_is_accounted_for() {
    let cable = Cable { addresses: false, ..Cable::default() };
    let Some(pair) = Pair::new(cable) else { return };
    let (ran, numbers) = flood(&pair, "| bpf \"udp port 9\"");
    assert_accounted(&ran, &numbers);
    assert!(ran.source().lost() * 2 > FRAMES, "there was no overload: {:?}", ran.source());
}

#[test]
fn a_reader_that_stands_still_loses_by_the_ring() {
    let cable = Cable { addresses: false, ..Cable::default() };
    let Some(pair) = Pair::new(cable) else { return };
    let observer =
        Observer::start(&pair.server, &format!("rx@thread0 {SERVER_DEVICE} ring=1MB | count"));
    observer.signal("STOP");
    send(&pair.client, CLIENT_DEVICE, &numbered(0..20_000, SIZE));
    until("all have come", || received(&pair) == 20_000);
    observer.signal("CONT");
    let ran = observer.stop();
    ran.assert_well();
    let source = ran.source();
    assert_eq!(source.seen, Some(20_000), "{source:?}");
    assert_eq!(source.at("ring"), Some(20_000 - source.given), "{source:?}");
    assert!(source.given > 0 && source.lost() > 0, "{source:?}");
    let kept: Vec<u64> = (0..source.given).collect();
    assert_told(&kept, &ran.ledger["sources"][0]["missing"]["ring"], 20_000);
}

#[test]
fn a_stop_in_the_middle_of_a_flood_balances() {
    let cable = Cable { addresses: false, ..Cable::default() };
    let Some(pair) = Pair::new(cable) else { return };
    let line = format!("rx@thread0 {SERVER_DEVICE} ring=1MB | pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    let ended = AtomicBool::new(false);
    let (ran, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                send(&pair.client, CLIENT_DEVICE, &numbered(sent..sent + FRAMES / 10, SIZE));
                sent += FRAMES / 10;
            }
            sent
        });
        observer.until_written("seen.pcap", 1_000_000);
        let ran = observer.stop();
        ended.store(true, Ordering::Relaxed);
        (ran, sender.join().expect("a sender"))
    });
    ran.assert_well();
    let (source, numbers) = (ran.source(), numbers(&ran.frames("seen.pcap")));
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert_eq!(numbers.len() as u64, source.given, "{source:?}");
    assert_eq!(source.seen, Some(source.given + source.lost()), "{source:?}");
    assert!(numbers.last().is_some_and(|last| *last < sent), "{source:?}");
}
