//! Tests of PipesFS with programs that write to streams and to arguments of filters. The tests
//! compare the bytes that the programs wrote with the bytes that the paths counted.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::pipes_mount::{PipesMount, ProcessGuard, run_in_mount, send_signal, stop_process};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testkit::{need, wait_until};

/// Flag of open(2): reads and writes do not block.
const O_NONBLOCK: i32 = 0o4000;
/// Request whose source emits the bytes that programs write to it, as a separate stream for each
/// writer.
const BUFFER_HTTP_REQUEST: &str = "buffer clean link=stream | http | (|get count + |post count)";

fn open_for_writing(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

/// Waits until the source of a path has emitted all bytes that programs wrote to it.
fn wait_until_written_bytes_are_emitted(mounted: &PipesMount, source: &str) {
    wait_until("all that was written is emitted", || {
        let written = mounted.read_number(&format!("{source}/stats/written"));
        written > 0 && written == mounted.read_number(&format!("{source}/stats/bytes"))
    });
}

fn assert_refused(mounted: &PipesMount, name: &str, why: &str) {
    let opened = OpenOptions::new().write(true).open(mounted.path(name));
    assert!(opened.is_err(), "{name}");
    assert!(mounted.read_text(".error").contains(why), "{name}: {}", mounted.read_text(".error"));
}

#[test]
fn b7_each_open_for_writing_is_a_separate_stream() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("clean", BUFFER_HTTP_REQUEST);
    wait_until("it is shown", || mounted.path("clean/buffer:clean/http/get").is_dir());
    let all = mounted.path("clean/buffer:clean/all");
    // Two HTTP requests are written alternately, through separate files. The first line of each is
    // split between two writes.
    let (mut one, mut other) = (open_for_writing(&all), open_for_writing(&all));
    one.write_all(b"GET /on").unwrap();
    other.write_all(b"POST /ot").unwrap();
    one.write_all(b"e HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    other.write_all(b"her HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap();
    drop((one, other));
    // Truncation, append mode and the file offset have no effect.
    let (_, status) = run_in_mount(
        &mounted,
        "printf 'GET /a HTTP/1.1\\r\\n\\r\\n' > clean/buffer:clean/all && \
         printf 'GET /b HTTP/1.1\\r\\n\\r\\n' >> clean/buffer:clean/all && \
         printf 'GET /c HTTP/1.1\\r\\n\\r\\n' | \
         dd of=clean/buffer:clean/all bs=5 seek=3 conv=notrunc status=none",
    );
    assert_eq!(status, 0);
    let http = "clean/buffer:clean/http";
    // Each HTTP request is two blocks: its description and its bytes.
    wait_until("4 of get", || mounted.read_number(&format!("{http}/get/count/stats/blocks")) >= 8);
    wait_until("1 of post", || {
        mounted.read_number(&format!("{http}/post/count/stats/blocks")) >= 2
    });
    wait_until_written_bytes_are_emitted(&mounted, "clean/buffer:clean");
    assert!(fs::read_dir(mounted.path(&format!("{http}/stats/dropped"))).unwrap().next().is_none());
}

#[test]
fn b7_killed_writer_leaves_an_incomplete_message() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let path = spawn_path_with_report(&folder, "cut", "buffer cut link=stream | http | count");
    wait_until("it is shown", || mounted.path("cut/buffer:cut/http").is_dir());
    let mut cat = Command::new("cat");
    cat.stdin(Stdio::piped()).stdout(open_for_writing(&mounted.path("cut/buffer:cut/all")));
    let mut killed = ProcessGuard(cat.spawn().unwrap());
    // Only the child process may have the file open.
    drop(cat);
    let head = b"POST /cut HTTP/1.1\r\nContent-Length: 1000\r\n\r\nonly the beginning";
    let mut input = killed.0.stdin.take().unwrap();
    input.write_all(head).unwrap();
    let written = || mounted.read_number("cut/buffer:cut/stats/bytes");
    wait_until("it is emitted", || written() == head.len() as u64);
    killed.0.kill().unwrap();
    // Two blocks follow the bytes: the ends of both directions.
    let blocks = || mounted.read_number("cut/buffer:cut/stats/blocks");
    wait_until("the session ends", || blocks() >= 3);
    wait_until_written_bytes_are_emitted(&mounted, "cut/buffer:cut");
    let report = stop_and_read_report(&folder, "cut", path);
    assert!(report.contains("incomplete messages"), "{report}");
}

