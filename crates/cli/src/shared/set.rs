//! `streamline set`: changes a path while it runs, and prints what the ledger says of the switch.

use super::words::SetArguments;
use super::{complain, path};
use crate::status::Status;
use crate::terminal;
use daemon::client::plain;
use std::time::Duration;

/// How long the path has: others may be in front of it in the kernel.
const PATIENCE: Duration = Duration::from_secs(120);

/// Changes it.
pub(super) fn run(given: &SetArguments) -> Result<Status, Status> {
    let to = path(&given.path)?;
    to.be_patient(PATIENCE).map_err(|error| complain(&error))?;
    let changed = to.change(&given.words).map_err(|error| complain(&error))?;
    terminal::note(&format!("now runs: {}", plain(&changed.line)));
    Ok(terminal::print(&format!("{}\n", plain(&changed.said))))
}
