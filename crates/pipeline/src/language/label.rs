//! The parser of labels: `22`, `22:23`, `ssh:telnet`, `22,80,8000:8080`, `all`.
//!
//! A class with an error is reported and omitted. A label without a valid class passes everything,
//! so that one error causes no others downstream. [SL §4.2]

use super::diagnose::{Diagnostic, Span};
use super::limits::LABEL_CLASSES_MAX;
use super::tree::{Classes, Label, LabelEntry, Name, Value};

/// Parses the label at `span`. The classes of the label start at byte `classes` of the text.
/// `inverted` is true if `!` precedes them.
pub(crate) fn read_label(
    text: &str,
    span: Span,
    classes: usize,
    inverted: bool,
) -> (Label, Vec<Diagnostic>) {
    let mut mistakes = Vec::new();
    let written = text.get(classes..span.end).unwrap_or_default();
    if written == "all" {
        return (Label { inverted, classes: Classes::All, span }, mistakes);
    }
    let mut list = Vec::new();
    let mut at = classes;
    for (index, piece) in written.split(',').enumerate() {
        let place = Span::new(at, at + piece.len());
        at = place.end + 1;
        if index == LABEL_CLASSES_MAX {
            let what = format!("the label has more than {LABEL_CLASSES_MAX} classes");
            let mistake = Diagnostic::error(place.to(span.empty_after()), what);
            mistakes.push(mistake.hint("ranges are shorter, for instance `1000:1999`"));
            break;
        }
        match read_class(piece, place) {
            Ok(class) => list.push(class),
            Err(mistake) => mistakes.push(*mistake),
        }
    }
    let label = match list.is_empty() {
        true => Label { inverted: false, classes: Classes::All, span },
        false => Label { inverted, classes: Classes::List(list), span },
    };
    (label, mistakes)
}

fn read_class(piece: &str, span: Span) -> Result<LabelEntry, Box<Diagnostic>> {
    let Some((low, high)) = piece.split_once(':') else {
        return Ok(LabelEntry::One(read_value(piece, span)?));
    };
    if low.is_empty() && high.is_empty() {
        let mistake = Diagnostic::error(span, "the range has no end")
            .hint("write `1024:`, `:80`, or `|all` for everything");
        return Err(Box::new(mistake));
    }
    if high.contains(':') {
        let mistake =
            Diagnostic::error(span, format!("`{}` has more than two ends", truncate_word(piece)))
                .hint("a range is `LOW:HIGH`; several are separated by commas");
        return Err(Box::new(mistake));
    }
    let middle = span.start + low.len();
    let end = |word: &str, span| match word {
        "" => Ok(None),
        word => read_value(word, span).map(Some),
    };
    let low = end(low, Span::new(span.start, middle))?;
    let high = end(high, Span::new(middle + 1, span.end))?;
    Ok(LabelEntry::Range { low, high, span })
}

fn read_value(word: &str, span: Span) -> Result<Value, Box<Diagnostic>> {
    if word.is_empty() {
        let mistake = Diagnostic::error(span, "a class is missing")
            .hint("a label has no white space inside: `|22,80`");
        return Err(Box::new(mistake));
    }
    if word == "all" {
        let mistake = Diagnostic::error(span, "`all` cannot be combined")
            .why("it passes everything, class 0 included")
            .hint("write `|all`");
        return Err(Box::new(mistake));
    }
    if is_name(word) {
        return Ok(Value::Name(Name { text: word.to_owned(), span }));
    }
    let hex = word.strip_prefix("0x").filter(|digits| !digits.is_empty());
    let (digits, radix) = hex.map_or((word, 10), |digits| (digits, 16));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(Box::new(invalid_class_error(word, span)));
    }
    match u32::from_str_radix(digits, radix) {
        Ok(value) => Ok(Value::Number { value, hex: hex.is_some(), span }),
        Err(_) => {
            let what = format!("`{}` is too large for a class", truncate_word(word));
            Err(Box::new(Diagnostic::error(span, what).why("a class has 32 bits")))
        }
    }
}

fn invalid_class_error(word: &str, span: Span) -> Diagnostic {
    let mistake = Diagnostic::error(span, format!("`{}` is not a class", truncate_word(word)))
        .why("a class is a number, a small-letter name, or a range of them");
    if let Some((low, high)) = word.split_once('-') {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if number(low) && number(high) {
            return mistake.hint(format!("write `{}:{}`", truncate_word(low), truncate_word(high)));
        }
    }
    match word.chars().next() {
        Some(c) if c.is_ascii_lowercase() => {
            mistake.hint(format!("for the filter write `| {}`", truncate_word(word)))
        }
        _ => mistake.hint("for instance `|22`, `|!80`, `|22:23`, `|ssh:telnet`, `|all`"),
    }
}

/// Returns true for `[a-z][a-z0-9_]*`: the name of a filter, a class or a space.
pub(super) fn is_name(word: &str) -> bool {
    word.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Returns a word for use in a message. Truncates it after 40 characters, and then appends `…`.
pub(crate) fn truncate_word(word: &str) -> String {
    const WORD_LENGTH_MAX: usize = 40;
    match word.char_indices().nth(WORD_LENGTH_MAX) {
        Some((cut, _)) => format!("{}…", word.get(..cut).unwrap_or_default()),
        None => word.to_owned(),
    }
}
