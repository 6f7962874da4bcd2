//! `streamline doctor`: reports which features work on this machine, with remedies for the others.
//!
//! Formats the results of the engine's probes as human-readable text or as one JSON object. For a
//! single facility ([`DoctorSubject`]), prints a short reply, and sets the exit status for scripts.
//!
//! - `calibrate`: measurement of costs;
//! - `findings`: conclusions from the probes;
//! - `page`: the findings as human-readable text;
//! - `unit`: a systemd service for a request.

mod calibrate;
mod findings;
mod page;
mod systemd_unit;

use crate::arguments::{DoctorArguments, DoctorSubject};
use crate::status::Status;
use crate::terminal;
use engine::doctor::MachineFacts;
use findings::{DoctorFindings, Verdict};
use serde::Serialize;
use streamline::neighbors::NeighborFindings;
use streamline::report::json_line;

/// The complete report of `doctor`, printed if the user specifies no facility.
#[derive(Serialize, Debug)]
struct DoctorReport {
    #[serde(flatten)]
    checkup: DoctorFindings,
    /// Kernel programs and packet sockets that other applications have on the interfaces of this
    /// machine.
    others: NeighborFindings,
}

/// The availability of one facility, as JSON.
#[derive(Serialize, Debug)]
struct FacilityAvailability<'v> {
    version: u32,
    #[serde(flatten)]
    verdict: &'v Verdict,
}

/// Probes the machine and prints the findings.
pub(crate) fn doctor(arguments: &DoctorArguments) -> Status {
    let of = |door: fn(&MachineFacts) -> Verdict| {
        print_facility(&door(&MachineFacts::collect()), arguments.json)
    };
    match &arguments.about {
        None if arguments.calibrate => calibrate::run(arguments),
        None => {
            let facts = MachineFacts::collect();
            let others = NeighborFindings::new(&facts.neighbors);
            let page = DoctorReport { checkup: DoctorFindings::new(&facts), others };
            terminal::print_text(&match arguments.json {
                true => json_line(&page),
                false => page::format_findings(&page, terminal::can_color_stdout()),
            })
        }
        Some(DoctorSubject::Rx) => of(findings::capture_verdict),
        Some(DoctorSubject::Tx) => of(findings::send_verdict),
        Some(DoctorSubject::Kernel) => of(findings::program_verdict),
        Some(DoctorSubject::Unit(line)) => systemd_unit::print_unit(line),
    }
}

/// Prints the availability of one facility. The exit status is 1 if the facility is unavailable or
/// the output cannot be written, and otherwise 0.
fn print_facility(verdict: &Verdict, json: bool) -> Status {
    let printed = terminal::print_text(&match json {
        true => json_line(&FacilityAvailability { version: findings::JSON_VERSION, verdict }),
        false => page::format_verdict(verdict, terminal::can_color_stdout()),
    });
    match (printed, verdict.open) {
        (Status::Done, false) => Status::Failed,
        (printed, _) => printed,
    }
}
