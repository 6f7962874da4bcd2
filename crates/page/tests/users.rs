//! Tests of the page for all users: each user has a separate process with the rights of this user
//! alone. All tests except one (a page for its own user) need root.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::TestDaemon;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use sys::local_socket::{self, Framing};
use testkit::{need, wait_until};

/// Time without data after which a test fails.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);
const ALICE: u32 = 41_501;
const BOB: u32 = 41_502;

/// A page for all users. Dropping this value ends the page.
struct Host {
    child: Child,
    /// Lines that the page's process has written to standard error.
    lines: Receiver<String>,
}

impl Host {
    /// Starts a page whose user processes end after the time `idle`, in ms.
    fn start(machine: &TestDaemon, listen: &str, idle: &str) -> Self {
        Self::start_with(machine, listen, idle, |_| {})
    }

    /// Like [`Self::start`], but first applies `change` to the command.
    fn start_with(
        machine: &TestDaemon,
        listen: &str,
        idle: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(install_page_program(machine));
        machine.set_environment(&mut command);
        command.args(["--all-users", "--listen", listen, "--idle", idle]).arg("--socket");
        command.arg(machine.path("daemon")).env("PATH", search_path(machine));
        change(&mut command);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = spawn_line_reader(child.stderr.take().unwrap());
        let host = Self { child, lines };
        host.wait_for_line("is at");
        host
    }

