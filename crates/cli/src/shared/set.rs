//! `streamline set`: changes a running path, and prints a sentence with the ledger of the change.

use super::connect::connect_path;
use crate::arguments::paths::SetArguments;
use crate::failure::complain;
use crate::status::Status;
use crate::terminal;
use member::client::escape_hidden;

/// Applies the change in the arguments to a path.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let (to, _) = connect_path(&given.path)?;
    let changed = to.change(&given.words).map_err(|error| complain(&error))?;
    if given.words.first().is_some_and(|word| word == "pin") {
        // Pinning does not change the request.
        return Ok(terminal::print(&format!("{}\n", escape_hidden(&changed.said))));
    }
    terminal::note(&format!("now runs: {}", escape_hidden(&changed.line)));
    Ok(terminal::print(&format!("{}\n", escape_hidden(&changed.said))))
}
