//! Diagnostics of the parser and the checks, and their presentation.
//!
//! A diagnostic has a position, an error, a reason and a hint. All commands print diagnostics in
//! this form:
//!
//! ```text
//! error: no filter is called `htpp`
//!   rx | tcp | htpp | files
//!              ^^^^ did you mean `http`?  (`streamline filters` lists all 56)
//! ```
//!
//! A request is untrusted input, so hidden characters are replaced before they reach a terminal. A
//! long line is shortened to the surroundings of the error.

use std::fmt::Write as _;
use std::ops::Range;

use super::limits::DIAGNOSTICS_MAX;

/// A byte range in the text of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Offset in the text of the first byte of the range.
    pub start: usize,
    /// Offset in the text of the byte after the range.
    pub end: usize,
}

impl Span {
    /// Returns the range from `start` to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Returns the range from the start of this span to the end of `other`.
    pub fn to(self, other: Self) -> Self {
        Self { start: self.start, end: other.end.max(self.start) }
    }

    /// Returns the empty span at the end of this span.
    pub fn empty_after(self) -> Self {
        Self { start: self.end, end: self.end }
    }
}

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// An error, which prevents the request from running.
    Error,
    /// A warning: the request can run, but probably means something else.
    Warning,
}

/// One error or warning about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The range of the text that is underlined.
    pub span: Span,
    /// The error, in lower case and without a full stop.
    pub what: String,
    /// The violated rule; may be empty.
    pub why: String,
    /// The proposed correction; may be empty.
    pub hint: String,
}

impl Diagnostic {
    /// Returns an error without reason or hint.
    pub fn error(span: Span, what: impl Into<String>) -> Self {
        let (why, hint) = Default::default();
        Self { severity: Severity::Error, span, what: what.into(), why, hint }
    }

    /// Returns a warning without reason or hint.
    pub fn warning(span: Span, what: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, what) }
    }

    /// Sets the reason: the rule that the request violates.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Sets the proposed correction.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Returns true for an error, which prevents the request from running.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Sorts diagnostics by position, joins diagnostics at the same position, and replaces all
/// diagnostics beyond the first `DIAGNOSTICS_MAX` with a single diagnostic that counts them.
///
/// One error often violates two rules at one position. In `rx (tcp`, for example, the parenthesis
/// lacks both an operator in front and a closing parenthesis. The two errors become one diagnostic.
pub fn sort_and_join_diagnostics(mut mistakes: Vec<Diagnostic>) -> Vec<Diagnostic> {
    mistakes.sort_by_key(|mistake| (mistake.span.start, mistake.severity == Severity::Warning));
    let mut settled: Vec<Diagnostic> = Vec::new();
    let mut surplus: Option<(Span, usize)> = None;
    for mistake in mistakes {
        let full = settled.len() >= DIAGNOSTICS_MAX;
        match settled.last_mut() {
            Some(last) if last.span.start == mistake.span.start => append_diagnostic(last, mistake),
            _ if full => surplus.get_or_insert((mistake.span, 0)).1 += 1,
            _ => settled.push(mistake),
        }
    }
    if let Some((span, count)) = surplus {
        settled.push(Diagnostic::error(span, format!("and {count} more mistakes from here on")));
    }
    settled
}

/// Appends the second diagnostic at a position to the first. Discards the second if the first
/// contains its text, has a different severity, or is already too long.
fn append_diagnostic(first: &mut Diagnostic, second: Diagnostic) {
    const JOINED_LENGTH_MAX: usize = 400;
    if first.is_error() != second.is_error() || first.what.contains(&second.what) {
        return;
    }
    if first.what.len() < JOINED_LENGTH_MAX {
        first.what = format!("{}; and {}", first.what, second.what);
        if first.why.is_empty() {
            first.why = second.why;
        }
        if first.hint.is_empty() {
            first.hint = second.hint;
        }
    }
}

/// Formats all diagnostics, each with its line of the text, in which the error is underlined.
///
/// `colour` adds terminal escape sequences.
pub fn render(text: &str, mistakes: &[Diagnostic], colour: bool) -> String {
    let starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let mut out = String::new();
    for mistake in mistakes {
        render_diagnostic(text, &starts, mistake, colour, &mut out);
    }
    out
}

/// The length, in bytes, of the excerpt of a long line.
const EXCERPT_WIDTH: usize = 96;

fn render_diagnostic(
    text: &str,
    starts: &[usize],
    mistake: &Diagnostic,
    colour: bool,
    out: &mut String,
) {
    let paint = EscapeSequences::new(mistake.severity, colour);
    let start = char_boundary(text, mistake.span.start);
    let line = starts.partition_point(|first| *first <= start).max(1) - 1;
    let (from, to) = line_bounds(text, starts, line);
    let start = start.clamp(from, to);
    let end = char_boundary(text, mistake.span.end).clamp(start, to);
    let excerpt = excerpt_range(text, from..to, start);

    let word = if mistake.is_error() { "error" } else { "warning" };
    let _ = write!(
        out,
        "{}{word}{}: {}",
        paint.strong,
        paint.plain,
        replace_hidden_characters(&mistake.what)
    );
    if !mistake.why.is_empty() {
        let _ = write!(out, ": {}", replace_hidden_characters(&mistake.why));
    }
    if starts.len() > 1 {
        let _ = write!(out, " (line {})", line + 1);
    }
    let head = if excerpt.start > from { "…" } else { "" };
    let tail = if excerpt.end < to { "…" } else { "" };
    let source = text.get(excerpt.clone()).unwrap_or_default();
    let _ = writeln!(out, "\n  {head}{}{tail}", replace_hidden_characters(source));

    let before = text.get(excerpt.start..start).unwrap_or_default();
    let marked = text.get(start..end.min(excerpt.end)).unwrap_or_default();
    let indent = 2 + head.chars().count() + before.chars().count();
    let carets = "^".repeat(marked.chars().count().max(1));
    let _ = write!(out, "{:indent$}{}{carets}{}", "", paint.mark, paint.plain);
    if !mistake.hint.is_empty() {
        let _ = write!(out, " {}", replace_hidden_characters(&mistake.hint));
    }
    out.push('\n');
}

