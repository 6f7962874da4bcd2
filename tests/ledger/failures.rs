//! Tests of paths that end before their sources: blocks in transit are reported as missing.

use crate::probes::{
    PANICKING_BLOCK, PROBE_FILTERS, blocks_sent, captured_frame_numbers, missing_block_count,
};
use crate::request::PlannedRequest;
use crate::scratch::Scratch;
use engine::build::RunSettings;
use engine::run::RunOutcome;
use runtime::failure::FailureCause;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::process::Command;

fn run_failing_request(text: &str) -> RunOutcome {
    let outcome =
        PlannedRequest::with_filters(text, PROBE_FILTERS).run_threaded(RunSettings::default());
    assert_eq!(outcome.failures.len(), 1, "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Asserts that the numbers that arrived begin at 0 and are in order without a gap, and that all
/// other sent numbers are reported as missing. Returns the number of blocks that arrived.
fn assert_prefix_arrived(outcome: &RunOutcome, file: &Path) -> u64 {
    let arrived = captured_frame_numbers(file);
    assert!(arrived.iter().copied().eq(0..arrived.len() as u64), "in order, without a gap");
    let arrived = arrived.len() as u64;
    assert_eq!(blocks_sent(outcome), arrived + missing_block_count(outcome), "{arrived} arrived");
    arrived
}

#[test]
fn full_device_counts_unwritten_blocks_as_lost() {
    let outcome = run_failing_request(
        "generate count=20000 size=300 seq=yes | count@thread0 | pcap /dev/full",
    );
    assert!(blocks_sent(&outcome) > 0);
    assert_eq!(blocks_sent(&outcome), missing_block_count(&outcome), "nothing arrived");
}

#[test]
fn panicking_filter_counts_blocks_after_it_as_lost() {
    for pin in ["", "@thread0", "@thread1"] {
        let scratch = Scratch::new();
        let file = scratch.path("some.pcap");
        let text = format!(
            "generate@thread0 count=20000 seq=yes | watch | breaks{pin} | count | pcap '{}'",
            file.display()
        );
        let outcome = run_failing_request(&text);
        let arrived = assert_prefix_arrived(&outcome, &file);
        assert!(arrived <= PANICKING_BLOCK, "{text}: {arrived}");
        let FailureCause::Panic { block: Some(block), .. } = &outcome.failures[0].cause else {
            panic!("{text}: {}", outcome.failures[0]);
        };
        assert_eq!(block.bytes[42..50], PANICKING_BLOCK.to_be_bytes(), "{text}");
    }
}

/// Entry point of a child process that is started with SIGXFSZ ignored. It sets a file size limit
/// above the size of a pool and below that of the capture.
#[test]
#[ignore = "limits the files of its process"]
fn child_process_writes_beyond_file_size_limit() {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: Some(FILE_SIZE_LIMIT), maximum };
    setrlimit(Resource::Fsize, limit).expect("a lower limit");
    let scratch = Scratch::new();
    let file = scratch.path("some.pcap");
    let text =
        format!("generate count=40000 size=1500 seq=yes | watch | pcap '{}'", file.display());
    let outcome = run_failing_request(&text);
    let message = outcome.failures[0].to_string();
    assert!(message.contains("some.pcap"), "{message}");
    let arrived = assert_prefix_arrived(&outcome, &file);
    assert_eq!(arrived, (FILE_SIZE_LIMIT - 24) / 1516, "as many records as there is room for");
    let length = std::fs::metadata(&file).expect("the capture").len();
    assert_eq!(length, 24 + arrived * 1516, "and no part of another");
}

/// File size limit in bytes, larger than a pool and smaller than the capture. It is not at a
/// boundary between records.
const FILE_SIZE_LIMIT: u64 = 40_000_000;

#[test]
fn unwritten_blocks_are_reported_by_number() {
    let name = "failures::child_process_writes_beyond_file_size_limit";
    let program = std::env::current_exe().expect("this program");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" --exact --ignored \"$1\""]).arg(program).arg(name);
    let output = shell.output().expect("a shell");
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && message.contains("1 passed"), "{message}");
}
