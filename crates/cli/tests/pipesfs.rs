//! Tests of PipesFS: mounts with real readers, tools that walk the tree, users, and a server that
//! is killed.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::pipes_mount::{PipesMount, ProcessGuard, run_in_mount};
use common::{ChildGuard, Folder};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::net::Namespace;
use testkit::{need, wait_until};

const FRAMES_REQUEST: &str =
    "generate rate=2000 seq=yes | udp | dport | (|9 count + |10:20 count) | discard";

#[test]
fn b1_directories_are_filters_and_nesting_is_data_flow() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let one = folder.spawn_named_path("web", "generate rate=2000 seq=yes | udp | dport |9 count");
    let _other =
        folder.spawn_without_output(&["run", "-q", "generate rate=2000 seq=yes | udp | count"]);
    wait_until("the other path is shown", || mounted.path("generate/udp/count").is_dir());
    let names = mounted.entry_names("");
    for name in ["README", ".error", ".events", ".filters", ".machine", "web", "generate"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(mounted.path("web/generate/udp/dport/9/count").is_dir());
    assert_eq!(
        mounted.read_text("web/request"),
        "generate rate=2000 seq=yes | udp | dport |9 count\n"
    );
    assert_eq!(mounted.read_text("web/generate/config/rate"), "2000\n");
    assert!(!mounted.read_text("web/generate/udp/why").is_empty());
    let of_udp = |name: &str| mounted.read_text(&format!("web/generate/udp/{name}"));
    assert_eq!((of_udp("place"), of_udp("replicas")), ("thread0\n".into(), "1\n".into()));
    assert_eq!(of_udp("process"), format!("{}\n", one.0.id()));
    let processors = of_udp("processors");
    assert!(processors.split_whitespace().all(|one| one.parse::<usize>().is_ok()), "{processors}");
    assert!(!mounted.entry_names("web/generate/udp").contains("hook"));
    wait_until("blocks come", || mounted.read_number("web/generate/udp/stats/blocks") > 100);
    assert!(mounted.read_text("README").contains("Then what?"));
    assert!(mounted.read_text(".filters/tcp").contains("tcp"));
    assert!(mounted.path(".machine/lo/others").is_file());
}

#[test]
fn b1_paths_with_equal_beginnings_share_directories() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let lines = ["generate rate=100 | udp | count", "generate rate=100 | udp | sample 2 | count"];
    let _paths: Vec<_> =
        lines.iter().map(|line| folder.spawn_without_output(&["run", "-q", line])).collect();
    wait_until("both are shown", || {
        mounted.path("generate/udp/count").is_dir()
            && mounted.path("generate/udp/sample:2").is_dir()
    });
    let inode = |name: &str| fs::metadata(mounted.path(name)).unwrap().ino();
    let before = inode("generate/udp/sample:2");
    // A source with different arguments has a separate directory.
    let _third = folder.spawn_without_output(&["run", "-q", "generate rate=200 | udp | drop"]);
    wait_until("the third is shown", || {
        mounted.entry_names("").iter().filter(|name| name.starts_with("generate")).count() == 2
    });
    assert_eq!(inode("generate/udp/sample:2"), before);
    assert!(fs::read_dir(mounted.path("generate/udp")).unwrap().count() > 2);
}

#[test]
fn b12_any_valid_class_can_be_opened_and_arcs_are_listed() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    let dport = "web/generate/udp/dport";
    wait_until("it is shown", || mounted.path(dport).is_dir());
    assert!(mounted.entry_names(dport).contains("9"));
    assert!(!mounted.entry_names(dport).contains("53"));
    for class in ["53", "!53", "20:30", "https", "1024:"] {
        let names = mounted.entry_names(&format!("{dport}/{class}"));
        assert!(names.contains("all") && names.contains("all.pcap"), "{class}: {names:?}");
    }
    for none in ["70000", "no such", ".git", "30:20", "ssh"] {
        assert!(!mounted.path(&format!("{dport}/{none}")).exists(), "{none}");
    }
    let _second =
        folder.spawn_named_path("many", "generate | tcp | http | (|get count + |post count)");
    wait_until("it is shown", || mounted.path("many").is_dir());
    let http = mounted.entry_names("many/generate/tcp/http");
    assert!(http.contains("get") && http.contains("post"), "{http:?}");
}

