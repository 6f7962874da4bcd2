//! `bench moderation`: the cost of a notification, and the number of notifications. [Th fig. 5.2],
//! goals G8, G9; FEATURES K4
//!
//! Blocks of 2 KB are sent over a 16 MB stream between two processes, copied in and out, with a
//! notification every T_b blocks, in three modes:
//!
//! - *strict*: the reader preempts the writer whenever it is woken (`SCHED_FIFO`, one core), so
//!   each notification is a context switch, as in the paper;
//! - *unconditional*: the writer notifies even if the reader does not sleep, and the reader does
//!   not preempt the writer;
//! - *waiter flag*: the behavior of streams; T_b only determines how often written blocks are
//!   published.
//!
//! In a fourth curve, the kernel is the writer ([`kernel`]).
//!
//! The paper reaches 92 % of the possible gain at T_b = 32. This is not reproducible: a context
//! switch costs so much more than the copy of a block that T_b = 32 reaches a quarter of the gain,
//! and 90 % requires about 700. Goal G9 compares waits that arm a timer of 1 ms, on one core with
//! small rings, with the stream's waits, which arm no timer. The bench counts waits per MB, and
//! measures the processor time of a waiting reader.

mod kernel;
mod reader;

pub(crate) use reader::serve;

use crate::harness::{
    BetterDirection, Candidate, Goal, Samples, is_row_selected, measure_interleaved_rows, median,
    rows_of_samples,
};
use crate::options::Options;
use crate::processes::context_switches;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use buffer::stream::{Config, Output, WakingOverrides, stream};
use reader::ModerationReader;

/// Size in bytes of the blocks that the writer sends.
const BLOCK_SIZE: usize = 2048;
/// Numbers of blocks per notification (T_b), each with its name in the result rows.
const BLOCKS_PER_NOTIFICATION: [(usize, &str); 10] = [
    (1, "T_b 1"),
    (2, "T_b 2"),
    (4, "T_b 4"),
    (8, "T_b 8"),
    (16, "T_b 16"),
    (32, "T_b 32"),
    (64, "T_b 64"),
    (128, "T_b 128"),
    (512, "T_b 512"),
    (2048, "T_b 2048"),
];
/// Ring size in bytes, as in the figure of the paper.
const RING_SIZE: usize = 16 << 20;
/// Ring sizes in bytes that goal G9 covers, each with its name in the result rows.
const SMALL_RING_SIZES: [(usize, &str); 3] =
    [(64 << 10, "64 KB"), (256 << 10, "256 KB"), (1 << 20, "1 MB")];
/// Maximum ring size in bytes for which G9 sets a goal.
const GOAL_RING_SIZE_MAX: usize = 256 << 10;
/// Round-trip time of a cache line in ns below which two processors count as sharing a cache
/// (BASELINES).
const SAME_CACHE_ROUND_TRIP_NS_MAX: f64 = 250.0;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 40_000_000;
/// Duration, in ns, of the wait during which the processor time of an idle reader is measured.
const IDLE_WAIT_NS: u64 = 300_000_000;

/// The mode in which the writer notifies the reader, and the reader waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotificationMode {
    Strict,
    Unconditional,
    WaiterFlag,
    Timed,
}

impl NotificationMode {
    const ALL: [Self; 4] = [Self::Strict, Self::Unconditional, Self::WaiterFlag, Self::Timed];

    const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Unconditional => "unconditional",
            Self::WaiterFlag => "waiter flag",
            Self::Timed => "timed waits",
        }
    }

    fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == word)
    }
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processor_count;
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for mode in
        [NotificationMode::Strict, NotificationMode::Unconditional, NotificationMode::WaiterFlag]
    {
        match measure_curve(mode, 0, options.rounds) {
            Ok(more) => rows.extend(more),
            Err(why) if mode == NotificationMode::Strict => {
                eprintln!("left out: strict, one core: {why} (it needs CAP_SYS_NICE)");
            }
            Err(why) => return Err(why),
        }
    }
    if processors < 2 {
        eprintln!("left out: two cores, this machine has one");
    } else {
        rows.extend(measure_curve(NotificationMode::Unconditional, 1, options.rounds)?);
        rows.extend(measure_curve(NotificationMode::WaiterFlag, 1, options.rounds)?);
    }
    rows.extend(kernel::measure_kernel_curves(options.rounds, processors)?);
    rows.extend(measure_waits(options.rounds)?);
    rows.extend(measure_idle_cost(options.rounds)?);
    Ok(rows)
}

