//! Standard output and standard error as people see them: colours only on a terminal, and no
//! complaint when the reader has gone.

use crate::status::Status;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Whether mistakes are shown in colour: on a terminal that knows colours, unless NO_COLOR says no.
pub(crate) fn colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stderr().is_terminal() && !unwanted && !dumb
}

/// Writes a text to standard output.
pub(crate) fn print(text: &str) -> Status {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Status::Done,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Status::Unread,
        Err(error) => {
            complain(&format!("cannot write standard output: {}", reason(&error)));
            Status::Failed
        }
    }
}

/// Writes a text to standard error. When that fails, there is nobody left to be told.
pub(crate) fn tell(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// `error: …`
pub(crate) fn complain(what: &str) {
    headed("error", "1;31", what);
}

/// `warning: …`
pub(crate) fn warn(what: &str) {
    headed("warning", "1;33", what);
}

/// `note: …`
pub(crate) fn note(what: &str) {
    headed("note", "1", what);
}

fn headed(word: &str, colour: &str, what: &str) {
    match colours() {
        true => tell(&format!("\x1b[{colour}m{word}\x1b[0m: {what}\n")),
        false => tell(&format!("{word}: {what}\n")),
    }
}

/// The reason in lower case and without its number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