#[test]
fn b2_slow_reader_does_not_delay_other_readers() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=2000 seq=yes | udp | dport |9 count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    // This reader opens the stream but never reads.
    let stuck = fs::File::open(mounted.path("web/generate/all")).unwrap();
    let (out, status) = run_in_mount(
        &mounted,
        "head -c 100000 web/generate/all.pcap | tcpdump -r - -c 50 2>/dev/null | wc -l",
    );
    assert_eq!((out.trim(), status), ("50", 0));
    let (out, status) = run_in_mount(&mounted, "head -3 web/generate/udp/all.jsonl");
    assert_eq!((out.lines().count(), status), (3, 0));
    for line in out.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["proto"], "udp");
    }
    let nonblocking = |name: &str| {
        const O_NONBLOCK: i32 = 0o4000;
        fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(mounted.path(name)).unwrap()
    };
    let none = nonblocking("web/generate/udp/dport/53/all").read(&mut [0; 10]).unwrap_err();
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
    drop(stuck);
}

#[test]
fn b2_signal_ends_a_blocked_read_and_poll_waits_for_data() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    let mut blocked = Command::new("cat");
    blocked.arg(mounted.path("web/generate/udp/dport/53/all")).stdout(Stdio::null());
    let mut blocked = ProcessGuard(blocked.spawn().unwrap());
    let state = format!("/proc/{}/stack", blocked.0.id());
    wait_until("it waits in the file system", || {
        fs::read_to_string(&state).unwrap_or_default().contains("fuse_")
            || fs::read_to_string(format!("/proc/{}/wchan", blocked.0.id()))
                .is_ok_and(|wchan| wchan.contains("request_wait") || wchan.contains("fuse"))
    });
    let process = blocked.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    wait_until("the signal ends it", || blocked.0.try_wait().unwrap().is_some());
    let script = "import select, os
quiet = os.open('web/generate/udp/dport/53/all', os.O_RDONLY)
busy = os.open('web/generate/udp/all', os.O_RDONLY)
poll = select.poll()
poll.register(quiet, select.POLLIN)
poll.register(busy, select.POLLIN)
print([fd == busy for fd, _ in poll.poll(30000)])
poll.unregister(busy)
print(poll.poll(100))";
    if need::require_command("python3").is_some() {
        let (out, status) = run_in_mount(&mounted, &format!("python3 -c \"{script}\""));
        assert_eq!((out.as_str(), status), ("[True]\n[]\n", 0));
    }
}

#[test]
fn b1_find_and_copy_tools_walk_the_tree_and_terminate() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", FRAMES_REQUEST);
    wait_until("it is shown", || mounted.path("web/generate/udp/dport/9").is_dir());
    let (found, status) = run_in_mount(&mounted, "find web -type d | sort");
    assert_eq!(status, 0);
    assert!(found.contains("web/generate/udp/dport/10:20/count\n"), "{found}");
    for script in [
        "cp -r . /dev/shm/$$ 2>/dev/null; test -L /dev/shm/$$/.events && rm -r /dev/shm/$$",
        "grep -rs tcp . > /dev/null",
        "rm -f .streams; test -e .streams/.events && ! ls -A | grep -q streams",
        "ls -lR . > /dev/null",
        "grep -r tcp .filters > /dev/null",
        "grep -rs udp web > /dev/null",
        "du -s . > /dev/null",
        "cp -r web /dev/shm/$$ && test -L /dev/shm/$$/generate/all && rm -r /dev/shm/$$",
        "stat -f . > /dev/null",
        "! command -v tree > /dev/null || tree web > /dev/null",
        "dd if=README of=/dev/null bs=7 status=none",
        "wc -c README | grep -v '^0 '",
    ] {
        assert_eq!(run_in_mount(&mounted, script).1, 0, "{script}");
    }
    for script in ["mkdir count", "touch README", "rm README", "mv web x", "echo 1 > web/x"] {
        assert_ne!(run_in_mount(&mounted, &format!("{script} 2>/dev/null")).1, 0, "{script}");
    }
    if need::require_command("python3").is_some() {
        let walk = "python3 -c \"import os; print(sum(1 for _ in os.walk('web')))\"";
        let (walked, _) = run_in_mount(&mounted, walk);
        assert_eq!(walked.trim(), found.lines().count().to_string());
    }
    let all = mounted.path("web/generate/all");
    assert!(fs::symlink_metadata(&all).unwrap().file_type().is_symlink());
    assert!(!fs::metadata(&all).unwrap().file_type().is_fifo());
}

#[test]
fn b10_events_file_has_one_line_per_event() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut events = Command::new("head");
    events.args(["-3", ".events"]).current_dir(&mounted.directory).stdout(Stdio::piped());
    let events = events.spawn().unwrap();
    // The path must start after the reader has opened the file.
    wait_until("it is open", || {
        fs::read_dir(format!("/proc/{}/fd", events.id())).is_ok_and(|open| {
            open.flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.ends_with(".events")))
        })
    });
    let path = folder.spawn_named_path("web", "generate rate=100 | count");
    let changed = folder.run(&["set", "web", "insert", "udp", "before", "count"]);
    assert_eq!(changed.status, Some(0), "{}", changed.err);
    drop(path);
    let output = events.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let kinds: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kinds, ["came", "changed", "went"], "{lines}");
}

