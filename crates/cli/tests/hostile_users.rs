//! Tests of attacks by one user on another: paths that do not reply, names that the attacker
//! occupies, planted log files, and terminal escapes. The tests run real processes of two users.
//! (RELIABILITY T8, T13)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use abi::text::is_hidden;
use common::{ChildGuard, CommandResult, Folder};
use member::client::Client;
use member::protocol::{PathDescription, PathEnd, PathUpdate, RegisterParameters};
use member::varlink::{Call, Reply};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sys::local_socket::{self, Framing};
use testkit::packet::{Frame, TcpHeader};
use testkit::traffic::Capture;
use testkit::{need, wait_until};

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
const ROLE_VARIABLE: &str = "STREAMLINE_TEST_ROLE";
const NAME_VARIABLE: &str = "STREAMLINE_TEST_NAME";

/// Runs this test program as user ALICE, in a hostile role. Returns when the attack has begun.
fn spawn_hostile_process(folder: &Folder, role: &str, name: &str) -> ChildGuard {
    let test = folder.path().join("test");
    if !test.exists() {
        testkit::copy_program(&std::env::current_exe().unwrap(), &test);
    }
    let mut command = folder.command_as_user((ALICE, ALICE), test.to_str());
    command.args(["--ignored", "--exact", "--nocapture", "child_process_attacks_in_its_role"]);
    command.env(ROLE_VARIABLE, role).env(NAME_VARIABLE, name);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut hostile = ChildGuard(command.spawn().unwrap());
    let mut lines = BufReader::new(hostile.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")), "{role} did not begin");
    hostile
}

/// The process that [`spawn_hostile_process`] starts. It attacks other users in the role that the
/// environment variable [`ROLE_VARIABLE`] specifies.
#[test]
#[ignore = "the other process of a test"]
fn child_process_attacks_in_its_role() {
    let (Ok(role), Ok(name)) = (std::env::var(ROLE_VARIABLE), std::env::var(NAME_VARIABLE)) else {
        return;
    };
    match role.as_str() {
        "mute" => {
            let kept: Vec<_> = (0..32).map(|_| register_path(None)).collect();
            println!("\nready");
            // Waits until it is killed.
            let _ = std::io::stdin().read(&mut [0]);
            drop(kept);
        }
        "squat" => {
            let named = |realm: &str, uid| format!("{realm}/{uid}/{name}");
            let names = [named("streamline-state", 0), named("streamline", 0)];
            let take = |name: &String| {
                sys::abstract_socket::listen(
                    name.as_bytes(),
                    1,
                    sys::abstract_socket::AcceptedContent::Bytes,
                )
            };
            let kept: Vec<_> = names.iter().map(|name| take(name).unwrap()).collect();
            println!("\nready");
            let _ = std::io::stdin().read(&mut [0]);
            drop(kept);
        }
        "log" => serve_terminal_escapes(&name, || println!("\nready")),
        _ => panic!("no role {role}"),
    }
}

/// Registers a path with the daemon. Returns the connection that keeps the path registered, and the
/// socket over which the daemon passes connections of clients.
fn register_path(log: Option<String>) -> (OwnedFd, OwnedFd) {
    let place = PathBuf::from(std::env::var_os("STREAMLINE_DAEMON").unwrap());
    let packets = place.join("io.streamline.packets");
    let socket =
        local_socket::connect_to(&packets, Framing::Packets, testkit::wait::WAIT_TIMEOUT).unwrap();
    let (path_end, daemon_end) = sys::descriptor::socket_pair().unwrap();
    let path = RegisterParameters {
        line: "rx lo | count".to_owned(),
        log,
        ..RegisterParameters::default()
    };
    let call = Call::new("io.streamline.Register", &path).to_bytes();
    sys::descriptor::send(&socket, &call, &[daemon_end.as_fd()]).unwrap();
    let mut bytes = [0; 4096];
    let (length, _) = sys::descriptor::receive(&socket, &mut bytes).unwrap();
    let answer = String::from_utf8_lossy(&bytes[..length]);
    assert!(answer.contains("number"), "{answer}");
    (socket, path_end)
}

/// Registers a path, and serves one client. The replies contain terminal escapes and the name of a
/// planted log file.
fn serve_terminal_escapes(log: &str, ready: impl Fn()) {
    let (_kept, way) = register_path(Some("/nowhere".to_owned()));
    ready();
    let mut bytes = [0; 65536];
    let receive = |from: &OwnedFd, bytes: &mut [u8]| {
        // Sockets from the daemon are non-blocking, so the call waits for data.
        sys::poll::wait_until_readable_despite_signals(&[from.as_fd()], None);
        sys::descriptor::receive(from, bytes).unwrap()
    };
    let (_, mut callers) = receive(&way, &mut bytes);
    let caller = callers.pop().unwrap();
    let reply = |reply: &Reply| sys::descriptor::send(&caller, &reply.to_bytes(), &[]).unwrap();
    loop {
        let (length, _) = receive(&caller, &mut bytes);
        if length == 0 {
            return;
        }
        let call = Call::read(&bytes[..length]).unwrap();
        if call.method.ends_with("Describe") {
            let log = Some(log.to_owned());
            reply(&Reply::new(&PathDescription { log, ..PathDescription::default() }));
            continue;
        }
        // A vulnerable `attach` would print the contents of the log after this reply.
        let is_file = fs::metadata(log).is_ok_and(|about| about.is_file());
        if is_file && let Ok(mut file) = fs::OpenOptions::new().append(true).open(log) {
            file.write_all("logged \u{9b}31m \x1b[2J\u{202e}\n".as_bytes()).unwrap();
        }
        let report = "the \x1b[2J\u{9b}31m\u{202e}end".to_owned();
        let ended = Some(PathEnd { status: 0, report });
        return reply(&Reply::new(&PathUpdate { ended, ..PathUpdate::default() }));
    }
}

fn run_as_root(folder: &Folder, words: &[&str]) -> CommandResult {
    CommandResult::from(folder.streamline_command(words).stdin(Stdio::null()).output().unwrap())
}

fn assert_no_escapes(ran: &CommandResult) {
    let hidden = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    assert!(!ran.out.contains(hidden) && !ran.err.contains(hidden), "{ran:?}");
}

#[test]
fn t8_unresponsive_paths_of_a_user_hide_no_other_paths() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let daemon = folder.start_daemon();
    let _mute = spawn_hostile_process(&folder, "mute", "");
    let mut bobs = folder.command_as_user((BOB, BOB), None);
    bobs.args(["run", "-q", "--as", "bobs", "generate rate=1000 | count"]);
    let _bobs = ChildGuard(bobs.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut ran = run_as_root(&folder, &["ps", "--json"]);
    wait_until("a path of another user is seen to run beside the mute ones", || {
        ran = run_as_root(&folder, &["ps", "--json"]);
        let list: Value = serde_json::from_str(&ran.out).unwrap();
        let paths = list["paths"].as_array().unwrap();
        let state = |state: &str| paths.iter().filter(|path| path["state"] == state).count();
        (state("silent"), state("running")) == (32, 1)
    });
    let named = "no reply within 2 s from paths 1, 2, 3, 4, 5, 6, 7, 8 and 24 more of 41001";
    assert!(ran.err.contains(named), "{ran:?}");
    wait_until("its spaces are listed", || {
        let ran = run_as_root(&folder, &["spaces"]);
        ran.err.contains(named) && ran.out.contains(" of 41002, process ")
    });
    for words in [&["set", "1", "remove", "count"][..], &["attach", "1"]] {
        let ran = run_as_root(&folder, words);
        assert_eq!(ran.status, Some(1), "{words:?}: {ran:?}");
        assert!(ran.err.contains("no reply in time"), "{words:?}: {ran:?}");
        assert!(ran.err.contains("stop --kill 1"), "{words:?}: {ran:?}");
    }
    let stopped = run_as_root(&folder, &["stop", "1", "2", "41002/bobs"]);
    assert_eq!(stopped.status, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("--kill 1`") && stopped.err.contains("--kill 2`"), "{stopped:?}");
    // The command is repeated, because the path may not reply in time on a busy machine.
    wait_until("the other one has ended", || {
        run_as_root(&folder, &["stop", "41002/bobs"]).status == Some(3)
    });
    drop(daemon);
}

#[test]
fn t13_squatted_state_name_is_reported_with_its_holder() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let name = format!("strangers-{}", std::process::id());
    let _squatter = spawn_hostile_process(&folder, "squat", &name);
    let alone = run_as_root(&folder, &["state", &name]);
    assert_eq!(alone.status, Some(1), "{alone:?}");
    assert!(alone.err.contains("is held by a process of user 41001"), "{alone:?}");
    let line = format!("generate rate=1000 | count state={name}");
    let _path = folder.spawn_without_output(&["run", "-q", &line]);
    wait_until("the owner is found", || run_as_root(&folder, &["state", &name]).status == Some(0));
    let all = run_as_root(&folder, &["state"]);
    assert!(all.out.contains(&format!("0/{name}  ")), "{all:?}");
    let (other, _) = (spawn_hostile_process(&folder, "squat", &format!("{name}-b")), all);
    let all = run_as_root(&folder, &["state"]);
    assert!(all.err.contains("user 41001 hold 1 name of other users' states"), "{all:?}");
    drop(other);
}

