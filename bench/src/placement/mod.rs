//! `bench placement`: what the policies choose, against every other placement.
//!
//! Each line is run in every way that can be planned on this machine: so many of its nodes in the
//! kernel, so many in a thread, the rest in another. A flood over a virtual cable is what comes in.
//! Measured is all processor time for a frame, of the process and of the kernel, beyond what
//! sending takes with nobody there. Whoever loses frames is asked again, and left out when that
//! does not help. The policies `cost` and `deepest`, and all in one thread, are rows against the
//! best of all; goal: `cost` never costs more than 1.1 times the best.

mod lines;

use crate::Options;
use crate::flood::{Flood, Host};
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::pick::{Tool, streamline};
use crate::processes::when_idle;
use crate::replay::{self, Folder};
use crate::row::Row;
use crate::sentinel::Sentinel;
use engine::machine;
use lines::{LINES, Placement, nodes, placements, planned, spaces};
use pipeline::plan::Machine;
use std::path::PathBuf;
use testkit::net::SERVER_DEVICE;

/// Frames of a sample, and of those that are sent before, unmeasured; one in two goes to port 53.
const FRAMES: usize = 50_000;
const BEFORE: usize = 2_000;
const ONE_IN: usize = 2;
const LENGTH: usize = 128;
/// How often somebody who loses frames is asked.
const TRIES: usize = 3;
/// What the choice may cost, as a multiple of the best.
const AT_MOST: f64 = 1.1;

const BEST: &str = "best of all";
const COST: &str = "policy cost";
const DEEPEST: &str = "policy deepest";
const ONE_THREAD: &str = "all in one thread";

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let path = streamline().ok_or("needs `streamline` beside this program")?;
    let folder = Folder::new("placement").map_err(|why| why.to_string())?;
    let flood = Flood::new(LENGTH, ONE_IN, Host::Ignores)?;
    let mut bench = Bench { flood, folder, path, machine: machine::look() };
    let mut all = Vec::new();
    let mut worst: f64 = 1.0;
    for line in LINES {
        let made = bench.line(line, options.rounds)?;
        let costs = made.iter().filter(|row| row.goal.is_some()).map(|row| 1.0 / row.ratio);
        worst = costs.fold(worst, f64::max);
        all.extend(made);
    }
    let lost = |by: f64, who: &str| {
        let of = all.iter().filter(|row| row.candidate == who && row.goal.is_none());
        of.filter(|row| row.ratio < 1.0 / by).count() as f64
    };
    let single = |name: String, who, value, unit| Row {
        bench: "placement",
        ..replay::single(name, who, value, unit)
    };
    let told = [
        single("worst choice".to_owned(), COST, worst, "of the best"),
        single("loses by 1.1x".to_owned(), DEEPEST, lost(AT_MOST, DEEPEST), "lines"),
        single("loses by 1.3x".to_owned(), ONE_THREAD, lost(1.3, ONE_THREAD), "lines"),
    ];
    all.extend(told);
    Ok(all)
}

struct Bench {
    flood: Flood,
    folder: Folder,
    path: PathBuf,
    machine: Machine,
}

impl Bench {
    /// All placements of a line.
    fn line(&mut self, line: &str, rounds: usize) -> Result<Vec<Row>, String> {
        let text = line.replacen("rx", &format!("rx {SERVER_DEVICE} ring=8MB"), 1);
        let chosen = |text: &str| {
            let plan = planned(text, &self.machine)?;
            Ok::<_, String>(spaces(&plan, nodes(text).len()))
        };
        let (cost, deepest) = (chosen(&text)?, chosen(&format!("--policy=deepest {text}"))?);
        let all = placements(&text, &self.machine);
        let mut taken: Vec<Option<Vec<f64>>> = all.iter().map(|_| Some(Vec::new())).collect();
        for round in 0..=rounds {
            self.flood.send(BEFORE)?;
            let alone = self.flood.send(FRAMES)?;
            for (placement, samples) in all.iter().zip(&mut taken) {
                let Some(values) = samples else { continue };
                match self.sample(placement, alone) {
                    // The first round warms up.
                    Ok(value) if round > 0 => values.push(value),
                    Ok(_) => {}
                    Err(why) => {
                        eprintln!("left out: {}: {why}", placement.text);
                        *samples = None;
                    }
                }
            }
        }
        let measured: Vec<(&Placement, &Vec<f64>)> = all
            .iter()
            .zip(&taken)
            .filter_map(|(placement, samples)| Some((placement, samples.as_ref()?)))
            .collect();
        Ok(told(line, &measured, [cost, deepest]))
    }

