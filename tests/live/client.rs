//! A client of a web server that sends many requests, each for its own path. Half of the requests
//! use persistent connections, and half use a connection each.
//!
//! nginx logs the time of its last wake-up in seconds; an observer logs the time at which a packet
//! passes. Near a second boundary the two may differ, so no exchange is started there, and
//! exchanges that straddle a boundary on a busy machine are reported.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::Random;
use testkit::net::{Namespace, SERVER, SERVER6, WAIT_TIMEOUT, wait_until};

/// Number of connections over which the client sends requests at the same time.
const CONCURRENT_CONNECTIONS: usize = 8;
/// Maximum requests per second, low enough for an unoptimized observer.
const REQUESTS_PER_SECOND_MAX: u32 = 4_000;
/// The part of each second in which requests are started, in ms.
const START_WINDOW_MS: Range<u32> = 30..950;

/// The requests that a client has sent. It lists those whose timestamps may differ between the logs
/// of the server and of the observer.
#[derive(Debug, Default)]
pub(crate) struct SentRequests {
    /// Paths of the requests whose exchange straddles a second boundary.
    pub(crate) across_second_boundaries: Vec<String>,
}

/// Sends `count` requests over [`CONCURRENT_CONNECTIONS`] concurrent connections, and waits for all
/// responses.
pub(crate) fn send_requests(space: &Namespace, count: usize) -> SentRequests {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let sent = Mutex::new(SentRequests::default());
    let work = &|seed| {
        let mut client =
            HttpClient { random: Random::new(seed), sent: SentRequests::default(), begin };
        loop {
            // A persistent connection, and then as many requests on their own connections.
            let many = 2 * (1 + client.random.within(0..20));
            let first = next.fetch_add(many, Ordering::Relaxed);
            let numbers = first..(first + many).min(count);
            if numbers.is_empty() {
                break;
            }
            client.send_requests(numbers);
        }
        sent.lock()
            .expect("no thread panics")
            .across_second_boundaries
            .extend(client.sent.across_second_boundaries);
    };
    space.run_in_network_namespace(|| {
        std::thread::scope(|scope| {
            for seed in 0..CONCURRENT_CONNECTIONS as u64 {
                scope.spawn(move || work(seed));
            }
        });
    });
    sent.into_inner().expect("no thread panics")
}

struct HttpClient {
    random: Random,
    sent: SentRequests,
    begin: Instant,
}

impl HttpClient {
    /// Sends the first half of the requests over one connection, and each of the others over its
    /// own connection.
    fn send_requests(&mut self, numbers: Range<usize>) {
        let middle = numbers.start + numbers.len() / 2;
        let server = *self.random.pick(&[SERVER, SERVER6]);
        let mut persistent = None;
        for number in numbers {
            let close = number >= middle;
            let request = HttpRequest::new(&mut self.random, number, close);
            let begin = self.wait_until_request_is_due(number);
            let mut connection = match persistent.take() {
                Some(connection) if !close => connection,
                _ => connect_to_server(server),
            };
            request.send_and_read_response(&mut connection);
            if !close {
                persistent = Some(connection);
            }
            if wall_clock().as_secs() != begin.as_secs() {
                self.sent.across_second_boundaries.push(request.path);
            }
        }
    }

    /// Blocks until the request is due and the clock is not near a second boundary. Returns the
    /// wall-clock time.
    fn wait_until_request_is_due(&self, number: usize) -> Duration {
        let due = Duration::from_secs(number as u64) / REQUESTS_PER_SECOND_MAX;
        let mut now = wall_clock();
        wait_until("the request is due", || {
            now = wall_clock();
            self.begin.elapsed() >= due && START_WINDOW_MS.contains(&now.subsec_millis())
        });
        now
    }
}

fn connect_to_server(server: &str) -> TcpStream {
    let connection = TcpStream::connect((server, 80)).expect("the server listens");
    connection.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
    connection.set_nodelay(true).expect("a flag");
    connection
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// An HTTP request to the server, with the path that identifies it.
struct HttpRequest {
    path: String,
    bytes: Vec<u8>,
    method: &'static str,
    close: bool,
}

/// Values of the header `User-Agent`, some of which contain bytes that a log must escape.
const USER_AGENTS: &[&[u8]] = &[
    b"curl/8.5.0",
    b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    b"says \"hello\" and \\",
    b"\xe9t\xe9 \x7f",
];
const REQUEST_PATHS: &[&str] =
    &["text", "text", "text", "small", "small", "page", "large", "none", "moved", "gone"];

impl HttpRequest {
    fn new(random: &mut Random, number: usize, close: bool) -> Self {
        let directory = random.pick(REQUEST_PATHS);
        let path = format!("/{directory}/{number}?{:x}", random.next_u64());
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
    fn send_and_read_response(&self, connection: &mut TcpStream) {
        connection.write_all(&self.bytes).expect("the server reads");
        let mut response = Vec::new();
        let mut part = [0; 16_384];
        let mut missing = usize::MAX;
        while missing > 0 || self.close {
            let length = connection.read(&mut part).expect("the server answers");
            if length == 0 {
                break;
            }
            response.extend_from_slice(&part[..length]);
            missing =
                self.response_length(&response).map_or(usize::MAX, |whole| whole - response.len());
        }
        assert_eq!(missing, 0, "{}: {}", self.path, String::from_utf8_lossy(&response));
    }

    /// Returns the length of the response that begins with the bytes `response`, or `None` until
    /// its head is complete.
    fn response_length(&self, response: &[u8]) -> Option<usize> {
        let head = response.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&response[..head]);
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let body = if self.method == "HEAD" { None } else { length };
        Some(head + body.map_or(0, |length| length.parse::<usize>().expect("a number")))
    }
}
