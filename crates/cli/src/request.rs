//! Reading of the request text from the command line or a file, and printing of mistakes with their
//! positions.

use crate::arguments::RequestArguments;
use crate::status::Status;
use crate::terminal;
use pipeline::Diagnostic;
use pipeline::language::Span;
use pipeline::language::limits::TEXT_MAX;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Returns the text of the request. If there is no request, or if its file cannot be read or is not
/// valid UTF-8, prints an error and returns the exit status.
pub(crate) fn request_text(arguments: &RequestArguments) -> Result<String, Status> {
    match &arguments.file {
        Some(path) => read_request_file(path),
        None if arguments.words.is_empty() => {
            terminal::print_error(
                "no request is given: write it in single quotes, or name a file by -f",
            );
            Err(Status::Usage)
        }
        None => Ok(to_unix_line_endings(&arguments.words.join(" "))),
    }
}

/// Returns a request with Unix line endings, and without trailing white space. Carriage returns are
/// removed because the request of a path must not contain hidden characters.
pub(crate) fn to_unix_line_endings(text: &str) -> String {
    text.trim_end().replace("\r\n", "\n")
}

fn read_request_file(path: &Path) -> Result<String, Status> {
    // One byte beyond the limit is read, so that the parser can detect and report an oversized
    // request.
    let limit = TEXT_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(limit).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    let name = path.display();
    if let Err(error) = read {
        terminal::print_error(&format!(
            "cannot read {name}: {}",
            terminal::describe_io_error(&error)
        ));
        let missing = error.kind() == ErrorKind::NotFound;
        return Err(if missing { Status::NotFound } else { Status::Failed });
    }
    String::from_utf8(bytes).map(|text| to_unix_line_endings(&text)).map_err(|_| {
        terminal::print_error(&format!("cannot read {name}: it is not UTF-8 text"));
        Status::Usage
    })
}

/// Prints mistakes, each with its position.
pub(crate) fn print_mistakes(text: &str, mistakes: &[Diagnostic]) {
    terminal::print_error_text(&pipeline::render(text, mistakes, terminal::can_color_stderr()));
}

/// Prints one mistake with its position `span`, its description `what` and, if known, the remedy
/// `hint`.
pub(crate) fn print_mistake(text: &str, span: Span, what: &str, hint: Option<&str>) {
    print_mistakes(text, &[Diagnostic::error(span, what).hint(hint.unwrap_or_default())]);
}
