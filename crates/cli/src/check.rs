//! `streamline check`: reports all mistakes in a request.

use crate::arguments::CheckArguments;
use crate::failure;
use crate::request;
use crate::status::Status;
use crate::terminal;
use pipeline::Diagnostic;
use pipeline::language::Severity;
use std::sync::{Arc, Mutex, PoisonError};
use streamline::report::{JsonObject, json_line, to_object};
use streamline::{Notice, Notices, OpenError, Options};

/// Version of the output format of `check --json`.
const JSON_VERSION: u32 = 1;

/// Prints all mistakes in a request. The exit status is 2 if a mistake is an error. Otherwise,
/// without mistakes or with only warnings, the exit status is 0.
pub(crate) fn check(arguments: &CheckArguments) -> Status {
    let text = match request::request_text(&arguments.line) {
        Ok(text) => text,
        Err(status) => return status,
    };
    if arguments.json {
        return check_as_json(&text, arguments.syntax);
    }
    let (request, mistakes) = pipeline::parse(&text);
    let right = match arguments.syntax {
        true => {
            request::print_mistakes(&text, &mistakes);
            !mistakes.iter().any(Diagnostic::is_error)
        }
        false => {
            let options = Options { notices: failure::notice_handler(false), ..Options::default() };
            streamline::read_graph(&text, &options).map_err(failure::report_open_error).is_ok()
        }
    };
    match (right, arguments.verbose) {
        (false, _) => Status::Usage,
        (true, true) => terminal::print_text(&format!("{request}\n")),
        (true, false) => Status::Done,
    }
}

/// Prints the mistakes as one JSON object, with the canonical form of a correct request. If
/// `syntax` is true, checks only the grammar. The exit status is 2 if a mistake is an error,
/// otherwise 0.
fn check_as_json(text: &str, syntax: bool) -> Status {
    let (request, mut mistakes) = pipeline::parse(text);
    if !syntax {
        // Warnings arrive as notices, even if the request has no errors.
        let warnings: Arc<Mutex<Vec<Diagnostic>>> = Arc::default();
        let raised = Arc::clone(&warnings);
        let notices = Notices::new(move |notice| {
            if let Notice::RequestWarnings(_, list) = notice {
                raised.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(list);
            }
        });
        let options = Options { notices, ..Options::default() };
        mistakes = match streamline::read_graph(text, &options) {
            Ok(_) => std::mem::take(&mut *warnings.lock().unwrap_or_else(PoisonError::into_inner)),
            Err(OpenError::Mistakes { list, .. }) => list,
            Err(other) => return failure::report_open_error(other),
        };
    }
    let is_correct = !mistakes.iter().any(Diagnostic::is_error);
    let canonical = is_correct.then(|| request.to_string());
    let mistakes: Vec<JsonObject> = mistakes.iter().map(|one| mistake_json(text, one)).collect();
    let object = to_object(&[
        ("version", &JSON_VERSION),
        ("correct", &is_correct),
        // The canonical form of the request, if the request is correct.
        ("request", &canonical),
        ("mistakes", &mistakes),
    ]);
    match terminal::print_text(&json_line(&object)) {
        Status::Done if !is_correct => Status::Usage,
        printed => printed,
    }
}

/// Returns a mistake as JSON, with its byte range in the text, and the line and column at which it
/// starts. Lines and columns are counted from 1; columns are in characters.
fn mistake_json(text: &str, mistake: &Diagnostic) -> JsonObject {
    let (start, end) = (mistake.span.start, mistake.span.end);
    let before = text.get(..start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let severity = match mistake.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    to_object(&[
        ("severity", &severity),
        ("what", &mistake.what),
        ("why", &mistake.why),
        ("hint", &mistake.hint),
        ("text", &text.get(start..end).unwrap_or_default()),
        ("start", &start),
        ("end", &end),
        ("line", &line),
        ("column", &column),
    ])
}