#[test]
fn t13_attach_ignores_files_and_escapes_of_other_users() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let _daemon = folder.start_daemon();
    let inside = |name: &str| folder.path().join(name).display().to_string();
    let (pipe, secret, link, log) =
        (inside("pipe"), inside("secret"), inside("link"), inside("log"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&secret, "root's alone\n").unwrap();
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    fs::write(&log, "before\n").unwrap();
    for file in [&pipe, &log] {
        std::os::unix::fs::chown(file, Some(ALICE), Some(ALICE)).unwrap();
    }
    for (log, note) in [
        (&pipe, "it is not a regular file"),
        (&"/dev/null".to_owned(), "it is not a regular file"),
        (&secret, "it belongs to root, and not to 41001"),
        (&link, "it belongs to root, and not to 41001"),
        (&log, ""),
    ] {
        let path = spawn_hostile_process(&folder, "log", log);
        let number = newest_path_number(&folder);
        let ran = run_as_root(&folder, &["attach", &number]);
        drop(path);
        assert_eq!(ran.status, Some(0), "{log}: {ran:?}");
        assert_no_escapes(&ran);
        assert!(ran.err.contains("the ·[2J·31m·end"), "{log}: {ran:?}");
        match note {
            "" => assert_eq!(ran.out, "logged ·31m ·[2J·\n", "{ran:?}"),
            note => assert!(ran.err.contains(note) && ran.out.is_empty(), "{log}: {ran:?}"),
        }
    }
}

