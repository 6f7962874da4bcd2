//! The canonical text of a tree, written by the `Display` implementations.
//!
//! One space surrounds `|` and the operators, labels are adjacent to their pipe, pins are adjacent
//! to their filter, marks come last, and parentheses appear only where required by precedence or by
//! a label at the start of a group. The text depends only on the tree, and parsing it returns the
//! same tree. [SL §4.2]

use filter::text::is_hidden;
use std::fmt::{self, Display, Formatter, Write as _};

use super::lex::{is_lookalike, is_word_end};
use super::tree::{
    Argument, Branch, Classes, FilterTerm, Group, Label, LabelEntry, Operator, Request,
    RequestOption, Term, Text, Value,
};

/// The precedence of a term. A term is parenthesized where a higher precedence is required.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Pipeline,
    Parallel,
    Union,
    Section,
    Unary,
}

impl Precedence {
    fn from_term(term: &Term) -> Self {
        match term {
            Term::Pipeline(_) => Self::Pipeline,
            Term::Group(group) => Self::from_operator(group.operator),
            Term::Not(_) | Term::Filter(_) | Term::Hole(_) => Self::Unary,
        }
    }

    fn from_operator(operator: Operator) -> Self {
        match operator {
            Operator::Parallel => Self::Parallel,
            Operator::Union => Self::Union,
            Operator::Section => Self::Section,
        }
    }

    /// Returns the minimum precedence that an operand of this operator needs to be written without
    /// parentheses.
    fn operand_precedence(self) -> Self {
        match self {
            Self::Pipeline => Self::Parallel,
            Self::Parallel => Self::Union,
            Self::Union => Self::Section,
            Self::Section | Self::Unary => Self::Unary,
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for option in &self.options {
            write!(f, "{option} ")?;
        }
        for (index, pipeline) in self.pipelines.iter().enumerate() {
            if index > 0 {
                f.write_str(" ; ")?;
            }
            pipeline.fmt(f)?;
        }
        Ok(())
    }
}

impl Display for RequestOption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.key.text)?;
        match &self.value {
            Some(value) => write!(f, "={value}"),
            None => Ok(()),
        }
    }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_term(f, self, Precedence::Pipeline, false)
    }
}

/// Writes a term. Adds parentheses if the precedence of the term is below `level`, or if the term
/// starts with a label and `label_ok` is false.
fn write_term(
    f: &mut Formatter<'_>,
    term: &Term,
    level: Precedence,
    label_ok: bool,
) -> fmt::Result {
    let loose = Precedence::from_term(term) < level;
    // The recursion below checks the first stage of a pipeline.
    let labelled = matches!(term, Term::Group(_)) && !label_ok && begins_with_label(term);
    if loose || labelled {
        f.write_char('(')?;
        write_term(f, term, Precedence::Pipeline, true)?;
        return f.write_char(')');
    }
    match term {
        Term::Hole(_) => f.write_char('?'),
        Term::Filter(node) => node.fmt(f),
        Term::Not(not) => {
            f.write_char('!')?;
            write_term(f, &not.term, Precedence::Unary, false)
        }
        Term::Group(group) => write_group(f, group, label_ok),
        Term::Pipeline(pipeline) => {
            write_term(f, &pipeline.first, Precedence::Parallel, label_ok)?;
            for stage in &pipeline.rest {
                match &stage.arc.label {
                    Some(label) => write!(f, " {label} ")?,
                    None => f.write_str(" | ")?,
                }
                write_term(f, &stage.term, Precedence::Parallel, false)?;
            }
            Ok(())
        }
    }
}

fn write_group(f: &mut Formatter<'_>, group: &Group, label_ok: bool) -> fmt::Result {
    let level = Precedence::from_operator(group.operator).operand_precedence();
    for (index, branch) in group.branches.iter().enumerate() {
        if index > 0 {
            write!(f, " {} ", group.operator.symbol())?;
        }
        match &branch.label {
            Some(label) => {
                write!(f, "{label} ")?;
                write_term(f, &branch.term, Precedence::Unary, false)?;
            }
            None => write_term(f, &branch.term, level, label_ok || index > 0)?,
        }
    }
    Ok(())
}

/// Returns true if the text of the term starts with a label.
fn begins_with_label(term: &Term) -> bool {
    match term {
        Term::Hole(_) | Term::Filter(_) | Term::Not(_) | Term::Pipeline(_) => false,
        Term::Group(group) => {
            group.branches.first().is_some_and(|Branch { label, term, .. }| {
                label.is_some()
                    || (Precedence::from_term(term) > Precedence::from_operator(group.operator)
                        && begins_with_label(term))
            })
        }
    }
}

impl Display for FilterTerm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.text)?;
        if let Some(pin) = &self.pin {
            write!(f, "@{}", pin.text)?;
        }
        for argument in &self.arguments {
            write!(f, " {argument}")?;
        }
        match &self.mark {
            Some(mark) => write!(f, " --name={}", mark.text),
            None => Ok(()),
        }
    }
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}={}", key.text, self.value),
            // A bare positional word must not look like a key, an option, a pin or a comment.
            None => match self.value.unquoted_text().filter(|text| is_positional(text)) {
                Some(text) => f.write_str(text),
                None => write_quoted(f, &self.value.bytes),
            },
        }
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.unquoted_text() {
            Some(text) => f.write_str(text),
            None => write_quoted(f, &self.bytes),
        }
    }
}

impl Text {
    /// Returns the text if it was not quoted and can be written without quotes; otherwise `None`.
    fn unquoted_text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.bytes).ok()?;
        let plain = |c: char| !(is_word_end(c) || is_lookalike(c));
        let bare =
            !self.quoted && !text.is_empty() && text.chars().all(plain) && !text.ends_with('\\');
        bare.then_some(text)
    }
}

fn is_positional(text: &str) -> bool {
    !(text.starts_with("--") || text.starts_with(['@', '#']) || text.contains('='))
}

/// Writes `bytes` in quotes. Quotes, backslashes, line breaks and tabs are escaped with a
/// backslash; the bytes of other hidden characters and of invalid UTF-8 become `\xHH`.
pub(crate) fn write_quoted(f: &mut dyn fmt::Write, bytes: &[u8]) -> fmt::Result {
    f.write_char('"')?;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                c if is_hidden(c) => {
                    let mut buffer = [0; 4];
                    write_hex(f, c.encode_utf8(&mut buffer).as_bytes())?;
                }
                c => f.write_char(c)?,
            }
        }
        write_hex(f, chunk.invalid())?;
    }
    f.write_char('"')
}

fn write_hex(f: &mut dyn fmt::Write, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('|')?;
        if self.inverted {
            f.write_char('!')?;
        }
        match &self.classes {
            Classes::All => f.write_str("all"),
            Classes::List(list) => {
                for (index, class) in list.iter().enumerate() {
                    if index > 0 {
                        f.write_char(',')?;
                    }
                    class.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

impl Display for LabelEntry {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(value) => value.fmt(f),
            Self::Range { low, high, .. } => {
                low.iter().try_for_each(|value| value.fmt(f))?;
                f.write_char(':')?;
                high.iter().try_for_each(|value| value.fmt(f))
            }
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { value, hex: true, .. } => write!(f, "0x{value:x}"),
            Self::Number { value, hex: false, .. } => write!(f, "{value}"),
            Self::Name(name) => f.write_str(&name.text),
        }
    }
}
