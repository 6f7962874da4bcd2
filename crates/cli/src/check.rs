//! `streamline check`: reports all mistakes in a request.

use crate::arguments::CheckArguments;
use crate::failure;
use crate::line;
use crate::status::Status;
use crate::terminal;
use pipeline::Diagnostic;
use streamline::Options;

/// Prints all mistakes in a request. The exit status is 0 if there are none, otherwise 2.
pub(crate) fn check(given: &CheckArguments) -> Status {
    let text = match line::request_text(&given.line) {
        Ok(text) => text,
        Err(status) => return status,
    };
    let (request, mistakes) = pipeline::parse(&text);
    let right = match given.syntax {
        true => {
            line::print_mistakes(&text, &mistakes);
            !mistakes.iter().any(Diagnostic::is_error)
        }
        false => {
            let options = Options { notices: failure::notices(false), ..Options::default() };
            streamline::read_graph(&text, &options).map_err(failure::report_open_error).is_ok()
        }
    };
    match (right, given.verbose) {
        (false, _) => Status::Usage,
        (true, true) => terminal::print_text(&format!("{request}\n")),
        (true, false) => Status::Done,
    }
}
