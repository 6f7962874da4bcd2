//! `bench placement`: the choices of the placement policies compared with every other placement.
//! FEATURES O3, V6
//!
//! Each request runs in each placement that can be planned on this machine: its first filters in
//! the kernel, the others in one or two threads. The input is a flood over a veth pair. The result
//! is the processor time per frame of threads and kernel, minus the time of unobserved sending. A
//! placement that loses frames in each of three attempts is excluded.
//!
//! All placements run in a few rounds. The best of them then run in additional rounds, together
//! with the choices of the policies `cost` and `deepest` and with all nodes in one thread, so that
//! a placement that won by chance does not win again. Plans use the cost table of this machine,
//! which is measured first if it does not exist.
//!
//! Before a request has run, the share of input on each arc is unknown. Therefore `cost` is
//! evaluated three times: with the table alone; after the request's first two seconds, in which it
//! moves filters by itself; and after one analyzed run, using only the knowledge from that run
//! (`explain --analyze`). Goal: after two seconds, no request costs more than 1.1 times its cost in
//! any other placement. Pairs of placements are judged ([`verdict`]): rounds are added until the
//! confidence interval of their ratio decides, is narrow, or the maximum is reached. Rows report
//! that interval, and the numbers of requests that are certainly within the limit, certainly beyond
//! it, and undecided.

mod request_run;
mod requests;
mod verdict;

use crate::flood::{Flood, ReceivingHost};
use crate::harness::{BetterDirection, Samples, is_row_selected, median, rows_of_samples};
use crate::options::Options;
use crate::replay;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use engine::calibrate::calibrate;
use engine::machine;
use pipeline::plan::{COSTS_VERSION, Machine};
use request_run::{PlacementSample, analyze_costs, measure_sample, plan_after_first_seconds};
use requests::{Placement, REQUESTS, plan_placements};
use testkit::net::SERVER_DEVICE;
use verdict::{CostRatio, Verdict, worst_comparison};

/// One in this many frames of the flood is sent to port 53.
const FRAMES_PER_WANTED_FRAME: usize = 2;
/// Length of each frame in bytes.
const FRAME_LENGTH: usize = 128;
/// Number of rounds in which all placements run.
const TRIAL_ROUNDS: usize = 2;
/// Maximum number of placements, chosen by their costs in the first rounds, that run in the final
/// rounds.
const FINALISTS_MAX: usize = 3;
/// Number of final rounds that are run before the comparison of the placements is checked again.
const FINAL_ROUNDS_ADDED: usize = 4;
/// Maximum number of rounds in which the best placements are compared.
const FINAL_ROUNDS_MAX: usize = 81;
/// Number of attempts for a placement that loses frames.
const ATTEMPTS_MAX: usize = 3;
/// Maximum cost of the placement that a policy chose, as a multiple of the cost of the best
/// placement.
const COST_RATIO_MAX: f64 = 1.1;
const RATIO_UNIT: &str = "of the best";

const PLACEMENT_NAME: &str = "this placement";
const BEST_PLACEMENT_NAME: &str = "best placement";
const COST_POLICY_NAME: &str = "policy cost";
const SETTLED_COST_POLICY_NAME: &str = "policy cost, after 2 s";
const ANALYZED_COST_POLICY_NAME: &str = "policy cost, analyzed";
const DEEPEST_POLICY_NAME: &str = "policy deepest";
const ONE_THREAD_NAME: &str = "all in one thread";

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let flood = Flood::new(FRAME_LENGTH, FRAMES_PER_WANTED_FRAME, ReceivingHost::Ignores)?;
    let mut machine = machine::inspect_machine();
    // A table that was never calibrated contains built-in costs for everything that no analyzed run
    // has measured.
    if machine.costs.version < COSTS_VERSION || !machine.costs.is_calibrated() {
        machine.costs = calibrate(&|what| eprintln!("measured first: {what}")).costs;
    }
    let mut bench = PlacementBench { flood, machine };
    let wanted = REQUESTS.iter().zip(1..);
    let wanted = wanted.filter(|(line, number)| is_row_selected(&format!("{number} {line}")));
    let (mut all, mut lines) = (Vec::new(), 0);
    for (line, number) in wanted {
        all.extend(bench.measure_request(number, line, options.rounds)?);
        lines += 1;
    }
    let summary = summary_rows(&all, lines);
    all.extend(summary);
    Ok(all)
}

