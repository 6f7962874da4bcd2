//! What a description says about its filter, for people: `streamline filters NAME`.

use super::COLUMNS;
use super::table::wrap;
use super::words;
use crate::check::OPTIONS;
use filter::{
    COMMON, Classes, Column, Description, Form, Gives, Keeps, Kind, Parameter, Reads, Type,
    ValueRange,
};
use std::fmt::Write as _;

/// Columns in front of what a line says.
const INDENT: usize = 14;
/// The same in front of what an option is for.
const OPTION: usize = 26;

/// The whole help text of a filter, source or sink.
#[must_use]
pub fn help(entry: &Description) -> String {
    let mut out = format!("{}: {}\n\n", entry.name, entry.summary);
    // What does not fit stands under the first parameter.
    let indent = 4 + entry.name.len() + 1;
    for (number, words) in wrap(&usage(entry), COLUMNS - indent).into_iter().enumerate() {
        let _ = match number {
            0 => writeln!(out, "{}", format!("    {} {words}", entry.name).trim_end()),
            _ => writeln!(out, "{:indent$}{words}", ""),
        };
    }
    out.push('\n');
    let _ = writeln!(out, "{}\n", entry.details.trim());
    if !entry.parameters.is_empty() {
        out.push_str("Parameters\n");
        entry.parameters.iter().for_each(|known| parameter(&mut out, known));
        out.push('\n');
    }
    if entry.user.is_some() {
        out.push_str("As every filter\n");
        COMMON.iter().for_each(|known| parameter(&mut out, known));
        out.push('\n');
    }
    out.push_str("Facts\n");
    line(&mut out, "kind", &format!("{}: {}", entry.kind.name(), right(entry.kind)));
    if entry.kind != Kind::Source {
        line(&mut out, "takes", &takes(entry));
    }
    if entry.kind != Kind::Sink {
        line(&mut out, "gives", &gives(entry.gives));
    }
    if !matches!(entry.kind, Kind::Source | Kind::Sink) {
        line(&mut out, "classes", &classes(entry));
        line(&mut out, "looks at", &reads(entry.reads));
        line(&mut out, "keeps", &keeps(entry));
        if let Some((_, columns)) = entry.shown() {
            line(&mut out, "shows", &shows(&columns));
        }
    }
    if !entry.reasons.is_empty() {
        line(&mut out, "not answered", &entry.reasons.join(", "));
    }
    if !entry.counters.is_empty() {
        line(&mut out, "counts", &entry.counters.join(", "));
    }
    if entry.reports {
        let output = "what it has seen, when the path stops; at the end of a line on \
                      standard output";
        let beside = "what it has seen, when the path stops";
        line(&mut out, "reports", if entry.ends_with_report() { output } else { beside });
    }
    line(&mut out, "runs in", &runs_in(entry));
    if entry.takes_filter {
        let what = "what the first filter behind it asks, where that can be asked in the kernel: \
                    what it refuses never comes in";
        line(&mut out, "asks ahead", what);
    }
    if entry.ahead.is_some() {
        let who = "by the source before it, in the kernel, unless an arc takes what it refuses";
        line(&mut out, "asked ahead", who);
    }
    let _ = write!(out, "\nExample\n    streamline {}\n", shell(entry.example));
    out
}

/// What a request may ask for as a whole, for the help of commands that take one.
#[must_use]
pub fn options() -> String {
    let mut out = "Options of the line, before its first filter:\n".to_owned();
    for (known, word) in OPTIONS.iter().zip(option_words()) {
        let value = if known.kind == Type::Flag { String::new() } else { placeholder(known) };
        let word = format!("  {word}{value}");
        for (number, words) in wrap(known.help, COLUMNS - OPTION).into_iter().enumerate() {
            let _ = writeln!(out, "{:OPTION$}{words}", if number == 0 { &*word } else { "" });
        }
    }
    out.trim_end().to_owned()
}

/// How each option of a request begins: `--latency=`, or `--adapt`, which needs no value.
pub fn option_words() -> impl Iterator<Item = String> {
    OPTIONS.iter().map(|known| match known.kind {
        Type::Flag => format!("--{}", known.name),
        _ => format!("--{}=", known.name),
    })
}

/// A line as an argument of a shell.
fn shell(line: &str) -> String {
    format!("'{}'", line.replace('\'', "'\\''"))
}

fn usage(entry: &Description) -> String {
    let mut text = String::new();
    for known in entry.parameters {
        let word = match known.positional {
            true => known.name.to_uppercase(),
            false => format!("{}={}", known.name, placeholder(known)),
        };
        let more = if known.many { "…" } else { "" };
        let between = if text.is_empty() { "" } else { " " };
        let _ = match known.default.is_none() && !known.optional {
            true => write!(text, "{between}{word}{more}"),
            false => write!(text, "{between}[{word}]{more}"),
        };
    }
    text
}

fn placeholder(known: &Parameter) -> String {
    match known.kind {
        Type::Number { .. } => "N".to_owned(),
        Type::Size { .. } => "SIZE".to_owned(),
        Type::Factor { .. } => "FACTOR".to_owned(),
        Type::Duration => "TIME".to_owned(),
        Type::Flag => "yes|no".to_owned(),
        Type::Text | Type::Bytes => "TEXT".to_owned(),
        Type::Name => "NAME".to_owned(),
        Type::Path => "FILE".to_owned(),
        Type::OneOf(words) => words.join("|"),
    }
}

