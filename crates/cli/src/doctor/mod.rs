//! `streamline doctor`: what works on this machine, and what to do where it does not.
//!
//! In: what the engine found and tried. Out: a page for people or one JSON object; about one door
//! alone ([`About`]) a short answer and a status that scripts can use.
//!
//! - `calibrate`: what things cost here, measured and kept;
//! - `findings`: what follows from the facts;
//! - `page`: the same for people;
//! - `unit`: a service for systemd.

mod calibrate;
mod findings;
mod page;
mod unit;

use crate::arguments::{About, DoctorArguments};
use crate::status::Status;
use crate::terminal;
use engine::doctor::Facts;
use findings::{Checkup, Verdict};
use streamline::report::json_line;

/// Looks at the machine and tells.
pub(crate) fn doctor(given: &DoctorArguments) -> Status {
    let of = |door: fn(&Facts) -> Verdict| about(&door(&Facts::look()), given.json);
    match &given.about {
        None if given.calibrate => calibrate::run(given),
        None => {
            let checkup = Checkup::new(&Facts::look());
            terminal::print(&match given.json {
                true => json_line(&checkup),
                false => page::text(&checkup, terminal::colours_out()),
            })
        }
        Some(About::Rx) => of(findings::capturing),
        Some(About::Tx) => of(findings::sending),
        Some(About::Kernel) => of(findings::programs),
        Some(About::Unit(line)) => unit::print(line),
    }
}

/// Tells about one door: done if it is open.
fn about(verdict: &Verdict, json: bool) -> Status {
    let told = terminal::print(&match json {
        true => json_line(verdict),
        false => page::verdict(verdict, terminal::colours_out()),
    });
    match (told, verdict.open) {
        (Status::Done, false) => Status::Failed,
        (told, _) => told,
    }
}
