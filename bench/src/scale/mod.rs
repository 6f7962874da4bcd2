//! `bench scale`: the best size of a ring, and self-scaling. [SL figs. 11, 12], goal G10; FEATURES
//! F1, F3, F5
//!
//! There are three settings: one thread that writes and reads each block; two processes on one
//! processor; and two processes on two processors. Each setting has rings of fixed sizes from 16 KB
//! to 64 MB, and a ring that starts with 64 MB and scales itself. In addition to the rate, the
//! writer's context switches per MB are counted (fig. 12). The x axis of the chart is the size.
//!
//! The module `user` measures the same goal for the interfaces of users: streams from C, and
//! requests.

mod c_streams_and_requests;
pub(crate) mod rounds;
mod scale_reader;

pub(crate) use scale_reader::serve;

use crate::child::BenchChild;
use crate::harness::{is_row_selected, median};
use crate::options::Options;
use crate::processes::context_switches;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use buffer::scale::ScalingParameters;
use buffer::stream::{Config, Input, Output, stream};

/// Sizes of the rings of fixed size, in bytes.
const RING_SIZES: [usize; 10] = [
    16 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    LARGEST_RING_SIZE,
];
/// Size in bytes of the largest ring of fixed size, and initial size of a self-scaling ring.
const LARGEST_RING_SIZE: usize = 64 << 20;
/// Size in bytes of the blocks that are written.
const BLOCK_SIZE: usize = 2048;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 60_000_000;
/// Limit on the data that is written while the size of a self-scaling ring settles, as a multiple
/// of the size of the largest ring.
const SETTLING_LAPS_MAX: usize = 40;

/// The setting of a measurement: one thread, two processes on one processor, or two processes on
/// two processors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessorSetting {
    Thread,
    OneCore,
    TwoCores,
}

impl ProcessorSetting {
    const fn name(self) -> &'static str {
        match self {
            Self::Thread => "one thread",
            Self::OneCore => "one core",
            Self::TwoCores => "two cores",
        }
    }

    const fn count(self) -> usize {
        match self {
            Self::Thread | Self::OneCore => 1,
            Self::TwoCores => 2,
        }
    }

    /// Returns the names of the two candidates in this setting: the rings of fixed size, and the
    /// self-scaling ring.
    const fn candidate_names(self) -> [&'static str; 2] {
        match self {
            Self::Thread => ["fixed, one thread", "scaled, one thread"],
            Self::OneCore => ["fixed, one core", "scaled, one core"],
            Self::TwoCores => ["fixed, two cores", "scaled, two cores"],
        }
    }
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let machine = sys::machine::Machine::detect();
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    let settings =
        [ProcessorSetting::Thread, ProcessorSetting::OneCore, ProcessorSetting::TwoCores];
    for setting in settings.into_iter().filter(|setting| is_row_selected(setting.name())) {
        if setting == ProcessorSetting::TwoCores && machine.processor_count < 2 {
            eprintln!("left out: two cores, this machine has one");
            continue;
        }
        rows.extend(measure_ring_setting(setting, &machine.cache_sizes, options.rounds)?);
        if setting != ProcessorSetting::Thread {
            rows.extend(c_streams_and_requests::measure_c_streams(
                setting,
                &machine.cache_sizes,
                options,
            )?);
            let all: Vec<usize> = (0..setting.count()).collect();
            sys::process::pin_to_processors(&all).map_err(|why| why.to_string())?;
            rows.extend(c_streams_and_requests::measure_requests(setting.name(), options)?);
            sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
        }
    }
    Ok(rows)
}

/// The samples of one ring: throughputs in GB/s, and context switches per MB.
#[derive(Default)]
struct RingSamples {
    rates: Vec<f64>,
    switches: Vec<f64>,
}

fn measure_ring_setting(
    setting: ProcessorSetting,
    caches: &[usize],
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let mut fixed = RING_SIZES
        .iter()
        .map(|size| MeasuredStream::new(setting, *size, None, BLOCK_SIZE))
        .collect::<Result<Vec<_>, _>>()?;
    let scaling = Some(ScalingParameters::for_reallocation(caches));
    let mut scaled = MeasuredStream::new(setting, LARGEST_RING_SIZE, scaling, BLOCK_SIZE)?;
    scaled.write_until_size_settles()?;
    let mut samples: Vec<RingSamples> = fixed.iter().map(|_| RingSamples::default()).collect();
    let (mut own, mut sentinels) = (RingSamples::default(), Vec::new());
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        let pairs = fixed.iter_mut().chain([&mut scaled]);
        for (pair, samples) in pairs.zip(samples.iter_mut().chain([&mut own])) {
            let (rate, switches) = pair.measure()?;
            // The first round is a warm-up.
            if round > 0 {
                samples.rates.push(rate);
                samples.switches.push(switches);
            }
        }
    }
    if let Some(scale) = scaled.output.sizing_state() {
        eprintln!("{}: {scale}", setting.name());
    }
    Ok(result_rows(setting, &samples, &own, scaled.output.capacity(), median(&sentinels)))
}

