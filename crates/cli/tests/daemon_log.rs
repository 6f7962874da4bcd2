//! Tests of the control plane's log. The daemon logs each event as text, to journald, or as JSON
//! that conforms to the published schema.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::schema_validator::validate_outputs;
use common::{ChildGuard, DAEMON_DIR, Folder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;
use testkit::wait_until;

/// Starts a daemon that appends its log, in the format `form`, to the file `log`. Waits until it
/// replies.
fn start_daemon(folder: &Folder, form: &str) -> ChildGuard {
    let place = folder.path().join(DAEMON_DIR).display().to_string();
    let mut command = folder.streamline_command(&["daemon", "--socket", &place, "--log", form]);
    let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let daemon = ChildGuard(command.spawn().unwrap());
    wait_until("a daemon answers", || folder.run(&["ps"]).status == Some(0));
    daemon
}

/// Sends SIGTERM to a daemon and waits until it has exited.
fn terminate(daemon: &mut ChildGuard) {
    let process = Pid::from_child(&daemon.0);
    kill_process(process, Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
}

fn parse_objects(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn json_log_has_a_line_for_each_event_of_the_control_plane() {
    let folder = Folder::new();
    let mut daemon = start_daemon(&folder, "json");
    let run = |words: &[&str], status| {
        let ran = folder.run(words);
        assert_eq!(ran.status, Some(status), "{words:?}: {}", ran.err);
    };
    run(&["start", "web", "--alarm", "blocks>0", "generate rate=1000 | count"], 0);
    run(&["set", "web", "insert", "udp", "after", "generate"], 0);
    run(&["set", "web", "remove", "nonsense"], 2);
    run(&["attach", "nobody"], 3);
    run(&["run", "-q", "--as", "web", "generate count=1 | count"], 1);
    wait_until("the alarm is logged", || folder.read("log").contains("path-alarm"));
    run(&["stop", "web"], 0);
    wait_until("the end is logged", || folder.read("log").contains("path-ended"));
    terminate(&mut daemon);
    let log = folder.read("log");
    let lines = parse_objects(&log);
    let find = |event: &str| {
        let found = lines.iter().find(|line| line["event"] == event);
        found.unwrap_or_else(|| panic!("no {event}: {log}"))
    };
    assert_eq!(lines[0]["event"], "daemon-started");
    assert_eq!(lines[lines.len() - 1]["event"], "daemon-stopped");
    let started = find("path-started");
    assert_eq!((&started["path"], &started["name"]), (&1.into(), &"web".into()));
    assert_eq!(started["request"], "generate rate=1000 | count");
    assert_eq!(started["uid"], sys::process::effective_ids().0);
    let changed = find("path-changed");
    assert_eq!(changed["request"], "generate rate=1000 | udp | count");
    assert!(changed["reason"].as_str().unwrap().contains("lost 0"), "{changed}");
    assert!(started["plan"].is_string() && started["plan"] != changed["plan"], "{log}");
    assert!(find("path-unchanged")["reason"].as_str().unwrap().contains("nonsense"));
    let refused: Vec<_> = lines.iter().filter(|line| line["event"] == "request-refused").collect();
    let errors: Vec<_> = refused.iter().map(|line| line["error"].as_str().unwrap()).collect();
    assert_eq!(errors, ["io.streamline.NoSuchPath", "io.streamline.NameTaken"], "{log}");
    assert_eq!(refused[0]["method"], "io.streamline.Connect");
    assert!(find("path-alarm")["reason"].as_str().unwrap().contains("blocks>0"));
    let ended = find("path-ended");
    // The exit status of the path is 4, because its alarm was raised.
    assert_eq!((&ended["status"], &ended["level"]), (&4.into(), &"warning".into()));
    assert!(ended["reason"].as_str().unwrap().contains("blocks"), "{ended}");
    let Some(verdict) = validate_outputs(&[("log", log.clone())]) else { return };
    assert_eq!(verdict, "checked log\n");
}

#[test]
fn killed_path_is_logged_as_ended_without_a_report() {
    let folder = Folder::new();
    let _daemon = start_daemon(&folder, "text");
    assert_eq!(folder.run(&["start", "web", "generate rate=10 | discard"]).status, Some(0));
    assert_eq!(folder.run(&["stop", "--kill", "web"]).status, Some(0));
    wait_until("the end is logged", || {
        folder.read("log").contains(" warning: path 1 web of user ")
            && folder.read("log").contains(" ended without a report\n")
    });
    let log = folder.read("log");
    assert!(log.contains(" info: the daemon is in "), "{log}");
    assert!(log.contains(" started: generate rate=10 | discard\n"), "{log}");
}

/// Parses a datagram in the native protocol of journald.
fn parse_journal_datagram(mut rest: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| b"=\n".contains(byte)).unwrap();
        let name = String::from_utf8(rest[..end].to_vec()).unwrap();
        let (start, length) = match rest[end] {
            b'=' => {
                let value = &rest[end + 1..];
                (end + 1, value.iter().position(|byte| *byte == b'\n').unwrap())
            }
            _ => {
                let length = u64::from_le_bytes(rest[end + 1..end + 9].try_into().unwrap());
                (end + 9, usize::try_from(length).unwrap())
            }
        };
        let value = String::from_utf8(rest[start..start + length].to_vec()).unwrap();
        assert_eq!(rest[start + length], b'\n');
        fields.insert(name, value);
        rest = &rest[start + length + 1..];
    }
    fields
}

#[test]
fn journal_receives_the_fields_of_each_event() {
    let folder = Folder::new();
    let socket = folder.path().join("journal");
    let journal = UnixDatagram::bind(&socket).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let receive = |event: &str| loop {
        let mut bytes = vec![0; 1 << 16];
        let length = journal.recv(&mut bytes).unwrap();
        let fields = parse_journal_datagram(&bytes[..length]);
        if fields["STREAMLINE_EVENT"] == event {
            return fields;
        }
    };
    let mut daemon = start_daemon(&folder, &format!("journal:{}", socket.display()));
    let first = receive("daemon-started");
    assert_eq!(
        (first["PRIORITY"].as_str(), first["SYSLOG_IDENTIFIER"].as_str()),
        ("6", "streamline")
    );
    assert!(first["MESSAGE"].starts_with("the daemon is in /"), "{first:?}");
    let request = "generate rate=10\n | discard";
    assert_eq!(folder.run(&["start", "web", request]).status, Some(0));
    let started = receive("path-started");
    assert_eq!(
        (started["STREAMLINE_PATH"].as_str(), started["STREAMLINE_NAME"].as_str()),
        ("1", "web")
    );
    assert_eq!(started["STREAMLINE_REQUEST"], request);
    assert_eq!(started["STREAMLINE_PLAN"].len(), 16);
    assert_eq!(folder.run(&["attach", "nobody"]).status, Some(3));
    let refused = receive("request-refused");
    assert_eq!(refused["PRIORITY"], "4");
    assert_eq!(refused["STREAMLINE_METHOD"], "io.streamline.Connect");
    assert!(refused["STREAMLINE_REASON"].contains("no path is called `nobody`"), "{refused:?}");
    assert_eq!(folder.run(&["stop", "web"]).status, Some(0));
    assert_eq!(receive("path-ended")["STREAMLINE_STATUS"], "0");
    terminate(&mut daemon);
    receive("daemon-stopped");
    assert_eq!(folder.read("log"), "", "nothing goes to standard error");
}

#[test]
fn unread_journal_does_not_stop_the_daemon() {
    let folder = Folder::new();
    let socket = folder.path().join("journal");
    let _journal = UnixDatagram::bind(&socket).unwrap();
    let mut daemon = start_daemon(&folder, &format!("journal:{}", socket.display()));
    // This is more than the queue of a socket can hold (net.unix.max_dgram_qlen).
    for _ in 0..40 {
        assert_eq!(folder.run(&["attach", "nobody"]).status, Some(3));
    }
    terminate(&mut daemon);
}

#[test]
fn missing_journal_is_an_error() {
    let folder = Folder::new();
    let ran = folder.run(&["daemon", "--socket", "here", "--log", "journal:/nonexistent/socket"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.contains("--log=text"), "{}", ran.err);
    let ran = folder.run(&["daemon", "--socket", "here", "--log", "xml"]);
    assert_eq!(ran.status, Some(2));
}
