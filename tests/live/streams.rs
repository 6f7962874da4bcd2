//! Tests of filters over live frames. The results are compared with those over a capture of the
//! same frames, and held frames must survive many laps of the ring. Another test has several
//! senders and several queues.

use crate::frame_sending::{capture_length, send_frames, write_capture};
use crate::numbered_frames::{FRAME_LENGTH, frame_numbers, numbered_frames};
use crate::observer::{Observer, ObserverResult};
use crate::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::streamline_program;
use testkit::{Random, mixed_traffic};

/// Number of frames sent at once, fewer than the smallest ring holds.
const FRAMES_PER_SEND: usize = 200;
/// Maximum number of frames of a capture.
const FRAMES_MAX: usize = 3_000;
/// Maximum length in bytes of the frames that the veth pair carries.
const FRAME_MAX: usize = 1_514;

/// Parts of the paths of the captures that are sent. The variable `CASES` replaces them; `CASES=/`
/// selects all captures, which takes half a minute.
const CAPTURE_PATH_PARTS: &[&str] = &["suricata/tcp-", "pcapplusplus/", "zeek/Traces/tcp"];

/// Returns the contents of the files that a request wrote, sorted.
fn written_files(ran: &ObserverResult) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(ran.path("streams")).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_none_or(|end| end != "jsonl"));
    let mut found: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).expect("a file")).collect();
    found.sort();
    found
}

/// Runs a request over live frames through a ring of minimum size, and then over a capture of these
/// frames. Returns the contents of the files that each run wrote.
fn run_live_and_from_capture(pair: &NamespacePair, frames: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
    const STREAM_FILES_REQUEST: &str = "ip | tcp | files streams";
    let line = format!("rx {SERVER_DEVICE} ring=512k | ({STREAM_FILES_REQUEST}) + pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    for (number, part) in frames.chunks(FRAMES_PER_SEND).enumerate() {
        send_frames(&pair.client, CLIENT_DEVICE, part);
        // A sink that has written them has read them from the ring.
        let sent = &frames[..number * FRAMES_PER_SEND + part.len()];
        observer.wait_until_file_has_length("seen.pcap", capture_length(sent));
    }
    let live = observer.stop();
    live.assert_balanced();
    let folder = Scratch::new();
    let file = write_capture(&folder, "sent.pcap", frames);
    let line = format!("replay {} | {STREAM_FILES_REQUEST}", file.display());
    let replayed = Observer::spawn(Command::new(streamline_program()), &line).wait();
    replayed.assert_balanced();
    assert!(live.frames("seen.pcap") == frames, "all frames, in their order");
    [written_files(&live), written_files(&replayed)]
}

/// Returns the frames of a capture. Returns `None` if it has no frame or more than [`FRAMES_MAX`],
/// or if a frame is not a complete Ethernet frame of at least `least` bytes that the veth pair
/// carries.
fn sendable_frames(path: &Path, least: usize) -> Option<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path).ok()?;
    let mut frames = Vec::new();
    for (packet, frame) in wire::capture::packets(&bytes).map_while(Result::ok) {
        let whole = packet.wire_length as usize == frame.len();
        if packet.link != wire::LinkType::ETHERNET || !whole || frame.len() < least {
            return None;
        }
        frames.push(frame.to_vec());
    }
    let carried = frames.iter().all(|frame| frame.len() <= FRAME_MAX);
    (carried && (1..=FRAMES_MAX).contains(&frames.len())).then_some(frames)
}

#[test]
fn disordered_streams_reassemble_as_from_a_capture() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let mut random = Random::with_replayable_seed();
    let made = mixed_traffic(random.next_u64(), 400).frames;
    let mut frames: Vec<Vec<u8>> = made.into_iter().map(|(_, frame)| frame).collect();
    // Neighbors are swapped, so that much is held.
    for at in 1..frames.len() {
        if random.one_in(5) {
            frames.swap(at - 1, at);
        }
    }
    let [live, replayed] = run_live_and_from_capture(&pair, &frames);
    assert!(live.len() > 300, "{}", live.len());
    assert!(live == replayed, "{} and {} streams", live.len(), replayed.len());
}

#[test]
fn live_captures_reassemble_as_from_a_file() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let made = testkit::generated_captures()
        .with_name_prefixes(&["streams/", "fragments/", "http/"])
        .paths
        .into_iter();
    let frames: Vec<Vec<u8>> =
        made.filter_map(|path| sendable_frames(&path, 1)).flatten().collect();
    let [live, replayed] = run_live_and_from_capture(&pair, &frames);
    assert!(live == replayed, "{} and {}", live.len(), replayed.len());
    assert!(live.len() > 100, "{} streams", live.len());
}

#[test]
fn corpus_live_captures_reassemble_as_from_a_file() {
    let Some(captures) = testkit::capture_paths() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let part = std::env::var("CASES").ok();
    let parts = part.as_deref().map_or_else(|| CAPTURE_PATH_PARTS.to_vec(), |part| vec![part]);
    let wanted = |path: &&PathBuf| {
        let name = path.to_string_lossy();
        parts.iter().any(|part| name.contains(part))
    };
    let mut count = 0;
    for path in captures.iter().filter(wanted) {
        let Some(frames) = sendable_frames(path, 60) else { continue };
        let [live, replayed] = run_live_and_from_capture(&pair, &frames);
        assert!(live == replayed, "{}: {} and {}", path.display(), live.len(), replayed.len());
        count += 1;
    }
    println!("{count} captures");
    assert!(count > 10, "{count} captures");
}

#[test]
fn frames_of_several_senders_arrive_once() {
    let cable = DevicePairSettings { addresses: false, queues: 2, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let line = format!("rx {SERVER_DEVICE} ring=64MB | pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    let parts =
        [numbered_frames(0..20_000, FRAME_LENGTH), numbered_frames(20_000..40_000, FRAME_LENGTH)];
    std::thread::scope(|scope| {
        for (processor, part) in parts.iter().enumerate() {
            let pair = &pair;
            scope.spawn(move || {
                // On a machine with one processor they alternate.
                let _ = sys::process::pin_to_processor(processor);
                send_frames(&pair.client, CLIENT_DEVICE, part);
            });
        }
    });
    observer.wait_until_file_has_length("seen.pcap", capture_length(&parts.concat()));
    let ran = observer.stop();
    ran.assert_lossless();
    let (first, second): (Vec<u64>, Vec<u64>) =
        frame_numbers(&ran.frames("seen.pcap")).into_iter().partition(|number| *number < 20_000);
    assert!(first.into_iter().eq(0..20_000), "the first sender's, in their order");
    assert!(second.into_iter().eq(20_000..40_000), "the second sender's, in their order");
}
