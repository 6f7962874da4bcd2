//! Tests of `untrusted=yes`, with honest and hostile filters in sandboxed processes.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;

/// Number of blocks that each request of these tests generates.
const BLOCK_COUNT: u64 = 5000;

/// Runs a hostile filter beside an honest branch. Asserts the invariants that hold whatever the
/// filter does. Returns the output and the exit status.
fn run_hostile_filter(attack: &str) -> CommandResult {
    let folder = Folder::new();
    let line = format!(
        "generate count={BLOCK_COUNT} size=100 | \
         ((hostile {attack} untrusted=yes | discard) + count)"
    );
    let ran = folder.run(&["--json", "--report=report", &line]);
    let text = folder.read("report");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["balanced"], true, "{attack}: {}", ran.err);
    let filters = report["filters"].as_array().unwrap();
    let node = |name: &str| filters.iter().find(|one| one["name"] == name).unwrap();
    let blocks = |what: &Value| what["blocks"].as_u64().unwrap();
    assert_eq!(blocks(&node("count")["passed"]), BLOCK_COUNT, "{attack}: the other branch has all");
    let hostile = node("hostile");
    let dropped = hostile["dropped"].get("filter ended").map_or(0, blocks);
    assert_eq!(blocks(&hostile["taken"]), BLOCK_COUNT, "{attack}");
    assert_eq!(blocks(&hostile["consumed"]) + dropped, BLOCK_COUNT, "{attack}");
    assert!(dropped > 0, "{attack}: {}", ran.err);
    assert!(blocks(&hostile["made"]) <= BLOCK_COUNT, "{attack}");
    assert_eq!(ran.status, Some(1), "{attack}: {}", ran.err);
    ran
}

fn assert_attack_error(attack: &str, what: &[&str]) {
    let ran = run_hostile_filter(attack);
    let head = "error: `hostile`: the filter `hostile`, in a process of its own, ";
    let error = ran.err.lines().find(|line| line.starts_with(head));
    let error = error.unwrap_or_else(|| panic!("{attack}: {}", ran.err));
    assert!(what.iter().any(|what| error.contains(what)), "{attack}: {error}");
    assert!(error.ends_with("; its later input was dropped"), "{attack}: {error}");
}

#[test]
fn j5_sandboxed_filter_output_equals_in_process_output() {
    let folder = Folder::new();
    let lines = [
        ("replay examples/web.pcap | tcp", "|http http | print"),
        ("replay examples/web.pcap", "| tcp |http http | json"),
        ("replay examples/web.pcap", "| dport |80 print"),
        ("replay examples/web.pcap", "| bpf \"tcp port 80\" | print"),
        ("replay examples/web.pcap | tcp |http http", "| match \"Host: www\" | print"),
        ("replay examples/web.pcap", "| ip | print"),
    ];
    for (before, behind) in lines {
        let at = behind[1..].find('|').unwrap() + 1;
        let (own, rest) = behind.split_at(at);
        let apart = format!("{before} {} untrusted=yes {rest}", own.trim_end());
        let (home, apart) =
            (folder.run(&[&format!("{before} {behind}")]), folder.run(&[apart.as_str()]));
        assert_eq!((apart.status, &apart.out), (home.status, &home.out), "{}", apart.err);
        assert!(!home.out.is_empty(), "{before} {behind}: {}", home.err);
    }
    // `pcap` writes entire frames, even if only a part of them is in view.
    for (name, option) in [("home", ""), ("apart", " untrusted=yes")] {
        let line = format!("replay examples/web.pcap | tcp{option} |http pcap {name}");
        let ran = folder.run(&[&line]);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
    }
    let same = folder.shell_command("cmp home apart && test -s home").status().unwrap();
    assert!(same.success());
}

#[test]
fn j5_forbidden_syscall_ends_only_its_filter() {
    for (attack, call) in [
        ("open", "openat"),
        ("connect", "socket"),
        ("fork", "clone"),
        ("exec", "execve"),
        ("ptrace", "ptrace"),
        ("kill", "kill"),
        ("memfd", "memfd_create"),
    ] {
        assert_attack_error(
            attack,
            &[&format!("was ended because it made a forbidden system call: `{call}`, number")],
        );
    }
    // The first forbidden system call depends on the C library.
    assert_attack_error(
        "thread",
        &["forbidden system call: `rt_sigaction`", "forbidden system call: `clone3`"],
    );
    assert_attack_error("setuid", &["was ended because it made a forbidden system call: number"]);
}

#[test]
fn j5_crash_ends_only_its_filter() {
    assert_attack_error("segment", &["was ended by signal 11 (SIGSEGV)"]);
    assert_attack_error("abort", &["was ended by signal 6 (SIGABRT)"]);
    assert_attack_error("exit", &["ended by itself before it had processed all blocks"]);
    assert_attack_error(
        "panic",
        &["ended with status 101: a panic, this filter panics on purpose"],
    );
    assert_attack_error("allocate", &["because it exceeded its memory limit of 512 MB"]);
}

#[test]
fn j5_forged_ring_positions_end_only_their_filter() {
    // The filter cannot make read-only memory writable, and all positions that it writes are
    // checked.
    assert_attack_error("ring", &["was ended by signal 11 (SIGSEGV)"]);
    // The filter then hangs. It may be killed for that reason, if its writes have not been checked
    // yet.
    let hangs = "made no progress in 2 s";
    assert_attack_error("spoof", &["was ended because it wrote invalid output", hangs]);
    assert_attack_error(
        "cursor",
        &["was ended because it reported an invalid read position", hangs],
    );
}

#[test]
fn j5_missing_progress_ends_only_its_filter() {
    assert_attack_error("hang", &["made no progress in 2 s of processor time, and was ended"]);
    assert_attack_error("flood", &["made no progress in 2 s", "kept sending notifications"]);
}

#[test]
#[ignore = "waits 20 s: cargo test -p streamline-cli --test untrusted -- --ignored"]
fn j5_sleep_ends_only_its_filter() {
    assert_attack_error("sleep", &["slept for 20 s although blocks waited for it, and was ended"]);
}

#[test]
fn j5_unsandboxable_filter_is_refused_before_the_start() {
    let folder = Folder::new();
    for (line, error) in [
        ("generate | count untrusted=yes", "its report would stay in a process that ends with it"),
        ("generate | (dport untrusted=yes ++ sport) | discard", "operands run within one thread"),
        ("generate untrusted=yes | discard", "`generate` has no parameter `untrusted`"),
        ("generate | discard untrusted=yes", "`discard` has no parameter `untrusted`"),
        ("generate | dport untrusted=maybe | discard", "`maybe` is neither `yes` nor `no`"),
    ] {
        let ran = folder.run(&[line]);
        assert!(
            ran.status == Some(2) && ran.err.contains(error),
            "{line}: {:?} {}",
            ran.status,
            ran.err
        );
    }
    let pinned = folder.run(&["generate | dport untrusted=yes @thread0 | discard"]);
    let error = "thread0: untrusted: a process";
    assert!(pinned.status == Some(1) && pinned.err.contains(error), "{}", pinned.err);
    let plain = folder.run(&["generate count=10 | dport untrusted=no |all count"]);
    assert_eq!((plain.status, plain.err.contains("sandbox")), (Some(0), false), "{}", plain.err);
}
