//! A client of a web server: so many requests, each with a path of its own, half of them on
//! persistent connections and half on a connection each.
//!
//! A server that logs whole seconds reads the clock when it wakes up, and an observer when a packet
//! passes: at a change of second they differ, and nobody else can know. So nothing is under way at
//! one. What was under way all the same, because the machine was busy, is told.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::Random;
use testkit::net::{LIMIT, Namespace, SERVER, SERVER6, until};

/// Connections open at one time.
const CONNECTIONS: usize = 8;
/// The most requests begun per second: an observer built without optimization has to keep up.
const RATE: u32 = 4_000;
/// The part of a second in which requests begin, in ms.
const QUIET: Range<u32> = 30..950;

/// A request and its response.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The paths whose exchange was under way when the second changed.
    pub(crate) at_a_change: Vec<String>,
}

/// Asks for `count` things.
pub(crate) fn ask(space: &Namespace, count: usize) -> Asked {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let asked = Mutex::new(Asked::default());
    let work = &|seed| {
        let mut client = Client { random: Random::new(seed), asked: Asked::default(), begin };
        loop {
            // A persistent connection, and then as many that carry one request each.
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
    asked: Asked,
    begin: Instant,
}

impl Client {
    /// The first half of these on one connection, the other half on a connection each.
    fn ask(&mut self, numbers: Range<usize>) {
        let middle = numbers.start + numbers.len() / 2;
        let server = *self.random.pick(&[SERVER, SERVER6]);
        let mut persistent = None;
        for number in numbers {
            let close = number >= middle;
            let request = Request::new(&mut self.random, number, close);
            let begin = self.turn(number);
            let mut connection = match persistent.take() {
                Some(connection) if !close => connection,
                _ => connect(server),
            };
            request.exchange(&mut connection);
            if !close {
                persistent = Some(connection);
            }
            if clock().as_secs() != begin.as_secs() {
                self.asked.at_a_change.push(request.path);
            }
        }
    }

    /// Waits until it is this request's turn and the clock is not near a change of second; answers
    /// what the clock says.
    fn turn(&self, number: usize) -> Duration {
        let due = Duration::from_secs(number as u64) / RATE;
        let mut now = clock();
        until("the turn has come", || {
            now = clock();
            self.begin.elapsed() >= due && QUIET.contains(&now.subsec_millis())
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

fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// A request.
struct Request {
    path: String,
    bytes: Vec<u8>,
    method: &'static str,
    close: bool,
}

/// User agents that a log must escape, among others.
const AGENTS: &[&[u8]] = &[
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
            bytes.extend(*random.pick(AGENTS));
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

    /// Sends it, and reads the response to its end.
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

    /// Returns the length of the response with this beginning, once its head is complete.
    fn length(&self, told: &[u8]) -> Option<usize> {
        let head = told.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&told[..head]);
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let body = if self.method == "HEAD" { None } else { length };
        Some(head + body.map_or(0, |length| length.parse::<usize>().expect("a number")))
    }
}