/// Measures one curve of the thesis's figure 5.2: the throughput in one mode for each number of
/// blocks per notification.
fn measure_curve(
    mode: NotificationMode,
    processor: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let mut candidates = Vec::new();
    for (every, name) in BLOCKS_PER_NOTIFICATION {
        let mut line = ModeratedStream::new(mode, processor, every, RING_SIZE)?;
        candidates.push(Candidate { name, measure: Box::new(move || line.measure()) });
    }
    let two_cores = processor > 0;
    let goal = |candidate, reference, target| Goal { candidate, reference, goal: "G8", target };
    let goals = match mode {
        NotificationMode::Strict => {
            vec![goal("T_b 32", "T_b 1", 18.0), goal("T_b 2048", "T_b 1", 60.0)]
        }
        NotificationMode::WaiterFlag if !two_cores => vec![goal("T_b 1", "T_b 2048", 0.85)],
        NotificationMode::Unconditional
            if two_cores && CacheRoundTrip::measure() < SAME_CACHE_ROUND_TRIP_NS_MAX =>
        {
            vec![goal("T_b 32", "T_b 1", 5.0)]
        }
        _ => Vec::new(),
    };
    let cores = if two_cores { "two cores" } else { "one core" };
    let name = format!("{}, {cores}", mode.name());
    let rows =
        measure_interleaved_rows(("moderation", &name, 0.0), "GB/s", rounds, candidates, &goals)?;
    Ok(rows.into_iter().map(|row| curve_point(row, mode, two_cores)).collect())
}

/// Converts a row to a point of a curve. `mode` and `two_cores` select the curve, and the number of
/// blocks per notification becomes the x value of the point. Returns goal rows unchanged.
fn curve_point(row: Row, mode: NotificationMode, two_cores: bool) -> Row {
    let found = BLOCKS_PER_NOTIFICATION.iter().find(|(_, name)| *name == row.candidate);
    let (Some((every, name)), None) = (found, row.goal) else { return row };
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let x = *every as f64;
    let line = match (mode, two_cores) {
        (mode, false) => mode.name(),
        (NotificationMode::Unconditional, true) => "unconditional, two cores",
        (_, true) => "waiter flag, two cores",
    };
    Row { row: format!("{}, {name}", row.row), candidate: line, x, ..row }
}

/// Measures goal G9: the cost of arming a timer for each wait, and the number of waits. A ring of
/// 64 KB holds 32 blocks. With a notification every 32 blocks (the paper's T_b), there is one wait
/// per notification.
fn measure_waits(rounds: usize) -> Result<Vec<Row>, String> {
    let mut all = Vec::new();
    for (ring, text) in SMALL_RING_SIZES {
        let name = format!("waits, ring of {text}, one core");
        if !is_row_selected(&name) {
            continue;
        }
        let mut lines = [NotificationMode::Timed, NotificationMode::WaiterFlag]
            .map(|mode| ModeratedStream::new(mode, 0, 32, ring));
        let samples = |name| Samples { name, values: Vec::new() };
        let both = || ["timed waits", "stream"].map(samples);
        let (mut rates, mut counts, mut sentinels) = (both(), both(), Vec::new());
        for round in 0..=rounds {
            for ((line, rates), counts) in lines.iter_mut().zip(&mut rates).zip(&mut counts) {
                let line = line.as_mut().map_err(|why| why.clone())?;
                let (before, moved) = (line.wait_count(), line.blocks_written);
                let rate = line.measure()?;
                // The first round is a warm-up.
                if round > 0 {
                    rates.values.push(rate);
                    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                    let waits =
                        (line.wait_count() - before) as f64 / (line.blocks_written - moved) as f64;
                    counts.values.push(waits * 1e6 / BLOCK_SIZE as f64);
                }
            }
            sentinels.push(CacheRoundTrip::measure());
        }
        let (candidate, reference) = ("stream", "timed waits");
        // A longer ring has too few waits for the goal.
        let is_short = ring <= GOAL_RING_SIZE_MAX;
        let goal = is_short.then_some(Goal { candidate, reference, goal: "G9", target: 1.8 });
        let (subject, sentinel) = (("moderation", name.as_str(), f64::NAN), median(&sentinels));
        all.extend(rows_of_samples(
            subject,
            ("GB/s", BetterDirection::More),
            sentinel,
            &rates,
            goal.as_slice(),
        ));
        all.extend(rows_of_samples(
            subject,
            ("waits/MB", BetterDirection::Less),
            sentinel,
            &counts,
            &[],
        ));
    }
    Ok(all)
}

