//! `bench filter`: selection of one frame in a hundred from a flood of short ones, in frames per
//! second of processor time.
//!
//! All candidates do the same job: they count UDP to port 53 among 64-byte frames that arrive at
//! full rate over a veth pair. We have two candidates: the generated program alone at the device,
//! which is what remains of `rx | ip | udp | dport |53 count` if all of it runs in the kernel; and
//! `streamline run` of that request, placed by the planner. The others are tcpdump with the same
//! expression, whose filter runs in the kernel too; plain AF_XDP, which passes every frame to a
//! process; and the Click modular router, which receives every frame through a packet socket.
//!
//! Processor time is the sender's, which includes the kernel's, plus that of the processes. Lost
//! frames are charged: only counted frames enter the rate.

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
use tools::PickTool;
use xdp::SelectingProcess;

/// Frames per sample, warm-up frames, and the share of wanted frames: one in a hundred.
const FRAMES: usize = 200_000;
const BEFORE: usize = 2_000;
const ONE_IN: usize = 100;
const LENGTH: usize = 64;

const NO_SELECTOR: &str = "nobody";
const KERNEL: &str = "streamline, kernel";
const XDP: &str = "AF_XDP";
const ROW: &str = "1 % of 64 B";

/// The candidates.
enum Selector<'b> {
    NoPicker,
    Program(&'b Generated),
    PickTool(PickTool),
    Xdp,
}

/// The costs per frame in one sample.
#[derive(Clone, Copy, Debug)]
struct PickSample {
    /// Times of sending, of sending without a receiver, and of the process, in ns of processor time
    /// per frame.
    sending: f64,
    alone: f64,
    process: f64,
    /// Share of the wanted frames that was counted, from 0 to 1.
    counted: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = Folder::new("filter").map_err(|why| why.to_string())?;
    let generated = Generated::load(ProgramKind::Tc)?;
    let mut all = vec![(NO_SELECTOR, Selector::NoPicker), (KERNEL, Selector::Program(&generated))];
    all.extend(tools::all().into_iter().map(|tool| (tool.name, Selector::PickTool(tool))));
    all.push((XDP, Selector::Xdp));
    let mut bench = PickBench { floods: Floods::new(LENGTH, ONE_IN, Host::Ignores)?, folder };
    let mut taken: Vec<Vec<PickSample>> = all.iter().map(|_| Vec::new()).collect();
    let mut sentinels = Vec::new();
    for round in 0..=options.rounds {
        sentinels.push(Sentinel::take());
        for ((_, picks), samples) in all.iter().zip(&mut taken) {
            let sample = bench.pick(picks)?;
            // The first round is a warm-up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    Ok(told(&names, &taken, median(&sentinels)))
}

struct PickBench {
    floods: Floods,
    folder: Folder,
}

impl PickBench {
    fn pick(&mut self, picks: &Selector<'_>) -> Result<PickSample, String> {
        let sample = match picks {
            Selector::NoPicker => {
                self.floods.send(BEFORE)?;
                (self.floods.send(FRAMES)?, 0, BEFORE + FRAMES)
            }
            Selector::Program(generated) => {
                let device = self.floods.observed.device()?;
                let before = generated.blocks()?;
                let link = generated.attach(&self.floods.observed.pair.server, device)?;
                self.floods.send(BEFORE)?;
                let took = self.floods.send(FRAMES)?;
                drop(link);
                (took, 0, of_one_in(generated.blocks()? - before))
            }
            Selector::PickTool(tool) => {
                let child = tool.start(&self.floods.observed.pair.server, &self.folder.0)?;
                self.floods.send(BEFORE)?;
                let before = when_idle(&[child.id()]);
                let took = self.floods.send(FRAMES)?;
                let (used, counted) = tool.end(child, &self.folder.0)?;
                (took, used - before, of_one_in(counted))
            }
            Selector::Xdp => {
                let picker = SelectingProcess::start(&self.floods.observed.pair.server)?;
                self.floods.send(BEFORE)?;
                let before = when_idle(&[picker.child.id()]);
                let took = self.floods.send(FRAMES)?;
                let used = when_idle(&[picker.child.id()]) - before;
                (took, used, of_one_in(picker.counted()?))
            }
        };
        let (took, used, observed) = sample;
        let frames = FRAMES as f64;
        Ok(PickSample {
            sending: took.observed as f64 / frames,
            alone: took.unobserved as f64 / frames,
            process: used as f64 / frames,
            counted: (observed as f64 / (BEFORE + FRAMES) as f64).min(1.0),
        })
    }
}

/// Returns the number of frames sent for `counted` counted ones.
fn of_one_in(counted: u64) -> usize {
    usize::try_from(counted).unwrap_or(0) * ONE_IN
}

/// Returns the rows: frames per second of processor time, the cost of selection, and losses.
fn told(names: &[&'static str], taken: &[Vec<PickSample>], sentinel_ns: f64) -> Vec<Row> {
    let each = |value: &dyn Fn(&PickSample) -> f64, skip: usize| -> Vec<Samples> {
        let values = |samples: &[PickSample]| samples.iter().map(value).collect();
        let named = names.iter().zip(taken).skip(skip);
        named.map(|(name, samples)| Samples { name, values: values(samples) }).collect()
    };
    let rate = |s: &PickSample| s.counted * 1e6 / (s.sending + s.process);
    let added = |s: &PickSample| (s.sending + s.process - s.alone).max(1.0);
    let lost = |s: &PickSample| (1.0 - s.counted) * 100.0;
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
        // Each alone: 0 divided by 0 is no ratio.
        let subject = ("filter", ROW, f64::NAN);
        all.extend(rows(subject, ("% lost", Better::Less), sentinel_ns, &[samples], &[]));
    }
    all
}
