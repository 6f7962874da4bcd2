//! `streamline set`: changes a running path, and prints one sentence with the block counts of the
//! change.

use super::connect::connect_path;
use crate::arguments::paths::SetArguments;
use crate::failure::report_client_error;
use crate::status::Status;
use crate::terminal;
use member::client::{ClientError, mask_hidden_characters};
use member::faults;
use pipeline::binding::SpaceBinding;
use pipeline::edit::{Edit, PathMove};
use streamline::report::{json_line, to_object};

/// Version of the output format of `set --json`.
const JSON_VERSION: u32 = 1;

/// Applies the change in the arguments to a path.
pub(super) fn run(arguments: &SetArguments) -> Result<Status, Status> {
    let (to, about) = connect_path(&arguments.path)?;
    let change = to.change(&arguments.words).map_err(|error| {
        let status = report_client_error(&error);
        match &error {
            ClientError::Refused(fault) if faults::is_wrong_change(fault) => Status::Usage,
            ClientError::Refused(_) if !is_change(&arguments.words) => Status::Usage,
            _ => status,
        }
    })?;
    if arguments.json {
        return Ok(terminal::print_text(&json_line(&to_object(&[
            ("version", &JSON_VERSION),
            ("path", &about.number),
            ("name", &about.name),
            ("request", &change.line),
            ("report", &change.message),
        ]))));
    }
    if arguments.words.first().is_some_and(|word| word == "pin") {
        // Pinning does not change the request.
        return Ok(terminal::print_text(&format!("{}\n", mask_hidden_characters(&change.message))));
    }
    terminal::print_note(&format!("now runs: {}", mask_hidden_characters(&change.line)));
    Ok(terminal::print_text(&format!("{}\n", mask_hidden_characters(&change.message))))
}

/// Returns true if the words are in the syntax of a change, even if no path could apply the change.
fn is_change(words: &[String]) -> bool {
    match SpaceBinding::parse(words) {
        Err(_) => false,
        Ok(Some(_)) => true,
        Ok(None) => PathMove::parse(words).is_some() || Edit::parse(words).is_ok(),
    }
}
