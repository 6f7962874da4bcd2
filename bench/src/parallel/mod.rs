//! `bench parallel`: one filter on two processors compared with one. [Th §5.4; CONTRACT 16],
//! FEATURES N1, N2, N4, N5, N7, V13
//!
//! Blocks are dispatched to replicas of stateless filters by load, and to replicas of filters with
//! sessions by a hash. The outputs are joined in the order of the inputs. A sink counts blocks and
//! computes a sum that depends on their order; the bench fails unless the sum equals that of a
//! single instance. The last rows use a filter of configurable cost, and show the cost per block
//! above which two replicas are faster. `auto` starts without knowledge of the filter and measures
//! while it runs. `auto, analyzed` knows the costs of an earlier run, as `explain --analyze` stores
//! them. The number of replicas at the end is also reported.

mod engines;
mod stages;
mod work;

use crate::harness::{BetterDirection, Samples, is_row_selected, median, rows_of_samples};
use crate::options::Options;
use crate::replay::write_capture_in_child;
use crate::request_run::plan_for_machine;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use engine::adapt::extract_measurements;
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::path::AdaptationSettings;
use engine::run::{RunOutcome, StopConditions, run as go};
use pipeline::explain::{Measurements, learn_costs};
use pipeline::plan::{Costs, Machine, Plan};
pub(crate) use work::{DIGEST_SINK, WORK_FILTER};

/// The candidates. Each has the option that it adds to the request, its name in the result rows,
/// and a flag: true if the costs of an earlier run are known.
const CANDIDATES: [(&str, &str, bool); 4] = [
    ("--parallel=no", "1 copy", false),
    ("--parallel=2", "2 copies", false),
    ("--parallel=auto", "auto", false),
    ("--parallel=auto", "auto, analyzed", true),
];
/// Approximate duration, in ns, of a run over generated blocks without replicas. It is ten times
/// the time that the path takes to measure its costs.
const RUN_DURATION_NS: u64 = 1_500_000_000;
/// Numbers of loop iterations per block for which the filter with configurable cost is measured.
const ITERATIONS_PER_BLOCK: [u64; 6] = [0, 30, 100, 300, 1_000, 3_000];
/// Maximum size of the capture in bytes.
const CAPTURE_SIZE_MAX: u64 = 100_000_000;

/// A request to measure, with its name in the result rows, and its x value in the chart.
struct NamedRequest {
    name: String,
    text: String,
    x: f64,
}

/// The result of running a request once.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RunResult {
    /// Number of blocks per second that the sources emitted.
    rate: f64,
    /// Number of blocks that reached the sink, and the sink's order-dependent sum of these blocks.
    digest: (u64, u64),
    /// Number of replicas at the end of the run.
    replicas: usize,
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let folder = TempDirectory::new("parallel").map_err(|why| why.to_string())?;
    let capture = folder.0.join("mixed.pcap");
    write_capture_in_child("mixed", &capture, options.size.min(CAPTURE_SIZE_MAX))?;
    let capture = capture.display();
    let line = |name: &str, text: String| NamedRequest { name: name.to_owned(), text, x: f64::NAN };
    // Generates blocks for a run of [`RUN_DURATION_NS`] in which each block costs about `ns` ns.
    let made =
        |ns: u64| format!("generate count={} seq=yes flows=64 size=1400", RUN_DURATION_NS / ns);
    let mut lines = vec![
        line("by load, every byte", format!("{} | match hex=ff |all bench_digest", made(70))),
        line("by load, compressed", format!("{} | compress level=1 | bench_digest", made(3500))),
        line(
            "by session, tcp and http",
            format!("replay {capture} | tcp |http http | bench_digest"),
        ),
    ];
    lines.extend(ITERATIONS_PER_BLOCK.map(|work| NamedRequest {
        name: format!("work {work}"),
        text: format!("{} | bench_work {work} | bench_digest", made(50 + work * 11 / 10)),
        x: work as f64,
    }));
    let mut all = Vec::new();
    for line in lines.iter().filter(|line| is_row_selected(&line.name)) {
        all.extend(measure_request(line, options.rounds)?);
    }
    if is_row_selected(stages::ROW_PREFIX) {
        all.extend(stages::measure_two_stages(options.rounds)?);
        all.extend(stages::measure_request(&folder, options.rounds)?);
    }
    if is_row_selected(engines::ROW_PREFIX) {
        all.extend(engines::measure_request(&capture, &folder, options.rounds)?);
    }
    Ok(all)
}

