//! Costs of observing a flood: samples of each observer, round by round.
//!
//! It is taken in two places: in the kernel, by how much longer sending takes than over a cable
//! that nobody observes, in turn ([`Floods`]); and in the processes.

use crate::flood::{Floods, Took};
use crate::harness::median;
use crate::processes::when_idle;
use crate::sentinel::Sentinel;

/// The costs of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Sending, in ns per frame, and sending to nobody.
    pub(crate) sending: f64,
    pub(crate) alone: f64,
    /// Processor time of the processes, in ns per frame.
    pub(crate) processes: f64,
    /// Parts of what everybody should have seen.
    pub(crate) lost: f64,
    /// The number of wake-ups by our doorbell.
    pub(crate) bells: u64,
}

impl Sample {
    /// So many frames, which took so long to send while the processes used so much.
    pub(crate) fn new(frames: usize, took: Took, used_ns: u64) -> Self {
        let each = |ns: u64| ns as f64 / frames as f64;
        let (sending, alone, processes) = (each(took.seen), each(took.alone), each(used_ns));
        Self { sending, alone, processes, lost: 0.0, bells: 0 }
    }

    /// Returns the cost of observing in the kernel, in ns per frame.
    pub(crate) fn kernel(&self) -> f64 {
        self.sending - self.alone
    }

    /// Returns the whole cost of observing, in ns per frame; at least 0, whatever the noise.
    pub(crate) fn cost(&self) -> f64 {
        (self.kernel() + self.processes).max(1.0)
    }

    /// Sends frames while these processes observe; those before are not measured. Ends when they
    /// have nothing left to do.
    pub(crate) fn of(
        floods: &mut Floods,
        processes: &[u32],
        (before, frames): (usize, usize),
    ) -> Result<Self, String> {
        floods.send(before)?;
        let used = when_idle(processes);
        let took = floods.send(frames)?;
        Ok(Self::new(frames, took, when_idle(processes).saturating_sub(used)))
    }
}

/// All samples, by who observes.
#[derive(Debug)]
pub(crate) struct Taken<W> {
    pub(crate) all: Vec<(W, Vec<Sample>)>,
    pub(crate) sentinel_ns: f64,
}

impl<W: Copy + PartialEq> Taken<W> {
    /// Lets all observe in turn, so many times.
    pub(crate) fn take(
        rounds: usize,
        all: &[W],
        mut observe: impl FnMut(W) -> Result<Sample, String>,
    ) -> Result<Self, String> {
        let mut all: Vec<(W, Vec<Sample>)> = all.iter().map(|who| (*who, Vec::new())).collect();
        let mut sentinels = Vec::new();
        for round in 0..=rounds {
            sentinels.push(Sentinel::take());
            for (who, samples) in &mut all {
                let sample = observe(*who)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        Ok(Self { all, sentinel_ns: median(&sentinels) })
    }

    /// Something of each of its samples; nothing where there are none.
    pub(crate) fn each(&self, who: W, value: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let found = self.all.iter().find(|(observes, _)| *observes == who);
        found.map(|(_, samples)| samples.iter().map(value).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_of_observing_is_relative_to_no_observer() {
        let mut turn = 0;
        let taken = Taken::take(2, &["somebody", "somebody else"], |_| {
            turn += 1;
            Ok(Sample::new(10, Took { seen: turn * 1000, alone: 2500 }, 50))
        });
        let taken = taken.unwrap();
        assert_eq!(taken.each("somebody", |sample| sample.sending), [300.0, 500.0]);
        assert_eq!(taken.each("somebody", Sample::kernel), [50.0, 250.0]);
        assert_eq!(taken.each("somebody else", Sample::cost), [155.0, 355.0]);
        assert_eq!(taken.each("who is not there", Sample::cost), [0.0; 0]);
    }
}
