//! A client that sends requests by UDP and spins until they are answered.

use super::servers::SERVER_PORT;
use crate::harness::median;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use sys::clock;
use testkit::net::{NamespacePair, SERVER};

/// Maximum number of requests that wait for their answers at the same time.
const OUTSTANDING_REQUESTS_MAX: usize = 64;
/// Time without an answer after which outstanding requests count as lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum share of requests that may be lost in a sample, from 0 to 1.
const LOSS_SHARE_MAX: f64 = 0.01;

/// The result of an exchange with a server: the number of answered requests, and the times.
#[derive(Clone, Copy, Debug)]
pub(super) struct UdpExchangeResult {
    pub(super) answered: u64,
    /// Time from the first request to the last answer, in ns.
    pub(super) elapsed_ns: u64,
    /// Processor time of the calls that send requests, in ns. The kernel passes a request to the
    /// server's socket or ring in these calls.
    pub(super) sending_ns: u64,
    /// Median time from a request to its answer, in ns.
    pub(super) latency_ns: f64,
}

/// Sends requests, at most `rate` per second, and waits for the answers. Fails if more than the
/// share [`LOSS_SHARE_MAX`] of them are lost.
pub(super) fn connect_and_exchange(
    pair: &NamespacePair,
    (request, count): (fn(u16) -> Vec<u8>, usize),
    rate: Option<f64>,
) -> Result<UdpExchangeResult, String> {
    pair.client.run_in_network_namespace(|| {
        // On a machine with one processor, the client shares it with the server.
        let _ = sys::process::pin_to_processor(0);
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(|why| why.to_string())?;
        let host = SERVER.parse().map_err(|why| format!("{why}"))?;
        socket.connect(SocketAddr::new(host, SERVER_PORT)).map_err(|why| why.to_string())?;
        socket.set_nonblocking(true).map_err(|why| why.to_string())?;
        let requests: Vec<Vec<u8>> = (0..1000).map(request).collect();
        exchange_requests(&socket, &requests, count, rate)
    })
}

fn exchange_requests(
    socket: &UdpSocket,
    requests: &[Vec<u8>],
    count: usize,
    rate: Option<f64>,
) -> Result<UdpExchangeResult, String> {
    let begin = clock::monotonic_ns();
    let interval_ns = rate.map_or(0.0, |rate| 1e9 / rate);
    let (mut sent, mut answered, mut lost, mut sending_ns) = (0, 0, 0, 0);
    let mut last_answer = begin;
    // Servers with one thread answer in the order of the requests.
    let mut sent_at = VecDeque::with_capacity(OUTSTANDING_REQUESTS_MAX);
    let mut latencies = Vec::with_capacity(count);
    let mut room = [0; 4096];
    while answered + lost < count {
        let now = clock::monotonic_ns();
        let is_due = (sent as f64 * interval_ns) as u64 <= now - begin;
        if sent < count && sent - answered - lost < OUTSTANDING_REQUESTS_MAX && is_due {
            let request = requests.get(sent % requests.len()).map_or(&[][..], Vec::as_slice);
            let before = clock::thread_cpu_ns();
            socket.send(request).map_err(|why| format!("sending: {why}"))?;
            sending_ns += clock::thread_cpu_ns() - before;
            sent_at.push_back(now);
            sent += 1;
        }
        if socket.recv(&mut room).is_ok() {
            answered += 1;
            last_answer = clock::monotonic_ns();
            latencies.extend(sent_at.pop_front().map(|sent| (last_answer - sent) as f64));
        } else if clock::monotonic_ns() - last_answer > LOSS_TIMEOUT.as_nanos() as u64 {
            lost = sent - answered;
            sent_at.clear();
            last_answer = clock::monotonic_ns();
        }
    }
    let elapsed_ns = last_answer - begin;
    match lost as f64 <= count as f64 * LOSS_SHARE_MAX {
        true => {
            let latency_ns = median(&latencies);
            Ok(UdpExchangeResult { answered: answered as u64, elapsed_ns, sending_ns, latency_ns })
        }
        false => Err(format!("{lost} of {count} requests had no answer")),
    }
}
