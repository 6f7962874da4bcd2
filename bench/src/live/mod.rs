//! Live traffic: `rx | bpf | tcp | http | count` beside the programs that people use, on the same
//! cable between two name spaces.
//!
//! A capture of HTTP that is made here is sent at a chosen rate; the sender has one processor, who
//! observes has the other. For each program the highest rate is found at which it loses nothing,
//! and then, in rounds, what a frame costs at that rate: processor time of the program while the
//! capture is sent, and what sending takes longer because somebody observes (the kernel's part of
//! the work is done in the sender's time). How many requests each finds is counted at that rate
//! too. All rings have the same size, which is a small part of the capture.
//!
//! Needs root: it makes name spaces, in which all of it stays.

mod load;
mod programs;

use crate::folder::Folder;
use crate::harness::{Candidate, interleave, median};
use crate::options::Options;
use crate::replay;
use crate::row::Row;
use load::{Load, Rate};
use programs::{OURS, Program, Purpose, Ran};
use std::cell::{Cell, RefCell};
use testkit::net::{Cable, Pair};

/// The capture that is sent is so many times smaller than those of other benches.
const PART: u64 = 5;
/// The halvings of the interval in which the highest rate lies.
const HALVINGS: usize = 6;
/// The number of measurements of sending without observers, and the longest time of one, in s.
const ALONE: usize = 3;
const ALONE_S: f64 = 0.3;

/// Rates, cost and requests.
pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let cable = Cable { addresses: false, ..Cable::default() };
    let pair = Pair::new(cable).ok_or("needs root and `ip`: it makes two name spaces")?;
    let folder = Folder::new("live").map_err(|why| why.to_string())?;
    let file = folder.0.join("mixed.pcap");
    let length = replay::made("mixed", &file, (options.size / PART).max(1))?;
    let programs = programs::all(&folder.0, &file)?;
    let load = Load::read(&file).map_err(|why| why.to_string())?;
    let bench = Bench { pair, load, programs: &programs, folder: &folder };
    let row = format!("{} MB of HTTP", length / 1_000_000);
    let rates = bench.rates(&row)?;
    let mut rows: Vec<Row> = rates.iter().map(|(_, row)| row.clone()).collect();
    let rates: Vec<Cell<Rate>> = rates.into_iter().map(|(rate, _)| Cell::new(rate)).collect();
    rows.extend(bench.cost(&format!("{row}, each at its rate"), options.rounds, &rates)?);
    // The same for all: the lowest of them.
    let lowest = rates.iter().map(Cell::get).min_by(|one, other| one.total_cmp(*other));
    let same: Vec<_> = rates.iter().map(|_| Cell::new(lowest.unwrap_or(Rate::FlatOut))).collect();
    rows.extend(bench.cost(&format!("{row}, all at the lowest rate"), options.rounds, &same)?);
    rows.extend(bench.requests(&row, &rates)?);
    Ok(rows)
}

struct Bench<'b> {
    pair: Pair,
    load: Load,
    programs: &'b [Program],
    folder: &'b Folder,
}

