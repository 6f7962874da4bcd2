//! Costs on this machine: measured once, persisted, and read at every start.
//!
//! In: nothing but the machine. Out: a table of costs for the planner, and what could not be
//! measured, with the reason. [SL §7.1; CONTRACT 27]
//!
//! - [`user`]: every filter in a thread, on frames that are bundled with the program;
//! - [`twins`]: every twin in the kernel, by test runs;
//! - [`between`]: rings, copies, wake-ups;
//! - [`taps`]: what a frame costs at a packet socket, at a program, on its way out of the kernel;
//! - [`cable`]: what one costs that is taken, or leaves by another interface;
//! - [`live`]: whole lines under frames, for both;
//! - [`kept`]: the file.
//!
//! Each figure is the least of several rounds: what others do on the machine only adds. Where it is
//! what one line costs more than another, both run in the same rounds, and half of these say more.

mod between;
mod cable;
mod figures;
mod kept;
mod live;
mod made;
mod taps;
mod twins;
mod user;

pub use figures::Calibration;
pub use kept::{Kept, folder, load, path};

use pipeline::plan::{COSTS_VERSION, Costs};

/// Measures everything; `told` is called with what comes next.
pub fn calibrate(told: &dyn Fn(&str)) -> Calibration {
    let costs = Costs { version: COSTS_VERSION, ..Costs::default() };
    let mut calibration = Calibration { costs, missing: Vec::new() };
    told("copies, rings, wake-ups");
    between::measure(&mut calibration);
    told("filters in a thread");
    user::measure(&mut calibration);
    told("filters in the kernel");
    twins::measure(&mut calibration);
    told("packet sockets and programs");
    taps::measure(&mut calibration);
    told("frames that are taken or sent on");
    cable::measure(&mut calibration);
    calibration
}

#[cfg(test)]
mod tests;