struct PlacementBench {
    flood: Flood,
    machine: Machine,
}

/// Processor times of a placement per frame, in ns. Each list has one value for each round.
#[derive(Clone, Debug, Default)]
struct FrameCosts {
    /// Processor time per frame in each round, minus the time of sending while no request runs.
    added_ns: Vec<f64>,
    /// Processor time per frame in each round, including the time of sending.
    total_ns: Vec<f64>,
}

impl PlacementBench {
    /// Measures all placements of a request.
    fn measure_request(
        &mut self,
        number: usize,
        line: &str,
        rounds: usize,
    ) -> Result<Vec<Row>, String> {
        let text = line.replacen("rx", &format!("rx {SERVER_DEVICE} ring=8MB"), 1);
        let deepest =
            Placement::plan_pinned(&format!("--policy=deepest {text}"), &self.machine)?.spaces;
        let first = Placement::plan_pinned(&text, &self.machine)?;
        let learned = analyze_costs(&mut self.flood, &first.plan, &self.machine.costs)?;
        let knowing = Machine { costs: learned, ..self.machine.clone() };
        let settled = plan_after_first_seconds(&mut self.flood, &first.plan, &self.machine)?;
        let settled = Placement::from_plan(settled, first.spaces.len()).spaces;
        let (second, cost) = (Placement::plan_pinned(&text, &knowing)?.spaces, first.spaces);
        let all = plan_placements(&text, &self.machine);
        let one_thread = vec!["thread0".to_owned(); cost.len()];
        let mut tried = vec![Some(FrameCosts::default()); all.len()];
        self.run_rounds(&all, &mut tried, TRIAL_ROUNDS);
        let mut order: Vec<usize> = (0..all.len()).filter(|at| tried[*at].is_some()).collect();
        let least = |at: &usize| {
            let beyond = tried[*at].iter().flat_map(|taken| taken.added_ns.iter().copied());
            beyond.fold(f64::INFINITY, f64::min)
        };
        order.sort_by(|one, other| least(one).total_cmp(&least(other)));
        let policies = [
            (COST_POLICY_NAME, cost),
            (SETTLED_COST_POLICY_NAME, settled),
            (ANALYZED_COST_POLICY_NAME, second),
            (DEEPEST_POLICY_NAME, deepest),
            (ONE_THREAD_NAME, one_thread),
        ];
        let is_asked = |at: &usize| policies.iter().any(|(_, spaces)| *spaces == all[*at].spaces);
        let (best, rest) = order.split_at(FINALISTS_MAX.min(order.len()));
        let asked = rest.iter().filter(|at| is_asked(at));
        let last: Vec<Placement> = best.iter().chain(asked).map(|at| all[*at].clone()).collect();
        let sentinel = CacheRoundTrip::measure();
        let choice = last.iter().position(|placed| placed.spaces == policies[1].1);
        let mut final_ = vec![Some(FrameCosts::default()); last.len()];
        self.run_rounds(&last, &mut final_, rounds);
        for _ in (rounds..FINAL_ROUNDS_MAX).step_by(FINAL_ROUNDS_ADDED) {
            let open = undecided_placements(&final_, choice);
            if open.is_empty() {
                break;
            }
            // A decided placement does not run again; it keeps the samples of its first rounds.
            let again: Vec<Placement> = open.iter().map(|at| last[*at].clone()).collect();
            let mut taken: Vec<_> = open.iter().map(|at| final_[*at].take()).collect();
            self.run_rounds(&again, &mut taken, FINAL_ROUNDS_ADDED);
            open.iter().zip(taken).for_each(|(at, taken)| final_[*at] = taken);
        }
        let mut rows = placement_rows((number, line), &all, &tried, sentinel);
        let whole = |placed: Vec<Placement>, taken: Vec<Option<FrameCosts>>| {
            let both = placed.into_iter().zip(taken);
            both.filter_map(|(placed, taken)| Some((placed, taken?))).collect::<Vec<_>>()
        };
        let final_ = whole(last, final_);
        rows.extend(request_rows((number, line, all.len()), &final_, &policies, sentinel));
        let chosen = final_.iter().find(|(placed, _)| placed.spaces == policies[1].1);
        rows.extend(chosen.map(|(_, chosen)| {
            let others = final_.iter().filter(|(placed, _)| placed.spaces != policies[1].1);
            goal_row((number, line), chosen, others.map(|(_, taken)| taken), sentinel)
        }));
        Ok(rows)
    }