    /// Waits for a line that contains `text` on standard error, and returns the line.
    fn wait_for_line(&self, text: &str) -> String {
        loop {
            let line =
                self.lines.recv_timeout(DATA_TIMEOUT).unwrap_or_else(|_| panic!("no `{text}`"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Returns the process ids of the user processes.
    fn processes(&self) -> Vec<u32> {
        children(self.child.id())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A stopped process would not notice the end of its host.
        for process in self.processes() {
            send_signal("-KILL", process);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_signal(signal: &str, process: u32) {
    Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
}

fn spawn_line_reader(stream: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(stream).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    lines
}

/// Copies the programs to a directory in which all users can run them. Returns the path of
/// `streamline-page`.
fn install_page_program(machine: &TestDaemon) -> PathBuf {
    let copies = machine.path("bin");
    if !copies.exists() {
        fs::create_dir(&copies).unwrap();
        let own = Path::new(env!("CARGO_BIN_EXE_streamline-page"));
        testkit::copy_program(own, &copies.join("streamline-page"));
        testkit::copy_program(testkit::streamline_program(), &copies.join("streamline"));
    }
    copies.join("streamline-page")
}

fn search_path(machine: &TestDaemon) -> String {
    format!("{}:{}", machine.path("bin").display(), std::env::var("PATH").unwrap_or_default())
}

/// Returns a command that runs a program as a user.
fn user_command(machine: &TestDaemon, uid: u32, program: &str) -> Command {
    let copies = install_page_program(machine);
    let state = machine.path(&format!("state-{uid}"));
    fs::create_dir_all(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(uid), Some(uid)).unwrap();
    let mut command = Command::new(copies.with_file_name(program));
    machine.set_environment(&mut command);
    command.env("XDG_STATE_HOME", state).env("PATH", search_path(machine)).uid(uid).gid(uid);
    command
}

/// Starts a path as a user, and returns its number.
fn start_path(machine: &TestDaemon, uid: u32, name: &str) -> u32 {
    let mut command = user_command(machine, uid, "streamline");
    let output = command.args(["start", name, "generate rate=500 | count"]).output().unwrap();
    let number = String::from_utf8_lossy(&output.stdout).trim().parse();
    number.unwrap_or_else(|_| panic!("{output:?}"))
}

/// Returns the URL of the page that `streamline-page` prints for a user.
fn fetch_url(machine: &TestDaemon, uid: u32, words: &[&str]) -> String {
    let mut command = user_command(machine, uid, "streamline-page");
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A browser of one user: the address of the page, and the user's token.
struct Browser {
    host: String,
    token: String,
}

impl Browser {
    fn for_user(machine: &TestDaemon, uid: u32) -> Self {
        Self::from_url(&fetch_url(machine, uid, &[]))
    }

    fn from_url(url: &str) -> Self {
        let (address, token) = url.split_once("/#token=").unwrap();
        let host = address.strip_prefix("http://").unwrap();
        Self { host: host.to_owned(), token: token.to_owned() }
    }

    /// Sends a request with additional headers. Returns the status and the body.
    fn request(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(&self.host).unwrap();
        let (host, token) = (&self.host, &self.token);
        let headers = format!("Host: {host}\r\nAuthorization: Bearer {token}\r\n{headers}");
        exchange(&mut socket, line, &headers, body)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.request(&format!("GET {path}"), "", "")
    }

    fn post(&self, path: &str, body: &Value) -> (u16, String) {
        self.request(&format!("POST {path}"), "", &body.to_string())
    }

    /// Returns the listed paths, each with its name and true if the path belongs to the user.
    fn paths(&self) -> Vec<(String, bool)> {
        let mut socket = TcpStream::connect(&self.host).unwrap();
        let (host, token) = (&self.host, &self.token);
        let head =
            format!("GET /api/live HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}");
        write!(socket, "{head}\r\n\r\n").unwrap();
        socket.set_read_timeout(Some(DATA_TIMEOUT)).unwrap();
        let mut lines = BufReader::new(socket).lines().map(Result::unwrap);
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
        let figures: Value = serde_json::from_str(&data).unwrap();
        let path = |path: &Value| {
            (path["name"].as_str().unwrap_or_default().to_owned(), path["yours"] == true)
        };
        figures["paths"].as_array().unwrap().iter().map(path).collect()
    }
}

/// Sends a request in two parts, and receives the reply until the connection is closed.
fn exchange(
    socket: &mut (impl Read + Write),
    line: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let kind = "Content-Type: application/json\r\n";
    write!(socket, "{line} HTTP/1.1\r\n").unwrap();
    write!(socket, "{headers}{kind}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.unwrap_or_default(), body.unwrap_or_default())
}

/// Returns the process ids of the children of a process.
fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = texts.flat_map(|text| {
        text.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
    });
    numbers.collect()
}

fn status_field(process: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn process_exists(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn two_users_have_their_own_rights_at_the_same_time() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let (hers, his) = (start_path(&machine, ALICE, "hers"), start_path(&machine, BOB, "his"));
    let _host = Host::start(&machine, "127.0.0.1:0", "60000");
    let (alice, bob) = (Browser::for_user(&machine, ALICE), Browser::for_user(&machine, BOB));
    assert_eq!(alice.host, bob.host);
    assert_ne!(alice.token, bob.token);
    let both = [("hers", true), ("his", false)].map(|(name, own)| (name.to_owned(), own));
    assert_eq!(alice.paths(), both);
    assert_eq!(bob.paths(), both.map(|(name, own)| (name, !own)));
    // Each user can stop and edit only their own path.
    for (user, other) in [(&alice, his), (&bob, hers)] {
        let (status, text) = user.post("/api/stop", &json!({ "path": other }));
        assert!(status == 400 && text.contains("belongs to user"), "{status} {text}");
        let edit = json!({ "path": other, "edit": "arg count every=1s" });
        assert_eq!(user.post("/api/set", &edit).0, 400);
        assert_eq!(user.get(&format!("/api/plan?path={other}")).0, 400);
    }
    // An edit for a request that no longer runs is refused.
    let edit = json!({ "path": his, "edit": "remove count", "running": "generate | discard" });
    let (status, text) = bob.post("/api/set", &edit);
    assert!(status == 400 && text.contains("another edit came first"), "{status} {text}");
    assert_eq!(alice.post("/api/stop", &json!({ "path": hers })).0, 200);
    wait_until("only the other path runs", || bob.paths() == [("his".to_owned(), true)]);
    // A capture file belongs to the user, and can be created only where the user has write
    // permission.
    let file = machine.path(&format!("state-{BOB}")).join("his.pcap");
    let capture = json!({ "path": his, "node": null, "file": file });
    let (status, text) = bob.post("/api/capture", &capture);
    assert_eq!(status, 200, "{text}");
    assert_eq!(fs::metadata(&file).unwrap().uid(), BOB);
    let capture = json!({ "path": his, "node": null, "file": "/root/his.pcap" });
    let (status, text) = bob.post("/api/capture", &capture);
    assert!(status == 400 && text.contains("ermission denied"), "{text}");
}

#[test]
fn token_opens_the_page_of_its_user_only() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    start_path(&machine, ALICE, "hers");
    let host = Host::start(&machine, "127.0.0.1:0", "60000");
    let alice = Browser::for_user(&machine, ALICE);
    let bob = Browser::for_user(&machine, BOB);
    assert_eq!(
        fetch_url(&machine, ALICE, &[]),
        format!("http://{}/#token={}", alice.host, alice.token)
    );
    let wrong = "0".repeat(alice.token.len());
    for token in [wrong.as_str(), "", &alice.token[1..], &format!("{}0", alice.token)] {
        let other = Browser { host: alice.host.clone(), token: token.to_owned() };
        assert_eq!(other.get("/api/plan?path=1").0, 401, "{token}");
    }
    assert!(host.processes().is_empty(), "a refused request starts nothing");
    // The files of the page require neither a token nor a user process.
    let mut socket = TcpStream::connect(&alice.host).unwrap();
    let (status, text) = exchange(&mut socket, "GET /", &format!("Host: {}\r\n", alice.host), "");
    assert!(status == 200 && text.contains("<html") && !text.contains(&alice.token));
    assert!(host.processes().is_empty(), "a file starts nothing");
    // The host and the user process check the headers, as a page for one user does.
    for path in ["/", "/api/plan?path=1"] {
        let line = format!("GET {path}");
        for origin in ["http://evil.example", "null"] {
            assert_eq!(alice.request(&line, &format!("Origin: {origin}\r\n"), "").0, 403, "{path}");
        }
        let mut socket = TcpStream::connect(&alice.host).unwrap();
        let headers = format!("Host: evil.example\r\nAuthorization: Bearer {}\r\n", alice.token);
        assert_eq!(exchange(&mut socket, &line, &headers, "").0, 421, "{path}");
    }
    assert_eq!(alice.get("/api/plan?path=1").0, 200);
    assert_eq!(bob.get("/api/plan?path=1").0, 400, "not that of the other user");
    // A renewed token revokes the user's old token, and no other.
    let renewed = Browser::from_url(&fetch_url(&machine, ALICE, &["--renew"]));
    assert_ne!(renewed.token, alice.token);
    assert_eq!(alice.get("/api/plan?path=1").0, 401);
    assert_eq!(renewed.get("/api/plan?path=1").0, 200);
    assert_eq!(bob.get("/api/plan?path=1").0, 400);
}

#[test]
fn user_process_has_only_the_rights_of_its_user() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let host = Host::start(&machine, "127.0.0.1:0", "60000");
    let alice = Browser::for_user(&machine, ALICE);
    assert_eq!(alice.get("/api/captures").0, 200);
    let [process] = host.processes()[..] else { panic!("{:?}", host.processes()) };
    for ids in ["Uid:", "Gid:"] {
        assert_eq!(status_field(process, ids), format!("{ALICE} {ALICE} {ALICE} {ALICE}"));
    }
    assert_eq!(status_field(process, "Groups:"), "");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&status_field(process, set), 16), Ok(0), "{set}");
    }
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(!environment.contains("STREAMLINE_DAEMON") && !environment.contains(&alice.token));
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains(&alice.token));
    // The only inherited socket of the process is its connection to the host.
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let listener = fs::read_dir(format!("/proc/{}/fd", host.child.id())).unwrap().flatten();
    let targets = |entries: &mut dyn Iterator<Item = fs::DirEntry>| {
        let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets
            .filter(|target| target.starts_with("socket:") || target.starts_with("pipe:"))
            .chain([])
            .collect::<Vec<_>>()
    };
    let (own, of_host) = (targets(&mut open.into_iter()), targets(&mut listener.into_iter()));
    let shared: Vec<_> = own.iter().filter(|target| of_host.contains(target)).collect();
    assert!(shared.is_empty(), "{shared:?}");
    // A second user gets a separate process.
    assert_eq!(Browser::for_user(&machine, BOB).get("/api/captures").0, 200);
    assert_eq!(host.processes().len(), 2);
}

#[test]
fn process_of_root_has_the_environment_of_a_login() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    // A service has no home directory, but has a socket to the service manager.
    let service = [("NOTIFY_SOCKET", "/nonexistent/notify"), ("WATCHDOG_USEC", "1")];
    let host = Host::start_with(&machine, "127.0.0.1:0", "60000", |command| {
        command.env_remove("HOME").envs(service);
    });
    let url = fetch_url(&machine, 0, &[]);
    assert_eq!(Browser::from_url(&url).get("/api/captures").0, 200);
    let [process] = host.processes()[..] else { panic!("{:?}", host.processes()) };
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let names: Vec<_> = environment.split('\0').filter_map(|it| it.split_once('=')).collect();
    let home = names.iter().find(|(name, _)| *name == "HOME").unwrap().1;
    let there = fs::read_link(format!("/proc/{process}/cwd")).unwrap();
    assert_eq!((there.to_str(), home == "/"), (Some(home), false));
    assert!(!names.iter().any(|(name, _)| service.iter().any(|it| it.0 == *name)), "{names:?}");
}

#[test]
fn idle_process_ends_and_starts_with_the_next_request() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let host = Host::start(&machine, "127.0.0.1:0", "300");
    let alice = Browser::for_user(&machine, ALICE);
    assert_eq!(alice.get("/api/captures").0, 200);
    host.wait_for_line("the page is not in use");
    assert!(host.processes().is_empty());
    assert_eq!(alice.get("/api/captures").0, 200, "the token stays");
    // The process runs as long as a browser is connected.
    let socket = TcpStream::connect(&alice.host).unwrap();
    let (name, token) = (&alice.host, &alice.token);
    let head = format!("GET /api/live HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {token}");
    write!(&socket, "{head}\r\n\r\n").unwrap();
    let mut events = BufReader::new(&socket).lines().map(Result::unwrap);
    let mut next = || events.by_ref().find(|line| line.starts_with("data: ")).unwrap();
    next();
    let [process] = host.processes()[..] else { panic!("{:?}", host.processes()) };
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        next();
    }
    assert_eq!(host.processes(), [process]);
    drop(socket);
    host.wait_for_line("the page is not in use");
}