/// Returns the number of the path that was registered last.
fn newest_path_number(folder: &Folder) -> String {
    // The list comes from the daemon, because only `attach` may contact the path.
    let listed =
        Client::connect_at(&folder.path().join("no-daemon")).unwrap().list_paths().unwrap();
    listed.iter().map(|path| path.number).max().unwrap().to_string()
}

/// Writes a capture of an HTTP request and response that are full of terminal escapes and hidden
/// characters. Returns the name of the capture file.
fn write_escapes_capture(folder: &Folder) -> String {
    let frame = |from: &str, to: &str, segment: &TcpHeader, payload: &str| {
        Frame::ethernet().ipv4(from, to).tcp(segment, payload.as_bytes())
    };
    let bad = "\u{9b}31m\u{7f}\u{202e}\u{200b}\u{2028}\u{61c}";
    let request = format!("GET /{bad} HTTP/1.1\r\nHost: h\r\nUser-Agent: {bad}\r\n\r\n");
    let response =
        format!("HTTP/1.1 200 {bad}\r\nContent-Type: {bad}\r\nContent-Length: 2\r\n\r\nok");
    let (client, server) = ("10.0.0.1", "192.0.2.80");
    let to = |sequence, acknowledgement, flags| TcpHeader {
        source: 4000,
        target: 80,
        sequence,
        acknowledgement,
        flags,
        ..TcpHeader::default()
    };
    let back = |sequence, acknowledgement, flags| TcpHeader {
        source: 80,
        target: 4000,
        ..to(sequence, acknowledgement, flags)
    };
    let asked = 1 + request.len() as u32;
    let answered = 1 + response.len() as u32;
    let frames = [
        frame(client, server, &to(0, 0, 0x02), ""),
        frame(server, client, &back(0, 1, 0x12), ""),
        frame(client, server, &to(1, 1, 0x18), &request),
        frame(server, client, &back(1, asked, 0x18), &response),
        frame(client, server, &to(asked, answered, 0x11), ""),
        frame(server, client, &back(answered, asked + 1, 0x11), ""),
    ];
    fs::write(folder.path().join("bad.pcap"), Capture::from_frames(frames).to_pcap()).unwrap();
    "replay bad.pcap | tcp | http".to_owned()
}

