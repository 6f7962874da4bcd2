//! Run time of programs as measured by the kernel, less the overhead of the measurement.
//!
//! The kernel reads its clock before and after each run, and the measured time includes a part of
//! the cost of reading. For a short program this part would dominate, so the time of an empty
//! program is measured and subtracted.

use ebpf::insn::{Insn, R0, encode};
use sys::bpf::{Program, ProgramKind, RunStatisticsGuard};

/// The frame on which an empty program is run to measure the overhead of a run.
const FRAME: [u8; 64] = [0; 64];
/// Number of test runs over which the time of an empty program is averaged.
const TEST_RUN_COUNT: u32 = 10_000;

/// A guard that keeps the kernel's run-time statistics for programs enabled.
#[derive(Debug)]
pub(super) struct ProgramTiming {
    _counts: RunStatisticsGuard,
    /// Measured time of one run of an empty program, in ns.
    empty_run_ns: f64,
}

impl ProgramTiming {
    /// Enables the statistics; returns `None` if the process lacks permission. While statistics are
    /// enabled, each run of every program takes about 70 ns longer.
    pub(super) fn enable() -> Option<Self> {
        let counts = RunStatisticsGuard::enable().ok()?;
        Some(Self { _counts: counts, empty_run_ns: measure_empty_run().unwrap_or_default() })
    }

    /// Subtracts the overhead of measurement from the time of program runs. `runs` is the number of
    /// runs, and `ns` their measured total time. Returns the remaining time in ns.
    pub(super) fn subtract_overhead(&self, runs: u64, ns: u64) -> u64 {
        let added = (runs as f64 * self.empty_run_ns) as u64;
        ns.saturating_sub(added)
    }
}

fn measure_empty_run() -> Option<f64> {
    let program = encode(&[Insn::mov(R0, 0), Insn::exit()]);
    let program = Program::load(ProgramKind::Tc, "nothing", &program).ok()?;
    program.test_run(&FRAME, TEST_RUN_COUNT).ok()?;
    program.info().ok()?.ns_per_run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_of_run_statistics_is_subtracted() {
        let skip = || testkit::need::report_skip("needs a kernel that counts runs for us");
        let Some(timing) = ProgramTiming::enable().or_else(skip) else { return };
        let nothing = timing.empty_run_ns;
        assert!(nothing > 0.0 && nothing < 10_000.0, "{nothing}");
        let all = (nothing * 1000.0) as u64;
        assert_eq!(timing.subtract_overhead(1000, all), 0);
        assert_eq!(timing.subtract_overhead(1000, all + 5000), 5000);
        assert_eq!(timing.subtract_overhead(1000, 0), 0);
    }
}
