//! `streamline set`: changes a running path, and prints one sentence that reports the ledger of the
//! change.

use super::connect::connect_path;
use crate::arguments::paths::SetArguments;
use crate::failure::report_client_error;
use crate::status::Status;
use crate::terminal;
use member::client::escape_hidden;

/// Applies the change in the arguments to a path.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let (to, _) = connect_path(&given.path)?;
    let changed = to.change(&given.words).map_err(|error| report_client_error(&error))?;
    if given.words.first().is_some_and(|word| word == "pin") {
        // Pinning does not change the request.
        return Ok(terminal::print_text(&format!("{}\n", escape_hidden(&changed.said))));
    }
    terminal::print_note(&format!("now runs: {}", escape_hidden(&changed.line)));
    Ok(terminal::print_text(&format!("{}\n", escape_hidden(&changed.said))))
}
