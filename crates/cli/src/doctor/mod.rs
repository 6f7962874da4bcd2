//! `streamline doctor`: reports which features work on this machine, and remedies for the others.
//!
//! Formats the results of the engine's probes as a page for people or as one JSON object; for a
//! single facility ([`DoctorSubject`]) it prints a short reply and sets the exit status for
//! scripts.
//!
//! - `calibrate`: measurement of costs;
//! - `findings`: conclusions from the probes;
//! - `page`: their text for people;
//! - `unit`: a systemd service for a request.

mod calibrate;
mod findings;
mod page;
mod unit;

use crate::arguments::{DoctorArguments, DoctorSubject};
use crate::neighbors::NeighborFindings;
use crate::status::Status;
use crate::terminal;
use engine::doctor::Facts;
use findings::{Checkup, Verdict};
use serde::Serialize;
use streamline::report::json_line;

/// Everything that `doctor` reports without a subject.
#[derive(Serialize, Debug)]
struct Page {
    #[serde(flatten)]
    checkup: Checkup,
    /// Programs and packet sockets at the interfaces.
    others: NeighborFindings,
}

/// Probes the machine and prints the findings.
pub(crate) fn doctor(given: &DoctorArguments) -> Status {
    let of = |door: fn(&Facts) -> Verdict| about(&door(&Facts::look()), given.json);
    match &given.about {
        None if given.calibrate => calibrate::run(given),
        None => {
            let facts = Facts::look();
            let others = NeighborFindings::new(&facts.neighbors);
            let page = Page { checkup: Checkup::new(&facts), others };
            terminal::print(&match given.json {
                true => json_line(&page),
                false => page::text(&page, terminal::has_colour_output()),
            })
        }
        Some(DoctorSubject::Rx) => of(findings::capture_verdict),
        Some(DoctorSubject::Tx) => of(findings::send_verdict),
        Some(DoctorSubject::Kernel) => of(findings::program_verdict),
        Some(DoctorSubject::Unit(line)) => unit::print(line),
    }
}

/// Prints the state of one facility; the status is 0 if it is available.
fn about(verdict: &Verdict, json: bool) -> Status {
    let printed = terminal::print(&match json {
        true => json_line(verdict),
        false => page::verdict(verdict, terminal::has_colour_output()),
    });
    match (printed, verdict.open) {
        (Status::Done, false) => Status::Failed,
        (printed, _) => printed,
    }
}