#[test]
fn b13_directories_are_inaccessible_to_other_users() {
    const ALICE: u32 = 41_021;
    const BOB: u32 = 41_022;
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &["--all-users"]) else { return };
    let line = "generate rate=1000 | udp | count";
    let mut alice = folder.command_as_user((ALICE, ALICE), None);
    alice.args(["run", "-q", "--as", "hers", line]).stdout(Stdio::null()).stderr(Stdio::null());
    let _alice = ProcessGuard(alice.spawn().unwrap());
    let mut unnamed = folder.command_as_user((ALICE, ALICE), None);
    unnamed.args(["run", "-q", line]).stdout(Stdio::null()).stderr(Stdio::null());
    let _unnamed = ProcessGuard(unnamed.spawn().unwrap());
    wait_until("both are shown", || {
        mounted.path("hers/generate/udp").is_dir() && mounted.path("generate/udp").is_dir()
    });
    let as_user = |uid: u32, script: &str| {
        let mut command = folder.command_as_user((uid, uid), Some("timeout"));
        command.args(["-s", "KILL", "60", "sh", "-c", script]).current_dir(&mounted.directory);
        let output = command.output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap_or(-1))
    };
    assert_eq!(as_user(ALICE, "head -c 1000 hers/generate/all | wc -c").0.trim(), "1000");
    assert_eq!(as_user(ALICE, "cat hers/generate/config/rate").0, "1000\n");
    for script in ["ls hers", "cat hers/request", "head -c 1 hers/generate/all", "ls generate"] {
        let (out, status) = as_user(BOB, &format!("{script} 2>/dev/null"));
        assert!(status != 0 && out.is_empty(), "{script}: {out}");
    }
    let (names, _) = as_user(BOB, "ls");
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(names, ["README", "hers"], "the source is part of her request");
    assert_eq!(fs::metadata(mounted.path("hers")).unwrap().uid(), ALICE);
    assert_eq!(as_user(ALICE, "cat .error").0, "");
}

#[test]
fn b2_killed_server_ends_all_operations_at_once() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new_unmounted(&folder) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    for round in 0..5 {
        let mut server = folder.streamline_command(&["mount", "--foreground", "pipes"]);
        let mut server = ProcessGuard(server.stderr(Stdio::null()).spawn().unwrap());
        wait_until("it is mounted", || mounted.path("web/generate/udp").is_dir());
        let readers = ["web/generate/udp/dport/53/all", "web/generate/all", ".events"];
        let mut readers: Vec<ProcessGuard> = readers
            .iter()
            .map(|name| {
                let mut cat = Command::new("cat");
                cat.arg(mounted.path(name)).stdout(Stdio::null()).stderr(Stdio::null());
                ProcessGuard(cat.spawn().unwrap())
            })
            .collect();
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        for reader in &mut readers {
            wait_until("it ends", || reader.0.try_wait().unwrap().is_some());
        }
        let gone = fs::read_dir(&mounted.directory).unwrap_err();
        assert_eq!(gone.kind(), std::io::ErrorKind::NotConnected, "round {round}");
        assert!(Command::new("umount").arg(&mounted.directory).status().unwrap().success());
    }
    // The path continues to run after its readers were killed.
    assert!(folder.run(&["ps"]).out.contains(" web "));
}

#[test]
fn b1_mount_with_a_command_ends_when_the_command_exits() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    if need::require_root().is_none() || need::require_file("/dev/fuse").is_none() {
        return;
    }
    fs::create_dir(folder.path().join("pipes")).unwrap();
    let _path = folder.spawn_named_path("web", "generate rate=2000 | count");
    let ran = folder.run(&["mount", "pipes", "--", "sh", "-c", "cat pipes/web/request; exit 7"]);
    assert_eq!(
        (ran.out.as_str(), ran.status),
        ("generate rate=2000 | count\n", Some(7)),
        "{}",
        ran.err
    );
    assert_eq!(fs::read_dir(folder.path().join("pipes")).unwrap().count(), 0);
    let none = folder.run(&["mount", "nowhere"]);
    assert_eq!(none.status, Some(3), "{}", none.err);
    assert!(Path::new("/proc/self/mounts").exists());
}

