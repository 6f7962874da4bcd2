//! Measurement of the cost of observing a flood, with samples of each observer in rounds.
//!
//! The cost has two parts: in the kernel, the additional time of sending compared with an
//! unobserved veth pair that alternately receives the same number of frames ([`FloodPair`]); and
//! the processor time of the processes.

use crate::flood::{FloodPair, SendTimes};
use crate::harness::median;
use crate::processes::wait_until_idle;
use crate::sentinel::CacheRoundTrip;

/// The costs per frame in one sample of a flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObserverSample {
    /// Processor time of sending over the observed veth pair, in ns per frame.
    pub(crate) sending: f64,
    /// Processor time of sending over the second, unobserved veth pair, in ns per frame.
    pub(crate) unobserved: f64,
    /// Processor time of the observing processes, in ns per frame.
    pub(crate) processes: f64,
    /// Share of the frames that were lost, from 0 to 1.
    pub(crate) lost: f64,
    /// Number of doorbells that the tap has sent during the sample.
    pub(crate) doorbells: u64,
}

impl ObserverSample {
    /// Computes the costs from the number of frames, the sending times, and the processor time of
    /// the processes.
    pub(crate) fn new(frames: usize, took: SendTimes, used_ns: u64) -> Self {
        let each = |ns: u64| ns as f64 / frames as f64;
        let (sending, unobserved, processes) =
            (each(took.observed), each(took.unobserved), each(used_ns));
        Self { sending, unobserved, processes, lost: 0.0, doorbells: 0 }
    }

    /// Returns the cost of observing in the kernel, in ns per frame.
    pub(crate) fn kernel_cost(&self) -> f64 {
        self.sending - self.unobserved
    }

    /// Returns the total cost of observing in ns per frame. The result is at least 1, because noise
    /// could make it negative.
    pub(crate) fn total_cost(&self) -> f64 {
        (self.kernel_cost() + self.processes).max(1.0)
    }

    /// Measures one sample: sends `before` frames for warm-up and then `frames` frames, while the
    /// processes observe. Waits until the processes are idle.
    pub(crate) fn measure(
        floods: &mut FloodPair,
        processes: &[u32],
        (before, frames): (usize, usize),
    ) -> Result<Self, String> {
        floods.send(before)?;
        let used = wait_until_idle(processes);
        let took = floods.send(frames)?;
        Ok(Self::new(frames, took, wait_until_idle(processes).saturating_sub(used)))
    }
}

/// The samples of each observer, and the state of the machine while they were taken.
#[derive(Debug)]
pub(crate) struct ObserverSamples<W> {
    pub(crate) all: Vec<(W, Vec<ObserverSample>)>,
    pub(crate) sentinel_ns: f64,
}

impl<W: Copy + PartialEq> ObserverSamples<W> {
    /// Measures all observers `rounds` times, interleaved.
    pub(crate) fn measure_all(
        rounds: usize,
        all: &[W],
        mut observe: impl FnMut(W) -> Result<ObserverSample, String>,
    ) -> Result<Self, String> {
        let mut all: Vec<(W, Vec<ObserverSample>)> =
            all.iter().map(|who| (*who, Vec::new())).collect();
        let mut sentinels = Vec::new();
        for round in 0..=rounds {
            sentinels.push(CacheRoundTrip::measure());
            for (who, samples) in &mut all {
                let sample = observe(*who)?;
                // The first round is a warm-up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        Ok(Self { all, sentinel_ns: median(&sentinels) })
    }

    /// Returns the results of `value` for all samples of the observer `who`. The list is empty if
    /// the observer has no samples.
    pub(crate) fn values(&self, who: W, value: impl Fn(&ObserverSample) -> f64) -> Vec<f64> {
        let found = self.all.iter().find(|(observes, _)| *observes == who);
        found.map(|(_, samples)| samples.iter().map(value).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_of_observing_is_relative_to_no_observer() {
        let mut sample_count = 0;
        let taken = ObserverSamples::measure_all(2, &["somebody", "somebody else"], |_| {
            sample_count += 1;
            Ok(ObserverSample::new(
                10,
                SendTimes { observed: sample_count * 1000, unobserved: 2500 },
                50,
            ))
        });
        let taken = taken.unwrap();
        assert_eq!(taken.values("somebody", |sample| sample.sending), [300.0, 500.0]);
        assert_eq!(taken.values("somebody", ObserverSample::kernel_cost), [50.0, 250.0]);
        assert_eq!(taken.values("somebody else", ObserverSample::total_cost), [155.0, 355.0]);
        assert_eq!(taken.values("who is not there", ObserverSample::total_cost), [0.0; 0]);
    }
}
