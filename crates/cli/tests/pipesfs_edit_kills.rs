//! Tests of edits in PipesFS during which one of the processes is killed. Each edit is made
//! completely or not at all.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::pipes_mount::{PipesMount, ProcessGuard, send_signal, stop_process};
use common::{ChildGuard, Folder};
use std::fs;
use std::process::{Command, Stdio};
use testkit::wait_until;

const MOVE_SOURCE_REQUEST: &str = "generate rate=1000 | (udp | count) + (sample 2 | inspect)";
const MOVE_TARGET_REQUEST: &str = "generate rate=500 | sample 3 | discard";

/// A daemon, a server of a PipesFS mount in the foreground, and two paths between which filters are
/// moved.
struct MoveFixture {
    server: ProcessGuard,
    giver: ChildGuard,
    taker: ChildGuard,
    mounted: PipesMount,
    folder: Folder,
    _daemon: ChildGuard,
}

impl MoveFixture {
    /// Starts all processes, and waits until both paths are visible in the mount. Reports a skip
    /// and returns `None` if root privileges or `/dev/fuse` are missing.
    fn new() -> Option<Self> {
        let folder = Folder::new();
        let mounted = PipesMount::new_unmounted(&folder)?;
        let daemon = folder.start_daemon();
        let giver = folder.spawn_named_path("giver", MOVE_SOURCE_REQUEST);
        let taker = folder.spawn_named_path("taker", MOVE_TARGET_REQUEST);
        let mut server = folder.streamline_command(&["mount", "--foreground", "pipes"]);
        let server = ProcessGuard(server.stderr(Stdio::null()).spawn().unwrap());
        wait_until("both are shown", || {
            let is_listed = |name: &str| mounted.path(name).is_dir();
            is_listed("giver/generate/udp/count") && is_listed("taker/generate/sample:3")
        });
        Some(Self { server, giver, taker, mounted, folder, _daemon: daemon })
    }

    fn spawn_in_mount(&self, words: &[&str]) -> ProcessGuard {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&self.mounted.directory);
        ProcessGuard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Returns the request of a path once all earlier edits have been made or refused. Waits for
    /// them by making one more edit, which sets the argument of `sample`. In the returned request,
    /// the argument has its previous value.
    fn request_after_pending_edits(&self, path: &str) -> String {
        let words = ["set", path, "arg", "sample", "every=7"];
        wait_until("the path makes another edit", || self.folder.run(&words).status == Some(0));
        let listed = self.folder.run(&["ps"]).out;
        let line = listed.lines().find(|line| line.contains(&format!(" {path} "))).unwrap();
        let request = line.find("generate").map(|at| &line[at..]).unwrap();
        request.replace("sample 7", if path == "giver" { "sample 2" } else { "sample 3" })
    }
}

/// Blocks until a thread of the server is waiting for a path's reply to an edit.
fn wait_for_pending_edit(server: u32) {
    wait_until("the edit has begun", || {
        let threads = fs::read_dir(format!("/proc/{server}/task")).unwrap();
        threads.flatten().any(|thread| {
            let waits_in = fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
            waits_in.ends_with("skb_wait_for_more_packets")
        })
    });
}

#[test]
fn b6_waiting_edit_of_a_killed_server_is_not_applied() {
    for words in [
        &["mkdir", "giver/generate/udp/inspect"][..],
        &["rmdir", "giver/generate/udp/count"],
        &["mv", "giver/generate/udp/count", "giver/generate/sample:2/"],
        &["ln", "-s", "../udp/count", "giver/generate/sample:2/count"],
        &["mv", "giver/generate/udp/count", "taker/generate/"],
    ] {
        let Some(mut scene) = MoveFixture::new() else { return };
        let giver = scene.giver.0.id();
        stop_process(giver);
        let mut edit = scene.spawn_in_mount(words);
        wait_for_pending_edit(scene.server.0.id());
        send_signal("-KILL", scene.server.0.id());
        scene.server.0.wait().unwrap();
        assert!(!edit.0.wait().unwrap().success(), "{words:?}");
        send_signal("-CONT", giver);
        assert_eq!(scene.request_after_pending_edits("giver"), MOVE_SOURCE_REQUEST, "{words:?}");
        assert_eq!(scene.request_after_pending_edits("taker"), MOVE_TARGET_REQUEST, "{words:?}");
    }
}

