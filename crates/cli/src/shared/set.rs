//! `streamline set`: changes a path while it runs, and prints what the ledger says of the switch.

use super::words::SetArguments;
use super::{complain, reach};
use crate::status::Status;
use crate::terminal;
use member::client::plain;

/// Changes it.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let (to, _) = reach(&given.path)?;
    let changed = to.change(&given.words).map_err(|error| complain(&error))?;
    if given.words.first().is_some_and(|word| word == "pin") {
        // The line is what it was.
        return Ok(terminal::print(&format!("{}\n", plain(&changed.said))));
    }
    terminal::note(&format!("now runs: {}", plain(&changed.line)));
    Ok(terminal::print(&format!("{}\n", plain(&changed.said))))
}