    /// Runs all placements in each of `rounds` rounds, and appends their samples to `taken`. If a
    /// placement loses frames or fails, its element of `taken` becomes `None`.
    fn run_rounds(&mut self, all: &[Placement], taken: &mut [Option<FrameCosts>], rounds: usize) {
        for _ in 0..rounds {
            let mut samples: Vec<Option<PlacementSample>> = Vec::new();
            for (placement, taken) in all.iter().zip(&*taken) {
                let sample = if taken.is_some() { self.try_sample(placement) } else { None };
                samples.push(sample);
            }
            // All placements of a round share the same unobserved time.
            let unobserved: Vec<f64> =
                samples.iter().flatten().map(|sample| sample.unobserved).collect();
            let unobserved = median(&unobserved);
            for (sample, place) in samples.into_iter().zip(&mut *taken) {
                *place = sample.and_then(|sample| Some(place.take()?.add(sample, unobserved)));
            }
        }
    }

    fn try_sample(&mut self, placement: &Placement) -> Option<PlacementSample> {
        for _ in 0..ATTEMPTS_MAX {
            match measure_sample(&mut self.flood, &placement.plan) {
                Ok(None) => {}
                Ok(sample) => return sample,
                Err(why) => {
                    eprintln!("left out: {}: {why}", placement.summary());
                    return None;
                }
            }
        }
        eprintln!("left out: {}: it loses frames", placement.summary());
        None
    }
}

impl FrameCosts {
    fn add(mut self, sample: PlacementSample, unobserved: f64) -> Self {
        let whole = sample.sending + sample.threads;
        self.total_ns.push(whole);
        // Noise may make the difference negative.
        self.added_ns.push((whole - unobserved).max(1.0));
        self
    }
}

/// Returns the indices of the placements that need more rounds. The first is `choice`, the
/// placement that a policy chose. The others are those whose comparison with `choice` is undecided.
/// Returns no indices if no comparison is undecided.
fn undecided_placements(taken: &[Option<FrameCosts>], choice: Option<usize>) -> Vec<usize> {
    let taken_by = |at: usize| taken.get(at)?.as_ref();
    let Some((at, chosen)) = choice.and_then(|at| Some((at, taken_by(at)?))) else {
        return Vec::new();
    };
    let is_open = |other: &usize| {
        let times = taken_by(*other)
            .and_then(|other| CostRatio::compare(&chosen.added_ns, &other.added_ns));
        *other != at && times.is_some_and(|times| !times.is_decided(COST_RATIO_MAX))
    };
    let mut open: Vec<usize> = (0..taken.len()).filter(is_open).collect();
    if !open.is_empty() {
        open.insert(0, at);
    }
    open
}

/// Returns the row of the goal for a request. Its value is the ratio of the cost of `choice` to the
/// cost of another placement, with the confidence interval. Of all other placements, the one with
/// the least favorable ratio counts.
fn goal_row<'t>(
    (number, line): (usize, &str),
    choice: &FrameCosts,
    others: impl Iterator<Item = &'t FrameCosts>,
    sentinel_ns: f64,
) -> Row {
    let all = others.filter_map(|other| CostRatio::compare(&choice.added_ns, &other.added_ns));
    // If there is only one placement, it is the best.
    let unobserved = CostRatio { median: 1.0, interval: [1.0; 2], rounds: choice.added_ns.len() };
    let times = worst_comparison(all, COST_RATIO_MAX).unwrap_or(unobserved);
    Row {
        bench: "placement",
        goal: Some("placement"),
        target: Some(1.0),
        ratio: COST_RATIO_MAX / times.interval[1],
        reference: "1.1",
        n: times.rounds,
        spread: times.interval,
        sentinel_ns,
        ..replay::single_sample_row(
            format!("{number} {line}, by pairs"),
            SETTLED_COST_POLICY_NAME,
            times.median,
            RATIO_UNIT,
        )
    }
}

