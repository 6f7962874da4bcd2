//! Inspection of this machine for the planner.
//!
//! Unknown cache sizes default to the sizes of a small machine. Kernel support for BPF is probed,
//! not deduced from privileges: the smallest program is loaded and discarded.

use crate::calibrate;
use crate::error::reason_text;
use crate::kernel::is_perfmon_capable;
use crate::path::processors;
use ebpf::insn::{Insn, R0, encode};
use pipeline::plan::{Costs, Kernel, Machine};
use sys::bpf::{Program, ProgramKind};

/// Size of the L1 data cache in bytes that is assumed if the machine does not report it.
const L1D_BYTES_DEFAULT: usize = 32 << 10;
/// Size of the L2 cache in bytes that is assumed if the machine does not report it.
const L2_BYTES_DEFAULT: usize = 256 << 10;

/// Inspects this machine: processors, caches, BPF support and the cost table.
#[must_use]
pub fn inspect_machine() -> Machine {
    let found = sys::machine::Machine::detect();
    let level =
        |level: usize, otherwise| found.cache_sizes.get(level).copied().unwrap_or(otherwise);
    Machine {
        processors: found.processor_count,
        path_processors: processors::path_processors(),
        l1d: level(0, L1D_BYTES_DEFAULT),
        l2: level(1, L2_BYTES_DEFAULT),
        kernel: probe_kernel(found.release.clone()),
        costs: cost_table(),
    }
}

/// Returns the cost table measured on this machine, or else the built-in table. Its field `origin`
/// names the table and, if a stored table cannot be used, the reason.
fn cost_table() -> Costs {
    let built_in = |why: &str| {
        let costs = Costs::default();
        let origin = format!("{}; {why}", costs.origin);
        Costs { origin, ..costs }
    };
    let Some(folder) = calibrate::state_directory() else { return Costs::default() };
    match calibrate::load_stored_costs(&folder) {
        Ok(None) => Costs::default(),
        Ok(Some(kept)) => match kept.check_machine() {
            Ok(()) if kept.costs.is_calibrated() => {
                Costs { origin: format!("measured here {}", kept.format_age()), ..kept.costs }
            }
            // The stored costs come only from runs, without a calibration.
            Ok(()) => {
                let origin = format!("{}; corrected by runs on this machine", kept.costs.origin);
                Costs { origin, ..kept.costs }
            }
            Err(elsewhere) => built_in(&format!("the saved table was {elsewhere}")),
        },
        Err(why) => built_in(&why),
    }
}

fn probe_kernel(release: String) -> Kernel {
    let nothing = encode(&[Insn::mov(R0, 0), Insn::exit()]);
    match Program::load(ProgramKind::Tc, "trial", &nothing) {
        Ok(_) => Kernel::Open { release, hardened: !is_perfmon_capable() },
        Err(refused) => {
            // The remedy depends on the front end, which appends it to this reason.
            Kernel::Closed { release, why: reason_text(&refused.error.into()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspection_of_this_machine_yields_planner_inputs() {
        let machine = inspect_machine();
        assert!(machine.processors > 0 && machine.l1d > 0 && machine.l2 >= machine.l1d);
        match machine.kernel {
            Kernel::Open { release, .. } => assert!(!release.is_empty()),
            Kernel::Closed { why, .. } => assert!(!why.is_empty()),
        }
    }
}
