//! The machine on which we are, as the value that the planner takes.
//!
//! Caches that nobody tells are those of a small machine. Whether the kernel takes programs is not
//! deduced from privileges but tried: the smallest program is loaded and thrown away.

use crate::calibrate;
use crate::kernel::is_trusted;
use ebpf::insn::{Insn, R0, encode};
use pipeline::plan::{Costs, Kernel, Machine};
use sys::bpf::{Program, ProgramKind};

/// Bytes of a first-level data cache, where the machine does not say.
const L1D: usize = 32 << 10;
/// Bytes of a second-level cache, where the machine does not say.
const L2: usize = 256 << 10;

/// Looks at this machine.
#[must_use]
pub fn look() -> Machine {
    let found = sys::machine::Machine::detect();
    let level = |level: usize, otherwise| found.caches.get(level).copied().unwrap_or(otherwise);
    Machine {
        processors: found.processors,
        l1d: level(0, L1D),
        l2: level(1, L2),
        kernel: kernel(found.release.clone()),
        costs: costs(),
    }
}

/// The table that was measured here, or the one that is built in, and why.
fn costs() -> Costs {
    let built_in = |why: &str| {
        let costs = Costs::default();
        let origin = format!("{}; {why}", costs.origin);
        Costs { origin, ..costs }
    };
    let Some(folder) = calibrate::folder() else { return Costs::default() };
    match calibrate::load(&folder) {
        Ok(None) => Costs::default(),
        Ok(Some(kept)) => match kept.is_here() {
            Ok(()) if kept.costs.is_calibrated() => {
                Costs { origin: format!("measured here {}", kept.age()), ..kept.costs }
            }
            // Nobody has calibrated; something was learned from runs.
            Ok(()) => {
                let origin = format!("{}; and by what runs showed here", kept.costs.origin);
                Costs { origin, ..kept.costs }
            }
            Err(elsewhere) => built_in(&format!("the table that is kept was {elsewhere}")),
        },
        Err(why) => built_in(&why),
    }
}

fn kernel(release: String) -> Kernel {
    let nothing = encode(&[Insn::mov(R0, 0), Insn::exit()]);
    match Program::load(ProgramKind::Tc, "trial", &nothing) {
        Ok(_) => Kernel::Open { release, hardened: !is_trusted() },
        Err(refused) => {
            let reason = std::io::Error::from_raw_os_error(refused.error.errno).to_string();
            // What to do about it depends on who asks, and is said by whoever talks to them.
            let why = reason.split(" (os error").next().unwrap_or_default().to_lowercase();
            Kernel::Closed { release, why }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_a_plan_needs() {
        let machine = look();
        assert!(machine.processors > 0 && machine.l1d > 0 && machine.l2 >= machine.l1d);
        match machine.kernel {
            Kernel::Open { release, .. } => assert!(!release.is_empty()),
            Kernel::Closed { why, .. } => assert!(!why.is_empty()),
        }
    }
}
