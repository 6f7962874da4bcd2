//! Tests of calibration: every cost is either measured or reported as missing with a reason.

use super::*;

#[test]
fn o3_calibration_measures_every_filter_in_a_thread() {
    let mut calibration = Calibration { costs: Costs::default(), missing: Vec::new() };
    user_filters::measure(&mut calibration);
    assert_eq!(calibration.missing, [], "every example can be run");
    for description in filter::catalog::FILTERS {
        let known = |cost: &&pipeline::plan::FilterCost| cost.filter == description.name;
        let cost = calibration.costs.filters.iter().find(known).unwrap();
        assert!(!cost.kernel && cost.block + cost.byte > 0.0, "{cost:?}");
        assert!(cost.block.is_finite() && cost.byte.is_finite(), "{cost:?}");
    }
}

#[test]
fn calibration_measures_copies_rings_and_wakeups() {
    let mut calibration = Calibration { costs: Costs::default(), missing: Vec::new() };
    transfer::measure(&mut calibration);
    assert_eq!(calibration.missing, []);
    let Costs { copy, kilobyte, ring, wake, call, .. } = calibration.costs;
    for (name, ns) in [("copy", copy), ("look", kilobyte), ("ring", ring), ("call", call)] {
        assert!(ns > 0.0 && ns.is_finite(), "{name}: {ns}");
    }
    // The duration of a wake-up depends on the machine. A wake-up of 10 ns or less would be one
    // without a system call, which would be a defect.
    assert!(wake > 10.0 && wake.is_finite(), "{wake}");
}

#[test]
fn o3_twins_are_measured_if_the_kernel_loads_programs() {
    let mut calibration = Calibration { costs: Costs::default(), missing: Vec::new() };
    twins::measure(&mut calibration);
    if let Err(why) = twins::measure_empty_program_ns() {
        println!("skipped: figures of twins: {why}");
        assert!(!calibration.missing.is_empty() && calibration.costs.filters.is_empty());
        return;
    }
    assert_eq!(calibration.missing, [], "every twin loads");
    assert_eq!(calibration.costs.filters.len(), twins::filters_with_twins().count());
    assert!(calibration.costs.filters.iter().all(|cost| cost.kernel && cost.block.is_finite()));
}
