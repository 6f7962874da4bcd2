//! Calibration: measures the costs of filters and transfers on this machine once, for all later
//! runs.
//!
//! Input: the machine. Output: a cost table for the planner, and the figures that could not be
//! measured, with the reasons. [SL §7.1; CONTRACT 27]
//!
//! - [`user_filters`]: every filter in a thread, on bundled or generated frames;
//! - [`twins`]: every twin in the kernel, by test runs;
//! - [`transfer`]: rings, copies, wake-ups;
//! - [`taps`]: delivery of a frame to a packet socket or to a kernel program, and its copy to user
//!   space;
//! - [`redirect`]: a frame that is redirected to a socket or leaves through another interface;
//! - [`test_traffic`](mod@test_traffic): whole requests under load, for `taps` and `redirect`;
//! - [`stored_costs`]: the file that keeps the cost table.
//!
//! Each figure is the minimum over several rounds, because other load on the machine can only
//! increase it. The additional costs of twins under load ([`taps`]) are medians instead; each of
//! their rounds runs both of the requests that are compared.

mod calibration;
mod redirect;
mod stored_costs;
mod taps;
mod test_traffic;
mod transfer;
mod twins;
mod user_filters;

pub use calibration::Calibration;
pub use stored_costs::{StoredCosts, costs_file_path, load_stored_costs, state_directory};

use pipeline::plan::{COSTS_VERSION, Costs};

/// Measures all costs. Blocks for several seconds. Calls `report_progress` with the name of each
/// step before the step begins.
pub fn calibrate(report_progress: &dyn Fn(&str)) -> Calibration {
    let costs = Costs { version: COSTS_VERSION, ..Costs::default() };
    let mut calibration = Calibration { costs, missing: Vec::new() };
    report_progress("copies, rings, wake-ups");
    transfer::measure(&mut calibration);
    report_progress("filters in a thread");
    user_filters::measure(&mut calibration);
    report_progress("filters in the kernel");
    twins::measure(&mut calibration);
    report_progress("packet sockets and programs");
    taps::measure(&mut calibration);
    report_progress("taking and redirecting frames");
    redirect::measure(&mut calibration);
    calibration
}

#[cfg(test)]
mod tests;