    /// Processor time for a frame, in ns.
    fn sample(&mut self, placement: &Placement, alone: u64) -> Result<f64, String> {
        let tool = Tool::run(self.path.clone(), &placement.text, none_lost);
        for _ in 0..TRIES {
            let space = &self.flood.pair.server;
            let child = tool.start(space, &self.folder.0)?;
            self.flood.send(BEFORE)?;
            let before = when_idle(&[child.id()]);
            let took = self.flood.send(FRAMES)?;
            let (used, whole) = tool.end(child, &self.folder.0)?;
            if whole == 1 {
                let beyond = took as f64 - alone as f64 + (used - before) as f64;
                return Ok((beyond / FRAMES as f64).max(1.0));
            }
        }
        Err("it loses frames".to_owned())
    }
}

/// Whether the ledger says that nothing was lost.
fn none_lost(told: &str) -> u64 {
    u64::from(told.ends_with("none lost\n"))
}

/// The rows of a line: the best placement, and what was chosen.
fn told(
    line: &str,
    all: &[(&Placement, &Vec<f64>)],
    [cost, deepest]: [Vec<String>; 2],
) -> Vec<Row> {
    let best = all.iter().min_by(|one, other| median(one.1).total_cmp(&median(other.1)));
    let Some((best, values)) = best else { return Vec::new() };
    let one_thread = vec!["thread0".to_owned(); best.spaces.len()];
    let mut samples = vec![Samples { name: BEST, values: (*values).clone() }];
    for (name, spaces) in [(COST, cost), (DEEPEST, deepest), (ONE_THREAD, one_thread)] {
        match all.iter().find(|(placement, _)| placement.spaces == spaces) {
            Some((_, values)) => samples.push(Samples { name, values: (*values).clone() }),
            None => eprintln!("left out: {name} of `{line}`: it was not measured"),
        }
    }
    let goal = Goal { candidate: COST, reference: BEST, goal: "placement", target: 1.0 / AT_MOST };
    let row = format!("{line} ({} placements, best {})", all.len(), short(&best.spaces));
    let subject = ("placement", row.as_str(), f64::NAN);
    rows(subject, ("ns CPU/frame", Better::Less), Sentinel::take(), &samples, &[goal])
}

/// How many nodes stand in which space, in their order: `kernel 2 thread0 3`.
fn short(spaces: &[String]) -> String {
    let runs = spaces.chunk_by(|one, other| one == other);
    runs.map(|run| format!("{} {}", run[0], run.len())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_compared_with_the_best() {
        let placement = |spaces: [&str; 2]| Placement {
            text: String::new(),
            spaces: spaces.map(str::to_owned).to_vec(),
        };
        let (kernel, thread) = (placement(["kernel"; 2]), placement(["thread0"; 2]));
        let (low, high) = (vec![100.0; 3], vec![200.0; 3]);
        let chosen = [kernel.spaces.clone(), thread.spaces.clone()];
        let rows = told("rx | count", &[(&kernel, &low), (&thread, &high)], chosen);
        let told: Vec<_> = rows.iter().map(|row| (row.candidate, row.ratio)).collect();
        let wanted = [(BEST, 1.0), (COST, 1.0), (DEEPEST, 0.5), (ONE_THREAD, 0.5), (COST, 1.0)];
        assert_eq!(told, wanted);
        assert_eq!(short(&kernel.spaces), "kernel 2");
    }
}