#[test]
fn killed_process_is_reported_and_replaced() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let host = Host::start(&machine, "127.0.0.1:0", "60000");
    let (alice, bob) = (Browser::for_user(&machine, ALICE), Browser::for_user(&machine, BOB));
    assert_eq!(alice.get("/api/captures").0, 200);
    let [hers] = host.processes()[..] else { panic!("{:?}", host.processes()) };
    assert_eq!(bob.get("/api/captures").0, 200);
    let his = host.processes().into_iter().find(|process| *process != hers).unwrap();
    send_signal("-KILL", hers);
    let line = host.wait_for_line("starts another");
    assert!(line.contains(&format!("process {hers}")) && line.contains("signal: 9"), "{line}");
    assert_eq!(alice.get("/api/captures").0, 200);
    assert!(host.processes().contains(&his), "the other user's goes on");
    // A stopped process blocks only its own user.
    send_signal("-STOP", host.processes().into_iter().find(|process| *process != his).unwrap());
    assert_eq!(bob.get("/api/captures").0, 200);
}

#[test]
fn process_that_exits_repeatedly_starts_after_a_pause() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let host = Host::start(&machine, "127.0.0.1:0", "60000");
    let (alice, bob) = (Browser::for_user(&machine, ALICE), Browser::for_user(&machine, BOB));
    for _ in 0..3 {
        wait_until("it starts", || alice.get("/api/captures").0 == 200);
        let [process] = host.processes()[..] else { panic!("{:?}", host.processes()) };
        send_signal("-KILL", process);
        host.wait_for_line(&format!("process {process} has ended"));
    }
    // The pause also applies to a new token of the user.
    let renewed = Browser::from_url(&fetch_url(&machine, ALICE, &["--renew"]));
    let (status, text) = renewed.get("/api/captures");
    assert!(status == 503 && text.contains("has ended 3 times soon after its start"), "{text}");
    let refused = (0..20).filter(|_| renewed.get("/api/captures").0 == 503).count();
    assert!(refused > 0);
    assert_eq!(bob.get("/api/captures").0, 200, "others need not wait");
    wait_until("it starts again", || renewed.get("/api/captures").0 == 200);
    // At most one report follows: the refusals may have been reported before the third start.
    let rest: Vec<String> = host.lines.try_iter().collect();
    let reported = rest.iter().filter(|line| line.contains("soon after its start")).count();
    assert!(reported <= 1, "{rest:?}");
}

