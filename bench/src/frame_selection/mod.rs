//! `bench filter`: the selection of one frame in a hundred from a flood of short frames, in frames
//! per second of processor time.
//!
//! All candidates count UDP frames to port 53 among frames of 64 bytes that arrive at full rate
//! over a veth pair. Two candidates are ours: the program generated for `rx | ip | udp | dport |53
//! count`, alone at the device, and `streamline run` of that request, placed by the planner. The
//! others are tcpdump with an equivalent expression, which the kernel evaluates; plain AF_XDP,
//! which passes each frame to a process; and the Click modular router, which receives each frame
//! through a packet socket.
//!
//! The processor time is the time of the sender, which includes the kernel's work, plus the time of
//! the processes. The rate includes only counted frames, so lost frames reduce it.

mod selection_tools;
mod xdp;

pub(crate) use xdp::serve;

use crate::flood::{FloodPair, ReceivingHost};
use crate::harness::{BetterDirection, Goal, Samples, median, rows_of_samples};
use crate::options::Options;
use crate::processes::wait_until_idle;
use crate::program_cost::GeneratedProgram;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use selection_tools::SelectionTool;
use sys::bpf::ProgramKind;
use xdp::SelectingProcess;

/// Number of frames sent in one sample, that is, in one measurement of one candidate.
const FRAMES_PER_SAMPLE: usize = 200_000;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 2_000;
/// One in this many frames of the flood goes to port 53 and must be selected.
const FRAMES_PER_WANTED_FRAME: usize = 100;
/// Length of each frame in bytes.
const FRAME_LENGTH: usize = 64;

const NO_SELECTOR_NAME: &str = "no selector";
const KERNEL_NAME: &str = "streamline, kernel";
const XDP_NAME: &str = "AF_XDP";
const ROW_NAME: &str = "1 % of 64 B";

/// The program or process that selects the wanted frames in one sample.
enum FrameSelector<'b> {
    NoReceiver,
    Program(&'b GeneratedProgram),
    Tool(SelectionTool),
    Xdp,
}