#[test]
fn hidden_characters_are_escaped_in_every_output() {
    let folder = Folder::new();
    let http = write_escapes_capture(&folder);
    for sink in ["json", "print", "|exchange weblog", "|exchange weblog ecs=yes", "files out"] {
        let ran = folder.run(&["run", &format!("{http} {}", sink_suffix(sink))]);
        assert_eq!(ran.status, Some(0), "{sink}: {ran:?}");
        assert_no_escapes(&ran);
    }
    let index = folder.read("out/index.jsonl");
    assert!(!index.contains(|c: char| is_hidden(c) && c != '\n'), "{index}");
    let object: Value = serde_json::from_str(index.lines().next().unwrap()).unwrap();
    assert!(object.to_string().contains('\u{202e}'), "the text is all there: {object}");
    let json = folder.run(&["run", "-q", &format!("{http} | json")]).out;
    assert!(json.contains("\\u009b31m\\u007f\\u202e\\u200b\\u2028\\u061c"), "{json}");
    // Error messages that quote the user's arguments are escaped, too.
    for words in [
        &["run", "replay a\u{9b}b | nonsense\u{202e}"][..],
        &["explain", "replay x\u{202e} | count"],
        &["check", "replay \"\u{9b}\" | count \u{200f}"],
        &["filters", "x\u{9b}\u{61c}"],
        &["nonsense\u{9b}\u{202e}"],
        &["attach", "x\u{202e}\x1b[2J"],
        &["state", "x\u{9b}"],
        &["replay \"a\u{9b}\x1b.pcap\" | count"],
        &["doctor", "--x\u{9b}"],
    ] {
        let ran = folder.run(words);
        assert_ne!(ran.status, Some(0), "{words:?}");
        assert_no_escapes(&ran);
    }
}

/// Returns the text that appends a sink to a request. `sink` may begin with `|` and a class.
fn sink_suffix(sink: &str) -> String {
    if sink.starts_with('|') { sink.to_owned() } else { format!("| {sink}") }
}

#[test]
fn ps_is_truncated_on_terminals_only() {
    let Some(script) = need::require_command("script") else { return };
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line =
        "generate rate=10 | count --name=a_filter_with_a_name_that_is_much_too_long | discard";
    let _path = folder.spawn_named_path("long", line);
    assert!(folder.run(&["ps"]).out.contains("| discard\n"), "whole where nobody looks");
    let mut shell = folder.shell_command("exec \"$@\"");
    let typed = "stty cols 70 rows 20; streamline ps";
    shell.arg("sh").arg(&script).args(["-qec", typed, "/dev/null"]);
    let ran =
        CommandResult::from(shell.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap());
    let table = ran.out.lines().filter(|line| !line.starts_with("note: "));
    let widths: Vec<usize> = table.map(|line| line.trim_end().chars().count()).collect();
    assert!(widths.contains(&70) && widths.iter().all(|width| *width <= 70), "{ran:?}");
    assert!(ran.out.contains('…'), "{ran:?}");
}