#[test]
fn connections_without_a_request_delay_no_other_user() {
    let Some(()) = need::require_root() else { return };
    let _ = sys::process::raise_descriptor_limit();
    let machine = TestDaemon::new();
    let _host = Host::start(&machine, "127.0.0.1:0", "60000");
    let alice = Browser::for_user(&machine, ALICE);
    let idle: Vec<_> = (0..1100).map(|_| TcpStream::connect(&alice.host).unwrap()).collect();
    assert_eq!(alice.get("/api/captures").0, 200);
    assert_eq!(alice.get("/").0, 200);
    let is_open = |socket: &&TcpStream| {
        socket.set_nonblocking(true).unwrap();
        let got = socket.peek(&mut [0]);
        socket.set_nonblocking(false).unwrap();
        got.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    // Only the oldest connections were closed, not all idle ones.
    assert!(idle.iter().filter(is_open).count() > 400);
    // The newest idle connections are still within their time limit.
    let mut latest = idle.last().unwrap();
    let host = format!("Host: {}\r\n", alice.host);
    assert_eq!(exchange(&mut latest, "GET /", &host, "").0, 200);
}

#[test]
fn page_of_a_daemon_ends_with_it() {
    let Some(()) = need::require_root() else { return };
    let mut machine = TestDaemon::start_with_arguments(&["--page", "127.0.0.1:0"]);
    let page_socket = machine.path("daemon-page").join("io.streamline.page");
    wait_until("the page is open", || page_socket.exists());
    let alice = Browser::for_user(&machine, ALICE);
    assert_eq!(alice.get("/api/captures").0, 200);
    let host = processes_named("streamline-page", &machine);
    let [host] = host[..] else { panic!("{host:?}") };
    let [process] = children(host)[..] else { panic!("no process of the user") };
    machine.kill_daemon();
    wait_until("the page has ended", || !process_exists(host) && !process_exists(process));
    assert!(!page_socket.exists());
}

#[test]
fn page_of_a_daemon_reports_to_its_log() {
    let Some(()) = need::require_root() else { return };
    let options = ["--page=127.0.0.1:0", "--mount=/nonexistent/mount", "--log=json"];
    let mut machine = TestDaemon::start_with_arguments(&options);
    let page_socket = machine.path("daemon-page").join("io.streamline.page");
    wait_until("the page is open", || page_socket.exists());
    assert_eq!(Browser::for_user(&machine, ALICE).get("/api/captures").0, 200);
    machine.stop_daemon();
    let log = machine.log();
    let lines =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{log}")));
    let events: Vec<Value> = lines.collect();
    for (event, level, text) in [
        ("page-reported", "info", " is at http://127.0.0.1:"),
        ("page-reported", "info", " has started"),
        ("mount-reported", "error", "/nonexistent/mount"),
    ] {
        let is = |it: &&Value| it["message"].as_str().is_some_and(|it| it.contains(text));
        let found = events.iter().find(|it| it["event"] == event && is(it));
        assert_eq!(found.unwrap_or_else(|| panic!("{log}"))["level"], level);
    }
}

#[test]
fn page_of_a_daemon_restarts_after_exit() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::start_with_arguments(&["--page", "127.0.0.1:0"]);
    let host = || processes_named("streamline-page", &machine);
    wait_until("the page runs", || host().len() == 1);
    let first = host();
    send_signal("-KILL", first[0]);
    wait_until("another page runs", || host().len() == 1 && host() != first);
    let page_socket = machine.path("daemon-page").join("io.streamline.page");
    wait_until("it is open", || {
        UnixStream::connect(&page_socket)
            .is_err_and(|error| error.kind() != ErrorKind::ConnectionRefused)
    });
    assert_eq!(Browser::for_user(&machine, BOB).get("/api/captures").0, 200);
}

