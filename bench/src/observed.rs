//! What observing a flood costs: samples of who observes, round by round, against nobody.
//!
//! It is taken in two places: in the kernel, by how much longer sending takes than with nobody
//! there in the same round; and in the processes.

use crate::flood::Flood;
use crate::harness::median;
use crate::processes::when_idle;
use crate::sentinel::Sentinel;

/// What a frame came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// From the first frame to the last, in ns per frame.
    pub(crate) sending: f64,
    /// Processor time of the processes, in ns per frame.
    pub(crate) processes: f64,
    /// Parts of what everybody should have seen.
    pub(crate) lost: f64,
    /// How often a bell rang that is ours.
    pub(crate) bells: u64,
}

impl Sample {
    /// So many frames, which took so long to send while the processes used so much.
    pub(crate) fn new(frames: usize, took_ns: u64, used_ns: u64) -> Self {
        let frames = frames as f64;
        let (sending, processes) = (took_ns as f64 / frames, used_ns as f64 / frames);
        Self { sending, processes, lost: 0.0, bells: 0 }
    }

    /// Sends frames while these processes observe; those before are not measured. Ends when they
    /// have nothing left to do.
    pub(crate) fn of(
        flood: &mut Flood,
        processes: &[u32],
        (before, frames): (usize, usize),
    ) -> Result<Self, String> {
        flood.send(before)?;
        let used = when_idle(processes);
        let took = flood.send(frames)?;
        Ok(Self::new(frames, took, when_idle(processes).saturating_sub(used)))
    }
}

/// All samples, by who observes; the first of them is nobody.
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

    /// What observing costs the kernel: what sending takes longer than in the same round alone.
    pub(crate) fn kernel(&self, who: W) -> Vec<f64> {
        let alone = self.all.first().map_or(&[][..], |(_, samples)| samples);
        let with = self.each(who, |sample| sample.sending);
        with.iter().zip(alone).map(|(with, alone)| with - alone.sending).collect()
    }

    /// What observing costs in all, not less than nothing.
    pub(crate) fn cost(&self, who: W) -> Vec<f64> {
        let processes = self.each(who, |sample| sample.processes);
        self.kernel(who).iter().zip(processes).map(|(one, other)| (one + other).max(1.0)).collect()
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
    fn what_observing_costs_is_taken_against_the_same_round() {
        let mut turn = 0;
        let taken = Taken::take(2, &["nobody", "somebody"], |_| {
            turn += 1;
            Ok(Sample::new(10, turn * 1000, 50))
        });
        let taken = taken.unwrap();
        assert_eq!(taken.each("somebody", |sample| sample.sending), [400.0, 600.0]);
        assert_eq!(taken.kernel("somebody"), [100.0, 100.0]);
        assert_eq!(taken.cost("somebody"), [105.0, 105.0]);
        assert_eq!(taken.cost("who is not there"), [0.0; 0]);
    }
}