#[test]
fn b10_mount_by_the_daemon_exists_while_the_daemon_runs() {
    let folder = Folder::new();
    let Some(mounted) = PipesMount::new_unmounted(&folder) else { return };
    let place = folder.path().join("no-daemon").display().to_string();
    let words = ["daemon", "--socket", &place, "--mount", "pipes"];
    for _ in 0..2 {
        let mut daemon = folder.spawn_without_output(&words);
        wait_until("it is mounted", || mounted.path("README").exists());
        let path = folder.spawn_named_path("web", "generate rate=1000 | count");
        wait_until("a path is shown", || mounted.path("web/generate/count").is_dir());
        drop(path);
        let process = daemon.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
        wait_until("the daemon ends", || daemon.0.try_wait().unwrap().is_some());
        assert!(!mounted.path("README").exists(), "the mount ends with it");
    }
    // If the daemon is killed, its mount disappears, too.
    let daemon = folder.spawn_without_output(&words);
    wait_until("it is mounted", || mounted.path("README").exists());
    drop(daemon);
    wait_until("the mount ends", || {
        fs::read_dir(&mounted.directory).is_ok_and(|mut all| all.next().is_none())
    });
}

#[test]
fn b10_daemon_mounts_again_when_its_server_is_killed() {
    let folder = Folder::new();
    let Some(mounted) = PipesMount::new_unmounted(&folder) else { return };
    let place = folder.path().join("no-daemon").display().to_string();
    let daemon = folder.spawn_without_output(&["daemon", "--socket", &place, "--mount", "pipes"]);
    let daemon_id = daemon.0.id();
    // The second server may be the child of another thread of the daemon, so the children of all
    // threads are listed.
    let server = || {
        let threads = fs::read_dir(format!("/proc/{daemon_id}/task")).unwrap().flatten();
        let children = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
        children.flatten().collect::<String>().trim().to_owned()
    };
    wait_until("it is mounted", || mounted.path("README").exists());
    let first = server();
    assert!(Command::new("kill").args(["-KILL", &first]).status().unwrap().success());
    wait_until("another server is mounted", || {
        server() != first && mounted.path("README").exists()
    });
}

#[test]
fn b2_reader_gets_reasons_for_lost_blocks_and_changed_nodes() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate | udp | count");
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    let slow = fs::File::open(mounted.path("web/generate/all")).unwrap();
    let emitted = || mounted.read_number("web/generate/stats/blocks");
    let begin = emitted();
    wait_until("more came than a reader may be behind", || emitted() > begin + 400_000);
    drop(slow);
    wait_until("the loss is reported", || {
        mounted.read_text(".error").contains("blocks were skipped")
    });
    let mut open = fs::File::open(mounted.path("web/generate/udp/all")).unwrap();
    assert_eq!(folder.run(&["set", "web", "remove", "udp"]).status, Some(0));
    let mut rest = Vec::new();
    assert!(open.read_to_end(&mut rest).is_err(), "its end is not the end of the path");
    assert!(
        mounted.read_text(".error").contains("start it again"),
        "{}",
        mounted.read_text(".error")
    );
}

#[test]
fn v9_stream_starts_with_the_retained_frames() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _forgetful = folder.spawn_named_path("web", "generate rate=2000 | udp | dport |9 count");
    wait_until("it is shown", || mounted.path("web/generate").is_dir());
    let refused = |name: &str, why: &str| {
        assert!(fs::File::open(mounted.path(name)).is_err(), "{name}");
        assert!(
            mounted.read_text(".error").contains(why),
            "{name}: {}",
            mounted.read_text(".error")
        );
    };
    refused("web/generate/all@-5s", "--history=64M");
    refused("web/generate/udp/all.jsonl@oldest", "--history=64M");
    refused("web/generate/udp/dport/9/all.pcap@oldest", "not of a class");
    refused("web/generate/all.pcap@oldest", "--history=64M");
    refused("web/generate/all@yesterday", "-5s, block:100 or oldest");
    let started = ["start", "--history=4M", "old", "generate rate=2000 | count"];
    assert_eq!(folder.run(&started).status, Some(0));
    wait_until("frames are kept", || {
        mounted.path("old").is_dir() && mounted.read_number("old/generate/stats/blocks") > 100
    });
    fs::write(mounted.path("old/generate/freeze"), "10m\n").unwrap();
    let read = |name: &str, length: usize| {
        let mut bytes = vec![0; length];
        fs::File::open(mounted.path(name)).unwrap().read_exact(&mut bytes).unwrap();
        bytes
    };
    let capture = read("old/generate/all.pcap@block:1", 1000);
    assert_eq!(capture[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    let length = u32::from_le_bytes(*capture[32..].first_chunk().unwrap()) as usize;
    let frame = &capture[40..40 + length];
    assert_eq!(read("old/generate/all@block:1", length), frame);
    let lines = read("old/generate/all.jsonl@block:1", 2000);
    let line = String::from_utf8_lossy(lines.split(|byte| *byte == b'\n').next().unwrap());
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object["length"], length, "{line}");
    let nanoseconds = u32::from_le_bytes(*capture[28..].first_chunk().unwrap());
    assert!(object["time"].as_str().unwrap().contains(&format!("{nanoseconds:09}")), "{line}");
    assert_eq!(folder.run(&["stop", "old"]).status, Some(0));
}

