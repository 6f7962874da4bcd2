//! Tests of the server over real sockets: access control, and the contents of the stream of
//! figures.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{Page, TestDaemon};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;
use testkit::{need, wait_until};

/// Time without data after which a test fails.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a GET request with the given headers. Returns the status, and the reply including its
/// headers.
fn get(page: &Page, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut socket = TcpStream::connect(page.host()).unwrap();
    socket.set_read_timeout(Some(DATA_TIMEOUT)).unwrap();
    write_request(&mut socket, path, headers);
    read_reply(&mut socket)
}

fn write_request(socket: &mut impl Write, path: &str, headers: &[(&str, &str)]) {
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let headers: String = headers.collect();
    write!(socket, "GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
}

fn read_reply(socket: &mut impl Read) -> (u16, String) {
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), reply)
}

fn authorization(page: &Page) -> String {
    format!("Bearer {}", page.token())
}

/// A stream of figures, as server-sent events.
struct Figures(BufReader<TcpStream>);

impl Figures {
    fn open(page: &Page, path: u32) -> Self {
        let mut socket = TcpStream::connect(page.host()).unwrap();
        socket.set_read_timeout(Some(DATA_TIMEOUT)).unwrap();
        let (host, token) = (page.host(), authorization(page));
        let headers = [("Host", host), ("Authorization", token.as_str())];
        write_request(&mut socket, &format!("/api/live?path={path}"), &headers);
        Self(BufReader::new(socket))
    }

    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// Waits for counters of the selected path in which the source has blocks.
    fn next_counters(&mut self) -> Value {
        loop {
            let counters = self.next()["selected"]["counters"].take();
            if counters["sources"][0]["given"]["blocks"].as_u64() > Some(0) {
                return counters;
            }
        }
    }
}

#[test]
fn request_without_the_token_gets_no_figures() {
    let machine = TestDaemon::new();
    machine.start("secret", "generate rate=100 | count");
    let page = machine.start_page("127.0.0.1:0");
    let host = ("Host", page.host());
    let other = format!("Bearer {}", "0".repeat(page.token().len()));
    for path in ["/api/live", "/api/plan?path=1", "/api/history?path=1"] {
        assert_eq!(get(&page, path, &[host]).0, 401, "{path}");
        assert_eq!(get(&page, path, &[host, ("Authorization", &other)]).0, 401, "{path}");
    }
    assert!(!page.has_collector_thread(), "a refused request starts no queries");
    let (status, reply) = get(&page, "/", &[host]);
    assert_eq!(status, 200);
    assert!(reply.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    assert!(!reply.contains("secret") && !reply.contains(page.token()));
    let own = authorization(&page);
    let (status, reply) = get(&page, "/api/plan?path=1", &[host, ("Authorization", &own)]);
    assert_eq!(status, 200, "{reply}");
    assert!(reply.contains("generate rate=100 | count"), "{reply}");
}

#[test]
fn request_of_another_site_is_refused() {
    let machine = TestDaemon::new();
    let page = machine.start_page("127.0.0.1:0");
    let own = authorization(&page);
    let own = ("Authorization", own.as_str());
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example"] {
        assert_eq!(get(&page, "/", &[("Host", host)]).0, 421, "{host}");
        assert_eq!(get(&page, "/api/history?path=1", &[("Host", host), own]).0, 421, "{host}");
    }
    let host = ("Host", page.host());
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let headers = [host, own, ("Origin", origin)];
        assert_eq!(get(&page, "/api/history?path=1", &headers).0, 403, "{origin}");
    }
    let origin = format!("http://{}", page.host());
    let headers = [host, own, ("Origin", origin.as_str())];
    assert_eq!(get(&page, "/api/history?path=1", &headers).0, 200);
}

#[test]
fn stream_carries_the_counters_of_the_path() {
    let machine = TestDaemon::new();
    let number = machine.start("counted", "generate rate=2000 | dport |9 count");
    let page = machine.start_page("127.0.0.1:0");
    // `top` queries the path directly, before and after the figures arrive.
    let given = || {
        let output = machine.run(&["top", "counted", "--once", "--json"]);
        let top: Value = serde_json::from_slice(&output.stdout).unwrap();
        top["given"]["blocks"].as_u64().unwrap()
    };
    let before = given();
    let mut figures = Figures::open(&page, number);
    let counters = loop {
        let counters = figures.next_counters();
        if counters["sources"][0]["given"]["blocks"].as_u64() > Some(before) {
            break counters;
        }
    };
    let given_live = counters["sources"][0]["given"]["blocks"].as_u64().unwrap();
    let after = given();
    assert!(before < given_live && given_live <= after, "{before} < {given_live} <= {after}");
    for edge in counters["edges"].as_array().unwrap() {
        let blocks = |what: &str| edge[what]["blocks"].as_u64().unwrap();
        assert!(blocks("put") >= blocks("taken"), "{edge}");
    }
    let filters = counters["filters"].as_array().unwrap();
    let dport = filters.iter().find(|filter| filter["name"] == "dport").unwrap();
    assert!(dport["taken"]["blocks"].as_u64() <= Some(given_live), "{dport}");
    let later = figures.next_counters();
    assert!(later["sources"][0]["given"]["blocks"].as_u64() >= Some(given_live));
}