/// Returns a row for every placement of a request.
fn placement_rows(
    (number, line): (usize, &str),
    all: &[Placement],
    tried: &[Option<FrameCosts>],
    sentinel: f64,
) -> Vec<Row> {
    let taken = all.iter().zip(tried).filter_map(|(placed, taken)| Some((placed, taken.as_ref()?)));
    let row = |(placed, taken): (&Placement, &FrameCosts)| {
        let row = format!("{number} {line} @ {}", placed.summary());
        let samples = [Samples { name: PLACEMENT_NAME, values: taken.added_ns.clone() }];
        let subject = ("placement", row.as_str(), f64::NAN);
        rows_of_samples(subject, ("ns CPU/frame", BetterDirection::Less), sentinel, &samples, &[])
    };
    taken.flat_map(row).collect()
}

/// Returns the rows of a request: the best placement, and the choices of the policies.
fn request_rows(
    (number, line, count): (usize, &str, usize),
    all: &[(Placement, FrameCosts)],
    policies: &[(&'static str, Vec<String>)],
    sentinel: f64,
) -> Vec<Row> {
    let middle = |(_, taken): &&(Placement, FrameCosts)| median(&taken.added_ns);
    let best = all.iter().min_by(|one, other| middle(one).total_cmp(&middle(other)));
    let Some(best) = best else { return Vec::new() };
    let mut chosen = vec![(BEST_PLACEMENT_NAME, best)];
    for (name, spaces) in policies {
        match all.iter().find(|(placement, _)| placement.spaces == *spaces) {
            Some(found) => chosen.push((name, found)),
            None => eprintln!("left out: {name} of `{line}`: it was not measured"),
        }
    }
    let row = |who: &str| format!("{number} {line} ({count} placements, {who})");
    let samples = |value: fn(&FrameCosts) -> &Vec<f64>| -> Vec<Samples> {
        let each = chosen.iter();
        each.map(|(name, (_, taken))| Samples { name, values: value(taken).clone() }).collect()
    };
    let mut made = rows_of_samples(
        ("placement", "", number as f64),
        ("ns CPU/frame", BetterDirection::Less),
        sentinel,
        &samples(|taken| &taken.added_ns),
        &[],
    );
    let rates = samples(|taken| &taken.total_ns).into_iter().map(|Samples { name, values }| {
        Samples { name, values: values.iter().map(|ns| 1e6 / ns).collect() }
    });
    let rates: Vec<Samples> = rates.collect();
    let subject = ("placement", "", number as f64);
    made.extend(rows_of_samples(
        subject,
        ("kframes/CPU s", BetterDirection::More),
        sentinel,
        &rates,
        &[],
    ));
    for made in &mut made {
        let who = chosen.iter().find(|(name, _)| *name == made.candidate);
        made.row = row(&who.map(|(_, (placed, _))| placed.summary()).unwrap_or_default());
    }
    made
}

/// Returns the rows that summarize the verdicts on all requests.
fn summary_rows(all: &[Row], lines: usize) -> Vec<Row> {
    let of = |who: &str| -> Vec<f64> {
        let costs = |row: &&Row| row.candidate == who && row.unit == "ns CPU/frame";
        let ratio_rows = all.iter().filter(costs).filter(|row| row.goal.is_none());
        ratio_rows.map(|row| 1.0 / row.ratio).collect()
    };
    let lost = |by: f64, who: &str| of(who).iter().filter(|times| **times > by).count() as f64;
    let worst_of = |who: &str| of(who).into_iter().fold(1.0, f64::max);
    let row = |name: &str, who, value: f64, unit| Row {
        bench: "placement",
        goal: Some("placement"),
        target: Some(1.0),
        ..replay::single_sample_row(name.to_owned(), who, value, unit)
    };
    let at_least = |row: Row, least: f64| Row { ratio: row.value / least, reference: "5", ..row };
    let judged: Vec<&Row> = all.iter().filter(|row| row.unit == RATIO_UNIT).collect();
    let count = |verdict| {
        let of = |row: &&&Row| {
            let (median, interval, rounds) = (row.value, row.spread, row.n);
            CostRatio { median, interval, rounds }.verdict(COST_RATIO_MAX) == verdict
        };
        judged.iter().filter(of).count() as f64
    };
    let without_goal = |row: Row| Row { goal: None, target: None, ..row };
    let certain = row(
        "surely within 1.1x of all",
        SETTLED_COST_POLICY_NAME,
        count(Verdict::WithinLimit),
        "lines",
    );
    vec![
        Row { ratio: certain.value / lines as f64, reference: "all lines", ..certain },
        without_goal(row(
            "cannot be told",
            SETTLED_COST_POLICY_NAME,
            count(Verdict::Undecided),
            "lines",
        )),
        without_goal(row(
            "surely more than 1.1x",
            SETTLED_COST_POLICY_NAME,
            count(Verdict::BeyondLimit),
            "lines",
        )),
        without_goal(row("worst choice", COST_POLICY_NAME, worst_of(COST_POLICY_NAME), RATIO_UNIT)),
        without_goal(row(
            "more than 1.1x the best",
            COST_POLICY_NAME,
            lost(COST_RATIO_MAX, COST_POLICY_NAME),
            "lines",
        )),
        at_least(
            row(
                "loses by 1.1x",
                DEEPEST_POLICY_NAME,
                lost(COST_RATIO_MAX, DEEPEST_POLICY_NAME),
                "lines",
            ),
            5.0,
        ),
        at_least(row("loses by 1.3x", ONE_THREAD_NAME, lost(1.3, ONE_THREAD_NAME), "lines"), 5.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_compares_the_choice_with_the_best_placement() {
        let machine = Machine::example_with_kernel();
        let placed = |text: &str| Placement::plan_pinned(text, &machine).unwrap();
        let kernel = placed("rx lo @kernel | udp @kernel | count @kernel");
        let thread = placed("rx lo @thread0 | udp @thread0 | count @thread0");
        assert_eq!(kernel.summary(), "kernel 3");
        let taken = |ns| FrameCosts { added_ns: vec![ns; 3], total_ns: vec![1000.0 + ns; 3] };
        let policies = [
            (ANALYZED_COST_POLICY_NAME, kernel.spaces.clone()),
            (DEEPEST_POLICY_NAME, thread.spaces.clone()),
        ];
        let all = [(kernel, taken(100.0)), (thread, taken(200.0))];
        let rows = request_rows((1, "rx | udp | count", 2), &all, &policies, 0.0);
        let of: Vec<_> = rows.iter().map(|row| (row.candidate, row.unit, row.ratio)).collect();
        let unit = "ns CPU/frame";
        assert_eq!(
            of[..3],
            [
                (BEST_PLACEMENT_NAME, unit, 1.0),
                (ANALYZED_COST_POLICY_NAME, unit, 1.0),
                (DEEPEST_POLICY_NAME, unit, 0.5)
            ]
        );
        let mut rows = rows;
        let taken = [50.0, 100.0, 200.0].map(taken);
        rows.push(goal_row((1, "rx | udp | count"), &taken[1], taken[2..].iter(), 0.0));
        rows.push(goal_row((2, "rx | udp | count"), &taken[1], taken[..1].iter(), 0.0));
        let summary = summary_rows(&rows, 4);
        let goals = summary.iter().filter(|row| row.goal.is_some());
        let of: Vec<_> = goals.map(|row| (row.value, row.ratio)).collect();
        assert_eq!(of, [(1.0, 0.25), (1.0, 0.2), (0.0, 0.0)]);
        assert_eq!((summary[1].value, summary[2].value), (0.0, 1.0));
    }

    #[test]
    fn additional_rounds_run_the_undecided_placements_only() {
        let of =
            |values: &[f64]| Some(FrameCosts { added_ns: values.to_vec(), total_ns: Vec::new() });
        let (choice, near, far) = (of(&[100.0; 9]), of(&[80.0, 100.0, 120.0]), of(&[200.0; 9]));
        let all = [far.clone(), choice, None, near.clone()];
        assert_eq!(undecided_placements(&all, Some(1)), [1, 3]);
        assert_eq!(undecided_placements(&all, Some(2)), [0; 0]);
        assert_eq!(undecided_placements(&all, None), [0; 0]);
        assert_eq!(undecided_placements(&[far, near], Some(0)), [0; 0]);
    }
}
