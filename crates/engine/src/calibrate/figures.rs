//! The figures of a calibration, and how the least of several is taken.

use pipeline::plan::Costs;

/// The result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The table. What could not be measured is as built in.
    pub costs: Costs,
    /// Figures that could not be measured, with the reasons.
    pub missing: Vec<(String, String)>,
}

impl Calibration {
    /// Puts a figure in, or why there is none.
    pub(super) fn note(&mut self, name: &str, measured: Result<f64, String>) {
        match measured {
            Ok(ns) => {
                self.costs.set(name, ns);
            }
            Err(why) => self.missing.push((name.to_owned(), why)),
        }
    }
}

/// The least time that one of so many calls takes, in ns, over some rounds.
pub(super) fn least(rounds: usize, calls: u32, mut work: impl FnMut(u32)) -> f64 {
    let round = |_| {
        let begin = sys::clock::monotonic();
        work(calls);
        (sys::clock::monotonic() - begin) as f64 / f64::from(calls)
    };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}
