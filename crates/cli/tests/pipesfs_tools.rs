//! Tests of PipesFS with ordinary programs: programs that walk trees, shells that complete names,
//! and programs that read captures. Also tests of the streams of filters that have replicas.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::pipes_mount::{PipesMount, run_in_mount};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use testkit::{need, wait_until};

/// Runs a shell script in the mount, and returns its output. Reports a skip and returns `None` if
/// `program` is not installed.
fn run_script_if_installed(mounted: &PipesMount, program: &str, script: &str) -> Option<String> {
    need::require_command(program)?;
    let (out, status) = run_in_mount(mounted, script);
    assert_eq!(status, 0, "{script}: {out}");
    Some(out)
}

#[test]
fn b1_programs_that_walk_trees_end_and_see_each_filter_once() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let request = "generate rate=2000 | udp | dport | ((|9 count) + (|10:20 sample 2 | count))";
    let _path = folder.spawn_named_path("web", request);
    wait_until("it is shown", || mounted.path("web/generate/udp/dport/10:20").is_dir());
    let found = run_script_if_installed(&mounted, "find", "find web -type d").unwrap_or_default();
    let directories: BTreeSet<&str> = found.lines().collect();
    assert_eq!(directories.len(), found.lines().count(), "each once: {found}");
    assert!(directories.contains("web/generate/udp/dport/10:20/sample:2/count"), "{found}");
    let links = run_script_if_installed(&mounted, "find", "find -L web -name all -prune -print");
    assert!(links.unwrap_or_default().contains("web/generate/udp/all\n"));
    if let Some(out) = run_script_if_installed(&mounted, "tree", "tree -d --noreport web") {
        assert_eq!(out.lines().count(), directories.len(), "{out}");
    }
    let out = run_script_if_installed(&mounted, "grep", "grep -rl thread0 web/generate").unwrap();
    assert!(out.contains("web/generate/udp/dport/place"), "{out}");
    let out =
        run_script_if_installed(&mounted, "dd", "dd if=web/request bs=3 status=none").unwrap();
    assert_eq!(out, format!("{request}\n"));
    let walk = "python3 -c \"import os; print(sum(1 for _ in os.walk('web')))\"";
    if let Some(out) = run_script_if_installed(&mounted, "python3", walk) {
        assert_eq!(out.trim(), directories.len().to_string());
    }
    let copy = folder.path().join("copy");
    let rsync = format!("rsync -a web/ '{}'", copy.display());
    if run_script_if_installed(&mounted, "rsync", &rsync).is_some() {
        assert_eq!(fs::read_to_string(copy.join("request")).unwrap(), format!("{request}\n"));
        assert!(copy.join("generate/all").is_symlink(), "a stream is copied as a link");
    }
    // The kernel does not check permissions in a mount of root, so the server does.
    let executed = "cd web/generate && test -x udp && test -r why && ! test -x why && echo yes";
    assert_eq!(run_in_mount(&mounted, executed), ("yes\n".to_owned(), 0));
    assert_ne!(run_in_mount(&mounted, "web/generate/why").1, 0, "a file is not executed");
    let archive = "tar cf - web | tar tf - | grep -c '/all$'";
    let streams = run_script_if_installed(&mounted, "tar", archive).unwrap();
    assert!(streams.trim().parse::<usize>().unwrap() > 3, "{streams}");
}

#[test]
fn b1_shells_complete_names_of_filters_and_classes() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    wait_until("it is shown", || mounted.path("web/generate/udp/dport").is_dir());
    let bash = "bash -c 'compgen -f web/generate/u; compgen -d web/generate/udp/dport/9/c'";
    if let Some(out) = run_script_if_installed(&mounted, "bash", bash) {
        let names: Vec<&str> = out.lines().collect();
        assert_eq!(names, ["web/generate/udp", "web/generate/udp/dport/9/count"]);
    }
    let globs = "echo web/generate/udp/dport/*/count";
    for (shell, script) in [
        ("bash", format!("bash -c '{globs}'")),
        ("zsh", format!("zsh -f -c '{globs}'")),
        ("fish", format!("fish --no-config -c '{globs}'")),
    ] {
        if let Some(out) = run_script_if_installed(&mounted, shell, &script) {
            assert_eq!(out, "web/generate/udp/dport/9/count\n", "{shell}");
        }
    }
    let fish = "fish --no-config -c 'complete -C \"ls web/generate/u\"'";
    if let Some(out) = run_script_if_installed(&mounted, "fish", fish) {
        assert!(out.contains("web/generate/udp/"), "{out}");
    }
}

/// Reads 64-byte frames from a stream until their numbers include `count` consecutive numbers.
/// Returns all numbers. Panics if a number is repeated.
fn read_frame_numbers(stream: &mut File, count: u64) -> BTreeSet<u64> {
    let (mut known, mut frame) = (BTreeSet::new(), [0; 64]);
    let mut first = None;
    wait_until("all numbers have come", || {
        for _ in 0..100 {
            stream.read_exact(&mut frame).unwrap();
            let number = u64::from_be_bytes(frame[42..50].try_into().unwrap());
            assert!(known.insert(number), "{number} came twice");
        }
        // While the stream starts, the numbers may come from only one replica, so they are not
        // checked.
        let last = *known.last().unwrap();
        let from = *first.get_or_insert(last + 1);
        (from..from + count).all(|number| known.contains(&number))
    });
    known
}