#[test]
fn start_of_a_used_name_reports_the_log_of_its_holder() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "generate rate=10 | count";
    let first = folder.run(&["start", "web", line]);
    assert_eq!(first.status, Some(0), "{first:?}");
    let log = folder.path().join("state/streamline/paths/web.log");
    assert!(first.err.contains(&log.display().to_string()), "{first:?}");
    let elsewhere = folder.path().join("second.log").display().to_string();
    let second = folder.run(&["start", "--log", &elsewhere, "web", line]);
    assert_eq!(second.status, Some(1), "{second:?}");
    let named = format!("your path 1 (log: {}) already has the name `web`", log.display());
    assert!(second.err.contains(&named), "{second:?}");
    assert!(!Path::new(&elsewhere).exists(), "nothing was begun");
    assert_eq!(fs::read_to_string(&log).unwrap(), "", "the first log is the first path's alone");
    let stopped = folder.run(&["stop", "--kill", "web"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
}

#[test]
fn t13_request_of_a_started_path_is_in_no_command_line() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let secret = format!("secret-{}", std::process::id());
    let line = format!("generate rate=10 | match \"{secret}\" | count");
    let started = folder.run(&["start", "--log", "/dev/null", "hidden", &line]);
    assert_eq!(started.status, Some(0), "{started:?}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        assert!(!words.contains(&secret), "{words}");
    }
    assert!(folder.run(&["ps"]).out.contains(&secret), "the owner sees it");
    assert_eq!(folder.run(&["stop", "--kill", "hidden"]).status, Some(0));
}

#[test]
fn t13_loopback_page_is_refused_if_users_may_capture_on_lo() {
    let folder = Folder::new();
    let policy = folder.path().join("policy.toml");
    for interface in ["lo", "*"] {
        let open = format!("[[open]]\nusers = [{ALICE}]\ninterfaces = [\"{interface}\"]\n");
        fs::write(&policy, open).unwrap();
        let place = folder.path().join("other").display().to_string();
        let policy = policy.display().to_string();
        let ran = folder.run(&["daemon", "--socket", &place, "--policy", &policy, "--page"]);
        assert_eq!(ran.status, Some(1), "{interface}: {ran:?}");
        assert!(ran.err.contains("use --page=unix:PATH"), "{interface}: {ran:?}");
    }
}

#[test]
fn user_daemon_needs_no_login_session() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let home = folder.path().join("a-home".repeat(20));
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ALICE), Some(ALICE)).unwrap();
    let command = |words: &[&str]| {
        let mut command = folder.command_as_user((ALICE, ALICE), None);
        command.args(words).env("HOME", &home);
        for variable in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "STREAMLINE_DAEMON"] {
            command.env_remove(variable);
        }
        command
    };
    let mut daemon = command(&["daemon", "--user"]);
    let daemon = daemon.stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = ChildGuard(daemon.gid(ALICE).spawn().unwrap());
    wait_until("the daemon is found", || command(&["ps"]).output().unwrap().status.success());
    let place = home.join(".local/state/streamline/run");
    assert!(place.join("io.streamline").exists());
    drop(daemon);
}

#[test]
fn completion_offers_paths_and_nodes_of_the_daemon() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _path = folder.spawn_named_path("web", "generate rate=10 | count --name=counted | discard");
    assert_eq!(folder.run(&["complete", "--", "stop"]).out, "web\n");
    wait_until("the path says what its nodes are", || {
        let nodes = folder.run(&["complete", "--", "set", "web", "remove"]).out;
        nodes.lines().collect::<Vec<_>>() == ["generate", "count#counted", "discard"]
    });
}