/// Returns the ids of the processes that run the program `name` with the directory of this
/// machine's daemon as an argument.
fn processes_named(name: &str, machine: &TestDaemon) -> Vec<u32> {
    let daemon = machine.path("daemon").display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let serves = |process: &u32| {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        words.split('\0').next().is_some_and(|program| program.ends_with(name))
            && words.contains(&daemon)
    };
    numbers.filter(serves).collect()
}

#[test]
fn users_of_a_unix_socket_have_their_own_rights() {
    let (Some(()), Some(curl)) = (need::require_root(), need::require_command("curl")) else {
        return;
    };
    let machine = TestDaemon::new();
    start_path(&machine, ALICE, "hers");
    let socket = machine.path("page.sock");
    let listen = format!("unix:{}", socket.display());
    let host = Host::start(&machine, &listen, "60000");
    assert_eq!(fetch_url(&machine, ALICE, &[]), listen);
    let status = |uid: u32, host: &str| {
        let mut curl = Command::new(&curl);
        curl.args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]);
        curl.arg("--unix-socket").arg(&socket).arg(format!("http://{host}/api/plan?path=1"));
        String::from_utf8(curl.uid(uid).gid(uid).output().unwrap().stdout).unwrap()
    };
    assert_eq!(status(ALICE, "localhost"), "200");
    assert_eq!(status(BOB, "localhost"), "400");
    assert_eq!(status(ALICE, "evil.example"), "421");
    assert_eq!(host.processes().len(), 2);
}

