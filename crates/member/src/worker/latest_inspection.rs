//! A cached description of the machine, for planning edits. The machine is inspected at most once
//! per second, because an inspection takes some 70 system calls and loads a kernel program.

use pipeline::plan::Machine;
use std::cell::RefCell;

/// Time for which the description of the machine is reused after an inspection, in ns.
const INSPECTION_LIFETIME_NS: u64 = 1_000_000_000;

/// The latest inspection of the machine.
#[derive(Debug, Default)]
pub(super) struct LatestInspection {
    /// The machine, and the monotonic time of the inspection in ns; `None` if there is no
    /// inspection.
    latest: RefCell<Option<(u64, Machine)>>,
}

impl LatestInspection {
    /// Returns the machine as inspected within the last second, or else inspects it now.
    pub(super) fn get_or_inspect(&self) -> Machine {
        let now = sys::clock::monotonic_ns();
        let is_current = |at: u64| now.saturating_sub(at) < INSPECTION_LIFETIME_NS;
        let mut latest = self.latest.borrow_mut();
        match &*latest {
            Some((at, machine)) if is_current(*at) => machine.clone(),
            _ => latest.insert((now, engine::machine::inspect_machine())).1.clone(),
        }
    }

    /// Drops the latest inspection if it was made before the time `now`, in ns of the monotonic
    /// clock. Returns true if an inspection was dropped.
    pub(super) fn forget_older_inspection(&self, now: u64) -> bool {
        self.latest.borrow_mut().take_if(|(at, _)| *at < now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inspections_before_a_time_are_dropped() {
        let recent = LatestInspection::default();
        assert!(!recent.forget_older_inspection(u64::MAX), "there is none");
        let began = sys::clock::monotonic_ns();
        let machine = recent.get_or_inspect();
        assert_eq!(recent.get_or_inspect(), machine);
        assert!(!recent.forget_older_inspection(began), "it is new");
        assert!(
            recent.forget_older_inspection(u64::MAX) && !recent.forget_older_inspection(u64::MAX)
        );
    }
}
