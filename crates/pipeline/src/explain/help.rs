//! The help of a filter as text, for `streamline filters NAME` and the manual.

use super::table::{TEXT_COLUMNS_MAX, wrap_text};
use crate::check::REQUEST_OPTIONS;
use crate::format::format_count;
use filter::{
    COMMON_PARAMETERS, Classes, Column, Description, EndpointFacts, FilterKind, Form, OutputForm,
    Parameter, ParameterType, ReadDepth, StateScope, ValueRange,
};
use std::fmt::Write as _;

/// The column at which the description of a parameter, or of another fact about a filter, begins.
const FACT_COLUMN: usize = 18;
/// The column at which the description of a request option begins.
const OPTION_COLUMN: usize = 26;

/// The help of a filter, in sections, from which help texts and manual pages are generated.
#[derive(Debug)]
pub struct HelpPage {
    /// The filter's name, as written in a request.
    pub name: &'static str,
    /// A one-line summary of the filter.
    pub summary: &'static str,
    /// The arguments as the usage line shows them, such as `directory [per=block|connection]`.
    pub usage: String,
    /// The description: effect, classes, drops and their reasons.
    pub details: &'static str,
    /// The sections after the description, such as the parameters.
    pub sections: Vec<HelpSection>,
    /// A command line as an example.
    pub example: String,
}

