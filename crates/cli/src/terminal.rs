//! Standard output and standard error as people see them: colours only on a terminal, and no
//! complaint when the reader has gone.

use crate::status::Status;
use abi::text::{PLACEHOLDER, Visible, VisibleLines, is_hidden};
use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// True if standard error shows a status line that any other output replaces. Read and written
/// under the lock of standard error.
static STATUS: AtomicBool = AtomicBool::new(false);
/// Goes to the beginning of the line and empties it.
const WIPE: &str = "\r\x1b[K";

/// The columns of the terminal on which is printed; elsewhere there is no border.
pub(crate) fn columns() -> usize {
    let size = ratatui::crossterm::terminal::size();
    let columns = size.ok().filter(|_| io::stdout().is_terminal()).map(|(columns, _)| columns);
    columns.filter(|columns| *columns > 0).map_or(usize::MAX, usize::from)
}

/// Returns true if mistakes are printed in color: on a terminal that supports it, unless NO_COLOR
/// is set.
pub(crate) fn colours() -> bool {
    io::stderr().is_terminal() && wants_colours()
}

/// Returns true if output is printed in color, under the same conditions.
pub(crate) fn colours_out() -> bool {
    io::stdout().is_terminal() && wants_colours()
}

fn wants_colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && !is_dumb()
}

/// Returns true if the terminal supports nothing but lines.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Returns true if a line on standard error can replace the previous one.
pub(crate) fn can_rewrite() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Returns true if the terminal belongs to another process group at the moment: we run in the
/// background of a shell.
pub(crate) fn is_background() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    is_behind(&stat)
}

/// The same from the words of proc_pid_stat(5).
fn is_behind(stat: &str) -> bool {
    // The name may hold anything, parentheses too.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = rest.split_whitespace().skip(2).map(|word| word.parse::<i64>().ok());
    let own = numbers.next().flatten();
    let terminal = numbers.nth(2).flatten();
    terminal.is_some_and(|group| group > 0 && Some(group) != own)
}

/// Shows a line on standard error in the place of the one before, cut by the terminal where it is
/// too long for it. It goes away when anything else is written.
pub(crate) fn status(line: &str) {
    let line = Visible(line);
    let mut stderr = io::stderr().lock();
    STATUS.store(true, Ordering::Relaxed);
    // Without the break of lines at the border, what is too long leaves nothing behind.
    let _ = stderr.write_all(format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h").as_bytes());
}

/// Takes the line of [`status`] away.
pub(crate) fn wipe() {
    tell("");
}

/// Empties the screen, so that what is printed next stands alone.
pub(crate) fn clear() {
    let mut stdout = io::stdout().lock();
    // What cannot be emptied is written below.
    let _ = stdout.write_all(b"\x1b[H\x1b[2J").and_then(|()| stdout.flush());
}

/// Writes a text to standard output.
pub(crate) fn print(text: &str) -> Status {
    // It may be the same terminal.
    wipe();
    let text = shown(text, colours_out());
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
    let text = shown(text, colours());
    let mut stderr = io::stderr().lock();
    let _ = match STATUS.swap(false, Ordering::Relaxed) {
        true => stderr.write_all(format!("{WIPE}{text}").as_bytes()),
        false => stderr.write_all(text.as_bytes()),
    };
}

/// A text without hidden characters, whatever is quoted in it; colours stay where there are any.
fn shown(text: &str, colours: bool) -> Cow<'_, str> {
    let replaced = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    if !text.contains(replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = match colour(rest).filter(|_| colours) {
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

/// The sequence at the beginning of a text that changes the colour: `\x1b[1;31m`.
fn colour(text: &str) -> Option<&str> {
    let numbers = text.strip_prefix("\x1b[")?;
    let length = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers.get(length..)?.starts_with('m').then(|| text.get(..length + 3)).flatten()
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
    // It may quote a line, a file name or another process.
    let what = VisibleLines(what);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_are_obeyed_and_only_where_there_are_any() {
        let text = "\x1b[1;31merror\x1b[0m: \x1b[2J\u{9b}31m a\u{202e}b\n";
        assert_eq!(shown(text, true), "\x1b[1;31merror\x1b[0m: ·[2J·31m a·b\n");
        assert_eq!(shown(text, false), "·[1;31merror·[0m: ·[2J·31m a·b\n");
        assert!(matches!(shown("plain\n\ttext é", false), Cow::Borrowed(_)));
    }

    #[test]
    fn who_has_the_terminal_is_read_behind_the_name() {
        let stat = |own, terminal| format!("9 (a) b (c)) S 1 {own} 7 34816 {terminal} 4194304 0");
        assert!(!is_behind(&stat(9, 9)), "it is ours");
        assert!(is_behind(&stat(9, 7)), "the shell has it");
        assert!(!is_behind(&stat(9, -1)), "there is none");
        assert!(!is_behind("") && !is_behind("nonsense) S 1"));
    }
}