#[test]
fn v9_frozen_frames_are_retained_until_the_freeze_ends() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _forgetful = folder.spawn_named_path("web", "generate rate=2000 | count");
    let started = ["start", "--history=64K", "old", "generate rate=20000 | count"];
    assert_eq!(folder.run(&started).status, Some(0));
    wait_until("both are shown", || {
        ["old", "web"].iter().all(|name| mounted.path(&format!("{name}/generate")).is_dir())
    });
    let freeze = |path: &str, time: &str| {
        let written = fs::write(mounted.path(&format!("{path}/generate/freeze")), time);
        written.map_err(|error| (error.raw_os_error().unwrap(), mounted.read_text(".error")))
    };
    assert!(freeze("web", "10s").unwrap_err().1.contains("--history=64M"));
    assert!(freeze("old", "soon").unwrap_err().1.contains("soon"));
    let blocks = || mounted.read_number("old/generate/stats/blocks");
    wait_until("frames are kept", || blocks() > 100);
    let oldest = || {
        let mut record = vec![0; 24 + 16 + 42];
        let mut past = fs::File::open(mounted.path("old/generate/all.pcap@oldest")).unwrap();
        past.read_exact(&mut record).unwrap();
        record
    };
    assert_eq!(mounted.read_text("old/generate/freeze"), "0s\n");
    freeze("old", "10m").unwrap();
    let left = mounted.read_text("old/generate/freeze");
    assert!(["600s\n", "599s\n"].contains(&left.as_str()) || left.len() == 5, "{left}");
    let (first, begin) = (oldest(), blocks());
    wait_until("more came than fits", || blocks() > begin + 50_000);
    assert_eq!(oldest(), first, "the past is kept");
    freeze("old", "0").unwrap();
    wait_until("the past goes on", || oldest() != first);
    assert_eq!(mounted.read_text("old/generate/freeze"), "0s\n");
    assert_eq!(folder.run(&["stop", "old"]).status, Some(0));
}

#[test]
fn b10_filter_in_the_kernel_shows_its_instructions() {
    let (Some(space), Some(_)) = (Namespace::new(), need::require_bpf()) else { return };
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut path = space.command(env!("CARGO_BIN_EXE_streamline"));
    folder.set_environment(&mut path);
    let line = "rx lo | udp @kernel | dport @kernel |9 count";
    path.args(["run", "-q", "--as", "web", line]).current_dir(folder.path());
    let _path = ChildGuard(path.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let dport = "web/rx:lo/udp/dport";
    wait_until("it is shown", || mounted.path(dport).is_dir());
    assert_eq!(mounted.read_text(&format!("{dport}/place")), "kernel\n");
    assert_eq!(mounted.read_text(&format!("{dport}/hook")), "tc ingress lo\n");
    let listed = mounted.read_text(&format!("{dport}/program"));
    assert!(listed.lines().count() > 1 && listed.contains("r0 = "), "{listed}");
    assert!(listed.lines().all(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())));
    assert!(!mounted.entry_names("web/rx:lo").contains("program"));
}

/// Runs all commands of the book's page about PipesFS in one shell, which exits on the first
/// failure.
#[test]
fn b1_commands_of_the_book_run_as_printed() {
    if need::require_root().is_none() || need::require_file("/dev/fuse").is_none() {
        return;
    }
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let mounted = PipesMount { directory: folder.path().join("pipes") };
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/14-files.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let script = blocks.collect::<String>();
    assert!(script.lines().count() > 20, "{script}");
    let ran = folder.shell_command(&format!("set -ex\n{script}")).output().unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{err}");
    let out = String::from_utf8_lossy(&ran.stdout);
    for line in ["load", "pipes/load/generate/udp/dport/9/count", "4096", "all.pcap", "1000"] {
        assert!(out.lines().any(|known| known == line), "{line}: {out}\n{err}");
    }
    assert!(out.contains("yesterday"), "the reason of a failure: {out}");
    drop(mounted);
}
