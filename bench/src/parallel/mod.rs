//! `bench parallel`: one filter on two processors against one. [Th §5.4; CONTRACT 16],
//! FEATURES N1, N2, N7, V13
//!
//! Filters that keep nothing are shared out by load, filters with sessions by a hash; what comes
//! out is joined in the order of what came in. A sink counts and adds up what it gets in the order
//! in which it gets it: that sum must be the one of a single copy, or the bench fails. The last
//! rows have a filter whose work is set, so that one sees from which cost of a block on two copies
//! pay. `auto` begins with nothing known of the filter and looks while it runs; `auto, analyzed`
//! knows what a run before it was seen to cost, as `explain --analyze` keeps it. What copies there
//! were at the end is told beside.

mod engines;
mod work;

use crate::folder::Folder;
use crate::harness::{Better, Samples, median, rows};
use crate::line::planned_on;
use crate::options::Options;
use crate::replay::made;
use crate::row::Row;
use crate::sentinel::Sentinel;
use engine::adapt::seen;
use engine::build::{Extras, Settings, build_with};
use engine::kernel::point::Points;
use engine::path::Adapt;
use engine::run::{Outcome, Until, run as go};
use pipeline::explain::{Measurements, learn};
use pipeline::plan::{Costs, Machine, Plan};
pub(crate) use work::{DIGEST, WORK};

/// A candidate: the option of the request, its name in rows, and whether the cost of a run before
/// it is known.
const WAYS: [(&str, &str, bool); 4] = [
    ("--parallel=no", "1 copy", false),
    ("--parallel=2", "2 copies", false),
    ("--parallel=auto", "auto", false),
    ("--parallel=auto", "auto, analyzed", true),
];
/// The time of a run of made frames without replicas, about, in ns: the time that measuring its
/// cost takes, and ten times that.
const RUNS_NS: u64 = 1_500_000_000;
/// The number of turns of the loop in the filter whose work is set, for each block.
const WORKS: [u64; 6] = [0, 30, 100, 300, 1_000, 3_000];
/// Bytes of the capture, at most.
const CAPTURE: u64 = 100_000_000;

/// A line, and what it is called.
struct Line {
    name: String,
    text: String,
    x: f64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// Blocks of its sources per second.
    rate: f64,
    /// The number of blocks at the sink, and the sum over them in their order.
    out: (u64, u64),
    /// The number of replicas.
    copies: usize,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("parallel").map_err(|why| why.to_string())?;
    let capture = folder.0.join("mixed.pcap");
    made("mixed", &capture, options.size.min(CAPTURE))?;
    let capture = capture.display();
    let line = |name: &str, text: String| Line { name: name.to_owned(), text, x: f64::NAN };
    // For a block that costs about so many ns.
    let made = |ns: u64| format!("generate count={} seq=yes flows=64 size=1400", RUNS_NS / ns);
    let mut lines = vec![
        line("by load, every byte", format!("{} | match hex=ff |all bench_digest", made(70))),
        line("by load, compressed", format!("{} | compress level=1 | bench_digest", made(3500))),
        line(
            "by session, tcp and http",
            format!("replay {capture} | tcp |http http | bench_digest"),
        ),
    ];
    lines.extend(WORKS.map(|work| Line {
        name: format!("work {work}"),
        text: format!("{} | bench_work {work} | bench_digest", made(50 + work * 11 / 10)),
        x: work as f64,
    }));
    let mut all = Vec::new();
    for line in &lines {
        all.extend(measured(line, options.rounds)?);
    }
    all.extend(engines::measured(&capture, &folder, options.rounds)?);
    Ok(all)
}