/// Returns the byte range of a line without its line break.
fn line_bounds(text: &str, starts: &[usize], line: usize) -> (usize, usize) {
    let from = starts.get(line).copied().unwrap_or(0);
    let to = starts.get(line + 1).map_or(text.len(), |next| next - 1);
    (from, to.max(from))
}

/// Returns the range of a line to show: all of a short line, or the surroundings of the error in a
/// long line.
fn excerpt_range(text: &str, line: Range<usize>, start: usize) -> Range<usize> {
    if line.len() <= EXCERPT_WIDTH {
        return line;
    }
    let from = char_boundary(text, start.saturating_sub(EXCERPT_WIDTH / 2).max(line.start));
    let to = char_boundary(text, (from + EXCERPT_WIDTH).min(line.end)).max(start);
    from.max(line.start)..to
}

/// Returns the last character boundary at or before `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Replaces each tab with a space and every other hidden character with a visible placeholder, so
/// that columns stay aligned and the text is safe for a terminal.
fn replace_hidden_characters(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { filter::text::visible_char(c) }).collect()
}

/// The escape sequences for one diagnostic; empty if colour is off.
struct EscapeSequences {
    strong: &'static str,
    mark: &'static str,
    plain: &'static str,
}

impl EscapeSequences {
    fn new(severity: Severity, colour: bool) -> Self {
        match (colour, severity) {
            (false, _) => Self { strong: "", mark: "", plain: "" },
            (true, Severity::Error) => {
                Self { strong: "\x1b[1;31m", mark: "\x1b[31m", plain: "\x1b[0m" }
            }
            (true, Severity::Warning) => {
                Self { strong: "\x1b[1;33m", mark: "\x1b[33m", plain: "\x1b[0m" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostic_is_rendered_with_its_line_and_hint() {
        let text = "rx | tcp | htpp | files";
        let mistake = Diagnostic::error(Span::new(11, 15), "no filter is called `htpp`")
            .hint("did you mean `http`?");
        let excerpt = render(text, &[mistake], false);
        let lines: Vec<&str> = excerpt.lines().collect();
        assert_eq!(lines[0], "error: no filter is called `htpp`");
        assert_eq!(lines[1], "  rx | tcp | htpp | files");
        assert_eq!(lines[2], "             ^^^^ did you mean `http`?");
    }

    #[test]
    fn diagnostic_in_a_text_of_several_lines_names_the_line() {
        let text = "rx\n\t| tcp \"a\nb";
        let mistake = Diagnostic::warning(Span::new(10, 14), "what").why("why");
        let excerpt = render(text, &[mistake], false);
        assert_eq!(excerpt, "warning: what: why (line 2)\n   | tcp \"a\n         ^^\n");
    }

    #[test]
    fn diagnostic_shows_control_characters_as_dots() {
        let text = "rx \x1b[31m\u{202e}é x";
        let mistake = Diagnostic::error(Span::new(3, 99), "no `\x1b[2J`");
        let excerpt = render(text, &[mistake], false);
        assert_eq!(excerpt, "error: no `·[2J`\n  rx ·[31m·é x\n     ^^^^^^^^^\n");
        assert!(
            render(text, &[Diagnostic::error(Span::new(0, 1), "x")], true).contains("\x1b[1;31m")
        );
    }

    #[test]
    fn diagnostic_shortens_a_long_line_around_the_error() {
        let text = format!("{}X{}", "é".repeat(500), "b".repeat(500));
        let excerpt = render(&text, &[Diagnostic::error(Span::new(1000, 1001), "x")], false);
        let lines: Vec<&str> = excerpt.lines().collect();
        assert!(lines[1].chars().count() < EXCERPT_WIDTH + 4);
        let column = lines[2].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[1].chars().nth(column), Some('X'));
    }

    #[test]
    fn diagnostics_are_sorted_joined_and_limited() {
        let at = |start| Diagnostic::error(Span::new(start, start + 1), format!("m{start}"));
        let mut many: Vec<Diagnostic> = (0..250).rev().map(at).collect();
        many.push(Diagnostic::error(Span::new(7, 9), "twice"));
        let settled = sort_and_join_diagnostics(many);
        assert_eq!(settled.len(), DIAGNOSTICS_MAX + 1);
        assert_eq!(settled[7].what, "m7; and twice");
        assert_eq!(settled[DIAGNOSTICS_MAX].what, "and 150 more mistakes from here on");
    }
}
