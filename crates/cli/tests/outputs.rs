//! Tests of output files (replaced files, a full disk, a kill during a write) and of the summary of
//! a run. (docs/book/decisions/0049-replaced-files.md)

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{ChildGuard, CommandResult, Folder, examples_directory};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::process::{Command, Stdio};
use testkit::need;

const REPLAY_REQUEST: &str = "replay examples/web.pcap";
/// A request whose expression matches no frame of the capture.
const NO_OUTPUT_REQUEST: &str = "replay examples/web.pcap | bpf \"tcp port 1\"";

/// Returns the bytes of the example capture.
fn read_example_capture() -> Vec<u8> {
    fs::read(examples_directory().join("web.pcap")).unwrap()
}

/// Returns the number of packets in a capture file of the directory.
fn count_packets(folder: &Folder, name: &str) -> usize {
    let ran = folder.run(&["--json", &format!("replay {name} | count")]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    report["report"][0]["value"].as_u64().unwrap() as usize
}

/// Returns the file names in a directory.
fn file_names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn request_without_output_leaves_the_old_capture() {
    let folder = Folder::new();
    let path = folder.path().join("x.pcap");
    fs::write(&path, "yesterday").unwrap();
    for (line, status) in [
        (format!("{NO_OUTPUT_REQUEST} | pcap x.pcap"), 0),
        // A failure before the first frame leaves the file unchanged, too.
        ("replay missing.pcap | pcap x.pcap".to_owned(), 3),
    ] {
        let ran = folder.run(&[&line]);
        assert_eq!(ran.status, Some(status), "{line}: {ran:?}");
        assert_eq!(fs::read(&path).unwrap(), b"yesterday", "{line}");
    }
    let ran = folder.run(&[&format!("{NO_OUTPUT_REQUEST} | pcap x.pcap")]);
    assert!(ran.err.contains("warning: x.pcap was left unchanged"), "{ran:?}");
    // Without an old file, an empty capture is created.
    let ran = folder.run(&[&format!("{NO_OUTPUT_REQUEST} | pcap new.pcap")]);
    assert!(ran.status == Some(0) && !ran.err.contains("warning"), "{ran:?}");
    assert_eq!(count_packets(&folder, "new.pcap"), 0);
}

#[test]
fn first_block_replaces_the_old_file() {
    let folder = Folder::new();
    let path = folder.path().join("x.pcap");
    fs::write(&path, "yesterday").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let mut reader = File::open(&path).unwrap();
    let line = format!("{REPLAY_REQUEST} | pcap x.pcap");
    assert_eq!(folder.run(&[&line]).status, Some(0));
    let mut old = String::new();
    reader.read_to_string(&mut old).unwrap();
    assert_eq!(old, "yesterday", "a reader keeps what it has opened");
    assert_eq!(count_packets(&folder, "x.pcap"), 105);
    let about = fs::metadata(&path).unwrap();
    assert!(about.ino() != reader.metadata().unwrap().ino() && about.mode() & 0o777 == 0o640);
    // Symbolic and hard links are preserved.
    symlink("target.pcap", folder.path().join("link.pcap")).unwrap();
    fs::write(folder.path().join("target.pcap"), "yesterday").unwrap();
    fs::hard_link(folder.path().join("target.pcap"), folder.path().join("second.pcap")).unwrap();
    for name in ["link.pcap", "second.pcap"] {
        fs::write(folder.path().join("target.pcap"), "yesterday").unwrap();
        assert_eq!(folder.run(&[&format!("{REPLAY_REQUEST} | pcap {name}")]).status, Some(0));
        assert_eq!(count_packets(&folder, "target.pcap"), 105, "{name}");
    }
    assert!(fs::symlink_metadata(folder.path().join("link.pcap")).unwrap().is_symlink());
    assert_eq!(
        file_names(folder.path()),
        ["examples", "link.pcap", "second.pcap", "target.pcap", "x.pcap"]
    );
}

#[test]
fn old_report_stays_until_a_new_one_is_written() {
    let folder = Folder::new();
    let path = folder.path().join("report");
    fs::write(&path, "yesterday, and longer than any report would be".repeat(1000)).unwrap();
    let ran = folder.run(&["--report", "report", "replay missing.pcap | discard"]);
    assert_eq!(ran.status, Some(3), "{ran:?}");
    assert!(folder.read("report").starts_with("yesterday"));
    let ran = folder.run(&["--json", "--report", "report", &format!("{REPLAY_REQUEST} | discard")]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!(report["balanced"], true);
    assert_eq!(file_names(folder.path()), ["examples", "report"]);
}

#[test]
fn file_of_another_owner_keeps_its_owner() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path().join("x.pcap");
    fs::write(&path, "yesterday").unwrap();
    chown(&path, Some(41_003), Some(41_003)).unwrap();
    assert_eq!(folder.run(&[&format!("{REPLAY_REQUEST} | pcap x.pcap")]).status, Some(0));
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.uid(), about.gid()), (41_003, 41_003));
    assert_eq!(count_packets(&folder, "x.pcap"), 105);
}

