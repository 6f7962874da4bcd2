//! `bench take`: the cost of observing, taking, redirecting and forwarding frames. [SL §5.5;
//! FEATURES G1, G6, G7]
//!
//! Frames are sent at full rate over a veth pair to a request that receives all of them in a
//! thread: from a packet socket, from a kernel ring (written by a tc program), from a kernel ring
//! whose program takes the flow from the host, or by AF_XDP, which redirects all of them. The
//! request counts the frames, or forwards them to a second veth pair: through a packet socket, or
//! in place by AF_XDP. All frames of a sample fit into each ring, so a slow reader loses none;
//! another row shows the losses.
//!
//! The cost is measured as in `capture`: in the kernel, by the additional time of sending compared
//! with an unobserved veth pair, and in the process. On a veth pair, AF_XDP copies, and the program
//! runs in the sender's context, so these rows do not predict the cost on a network card with
//! zero-copy. The module `rest` measures the effect of taking on other traffic.

mod other_traffic;

use crate::flood::{FloodPair, ReceivingHost};
use crate::harness::{BetterDirection, Goal, Samples, median, rows_of_samples};
use crate::options::Options;
use crate::processes::{has_ingress_program, interrupt_and_wait, wait_until_idle};
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use std::process::Stdio;
use testkit::net::{NamespacePair, SERVER_DEVICE, is_capturing, wait_until};

/// Frame lengths in bytes, each with its name in the result rows.
const FRAME_LENGTHS: [(usize, &str); 2] = [(64, "64 B"), (1500, "1500 B")];
/// Number of frames per sample. Together with the frames for warm-up, they fit into a ring of 128
/// MB. AF_XDP has room for 30,720 frames in a ring of this size.
const FRAMES_PER_SAMPLE: usize = 25_000;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 2_000;

/// The candidates, each with its row, its name and its request.
const CANDIDATE_REQUESTS: [(&str, &str, &str); 8] = [
    ("count", SOCKET_CANDIDATE, "rx@thread0 server0 ring=128M | count"),
    ("count", RING_CANDIDATE, "rx server0 ring=128M | count@thread0"),
    ("count", FLOW_CANDIDATE, "rx server0 take \"udp port 53\" ring=128M | count@thread0"),
    ("count", XDP_CANDIDATE, "rx server0 take ring=128M | count@thread0"),
    ("hand on", SOCKET_CANDIDATE, "rx@thread0 server0 ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", RING_CANDIDATE, "rx server0 ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", XDP_CANDIDATE, "rx server0 take ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", XDP_FORWARDED_CANDIDATE, "rx server0 take ring=128M | tx back0 qdisc=no by=xdp"),
];
const SOCKET_CANDIDATE: &str = "packet socket";
const RING_CANDIDATE: &str = "kernel ring";
const FLOW_CANDIDATE: &str = "taken flow";
const XDP_CANDIDATE: &str = "AF_XDP";
const XDP_FORWARDED_CANDIDATE: &str = "AF_XDP, moved";
/// Goal G16: a kernel ring costs no more than a packet socket or AF_XDP.
const GOALS: [Goal; 2] = [
    Goal { candidate: RING_CANDIDATE, reference: SOCKET_CANDIDATE, goal: "G16", target: 1.0 },
    Goal { candidate: RING_CANDIDATE, reference: XDP_CANDIDATE, goal: "G16", target: 1.0 },
];