/// The costs per frame in one sample, and the share of wanted frames that were counted.
#[derive(Clone, Copy, Debug)]
struct SelectionSample {
    /// Processor time of sending while the program selects, in ns per frame.
    sending: f64,
    /// Processor time of sending over the unobserved veth pair, in ns per frame.
    unobserved: f64,
    /// Processor time of the selecting process, in ns per frame.
    process: f64,
    /// Share of the wanted frames that was counted, from 0 to 1.
    counted: f64,
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = TempDirectory::new("filter").map_err(|why| why.to_string())?;
    let generated = GeneratedProgram::load(ProgramKind::Tc)?;
    let mut all = vec![
        (NO_SELECTOR_NAME, FrameSelector::NoReceiver),
        (KERNEL_NAME, FrameSelector::Program(&generated)),
    ];
    all.extend(
        selection_tools::installed_tools()
            .into_iter()
            .map(|tool| (tool.name, FrameSelector::Tool(tool))),
    );
    all.push((XDP_NAME, FrameSelector::Xdp));
    let mut bench = SelectionBench {
        floods: FloodPair::new(FRAME_LENGTH, FRAMES_PER_WANTED_FRAME, ReceivingHost::Ignores)?,
        folder,
    };
    let mut taken: Vec<Vec<SelectionSample>> = all.iter().map(|_| Vec::new()).collect();
    let mut sentinels = Vec::new();
    for round in 0..=options.rounds {
        sentinels.push(CacheRoundTrip::measure());
        for ((_, picks), samples) in all.iter().zip(&mut taken) {
            let sample = bench.measure_with(picks)?;
            // The first round is a warm-up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    Ok(result_rows(&names, &taken, median(&sentinels)))
}

struct SelectionBench {
    floods: FloodPair,
    folder: TempDirectory,
}

impl SelectionBench {
    fn measure_with(&mut self, picks: &FrameSelector<'_>) -> Result<SelectionSample, String> {
        let sample = match picks {
            FrameSelector::NoReceiver => {
                self.floods.send(WARM_UP_FRAMES)?;
                (self.floods.send(FRAMES_PER_SAMPLE)?, 0, WARM_UP_FRAMES + FRAMES_PER_SAMPLE)
            }
            FrameSelector::Program(generated) => {
                let device = self.floods.observed.receiving_device_index()?;
                let before = generated.counted_blocks()?;
                let link = generated.attach(&self.floods.observed.pair.server, device)?;
                self.floods.send(WARM_UP_FRAMES)?;
                let took = self.floods.send(FRAMES_PER_SAMPLE)?;
                drop(link);
                (took, 0, total_frame_count(generated.counted_blocks()? - before))
            }
            FrameSelector::Tool(tool) => {
                let child = tool.start(&self.floods.observed.pair.server, &self.folder.0)?;
                self.floods.send(WARM_UP_FRAMES)?;
                let before = wait_until_idle(&[child.id()]);
                let took = self.floods.send(FRAMES_PER_SAMPLE)?;
                let (used, counted) = tool.stop(child, &self.folder.0)?;
                (took, used - before, total_frame_count(counted))
            }
            FrameSelector::Xdp => {
                let picker = SelectingProcess::start(&self.floods.observed.pair.server)?;
                self.floods.send(WARM_UP_FRAMES)?;
                let before = wait_until_idle(&[picker.child.id()]);
                let took = self.floods.send(FRAMES_PER_SAMPLE)?;
                let used = wait_until_idle(&[picker.child.id()]) - before;
                (took, used, total_frame_count(picker.frame_count()?))
            }
        };
        let (took, used, observed) = sample;
        let frames = FRAMES_PER_SAMPLE as f64;
        Ok(SelectionSample {
            sending: took.observed as f64 / frames,
            unobserved: took.unobserved as f64 / frames,
            process: used as f64 / frames,
            counted: (observed as f64 / (WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as f64).min(1.0),
        })
    }
}

/// Returns the number of all frames sent, given the number of wanted frames among them.
fn total_frame_count(counted: u64) -> usize {
    usize::try_from(counted).unwrap_or(0) * FRAMES_PER_WANTED_FRAME
}

/// Returns the rows: frames per second of processor time, the cost of selection, and losses.
fn result_rows(
    names: &[&'static str],
    taken: &[Vec<SelectionSample>],
    sentinel_ns: f64,
) -> Vec<Row> {
    let each = |value: &dyn Fn(&SelectionSample) -> f64, skip: usize| -> Vec<Samples> {
        let values = |samples: &[SelectionSample]| samples.iter().map(value).collect();
        let named = names.iter().zip(taken).skip(skip);
        named.map(|(name, samples)| Samples { name, values: values(samples) }).collect()
    };
    let rate = |s: &SelectionSample| s.counted * 1e6 / (s.sending + s.process);
    let added = |s: &SelectionSample| (s.sending + s.process - s.unobserved).max(1.0);
    let lost = |s: &SelectionSample| (1.0 - s.counted) * 100.0;
    let subject = ("filter", ROW_NAME, f64::NAN);
    let goals: Vec<Goal> = names[2..]
        .iter()
        .map(|reference| Goal { candidate: KERNEL_NAME, reference, goal: "filter", target: 1.0 })
        .collect();
    let rates = each(&rate, 0);
    let mut all = rows_of_samples(
        subject,
        ("kframes/CPU s", BetterDirection::More),
        sentinel_ns,
        &rates,
        &goals,
    );
    let subject = ("filter", "1 % of 64 B, added", f64::NAN);
    let added = each(&added, 1);
    all.extend(rows_of_samples(
        subject,
        ("ns CPU/frame", BetterDirection::Less),
        sentinel_ns,
        &added,
        &[],
    ));
    for samples in each(&lost, 1) {
        // 0 divided by 0 is not a ratio, so each filter has its own group of rows.
        let subject = ("filter", ROW_NAME, f64::NAN);
        all.extend(rows_of_samples(
            subject,
            ("% lost", BetterDirection::Less),
            sentinel_ns,
            &[samples],
            &[],
        ));
    }
    all
}
