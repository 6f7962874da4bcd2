//! `bench batching`: processor time and latency of UDP servers at 10,000 requests per second, as
//! functions of the number of requests that arrive at once (T_b) and of the time for which requests
//! may wait in the ring (T_t). [SL §9.2.1, §9.2.2, figs. 13, 14]
//!
//! The network card's part of moderation is simulated: the requests are due at regular times, and a
//! group is sent when its last request is due, so the latency of a request includes the wait for
//! the rest of its group. Sockets have no delay, so the socket's curve over the delays is constant
//! and serves only for comparison.

use super::ring_feed::{AnswerDestination, RequestLoad, SOCKET_SETUP, UdpSetup, measure};
use super::servers::{UdpLaunch, installed_servers};
use crate::harness::{BetterDirection, Samples, is_row_selected, median, rows_of_samples};
use crate::options::Options;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use testkit::net::{DevicePairSettings, NamespacePair};

/// Requests per second, as in figure 13 of SL.
const REQUESTS_PER_SECOND: f64 = 10_000.0;
/// Number of requests that the client sends in one sample.
const REQUEST_COUNT: usize = 10_000;
/// Numbers of requests that arrive at once (T_b).
const GROUP_SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Times in µs for which datagrams wait in the ring (T_t), each with the value of `STREAMLINE_UDP`
/// that sets the delay. The value for 0 µs sets no delay.
const DELAYS_US: [(f64, &str); 7] = [
    (0.0, "report,always"),
    (100.0, "report,always,delay=100"),
    (200.0, "report,always,delay=200"),
    (500.0, "report,always,delay=500"),
    (1000.0, "report,always,delay=1000"),
    (2000.0, "report,always,delay=2000"),
    (5000.0, "report,always,delay=5000"),
];

const fn ring_setup(name: &'static str, words: &'static str, is_fed: bool) -> UdpSetup {
    UdpSetup { name, launch: UdpLaunch::Exec(words), is_fed, answers: AnswerDestination::Sent }
}

/// Runs `bench batching`: measures all servers that are installed, in each group size and delay.
pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let pair = NamespacePair::new(DevicePairSettings::default())
        .ok_or("needs root and `ip`: it makes two namespaces")?;
    let folder = TempDirectory::new("batching").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for server in installed_servers() {
        let load =
            |group| RequestLoad { rate: Some(REQUESTS_PER_SECOND), group, count: REQUEST_COUNT };
        let groups = GROUP_SIZES.map(|group| (group as f64, load(group), DELAYS_US[4].1));
        let delays = DELAYS_US.map(|(delay, words)| (delay, load(1), words));
        for (variable, points) in [("group", groups), ("delay in µs", delays)] {
            let row = format!("{}, {variable}", server.name);
            if !is_row_selected(&row) {
                continue;
            }
            for (x, load, words) in points {
                let setups = [
                    SOCKET_SETUP,
                    ring_setup("ring", words, false),
                    ring_setup("ring from memory", words, true),
                ];
                let mut samples = setups.map(|_| Vec::new());
                let mut sentinels = Vec::new();
                for _ in 0..options.rounds {
                    sentinels.push(CacheRoundTrip::measure());
                    for (setup, samples) in setups.iter().zip(&mut samples) {
                        samples.push(measure(&pair, &folder, &server, *setup, load)?);
                    }
                }
                let rows = |unit, value: fn(&super::UdpSample) -> f64| {
                    let all = setups.iter().zip(&samples);
                    let all: Vec<Samples> = all
                        .map(|(setup, taken)| Samples {
                            name: setup.name,
                            values: taken.iter().map(value).collect(),
                        })
                        .collect();
                    let subject = ("batching", row.as_str(), x);
                    rows_of_samples(
                        subject,
                        (unit, BetterDirection::Less),
                        median(&sentinels),
                        &all,
                        &[],
                    )
                };
                all.extend(rows("ns server/query", |sample| sample.server_ns));
                all.extend(rows("µs latency", |sample| sample.latency_us));
            }
        }
    }
    Ok(all)
}
