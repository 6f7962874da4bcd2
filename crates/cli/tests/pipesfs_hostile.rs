//! Tests of PipesFS with hostile users, who try to read, write and change another user's paths
//! through permissions, names and links. Also tests of filters that need the permission to send,
//! and of filters whose files are below the mount itself. (RELIABILITY T8, T20)

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::pipes_mount::{PipesMount, ProcessGuard, run_in_mount};
use common::{ChildGuard, Folder};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::Stdio;
use testkit::{need, wait_until};

const ALICE: u32 = 41_031;
const BOB: u32 = 41_032;
const EDEADLK: i32 = 35;

/// A PipesFS mount that all users of a machine share.
struct SharedMount {
    mounted: PipesMount,
    folder: Folder,
    _daemon: ChildGuard,
}

impl SharedMount {
    fn new(options: &[&str]) -> Option<Self> {
        need::require_root()?;
        let folder = Folder::accessible_to_all();
        let daemon = folder.start_daemon();
        let mounted = PipesMount::new(&folder, options)?;
        Some(Self { mounted, folder, _daemon: daemon })
    }

    /// Runs a shell script in the mount's directory as a user. Returns its output and its exit
    /// status.
    fn run_as(&self, uid: u32, script: &str) -> (String, i32) {
        let mut command = self.folder.command_as_user((uid, uid), Some("timeout"));
        command.args(["-s", "KILL", "60", "sh", "-c", script]);
        let output = command.current_dir(&self.mounted.directory).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        (out + &error, output.status.code().unwrap_or(-1))
    }