/// Runs a shell script with an argument in the directory, in a new mount namespace.
fn run_in_new_mount_namespace(folder: &Folder, script: &str, argument: &str) -> CommandResult {
    let mut command = Command::new("unshare");
    for (name, value) in folder.shell_command("true").get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["-m", "sh", "-c", script, argument]).current_dir(folder.path());
    CommandResult::from(command.output().unwrap())
}

#[test]
fn full_disk_leaves_the_old_capture_and_whole_lines() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::new();
    // The output is on a temporary file system, which disappears with the shell. At first, it is
    // full; later, it has one free page.
    let script = "
        set -e
        mkdir full && mount -t tmpfs -o size=256k none full
        printf yesterday > full/x.pcap; echo before > full/log; mkdir full/d
        printf '{}\\n' > full/d/index.jsonl; printf 0 > full/page
        dd if=/dev/zero of=full/filler bs=4k 2>/dev/null || true
        set +e
        streamline \"$0 | pcap full/x.pcap\"; echo status $?
        cat full/x.pcap; echo; ls -A full
        streamline \"$0 | tcp | http |exchange weblog full/log ecs=yes\"; echo status $?
        rm full/page
        streamline \"$0 | tcp | http |exchange weblog full/log ecs=yes\"; echo status $?
        cp full/log torn
        rm full/filler
        streamline \"$0 | tcp | http |exchange weblog full/log ecs=yes\"; echo status $?
        cp full/log whole
        dd if=/dev/zero of=full/filler bs=4k count=\
            $(($(df --output=avail -k full | tail -1) / 4 - 2)) 2>/dev/null
        streamline \"$0 | pcap full/c per=connection\"; echo status $?
        cp -r full/c connections";
    let ran = run_in_new_mount_namespace(&folder, script, REPLAY_REQUEST);
    let listed = "d\nfiller\nlog\npage\nx.pcap\n";
    let ended = "status 1\nstatus 1\nstatus 0\nstatus 1\n";
    let expected = format!("status 1\nyesterday\n{listed}{ended}");
    assert_eq!(ran.out, expected, "{ran:?}");
    assert!(ran.err.contains("cannot write full/x.pcap: no space left"), "{ran:?}");
    let lines = |name: &str| -> Vec<String> {
        let text = folder.read(name);
        assert!(text.ends_with('\n'), "{name}: no line is torn");
        text.lines().map(str::to_owned).collect()
    };
    let (torn, whole) = (lines("torn"), lines("whole"));
    assert!((2..17).contains(&torn.len()), "some had room: {}", torn.len());
    assert_eq!((torn[0].as_str(), whole.len()), ("before", torn.len() + 8));
    let captures = file_names(&folder.path().join("connections"));
    for name in captures.iter().filter(|name| name.ends_with(".pcap")) {
        let about = fs::metadata(folder.path().join("connections").join(name)).unwrap();
        assert!(
            about.len() == 0 || count_packets(&folder, &format!("connections/{name}")) > 0,
            "{name}"
        );
    }
    for line in &whole[1..] {
        assert!(serde_json::from_str::<Value>(line).unwrap().is_object());
    }
}

