//! `bench filter`: one frame in a hundred out of a flood of short ones, in frames per second of
//! processor time.
//!
//! The same job for all: count UDP to port 53 among frames of 64 bytes that come in over a virtual
//! cable, flat out. Ours twice: the generated program alone at the device, which is what is left of
//! `rx | ip | udp | dport |53 count` when all of it is in the kernel, and `streamline run` of that
//! line, wherever the planner puts it. Against tcpdump with the same expression, whose filter runs
//! in the kernel too; plain AF_XDP, which takes every frame into a process; and the Click modular
//! router, to which every frame goes through a packet socket.
//!
//! Processor time is all there is: that of who sends, which is the kernel's too, and that of the
//! processes. Who loses frames is charged for it: only those count that were seen, by the share of
//! what was wanted that was counted.

mod tools;
mod xdp;

pub(crate) use xdp::serve;

use crate::decide::Generated;
use crate::flood::{Floods, Host};
use crate::folder::Folder;
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::options::Options;
use crate::processes::when_idle;
use crate::row::Row;
use crate::sentinel::Sentinel;
use sys::bpf::ProgramKind;
use tools::Tool;
use xdp::Picker;

/// Frames of a sample, and of those that are sent before, unmeasured; one in a hundred is wanted.
const FRAMES: usize = 200_000;
const BEFORE: usize = 2_000;
const ONE_IN: usize = 100;
const LENGTH: usize = 64;

const NOBODY: &str = "nobody";
const KERNEL: &str = "streamline, kernel";
const XDP: &str = "AF_XDP";
const ROW: &str = "1 % of 64 B";

/// The picking programs.
enum Picks<'b> {
    Nobody,
    Program(&'b Generated),
    Tool(Tool),
    Xdp,
}

/// The costs of a sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The time of sending, of sending without a receiver, and the processor time of the process,
    /// in ns per frame.
    sending: f64,
    alone: f64,
    process: f64,
    /// The share of the wanted frames that was counted.
    counted: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = Folder::new("filter").map_err(|why| why.to_string())?;
    let generated = Generated::load(ProgramKind::Tc)?;
    let mut all = vec![(NOBODY, Picks::Nobody), (KERNEL, Picks::Program(&generated))];
    all.extend(tools::all().into_iter().map(|tool| (tool.name, Picks::Tool(tool))));
    all.push((XDP, Picks::Xdp));
    let mut bench = Bench { floods: Floods::new(LENGTH, ONE_IN, Host::Ignores)?, folder };
    let mut taken: Vec<Vec<Sample>> = all.iter().map(|_| Vec::new()).collect();
    let mut sentinels = Vec::new();
    for round in 0..=options.rounds {
        sentinels.push(Sentinel::take());
        for ((_, picks), samples) in all.iter().zip(&mut taken) {
            let sample = bench.pick(picks)?;
            // The first round warms up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    Ok(told(&names, &taken, median(&sentinels)))
}

struct Bench {
    floods: Floods,
    folder: Folder,
}

impl Bench {
    fn pick(&mut self, picks: &Picks<'_>) -> Result<Sample, String> {
        let sample = match picks {
            Picks::Nobody => {
                self.floods.send(BEFORE)?;
                (self.floods.send(FRAMES)?, 0, BEFORE + FRAMES)
            }
            Picks::Program(generated) => {
                let device = self.floods.seen.device()?;
                let before = generated.blocks()?;
                let link = generated.hang(&self.floods.seen.pair.server, device)?;
                self.floods.send(BEFORE)?;
                let took = self.floods.send(FRAMES)?;
                drop(link);
                (took, 0, of_one_in(generated.blocks()? - before))
            }
            Picks::Tool(tool) => {
                let child = tool.start(&self.floods.seen.pair.server, &self.folder.0)?;
                self.floods.send(BEFORE)?;
                let before = when_idle(&[child.id()]);
                let took = self.floods.send(FRAMES)?;
                let (used, counted) = tool.end(child, &self.folder.0)?;
                (took, used - before, of_one_in(counted))
            }
            Picks::Xdp => {
                let picker = Picker::start(&self.floods.seen.pair.server)?;
                self.floods.send(BEFORE)?;
                let before = when_idle(&[picker.child.id()]);
                let took = self.floods.send(FRAMES)?;
                let used = when_idle(&[picker.child.id()]) - before;
                (took, used, of_one_in(picker.counted()?))
            }
        };
        let (took, used, seen) = sample;
        let frames = FRAMES as f64;
        Ok(Sample {
            sending: took.seen as f64 / frames,
            alone: took.alone as f64 / frames,
            process: used as f64 / frames,
            counted: (seen as f64 / (BEFORE + FRAMES) as f64).min(1.0),
        })
    }
}

/// Derives the number of frames from the number of those that were counted.
fn of_one_in(counted: u64) -> usize {
    usize::try_from(counted).unwrap_or(0) * ONE_IN
}

/// Rows: frames per second of all processor time, what picking adds, and what was lost.
fn told(names: &[&'static str], taken: &[Vec<Sample>], sentinel_ns: f64) -> Vec<Row> {
    let each = |value: &dyn Fn(&Sample) -> f64, skip: usize| -> Vec<Samples> {
        let values = |samples: &[Sample]| samples.iter().map(value).collect();
        let named = names.iter().zip(taken).skip(skip);
        named.map(|(name, samples)| Samples { name, values: values(samples) }).collect()
    };
    let rate = |s: &Sample| s.counted * 1e6 / (s.sending + s.process);
    let added = |s: &Sample| (s.sending + s.process - s.alone).max(1.0);
    let lost = |s: &Sample| (1.0 - s.counted) * 100.0;
    let subject = ("filter", ROW, f64::NAN);
    let goals: Vec<Goal> = names[2..]
        .iter()
        .map(|reference| Goal { candidate: KERNEL, reference, goal: "filter", target: 1.0 })
        .collect();
    let rates = each(&rate, 0);
    let mut all = rows(subject, ("kframes/CPU s", Better::More), sentinel_ns, &rates, &goals);
    let subject = ("filter", "1 % of 64 B, added", f64::NAN);
    let added = each(&added, 1);
    all.extend(rows(subject, ("ns CPU/frame", Better::Less), sentinel_ns, &added, &[]));
    for samples in each(&lost, 1) {
        // Nothing divided by nothing is no ratio: each alone.
        let subject = ("filter", ROW, f64::NAN);
        all.extend(rows(subject, ("% lost", Better::Less), sentinel_ns, &[samples], &[]));
    }
    all
}
