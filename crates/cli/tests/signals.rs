//! Tests of ^C: the first one drains the path; the second one ends the process and the programs
//! that it has started.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

fn start_request(folder: &Folder, line: &str) -> Child {
    let mut command = folder.streamline_command(&["run", line]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal_child(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Waits until `holds` returns true for the child's process id. `what` describes the condition in
/// messages. Panics if the child exits first.
fn wait_for_child_condition(what: &str, child: &mut Child, holds: impl Fn(u32) -> bool) {
    testkit::wait_until(what, || {
        let holds = holds(child.id());
        assert!(holds || child.try_wait().unwrap().is_none(), "it ended, and not: {what}");
        holds
    });
}

/// Sends a signal repeatedly until the process exits, because a signal has no effect while the same
/// signal is pending. Returns the exit status.
fn signal_until_exit(child: &mut Child, name: &str) -> Option<i32> {
    let mut ended = None;
    testkit::wait_until("the second signal ends it", || {
        ended = child.try_wait().unwrap();
        if ended.is_none() {
            signal_child(child, name);
        }
        ended.is_some()
    });
    ended.unwrap().code()
}

/// Returns true if a thread of a process runs a space.
fn has_space_thread(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).any(|name| name.starts_with("thread"))
}

/// Returns true if a process has received all signals that were sent to it: none is pending.
fn has_no_pending_signal(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.is_some_and(|bits| bits.trim().chars().all(|digit| digit == '0'))
}

/// Returns true if this process ignores SIGHUP, so that each child inherits this.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn first_signal_drains_the_path() {
    for name in ["INT", "TERM", "HUP"] {
        if name == "HUP" && is_hangup_ignored() {
            println!("skipped SIGHUP: this test inherits that it is ignored, as under nohup(1)");
            continue;
        }
        let folder = Folder::new();
        let mut child = start_request(&folder, "generate | count");
        wait_for_child_condition("it runs", &mut child, has_space_thread);
        signal_child(&child, name);
        let ran = CommandResult::from(child.wait_with_output().unwrap());
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        assert!(ran.out.ends_with(" bytes\n"), "what was counted is told: {}", ran.out);
        assert!(ran.err.ends_with("none lost\n"), "{}", ran.err);
    }
}

/// Sends a signal twice, as `timeout` does: to the process, and immediately afterwards to its
/// process group. Asserts that the signal counts once.
#[test]
fn duplicated_signal_counts_once() {
    // The attempt is repeated, because the signals may arrive far enough apart to count separately
    // on a busy machine.
    testkit::wait_until("signals that come at once are one", || {
        let folder = Folder::new();
        let mut child = start_request(&folder, "generate | count");
        wait_for_child_condition("it runs", &mut child, has_space_thread);
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &id, &id, &id]).status();
        assert!(sent.unwrap().success());
        let ran = CommandResult::from(child.wait_with_output().unwrap());
        let one = ran.status == Some(0);
        assert!(one || ran.status == Some(130), "{ran:?}");
        assert!(!one || ran.err.ends_with("none lost\n"), "{}", ran.err);
        one
    });
}

#[test]
fn second_signal_ends_a_blocked_sink() {
    let folder = Folder::new();
    let mut child = start_request(&folder, "generate | print");
    // The pipe fills because it has no reader, so the sink blocks forever.
    let mut first = [0; 100];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    signal_child(&child, "INT");
    wait_for_child_condition("the first is heard", &mut child, has_no_pending_signal);
    assert_eq!(child.try_wait().unwrap(), None, "the first only asks");
    assert_eq!(signal_until_exit(&mut child, "INT"), Some(130));
}

#[test]
fn first_signal_lets_programs_finish() {
    let folder = Folder::new();
    let mut child =
        start_request(&folder, "generate | exec \"cat; echo the end\" | exec \"tail -c 8 > out\"");
    wait_for_child_condition("it runs", &mut child, has_space_thread);
    signal_child(&child, "INT");
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
    assert!(ran.err.ends_with("none lost\n"), "{}", ran.err);
    assert_eq!(folder.read("out"), "the end\n");
}

#[test]
fn second_signal_kills_programs_and_their_children() {
    let folder = Folder::new();
    let pids = folder.path().join("pids");
    let script = "trap '' INT TERM; sleep 1000 & echo $$ $! > new; mv new pids; wait";
    let mut child = start_request(&folder, &format!("generate | exec \"{script}\" | count"));
    wait_for_child_condition("its program runs", &mut child, |_| pids.exists());
    signal_child(&child, "INT");
    wait_for_child_condition("the first is heard", &mut child, has_no_pending_signal);
    assert_eq!(child.try_wait().unwrap(), None, "the first only asks");
    let pids = folder.read("pids");
    assert!(pids.split_whitespace().all(is_alive), "nobody was killed: {pids}");
    assert_eq!(signal_until_exit(&mut child, "INT"), Some(130));
    for pid in pids.split_whitespace() {
        testkit::wait_until("whatever it started has ended", || !is_alive(pid));
    }
}