impl Bench<'_> {
    /// Sends the capture while a program observes.
    fn observe(&self, program: &Program, rate: Rate, purpose: Purpose) -> Result<Ran, String> {
        program.observe(&self.pair, &self.folder.0, (&self.load, rate), purpose)
    }

    /// The highest rate at which each loses nothing.
    fn rates(&self, row: &str) -> Result<Vec<(Rate, Row)>, String> {
        let mut found = Vec::new();
        for program in self.programs {
            let (rate, reached) = self.highest(program)?;
            eprintln!("{}: {:.0} frames a second without loss", program.name, reached);
            found.push((rate, single(row, program.name, reached / 1e3, "kframes/s")));
        }
        let ours = found.first().map_or(f64::NAN, |(_, row)| row.value);
        for (_, row) in &mut found {
            (row.reference, row.ratio) = (OURS, row.value / ours);
        }
        Ok(found)
    }

    /// The highest rate at which a program loses nothing, and how many frames per second that was.
    fn highest(&self, program: &Program) -> Result<(Rate, f64), String> {
        let flat_out = self.observe(program, Rate::FlatOut, Purpose::Cost)?;
        if flat_out.whole {
            return Ok((Rate::FlatOut, flat_out.sent.rate()));
        }
        let (mut low, mut high, mut reached) = (0.0, flat_out.sent.rate(), 0.0);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let ran = self.observe(program, Rate::PerSecond(middle), Purpose::Cost)?;
            if ran.whole {
                (low, reached) = (middle, ran.sent.rate());
            } else {
                high = middle;
            }
        }
        if low == 0.0 {
            return Err(format!("{} loses at {high:.0} frames a second too", program.name));
        }
        Ok((Rate::PerSecond(low), reached))
    }

    /// Frames per second of processor time, in rounds; and what a frame takes of that in the
    /// program, and of the kernel's.
    fn cost(&self, row: &str, rounds: usize, rates: &[Cell<Rate>]) -> Result<Vec<Row>, String> {
        let shares: Vec<RefCell<Vec<[f64; 2]>>> =
            self.programs.iter().map(|_| RefCell::default()).collect();
        let measure = |number: usize| {
            let ran = self.whole(number, &rates[number], Purpose::Cost)?;
            // What sending took longer; noise may make it less than nothing.
            let kernel_ns = ran.sent.busy_ns as f64 - self.alone(rates[number].get())?;
            let frames = ran.sent.frames as f64;
            let share = [ran.processor_ns as f64 / frames, kernel_ns.max(0.0) / frames];
            shares[number].borrow_mut().push(share);
            Ok(1e9 / share.into_iter().sum::<f64>().max(1.0))
        };
        let measure = &measure;
        let candidate = |(number, program): (usize, &Program)| Candidate {
            name: program.name,
            measure: Box::new(move || measure(number)),
        };
        let candidates = self.programs.iter().enumerate().map(candidate).collect();
        let mut rows =
            interleave(("live", row, f64::NAN), "frames/CPU s", rounds, candidates, &[])?;
        for (program, shares) in self.programs.iter().zip(&shares) {
            for (of, place) in ["in the program", "in the kernel"].into_iter().enumerate() {
                // The first round warmed up.
                let taken: Vec<f64> =
                    shares.borrow().iter().skip(1).map(|share| share[of]).collect();
                let row = format!("{row}, {place}");
                rows.push(Row {
                    n: taken.len(),
                    ..single(&row, program.name, median(&taken), "ns/frame")
                });
            }
        }
        Ok(rows)
    }

    /// Sends the capture while a program observes and loses nothing. Who loses after all goes on a
    /// tenth slower.
    fn whole(&self, number: usize, rate: &Cell<Rate>, purpose: Purpose) -> Result<Ran, String> {
        loop {
            let ran = self.observe(&self.programs[number], rate.get(), purpose)?;
            if ran.whole {
                return Ok(ran);
            }
            rate.set(rate.get().slower(ran.sent.rate()));
        }
    }

    /// Estimates the time of sending everything without observers, in ns, from a part of it.
    fn alone(&self, rate: Rate) -> Result<f64, String> {
        let most = match rate {
            Rate::FlatOut => usize::MAX,
            Rate::PerSecond(rate) => (rate * ALONE_S) as usize,
        };
        let took = |_| {
            let sent = self.load.send(&self.pair, rate, most)?;
            Ok(sent.busy_ns as f64 / sent.frames.max(1) as f64)
        };
        let took: Result<Vec<f64>, String> = (0..ALONE).map(took).collect();
        Ok(median(&took?) * self.load.frames() as f64)
    }

    /// Measures the requests that each program finds at its rate.
    fn requests(&self, row: &str, rates: &[Cell<Rate>]) -> Result<Vec<Row>, String> {
        let mut found = vec![("capture", self.load.requests as f64)];
        for (number, rate) in rates.iter().enumerate() {
            if let Some(requests) = self.whole(number, rate, Purpose::Requests)?.requests {
                found.push((self.programs[number].name, requests as f64));
            }
        }
        let ours = found.iter().find(|(name, _)| *name == OURS).map_or(0.0, |(_, found)| *found);
        let rows = found.into_iter().map(|(candidate, value)| Row {
            ratio: ours / value.max(1.0),
            candidate,
            ..single(row, OURS, value, "requests")
        });
        Ok(rows.collect())
    }
}

/// A row that was taken once.
fn single(row: &str, candidate: &'static str, value: f64, unit: &'static str) -> Row {
    Row { bench: "live", ..replay::single(row.to_owned(), candidate, value, unit) }
}