/// A section of the help: a title, and a list of facts.
#[derive(Debug)]
pub struct HelpSection {
    /// The title of the section.
    pub title: &'static str,
    /// The label and the text of each fact.
    pub facts: Vec<(&'static str, String)>,
}

impl HelpPage {
    /// Returns the help of a filter, source or sink.
    #[must_use]
    pub fn for_entry(entry: &Description, endpoint: &EndpointFacts) -> Self {
        let own = HelpSection { title: "Parameters", facts: describe_parameters(entry.parameters) };
        let common = if entry.constructor.is_some() { common_parameters() } else { Vec::new() };
        let common = HelpSection { title: COMMON_PARAMETERS_TITLE, facts: common };
        let facts = HelpSection { title: "Facts", facts: entry_facts(entry, endpoint) };
        let mut sections = vec![own, common, facts];
        sections.retain(|section| !section.facts.is_empty());
        Self {
            name: entry.name,
            summary: entry.summary,
            usage: format_usage(entry),
            details: entry.details.trim(),
            sections,
            example: format!("streamline {}", quoted_for_shell(entry.example)),
        }
    }
}

/// The title of the section with the parameters common to all filters.
pub const COMMON_PARAMETERS_TITLE: &str = "Parameters of every filter";

/// Returns the parameters common to all filters, with their help texts.
#[must_use]
pub fn common_parameters() -> Vec<(&'static str, String)> {
    describe_parameters(COMMON_PARAMETERS)
}

/// Formats the help of a filter, source or sink for a terminal.
#[must_use]
pub fn format_help(entry: &Description, endpoint: &EndpointFacts) -> String {
    let page = HelpPage::for_entry(entry, endpoint);
    let mut out = format!("{}: {}\n\n", page.name, page.summary);
    // Further lines are indented to the column of the first parameter.
    let indent = 4 + page.name.len() + 1;
    for (number, words) in wrap_text(&page.usage, TEXT_COLUMNS_MAX - indent).into_iter().enumerate()
    {
        let _ = match number {
            0 => writeln!(out, "{}", format!("    {} {words}", page.name).trim_end()),
            _ => writeln!(out, "{:indent$}{words}", ""),
        };
    }
    let _ = writeln!(out, "\n{}\n", page.details);
    for section in &page.sections {
        let _ = writeln!(out, "{}", section.title);
        let facts = section.facts.iter();
        out.extend(
            facts.map(|(what, text)| {
                format_hanging_indent(&format!("    {what}"), text, FACT_COLUMN)
            }),
        );
        out.push('\n');
    }
    let _ = write!(out, "Example\n    {}\n", page.example);
    out
}

fn entry_facts(entry: &Description, endpoint: &EndpointFacts) -> Vec<(&'static str, String)> {
    let mut facts = vec![("kind", format!("{}: {}", entry.kind.name(), describe_kind(entry.kind)))];
    if entry.kind != FilterKind::Source {
        facts.push(("input", describe_input(entry)));
    }
    if entry.kind != FilterKind::Sink {
        facts.push(("output", describe_output(entry.output_form)));
    }
    if !matches!(entry.kind, FilterKind::Source | FilterKind::Sink) {
        facts.push(("classes", describe_classes(entry)));
        facts.push(("reads", describe_read_depth(entry.reads)));
        facts.push(("state", describe_memory(entry)));
        facts.extend(
            entry.published_state().map(|(_, columns)| ("published", describe_state(&columns))),
        );
    }
    if !entry.reasons.is_empty() {
        facts.push(("reasons", entry.reasons.join(", ")));
    }
    if !entry.counters.is_empty() {
        facts.push(("counters", entry.counters.join(", ")));
    }
    if entry.has_report {
        let output = "a summary when the path stops; on standard output if a filter with a report \
                      ends the request";
        let beside = "a summary when the path stops";
        facts.push(("reports", if entry.ends_with_report() { output } else { beside }.to_owned()));
    }
    facts.push(("runs in", describe_spaces(entry, endpoint)));
    if endpoint.accepts_pushdown {
        let what = "the kernel checks the condition of the next filter, if it can: frames that \
                    fail it never enter";
        facts.push(("pushdown", what.to_owned()));
    }
    if entry.analysis.pushdown.is_some() {
        let who = "the kernel checks its condition for the source before it, unless an arc selects \
                   what it refuses";
        facts.push(("pushdown", who.to_owned()));
    }
    facts
}

/// The heading of the section with the options of a request.
pub const OPTIONS_TITLE: &str = "Options of a request, before its first filter";

/// Formats the options of a request, for the help of commands that accept a request.
#[must_use]
pub fn format_options() -> String {
    let mut out = format!("{OPTIONS_TITLE}:\n");
    for (word, help) in option_facts() {
        out.push_str(&format_hanging_indent(&format!("  {word}"), help, OPTION_COLUMN));
    }
    out.trim_end().to_owned()
}

/// Returns the notation and the help text of each option.
pub fn option_facts() -> impl Iterator<Item = (String, &'static str)> {
    REQUEST_OPTIONS.iter().zip(option_words()).map(|(known, word)| match known.kind {
        ParameterType::Flag => (word, known.help),
        _ => (word + &placeholder(known), known.help),
    })
}

/// Returns the keyword of each option: `--latency=`, or `--adapt`, which has no value.
pub fn option_words() -> impl Iterator<Item = String> {
    REQUEST_OPTIONS.iter().map(|known| match known.kind {
        ParameterType::Flag => format!("--{}", known.name),
        _ => format!("--{}=", known.name),
    })
}

/// Quotes a request for a shell.
fn quoted_for_shell(line: &str) -> String {
    format!("'{}'", line.replace('\'', "'\\''"))
}

fn format_usage(entry: &Description) -> String {
    let mut text = String::new();
    for known in entry.parameters {
        let word = match known.positional {
            true => known.name.to_uppercase(),
            false => format!("{}={}", known.name, placeholder(known)),
        };
        let more = if known.repeatable { "…" } else { "" };
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
        ParameterType::Number { .. } => "N".to_owned(),
        ParameterType::Size { .. } => "SIZE".to_owned(),
        ParameterType::Factor { .. } => "FACTOR".to_owned(),
        ParameterType::Duration => "TIME".to_owned(),
        ParameterType::Flag => "yes|no".to_owned(),
        ParameterType::Text | ParameterType::Bytes => "TEXT".to_owned(),
        ParameterType::Name => "NAME".to_owned(),
        ParameterType::Path => "FILE".to_owned(),
        ParameterType::OneOf(words) => words.join("|"),
    }
}

fn describe_parameters(all: &[Parameter]) -> Vec<(&'static str, String)> {
    all.iter().map(|known| (known.name, describe_parameter(known))).collect()
}

fn describe_parameter(known: &Parameter) -> String {
    let values = match known.kind {
        ParameterType::Number { low, high: u64::MAX } => format!("a number from {low}"),
        ParameterType::Number { low, high } => format!("a number from {low} to {high}"),
        ParameterType::Size { high: u64::MAX, .. } => "a size: 4096, 64k, 16M, 1G".to_owned(),
        ParameterType::Size { low, high } => {
            format!("a size from {low} to {high} bytes: 4096, 64k")
        }
        ParameterType::Factor { or } => format!("{or}, or a number above 0: 2, 0.5"),
        ParameterType::Duration => "a time: 10us, 250ms, 2s, 5m".to_owned(),
        ParameterType::Flag => "yes or no".to_owned(),
        ParameterType::Text => "text".to_owned(),
        ParameterType::Bytes => "text; \\xHH is a byte".to_owned(),
        ParameterType::Name => "a name".to_owned(),
        ParameterType::Path => "a file; - is a standard stream".to_owned(),
        ParameterType::OneOf(words) => words.join(" or "),
    };
    let default = match (known.default, known.optional) {
        (Some(value), _) => format!("; default {value}"),
        (None, true) => "; optional".to_owned(),
        (None, false) => "; required".to_owned(),
    };
    let many = if known.repeatable { "; repeatable" } else { "" };
    let writable = if known.writable { "; writable by `set`" } else { "" };
    format!("{} ({values}{default}{many}{writable})", known.help)
}

/// Formats the published fields (`state=NAME`), with their units.
fn describe_state(columns: &[Column]) -> String {
    let one = |column: &Column| {
        let unit = match column.unit.name() {
            "" => String::new(),
            unit => format!(", {unit}"),
        };
        let name = match column.value_count {
            1 => column.name.to_owned(),
            times => format!("{0}.0 to {0}.{1}", column.name, times - 1),
        };
        format!("{name} ({}{unit})", column.help)
    };
    columns.iter().map(one).collect::<Vec<_>>().join("; ")
}

const fn describe_kind(kind: FilterKind) -> &'static str {
    match kind {
        FilterKind::Statistics => "sees no bytes",
        FilterKind::Inspection => "reads bytes, changes nothing",
        FilterKind::Classification => "reads bytes, gives each block a class",
        FilterKind::Reordering => "also changes the view, and the order",
        FilterKind::Editing => "also changes bytes",
        FilterKind::Source => "where blocks enter",
        FilterKind::Sink => "where blocks leave",
    }
}