fn measured(line: &Line, rounds: usize) -> Result<Vec<Row>, String> {
    let mut taken: Vec<Vec<Sample>> = vec![Vec::new(); WAYS.len()];
    let mut sentinels = Vec::new();
    let new = Machine::example();
    let known = Machine { costs: analyzed(&line.text, &new)?, ..new.clone() };
    for round in 0..=rounds {
        sentinels.push(Sentinel::take());
        for ((option, _, knows), samples) in WAYS.iter().zip(&mut taken) {
            let sample =
                once(&format!("{option} {}", line.text), if *knows { &known } else { &new })?;
            // The first round warms up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    in_order(line, &taken)?;
    let sentinel = median(&sentinels);
    let of = |value: &dyn Fn(&Sample) -> f64| -> Vec<Samples> {
        let each = WAYS.iter().zip(&taken);
        each.map(|((_, name, _), samples)| Samples {
            name,
            values: samples.iter().map(value).collect(),
        })
        .collect()
    };
    let subject = ("parallel", line.name.as_str(), line.x);
    let rate = of(&|sample| sample.rate / 1e6);
    let mut all = rows(subject, ("Mblocks/s", Better::More), sentinel, &rate, &[]);
    let chosen = of(&|sample| sample.copies as f64).split_off(2);
    let nowhere = ("parallel", line.name.as_str(), f64::NAN);
    all.extend(rows(nowhere, ("copies", Better::More), sentinel, &chosen, &[]));
    Ok(all)
}

/// Checks that the output does not depend on the number of replicas, order included.
fn in_order(line: &Line, taken: &[Vec<Sample>]) -> Result<(), String> {
    let mut all = taken.iter().flatten().map(|sample| sample.out);
    let Some(first) = all.next() else { return Ok(()) };
    match all.find(|other| *other != first) {
        None if first.0 > 0 => Ok(()),
        None => Err(format!("nothing came out of `{}`", line.text)),
        Some(other) => Err(format!("`{}` gives {first:?} and {other:?}", line.text)),
    }
}

fn once(text: &str, machine: &Machine) -> Result<Sample, String> {
    let plan = planned_on(text, machine)?;
    let (outcome, plan) = ran(plan, machine, false)?;
    let copies = plan.copied.iter().map(|copied| copied.spaces.len()).max().unwrap_or(1);
    let given: u64 = outcome.ledger.sources.iter().map(|(_, seen)| seen.given.blocks).sum();
    let rate = given as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64;
    Ok(Sample { rate, out: out(&outcome), copies })
}

/// Returns the costs after a run without replicas was analyzed.
fn analyzed(text: &str, machine: &Machine) -> Result<Costs, String> {
    let plan = planned_on(&format!("--parallel=no {text}"), machine)?;
    let (outcome, plan) = ran(plan, machine, true)?;
    let elapsed_ns = outcome.elapsed_ns;
    let mut costs = machine.costs.clone();
    learn(&plan, &Measurements { elapsed_ns, ..seen(&plan, &outcome.ledger) }, &mut costs);
    Ok(costs)
}

/// Runs a plan to its end; answers the plan that it had then.
fn ran(plan: Plan, machine: &Machine, timed: bool) -> Result<(Outcome, Plan), String> {
    let settings = Settings { sinks: crate::doors::SINKS, timed, ..Settings::default() };
    let extras = Extras { adapt: Adapt::asked(&plan, machine), ..Extras::default() };
    let paths = build_with(&plan, settings, &Points::default(), &extras);
    let paths = paths.map_err(|why| why.to_string())?;
    let live = paths.first().map(engine::build::Path::live);
    let outcome = go(paths, Until::default()).map_err(|why| why.to_string())?;
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(imbalance.to_string());
    }
    let last = live.and_then(|live| live.plan());
    Ok((outcome, last.unwrap_or(plan)))
}

/// Reads the number of blocks and their sum from the sink's report.
fn out(outcome: &Outcome) -> (u64, u64) {
    let rows: Vec<&(String, u64)> =
        outcome.reports.iter().flat_map(|reported| &reported.report.rows).collect();
    let named = |name: &str| rows.iter().find(|(known, _)| known == name).map_or(0, |(_, n)| *n);
    (named(work::COUNTED), named(work::SUM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_another_order_or_another_block_is_found() {
        let line = Line { name: String::new(), text: "a line".to_owned(), x: 0.0 };
        let sample = |out| vec![Sample { rate: 1.0, out, copies: 1 }];
        assert_eq!(in_order(&line, &[sample((3, 7)), sample((3, 7))]), Ok(()));
        assert!(in_order(&line, &[sample((3, 7)), sample((3, 8))]).is_err());
        assert!(in_order(&line, &[sample((0, 0))]).is_err());
    }

    #[test]
    fn n1_copies_give_the_sum_of_one() {
        let line = "generate count=3000 seq=yes | bench_work 10 | bench_digest";
        let machine = Machine::example();
        let one = once(&format!("--parallel=no {line}"), &machine).unwrap();
        let two = once(&format!("--parallel=2 {line}"), &machine).unwrap();
        assert_eq!((one.out, one.copies, two.copies), (two.out, 1, 2));
        assert_eq!(one.out.0, 3000);
    }
}