/// Returns the result rows of a setting: the rate and the context switches for each ring size, and
/// the goals.
fn result_rows(
    setting: ProcessorSetting,
    fixed: &[RingSamples],
    own: &RingSamples,
    found: usize,
    sentinel_ns: f64,
) -> Vec<Row> {
    let [fixed_name, scaled_name] = setting.candidate_names();
    let row = |candidate, reference, name: String, unit, of: &[f64], against: &[f64], x| {
        let ratios: Vec<f64> = of.iter().zip(against).map(|(a, b)| a / b).collect();
        let spread = [
            of.iter().copied().fold(f64::INFINITY, f64::min),
            of.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ];
        Row {
            bench: "scale",
            row: name,
            candidate,
            reference,
            value: median(of),
            unit,
            ratio: median(&ratios),
            n: of.len(),
            spread,
            sentinel_ns,
            goal: None,
            target: None,
            x,
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "a size has few digits")]
    let axis = |size: usize| size as f64;
    let best = fixed.iter().max_by(|a, b| median(&a.rates).total_cmp(&median(&b.rates)));
    let (Some(best), Some(largest)) = (best, fixed.last()) else { return Vec::new() };
    let mut rows = Vec::new();
    let sized = fixed.iter().zip(RING_SIZES).map(|(of, size)| (fixed_name, of, size));
    for (name, of, size) in sized.chain([(scaled_name, own, found)]) {
        let label = format!("{} KB", size >> 10);
        let at = axis(size);
        rows.push(row(name, "64 MB", label.clone(), "GB/s", &of.rates, &largest.rates, at));
        let none = f64::NAN;
        rows.push(row(name, "itself", label, "switches/MB", &of.switches, &of.switches, none));
    }
    for (reference, against, target) in
        [("best fixed", &best.rates, 0.9), ("64 MB", &largest.rates, 3.0)]
    {
        let label = format!("{} KB", found >> 10);
        let made = row(scaled_name, reference, label, "GB/s", &own.rates, against, f64::NAN);
        rows.push(Row { goal: Some("G10"), target: Some(target), ..made });
    }
    rows
}

/// A stream under measurement, and its reader in this or in another process.
struct MeasuredStream {
    output: Output,
    reader: ScaleReader,
    block: Vec<u8>,
    blocks: u64,
}

enum ScaleReader {
    ThisProcess(Box<Input>, Vec<u8>),
    ChildProcess(BenchChild),
}

impl MeasuredStream {
    fn new(
        setting: ProcessorSetting,
        size: usize,
        scaling: Option<ScalingParameters>,
        block: usize,
    ) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let config = Config { scaling, ..Config::new(id).capacity(size) };
        let (mut output, mut offers) = stream(&config).map_err(|why| why.to_string())?;
        let offer = offers.pop().ok_or("no reader")?;
        if setting != ProcessorSetting::TwoCores {
            output.set_spin_limit(0);
        }
        let reader = match setting {
            ProcessorSetting::Thread => {
                let input = offer.open().map_err(|why| why.to_string())?;
                ScaleReader::ThisProcess(Box::new(input), vec![0; block])
            }
            ProcessorSetting::OneCore => {
                ScaleReader::ChildProcess(scale_reader::start(0, &offer, block)?)
            }
            ProcessorSetting::TwoCores => {
                ScaleReader::ChildProcess(scale_reader::start(1, &offer, block)?)
            }
        };
        Ok(Self { output, reader, block: vec![7; block], blocks: 1024 })
    }

    /// Writes until the ring's size has settled or [`SETTLING_LAPS_MAX`] is reached.
    fn write_until_size_settles(&mut self) -> Result<(), String> {
        let (mut before, mut same) = (0, 0);
        for _ in 0..SETTLING_LAPS_MAX {
            self.transfer((LARGEST_RING_SIZE / self.block.len()) as u64)?;
            same = if self.output.capacity() == before { same + 1 } else { 0 };
            if same == 4 {
                break;
            }
            before = self.output.capacity();
        }
        Ok(())
    }

    /// Returns the throughput in GB/s over enough blocks for the minimum duration, and the number
    /// of context switches per MB.
    fn measure(&mut self) -> Result<(f64, f64), String> {
        loop {
            let (begin, before) = (sys::clock::monotonic_ns(), own_context_switches());
            self.transfer(self.blocks)?;
            let ns = sys::clock::monotonic_ns() - begin;
            if ns >= MEASUREMENT_NS_MIN {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                let (bytes, ns, times) = (
                    self.blocks as f64 * self.block.len() as f64,
                    ns as f64,
                    (own_context_switches() - before) as f64,
                );
                return Ok((bytes / ns, times * 1e6 / bytes));
            }
            self.blocks *= (MEASUREMENT_NS_MIN * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }

    /// Moves `blocks` blocks, and returns when they have arrived.
    fn transfer(&mut self, blocks: u64) -> Result<(), String> {
        let words = |why: buffer::Fault| why.to_string();
        match &mut self.reader {
            ScaleReader::ThisProcess(input, out) => {
                for _ in 0..blocks {
                    self.output.write(std::hint::black_box(&self.block)).map_err(words)?;
                    self.output.flush();
                    input.read(std::hint::black_box(out)).map_err(words)?;
                }
                Ok(())
            }
            ScaleReader::ChildProcess(other) => {
                other.announce_bytes(blocks * self.block.len() as u64)?;
                for _ in 0..blocks {
                    self.output.write(std::hint::black_box(&self.block)).map_err(words)?;
                }
                self.output.flush();
                other.wait_until_received()
            }
        }
    }
}

/// Returns the total number of context switches of this thread, voluntary and involuntary.
fn own_context_switches() -> u64 {
    context_switches("thread-self").iter().sum()
}