#[test]
fn b6_path_killed_during_a_move_leaves_both_unchanged() {
    for giver_dies in [true, false] {
        let Some(mut scene) = MoveFixture::new() else { return };
        let taker = scene.taker.0.id();
        stop_process(taker);
        let mut edit = scene.spawn_in_mount(&["mv", "giver/generate/udp/count", "taker/generate/"]);
        wait_for_pending_edit(scene.server.0.id());
        let victim = if giver_dies { &mut scene.giver } else { &mut scene.taker };
        send_signal("-KILL", victim.0.id());
        victim.0.wait().unwrap();
        if giver_dies {
            send_signal("-CONT", taker);
        }
        assert!(!edit.0.wait().unwrap().success());
        match giver_dies {
            true => assert_eq!(scene.request_after_pending_edits("taker"), MOVE_TARGET_REQUEST),
            false => assert_eq!(scene.request_after_pending_edits("giver"), MOVE_SOURCE_REQUEST),
        }
    }
}

/// Moves a filter from one path to another `rounds` times, and each time kills the server or one of
/// the paths at a different point. Asserts that either both paths have changed or neither has.
fn kill_processes_during_moves(rounds: usize) {
    const INITIAL_REQUEST: &str = "generate rate=1000 | (udp | discard) + (sample 2 | inspect)";
    const TARGET_REQUEST_AFTER_MOVE: &str = "generate rate=500 | (sample 3 | discard) + count";
    for round in 0..rounds {
        let Some(mut scene) = MoveFixture::new() else { return };
        let mut edit = scene.spawn_in_mount(&["mv", "giver/generate/udp/count", "taker/generate/"]);
        if round % 2 == 0 {
            wait_for_pending_edit(scene.server.0.id());
        }
        // The number of yields determines the point at which the process is killed.
        (0..round * 20).for_each(|_| std::thread::yield_now());
        let victim = match round % 3 {
            0 => &mut scene.server.0,
            1 => &mut scene.giver.0,
            _ => &mut scene.taker.0,
        };
        victim.kill().unwrap();
        victim.wait().unwrap();
        let made = edit.0.wait().unwrap().success();
        let given = (round % 3 != 1).then(|| scene.request_after_pending_edits("giver"));
        let taken = (round % 3 != 2).then(|| scene.request_after_pending_edits("taker"));
        let known = |request: &Option<String>, before: &str, after: &str| {
            request.as_ref().is_none_or(|request| request == before || request == after)
        };
        assert!(
            known(&given, MOVE_SOURCE_REQUEST, INITIAL_REQUEST)
                && known(&taken, MOVE_TARGET_REQUEST, TARGET_REQUEST_AFTER_MOVE),
            "{given:?} {taken:?}"
        );
        if let (Some(given), Some(taken)) = (&given, &taken) {
            assert_eq!(
                given == INITIAL_REQUEST,
                taken == TARGET_REQUEST_AFTER_MOVE,
                "{given} and {taken}: half a move"
            );
        }
        if made {
            assert!(given.is_none_or(|given| given == INITIAL_REQUEST), "it was told to be made");
            assert!(
                taken.is_none_or(|taken| taken == TARGET_REQUEST_AFTER_MOVE),
                "it was told to be made"
            );
        }
    }
}

#[test]
fn b6_move_with_a_killed_process_is_atomic() {
    kill_processes_during_moves(6);
}

#[test]
#[ignore = "takes minutes: the same at many more moments"]
fn b6_move_killed_at_many_points_is_atomic() {
    kill_processes_during_moves(150);
}