/// The result of one sample: the costs per frame in ns, and the share of lost frames.
#[derive(Clone, Copy, Debug, Default)]
struct TakeSample {
    sending: f64,
    alone: f64,
    process: f64,
    lost: f64,
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let folder = TempDirectory::new("take").map_err(|why| why.to_string())?;
    // The bench `rest` runs first, because a flood pins this thread to one processor.
    let mut all = other_traffic::run_bench(options)?;
    for (length, name) in FRAME_LENGTHS {
        let mut floods = FloodPair::new(length, 1, ReceivingHost::Ignores)?;
        add_second_pair(&floods.observed.pair);
        let mut sentinels = Vec::new();
        let mut taken: Vec<Vec<TakeSample>> = vec![Vec::new(); CANDIDATE_REQUESTS.len()];
        for round in 0..=options.rounds {
            sentinels.push(CacheRoundTrip::measure());
            for ((.., line), samples) in CANDIDATE_REQUESTS.iter().zip(&mut taken) {
                let sample = measure_request(&mut floods, &folder, line)?;
                // The first round is a warm-up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        all.extend(result_rows(name, &taken, median(&sentinels)));
    }
    Ok(all)
}

fn add_second_pair(pair: &NamespacePair) {
    let client = pair.client.name();
    pair.server.run_ip(&format!("link add back0 type veth peer name back1 netns {client}"));
    for (space, device) in [(&pair.server, "back0"), (&pair.client, "back1")] {
        space.run_ip(&format!("link set dev {device} addrgenmode none arp off up"));
    }
    pair.server.wait_until_up("back0");
}

/// Measures one sample: sends its frames while a request runs on the second processor.
fn measure_request(
    floods: &mut FloodPair,
    folder: &TempDirectory,
    line: &str,
) -> Result<TakeSample, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name("streamline");
    let report = folder.0.join("report");
    let mut command = floods.observed.pair.server.command("taskset");
    command.args(["-c", "1"]).arg(own).args(["run", "--json", "--quiet", "--report"]).arg(&report);
    command.arg(line).stdout(Stdio::null());
    let child = command.spawn().map_err(|why| format!("{command:?}: {why}"))?;
    let (process, redirects) = (child.id(), line.contains("take ring"));
    wait_until(line, || match redirects {
        true => has_xdp_program(&floods.observed.pair),
        false => {
            let space = &floods.observed.pair.server;
            is_capturing(space, process) || has_ingress_program(space)
        }
    });
    floods.send(WARM_UP_FRAMES)?;
    let before = wait_until_idle(&[process]);
    let took = floods.send(FRAMES_PER_SAMPLE)?;
    let used = (wait_until_idle(&[process]) - before) as f64;
    interrupt_and_wait(child, line)?;
    let text = std::fs::read_to_string(&report).map_err(|why| why.to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|why| why.to_string())?;
    let given_blocks = report["sources"][0]["given"]["blocks"].as_f64().unwrap_or(0.0);
    let frames = FRAMES_PER_SAMPLE as f64;
    let lost = 1.0 - given_blocks / (frames + WARM_UP_FRAMES as f64);
    let (sending, alone) = (took.observed as f64 / frames, took.unobserved as f64 / frames);
    Ok(TakeSample { sending, alone, process: used / frames, lost })
}

/// Returns true if the receiving device has an XDP program.
fn has_xdp_program(pair: &NamespacePair) -> bool {
    pair.server.run_in_network_namespace(|| {
        let links = sys::net::RouteSocket::open().ok();
        let found = links.and_then(|links| links.interface_by_name(SERVER_DEVICE).ok());
        found.is_some_and(|interface| interface.xdp.is_some())
    })
}

fn result_rows(length: &str, taken: &[Vec<TakeSample>], sentinel_ns: f64) -> Vec<Row> {
    let mut all = Vec::new();
    for subject in ["count", "hand on"] {
        let of = |value: &dyn Fn(&TakeSample) -> f64| -> Vec<Samples> {
            let these =
                CANDIDATE_REQUESTS.iter().zip(taken).filter(|((row, ..), _)| *row == subject);
            let values = |samples: &[TakeSample]| samples.iter().map(value).collect();
            these.map(|((_, name, _), samples)| Samples { name, values: values(samples) }).collect()
        };
        let row = format!("{length}, {subject}");
        let mut add = |unit, values: &[Samples], goals: &[Goal]| {
            let better = (unit, BetterDirection::Less);
            all.extend(rows_of_samples(
                ("take", &row, f64::NAN),
                better,
                sentinel_ns,
                values,
                goals,
            ));
        };
        // Noise may make the difference negative.
        let cost = |sample: &TakeSample| (sample.sending - sample.alone + sample.process).max(1.0);
        add("ns CPU/frame", &of(&cost), &GOALS);
        add("ns in the process/frame", &of(&|sample| sample.process), &[]);
        for one in of(&|sample| sample.lost * 100.0) {
            // 0 divided by 0 is not a ratio, so each observer has its own group of rows.
            add("% lost", &[one], &[]);
        }
    }
    all
}
