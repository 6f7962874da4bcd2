//! Rows `from memory`: requests enter the server's ring without an interface, by [`RingFeeder`].
//! [SL §9.2.1] Goal G18
//!
//! The reference is the same server with its socket, over veth. *ring* also sends its answers
//! through the socket, over veth. *ring, answers kept* writes its answers to memory instead. *free
//! calls* has neither a socket nor a ring: requests and answers are copied in a preloaded library,
//! so its costs are those of the program itself, which no socket can reduce.

use super::memory_socket::{MemorySocket, RingFeeder};
use super::servers::{RunningServer, SERVER_PORT, UdpLaunch, UdpServer};
use super::{LOW_RATE, LOW_RATE_REQUESTS, UdpSample, WARM_UP_REQUESTS};
use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, median, rows_of_samples};
use crate::options::Options;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use sys::clock;
use testkit::Frame;
use testkit::net::{CLIENT, NamespacePair, SERVER};

/// Maximum number of requests without an answer while answers are sent over an interface. While
/// answers are stored in memory, the maximum is [`OUTSTANDING_STORED_REQUESTS_MAX`].
const OUTSTANDING_REQUESTS_MAX: usize = 128;
const OUTSTANDING_STORED_REQUESTS_MAX: usize = 1024;
/// Number of equal requests that the feeder writes at once at full rate.
const FULL_RATE_GROUP_SIZE: usize = 32;
/// Time in ns without an answer after which outstanding requests count as lost.
const LOSS_TIMEOUT_NS: u64 = 500_000_000;
/// Maximum share of requests that may be lost in a sample, from 0 to 1.
const LOSS_SHARE_MAX: f64 = 0.01;
/// Maximum number of warm-ups after which the server's socket must have its ring.
const WARM_UPS_MAX: usize = 50;

/// A candidate: the launch of a server, the origin of its requests, and the destination of its
/// answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UdpSetup {
    pub(super) name: &'static str,
    pub(super) launch: UdpLaunch,
    /// True if requests enter the ring from memory.
    pub(super) is_fed: bool,
    pub(super) answers: AnswerDestination,
}

/// The destination of a server's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerDestination {
    /// The client. The server sends the answers through its socket and the interface.
    Sent,
    /// A file in memory. A library that is preloaded into the server stores the answers there.
    InMemory,
    /// A file in memory, as for [`Self::InMemory`]. In addition, the server's receive calls take
    /// the requests from this file.
    FreeCalls,
}

pub(super) const SOCKET_SETUP: UdpSetup = UdpSetup {
    name: "socket",
    launch: UdpLaunch::Stock,
    is_fed: false,
    answers: AnswerDestination::Sent,
};
const RING_SETUP: UdpSetup = UdpSetup {
    name: "ring",
    launch: UdpLaunch::Exec("report,always"),
    is_fed: true,
    answers: AnswerDestination::Sent,
};
const RING_STORED_SETUP: UdpSetup =
    UdpSetup { name: "ring, answers kept", answers: AnswerDestination::InMemory, ..RING_SETUP };
const FREE_CALLS_SETUP: UdpSetup = UdpSetup {
    name: "free calls",
    launch: UdpLaunch::Stock,
    is_fed: false,
    answers: AnswerDestination::FreeCalls,
};
const DELAYED_LAUNCH: UdpLaunch = UdpLaunch::Exec("report,always,delay=1000");
/// The setup [`RING_STORED_SETUP`], in which requests also wait in the ring for up to 1 ms. Without
/// this delay, a server that is faster than the feeder would go to sleep at each request, and the
/// requests would arrive over the interface.
const RING_STORED_DELAYED_SETUP: UdpSetup = UdpSetup {
    name: "ring, answers kept, delay 1 ms",
    launch: DELAYED_LAUNCH,
    ..RING_STORED_SETUP
};

/// The rate of requests, the size of their groups, and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLoad {
    /// Requests per second, or `None` for the full rate.
    pub(super) rate: Option<f64>,
    /// Number of requests that arrive at once.
    pub(super) group: usize,
    pub(super) count: usize,
}