/// Returns the number of bytes that a process has written. A blocked write is not counted.
fn written_bytes(process: u32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let written = counts.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok());
    written.unwrap_or(0)
}

/// Waits until a process has filled a pipe that is not read, and sends one signal to the process.
/// Returns its result.
fn signal_when_pipe_is_full(child: &mut Child) -> CommandResult {
    const PIPE_SIZE: u64 = 65_536;
    // The pipe also counts as full if the number of bytes no longer changes, because the next write
    // does not fit.
    let latest = Cell::new((0, 0));
    wait_for_child_condition("it fills the pipe", child, |process| {
        let (before, equal) = latest.get();
        let written = written_bytes(process);
        latest.set((written, if written == before { equal + 1 } else { 0 }));
        written >= PIPE_SIZE || (written >= PIPE_SIZE / 8 && equal >= 100)
    });
    signal_child(child, "TERM");
    testkit::wait_until("one signal ends it", || child.try_wait().unwrap().is_some());
    let (mut out, mut err) = (Vec::new(), String::new());
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let status = child.wait().unwrap().code();
    CommandResult { status, out: String::from_utf8_lossy(&out).into_owned(), err }
}

#[test]
fn one_signal_ends_a_path_whose_output_is_not_read() {
    let folder = Folder::new();
    let stopped = folder.path().join("stopped");
    fs::write(&stopped, "kill -STOP $$\ncat").unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("fifo")).status().unwrap().success());
    let fifo = fs::OpenOptions::new().read(true).write(true).open(folder.path().join("fifo"));
    // In turn, these outputs are not read: standard output, a named pipe, and the input of
    // programs.
    for request in [
        "generate | print",
        "generate | pcap fifo",
        "generate size=1400 | exec \"sleep 1000\" | discard",
        "generate size=1400 | exec \"sh stopped\"",
    ] {
        let mut child = start_request(&folder, request);
        let ran = signal_when_pipe_is_full(&mut child);
        assert_eq!(ran.status, Some(1), "{request}: {}", ran.err);
        let why = "nothing was read for 5 s after the path had been stopped";
        assert!(ran.err.contains(why), "{request}: {}", ran.err);
        assert!(ran.err.contains(" lost: "), "{request}: {}", ran.err);
    }
    drop(fifo);
}

#[test]
fn one_signal_ends_a_path_with_a_suspended_program() {
    let folder = Folder::new();
    fs::write(folder.path().join("stopped"), "echo here > here; kill -STOP $$; cat").unwrap();
    let here = folder.path().join("here");
    for request in
        ["generate count=3 | exec \"sh stopped\" | count", "generate count=3 | exec \"sh stopped\""]
    {
        let mut child = start_request(&folder, request);
        wait_for_child_condition("its program runs", &mut child, |_| here.exists());
        signal_child(&child, "TERM");
        testkit::wait_until("one signal ends it", || child.try_wait().unwrap().is_some());
        let ran = CommandResult::from(child.wait_with_output().unwrap());
        assert_eq!(ran.status, Some(1), "{request}: {}", ran.err);
        let why = "was suspended, and killed 5 s after the stop";
        assert!(ran.err.contains(why), "{request}: {}", ran.err);
        fs::remove_file(&here).unwrap();
    }
}

#[test]
fn exited_reader_causes_a_report_of_the_other_sinks() {
    let folder = Folder::new();
    let request = "generate rate=2000 | (print + pcap out.pcap)";
    let mut child = start_request(&folder, request);
    let mut first = [0; 10];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(141), "{}", ran.err);
    let why = "the reader of standard output has exited, which ended all outputs: ";
    assert!(ran.err.contains(why) && ran.err.contains("written to out.pcap"), "{}", ran.err);
    let mut alone = start_request(&folder, "generate | print");
    drop(alone.stdout.take());
    let ran = CommandResult::from(alone.wait_with_output().unwrap());
    assert_eq!((ran.status, ran.err.as_str()), (Some(141), ""));
}

#[test]
fn statuses_of_programs_survive_an_ignored_sigchld() {
    let folder = Folder::new();
    let run = |words: &[&str]| {
        let mut command = Command::new("env");
        command.arg("--ignore-signal=CHLD").arg(env!("CARGO_BIN_EXE_streamline")).args(words);
        folder.set_environment(&mut command);
        CommandResult::from(command.output().unwrap())
    };
    for (script, status) in [("false | true", 0), ("true | sh -c \"exit 3\"", 3)] {
        let ran = run(&["sh", "--isolate", "-c", script]);
        assert_eq!(ran.status, Some(status), "{script}: {}", ran.err);
    }
    let ran = run(&["run", "exec \"echo here\" | count"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "1 blocks, 5 bytes\n"), "{}", ran.err);
    let ran = run(&["run", "exec \"exit 3\" | count"]);
    assert!(ran.err.contains("ended with status 3"), "{}", ran.err);
}

/// Returns true if a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}
