//! The result of a calibration, with helpers that keep the minimum over several rounds.

use pipeline::plan::{Costs, FilterCost};
use std::error::Error;

/// The result of a calibration: the cost table, and the names of the costs that could not be
/// measured.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The cost table. Figures that could not be measured keep their built-in values.
    pub costs: Costs,
    /// Names of the costs that could not be measured, with the reasons.
    pub missing: Vec<(String, String)>,
}

/// A measured value, or the reason why the measurement failed.
pub(super) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

impl Calibration {
    /// Stores a measured cost, in ns, in the cost table; on failure, records why the figure is
    /// missing.
    pub(super) fn record_cost(&mut self, name: &str, measured: Result<f64>) {
        match measured {
            Ok(ns) => {
                self.costs.set_field(name, ns);
            }
            Err(why) => self.record_missing_figures(&[name], &*why),
        }
    }

    /// Stores a filter's cost, in ns per block and in ns per byte, in the cost table; on failure,
    /// records why the figure is missing. `kernel` is true for the kernel twin and false for the
    /// user implementation.
    pub(super) fn record_filter_cost(
        &mut self,
        name: &str,
        kernel: bool,
        measured: Result<(f64, f64)>,
    ) {
        let place = if kernel { "the kernel" } else { "a thread" };
        match measured {
            Ok((block, byte)) => {
                self.costs.set_filter_cost(FilterCost {
                    filter: name.to_owned(),
                    kernel,
                    block,
                    byte,
                });
            }
            Err(why) => self.record_missing_figures(&[&format!("{name} in {place}")], &*why),
        }
    }

    /// Records that the costs with these names could not be measured, for the reason `why`.
    pub(super) fn record_missing_figures(&mut self, names: &[&str], why: &dyn Error) {
        let missing = |name: &&str| ((*name).to_owned(), why.to_string());
        self.missing.extend(names.iter().map(missing));
    }
}

/// Repeats a measurement `rounds` times, and returns the minimum.
pub(super) fn min_of_rounds(
    rounds: usize,
    mut measure: impl FnMut() -> Result<f64>,
) -> Result<f64> {
    (0..rounds).try_fold(f64::INFINITY, |best, _| Ok(best.min(measure()?)))
}

/// Returns the minimum time per call in ns, over several rounds of `calls` calls each.
pub(super) fn min_call_ns(rounds: usize, calls: u32, mut work: impl FnMut(u32)) -> f64 {
    let round = |_| {
        let begin = sys::clock::monotonic_ns();
        work(calls);
        (sys::clock::monotonic_ns() - begin) as f64 / f64::from(calls)
    };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}
