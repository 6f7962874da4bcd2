//! Tests of PipesFS in which the server is killed during each operation, readers stop reading,
//! paths stop replying, or the names of paths must be escaped.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::pipes_mount::{PipesMount, ProcessGuard, send_signal};
use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Command, Stdio};
use testkit::{need, wait_until};

/// Operations on a mount, each with its name and a shell script that performs the operation until
/// the mount's server is killed.
const OPERATIONS: [(&str, &str); 8] = [
    ("open", "while cat web/request; do :; done"),
    ("read", "cat web/generate/all"),
    ("blocked read", "cat web/generate/udp/dport/53/all"),
    ("lookup", "i=0; while test -d web && ! test -e web/x$i; do i=$((i+1)); done"),
    ("readdir", "while ls -R web; do :; done"),
    ("readlink", "while readlink web/generate/all; do :; done"),
    ("counters", "while cat web/generate/stats/blocks; do :; done"),
    ("poll", "timeout 3600 tail -f .events"),
];

/// Kills a server while programs use its mount, and asserts that each program ends.
fn kill_server_in_use(folder: &Folder, mounted: &PipesMount, round: usize) {
    let mut server = folder.streamline_command(&["mount", "--foreground", "pipes"]);
    let mut server = ProcessGuard(server.stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is mounted", || mounted.path("web/generate/udp").is_dir());
    let start = |(_, script): &(&str, &str)| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(&mounted.directory);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ProcessGuard(shell.spawn().unwrap())
    };
    let mut programs: Vec<ProcessGuard> = OPERATIONS.iter().map(start).collect();
    // The number of calls determines the point of the operations at which the server is killed.
    let loops = round * 7 % 23;
    for _ in 0..loops {
        let _ = fs::metadata(mounted.path("web/generate/udp"));
    }
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    for (program, (operation, _)) in programs.iter_mut().zip(OPERATIONS) {
        wait_until(operation, || program.0.try_wait().unwrap().is_some());
    }
    let gone = fs::read_dir(&mounted.directory).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotConnected, "round {round}");
    assert!(Command::new("umount").arg(&mounted.directory).status().unwrap().success());
}

/// Starts and kills servers of a mount `rounds` times. Asserts that the path continues to run and
/// that no tap remains.
fn kill_servers(rounds: usize) {
    if need::require_root().is_none() || need::require_file("/dev/fuse").is_none() {
        return;
    }
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let mounted = PipesMount { directory: folder.path().join("pipes") };
    fs::create_dir(&mounted.directory).unwrap();
    let path = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    for round in 0..rounds {
        kill_server_in_use(&folder, &mounted, round);
    }
    assert!(folder.run(&["ps"]).out.contains(" web "));
    wait_until("no tap is left", || {
        let threads = fs::read_dir(format!("/proc/{}/task", path.0.id())).unwrap();
        let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
        threads.flatten().all(|thread| name(thread).is_ok_and(|name| name != "tap\n"))
    });
}

#[test]
fn b13_killed_server_ends_every_operation() {
    kill_servers(5);
}

#[test]
#[ignore = "takes minutes: 200 kills"]
fn b13_server_killed_200_times_ends_every_operation() {
    kill_servers(200);
}

#[test]
fn b2_stopped_reader_delays_no_other_and_learns_its_loss() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=20000 size=1400 | udp | count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    let mut stopped = File::open(mounted.path("web/generate/all")).unwrap();
    stopped.read_exact(&mut [0; 1400]).unwrap();
    let blocks = || mounted.read_number("web/generate/udp/stats/blocks");
    let begun = blocks();
    // These blocks exceed the capacity of the stopped reader's buffer.
    wait_until("the path goes on", || blocks() > begun + 20_000);
    let mut other = File::open(mounted.path("web/generate/all")).unwrap();
    other.read_exact(&mut [0; 14_000]).unwrap();
    let (out, _) = common::pipes_mount::run_in_mount(&mounted, "ls web/generate/udp | wc -l");
    assert_ne!(out.trim(), "0");
    drop(stopped);
    wait_until("its loss is told", || {
        mounted.read_text(".error").contains("blocks were skipped, because its reader was too slow")
    });
}

#[test]
fn b2_counters_of_a_stopped_path_always_fail_with_one_reason() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let path = folder.spawn_named_path("web", "generate rate=2000 | udp | count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    common::pipes_mount::stop_process(path.0.id());
    let fails = |name: &str| {
        let error = File::open(mounted.path(name)).unwrap_err();
        let reason = mounted.read_text(".error");
        assert_eq!(error.raw_os_error(), Some(5), "{name}: {reason}");
        assert!(reason.contains("is stopped, or overloaded"), "{name}: {reason}");
    };
    for name in ["blocks", "bytes", "ns_per_block", "dropped/unread"] {
        fails(&format!("web/generate/udp/stats/{name}"));
    }
    assert!(mounted.path("web/generate/udp/stats").is_dir());
    // A new mount, to which the path has never replied, gets the name and the request of the path
    // from the daemon.
    drop(mounted);
    let mounted = PipesMount::mount_again(&folder);
    assert_eq!(mounted.read_text("web/request"), "generate rate=2000 | udp | count\n");
    let error = File::open(mounted.path("web/generate/udp/stats/blocks")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    assert!(mounted.read_text(".error").contains("is stopped, or overloaded"));
    send_signal("-CONT", path.0.id());
    wait_until("it replies again", || {
        fs::read(mounted.path("web/generate/udp/stats/blocks")).is_ok()
    });
}

#[test]
fn b1_path_names_neither_collide_nor_leave_the_mount() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let request = "generate rate=100 | match 'a/../../b' | match '..' | match '.' | match '#2' | \
                   match '%2F' | match ' ' | match 'all' | discard";
    let _one = folder.spawn_named_path("first", request);
    let _other = folder.spawn_named_path("README2", request);
    wait_until("it is shown", || mounted.path("first/generate").is_dir());
    let mut directories = vec![mounted.path("first")];
    let mut depth = 0;
    while let Some(directory) = directories.pop() {
        depth += 1;
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert!(name.chars().all(|letter| !letter.is_control() && letter != '/'), "{name:?}");
            if entry.file_type().unwrap().is_dir() {
                let inside = fs::canonicalize(entry.path()).unwrap();
                assert!(inside.starts_with(&mounted.directory), "{inside:?}");
                directories.push(entry.path());
            }
        }
    }
    assert!(depth > 8 + 2, "{depth} directories");
    assert!(mounted.path("README").is_file());
}
