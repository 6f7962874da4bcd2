//! A client of a web server: many requests, each for its own path, half of them on one persistent
//! connection and half on a connection each.
//!
//! nginx logs the time of its last wake-up in whole seconds; an observer logs the time at which a
//! packet passes. Around a change of second the two may differ, so no exchange is started near one,
//! and exchanges that cross one on a busy machine are reported.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::Random;
use testkit::net::{LIMIT, Namespace, SERVER, SERVER6, until};

/// Number of concurrent connections.
const CONNECTIONS: usize = 8;
/// Maximum requests per second, low enough for an unoptimized observer.
const REQUESTS_PER_SECOND_MAX: u32 = 4_000;
/// The range within each second in which requests start, in ms.
const START_WINDOW_MS: Range<u32> = 30..950;

/// The paths that the client requested.
#[derive(Debug, Default)]
pub(crate) struct SentRequests {
    /// Paths of the exchanges that crossed a change of second.
    pub(crate) at_a_change: Vec<String>,
}

/// Sends `count` requests, distributed over the connections.
pub(crate) fn ask(space: &Namespace, count: usize) -> SentRequests {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let asked = Mutex::new(SentRequests::default());
    let work = &|seed| {
        let mut client =
            Client { random: Random::new(seed), asked: SentRequests::default(), begin };
        loop {
            // A persistent connection, and then as many requests on their own connections.
            let many = 2 * (1 + client.random.within(0..20));
            let first = next.fetch_add(many, Ordering::Relaxed);
            let numbers = first..(first + many).min(count);
            if numbers.is_empty() {
                break;
            }
            client.ask(numbers);
        }
        asked.lock().expect("no thread panics").at_a_change.extend(client.asked.at_a_change);
    };
    space.enter(|| {
        std::thread::scope(|scope| {
            for seed in 0..CONNECTIONS as u64 {
                scope.spawn(move || work(seed));
            }
        });
    });
    asked.into_inner().expect("no thread panics")
}

struct Client {
    random: Random,
    asked: SentRequests,
    begin: Instant,
}

impl Client {
    /// Sends the first half of the requests on one connection, the others on a connection each.
    fn ask(&mut self, numbers: Range<usize>) {
        let middle = numbers.start + numbers.len() / 2;
        let server = *self.random.pick(&[SERVER, SERVER6]);
        let mut persistent = None;
        for number in numbers {
            let close = number >= middle;
            let request = Request::new(&mut self.random, number, close);
            let begin = self.wait_for_turn(number);
            let mut connection = match persistent.take() {
                Some(connection) if !close => connection,
                _ => connect(server),
            };
            request.exchange(&mut connection);
            if !close {
                persistent = Some(connection);
            }
            if wall_clock().as_secs() != begin.as_secs() {
                self.asked.at_a_change.push(request.path);
            }
        }
    }

    /// Waits until the request is due and the clock is not near a change of second; returns the
    /// wall-clock time.
    fn wait_for_turn(&self, number: usize) -> Duration {
        let due = Duration::from_secs(number as u64) / REQUESTS_PER_SECOND_MAX;
        let mut now = wall_clock();
        until("the turn has come", || {
            now = wall_clock();
            self.begin.elapsed() >= due && START_WINDOW_MS.contains(&now.subsec_millis())
        });
        now
    }
}

fn connect(server: &str) -> TcpStream {
    let connection = TcpStream::connect((server, 80)).expect("the server listens");
    connection.set_read_timeout(Some(LIMIT)).expect("a time");
    connection.set_nodelay(true).expect("a flag");
    connection
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// An HTTP request.
struct Request {
    path: String,
    bytes: Vec<u8>,
    method: &'static str,
    close: bool,
}

/// User agents, some of which a log must escape.
const USER_AGENTS: &[&[u8]] = &[
    b"curl/8.5.0",
    b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    b"says \"hello\" and \\",
    b"\xe9t\xe9 \x7f",
];
const PLACES: &[&str] =
    &["text", "text", "text", "small", "small", "page", "large", "none", "moved", "gone"];

impl Request {
    fn new(random: &mut Random, number: usize, close: bool) -> Self {
        let place = random.pick(PLACES);
        let path = format!("/{place}/{number}?{:x}", random.next());
        let method = if random.one_in(10) { "HEAD" } else { "GET" };
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: server\r\n").into_bytes();
        if !random.one_in(5) {
            bytes.extend(b"User-Agent: ");
            bytes.extend(*random.pick(USER_AGENTS));
            bytes.extend(b"\r\n");
        }
        if random.one_in(2) {
            bytes.extend(format!("Referer: http://example.org/{}\r\n", random.below(1000)).bytes());
        }
        if close {
            bytes.extend(b"Connection: close\r\n");
        }
        bytes.extend(b"\r\n");
        Self { path, bytes, method, close }
    }

    /// Sends the request, and reads the whole response.
    fn exchange(&self, connection: &mut TcpStream) {
        connection.write_all(&self.bytes).expect("the server reads");
        let mut told = Vec::new();
        let mut part = [0; 16_384];
        let mut missing = usize::MAX;
        while missing > 0 || self.close {
            let length = connection.read(&mut part).expect("the server answers");
            if length == 0 {
                break;
            }
            told.extend_from_slice(&part[..length]);
            missing = self.length(&told).map_or(usize::MAX, |whole| whole - told.len());
        }
        assert_eq!(missing, 0, "{}: {}", self.path, String::from_utf8_lossy(&told));
    }

    /// Returns the length of the response that begins with `told`, or `None` until its head is
    /// complete.
    fn length(&self, told: &[u8]) -> Option<usize> {
        let head = told.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&told[..head]);
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let body = if self.method == "HEAD" { None } else { length };
        Some(head + body.map_or(0, |length| length.parse::<usize>().expect("a number")))
    }
}