/// Measures the rows `from memory` of a server.
pub(super) fn measure_rows(
    options: &Options,
    pair: &NamespacePair,
    folder: &TempDirectory,
    server: &UdpServer,
) -> Result<Vec<Row>, String> {
    let full = RequestLoad { rate: None, group: FULL_RATE_GROUP_SIZE, count: server.requests };
    let low = RequestLoad { rate: Some(LOW_RATE), group: 1, count: LOW_RATE_REQUESTS };
    let delayed = |setup: UdpSetup| UdpSetup { launch: DELAYED_LAUNCH, ..setup };
    let settings = [
        (
            "full rate",
            full,
            vec![
                SOCKET_SETUP,
                RING_SETUP,
                RING_STORED_SETUP,
                RING_STORED_DELAYED_SETUP,
                FREE_CALLS_SETUP,
            ],
        ),
        (
            "5,000/s, delay 1 ms",
            low,
            vec![SOCKET_SETUP, delayed(RING_SETUP), delayed(RING_STORED_SETUP)],
        ),
    ];
    let mut all = Vec::new();
    for (setting, load, setups) in settings {
        let row = format!("{} from memory, {setting}", server.name);
        if !is_row_selected(&row) {
            continue;
        }
        let mut samples: Vec<Vec<UdpSample>> = setups.iter().map(|_| Vec::new()).collect();
        let mut sentinels = Vec::new();
        for round in 0..=options.rounds {
            sentinels.push(CacheRoundTrip::measure());
            for (setup, samples) in setups.iter().zip(&mut samples) {
                let sample = measure(pair, folder, server, *setup, load)?;
                // The first round is a warm-up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        let names: Vec<_> = setups.iter().map(|setup| setup.name).collect();
        all.extend(result_rows((&row, server.name), load, (&names, &samples), median(&sentinels)));
    }
    Ok(all)
}

/// Measures one sample of a server in the setup `setup`, under the load `load`.
pub(super) fn measure(
    pair: &NamespacePair,
    folder: &TempDirectory,
    server: &UdpServer,
    setup: UdpSetup,
    load: RequestLoad,
) -> Result<UdpSample, String> {
    let requests: Vec<Vec<u8>> = (0..1000).map(server.request).collect();
    let memory = match setup.answers {
        AnswerDestination::Sent => None,
        _ => Some(MemorySocket::create(&folder.0, &requests)?),
    };
    let environment = memory.as_ref().map_or_else(Vec::new, MemorySocket::environment);
    let running =
        RunningServer::start(&pair.server, &folder.0, setup.launch, server, &environment)?;
    let mut exchange = MemoryClient::begin(pair, &requests, memory.as_ref())?;
    let warm_up = RequestLoad { rate: None, group: FULL_RATE_GROUP_SIZE, count: WARM_UP_REQUESTS };
    exchange.run(&mut None, warm_up)?;
    let mut feeder = None;
    if setup.is_fed {
        for _ in 0..WARM_UPS_MAX {
            feeder = RingFeeder::open(&pair.server)?;
            if feeder.is_some() {
                break;
            }
            exchange.run(&mut None, warm_up)?;
        }
        if feeder.is_none() {
            return Err(format!("{} has no ring: {}", server.name, running.output()));
        }
        exchange.run(&mut feeder, warm_up)?;
    }
    let before = running.processor_ns();
    let done = match setup.answers {
        AnswerDestination::FreeCalls => exchange.exchange_through_memory_file(load.count)?,
        _ => exchange.run(&mut feeder, load)?,
    };
    let used = running.processor_ns().saturating_sub(before) as f64;
    running.stop()?;
    let answered = done.answered.max(1) as f64;
    Ok(UdpSample {
        rate: answered * 1e9 / done.elapsed_ns.max(1) as f64,
        server_ns: used / answered,
        total_ns: f64::NAN,
        latency_us: done.latency_ns / 1e3,
        ring_percent: done.fed as f64 * 100.0 / answered,
    })
}

/// The result of an exchange with a server: the numbers of requests, and the times.
struct ExchangeResult {
    answered: u64,
    /// Number of requests that entered the ring from memory.
    fed: u64,
    elapsed_ns: u64,
    latency_ns: f64,
}

/// A client that sends requests to a server, and spins until they are answered.
struct MemoryClient<'e> {
    socket: UdpSocket,
    requests: &'e [Vec<u8>],
    frames: Vec<Vec<u8>>,
    memory: Option<&'e MemorySocket>,
}

impl<'e> MemoryClient<'e> {
    fn begin(
        pair: &NamespacePair,
        requests: &'e [Vec<u8>],
        memory: Option<&'e MemorySocket>,
    ) -> Result<Self, String> {
        // On a machine with one processor, the client shares it with the server.
        let _ = sys::process::pin_to_processor(0);
        let opened = pair.client.run_in_network_namespace(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((SERVER, SERVER_PORT))?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((socket.local_addr()?, socket))
        });
        let (own, socket): (SocketAddr, _) = opened.map_err(|why| why.to_string())?;
        let frame = |payload: &Vec<u8>| {
            Frame::ethernet().ipv4(CLIENT, SERVER).udp(own.port(), SERVER_PORT, payload)
        };
        let frames = requests.iter().map(frame).collect();
        Ok(Self { socket, requests, frames, memory })
    }

    /// Sends requests in groups, at most at the rate of `load`. A group goes to the ring if there
    /// is a feeder and the ring is awake, and otherwise over the interface. The requests of a group
    /// are due at regular times; the group is sent when the last one is due.
    fn run(
        &mut self,
        feeder: &mut Option<RingFeeder>,
        load: RequestLoad,
    ) -> Result<ExchangeResult, String> {
        // Another thread of this process may have run the exchange before.
        let _ = sys::process::pin_to_processor(0);
        let begin = clock::monotonic_ns();
        let interval_ns = load.rate.map_or(0.0, |rate| 1e9 / rate);
        let most = match self.memory.is_some() && feeder.is_some() {
            true => OUTSTANDING_STORED_REQUESTS_MAX,
            false => OUTSTANDING_REQUESTS_MAX.max(2 * load.group),
        };
        let answered_before = self.memory.map_or(0, MemorySocket::answer_count);
        let (mut sent, mut answered, mut lost, mut fed, mut groups) = (0, 0, 0, 0, 0);
        let mut last_answer = begin;
        let mut due_times = VecDeque::with_capacity(most);
        let mut latencies = Vec::with_capacity(load.count);
        let mut room = [0; 4096];
        while answered + lost < load.count {
            let now = clock::monotonic_ns();
            let group = load.group.min(load.count - sent);
            let due = |number: usize| begin + (number as f64 * interval_ns) as u64;
            if group > 0 && sent - answered - lost + group <= most && due(sent + group - 1) <= now {
                let place = groups % self.requests.len();
                groups += 1;
                let entered = match (feeder.as_mut(), self.frames.get(place)) {
                    (Some(feeder), Some(frame)) => feeder.feed(frame, group)?,
                    _ => 0,
                };
                fed += entered;
                // More requests would not fit into the buffer of the server's socket.
                let outstanding = sent + entered - answered - lost;
                let room = OUTSTANDING_REQUESTS_MAX.max(2 * load.group).saturating_sub(outstanding);
                let over = room.min(group - entered);
                self.send_over_interface(place, over)?;
                let group = entered + over;
                let time = |number| if load.rate.is_some() { due(number) } else { now };
                due_times.extend((sent..sent + group).map(time));
                sent += group;
            }
            let before = answered;
            match self.memory {
                Some(memory) => answered = (memory.answer_count() - answered_before) as usize,
                None => answered += usize::from(self.socket.recv(&mut room).is_ok()),
            }
            // An answer may arrive after its request was counted as lost.
            lost = lost.min(sent - answered);
            let now = clock::monotonic_ns();
            if answered > before {
                last_answer = now;
                let answers = due_times.drain(..due_times.len().min(answered - before));
                latencies.extend(answers.map(|due| now.saturating_sub(due) as f64));
            } else if now - last_answer > LOSS_TIMEOUT_NS && sent > answered + lost {
                lost = sent - answered;
                due_times.clear();
                last_answer = now;
            }
        }
        if lost as f64 > load.count as f64 * LOSS_SHARE_MAX {
            let fed = if feeder.is_some() { " from memory" } else { "" };
            return Err(format!("{lost} of {} requests{fed} had no answer", load.count));
        }
        Ok(ExchangeResult {
            answered: answered as u64,
            fed: fed as u64,
            elapsed_ns: last_answer - begin,
            latency_ns: median(&latencies),
        })
    }

    /// Sends the request with index `place` `count` times over the interface.
    fn send_over_interface(&self, place: usize, count: usize) -> Result<(), String> {
        let request = self.requests.get(place).map_or(&[][..], Vec::as_slice);
        for _ in 0..count {
            self.socket.send(request).map_err(|why| format!("sending: {why}"))?;
        }
        Ok(())
    }

    /// Lets the server receive `count` requests from a file in shared memory instead of a socket,
    /// so that its receive calls only copy. Waits for the answers.
    fn exchange_through_memory_file(&mut self, count: usize) -> Result<ExchangeResult, String> {
        let memory = self.memory.ok_or("answers are not kept")?;
        let (begin, before) = (clock::monotonic_ns(), memory.answer_count());
        memory.set_requests_left(count as u64);
        // Wakes the server.
        let request = self.requests.first().map_or(&[][..], Vec::as_slice);
        self.socket.send(request).map_err(|why| format!("sending: {why}"))?;
        loop {
            let (now, answered) = (clock::monotonic_ns(), memory.answer_count() - before);
            if answered >= count as u64 {
                return Ok(ExchangeResult {
                    answered,
                    fed: 0,
                    elapsed_ns: now - begin,
                    latency_ns: f64::NAN,
                });
            }
            if now - begin > 60_000_000_000 {
                return Err(format!("{answered} of {count} requests had an answer"));
            }
            std::hint::spin_loop();
        }
    }
}

