//! `bench udp`: stock UDP servers that receive from their socket, compared with the same servers
//! under `streamline exec --with=udp`, which receive from a ring. [SL §9.2, figs. 13, 14] Goal G18
//!
//! A client in another network namespace sends requests over a veth pair and spins until they are
//! answered, with up to 64 outstanding requests at full rate, or at 5,000 per second, where each
//! request wakes the server. The servers have one thread and run on the second processor. They
//! always send through their socket.
//!
//! The results are:
//!
//! - the answers per second or, at the low rate, the median time to the answer;
//! - the processor time per answer of the server and of the daemon, if there is one;
//! - the same time plus the time of the calls in which the client sends, because the kernel passes
//!   a request to the socket or to the ring in these calls;
//! - the percentage of requests that came from the ring.
//!
//! The bench fails if more than 1 % of the requests had no answer.
//!
//! The rows `from memory` have no interface: see [`ring_feed`].

pub(crate) mod batching;
mod client;
mod memory_socket;
mod ring_feed;
mod servers;
mod video;

use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, rows_of_samples};
use crate::options::Options;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use servers::{RunningServer, UdpLaunch, UdpServer, installed_servers};
use testkit::net::{DevicePairSettings, NamespacePair};

/// Number of warm-up requests before each sample. After them, the server's socket has its ring.
const WARM_UP_REQUESTS: usize = 2_000;
/// The low rate, in requests per second. At this rate, the server sleeps between requests, and each
/// request wakes it.
const LOW_RATE: f64 = 5_000.0;
/// Number of requests per sample at [`LOW_RATE`].
const LOW_RATE_REQUESTS: usize = 5_000;

const SOCKET_NAME: &str = "socket";
const RING_NAME: &str = "ring";
const CANDIDATES: [(&str, UdpLaunch); 2] =
    [(SOCKET_NAME, UdpLaunch::Stock), (RING_NAME, UdpLaunch::Exec("report"))];

/// The rate, the costs and the latency of a server in one sample.
#[derive(Clone, Copy, Debug)]
struct UdpSample {
    /// Answers of the server per second.
    rate: f64,
    /// Processor time of the server per answer, in ns.
    server_ns: f64,
    /// Processor time per answer, in ns, of the server and of sending the requests.
    total_ns: f64,
    /// Median time from a request to its answer, in µs.
    latency_us: f64,
    /// Percentage of datagrams that came from the ring, among the datagrams received since the
    /// socket got a ring.
    ring_percent: f64,
}

/// Runs `bench udp`: measures all servers that are installed, at full rate and at the low rate.
pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let pair = NamespacePair::new(DevicePairSettings::default())
        .ok_or("needs root and `ip`: it makes two namespaces")?;
    let folder = TempDirectory::new("udp").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for server in installed_servers() {
        for (setting, rate) in [("full rate", None), ("5,000/s", Some(LOW_RATE))] {
            let row = format!("{}, {setting}", server.name);
            if !is_row_selected(&row) {
                continue;
            }
            let mut samples = CANDIDATES.map(|_| Vec::new());
            let mut sentinels = Vec::new();
            for round in 0..=options.rounds {
                sentinels.push(CacheRoundTrip::measure());
                for ((_, launch), samples) in CANDIDATES.iter().zip(&mut samples) {
                    let sample = measure(&pair, &folder, &server, *launch, rate)?;
                    // The first round is a warm-up.
                    if round > 0 {
                        samples.push(sample);
                    }
                }
            }
            let sentinel_ns = crate::harness::median(&sentinels);
            all.extend(result_rows(&row, rate.is_none(), &samples, sentinel_ns));
        }
        all.extend(ring_feed::measure_rows(options, &pair, &folder, &server)?);
    }
    all.extend(video::measure_rows(options, &pair, &folder)?);
    Ok(all)
}

/// Starts a server, and measures its rate, its costs and its latency in one sample.
fn measure(
    pair: &NamespacePair,
    folder: &TempDirectory,
    server: &UdpServer,
    launch: UdpLaunch,
    rate: Option<f64>,
) -> Result<UdpSample, String> {
    let running = RunningServer::start(&pair.server, &folder.0, launch, server, &[])?;
    client::connect_and_exchange(pair, (server.request, WARM_UP_REQUESTS), rate)?;
    let count = if rate.is_none() { server.requests } else { LOW_RATE_REQUESTS };
    let before = running.processor_ns();
    let done = client::connect_and_exchange(pair, (server.request, count), rate)?;
    let used = running.processor_ns().saturating_sub(before);
    let ring_share = running.stop()?;
    let answered = done.answered.max(1) as f64;
    Ok(UdpSample {
        rate: answered * 1e9 / done.elapsed_ns.max(1) as f64,
        server_ns: used as f64 / answered,
        total_ns: (used + done.sending_ns) as f64 / answered,
        latency_us: done.latency_ns / 1e3,
        ring_percent: ring_share * 100.0,
    })
}

/// Returns the rows of a server: answers per second at full rate, and the costs.
fn result_rows(
    row: &str,
    is_full_rate: bool,
    taken: &[Vec<UdpSample>; 2],
    sentinel_ns: f64,
) -> Vec<Row> {
    let rows = |(unit, better), value: fn(&UdpSample) -> f64, goals: &[Goal]| {
        let samples: Vec<Samples> = CANDIDATES
            .iter()
            .zip(taken)
            .map(|((name, _), taken)| Samples { name, values: taken.iter().map(value).collect() })
            .collect();
        rows_of_samples(("udp", row, f64::NAN), (unit, better), sentinel_ns, &samples, goals)
    };
    // The goal covers the whole exchange, in which the kernel still transmits the answers.
    let goal = Goal { candidate: RING_NAME, reference: SOCKET_NAME, goal: "G18", target: 1.1 };
    let goals = if row.starts_with("named") { &[goal][..] } else { &[] };
    let mut all = Vec::new();
    if is_full_rate {
        all.extend(rows(("kqueries/s", BetterDirection::More), |sample| sample.rate / 1e3, &[]));
    }
    all.extend(rows(("ns server/query", BetterDirection::Less), |sample| sample.server_ns, &[]));
    all.extend(rows(("ns CPU/query", BetterDirection::Less), |sample| sample.total_ns, goals));
    if !is_full_rate {
        all.extend(rows(("µs latency", BetterDirection::Less), |sample| sample.latency_us, &[]));
    }
    let values = taken[1].iter().map(|sample| sample.ring_percent).collect();
    let shares = [Samples { name: RING_NAME, values }];
    let unit = ("% from the ring", BetterDirection::More);
    all.extend(rows_of_samples(("udp", row, f64::NAN), unit, sentinel_ns, &shares, &[]));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_server_goal_compares_processor_time_per_query() {
        let sample = |total_ns| UdpSample {
            rate: 1e5,
            server_ns: 1000.0,
            total_ns,
            latency_us: 50.0,
            ring_percent: 99.0,
        };
        let taken = [vec![sample(6000.0); 3], vec![sample(4000.0); 3]];
        let goals = |row| -> Vec<_> {
            let rows = result_rows(row, true, &taken, 0.0);
            rows.into_iter().filter(|row| row.goal.is_some()).map(|row| row.ratio).collect()
        };
        assert_eq!(goals("named, full rate"), [1.5]);
        assert!(goals("knotd, full rate").is_empty());
    }
}
