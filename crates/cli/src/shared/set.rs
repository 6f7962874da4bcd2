//! `streamline set`: changes a running path and prints the ledger sentence about the change.

use super::connect::reach;
use crate::arguments::paths::SetArguments;
use crate::failure::complain;
use crate::status::Status;
use crate::terminal;
use member::client::plain;

/// Applies the change in the arguments to a path.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let (to, _) = reach(&given.path)?;
    let changed = to.change(&given.words).map_err(|error| complain(&error))?;
    if given.words.first().is_some_and(|word| word == "pin") {
        // Pinning does not change the request.
        return Ok(terminal::print(&format!("{}\n", plain(&changed.said))));
    }
    terminal::note(&format!("now runs: {}", plain(&changed.line)));
    Ok(terminal::print(&format!("{}\n", plain(&changed.said))))
}
