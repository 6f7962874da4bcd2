//! Tests of complete requests, which are parsed, checked, planned and run with each space in its
//! own thread.

use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::{Machine, plan};
use std::path::{Path, PathBuf};

fn run_request(text: &str, settings: RunSettings) -> RunOutcome {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    let outcome = run(paths, StopConditions::default()).expect("a run");
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

fn run_to_end(text: &str) -> RunOutcome {
    let outcome = run_request(text, RunSettings::default());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    outcome
}

fn reported_count(outcome: &RunOutcome, filter: &str, row: &str) -> u64 {
    let report = outcome.reports.iter().find(|r| r.name == filter).expect("a report");
    report.report.rows.iter().find(|(name, _)| name == row).expect("a row").1
}

fn capture_path() -> String {
    format!("{}/../../examples/web.pcap", env!("CARGO_MANIFEST_DIR"))
}

/// A temporary directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("streamline-lines-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder of its own");
        Self(folder)
    }

    fn file_path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the sequence numbers of the generated frames in a capture.
fn sequence_numbers(file: impl AsRef<Path>) -> Vec<u64> {
    let bytes = std::fs::read(file).expect("the capture");
    let mut numbers = Vec::new();
    let mut at = 24;
    while at + 16 <= bytes.len() {
        let length =
            u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        let frame = &bytes[at + 16..at + 16 + length];
        numbers.push(u64::from_be_bytes(frame[42..50].try_into().expect("eight bytes")));
        at += 16 + length;
    }
    numbers
}

#[test]
fn replayed_capture_is_filtered_and_counted_without_loss() {
    let text = format!(
        "replay '{}' | bpf \"tcp port 80\" | dport |80 count + !bpf \"tcp\" | discard",
        capture_path()
    );
    let outcome = run_to_end(&text);
    assert_eq!(outcome.ledger.sources[0].1.given.blocks, 105);
    assert!(reported_count(&outcome, "count", "blocks") > 0);
    assert_eq!(outcome.ledger.lost_blocks(), 0);
}

#[test]
fn written_capture_equals_the_replayed_one() {
    let folder = Folder::new("copy");
    let copy = folder.file_path("copy.pcap");
    run_to_end(&format!("replay '{}' | pcap '{copy}'", capture_path()));
    let count = |file: &str| {
        reported_count(&run_to_end(&format!("replay '{file}' | count")), "count", "bytes")
    };
    assert_eq!(count(&copy), count(&capture_path()));
}

#[test]
fn n9_branches_that_join_in_another_space_keep_their_order() {
    let folder = Folder::new("join");
    let file = folder.file_path("joined.pcap");
    let text = format!(
        "generate count=20000 seq=yes flows=2 | sport \
         | (|10000 count + (|10001 inspect | ipproto)) | pcap '{file}'"
    );
    run_to_end(&text);
    assert!(sequence_numbers(&file).into_iter().eq(0..20_000));
}

#[test]
fn n4_independent_pipelines_of_a_request_all_run() {
    let missing = "replay /nowhere.pcap | count";
    let (graph, mistakes) = pipeline::read_request(missing, &MachineRegistry::Local);
    assert!(mistakes.is_empty());
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).unwrap();
    let refused = build(&plan, RunSettings::default()).unwrap_err().to_string();
    assert!(refused.contains("/nowhere.pcap"), "{refused}");
    let text = format!("generate count=5000 | count ; replay '{}' | inspect", capture_path());
    let outcome = run_to_end(&text);
    assert_eq!(reported_count(&outcome, "count", "blocks"), 5000);
    assert_eq!(reported_count(&outcome, "inspect", "blocks"), 105);
}

#[test]
fn count_limit_ends_the_run_with_a_balanced_ledger() {
    let folder = Folder::new("count");
    let file = folder.file_path("some.pcap");
    let settings = RunSettings { count: Some(1234), ..RunSettings::default() };
    let outcome = run_request(&format!("generate seq=yes | pcap '{file}'"), settings);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(sequence_numbers(&file).into_iter().eq(0..1234));
    assert_eq!(outcome.ledger.lost_blocks(), 0, "what nobody asked for is not lost");
}

#[test]
fn report_covers_at_most_the_block_limit() {
    let settings = RunSettings { count: Some(1000), ..RunSettings::default() };
    let outcome = run_request("generate seq=yes | count", settings);
    assert_eq!(reported_count(&outcome, "count", "blocks"), 1000);
}

