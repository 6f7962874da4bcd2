//! `bench take`: what it costs to watch, to take, and to hand on. [SL §5.5; FEATURES G1, G6]
//!
//! Frames are sent flat out over a virtual cable to a line of ours that gets all of them into a
//! thread: off a packet socket, out of a kernel ring (a program at traffic control), or by AF_XDP,
//! which takes them from the host. There they are counted, or handed on to a second cable: by a
//! packet socket, or as they lie by AF_XDP. All frames of a sample fit into every ring, so nothing
//! is lost for lack of time; what is lost is a row of its own.
//!
//! What it costs is taken as in `capture`: in the kernel by how much longer sending takes than over
//! a cable with nobody at it, in turn, and in the process. On a virtual cable AF_XDP copies and the
//! program runs in the sender's time, so these rows say little about a card with zero-copy.

use crate::flood::{Floods, Host};
use crate::folder::Folder;
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::options::Options;
use crate::processes::{end, is_tapped, when_idle};
use crate::row::Row;
use crate::sentinel::Sentinel;
use std::process::Stdio;
use testkit::net::{Pair, SERVER_DEVICE, until, watches};

/// Bytes of the frames.
const LENGTHS: [(usize, &str); 2] = [(64, "64 B"), (1500, "1500 B")];
/// Frames of a sample, and those before, unmeasured: together they fit into a ring of 128 MB, of
/// which AF_XDP lends 30,720 frames.
const FRAMES: usize = 25_000;
const BEFORE: usize = 2_000;

/// The candidates: the name of the row, of the candidate, and the request.
const LINES: [(&str, &str, &str); 7] = [
    ("count", SOCKET, "rx@thread0 server0 ring=128M | count"),
    ("count", RING, "rx server0 ring=128M | count@thread0"),
    ("count", XDP, "rx server0 take ring=128M | count@thread0"),
    ("hand on", SOCKET, "rx@thread0 server0 ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", RING, "rx server0 ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", XDP, "rx server0 take ring=128M | tx back0 qdisc=no by=packet"),
    ("hand on", MOVED, "rx server0 take ring=128M | tx back0 qdisc=no by=xdp"),
];
const SOCKET: &str = "packet socket";
const RING: &str = "kernel ring";
const XDP: &str = "AF_XDP";
const MOVED: &str = "AF_XDP, moved";
/// A kernel ring is to cost no more than the other ways. (G16)
const GOALS: [Goal; 2] = [
    Goal { candidate: RING, reference: SOCKET, goal: "G16", target: 1.0 },
    Goal { candidate: RING, reference: XDP, goal: "G16", target: 1.0 },
];

/// In ns per frame.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    sending: f64,
    alone: f64,
    process: f64,
    lost: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("take").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for (length, name) in LENGTHS {
        let mut floods = Floods::new(length, 1, Host::Ignores)?;
        second_cable(&floods.seen.pair);
        let mut sentinels = Vec::new();
        let mut taken: Vec<Vec<Sample>> = vec![Vec::new(); LINES.len()];
        for round in 0..=options.rounds {
            sentinels.push(Sentinel::take());
            for ((.., line), samples) in LINES.iter().zip(&mut taken) {
                let sample = observe(&mut floods, &folder, line)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        all.extend(table(name, &taken, median(&sentinels)));
    }
    Ok(all)
}

fn second_cable(pair: &Pair) {
    let client = pair.client.name();
    pair.server.ip(&format!("link add back0 type veth peer name back1 netns {client}"));
    for (space, device) in [(&pair.server, "back0"), (&pair.client, "back1")] {
        space.ip(&format!("link set dev {device} addrgenmode none arp off up"));
    }
    pair.server.until_up("back0");
}

/// Sends while a line runs on the second processor.
fn observe(floods: &mut Floods, folder: &Folder, line: &str) -> Result<Sample, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name("streamline");
    let report = folder.0.join("report");
    let mut command = floods.seen.pair.server.command("taskset");
    command.args(["-c", "1"]).arg(own).args(["run", "--json", "--quiet", "--report"]).arg(&report);
    command.arg(line).stdout(Stdio::null());
    let child = command.spawn().map_err(|why| format!("{command:?}: {why}"))?;
    let (process, taking) = (child.id(), line.contains("take"));
    until(line, || match taking {
        true => is_taken(&floods.seen.pair),
        false => {
            let space = &floods.seen.pair.server;
            watches(space, process) || is_tapped(space)
        }
    });
    floods.send(BEFORE)?;
    let before = when_idle(&[process]);
    let took = floods.send(FRAMES)?;
    let used = (when_idle(&[process]) - before) as f64;
    end(child, line)?;
    let told = std::fs::read_to_string(&report).map_err(|why| why.to_string())?;
    let told: serde_json::Value = serde_json::from_str(&told).map_err(|why| why.to_string())?;
    let given = told["sources"][0]["given"]["blocks"].as_f64().unwrap_or(0.0);
    let frames = FRAMES as f64;
    let lost = 1.0 - given / (frames + BEFORE as f64);
    let (sending, alone) = (took.seen as f64 / frames, took.alone as f64 / frames);
    Ok(Sample { sending, alone, process: used / frames, lost })
}

/// Returns true if an XDP program is at the device.
fn is_taken(pair: &Pair) -> bool {
    pair.server.enter(|| {
        let links = sys::net::RouteSocket::open().ok();
        let found = links.and_then(|links| links.named(SERVER_DEVICE).ok());
        found.is_some_and(|interface| interface.xdp.is_some())
    })
}

fn table(length: &str, taken: &[Vec<Sample>], sentinel_ns: f64) -> Vec<Row> {
    let mut all = Vec::new();
    for subject in ["count", "hand on"] {
        let of = |value: &dyn Fn(&Sample) -> f64| -> Vec<Samples> {
            let these = LINES.iter().zip(taken).filter(|((row, ..), _)| *row == subject);
            let values = |samples: &[Sample]| samples.iter().map(value).collect();
            these.map(|((_, name, _), samples)| Samples { name, values: values(samples) }).collect()
        };
        let row = format!("{length}, {subject}");
        let mut add = |unit, values: &[Samples], goals: &[Goal]| {
            let better = (unit, Better::Less);
            all.extend(rows(("take", &row, f64::NAN), better, sentinel_ns, values, goals));
        };
        // Noise may make it less than nothing.
        let cost = |sample: &Sample| (sample.sending - sample.alone + sample.process).max(1.0);
        add("ns CPU/frame", &of(&cost), &GOALS);
        add("ns in the process/frame", &of(&|sample| sample.process), &[]);
        for one in of(&|sample| sample.lost * 100.0) {
            // Nothing divided by nothing is no ratio: each alone.
            add("% lost", &[one], &[]);
        }
    }
    all
}