#[test]
fn full_disk_report_counts_only_what_was_written() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::new();
    let script = "
        mkdir full && mount -t tmpfs -o size=256k none full
        streamline \"$0 | pcap full/x.pcap\" 2> pcap.err; echo status $?
        tcpdump -r full/x.pcap 2> /dev/null | wc -l; rm full/x.pcap
        streamline \"$0 | json\" > full/lines 2> json.err; echo status $?
        wc -l < full/lines; rm full/lines
        streamline \"$0 | print\" > full/lines 2> print.err; echo status $?
        wc -l < full/lines; rm full/lines
        streamline run --record full/record \"$0 | discard\" 2> record.err; echo status $?";
    let request = "generate size=1000 count=5000";
    let ran = run_in_new_mount_namespace(&folder, script, request);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 7, "{ran:?}");
    for (at, (name, unit)) in
        [("pcap", "packets written"), ("json", "lines written"), ("print", "blocks printed")]
            .into_iter()
            .enumerate()
    {
        assert_eq!(lines[2 * at], "status 1", "{ran:?}");
        let report = folder.read(&format!("{name}.err"));
        let expected = format!("{} {unit} ", lines[2 * at + 1]);
        let is_reported = report.lines().any(|line| line.trim_start().starts_with(&expected));
        assert!(is_reported, "{expected:?}: {report}");
    }
    let report = folder.read("record.err");
    assert!(report.contains("error: the record full/record is incomplete: no space"), "{report}");
    assert_eq!(lines[6], "status 1", "{ran:?}");
}

#[test]
fn capture_on_standard_output_stays_a_capture() {
    let folder = Folder::new();
    for other in ["print", "json", "pcap -", "pcap /dev/stdout", "weblog -", "exec \"cat\""] {
        let ran = folder.run(&["check", &format!("{REPLAY_REQUEST} | pcap - + {other}")]);
        assert_eq!(ran.status, Some(2), "{other}: {ran:?}");
        let name = other.split(' ').next().unwrap();
        let expected = format!("`{name}` would write into the capture that `pcap` writes");
        assert!(ran.err.contains(&expected), "{ran:?}");
    }
    for line in [format!("{REPLAY_REQUEST} | pcap -"), "replay - | count".to_owned()] {
        let ran = folder.run(&["run", "--background", &line]);
        assert!(ran.err.contains(": name a file, or use `run`"), "{ran:?}");
    }
    let ran = folder.run(&["check", "(replay - + read -) | count"]);
    assert!(
        ran.err.contains("`read` would read the standard input that `replay` reads"),
        "{ran:?}"
    );
    // Reports are written to standard error, because they would corrupt the capture.
    let line = format!("streamline --report - '{REPLAY_REQUEST} | pcap /dev/stdout' > r.pcap");
    let ran = CommandResult::from(folder.shell_command(&line).output().unwrap());
    assert_eq!((ran.status, count_packets(&folder, "r.pcap")), (Some(0), 105), "{ran:?}");
    let ran =
        folder.shell_command(&format!("streamline '{REPLAY_REQUEST} | pcap - + count' > x.pcap"));
    let ran = CommandResult::from({ ran }.output().unwrap());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.err.contains("105 blocks, "), "{ran:?}");
    assert_eq!(count_packets(&folder, "x.pcap"), 105);
    let ran = folder.run(&[&format!("{REPLAY_REQUEST} | print + json + pcap x.pcap")]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
}

