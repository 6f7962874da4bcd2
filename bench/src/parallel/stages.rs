//! Two filters of one request in two threads, compared with the same filters in one thread.
//! FEATURES N4, N5
//!
//! Two filters of about 1 µs per block run in sequence: in one thread, in two threads by hand
//! (`@thread1`), and in a path that divides itself. `auto` starts without known costs and measures
//! them in its first seconds. `auto, analyzed` knows them from an earlier run and starts divided.
//! The bench fails unless all candidates deliver the same blocks in the same order. The last rows
//! measure a user's request, run by the command.

use super::engines::run_once as run_command;
use super::{RunResult, analyze_costs, read_digest, run_plan};
use crate::harness::{BetterDirection, Samples, median, rows_of_samples};
use crate::processes::streamline_path;
use crate::request_run::plan_for_machine;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use pipeline::plan::{Machine, SpaceKind};

/// Prefix of the names of the result rows that this module measures.
pub(super) const ROW_PREFIX: &str = "two stages";
/// Iterations of `bench_work` that take about 1 µs.
const ITERATIONS_PER_US: u64 = 1_000;
/// Number of blocks in a run, which takes about 5 s in one thread.
const BLOCK_COUNT: u64 = 2_500_000;
/// The candidates. Each has the option that it adds to the request, the pin of the request's second
/// filter, its name in the result rows, and a flag: true if the costs of an earlier run are known.
const CANDIDATES: [(&str, &str, &str, bool); 4] = [
    ("--parallel=no ", "", "1 thread", false),
    ("", " @thread1", "by hand", false),
    ("", "", "auto", false),
    ("", "", "auto, analyzed", true),
];
/// The candidates that run the command `streamline`: the option that each adds to the request, and
/// its name in the result rows.
const COMMAND_CANDIDATES: [(&str, &str); 2] = [("--parallel=no ", "1 thread"), ("", "auto")];
/// A user's request without its source: two filters that read every byte.
const USER_REQUEST: &str = "compress level=1 |all compress level=1 |all discard";
/// Number of blocks in a run of the user's request, which takes about 5 s in one thread.
const USER_REQUEST_BLOCKS: u64 = 800_000;

/// Measures a chain of two filters of equal cost, in one thread and in two.
pub(super) fn measure_two_stages(rounds: usize) -> Result<Vec<Row>, String> {
    let new = Machine::example();
    let text = |pin: &str| {
        format!(
            "generate count={BLOCK_COUNT} seq=yes flows=64 size=1400 | \
             bench_work {ITERATIONS_PER_US} | \
             bench_work {ITERATIONS_PER_US}{pin} | bench_digest{pin}"
        )
    };
    let known = Machine { costs: analyze_costs(&text(""), &new)?, ..new.clone() };
    let mut taken: Vec<Vec<RunResult>> = vec![Vec::new(); CANDIDATES.len()];
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for ((option, pin, _, knows), samples) in CANDIDATES.iter().zip(&mut taken) {
            let machine = if *knows { &known } else { &new };
            let sample = run_once(&format!("{option}{}", text(pin)), machine)?;
            // The first round is a warm-up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let mut outs = taken.iter().flatten().map(|sample| sample.digest);
    let first = outs.next().ok_or("nothing was measured")?;
    if let Some(other) = outs.find(|other| *other != first) {
        return Err(format!("two stages give {first:?} and {other:?}"));
    }
    let sentinel = median(&sentinels);
    let of = |value: &dyn Fn(&RunResult) -> f64| -> Vec<Samples> {
        let each = CANDIDATES.iter().zip(&taken);
        each.map(|((_, _, name, _), samples)| Samples {
            name,
            values: samples.iter().map(value).collect(),
        })
        .collect()
    };
    let subject = ("parallel", "two stages of 1 us", f64::NAN);
    let rate = of(&|sample| sample.rate / 1e6);
    let mut all =
        rows_of_samples(subject, ("Mblocks/s", BetterDirection::More), sentinel, &rate, &[]);
    let threads = of(&|sample| sample.replicas as f64).split_off(1);
    all.extend(rows_of_samples(
        subject,
        ("threads", BetterDirection::More),
        sentinel,
        &threads,
        &[],
    ));
    Ok(all)
}

/// Runs a request once. In the result, the field `replicas` contains the number of threads at the
/// end of the run.
fn run_once(text: &str, machine: &Machine) -> Result<RunResult, String> {
    let plan = plan_for_machine(text, machine)?;
    let (outcome, plan) = run_plan(plan, machine, false)?;
    for what in &outcome.adapted {
        eprintln!("adapted: {what}");
    }
    let threads = plan.spaces.iter().filter(|space| space.kind == SpaceKind::Thread).count();
    let given: u64 = outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let rate = given as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64;
    Ok(RunResult { rate, digest: read_digest(&outcome), replicas: threads })
}

/// Measures the user's request [`USER_REQUEST`], run by the command `streamline`.
pub(super) fn measure_request(folder: &TempDirectory, rounds: usize) -> Result<Vec<Row>, String> {
    let Some(program) = streamline_path() else { return Ok(Vec::new()) };
    let report = folder.0.join("stages");
    let source = format!("generate count={USER_REQUEST_BLOCKS} seq=yes flows=64 size=1400");
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); COMMAND_CANDIDATES.len()];
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for ((option, _), samples) in COMMAND_CANDIDATES.iter().zip(&mut taken) {
            let line = format!("{option}{source} | {USER_REQUEST}");
            let (rate, came) = run_command(&program, &line, &report)?;
            if came != USER_REQUEST_BLOCKS {
                return Err(format!("`{line}` took {came} blocks, not {USER_REQUEST_BLOCKS}"));
            }
            if round > 0 {
                samples.push(rate / 1e6);
            }
        }
    }
    let each = COMMAND_CANDIDATES.iter().zip(taken);
    let samples: Vec<Samples> = each.map(|((_, name), values)| Samples { name, values }).collect();
    let subject = ("parallel", "two stages, compressed twice, command", f64::NAN);
    Ok(rows_of_samples(
        subject,
        ("Mblocks/s", BetterDirection::More),
        median(&sentinels),
        &samples,
        &[],
    ))
}
