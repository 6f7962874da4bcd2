//! `streamline set`: changes a path while it runs, and prints what the ledger says of the switch.

use super::words::SetArguments;
use super::{complain, path};
use crate::status::Status;
use crate::terminal;
use daemon::client::plain;

/// Changes it.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let to = path(&given.path)?;
    let changed = to.change(&given.words).map_err(|error| complain(&error))?;
    terminal::note(&format!("now runs: {}", plain(&changed.line)));
    Ok(terminal::print(&format!("{}\n", plain(&changed.said))))
}