/// Starts a path, and captures its output and report for [`stop_and_read_report`]. Waits until the
/// path is listed.
fn spawn_path_with_report(folder: &Folder, name: &str, line: &str) -> Child {
    let mut command = folder.streamline_command(&["run", "-s", "--as", name, line]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let path = command.spawn().unwrap();
    folder.wait_until_listed(name);
    path
}

/// Stops a path, and asserts that its ledger balances. Returns its output and report.
fn stop_and_read_report(folder: &Folder, name: &str, path: Child) -> String {
    assert_eq!(folder.run(&["stop", name]).status, Some(0));
    let output = path.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let report = text(output.stdout) + &text(output.stderr);
    assert!(output.status.success(), "{report}");
    report
}

#[test]
fn b7_slow_path_makes_writers_wait_and_a_signal_ends_the_wait() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let path = folder.spawn_named_path("slow", "buffer slow link=none | count");
    wait_until("it is shown", || mounted.path("slow/buffer:slow").is_dir());
    let process = path.0.id();
    let all = mounted.path("slow/buffer:slow/all");
    let mut open = OpenOptions::new();
    let mut nonblocking = open.write(true).custom_flags(O_NONBLOCK).open(&all).unwrap();
    let mut blocking = Command::new("sh");
    blocking.args(["-c", "exec head -c 100000000 /dev/zero > slow/buffer:slow/all"]);
    blocking.current_dir(&mounted.directory).stderr(Stdio::null());
    // The process of the path is stopped, so the writer fills its socket.
    let _quiet = open_for_writing(&all);
    stop_process(process);
    let piece = [0u8; 100_000];
    let mut written = 0;
    let full = loop {
        match nonblocking.write(&piece) {
            Ok(length) => written += length as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert!(written > 0);
    if need::require_command("python3").is_some() {
        let poll = "import os, select, sys
fd = os.open('slow/buffer:slow/all', os.O_WRONLY | os.O_NONBLOCK) if len(sys.argv) > 2 else 1
poll = select.poll()
poll.register(fd, select.POLLOUT)
print(len(poll.poll(0)), len(poll.poll(30000)), file=sys.stderr)";
        let mut waiting = Command::new("python3");
        waiting.args(["-c", poll]).stdout(nonblocking.try_clone().unwrap());
        let mut waiting = ProcessGuard(waiting.stderr(Stdio::piped()).spawn().unwrap());
        let waits = || is_blocked_in_kernel_function(waiting.0.id(), "poll");
        wait_until("it polls", waits);
        send_signal("-CONT", process);
        let mut polled = String::new();
        waiting.0.stderr.take().unwrap().read_to_string(&mut polled).unwrap();
        assert_eq!(polled.trim(), "0 1");
    } else {
        send_signal("-CONT", process);
    }
    wait_until("it is emitted", || mounted.read_number("slow/buffer:slow/stats/bytes") == written);
    // A signal ends a blocked write.
    let mut blocked = ProcessGuard(blocking.spawn().unwrap());
    wait_until("it writes", || mounted.read_number("slow/buffer:slow/stats/bytes") > written);
    stop_process(process);
    wait_until("it waits", || is_blocked_in_kernel_function(blocked.0.id(), "fuse"));
    send_signal("-TERM", blocked.0.id());
    wait_until("the signal ends it", || blocked.0.try_wait().unwrap().is_some());
    send_signal("-CONT", process);
    wait_until_written_bytes_are_emitted(&mounted, "slow/buffer:slow");
}

/// Returns true if a process is waiting in a kernel function whose name contains `name`.
fn is_blocked_in_kernel_function(process: u32, name: &str) -> bool {
    ["stack", "wchan"].iter().any(|file| {
        fs::read_to_string(format!("/proc/{process}/{file}")).is_ok_and(|text| {
            text.contains(name) || (name == "fuse" && text.contains("request_wait"))
        })
    })
}

#[test]
fn b7_writers_fail_with_a_reason_when_the_path_ends() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let path = spawn_path_with_report(&folder, "over", "buffer over link=none | count");
    wait_until("it is shown", || mounted.path("over/buffer:over").is_dir());
    let mut open = open_for_writing(&mounted.path("over/buffer:over/all"));
    open.write_all(b"accepted").unwrap();
    // Accepted bytes are delivered, even if the path is stopped immediately afterwards.
    let report = stop_and_read_report(&folder, "over", path);
    assert!(report.contains("1 block"), "{report}");
    let why = open.write_all(b"refused").unwrap_err();
    assert_eq!(why.kind(), ErrorKind::BrokenPipe);
    assert!(
        mounted.read_text(".error").contains("the path has ended"),
        "{}",
        mounted.read_text(".error")
    );
}

#[test]
fn b7_killed_server_ends_sessions_but_not_the_path() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new_unmounted(&folder) else { return };
    let _path = folder.spawn_named_path("served", "buffer served link=stream | http | count");
    for round in 1..4 {
        let mut server = folder.streamline_command(&["mount", "--foreground", "pipes"]);
        let mut server = ProcessGuard(server.stderr(Stdio::null()).spawn().unwrap());
        wait_until("it is mounted", || mounted.path("served/buffer:served/http").is_dir());
        let blocks = || mounted.read_number("served/buffer:served/stats/blocks");
        let before = blocks();
        let mut open = open_for_writing(&mounted.path("served/buffer:served/all"));
        open.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        wait_until("it is emitted", || blocks() == before + 1);
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        assert!(open.write_all(b"x").is_err(), "round {round}");
        drop(open);
        // The attempt is repeated, because children of other tests may have the file open between
        // fork and exec.
        wait_until("it is unmounted", || {
            let mut umount = Command::new("umount");
            umount.arg(&mounted.directory).stderr(Stdio::null()).status().unwrap().success()
        });
    }
    assert!(folder.run(&["ps"]).out.contains(" served "));
}

