//! Output to the standard streams. Colors are used only on a terminal that supports them. Hidden
//! characters are replaced. No error is printed if the reader has exited.

use crate::status::Status;
use abi::text::{PLACEHOLDER, VisibleLines, VisibleText, is_hidden};
use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// True while standard error shows a status line that the next output must erase. Accessed only
/// while standard error is locked.
static HAS_STATUS_LINE: AtomicBool = AtomicBool::new(false);
/// Control sequence that returns to column 0 and erases the line.
const ERASE_LINE: &str = "\r\x1b[K";

/// Returns the width of the terminal on standard output, in characters, or `usize::MAX` if standard
/// output is not a terminal.
pub(crate) fn terminal_columns() -> usize {
    // The size is queried only for a terminal, because crossterm otherwise runs `tput`.
    let size = || ratatui::crossterm::terminal::size().ok();
    let columns = io::stdout().is_terminal().then(size).flatten().map(|(columns, _)| columns);
    columns.filter(|columns| *columns > 0).map_or(usize::MAX, usize::from)
}

/// Returns the width of the terminal on standard output, in characters. Returns `None` if standard
/// output is not a terminal, or if the terminal interprets no control sequences.
pub(crate) fn drawing_columns() -> Option<usize> {
    Some(terminal_columns()).filter(|columns| *columns < usize::MAX && !is_dumb_terminal())
}

/// Returns true if messages may be colored: standard error is a terminal that interprets control
/// sequences, and NO_COLOR is empty or not set.
pub(crate) fn can_color_stderr() -> bool {
    io::stderr().is_terminal() && may_color()
}

/// Returns true if text on standard output may be colored: standard output is a terminal that
/// interprets control sequences, and NO_COLOR is empty or not set.
pub(crate) fn can_color_stdout() -> bool {
    io::stdout().is_terminal() && may_color()
}

fn may_color() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && !is_dumb_terminal()
}

/// Returns true if the terminal does not interpret control sequences.
fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Returns true if a line on standard error can be overwritten.
pub(crate) fn can_rewrite_line() -> bool {
    io::stderr().is_terminal() && !is_dumb_terminal()
}

/// Returns true if this process runs in the background: another process group owns the terminal.
pub(crate) fn is_background_process() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    is_background_stat(&stat)
}

/// Implements [`is_background_process`] on the text of proc_pid_stat(5).
fn is_background_stat(stat: &str) -> bool {
    // The command name may contain any character, including parentheses.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = rest.split_whitespace().skip(2).map(|word| word.parse::<i64>().ok());
    let own = numbers.next().flatten();
    let terminal = numbers.nth(2).flatten();
    terminal.is_some_and(|group| group > 0 && Some(group) != own)
}

/// Prints a status line on standard error, in place of the previous one. The terminal truncates an
/// overlong line. The next output erases the status line.
pub(crate) fn show_status_line(line: &str) {
    let line = VisibleText(line);
    let mut stderr = io::stderr().lock();
    HAS_STATUS_LINE.store(true, Ordering::Relaxed);
    // Autowrap is disabled while the line is written, so that an overlong line does not continue on
    // the next row.
    let _ = stderr.write_all(format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h").as_bytes());
}

/// Erases the line that [`show_status_line`] has printed.
pub(crate) fn erase_status_line() {
    print_error_text("");
}
/// Writes a text to standard output, and flushes. Returns the exit status.
pub(crate) fn print_text(text: &str) -> Status {
    // The status line is erased because standard output and standard error may be the same
    // terminal.
    erase_status_line();
    let text = visible_text(text, can_color_stdout());
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Status::Done,
        Err(error) => report_write_error(&error),
    }
}

/// Prints the reason why standard output could not be written, unless the reader has closed the
/// pipe. Returns the exit status.
pub(crate) fn report_write_error(error: &io::Error) -> Status {
    if error.kind() == ErrorKind::BrokenPipe {
        return Status::OutputClosed;
    }
    print_error(&format!("cannot write standard output: {}", describe_io_error(error)));
    Status::Failed
}

/// Messages that are stored while a view (`run --view`) covers the terminal; `None` if there is no
/// view.
static HELD_MESSAGES: Mutex<Option<String>> = Mutex::new(None);