#[test]
fn page_of_a_user_serves_this_user_only() {
    let Some(()) = need::require_root() else { return };
    let machine = TestDaemon::new();
    let directory = machine.path(&format!("state-{ALICE}")).join("daemon");
    let mut command = user_command(&machine, ALICE, "streamline-page");
    command.args(["--all-users", "--listen", "127.0.0.1:0", "--socket"]).arg(&directory);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = spawn_line_reader(child.stderr.take().unwrap());
    let host = Host { child, lines };
    let line = host.wait_for_line("is at");
    assert!(line.contains(&format!("the page of user {ALICE}")), "{line}");
    let fetch = |uid: u32| {
        let mut command = user_command(&machine, uid, "streamline-page");
        command.arg("--renew").arg("--socket").arg(&directory).output().unwrap()
    };
    let url = fetch(ALICE);
    let url = String::from_utf8(url.stdout).unwrap();
    assert_eq!(Browser::from_url(url.trim()).get("/api/captures").0, 200);
    let refused = fetch(BOB);
    assert!(!refused.status.success(), "{refused:?}");
    // The other user gets no token, even if the permissions of the directory allow access.
    let page_socket_directory = directory.with_file_name("daemon-page");
    for (path, mode) in [
        (&page_socket_directory, 0o755),
        (&page_socket_directory.join("io.streamline.page"), 0o666),
    ] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    }
    let refused = fetch(BOB);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    // The program of the other user would query only a page of root, so this test calls the socket
    // directly. The page itself refuses.
    let reply =
        call_page_socket(&page_socket_directory, BOB, r#"{"method":"io.streamline.page.Open"}"#);
    assert_eq!(reply["error"], "io.streamline.page.NotYourPage", "{reply}");
    assert_eq!(reply["parameters"], json!({ "uid": ALICE }));
    let reply =
        call_page_socket(&page_socket_directory, ALICE, r#"{"method":"io.streamline.page.Open"}"#);
    assert_eq!(reply["parameters"]["url"], url.trim(), "{reply}");
}

/// Sends a call to the socket of a page as a user, and returns the reply.
fn call_page_socket(directory: &Path, uid: u32, call: &str) -> Value {
    let socket = connect_to_page_socket(directory, uid);
    local_socket::send_nonblocking(&socket, call.as_bytes(), &[]).unwrap();
    read_reply(&socket)
}

/// Connects to the socket of a page as a user.
fn connect_to_page_socket(directory: &Path, uid: u32) -> OwnedFd {
    let path = directory.join("io.streamline.page");
    let connect = || local_socket::connect_to(&path, Framing::Packets, DATA_TIMEOUT);
    sys::process::run_as_user((uid, uid), connect).unwrap().unwrap()
}

fn read_reply(socket: &OwnedFd) -> Value {
    let mut reply = [0; 4096];
    let (length, _) = sys::descriptor::receive(socket, &mut reply).unwrap();
    serde_json::from_slice(&reply[..length]).unwrap()
}