/// Measures goal G9: the processor time of a waiting reader.
fn measure_idle_cost(rounds: usize) -> Result<Vec<Row>, String> {
    let line = ModeratedStream::new(NotificationMode::WaiterFlag, 0, 32, RING_SIZE)?;
    line.reader.announce_bytes(BLOCK_SIZE as u64)?;
    let candidates = vec![
        Candidate { name: "no reader", measure: Box::new(|| Ok(100.0)) },
        Candidate {
            name: "waiting reader",
            measure: Box::new(move || {
                let before = line.reader.processor_ns()?;
                std::thread::sleep(std::time::Duration::from_nanos(IDLE_WAIT_NS));
                let used = line.reader.processor_ns()? - before;
                #[expect(clippy::cast_precision_loss, reason = "a share has few digits")]
                Ok(100.0 - used as f64 * 100.0 / IDLE_WAIT_NS as f64)
            }),
        },
    ];
    let (candidate, reference) = ("waiting reader", "no reader");
    let goal = Goal { candidate, reference, goal: "G9", target: 0.99 };
    measure_interleaved_rows(
        ("moderation", "idle", f64::NAN),
        "% idle",
        rounds.min(3),
        candidates,
        &[goal],
    )
}

/// A stream between this process and a reading process, in one mode of notification.
struct ModeratedStream {
    output: Output,
    reader: ModerationReader,
    mode: NotificationMode,
    every: usize,
    block: Vec<u8>,
    blocks: u64,
    /// Number of blocks that the writer has sent so far.
    blocks_written: u64,
}

impl ModeratedStream {
    fn new(
        mode: NotificationMode,
        processor: usize,
        every: usize,
        ring: usize,
    ) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let mut config = Config::new(id).capacity(ring);
        config.every = match mode {
            NotificationMode::WaiterFlag | NotificationMode::Timed => every,
            // Blocks are published only by flushes.
            NotificationMode::Strict | NotificationMode::Unconditional => usize::MAX,
        };
        let (mut output, offers) = stream(&config).map_err(|why| why.to_string())?;
        let offer = offers.first().ok_or("no reader")?;
        let reader = ModerationReader::start(mode, processor, BLOCK_SIZE, offer)?;
        if processor == 0 {
            output.set_spin_limit(0);
        }
        output.set_waking_overrides(WakingOverrides {
            notifies_always: mode == NotificationMode::Unconditional,
            sleep_limit: (mode == NotificationMode::Timed).then_some(reader::WAIT_TIMEOUT),
        });
        Ok(Self {
            output,
            reader,
            mode,
            every,
            block: vec![7; BLOCK_SIZE],
            blocks: 1024,
            blocks_written: 0,
        })
    }

    /// Returns the throughput of the stream in GB/s, measured over at least [`MEASUREMENT_NS_MIN`].
    fn measure(&mut self) -> Result<f64, String> {
        loop {
            let begin = sys::clock::monotonic_ns();
            self.write_blocks(self.blocks)?;
            let ns = sys::clock::monotonic_ns() - begin;
            if ns >= MEASUREMENT_NS_MIN {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(self.blocks as f64 * BLOCK_SIZE as f64 / ns as f64);
            }
            self.blocks *= (MEASUREMENT_NS_MIN * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }

    fn write_blocks(&mut self, blocks: u64) -> Result<(), String> {
        self.reader.announce_bytes(blocks * BLOCK_SIZE as u64)?;
        let flushes =
            matches!(self.mode, NotificationMode::Strict | NotificationMode::Unconditional);
        let mut next = self.every;
        for _ in 0..blocks {
            let block = std::hint::black_box(&self.block);
            self.output.write(block).map_err(|why| why.to_string())?;
            next -= 1;
            if next == 0 {
                next = self.every;
                if flushes {
                    self.output.flush();
                }
            }
        }
        self.output.flush();
        self.blocks_written += blocks;
        self.reader.wait_until_received()
    }

    /// Returns the number of waits of the writer and the reader so far.
    fn wait_count(&self) -> u64 {
        context_switches("thread-self")[0] + self.reader.wait_count()
    }
}