fn result_rows(
    (row, server): (&str, &str),
    load: RequestLoad,
    (names, taken): (&[&'static str], &[Vec<UdpSample>]),
    sentinel_ns: f64,
) -> Vec<Row> {
    let is_full_rate = load.rate.is_none();
    let rows = |(unit, better), value: fn(&UdpSample) -> f64, goals: &[Goal]| {
        let samples: Vec<Samples> = names
            .iter()
            .zip(taken)
            .map(|(name, taken)| Samples { name, values: taken.iter().map(value).collect() })
            .collect();
        rows_of_samples(("udp", row, f64::NAN), (unit, better), sentinel_ns, &samples, goals)
    };
    let candidate =
        if is_full_rate { RING_STORED_DELAYED_SETUP.name } else { RING_STORED_SETUP.name };
    let goal = |target| Goal { candidate, reference: SOCKET_SETUP.name, goal: "G18", target };
    let (time_goal, rate_goal) = match (server, is_full_rate) {
        ("named", true) => (Some(2.5), Some(2.3)),
        ("named", false) => (Some(2.9), None),
        ("knotd", true) => (Some(8.0), None),
        ("echo of 64 B", true) => (Some(50.0), None),
        _ => (None, None),
    };
    let goals = |target: Option<f64>| -> Vec<Goal> { target.map(goal).into_iter().collect() };
    let mut all = Vec::new();
    if is_full_rate {
        let unit = ("kqueries/s", BetterDirection::More);
        all.extend(rows(unit, |sample| sample.rate / 1e3, &goals(rate_goal)));
    }
    let unit = ("ns server/query", BetterDirection::Less);
    all.extend(rows(unit, |sample| sample.server_ns, &goals(time_goal)));
    if !is_full_rate {
        all.extend(rows(("µs latency", BetterDirection::Less), |sample| sample.latency_us, &[]));
    }
    all.extend(rows(("% from the ring", BetterDirection::More), |sample| sample.ring_percent, &[]));
    all
}