/// Runs sinks in separate threads that write to one pipe, more at once than the pipe accepts.
/// Asserts that no line is torn.
#[test]
fn lines_of_several_sinks_are_not_torn() {
    let folder = Folder::new();
    let request = "generate size=100 count=20000 seq=yes | (json + json@thread1 + json@thread2)";
    let script = format!("streamline -q '{request}' | cat > lines");
    let ran = CommandResult::from(folder.shell_command(&script).output().unwrap());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let lines = folder.read("lines");
    assert_eq!(lines.lines().count(), 60_000);
    for line in lines.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn torn_line_of_a_killed_run_is_repaired_and_reported() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    let exchanges = format!("{REPLAY_REQUEST} | tcp | http |exchange");
    let objects = |name: &str| -> usize {
        let text = folder.read(name);
        text.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap()));
        text.lines().count()
    };
    // First case: the index of `files`, whose incomplete record is removed.
    assert_eq!(folder.run(&[&format!("{REPLAY_REQUEST} | tcp | http | files d")]).status, Some(0));
    let whole = objects("d/index.jsonl");
    let torn = File::options().append(true).open(at("d/index.jsonl")).unwrap();
    (&torn).write_all(b"{\"version\":1,\"file\":\"0000").unwrap();
    let ran = folder.run(&[&format!("{REPLAY_REQUEST} | tcp | http | files d")]);
    let warning = "d/index.jsonl ended in the middle of a record";
    assert!(ran.status == Some(0) && ran.err.contains(warning), "{ran:?}");
    assert!(ran.err.contains("its 25 bytes were cut off"), "{ran:?}");
    assert_eq!(objects("d/index.jsonl"), 2 * whole);
    // Second case: a text log, whose incomplete line is preserved and terminated.
    fs::write(at("log"), "10.0.0.1 - - [").unwrap();
    let ran = folder.run(&[&format!("{exchanges} weblog log")]);
    assert!(ran.status == Some(0) && ran.err.contains("the line was ended"), "{ran:?}");
    assert_eq!(folder.read("log").lines().next(), Some("10.0.0.1 - - ["));
    assert_eq!(folder.read("log").lines().count(), 9);
    // Third case: standard output is a file to which a shell appends.
    fs::write(at("out"), "{\"a\":").unwrap();
    let appended = File::options().append(true).open(at("out")).unwrap();
    let mut command = folder.streamline_command(&[&format!("{exchanges} json")]);
    let ran =
        CommandResult::from(command.stdout(appended).stderr(Stdio::piped()).output().unwrap());
    assert!(ran.err.contains("standard output ended in the middle of a line"), "{ran:?}");
    let text = folder.read("out");
    assert!(text.starts_with("{\"a\":\n{") && text.lines().count() == 9, "{text}");
    // An intact file causes no message.
    let ran = folder.run(&[&format!("{exchanges} weblog log")]);
    assert!(!ran.err.contains("warning"), "{ran:?}");
}

#[test]
fn live_capture_is_readable_from_first_block_and_after_kill() {
    let folder = Folder::new();
    let path = folder.path().join("x.pcap");
    fs::write(&path, "yesterday").unwrap();
    let mut command = folder.streamline_command(&["-q", "replay - | pcap x.pcap"]);
    let mut child = ChildGuard(command.stdin(Stdio::piped()).spawn().unwrap());
    let mut stdin = child.0.stdin.take().unwrap();
    let bytes = read_example_capture();
    // So far, only the header of the capture has been written.
    stdin.write_all(&bytes[..24]).unwrap();
    stdin.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"yesterday");
    // After this write, the file contains several complete frames; the last frame is incomplete.
    stdin.write_all(&bytes[24..10_000]).unwrap();
    stdin.flush().unwrap();
    testkit::wait_until("frames are in the file", || fs::read(&path).unwrap() != b"yesterday");
    testkit::wait_until("all of them are", || count_packets(&folder, "x.pcap") > 20);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let kept = fs::read(&path).unwrap();
    assert_eq!(file_names(folder.path()), ["examples", "x.pcap"]);
    let frames = count_packets(&folder, "x.pcap");
    assert!(frames > 20 && kept.len() < bytes.len(), "{frames}");
}

/// Creates a named pipe in the directory.
fn create_pipe(folder: &Folder, name: &str) {
    let made = Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
    assert!(made.success());
}

#[test]
fn index_that_is_a_pipe_or_hard_link_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("d")).unwrap();
    fs::write(folder.path().join("victim"), "untouched").unwrap();
    for sink in ["files d", "pcap d per=connection"] {
        let line = format!("{REPLAY_REQUEST} | tcp | {sink}");
        create_pipe(&folder, "d/index.jsonl");
        let ran = folder.run(&[&line]);
        assert!(ran.status == Some(1) && ran.err.contains("it is a named pipe"), "{ran:?}");
        let index = folder.path().join("d/index.jsonl");
        fs::remove_file(&index).unwrap();
        fs::hard_link(folder.path().join("victim"), &index).unwrap();
        let ran = folder.run(&[&line]);
        assert!(ran.status == Some(1) && ran.err.contains("it has 2 names"), "{ran:?}");
        fs::remove_file(&index).unwrap();
    }
    assert_eq!(folder.read("victim"), "untouched");
}

