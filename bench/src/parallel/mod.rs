//! `bench parallel`: one filter on two processors against one. [Th §5.4; CONTRACT 16]
//!
//! Filters that keep nothing are shared out by load, filters with sessions by a hash; what comes
//! out is joined in the order of what came in. A sink counts and adds up what it gets in the order
//! in which it gets it: that sum must be the one of a single copy, or the bench fails. The last
//! rows have a filter whose work is set, so that one sees from which cost of a block on two copies
//! pay; `auto` is what the planner chooses by itself.

mod work;

use crate::Options;
use crate::harness::{Better, Samples, median, rows};
use crate::line::planned;
use crate::replay::{Folder, made};
use crate::row::Row;
use crate::sentinel::Sentinel;
use engine::build::{Settings, build};
use engine::run::{Outcome, Until, run as go};
pub(crate) use work::{DIGEST, WORK};

/// What is compared: the option of the request, and what a row calls it.
const WAYS: [(&str, &str); 3] =
    [("--parallel=no", "1 copy"), ("--parallel=2", "2 copies"), ("--parallel=auto", "auto")];
/// Blocks that a line of made frames takes.
const BLOCKS: u64 = 400_000;
/// How often the filter whose work is set goes around for each block.
const WORKS: [u64; 6] = [0, 30, 100, 300, 1_000, 3_000];
/// Bytes of the capture, at most.
const CAPTURE: u64 = 100_000_000;

/// A line, and what it is called.
struct Line {
    name: String,
    text: String,
    x: f64,
}

/// What a run of a line came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// Blocks of its sources per second.
    rate: f64,
    /// How many came out, and the sum over them in their order.
    out: (u64, u64),
    /// How many copies there were.
    copies: usize,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("parallel").map_err(|why| why.to_string())?;
    let capture = folder.0.join("mixed.pcap");
    made("mixed", &capture, options.size.min(CAPTURE))?;
    let capture = capture.display();
    let line = |name: &str, text: String| Line { name: name.to_owned(), text, x: f64::NAN };
    let made = format!("generate count={BLOCKS} seq=yes flows=64 size=1400");
    let mut lines = vec![
        line("by load, every byte", format!("{made} | match hex=ff |all bench_digest")),
        line("by load, compressed", format!("{made} | compress level=1 | bench_digest")),
        line(
            "by session, tcp and http",
            format!("replay {capture} | tcp |http http | bench_digest"),
        ),
    ];
    lines.extend(WORKS.map(|work| Line {
        name: format!("work {work}"),
        text: format!("{made} | bench_work {work} | bench_digest"),
        x: work as f64,
    }));
    let mut all = Vec::new();
    for line in &lines {
        all.extend(measured(line, options.rounds)?);
    }
    Ok(all)
}

fn measured(line: &Line, rounds: usize) -> Result<Vec<Row>, String> {
    let mut taken: Vec<Vec<Sample>> = vec![Vec::new(); WAYS.len()];
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(Sentinel::take());
        for ((option, _), samples) in WAYS.iter().zip(&mut taken) {
            let sample = once(&format!("{option} {}", line.text))?;
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
        each.map(|((_, name), samples)| Samples {
            name,
            values: samples.iter().map(value).collect(),
        })
        .collect()
    };
    let subject = ("parallel", line.name.as_str(), line.x);
    let rate = of(&|sample| sample.rate / 1e6);
    let mut all = rows(subject, ("Mblocks/s", Better::More), sentinel, &rate, &[]);
    let chosen = of(&|sample| sample.copies as f64).pop().into_iter().collect::<Vec<_>>();
    let nowhere = ("parallel", line.name.as_str(), f64::NAN);
    all.extend(rows(nowhere, ("copies", Better::More), sentinel, &chosen, &[]));
    Ok(all)
}

/// Whatever the copies, what came out is what one copy gives, in its order.
fn in_order(line: &Line, taken: &[Vec<Sample>]) -> Result<(), String> {
    let mut all = taken.iter().flatten().map(|sample| sample.out);
    let Some(first) = all.next() else { return Ok(()) };
    match all.find(|other| *other != first) {
        None if first.0 > 0 => Ok(()),
        None => Err(format!("nothing came out of `{}`", line.text)),
        Some(other) => Err(format!("`{}` gives {first:?} and {other:?}", line.text)),
    }
}

fn once(text: &str) -> Result<Sample, String> {
    let plan = planned(text)?;
    let copies = plan.copied.iter().map(|copied| copied.spaces.len()).max().unwrap_or(1);
    let settings = Settings { sinks: crate::doors::SINKS, ..Settings::default() };
    let paths = build(&plan, settings).map_err(|why| why.to_string())?;
    let outcome = go(paths, Until::default()).map_err(|why| why.to_string())?;
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(imbalance.to_string());
    }
    let given: u64 = outcome.ledger.sources.iter().map(|(_, seen)| seen.given.blocks).sum();
    let rate = given as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64;
    Ok(Sample { rate, out: out(&outcome), copies })
}

/// What the sink says: how many, and their sum.
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
        let one = once(&format!("--parallel=no {line}")).unwrap();
        let two = once(&format!("--parallel=2 {line}")).unwrap();
        assert_eq!((one.out, one.copies, two.copies), (two.out, 1, 2));
        assert_eq!(one.out.0, 3000);
    }
}