#[test]
fn full_disk_ends_the_path_and_unwritten_blocks_are_counted() {
    let settings = RunSettings::default();
    let outcome = run_request("generate count=200000 size=1500 seq=yes | pcap /dev/full", settings);
    let failure = outcome.failures.first().expect("the disk is full").to_string();
    assert!(failure.contains("/dev/full"), "{failure}");
    let sink = outcome.ledger.filters.iter().find(|node| node.name == "pcap").expect("the sink");
    assert_eq!(sink.passed.blocks, 0, "nothing fits on a full disk");
    assert!(sink.taken.blocks > 0 && outcome.ledger.lost_blocks() >= sink.taken.blocks);
}

#[test]
fn slow_reader_of_a_ring_loses_no_block() {
    // The pool is far smaller than the data, and the reader is slower than the writer.
    let text = "generate@thread0 count=60000 size=1500 seq=yes \
                | compress format=lz4 @thread1 | decompress format=lz4 @thread2 | count @thread2";
    let outcome = run_to_end(text);
    assert_eq!(reported_count(&outcome, "count", "blocks"), 60_000);
    assert_eq!(reported_count(&outcome, "count", "bytes"), 60_000 * 1500);
    let rings = outcome.ledger.edges.iter().filter(|e| e.kind == runtime::ledger::EdgeKind::Ring);
    assert_eq!(rings.count(), 2);
}

#[test]
fn d15_blank_edits_in_place_without_effect_on_siblings() {
    let folder = Folder::new("blank");
    let (before, after, read) =
        (folder.file_path("before"), folder.file_path("after"), capture_path());
    // Both files are written by other spaces, during or after the edits.
    run_to_end(&format!(
        "replay '{read}' | (udp | blank with=46 | pcap '{after}') + (udp | pcap '{before}')"
    ));
    let alone = folder.file_path("alone");
    let outcome =
        run_to_end(&format!("replay '{read}' | udp | blank with=46 | pcap '{alone}' @thread0"));
    let file = |name: &str| std::fs::read(name).expect("a capture");
    let (before, after, alone) = (file(&before), file(&after), file(&alone));
    assert_eq!(after, alone, "whoever is beside it");
    let plain = folder.file_path("plain");
    run_to_end(&format!("replay '{read}' | udp | pcap '{plain}'"));
    assert_eq!(before, file(&plain), "the sibling saw the frames as they were");
    assert!(before.len() == after.len() && before != after);
    let blank = outcome.ledger.filters.iter().find(|f| f.name == "blank").expect("a filter");
    assert!(blank.printed_counters().eq([("edited in place", blank.taken.blocks)]));
}

#[test]
fn k1_k3_k8_k11_rings_exist_only_between_spaces() {
    let rings = |text: &str| {
        let outcome = run_to_end(text);
        let rings = outcome.ledger.edges.iter().filter(|edge| edge.events.is_some()).count();
        (rings, outcome.ledger.edges.len())
    };
    let capture = capture_path();
    let (rings_in_one, edges) = rings(&format!("replay '{capture}' | ip | udp | count | discard"));
    assert_eq!((rings_in_one, edges), (0, 4), "calls alone");
    let (rings_of_two, _) =
        rings(&format!("replay '{capture}' | ip | udp @thread1 | count | discard"));
    assert_eq!(rings_of_two, 1);
}

#[test]
fn k2_batch_size_is_64_or_that_of_the_request() {
    let calls = |asked: &str, size: usize, place: &str| {
        let text = format!("{asked} generate count=6400 size={size} | count {place} | discard");
        let outcome = run_to_end(&text);
        let count = outcome.ledger.filters.iter().find(|node| node.name == "count").unwrap();
        assert_eq!(count.taken.blocks, 6400, "{text}");
        count.calls
    };
    assert_eq!(calls("", 64, ""), 100, "64 at once");
    assert_eq!(calls("", 64_000, ""), 100, "however long they are");
    assert_eq!(calls("--batch=512", 64, ""), 100, "no more than a batch holds");
    assert_eq!(calls("--batch=8", 64, ""), 800);
    assert_eq!(calls("--batch=1", 64, ""), 6400, "block by block");
    assert_eq!(calls("--batch=1", 64, "@thread1"), 6400, "behind a ring, too");
}
