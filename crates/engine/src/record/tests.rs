//! Tests of the file format of recordings, including foreign, truncated and damaged files.

use super::file_format;
use super::read::is_record;
use super::write::MissingInput;
use super::*;
use abi::{BlockFlags, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use endpoint::{LossRanges, Source as _};
use pipeline::plan::{Machine, Processors};
use runtime::space::events::{EventReader as _, Journal as _, SpaceEvent};
use std::path::PathBuf;
use sys::rollback::NO_ROLLBACK_LOG;
use testkit::Random;

fn test_head() -> RecordingHead {
    // A recording does not contain the placement of threads.
    let machine =
        Machine { path_processors: Processors::default(), ..Machine::example_with_kernel() };
    RecordingHead {
        program: "0.0.0".to_owned(),
        request: "replay - | count\n# two lines".to_owned(),
        machine: RecordingHead::replay_machine(machine),
        layout: "0 replay in 0".to_owned(),
        seed: 7,
        count: Some(12),
        zone: "Europe/Amsterdam".to_owned(),
    }
}

fn scratch_path(name: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("streamline-record-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn random_frame(random: &mut Random, link: u16) -> (Entry, Vec<u8>) {
    let length = random.within(1..200);
    let bytes = random.bytes(length);
    let length = u32::try_from(length).unwrap();
    let mut marks = Marks::frame(link, length, length + 7);
    marks.view = random.within(0..length as usize) as u32;
    marks.transport = 34;
    let pointer = RichPointer::new(
        file_format::NOT_IN_MEMORY_DBUF_ID,
        Extent::new(0, length - marks.view),
        Class::NONE,
    );
    let context = BlockMetadata {
        time: random.below(u64::MAX),
        session: 9,
        origin: 0,
        flags: BlockFlags::BACKWARD,
    };
    (Entry::new(pointer.with_class(Class(random.below(1 << 32) as u32)), context, marks), bytes)
}

/// A sequence of events, each with its blocks.
type EventBlocks = Vec<(SpaceEvent, Vec<(Entry, Vec<u8>)>)>;

/// Writes alternating events of two spaces to a recording of at most `most` bytes. Returns the
/// events of the first space and the summary.
fn write_recording(path: &std::path::Path, most: u64) -> (EventBlocks, RecordingSummary) {
    let mut random = Random::with_replayable_seed();
    let recording = Recording::create(path, &test_head(), most, &NO_ROLLBACK_LOG).unwrap();
    recording.set_source_names(&["rx eth0".to_owned()]);
    let mut all = Vec::new();
    {
        let mut here = write::EventRecorder::new(Arc::clone(&recording), 0);
        let mut there = write::EventRecorder::new(Arc::clone(&recording), 1);
        for now in 0..300 {
            let count = random.within(0..8);
            let link = *random.pick(&[1, 101, Marks::NO_LINK_TYPE, Marks::DESCRIPTION_LINK_TYPE]);
            let blocks: Vec<_> = (0..count).map(|_| random_frame(&mut random, link)).collect();
            let event = SpaceEvent::Pull { node: 3, now, count, edge: None, failure: None };
            here.record_pull(
                &event,
                &mut blocks.iter().map(|(entry, bytes)| (*entry, bytes.as_slice())),
            );
            there.record_event(&SpaceEvent::Import { node: 1, now, count });
            if random.one_in(20) {
                here.flush();
            }
            all.push((event, blocks));
        }
        here.record_event(&SpaceEvent::Finish { now: 300, failure: Some("why".to_owned()) });
    }
    (all, recording.finish("the ledger\n"))
}

fn replayed_events(path: &std::path::Path, space: usize) -> EventBlocks {
    let replay = Replay::new(Record::open(path).unwrap());
    let mut player = event_player::EventPlayer::new(replay, space);
    let mut all = Vec::new();
    while let Some(event) = player.next_event() {
        let count = if let SpaceEvent::Pull { count, .. } = &event { *count } else { 0 };
        let block =
            |n| player.next_block(count - n - 1).map(|(entry, bytes)| (entry, bytes.to_vec()));
        all.push((event, (0..count).filter_map(block).collect()));
    }
    all
}

#[test]
fn recording_is_read_back() {
    let path = scratch_path("whole");
    let (written, summary) = write_recording(&path, 1 << 20);
    assert_eq!((summary.failure.as_ref(), summary.missing), (None, MissingInput::default()));
    assert_eq!(summary.bytes, std::fs::metadata(&path).unwrap().len());
    let record = Record::open(&path).unwrap();
    assert_eq!(record.head, test_head());
    assert_eq!(record.completeness, Completeness::Complete { digest: "the ledger\n".to_owned() });
    let mut here = replayed_events(&path, 0);
    assert_eq!(
        here.pop().map(|(event, _)| event),
        Some(SpaceEvent::Finish { now: 300, failure: Some("why".to_owned()) })
    );
    assert_eq!(here, written);
    assert_eq!(replayed_events(&path, 1).len(), 300);
    assert_eq!(replayed_events(&path, 2).len(), 0);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn recording_opens_as_a_capture() {
    let path = scratch_path("capture");
    let (written, _) = write_recording(&path, 1 << 20);
    let bytes = std::fs::read(&path).unwrap();
    assert!(is_record(&path).unwrap());
    let frames: Vec<_> = written
        .iter()
        .flat_map(|(_, blocks)| blocks)
        .filter(|(entry, _)| entry.marks.is_frame())
        .collect();
    let packets = capture_packets(&bytes);
    assert_eq!(packets.len(), frames.len());
    for ((time, link, data), (entry, bytes)) in packets.iter().zip(frames) {
        assert_eq!((*time, *link), (entry.context.time, entry.marks.link));
        assert_eq!(data, bytes);
    }
    std::fs::remove_file(path).unwrap();
}

/// Returns the packets of a capture as `replay` reads them.
fn capture_packets(bytes: &[u8]) -> Vec<(u64, u16, Vec<u8>)> {
    let path = scratch_path("packets");
    std::fs::write(&path, bytes).unwrap();
    let text = format!("replay {} | print", path.display());
    let (graph, _) = pipeline::read_request(&text, &crate::registry::MachineRegistry::Local);
    let used = graph.nodes_with_ids().find_map(|(_, node)| node.filter()).unwrap();
    let entry = endpoint::catalog::find_source("replay").unwrap();
    let form = filter::Form::Bytes;
    let opening = endpoint::OpenArguments { form, ..endpoint::OpenArguments::new(&used.arguments) };
    let mut source = (entry.open)(&opening).unwrap();
    let mut pool = buffer::pool::Pool::new(DbufId::new(3).unwrap(), Default::default()).unwrap();
    let mut all = Vec::new();
    loop {
        let mut columns = filter::Columns::default();
        let given = source.produce(&mut endpoint::Intake::new(&pool, &mut columns, 64, 0)).unwrap();
        for l in 0..columns.len() {
            let entry = columns.entry(l);
            let bytes = pool.bytes(entry.frame().place).unwrap().to_vec();
            all.push((entry.context.time, entry.marks.link, bytes));
        }
        pool.end_pass();
        if given == endpoint::SourceStatus::End {
            std::fs::remove_file(path).unwrap();
            return all;
        }
    }
}

#[test]
fn truncated_recording_is_read_to_its_end() {
    let path = scratch_path("cut");
    let (written, _) = write_recording(&path, 1 << 20);
    let bytes = std::fs::read(&path).unwrap();
    let mut random = Random::with_replayable_seed();
    let mut most = 0;
    for _ in 0..40 {
        let at = random.within(2000..bytes.len() - 1);
        std::fs::write(&path, &bytes[..at]).unwrap();
        let record = match Record::open(&path) {
            Ok(record) => record,
            Err(RecordError::IncompleteHead { .. } | RecordError::NotARecording { .. }) => continue,
            Err(other) => panic!("cut at {at}: {other}"),
        };
        let Completeness::Truncated { at: end } = record.completeness else {
            panic!("cut at {at}: {record:?}")
        };
        assert!(end <= at as u64);
        let here = replayed_events(&path, 0);
        for ((event, blocks), (before, whole)) in here.iter().zip(&written) {
            assert_eq!(event, before);
            assert_eq!(blocks[..], whole[..blocks.len()]);
        }
        most = most.max(here.len());
    }
    assert!(most > 100, "{most}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn damaged_recording_is_reported_without_panic() {
    let path = scratch_path("damage");
    let (_, summary) = write_recording(&path, 1 << 20);
    let bytes = std::fs::read(&path).unwrap();
    let mut random = Random::with_replayable_seed();
    let head = 4000.min(bytes.len() / 2);
    let mut incomplete = 0;
    for _ in 0..30 {
        let mut other = bytes.clone();
        let at = random.within(head..bytes.len() - 400);
        other[at] ^= 1 << random.below(8);
        std::fs::write(&path, &other).unwrap();
        let record = Record::open(&path).unwrap();
        incomplete += usize::from(!matches!(record.completeness, Completeness::Complete { .. }));
        assert!(replayed_events(&path, 0).len() <= 301);
    }
    assert_eq!(incomplete, 30, "{summary:?}");
    std::fs::remove_file(path).unwrap();
}

/// Returns the counters of source 0 as a replay reports them, if this is the record of its final
/// counts.
fn replayed_counters(name: &str, event: &SpaceEvent) -> endpoint::SourceCounters {
    let path = scratch_path(name);
    let recording = Recording::create(&path, &test_head(), 1 << 20, &NO_ROLLBACK_LOG).unwrap();
    write::EventRecorder::new(Arc::clone(&recording), 0).record_event(event);
    recording.finish("the ledger\n");
    let replay = Replay::new(Record::open(&path).unwrap());
    let notes = event_player::EventPlayer::new(Arc::clone(&replay), 0).read_closing_entries();
    assert_eq!(notes, (0, None));
    std::fs::remove_file(path).unwrap();
    event_player::RecordedSource { replay, planned: 0, process: None }.counters()
}

#[test]
fn replayed_source_has_reasons_positions_and_note_of_the_run() {
    let mut ranges = LossRanges::default();
    (0..300).for_each(|at| ranges.add(at * 10, 3, (at % 2 == 0).then_some(1)));
    let text = |text: &str| text.to_owned();
    let dropped = vec![(text("overwritten"), Some(5)), (text("prefix"), Some(2))];
    let counters = replayed_counters(
        "losses",
        &SpaceEvent::SourceCounts {
            node_number: 0,
            observed: Some((7, 0)),
            dropped,
            missing: vec![(text("ring"), ranges.clone())],
            remark: Some((text("eth0 is called eth1 now"), true)),
        },
    );
    let lost: Vec<_> = counters.dropped.iter().map(|(place, lost)| (place.text(), *lost)).collect();
    assert_eq!(lost, [("overwritten", Some(5)), ("prefix", Some(2))]);
    assert_eq!(counters.missing, [("ring", ranges)]);
    assert_eq!(counters.remark.as_deref(), Some("eth0 is called eth1 now"));
    assert!(counters.warns);

    let forged = ["\n1", "\n2"].map(|place| (text(place), Some(2)));
    let counters = replayed_counters(
        "forged",
        &SpaceEvent::SourceCounts {
            node_number: 0,
            observed: Some((4, 0)),
            dropped: forged.to_vec(),
            missing: vec![],
            remark: None,
        },
    );
    assert_eq!(counters.dropped, [("elsewhere".into(), Some(4))]);
}

#[test]
fn source_counts_of_earlier_recordings_have_no_positions() {
    use file_format::WriteValues as _;
    // The name of the place needs padding, which must not be read as positions.
    let mut block = Vec::new();
    file_format::append_local_block(&mut block, file_format::LocalBlockKind::Event, |out| {
        out.put_u32s(&[6, 0]);
        out.put_u64s(&[u64::MAX, u64::MAX]);
        out.put_u32s(&[1]);
        out.put_text("socket.");
        out.put_u64s(&[9]);
    });
    let event = file_format::parse_block(&block).unwrap().decode_event();
    let dropped = vec![("socket.".to_owned(), Some(9))];
    let (observed, missing, remark) = (None, vec![], None);
    let expected = SpaceEvent::SourceCounts { node_number: 0, observed, dropped, missing, remark };
    assert_eq!(event, Some(expected));
}

#[test]
fn full_recording_counts_the_missing_input() {
    let path = scratch_path("full");
    let (written, summary) = write_recording(&path, 0);
    assert!(summary.bytes < write::RECORDING_BYTES_MIN + 4096, "{summary:?}");
    let record = Record::open(&path).unwrap();
    assert_eq!(record.completeness, Completeness::Full { beyond: summary.missing });
    let here = replayed_events(&path, 0);
    assert_eq!(here[..], written[..here.len()]);
    let all: usize = written.iter().map(|(_, blocks)| blocks.len()).sum();
    let kept: usize = here.iter().map(|(_, blocks)| blocks.len()).sum();
    assert_eq!(kept + summary.missing.blocks as usize, all);
    assert_eq!(summary.missing.since, Some(here.len() as u64));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn foreign_files_are_refused_by_type() {
    let path = scratch_path("foreign");
    let open_error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Record::open(&path).unwrap_err().to_string()
    };
    assert!(open_error(b"").contains("is not a record: `run --record=FILE"));
    assert!(open_error(b"some text that is long enough").contains("is not a record"));
    assert!(open_error(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0]).contains("is a capture"));
    let mut section = Vec::new();
    file_format::append_section_header(&mut section);
    assert!(open_error(&section).contains("is a capture"));
    let mut other = section.clone();
    file_format::append_local_block(
        &mut other,
        file_format::LocalBlockKind::RecordingHead,
        |out| out.extend_from_slice(&9_u32.to_le_bytes()),
    );
    assert!(open_error(&other).contains("record format 9"), "{}", open_error(&other));
    let mut empty = section;
    file_format::append_local_block(
        &mut empty,
        file_format::LocalBlockKind::RecordingHead,
        |out| out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]),
    );
    assert!(open_error(&empty).contains("lacks `release`"), "{}", open_error(&empty));
    std::fs::remove_file(&path).unwrap();
    assert!(Record::open(&path).unwrap_err().is_missing());
}

#[test]
fn recording_is_private_and_replaces_no_file() {
    use std::os::unix::fs::PermissionsExt;
    let path = scratch_path("own");
    let (_, _) = write_recording(&path, 1 << 20);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let refused =
        Recording::create(&path, &test_head(), 1 << 20, &NO_ROLLBACK_LOG).unwrap_err().to_string();
    assert!(refused.contains("file exists; a record never overwrites a file"), "{refused}");
    std::fs::remove_file(path).unwrap();
}