#[test]
fn stream_lists_paths_that_start_and_end() {
    let machine = TestDaemon::new();
    let page = machine.start_page("127.0.0.1:0");
    let mut figures = Figures::open(&page, 0);
    assert_eq!(figures.next()["paths"].as_array().map(Vec::len), Some(0));
    machine.start("late", "generate rate=100 | count");
    let rate = |figures: &Value| figures["paths"][0]["rate"]["blocks"].as_f64();
    let event = loop {
        let event = figures.next();
        if rate(&event) > Some(0.0) {
            break event;
        }
    };
    assert_eq!(event["paths"][0]["name"], "late");
    machine.run(&["stop", "late"]);
    loop {
        let event = figures.next();
        let report = event["ended"][0]["ended"]["report"].as_str().unwrap_or_default().to_owned();
        if report.contains("none lost") {
            assert_eq!(event["paths"].as_array().map(Vec::len), Some(0));
            return;
        }
    }
}

#[test]
fn history_holds_the_rates_of_the_last_samples() {
    let machine = TestDaemon::new();
    let number = machine.start("kept", "generate rate=1000 | count");
    let page = machine.start_page("127.0.0.1:0");
    let mut figures = Figures::open(&page, number);
    let own = authorization(&page);
    let headers = [("Host", page.host()), ("Authorization", own.as_str())];
    loop {
        figures.next();
        let (status, reply) = get(&page, &format!("/api/history?path={number}&edge=0"), &headers);
        assert_eq!(status, 200);
        let body = reply.split("\r\n\r\n").nth(1).unwrap();
        let columns: Value = serde_json::from_str(body).unwrap();
        let blocks = columns["blocks"].as_array().unwrap();
        if blocks.iter().any(|rate| rate.as_f64() > Some(0.0)) {
            assert_eq!(columns["time_ms"].as_array().map(Vec::len), Some(blocks.len()));
            return;
        }
    }
}

#[test]
fn paths_are_not_queried_without_a_viewer() {
    let machine = TestDaemon::new();
    let number = machine.start("alone", "generate rate=100 | count");
    let page = machine.start_page("127.0.0.1:0");
    assert!(!page.has_collector_thread());
    let mut figures = Figures::open(&page, number);
    figures.next_counters();
    assert!(page.has_collector_thread());
    drop(figures);
    wait_until("the page lets the paths go", || !page.has_collector_thread());
    Figures::open(&page, number).next_counters();
}

#[test]
fn unix_socket_admits_its_user_only() {
    let machine = TestDaemon::new();
    let number = machine.start("local", "generate rate=100 | count");
    let path = machine.path("page.sock");
    let page = machine.start_page(&format!("unix:{}", path.display()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |host: &str| {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(DATA_TIMEOUT)).unwrap();
        write_request(&mut socket, &format!("/api/plan?path={number}"), &[("Host", host)]);
        read_reply(&mut socket)
    };
    assert_eq!(ask("localhost").0, 200);
    assert_eq!(ask("evil.example").0, 421);
    let second = Command::new(env!("CARGO_BIN_EXE_streamline-page"));
    let mut second = second;
    let output = second.arg("--listen").arg(format!("unix:{}", path.display())).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is in use"), "{output:?}");
    let (Some(()), Some(curl)) = (need::require_root(), need::require_command("curl")) else {
        return;
    };
    // Even if the file is accessible, a connection of another user is closed without a reply.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut other = Command::new(curl);
    other.arg("--silent").arg("--unix-socket").arg(&path).arg("http://localhost/").uid(65_534);
    let output = other.output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    drop(page);
}

#[test]
fn socket_of_a_killed_page_is_replaced() {
    let machine = TestDaemon::new();
    let listen = format!("unix:{}", machine.path("page.sock").display());
    drop(machine.start_page(&listen));
    assert!(machine.path("page.sock").exists());
    let page = machine.start_page(&listen);
    assert_eq!(page.url, listen);
}
