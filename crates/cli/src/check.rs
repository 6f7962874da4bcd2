//! `streamline check`: what is wrong with a line, all of it.

use crate::arguments::CheckArguments;
use crate::line;
use crate::status::Status;
use crate::terminal;
use pipeline::Diagnostic;

/// Tells all mistakes; 0 if there are none, 2 otherwise.
pub(crate) fn check(given: &CheckArguments) -> Status {
    let text = match line::text(&given.line) {
        Ok(text) => text,
        Err(status) => return status,
    };
    let (request, mistakes) = pipeline::parse(&text);
    let right = match given.syntax {
        true => {
            line::tell(&text, &mistakes);
            !mistakes.iter().any(Diagnostic::is_error)
        }
        false => line::graph(&text).is_ok(),
    };
    match (right, given.verbose) {
        (false, _) => Status::Usage,
        (true, true) => terminal::print(&format!("{request}\n")),
        (true, false) => Status::Done,
    }
}