/// Stores all messages from now on instead of printing them, because a view covers the terminal.
pub(crate) fn hold_messages() {
    held_messages().get_or_insert_default();
}

/// Prints the stored messages. Later messages are printed immediately.
pub(crate) fn release_messages() {
    let held = held_messages().take();
    held.iter().for_each(|text| print_error_text(text));
}

/// Returns the last line of the stored messages, without color sequences, or `None` if there are no
/// stored messages.
pub(crate) fn last_held_message() -> Option<String> {
    let held = held_messages();
    let line = held.as_ref()?.lines().next_back()?;
    let mut plain = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let colour = color_sequence(rest).map_or(0, str::len);
        if colour == 0 {
            plain.push(c);
        }
        rest = rest.get(if colour == 0 { c.len_utf8() } else { colour }..)?;
    }
    Some(plain)
}

fn held_messages() -> MutexGuard<'static, Option<String>> {
    HELD_MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a text to standard error. Errors are ignored, because they cannot be reported.
pub(crate) fn print_error_text(text: &str) {
    let text = visible_text(text, can_color_stderr());
    if let Some(held) = held_messages().as_mut() {
        return held.push_str(&text);
    }
    let mut stderr = io::stderr().lock();
    let _ = match HAS_STATUS_LINE.swap(false, Ordering::Relaxed) {
        true => stderr.write_all(format!("{ERASE_LINE}{text}").as_bytes()),
        false => stderr.write_all(text.as_bytes()),
    };
}

/// Replaces hidden characters in a text. Color sequences are preserved if `keeps_colours` is true.
fn visible_text(text: &str, keeps_colours: bool) -> Cow<'_, str> {
    let replaced = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    if !text.contains(replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = match color_sequence(rest).filter(|_| keeps_colours) {
            Some(colour) => {
                out.push_str(colour);
                colour.len()
            }
            None => {
                out.push(if replaced(c) { PLACEHOLDER } else { c });
                c.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    Cow::Owned(out)
}

/// Returns the color sequence at the beginning of a text, such as `\x1b[1;31m`, or `None` if there
/// is none.
fn color_sequence(text: &str) -> Option<&str> {
    let numbers = text.strip_prefix("\x1b[")?;
    let length = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers.get(length..)?.starts_with('m').then(|| text.get(..length + 3)).flatten()
}

/// Prints a message to standard error, with the prefix `error: `.
pub(crate) fn print_error(what: &str) {
    print_labeled_message("error", "1;31", what);
}

/// Prints a message to standard error, with the prefix `warning: `.
pub(crate) fn print_warning(what: &str) {
    print_labeled_message("warning", "1;33", what);
}

/// Prints a message to standard error, with the prefix `note: `.
pub(crate) fn print_note(what: &str) {
    print_labeled_message("note", "1", what);
}

fn print_labeled_message(word: &str, colour: &str, what: &str) {
    // The text may quote untrusted input, such as a request, a file name or another process.
    let what = VisibleLines(what);
    match can_color_stderr() {
        true => print_error_text(&format!("\x1b[{colour}m{word}\x1b[0m: {what}\n")),
        false => print_error_text(&format!("{word}: {what}\n")),
    }
}

/// Returns the description of an I/O error in lower case, without its number.
pub(crate) fn describe_io_error(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_color_sequences_pass_and_only_with_color() {
        let text = "\x1b[1;31merror\x1b[0m: \x1b[2J\u{9b}31m a\u{202e}b\n";
        assert_eq!(visible_text(text, true), "\x1b[1;31merror\x1b[0m: ·[2J·31m a·b\n");
        assert_eq!(visible_text(text, false), "·[1;31merror·[0m: ·[2J·31m a·b\n");
        assert!(matches!(visible_text("plain\n\ttext é", false), Cow::Borrowed(_)));
    }

    #[test]
    fn terminal_owner_is_parsed_after_the_command_name() {
        let stat = |own, terminal| format!("9 (a) b (c)) S 1 {own} 7 34816 {terminal} 4194304 0");
        assert!(!is_background_stat(&stat(9, 9)), "it is ours");
        assert!(is_background_stat(&stat(9, 7)), "the shell has it");
        assert!(!is_background_stat(&stat(9, -1)), "there is none");
        assert!(!is_background_stat("") && !is_background_stat("nonsense) S 1"));
    }
}
