//! Paths that end before their sources do: what was on its way is missing, and told.

use crate::line::Line;
use crate::probes::{BREAKS_AT, PROBES, arrived, given, missing};
use crate::scratch::Scratch;
use engine::build::Settings;
use engine::run::Outcome;
use runtime::failure::Cause;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::process::Command;

fn run(text: &str) -> Outcome {
    let outcome = Line::with(text, PROBES).threads(Settings::default());
    assert_eq!(outcome.failures.len(), 1, "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Asserts that the first numbers arrived, in order, and that all others sent are reported missing.
fn prove(outcome: &Outcome, file: &Path) -> u64 {
    let arrived = arrived(file);
    assert!(arrived.iter().copied().eq(0..arrived.len() as u64), "in order, without a gap");
    let arrived = arrived.len() as u64;
    assert_eq!(given(outcome), arrived + missing(outcome), "{arrived} arrived");
    arrived
}

#[test]
fn a_full_device_loses_what_was_sent() {
    let outcome = run("generate count=20000 size=300 seq=yes | count@thread0 | pcap /dev/full");
    assert!(given(&outcome) > 0);
    assert_eq!(given(&outcome), missing(&outcome), "nothing arrived");
}

#[test]
fn a_filter_with_a_bug_loses_what_was_behind_it() {
    for pin in ["", "@thread0", "@thread1"] {
        let scratch = Scratch::new();
        let file = scratch.path("some.pcap");
        let text = format!(
            "generate@thread0 count=20000 seq=yes | watch | breaks{pin} | count | pcap '{}'",
            file.display()
        );
        let outcome = run(&text);
        let arrived = prove(&outcome, &file);
        assert!(arrived <= BREAKS_AT, "{text}: {arrived}");
        let Cause::Panic { block: Some(block), .. } = &outcome.failures[0].cause else {
            panic!("{text}: {}", outcome.failures[0]);
        };
        assert_eq!(block.bytes[42..50], BREAKS_AT.to_be_bytes(), "{text}");
    }
}

/// Runs in a process of its own, which the next test starts with SIGXFSZ ignored: files may grow to
/// a bound that the pools stay below and the capture does not.
#[test]
#[ignore = "limits the files of its process"]
fn a_sink_that_fails_in_the_middle() {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: Some(LIMIT), maximum };
    setrlimit(Resource::Fsize, limit).expect("a lower limit");
    let scratch = Scratch::new();
    let file = scratch.path("some.pcap");
    let text =
        format!("generate count=40000 size=1500 seq=yes | watch | pcap '{}'", file.display());
    let outcome = run(&text);
    let told = outcome.failures[0].to_string();
    assert!(told.contains("some.pcap"), "{told}");
    let arrived = prove(&outcome, &file);
    assert_eq!(arrived, (LIMIT - 24) / 1516, "as many records as there is room for");
    let length = std::fs::metadata(&file).expect("the capture").len();
    assert_eq!(length, 24 + arrived * 1516, "and no part of another");
}

/// Bytes that a file may have: more than a pool, less than what is sent, and in the middle of a
/// record.
const LIMIT: u64 = 40_000_000;

#[test]
fn blocks_a_sink_could_not_write_are_reported_by_number() {
    let name = "ends::a_sink_that_fails_in_the_middle";
    let program = std::env::current_exe().expect("this program");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" --exact --ignored \"$1\""]).arg(program).arg(name);
    let output = shell.output().expect("a shell");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}