fn parameter(out: &mut String, known: &Parameter) {
    let values = match known.kind {
        Type::Number { low, high: u64::MAX } => format!("a number from {low}"),
        Type::Number { low, high } => format!("a number from {low} to {high}"),
        Type::Size { high: u64::MAX, .. } => "a size: 4096, 64k, 16M, 1G".to_owned(),
        Type::Size { low, high } => format!("a size from {low} to {high} bytes: 4096, 64k"),
        Type::Factor { or } => format!("{or}, or a number above 0: 2, 0.5"),
        Type::Duration => "a time: 10us, 250ms, 2s, 5m".to_owned(),
        Type::Flag => "yes or no".to_owned(),
        Type::Text => "text".to_owned(),
        Type::Bytes => "text; \\xHH is a byte".to_owned(),
        Type::Name => "a name".to_owned(),
        Type::Path => "a file; - is a standard stream".to_owned(),
        Type::OneOf(words) => words.join(" or "),
    };
    let default = match (known.default, known.optional) {
        (Some(value), _) => format!("; {value} if not given"),
        (None, true) => "; may be absent".to_owned(),
        (None, false) => "; needed".to_owned(),
    };
    let many = if known.many { "; may be given several times" } else { "" };
    line(out, known.name, &format!("{} ({values}{default}{many})", known.help));
}

/// The fields that others see (`state=NAME`), with their units.
fn shows(columns: &[Column]) -> String {
    let one = |column: &Column| {
        let unit = match column.unit.name() {
            "" => String::new(),
            unit => format!(", {unit}"),
        };
        let name = match column.times {
            1 => column.name.to_owned(),
            times => format!("{0}.0 to {0}.{1}", column.name, times - 1),
        };
        format!("{name} ({}{unit})", column.help)
    };
    columns.iter().map(one).collect::<Vec<_>>().join("; ")
}

const fn right(kind: Kind) -> &'static str {
    match kind {
        Kind::Statistics => "sees no bytes",
        Kind::Inspection => "reads bytes, changes nothing",
        Kind::Classification => "reads bytes, gives each block a class",
        Kind::Reordering => "also changes what is in view, and the order",
        Kind::Editing => "also changes bytes",
        Kind::Source => "where blocks enter",
        Kind::Sink => "where blocks leave",
    }
}

fn takes(entry: &Description) -> String {
    let forms: Vec<&str> =
        Form::ALL.iter().filter(|form| entry.takes.has(**form)).map(|form| form.name()).collect();
    if forms.len() == Form::ALL.len() { "anything".to_owned() } else { forms.join(", ") }
}

fn gives(gives: Gives) -> String {
    match gives {
        Gives::Same => "what it took".to_owned(),
        Gives::Form(form) => form.name().to_owned(),
        Gives::Nothing => "nothing".to_owned(),
    }
}

fn classes(entry: &Description) -> String {
    match entry.classes {
        Classes::Same => "left as they came".to_owned(),
        Classes::YesNo => "1 or no answer".to_owned(),
        Classes::Number { what, range, names } => {
            let mut text = format!("{what}, {} to {}", range.low, range.high);
            let names: Vec<String> =
                names.iter().map(|(name, value)| format!("{name} {value}")).collect();
            if !names.is_empty() {
                let _ = write!(text, "; with names: {}", names.join(", "));
            }
            let group =
                |(name, range): &(&str, ValueRange)| format!("{name} {}:{}", range.low, range.high);
            let groups: Vec<String> = entry.groups.iter().map(group).collect();
            if !groups.is_empty() {
                let _ = write!(text, "; and for ranges: {}", groups.join(", "));
            }
            text
        }
    }
}

fn reads(reads: Reads) -> String {
    match reads {
        Reads::Nothing => "no byte".to_owned(),
        Reads::Head(bytes) => format!("the first {bytes} bytes of a frame at most"),
        Reads::All => "every byte".to_owned(),
    }
}

fn keeps(entry: &Description) -> String {
    let held = match entry.held_max {
        0 => String::new(),
        blocks => format!("; holds {} at most", words::counted(blocks.into(), "block")),
    };
    let state = match entry.keeps {
        Keeps::Nothing => "nothing between blocks".to_owned(),
        Keeps::Private => "state of its own".to_owned(),
        Keeps::Sessions => "state per session".to_owned(),
        Keeps::Pinned(why) => format!("state that cannot move: {why}"),
    };
    format!("{state}{held}")
}

fn runs_in(entry: &Description) -> String {
    if entry.process {
        return "a process of its own".to_owned();
    }
    let own = if entry.writes_files { "a thread of its own" } else { "a thread" };
    match (entry.kind, entry.kernel) {
        (Kind::Source | Kind::Sink, _) => own.to_owned(),
        (_, Some(_)) => format!("{own}; it has a twin for the kernel"),
        (_, None) => format!("{own}; it has no twin for the kernel"),
    }
}

fn line(out: &mut String, what: &str, text: &str) {
    let mut what = format!("    {what}");
    let width = INDENT + 4;
    if what.chars().count() >= width {
        let _ = writeln!(out, "{what}");
        what.clear();
    }
    for part in wrap(text, COLUMNS - width) {
        let _ = writeln!(out, "{}", format!("{what:<width$}{part}").trim_end());
        what.clear();
    }
}
