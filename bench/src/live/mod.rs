//! Live traffic: `rx | bpf | tcp | http | count` compared with widely used programs, on the same
//! veth pair between two network namespaces.
//!
//! A generated HTTP capture is sent at a chosen rate. Sender and observer have one processor each.
//! For each program, the bench determines the highest rate without loss. Then it measures, in
//! rounds, the cost per frame at that rate and at the lowest rate of all programs: the processor
//! time of the program, and the additional time of sending, because the kernel does its part of the
//! work in the sender's context. The requests that the programs find are also counted. All rings
//! have the same size, a small fraction of the capture.
//!
//! Needs root to create the network namespaces. All traffic stays in them.

pub(crate) mod frame_load;
mod programs;

use crate::harness::{Candidate, measure_interleaved_rows, median};
use crate::options::Options;
use crate::replay;
use crate::row::Row;
use crate::temp_directory::TempDirectory;
use frame_load::{FrameLoad, Rate};
use programs::{LiveProgram, OUR_NAME, Observation, RunPurpose};
use std::cell::{Cell, RefCell};
use testkit::net::{DevicePairSettings, NamespacePair};

/// Divisor of [`Options::size`] that yields the size of this bench's capture, which is smaller than
/// those of other benches.
const CAPTURE_SIZE_DIVISOR: u64 = 5;
/// Number of bisection steps in the search for the highest rate.
const BISECTION_STEPS: usize = 6;
/// Number of measurements without observers.
const UNOBSERVED_ROUNDS: usize = 3;
/// Approximate maximum duration of a measurement without observers, in s.
const UNOBSERVED_SECONDS_MAX: f64 = 0.3;

/// Measures the rates, the costs and the numbers of requests of all programs.
pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let pair = NamespacePair::new(cable).ok_or("needs root and `ip`: it makes two namespaces")?;
    let folder = TempDirectory::new("live").map_err(|why| why.to_string())?;
    let file = folder.0.join("mixed.pcap");
    let length = replay::write_capture_in_child(
        "mixed",
        &file,
        (options.size / CAPTURE_SIZE_DIVISOR).max(1),
    )?;
    let programs = programs::installed_programs(&folder.0, &file)?;
    let load = FrameLoad::read(&file).map_err(|why| why.to_string())?;
    let bench = LiveBench { pair, load, programs: &programs, folder: &folder };
    let row = format!("{} MB of HTTP", length / 1_000_000);
    let rates = bench.find_highest_rates(&row)?;
    let mut rows: Vec<Row> = rates.iter().map(|(_, row)| row.clone()).collect();
    let rates: Vec<Cell<Rate>> = rates.into_iter().map(|(rate, _)| Cell::new(rate)).collect();
    rows.extend(bench.measure_cost(&format!("{row}, each at its rate"), options.rounds, &rates)?);
    // All programs receive the lowest rate.
    let lowest = rates.iter().map(Cell::get).min_by(|one, other| one.total_cmp(*other));
    let same: Vec<_> =
        rates.iter().map(|_| Cell::new(lowest.unwrap_or(Rate::Unthrottled))).collect();
    rows.extend(bench.measure_cost(
        &format!("{row}, all at the lowest rate"),
        options.rounds,
        &same,
    )?);
    rows.extend(bench.count_requests(&row, &rates)?);
    Ok(rows)
}

/// The setup of `bench live`: the veth pair, the capture that is sent, and the programs that
/// observe it.
struct LiveBench<'b> {
    pair: NamespacePair,
    load: FrameLoad,
    programs: &'b [LiveProgram],
    folder: &'b TempDirectory,
}