#[test]
fn output_pipe_without_reader_ends_after_duration() {
    let folder = Folder::new();
    create_pipe(&folder, "p");
    let ran = folder.run(&["run", "--for=1200ms", "generate | pcap p"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.err.contains("waiting until a program opens `p` for reading"), "{ran:?}");
    assert!(ran.err.contains("no program opened this pipe for reading within"), "{ran:?}");
}

#[test]
fn output_pipe_waits_for_reader_and_ends_on_one_signal() {
    let folder = Folder::new();
    for (sink, name) in [("pcap", "p"), ("tcp | http |exchange weblog", "w")] {
        create_pipe(&folder, name);
        let line = format!("{REPLAY_REQUEST} | {sink} {name}");
        let mut child = folder.spawn_without_output(&["run", &line]);
        let tasks = format!("/proc/{}/task", child.0.id());
        let waits = || {
            let tasks = fs::read_dir(&tasks).into_iter().flatten().flatten();
            let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
            names.flatten().any(|name| name.trim() == "pipe")
        };
        testkit::wait_until("it waits for a reader", waits);
        let id = child.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut status = None;
        testkit::wait_until("one signal ends it", || {
            status = child.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(1), "{line}");
        // A named pipe with a reader is an ordinary output file.
        let script = format!("cat {name} > got & streamline -q '{line}'; wait");
        let ran = CommandResult::from(folder.shell_command(&script).output().unwrap());
        assert!(ran.status == Some(0) && ran.err.is_empty(), "{ran:?}");
        assert!(fs::metadata(folder.path().join("got")).unwrap().len() > 500, "{line}");
    }
}

#[test]
fn summary_counts_the_output() {
    let folder = Folder::new();
    for (line, begins) in [
        ("bpf \"udp port 53\" | pcap x.pcap", "8 packets written to x.pcap of 105 blocks read, "),
        ("tcp | http | files d", "16 files written to d of 105 blocks read, "),
        ("tcp | http |exchange weblog log", "8 lines written to log of 105 blocks read, "),
        ("print", "105 blocks printed of 105 blocks read, "),
        ("count", "105 blocks, 27828 bytes in "),
    ] {
        let ran = folder.run(&[&format!("{REPLAY_REQUEST} | {line}")]);
        assert!(ran.status == Some(0) && ran.err.starts_with(begins), "{line}: {ran:?}");
        assert!(ran.err.ends_with("none lost\n"), "{ran:?}");
    }
    let ran = folder.run(&["--json", &format!("{REPLAY_REQUEST} | pcap y.pcap")]);
    let report: Value = serde_json::from_str(&ran.err).unwrap();
    let filters = report["filters"].as_array().unwrap();
    let sink = filters.iter().find(|filter| filter["name"] == "pcap").unwrap();
    let output = &sink["outputs"][0];
    assert_eq!((&output["count"], &output["unit"]), (&105.into(), &"packet".into()));
    assert_eq!(output["done"], "written to y.pcap");
}

#[test]
fn requested_drop_is_not_counted_as_loss() {
    let folder = Folder::new();
    for line in ["drop", "udp |dns drop", "sample 4 | discard", "ratelimit 1 | discard"] {
        let ran = folder.run(&["--no-loss", &format!("{REPLAY_REQUEST} | {line}")]);
        assert!(ran.status == Some(0) && ran.err.ends_with("none lost\n"), "{line}: {ran:?}");
        assert!(!ran.err.contains("warning"), "{line}: {ran:?}");
    }
    let ran = folder.run(&["--json", &format!("{REPLAY_REQUEST} | drop")]);
    let report: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((&report["lost"], &report["balanced"]), (&0.into(), &true.into()));
    let filters = report["filters"].as_array().unwrap();
    let sink = filters.iter().find(|filter| filter["name"] == "drop").unwrap();
    assert_eq!(sink["dropped"]["by request"]["blocks"], 105);
    let ran = folder.run(&[&format!("{REPLAY_REQUEST} | drop")]);
    assert!(ran.err.contains("105 dropped by request, none lost"), "{ran:?}");
}

#[test]
fn each_row_of_the_stats_table_balances() {
    let folder = Folder::new();
    let ran = folder.run(&["--stats", &format!("{REPLAY_REQUEST} | tcp | http | files d")]);
    let mut lines = ran.err.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let head = lines.find(|words| words.first() == Some(&"filter")).unwrap();
    assert_eq!(&head[..4], ["filter", "space", "in", "made"]);
    let end = head.iter().position(|title| *title == "bytes").unwrap();
    let mut rows = 0;
    for words in lines.take_while(|words| !words.is_empty()) {
        // A name may consist of several words; each other column is a single word.
        let words = &words[words.len() - head.len() + 2..];
        let numbers: Vec<u64> = words[..end - 2].iter().map(|word| word.parse().unwrap()).collect();
        let became: u64 = numbers[2..].iter().sum();
        assert_eq!(numbers[0] + numbers[1], became, "{words:?}");
        rows += 1;
    }
    assert!(rows >= 4, "{ran:?}");
}

#[test]
fn class_with_a_different_meaning_in_each_branch_has_no_name() {
    let folder = Folder::new();
    let classes = |filters: &str| {
        let ran = folder.run(&["-q", &format!("{REPLAY_REQUEST} | {filters} | json")]);
        assert_eq!(ran.status, Some(0), "{filters}: {ran:?}");
        let lines = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let class = |line: Value| format!("{} {}", line["class"], line["class_name"]);
        let mut found: Vec<String> = lines.map(class).collect();
        found.sort();
        found.dedup();
        found
    };
    let contains = |found: &[String], one: &str| found.iter().any(|class| class == one);
    // Class 1 is ICMP for `ipproto`, and that of every block that no filter classifies.
    let found = classes("ipproto + count");
    assert!(contains(&found, "1 null") && contains(&found, "6 \"tcp\""), "{found:?}");
    // Class 53 is DNS for `dport`, and a protocol for `ipproto`.
    let found = classes("dport + ipproto");
    assert!(contains(&found, "53 null") && contains(&found, "443 \"https\""), "{found:?}");
    assert!(contains(&classes("dport + udp"), "53 \"dns\""));
}

#[test]
fn identical_frames_are_all_records_of_a_capture() {
    let folder = Folder::new();
    // The generated frames of a flow are one frame in memory, with one time in each batch.
    for filters in ["", "udp |", "count + count |"] {
        let line = format!("generate count=5 | {filters} pcap | exec \"cat > x.pcap\"");
        assert_eq!(folder.run(&[&line]).status, Some(0), "{line}");
        let expected = if filters.contains('+') { 10 } else { 5 };
        assert_eq!(count_packets(&folder, "x.pcap"), expected, "{line}");
    }
    assert_eq!(folder.run(&["generate count=5 | udp + tcp | pcap y.pcap"]).status, Some(0));
    assert_eq!(count_packets(&folder, "y.pcap"), 5);
}

#[test]
fn message_beside_other_forms_is_one_line() {
    let folder = Folder::new();
    for sink in ["print", "json"] {
        let count_lines = |filters: &str| {
            let ran = folder.run(&["-q", &format!("{REPLAY_REQUEST} | {filters} | {sink}")]);
            assert_eq!(ran.status, Some(0), "{filters}: {ran:?}");
            ran.out.lines().count()
        };
        let apart = count_lines("tcp | http") + count_lines("udp");
        assert_eq!(count_lines("(tcp | http) + udp"), apart, "{sink}");
        let apart = count_lines("tcp |http http") + count_lines("tcp |https tls");
        assert_eq!(count_lines("tcp | (|http http + |https tls)"), apart, "{sink}");
    }
}

#[test]
fn h11_compressed_files_keep_names_and_index() {
    let folder = Folder::new();
    for line in ["tcp | files plain", "tcp | compress | files packed"] {
        let ran = folder.run(&["run", &format!("replay examples/web.pcap | {line}")]);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
    }
    let entries = |name: &str| -> Vec<Value> {
        let index = folder.read(&format!("{name}/index.jsonl"));
        index.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (plain, packed) = (entries("plain"), entries("packed"));
    assert_eq!((plain.len(), packed.len()), (14, 14));
    for (plain, packed) in plain.iter().zip(&packed) {
        for field in ["file", "session", "direction", "src", "dst", "src_port", "dst_port"] {
            assert_eq!(plain[field], packed[field], "{field}: {plain}");
            assert!(!plain[field].is_null(), "{field}: {plain}");
        }
        let name = plain["file"].as_str().unwrap();
        let unpacked = folder.shell_command(&format!("zcat < packed/{name}")).output().unwrap();
        assert!(unpacked.stdout == fs::read(folder.path().join("plain").join(name)).unwrap());
    }
}

#[test]
fn report_piped_to_discard_is_printed() {
    let folder = Folder::new();
    let ran = folder.run(&["replay examples/web.pcap | dport | (|80 count + |53 count) | discard"]);
    let open = folder.run(&["replay examples/web.pcap | dport | (|80 count + |53 count)"]);
    assert_eq!((ran.status, open.status), (Some(0), Some(0)), "{}", ran.err);
    assert!(ran.out.contains("count#1:\n") && ran.out.contains("count#2:\n"), "{}", ran.out);
    assert_eq!(ran.out, open.out);
    let json = folder.run(&["-j", "replay examples/web.pcap | count | discard"]);
    assert_eq!(json.out.matches("\"report\"").count(), 1, "{}", json.out);
}

#[test]
fn output_to_a_closed_descriptor_is_no_success() {
    let folder = Folder::new();
    for line in
        ["generate count=10 | print", "generate count=10 | count", "generate count=10 | json"]
    {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" run -q \"$1\" >&-"]);
        command.arg(env!("CARGO_BIN_EXE_streamline")).arg(line).current_dir(folder.path());
        let ran = CommandResult::from(command.output().unwrap());
        assert_eq!(ran.status, Some(141), "{line}: {ran:?}");
    }
}

#[test]
fn dash_is_refused_where_it_cannot_be_standard_output() {
    let folder = Folder::new();
    for request in ["tcp | files -", "freeze -", "files /dev/stdout"] {
        let ran = folder.run(&["run", &format!("replay examples/web.pcap | {request}")]);
        assert!(ran.status == Some(1) && ran.err.contains("standard output"), "{request}: {ran:?}");
    }
    let record = folder.run(&["run", "--record=-", "replay examples/web.pcap | count"]);
    let log = folder.run(&["start", "--log", "-", "replay examples/web.pcap | count"]);
    for ran in [record, log] {
        assert_eq!(ran.status, Some(2), "{ran:?}");
        assert!(ran.err.contains("standard output is not possible here"), "{ran:?}");
    }
    assert!(!folder.path().join("-").exists());
}

#[test]
fn version_is_not_printed_to_a_closed_output() {
    let folder = Folder::new();
    for words in ["--version", "--help", "run --help"] {
        let ran = folder.shell_command(&format!("streamline {words} >&-")).status().unwrap();
        assert_eq!(ran.code(), Some(141), "{words}");
        let full =
            folder.shell_command(&format!("streamline {words} > /dev/full 2> full.txt")).status();
        assert_eq!(full.unwrap().code(), Some(1), "{words}");
        assert!(folder.read("full.txt").contains("no space left on device"), "{words}");
    }
}

#[test]
fn closed_standard_input_is_not_treated_as_empty() {
    let folder = Folder::new();
    for request in ["read -", "read - lines=yes", "replay -"] {
        let ran =
            folder.shell_command(&format!("streamline run '{request} | count' <&- 2> err.txt"));
        assert_eq!({ ran }.status().unwrap().code(), Some(1), "{request}");
        let err = folder.read("err.txt");
        assert!(err.contains("standard input: bad file descriptor"), "{request}: {err}");
    }
    let unread =
        folder.shell_command("streamline run -q 'generate count=1 | discard' <&-").status();
    assert_eq!(unread.unwrap().code(), Some(0), "it is not read");
}