#[test]
fn b2_stream_of_replicas_has_each_block_once() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let request = "--parallel=2 generate rate=4000 seq=yes | dport |all count";
    let _path = folder.spawn_named_path("copied", request);
    wait_until("it is shown", || mounted.path("copied/generate/dport").is_dir());
    let place = mounted.read_text("copied/generate/dport/place");
    assert_eq!(place.split_whitespace().count(), 2, "two replicas: {place}");
    let mut stream = File::open(mounted.path("copied/generate/dport/all")).unwrap();
    read_frame_numbers(&mut stream, 4000);
    drop(stream);
    // The capture has only one file header, although it comes from several replicas.
    if need::require_command("tcpdump").is_some() {
        let script = "head -c 200000 copied/generate/dport/all.pcap | \
                      tcpdump -nr - -c 2000 2>/dev/null | grep -c 'UDP, length 22'";
        assert_eq!(run_in_mount(&mounted, script).0.trim(), "2000");
    }
    let (out, _) = run_in_mount(&mounted, "head -500 copied/generate/dport/all.jsonl");
    for line in out.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["proto"], "udp", "{line}");
    }
    assert_eq!(out.lines().count(), 500);
}

#[test]
fn b2_capture_programs_read_live_streams_and_count_losses() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=20000 seq=yes | udp | count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    for (program, script) in [
        ("tcpdump", "tcpdump -nr web/generate/udp/all.pcap -c 5000 2>/dev/null | wc -l"),
        ("tcpdump", "cat web/generate/all.pcap | tcpdump -nr - -c 5000 2>/dev/null | wc -l"),
        ("tshark", "cat web/generate/all.pcap | tshark -n -i - -c 5000 2>/dev/null | wc -l"),
    ] {
        if let Some(out) = run_script_if_installed(&mounted, program, script) {
            assert_eq!(out.trim(), "5000", "{script}");
        }
    }
    // If the reader is too slow, the frame numbers have gaps, and the loss is reported.
    let mut stream = File::open(mounted.path("web/generate/all")).unwrap();
    let mut frames = vec![0; 64 * 20_000];
    stream.read_exact(&mut frames).unwrap();
    let number = |frame: &[u8]| u64::from_be_bytes(frame[42..50].try_into().unwrap());
    let numbers: Vec<u64> = frames.chunks_exact(64).map(number).collect();
    assert!(numbers.is_sorted());
    let lost = numbers[numbers.len() - 1] - numbers[0] + 1 - numbers.len() as u64;
    drop(stream);
    wait_until("losses are told", || {
        lost == 0 || mounted.read_text(".error").contains("were skipped")
    });
}

#[test]
fn b9_path_has_a_tap_only_while_a_stream_is_open() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let path = folder.spawn_named_path("web", "generate rate=2000 | udp | count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    let has_tap = || {
        let threads = fs::read_dir(format!("/proc/{}/task", path.0.id())).unwrap();
        let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
        threads.flatten().any(|thread| name(thread).is_ok_and(|name| name == "tap\n"))
    };
    run_in_mount(&mounted, "ls -lR web; cat web/generate/stats/blocks");
    assert!(!has_tap(), "walks open no stream");
    let stream = File::open(mounted.path("web/generate/all")).unwrap();
    assert!(has_tap());
    drop(stream);
    wait_until("the tap ends with its reader", || !has_tap());
}

#[test]
fn b13_permissions_can_be_reduced_but_not_widened() {
    if need::require_root().is_none() {
        return;
    }
    const ALICE: u32 = 41_031;
    let folder = Folder::accessible_to_all();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &["--all-users"]) else { return };
    let as_alice = |program: &str, words: &[&str]| {
        let mut command = folder.command_as_user((ALICE, ALICE), Some(program));
        command.args(words).current_dir(&mounted.directory);
        command
    };
    let line = "generate rate=1000 | udp | count";
    let mut run = folder.command_as_user((ALICE, ALICE), None);
    run.args(["run", "-q", "--as", "hers", line]);
    let _path = common::pipes_mount::ProcessGuard(run.spawn().unwrap());
    wait_until("it is shown", || mounted.path("hers/generate").is_dir());
    let succeeds = |script: &str| {
        let output = as_alice("sh", &["-c", script]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert!(succeeds("ls hers").0);
    for script in ["chmod 755 hers", "chmod 444 hers/request", "chgrp 1 hers"] {
        assert!(!succeeds(&format!("{script} 2>/dev/null")).0, "{script}");
        assert_ne!(succeeds("cat .error").1, "", "{script}");
    }
    let chown = std::process::Command::new("chown").arg("0").arg(mounted.path("hers")).output();
    assert!(!chown.unwrap().status.success(), "root cannot take it over");
    assert!(succeeds("chmod 0 hers").0);
    wait_until("it is closed", || !succeeds("ls hers 2>/dev/null").0);
    assert!(succeeds("chmod 500 hers").0);
    wait_until("it is open", || succeeds("ls hers").0);
}