impl LiveBench<'_> {
    /// Sends the capture while a program observes. Returns the program's results.
    fn measure_program(
        &self,
        program: &LiveProgram,
        rate: Rate,
        purpose: RunPurpose,
    ) -> Result<Observation, String> {
        program.measure_program(&self.pair, &self.folder.0, (&self.load, rate), purpose)
    }

    /// Determines the highest rate at which each program loses no frames.
    fn find_highest_rates(&self, row: &str) -> Result<Vec<(Rate, Row)>, String> {
        let mut found = Vec::new();
        for program in self.programs {
            let (rate, reached) = self.find_highest_rate(program)?;
            eprintln!("{}: {:.0} frames a second without loss", program.name, reached);
            found.push((rate, single_sample_row(row, program.name, reached / 1e3, "kframes/s")));
        }
        let ours = found.first().map_or(f64::NAN, |(_, row)| row.value);
        for (_, row) in &mut found {
            (row.reference, row.ratio) = (OUR_NAME, row.value / ours);
        }
        Ok(found)
    }

    /// Returns the highest rate setting at which a program loses no frames, and the frames per
    /// second that the sender reached with this setting.
    fn find_highest_rate(&self, program: &LiveProgram) -> Result<(Rate, f64), String> {
        let flat_out = self.measure_program(program, Rate::Unthrottled, RunPurpose::Cost)?;
        if flat_out.is_lossless {
            return Ok((Rate::Unthrottled, flat_out.sent.rate()));
        }
        let (mut low, mut high, mut reached) = (0.0, flat_out.sent.rate(), 0.0);
        for _ in 0..BISECTION_STEPS {
            let middle = f64::midpoint(low, high);
            let ran = self.measure_program(program, Rate::PerSecond(middle), RunPurpose::Cost)?;
            if ran.is_lossless {
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

    /// Measures each program several times. Returns the frames per second of processor time, and
    /// the cost of a frame in the program and in the kernel.
    fn measure_cost(
        &self,
        row: &str,
        rounds: usize,
        rates: &[Cell<Rate>],
    ) -> Result<Vec<Row>, String> {
        let shares: Vec<RefCell<Vec<[f64; 2]>>> =
            self.programs.iter().map(|_| RefCell::default()).collect();
        let measure = |number: usize| {
            let ran = self.observe_without_loss(number, &rates[number], RunPurpose::Cost)?;
            // The additional time of sending; noise may make it negative.
            let kernel_ns =
                ran.sent.busy_ns as f64 - self.estimate_unobserved_ns(rates[number].get())?;
            let frames = ran.sent.frames as f64;
            let share = [ran.processor_ns as f64 / frames, kernel_ns.max(0.0) / frames];
            shares[number].borrow_mut().push(share);
            Ok(1e9 / share.into_iter().sum::<f64>().max(1.0))
        };
        let measure = &measure;
        let candidate = |(number, program): (usize, &LiveProgram)| Candidate {
            name: program.name,
            measure: Box::new(move || measure(number)),
        };
        let candidates = self.programs.iter().enumerate().map(candidate).collect();
        let mut rows = measure_interleaved_rows(
            ("live", row, f64::NAN),
            "frames/CPU s",
            rounds,
            candidates,
            &[],
        )?;
        for (program, shares) in self.programs.iter().zip(&shares) {
            for (of, place) in ["in the program", "in the kernel"].into_iter().enumerate() {
                // The first round was a warm-up.
                let taken: Vec<f64> =
                    shares.borrow().iter().skip(1).map(|share| share[of]).collect();
                let row = format!("{row}, {place}");
                rows.push(Row {
                    n: taken.len(),
                    ..single_sample_row(&row, program.name, median(&taken), "ns/frame")
                });
            }
        }
        Ok(rows)
    }

    /// Sends the capture at a rate while the program with the index `number` observes. If frames
    /// are lost, reduces the rate by a tenth and retries.
    fn observe_without_loss(
        &self,
        number: usize,
        rate: &Cell<Rate>,
        purpose: RunPurpose,
    ) -> Result<Observation, String> {
        loop {
            let ran = self.measure_program(&self.programs[number], rate.get(), purpose)?;
            if ran.is_lossless {
                return Ok(ran);
            }
            rate.set(rate.get().lowered(ran.sent.rate()));
        }
    }

    /// Estimates the time in ns of sending all frames without observers, by sending some of them.
    fn estimate_unobserved_ns(&self, rate: Rate) -> Result<f64, String> {
        let most = match rate {
            Rate::Unthrottled => usize::MAX,
            Rate::PerSecond(rate) => (rate * UNOBSERVED_SECONDS_MAX) as usize,
        };
        let took = |_| {
            let sent = self.load.send(&self.pair, rate, most)?;
            Ok(sent.busy_ns as f64 / sent.frames.max(1) as f64)
        };
        let took: Result<Vec<f64>, String> = (0..UNOBSERVED_ROUNDS).map(took).collect();
        Ok(median(&took?) * self.load.frame_count() as f64)
    }

    /// Counts the requests that each program finds at its rate in `rates`. The first row is the
    /// number of requests in the capture.
    fn count_requests(&self, row: &str, rates: &[Cell<Rate>]) -> Result<Vec<Row>, String> {
        let mut found = vec![("capture", self.load.requests as f64)];
        for (number, rate) in rates.iter().enumerate() {
            if let Some(requests) =
                self.observe_without_loss(number, rate, RunPurpose::Requests)?.requests
            {
                found.push((self.programs[number].name, requests as f64));
            }
        }
        let ours =
            found.iter().find(|(name, _)| *name == OUR_NAME).map_or(0.0, |(_, found)| *found);
        let rows = found.into_iter().map(|(candidate, value)| Row {
            ratio: ours / value.max(1.0),
            candidate,
            ..single_sample_row(row, OUR_NAME, value, "requests")
        });
        Ok(rows.collect())
    }
}

/// Returns a row of this bench with a single sample.
fn single_sample_row(row: &str, candidate: &'static str, value: f64, unit: &'static str) -> Row {
    Row { bench: "live", ..replay::single_sample_row(row.to_owned(), candidate, value, unit) }
}