    /// Starts a path of a user under a name.
    fn start_path_as_user(&self, uid: u32, name: &str, line: &str) -> ProcessGuard {
        let mut path = self.folder.command_as_user((uid, uid), None);
        path.args(["run", "-q", "--as", name, line]);
        ProcessGuard(path.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

/// Commands with which a user attacks the path `hers` of another user. The attacker also owns a
/// path, `his`.
const ATTACK_COMMANDS: [&str; 39] = [
    "ls hers",
    "cd hers",
    "cat hers/request",
    "head -c 1 hers/generate/all",
    "head -c 1 hers/generate/.streams/all",
    "head -c 1 hers/generate/all.jsonl",
    "cat his/../hers/request",
    "cat ./hers//generate/config/rate",
    "timeout 1 cat .events",
    "cat /proc/self/cwd/hers/request",
    "readlink hers/generate/all",
    "echo x > hers/generate/udp/all",
    "echo 7 > hers/generate/config/rate",
    "echo 10m > hers/generate/freeze",
    "truncate -s 0 hers/generate/config/rate",
    "touch hers/x",
    "mkdir hers/generate/count",
    "mkdir hers/generate/udp/dport/53/count",
    "rmdir hers",
    "rm -r hers",
    "rmdir hers/generate/udp",
    "mv hers mine",
    "mv hers/generate .",
    "mv hers/generate/udp his/",
    "mv his/http hers/",
    "ln -s ../hers/generate/udp his/udp",
    "ln -s ../hers/generate/nothing his/nothing",
    "ln -s \"$PWD/hers/generate/udp\" his/udp",
    "ln -s ../his/http hers/http",
    "ln hers/request mine",
    "chmod 777 hers",
    "chgrp 41032 hers",
    "chown 41032 hers",
    "mkdir his/..%2Fhers%2Fcount",
    "mkdir 'his/count |exec sh'",
    "mkdir 'his/exec:cat'",
    "mkdir \"his/$(printf 'count\\nexec')\"",
    "mkdir hers",
    "mkdir %2E%2E",
];

#[test]
fn b13_hostile_user_reads_and_changes_no_path_of_another() {
    let Some(shared) = SharedMount::new(&["--all-users"]) else { return };
    let line = "generate rate=1000 | udp | dport |9 count";
    let _hers = shared.start_path_as_user(ALICE, "hers", line);
    wait_until("hers is shown", || shared.mounted.path("hers/generate/udp").is_dir());
    assert_eq!(shared.run_as(BOB, "mkdir his his/http").1, 0);
    for script in ATTACK_COMMANDS {
        let (output, status) = shared.run_as(BOB, script);
        assert_ne!(status, 0, "{script}: {output}");
        assert!(!output.contains("rate="), "{script}: {output}");
        // The reason for the failure reveals nothing about the other path.
        let (error, _) = shared.run_as(BOB, "cat .error");
        assert!(!error.contains("rate=") && !error.contains("another path"), "{script}: {error}");
    }
    assert_eq!(shared.mounted.read_text("hers/request").trim_end(), line);
    assert_eq!(shared.mounted.read_text("his/request"), "stream | http | discard\n");
    assert_eq!(shared.mounted.read_number("hers/generate/udp/stats/written"), 0);
    assert_eq!(shared.mounted.read_text("hers/generate/config/rate"), "1000\n");
    let about = fs::metadata(shared.mounted.path("hers")).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (ALICE, 0o700));
    assert_eq!(shared.run_as(ALICE, "cat .error").0, "", "she is told nothing of it");
    assert!(shared.run_as(ALICE, "head -n 1 .events").0.contains(line));
    // A path of BOB with the same name does not replace ALICE's path.
    let _copy = shared.start_path_as_user(BOB, "hers", "generate rate=77 | count");
    let two = || shared.folder.run(&["ps"]).out.matches(" hers ").count() == 2;
    wait_until("both are listed", two);
    assert_eq!(shared.run_as(ALICE, "cat hers/request").0.trim_end(), line);
    assert_eq!(fs::metadata(shared.mounted.path("hers")).unwrap().uid(), ALICE);
    assert_eq!(shared.run_as(ALICE, "rm -r hers").1, 0, "the path is hers");
    assert_eq!(shared.run_as(BOB, "rm -r his").1, 0);
}

#[test]
fn t8_many_readers_leave_connections_for_commands() {
    let Some(shared) = SharedMount::new(&[]) else { return };
    let folder = &shared.folder;
    let mut path = folder.spawn_named_path("web", "generate rate=1000 | count");
    wait_until("it is shown", || shared.mounted.path("web/generate/count").is_dir());
    let open = |_| fs::File::open(shared.mounted.path("web/generate/all.jsonl"));
    let readers: Vec<_> = (0..80).map(open).collect();
    let served = readers.iter().filter(|reader| reader.is_ok()).count();
    assert_eq!(served, 48);
    let error = shared.mounted.read_text(".error");
    assert!(error.contains("48 readers already"), "{error}");
    assert!(folder.run(&["ps"]).out.contains(" web "), "{}", folder.run(&["ps"]).out);
    assert_eq!(folder.run(&["stop", "web"]).status, Some(0));
    wait_until("the path ends", || path.0.try_wait().unwrap().is_some());
}

#[test]
fn t20_sending_filter_is_refused_without_the_right_of_its_path() {
    let Some(shared) = SharedMount::new(&["--all-users"]) else { return };
    assert_eq!(shared.run_as(ALICE, "mkdir stream:form=frame").1, 0);
    let (output, status) = shared.run_as(ALICE, "mkdir stream/tx:lo");
    assert!(status != 0 && output.contains("Operation not permitted"), "{output}");
    let (error, _) = shared.run_as(ALICE, "cat .error; cat stream/config/form");
    assert!(error.contains("packet socket") && error.ends_with("frame\n"), "{error}");
    assert_eq!(shared.run_as(ALICE, "rmdir stream/tx:lo").1, 1, "nothing was made");
    let made = fs::create_dir(shared.mounted.path("stream/dport"));
    assert!(made.is_ok(), "{}", shared.mounted.read_text(".error"));
    assert_eq!(shared.run_as(ALICE, "rm -r stream").1, 0);
}

#[test]
fn t20_files_below_the_mount_are_refused_instead_of_a_deadlock() {
    let Some(shared) = SharedMount::new(&["-o", "exec"]) else { return };
    let _path = shared.folder.spawn_named_path("web", "generate rate=1000 | udp | count");
    wait_until("it is shown", || shared.mounted.path("web/generate/udp").is_dir());
    let link = shared.folder.path().join("detour");
    symlink(&shared.mounted.directory, &link).unwrap();
    let target = shared.mounted.path("web/generate/all.pcap");
    for file in [target, link.join("web/generate/all.pcap"), link.join("new.pcap")] {
        let name = file.display().to_string().replace('/', "%2F");
        for filter in ["pcap", "files"] {
            let directory = shared.mounted.path(&format!("web/generate/{filter}:{name}"));
            let refused = fs::create_dir(&directory).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(EDEADLK), "{}", directory.display());
            let error = shared.mounted.read_text(".error");
            assert!(error.contains("below this mount"), "{error}");
        }
    }
    assert_eq!(
        shared.mounted.read_text("web/request").trim_end(),
        "generate rate=1000 | udp | count"
    );
    let file = shared.folder.path().join("out.pcap");
    let name = file.display().to_string().replace('/', "%2F");
    fs::create_dir(shared.mounted.path(&format!("web/generate/pcap:{name}"))).unwrap();
    wait_until("it is written", || fs::metadata(&file).is_ok_and(|about| about.len() > 0));
}

#[test]
fn b6_recursive_copy_makes_the_filters_and_reports_their_files() {
    let Some(shared) = SharedMount::new(&[]) else { return };
    let line = "generate rate=1000 | (udp | dport |9 sample 3) + inspect";
    let _path = shared.folder.spawn_named_path("web", line);
    wait_until("it is shown", || shared.mounted.path("web/generate/inspect").is_dir());
    let copy = "timeout -s KILL 60 cp -r web/generate/udp web/generate/inspect/ 2>&1";
    let (output, status) = run_in_mount(&shared.mounted, copy);
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("stats'") && !output.contains("/9'"), "{output}");
    let request = || shared.mounted.read_text("web/request").trim_end().to_owned();
    let before = "generate rate=1000 | (udp | dport |9 sample 3) + (inspect | udp";
    assert_eq!(request(), format!("{before} | dport |9 sample 3)"), "{output}");
}