#[test]
fn b7_written_capture_yields_frames_or_a_reason() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "buffer web | tcp | http |get count");
    wait_until("it is shown", || mounted.path("web/buffer:web/tcp/http").is_dir());
    let capture = folder.path().join("examples/web.pcap");
    let (_, status) =
        run_in_mount(&mounted, &format!("cat {} > web/buffer:web/all.pcap", capture.display()));
    assert_eq!(status, 0);
    wait_until("requests come", || {
        mounted.read_number("web/buffer:web/tcp/http/get/count/stats/blocks") > 0
    });
    let mut damaged = open_for_writing(&mounted.path("web/buffer:web/all.pcap"));
    damaged.write_all(b"this is no capture").unwrap();
    wait_until("it is refused", || damaged.write_all(b"more").is_err());
    assert!(mounted.read_text(".error").contains("capture"), "{}", mounted.read_text(".error"));
    let lost = mounted.path("web/buffer:web/stats/dropped/unreadable");
    wait_until("the loss is counted", || fs::read_to_string(&lost).is_ok_and(|it| it != "0\n"));
    assert_refused(&mounted, "web/buffer:web/all", "write a capture to all.pcap");
    assert_refused(&mounted, "web/buffer:web/tcp/http/all", "no description");
    assert_refused(&mounted, "web/buffer:web/all.jsonl", "");
    assert_refused(&mounted, "web/request", "this file is read-only");
}

#[test]
fn b7_written_blocks_count_as_output_of_the_filter() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder
        .spawn_named_path("web", "generate rate=1000 | tcp | http | (|get count + |post count)");
    wait_until("it is shown", || mounted.path("web/generate/tcp/http").is_dir());
    let (_, status) =
        run_in_mount(&mounted, "printf 'GET / HTTP/1.1\\r\\n\\r\\n' > web/generate/tcp/all");
    assert_eq!(status, 0, "{}", mounted.read_text(".error"));
    wait_until("a request", || {
        mounted.read_number("web/generate/tcp/http/get/count/stats/blocks") >= 2
    });
    assert_eq!(mounted.read_number("web/generate/tcp/stats/written"), 18);
}

#[test]
fn b7_argument_is_changed_when_the_write_returns() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let _path = folder.spawn_named_path("web", "generate rate=1000 | ratelimit 500 | udp | count");
    let at = |name: &str| format!("web/generate/{name}");
    wait_until("it is shown", || mounted.path(&at("ratelimit:500")).is_dir());
    assert_eq!(mounted.read_text(&at("ratelimit:500/config/burst")), "1\n");
    let write = |name: &str, value: &str| fs::write(mounted.path(&at(name)), value);
    write("ratelimit:500/config/burst", "7\n").unwrap();
    assert_eq!(mounted.read_text(&at("ratelimit:500/config/burst")), "7\n");
    // The rate is part of the directory's name, so the directory gets a new name.
    let (_, status) = run_in_mount(&mounted, "printf 100 > web/generate/ratelimit:500/config/rate");
    assert_eq!(status, 0, "{}", mounted.read_text(".error"));
    assert_eq!(mounted.read_text(&at("ratelimit:100/config/rate")), "100\n");
    assert!(
        mounted.read_text("web/request").contains("ratelimit 100"),
        "{}",
        mounted.read_text("web/request")
    );
    for (value, why) in [("many", "many"), ("1\n2\n", "one value"), ("", "")] {
        let refused = write("ratelimit:100/config/rate", value);
        assert!(refused.is_err() || value.is_empty(), "{value}");
        let error = mounted.read_text(".error");
        assert!(error.contains(why), "{error}");
    }
    let truncate =
        |name: &str, length: u64| open_for_writing(&mounted.path(&at(name))).set_len(length);
    truncate("ratelimit:100/config/burst", 0).unwrap();
    assert_eq!(
        truncate("ratelimit:100/config/burst", 5).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert!(mounted.read_text(".error").contains("a length cannot be set"));
    assert_eq!(mounted.read_text(&at("ratelimit:100/config/burst")), "7\n");
    if need::require_command("truncate").is_some() {
        let (_, status) =
            run_in_mount(&mounted, "truncate -s 0 web/generate/config/rate 2>/dev/null");
        assert_eq!(status, 1, "it cannot be written");
    }
    let fixed = write("config/rate", "5").unwrap_err();
    assert_eq!(fixed.kind(), ErrorKind::PermissionDenied);
    assert!(mounted.read_text(".error").contains("is fixed while the filter runs"));
    assert_eq!(mounted.read_text(&at("ratelimit:100/config/rate")), "100\n");
}