fn measure_request(line: &NamedRequest, rounds: usize) -> Result<Vec<Row>, String> {
    let mut taken: Vec<Vec<RunResult>> = vec![Vec::new(); CANDIDATES.len()];
    let mut sentinels = Vec::new();
    let new = Machine::example();
    let known = Machine { costs: analyze_costs(&line.text, &new)?, ..new.clone() };
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for ((option, _, knows), samples) in CANDIDATES.iter().zip(&mut taken) {
            let sample =
                run_once(&format!("{option} {}", line.text), if *knows { &known } else { &new })?;
            // The first round is a warm-up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    check_outputs_equal(line, &taken)?;
    let sentinel = median(&sentinels);
    let of = |value: &dyn Fn(&RunResult) -> f64| -> Vec<Samples> {
        let each = CANDIDATES.iter().zip(&taken);
        each.map(|((_, name, _), samples)| Samples {
            name,
            values: samples.iter().map(value).collect(),
        })
        .collect()
    };
    let subject = ("parallel", line.name.as_str(), line.x);
    let rate = of(&|sample| sample.rate / 1e6);
    let mut all =
        rows_of_samples(subject, ("Mblocks/s", BetterDirection::More), sentinel, &rate, &[]);
    let chosen = of(&|sample| sample.replicas as f64).split_off(2);
    let nowhere = ("parallel", line.name.as_str(), f64::NAN);
    all.extend(rows_of_samples(nowhere, ("copies", BetterDirection::More), sentinel, &chosen, &[]));
    Ok(all)
}

/// Checks that all runs of a request, with any number of replicas, delivered the same blocks in the
/// same order.
fn check_outputs_equal(line: &NamedRequest, taken: &[Vec<RunResult>]) -> Result<(), String> {
    let mut all = taken.iter().flatten().map(|sample| sample.digest);
    let Some(first) = all.next() else { return Ok(()) };
    match all.find(|other| *other != first) {
        None if first.0 > 0 => Ok(()),
        None => Err(format!("nothing came out of `{}`", line.text)),
        Some(other) => Err(format!("`{}` gives {first:?} and {other:?}", line.text)),
    }
}

fn run_once(text: &str, machine: &Machine) -> Result<RunResult, String> {
    let plan = plan_for_machine(text, machine)?;
    let (outcome, plan) = run_plan(plan, machine, false)?;
    let replicas = plan.replicas.iter().map(|copied| copied.spaces.len()).max().unwrap_or(1);
    let given: u64 = outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let rate = given as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64;
    Ok(RunResult { rate, digest: read_digest(&outcome), replicas })
}

/// Returns the costs measured by a run without replicas.
fn analyze_costs(text: &str, machine: &Machine) -> Result<Costs, String> {
    let plan = plan_for_machine(&format!("--parallel=no {text}"), machine)?;
    let (outcome, plan) = run_plan(plan, machine, true)?;
    let elapsed_ns = outcome.elapsed_ns;
    let mut costs = machine.costs.clone();
    learn_costs(
        &plan,
        &Measurements { elapsed_ns, ..extract_measurements(&plan, &outcome.ledger) },
        &mut costs,
    );
    Ok(costs)
}

/// Runs a plan to its end. Returns the outcome, and the plan as the path has changed it during the
/// run.
fn run_plan(plan: Plan, machine: &Machine, timed: bool) -> Result<(RunOutcome, Plan), String> {
    let settings =
        RunSettings { sinks: crate::copying_endpoints::SINKS, timed, ..RunSettings::default() };
    let extras = PathOptions {
        adaptation: AdaptationSettings::permitted_by(&plan, machine),
        ..PathOptions::default()
    };
    let paths = build_with_options(&plan, settings, &AttachPoints::default(), &extras);
    let paths = paths.map_err(|why| why.to_string())?;
    let live = paths.first().map(engine::build::BuiltPath::live);
    let outcome = go(paths, StopConditions::default()).map_err(|why| why.to_string())?;
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(imbalance.to_string());
    }
    let last = live.and_then(|live| live.plan());
    Ok((outcome, last.unwrap_or(plan)))
}

/// Reads the number of blocks, and the order-dependent sum of the blocks, from the sink's report.
fn read_digest(outcome: &RunOutcome) -> (u64, u64) {
    let rows: Vec<&(String, u64)> =
        outcome.reports.iter().flat_map(|reported| &reported.report.rows).collect();
    let named = |name: &str| rows.iter().find(|(known, _)| known == name).map_or(0, |(_, n)| *n);
    (named(work::BLOCKS_COUNTER), named(work::SUM_COUNTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_reordered_or_changed_block_changes_the_sum() {
        let line = NamedRequest { name: String::new(), text: "a line".to_owned(), x: 0.0 };
        let sample = |digest| vec![RunResult { rate: 1.0, digest, replicas: 1 }];
        assert_eq!(check_outputs_equal(&line, &[sample((3, 7)), sample((3, 7))]), Ok(()));
        assert!(check_outputs_equal(&line, &[sample((3, 7)), sample((3, 8))]).is_err());
        assert!(check_outputs_equal(&line, &[sample((0, 0))]).is_err());
    }

    #[test]
    fn n1_replicas_have_the_sum_of_one_instance() {
        let line = "generate count=3000 seq=yes | bench_work 10 | bench_digest";
        let machine = Machine::example();
        let one = run_once(&format!("--parallel=no {line}"), &machine).unwrap();
        let two = run_once(&format!("--parallel=2 {line}"), &machine).unwrap();
        assert_eq!((one.digest, one.replicas, two.replicas), (two.digest, 1, 2));
        assert_eq!(one.digest.0, 3000);
    }
}