fn describe_input(entry: &Description) -> String {
    let forms: Vec<&str> = Form::ALL
        .iter()
        .filter(|form| entry.input_forms.contains(**form))
        .map(|form| form.name())
        .collect();
    if forms.len() == Form::ALL.len() { "anything".to_owned() } else { forms.join(", ") }
}

fn describe_output(output_form: OutputForm) -> String {
    match output_form {
        OutputForm::Same => "the form of its input".to_owned(),
        OutputForm::Form(form) => form.name().to_owned(),
        OutputForm::Nothing => "nothing".to_owned(),
    }
}

fn describe_classes(entry: &Description) -> String {
    match entry.classes {
        Classes::Same => "unchanged".to_owned(),
        Classes::YesNo => "1 or none".to_owned(),
        Classes::Number { meaning: what, range, names } => {
            let mut text = format!("{what}, {} to {}", range.low, range.high);
            let names: Vec<String> =
                names.iter().map(|(name, value)| format!("{name} {value}")).collect();
            if !names.is_empty() {
                let _ = write!(text, "; with names: {}", names.join(", "));
            }
            let group =
                |(name, range): &(&str, ValueRange)| format!("{name} {}:{}", range.low, range.high);
            let groups: Vec<String> = entry.class_groups.iter().map(group).collect();
            if !groups.is_empty() {
                let _ = write!(text, "; and for ranges: {}", groups.join(", "));
            }
            text
        }
    }
}

fn describe_read_depth(reads: ReadDepth) -> String {
    match reads {
        ReadDepth::Nothing => "no byte".to_owned(),
        ReadDepth::Head(bytes) => format!("the first {bytes} bytes of a frame at most"),
        ReadDepth::All => "every byte".to_owned(),
    }
}

fn describe_memory(entry: &Description) -> String {
    let held = match entry.state.held_max {
        0 => String::new(),
        blocks => format!("; holds {} at most", format_count(blocks.into(), "block")),
    };
    let state = match entry.state.scope {
        StateScope::Nothing => "none between blocks".to_owned(),
        StateScope::Private => "private state".to_owned(),
        StateScope::Sessions => "state per session".to_owned(),
        StateScope::Pinned(why) => format!("state that cannot move: {why}"),
    };
    format!("{state}{held}")
}

fn describe_spaces(entry: &Description, endpoint: &EndpointFacts) -> String {
    if endpoint.is_program {
        return "a process of its own".to_owned();
    }
    let own = match (endpoint.writes_files, endpoint.only_appends) {
        (false, _) => "a thread",
        (true, None) => "a thread of its own",
        (true, Some(_)) => "a thread of its own, or the one that reads the kernel's ring",
    };
    match (entry.kind, entry.emit_twin) {
        (FilterKind::Source | FilterKind::Sink, _) => own.to_owned(),
        (_, Some(_)) => format!("{own}; it has a twin for the kernel"),
        (_, None) => format!("{own}; it has no twin for the kernel"),
    }
}

/// Formats a word followed by a text. The text starts at column `at`, and its later lines are
/// indented to that column.
#[must_use]
pub fn format_hanging_indent(word: &str, text: &str, at: usize) -> String {
    let mut out = String::new();
    let mut word = word;
    if word.chars().count() >= at {
        let _ = writeln!(out, "{word}");
        word = "";
    }
    for part in wrap_text(text, TEXT_COLUMNS_MAX - at) {
        let _ = writeln!(out, "{}", format!("{word:<at$}{part}").trim_end());
        word = "";
    }
    out
}
