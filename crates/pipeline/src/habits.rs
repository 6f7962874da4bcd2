//! Recognizes the syntax of tcpdump, grep and the shell, and proposes the line that means the same
//! here.
//!
//! In: a text with mistakes, or the words of a command line. Out: one mistake that says whose words
//! they are and a line to write instead; none where no table knows them, or where that line would
//! not pass the checks. The tables are [`WORDS`] for what begins a stage of a line, and [`OPTIONS`]
//! for what begins with a hyphen.

use filter::general::bpf::is_expression;
use filter::{Classes, Description, Kind};

use crate::catalogue::Catalogue;
use crate::check::read_as_written;
use crate::language::{Diagnostic, Span, write_quoted};

/// The counterpart of a word at the beginning of a stage.
enum Means {
    /// A filter with the first of the words as its argument, and perhaps a file: `grep -i foo x`.
    First(&'static str),
    /// The source that reads the file.
    File,
    /// A filter without them: `wc -l`.
    Alone(&'static str),
    /// A command with options: the words are those of [`OPTIONS`].
    Options,
    /// A program of the shell behind this one.
    Behind,
}

const TCPDUMP: &str = "is written for tcpdump";
const GREP: &str = "is written for grep";
const SHELL: &str = "is written for a shell";
const LABEL: &str = "has a class for an argument: classes stand on the arc behind the filter";
const FRONT: &str = "has an option of the request: those stand before the first filter";

/// The words that begin a stage: whose they are, and what they mean.
const WORDS: &[(&[&str], &str, Means)] = &[
    (&["tcpdump", "tshark", "dumpcap", "windump"], TCPDUMP, Means::Options),
    (&["grep", "fgrep", "ngrep"], GREP, Means::First("match")),
    (&["egrep", "rg", "pcre2grep"], GREP, Means::First("regex")),
    (&["wc"], SHELL, Means::Alone("count")),
    (&["cat"], SHELL, Means::File),
    (
        &[
            "sort", "uniq", "head", "tail", "awk", "sed", "cut", "tr", "jq", "less", "more", "tee",
            "xargs",
        ],
        SHELL,
        Means::Behind,
    ),
];

/// The request of a tcpdump option.
#[derive(Clone, Copy)]
enum Asks {
    /// A source with its value as the argument.
    Source(&'static str),
    /// A sink with its value as the argument.
    Sink(&'static str),
    /// The end after so many blocks.
    Count,
    /// A filter expression.
    Expression,
    /// Already the case, or without counterpart; `value` says if an argument follows.
    Nothing { value: bool },
}

/// The options of tcpdump and tshark.
const OPTIONS: &[(&str, Asks)] = &[
    ("-i", Asks::Source("rx")),
    ("--interface", Asks::Source("rx")),
    ("-r", Asks::Source("replay")),
    ("-w", Asks::Sink("pcap")),
    ("-c", Asks::Count),
    ("-f", Asks::Expression),
    ("-s", Asks::Nothing { value: true }),
    ("-B", Asks::Nothing { value: true }),
    ("-n", Asks::Nothing { value: false }),
    ("-v", Asks::Nothing { value: false }),
    ("-q", Asks::Nothing { value: false }),
    ("-e", Asks::Nothing { value: false }),
    ("-l", Asks::Nothing { value: false }),
    ("-p", Asks::Nothing { value: false }),
    ("-t", Asks::Nothing { value: false }),
    ("-x", Asks::Nothing { value: false }),
    ("-A", Asks::Nothing { value: false }),
    ("-K", Asks::Nothing { value: false }),
    ("-S", Asks::Nothing { value: false }),
    ("-U", Asks::Nothing { value: false }),
    ("-X", Asks::Nothing { value: false }),
];

/// The words of other programs, and the line that means them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// The message: `is written for tcpdump`.
    pub said: &'static str,
    /// The line.
    pub line: String,
    /// After how many blocks it is to end.
    pub count: Option<String>,
    /// The shell command that belongs behind the line.
    pub behind: Option<String>,
}

impl Meant {
    /// The command that runs it.
    #[must_use]
    pub fn command(&self) -> String {
        let count =
            self.count.as_ref().map_or_else(String::new, |count| format!("run -c {count} "));
        let behind = self.behind.as_ref().map_or_else(String::new, |behind| format!(" | {behind}"));
        // As a shell takes a quote within quotes.
        format!("streamline {count}'{}'{behind}", self.line.replace('\'', r"'\''"))
    }

    /// Returns the replacement inside a line.
    fn written(&self) -> String {
        match (&self.count, &self.behind) {
            (None, None) => self.line.clone(),
            _ => self.command(),
        }
    }
}

/// The mistake that a text makes as a whole, if it says what another program understands.
pub(crate) fn mistake(
    text: &str,
    mistakes: &[Diagnostic],
    catalogue: &dyn Catalogue,
) -> Option<Diagnostic> {
    let (stage, meant) = first_wrong(text, mistakes, catalogue)?;
    let meant = right(meant, catalogue, ROUNDS)?;
    let what = format!("`{}` {}", text.get(stage.start..stage.end)?, meant.said);
    Some(Diagnostic::error(stage, what).hint(format!("write `{}`", meant.written())))
}

/// The line that the words of a command line mean, if they are those of tcpdump or of a shell.
pub fn command(words: &[&str], catalogue: &dyn Catalogue) -> Option<Meant> {
    let text = words.join(" ");
    let stages = stages(&text, PIPE);
    let meant = meant(&text, &stages, 0, catalogue).or_else(|| options(words))?;
    right(meant, catalogue, ROUNDS)
}

/// The most stages of a line that are translated, one after the other.
const ROUNDS: usize = 4;
/// The separator of stages.
const PIPE: &[char] = &['|'];
const OPERATORS: &[char] = &['|', '+', '(', ')', ';'];

/// The first stage in which a mistake is that a table knows, and the line that is meant by it.
fn first_wrong(
    text: &str,
    mistakes: &[Diagnostic],
    catalogue: &dyn Catalogue,
) -> Option<(Span, Meant)> {
    [PIPE, OPERATORS].into_iter().find_map(|between| {
        let stages = stages(text, between);
        let is_wrong = |stage: &Span| {
            let mut errors = mistakes.iter().filter(|mistake| mistake.is_error());
            errors.any(|error| (stage.start..=stage.end).contains(&error.span.start))
        };
        let mut wrong = stages.iter().enumerate().filter(|(_, stage)| is_wrong(stage));
        wrong.find_map(|(at, stage)| Some((*stage, meant(text, &stages, at, catalogue)?)))
    })
}

/// The same with a line that passes the checks; other stages of it are looked at likewise.
fn right(meant: Meant, catalogue: &dyn Catalogue, rounds: usize) -> Option<Meant> {
    let (_, mistakes) = read_as_written(&meant.line, catalogue);
    if !mistakes.iter().any(Diagnostic::is_error) {
        return Some(meant);
    }
    let rounds = rounds.checked_sub(1)?;
    let (_, next) = first_wrong(&meant.line, &mistakes, catalogue)?;
    let (count, behind) = (meant.count.or(next.count), meant.behind.or(next.behind));
    right(Meant { said: meant.said, line: next.line, count, behind }, catalogue, rounds)
}

/// Returns the spans between the separators of a text, without surrounding white space.
fn stages(text: &str, between: &[char]) -> Vec<Span> {
    let (mut stages, mut from, mut quote) = (Vec::new(), 0, None);
    let mut escaped = false;
    for (at, c) in text.char_indices().chain([(text.len(), '|')]) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if between.contains(&c) => {
                let stage = text.get(from..at).unwrap_or_default();
                let start = at - stage.trim_start().len();
                stages.push(Span::new(start, start + stage.trim().len()));
                from = at + 1;
            }
            None => {}
        }
    }
    stages
}

/// The words of a stage, quotes taken off.
fn words(stage: &str) -> Vec<&str> {
    let bare = |word: &'_ str| -> usize { word.trim_matches(['"', '\'']).len() };
    stage
        .split_ascii_whitespace()
        .map(|word| if bare(word) > 0 { word.trim_matches(['"', '\'']) } else { word })
        .collect()
}

/// The whole line that is meant where the stage at this place says what a table knows.
fn meant(text: &str, stages: &[Span], at: usize, catalogue: &dyn Catalogue) -> Option<Meant> {
    let stage = *stages.get(at)?;
    let said = text.get(stage.start..stage.end)?;
    let words = words(said);
    let (first, arguments) = words.split_first()?;
    let (heads, last) = (text.get(..stage.start)?.trim().is_empty(), at + 1 == stages.len());
    let of = |said, line| Some(Meant { said, line, count: None, behind: None });
    if let Some(line) = option_in_front(text, stage, &words) {
        return of(FRONT, line);
    }
    let entry = catalogue.find(first);
    if let Some(written) = entry.and_then(|entry| as_label(entry, arguments)) {
        // The pipe behind becomes the label.
        let end = stages.get(at + 1).map_or(text.len(), |next| next.start);
        let written = if last { format!("{written} count") } else { format!("{written} ") };
        return of(LABEL, replaced(text, Span::new(stage.start, end), &written, heads, false));
    }
    // `tcp` alone is the filter.
    if is_expression(said) && (entry.is_none() || !arguments.is_empty()) {
        let written = format!("bpf {}", quoted(said));
        return of(TCPDUMP, replaced(text, stage, &written, heads, last));
    }
    if first.starts_with('-') {
        return options(&words).filter(|_| heads && last);
    }
    if entry.is_some() {
        let kept: Vec<&str> = words.iter().copied().filter(|word| !is_option(word)).collect();
        let line = with(text, stage, &kept.join(" "));
        return if kept.len() < words.len() { of(TCPDUMP, line) } else { None };
    }
    let (_, said, means) = WORDS.iter().find(|(known, ..)| known.contains(first))?;
    let mut plain = arguments.iter().copied().filter(|word| !word.starts_with('-'));
    match means {
        Means::First(name) => {
            let written = format!("{name} {}", quoted(plain.next()?));
            let file = plain.next().filter(|_| heads);
            let written = match file {
                Some(file) => format!("{} | {written}", of_file(file)),
                None => written,
            };
            of(said, replaced(text, stage, &written, heads && file.is_none(), last))
        }
        Means::File => of(said, with(text, stage, &of_file(plain.next()?))),
        Means::Alone(name) => of(said, replaced(text, stage, name, heads, false)),
        Means::Options => options(arguments),
        Means::Behind => {
            let line = behind(text, stages, at, catalogue)?;
            let behind = text.get(stage.start..).map(str::to_owned);
            Some(Meant { said, line, count: None, behind })
        }
    }
}

/// The source that reads a file: of a capture its packets, of any other its lines.
fn of_file(file: &str) -> String {
    let is_capture = [".pcap", ".pcapng", ".cap"].iter().any(|end| file.ends_with(end));
    let lines = if is_capture { "" } else { " lines=yes" };
    named(if is_capture { "replay" } else { "read" }, Some(file)) + lines
}

/// The text with something else in place of a stage.
fn with(text: &str, stage: Span, written: &str) -> String {
    let (before, after) = (text.get(..stage.start), text.get(stage.end..));
    format!("{}{written}{}", before.unwrap_or_default(), after.unwrap_or_default())
}

/// The text with another stage, behind a source where none is, and printed where nothing follows.
fn replaced(text: &str, stage: Span, written: &str, heads: bool, prints: bool) -> String {
    let source = if heads { "rx | " } else { "" };
    let print = if prints { " | print" } else { "" };
    with(text, stage, &format!("{source}{written}{print}"))
}

/// A request option that stands behind a filter: the text with it in front.
fn option_in_front(text: &str, stage: Span, words: &[&str]) -> Option<String> {
    let is_option = |word: &&&str| word.starts_with("--") && !word.starts_with("--name=");
    let option = words.iter().skip(1).find(is_option)?;
    let kept: Vec<&str> = words.iter().copied().filter(|word| word != option).collect();
    let known = option.trim_start_matches('-').split('=').next()?;
    crate::check::OPTIONS.iter().find(|parameter| parameter.name == known)?;
    Some(format!("{option} {}", with(text, stage, &kept.join(" "))))
}

/// A filter with classes for arguments, `dport 80`, as filter and label.
fn as_label(entry: &Description, arguments: &[&str]) -> Option<String> {
    let Classes::Number { names, .. } = entry.classes else { return None };
    let is_number = |part: &str| part.is_empty() || part.bytes().all(|byte| byte.is_ascii_digit());
    let is_class = |word: &str| {
        names.iter().any(|(name, _)| *name == word) || word.split([':', '-']).all(is_number)
    };
    let classes: Vec<&str> = arguments.iter().flat_map(|word| word.split(',')).collect();
    let fits = !classes.is_empty() && classes.iter().all(|class| is_class(class));
    fits.then(|| format!("{} |{}", entry.name, classes.join(",").replace('-', ":")))
}

/// The line in front of a program of the shell, as text.
fn behind(text: &str, stages: &[Span], at: usize, catalogue: &dyn Catalogue) -> Option<String> {
    let before = stages.get(at.checked_sub(1)?)?;
    let line = text.get(..before.end)?;
    let name = words(text.get(before.start..before.end)?).first().copied()?;
    let entry = catalogue.find(name)?;
    let says = entry.kind == Kind::Sink || entry.ends_with_report();
    Some(if says { line.to_owned() } else { format!("{line} | print") })
}

fn is_option(word: &str) -> bool {
    OPTIONS.iter().any(|(known, _)| *known == word)
}

/// The line of a command with the options of tcpdump.
fn options(words: &[&str]) -> Option<Meant> {
    let (mut source, mut sink, mut count) = ("rx".to_owned(), "print".to_owned(), None);
    let mut rest: Vec<&str> = Vec::new();
    let mut words = words.iter().copied();
    let mut seen = false;
    while let Some(word) = words.next() {
        if !word.starts_with('-') || word == "-" {
            rest.push(word);
            continue;
        }
        seen = true;
        let Some((asks, glued)) = option(word)? else { continue };
        let value = glued.or_else(|| words.next())?;
        match asks {
            // All interfaces have no name here.
            Asks::Source("rx") if value == "any" => {}
            Asks::Source(name) => source = named(name, Some(value)),
            Asks::Sink(name) => sink = named(name, Some(value)),
            Asks::Count => count = Some(value.to_owned()),
            Asks::Expression => rest.push(value),
            Asks::Nothing { .. } => {}
        }
    }
    let rest = rest.join(" ");
    let line = match rest.as_str() {
        "" => format!("{source} | {sink}"),
        text if is_expression(text) => format!("{source} | bpf {} | {sink}", quoted(text)),
        text if sink == "print" => format!("{source} | {text}"),
        text => format!("{source} | {text} | {sink}"),
    };
    seen.then_some(Meant { said: TCPDUMP, line, count, behind: None })
}

/// Parses an option with a value and the value glued to it: `-i eth0`, `-ieth0`, `-nni eth0`.
/// `Some(None)` has no counterpart; `None` is not known.
fn option(word: &str) -> Option<Option<(Asks, Option<&str>)>> {
    let (key, value) = word.split_once('=').map_or((word, None), |(k, v)| (k, Some(v)));
    if let Some((_, asks)) = OPTIONS.iter().find(|(known, _)| *known == key) {
        let silent = matches!(asks, Asks::Nothing { value: false });
        return Some((!silent).then_some((*asks, value)));
    }
    for (at, letter) in word.char_indices().skip(1) {
        let (_, asks) = OPTIONS.iter().find(|(known, _)| {
            known.strip_prefix('-').is_some_and(|known| known.chars().eq([letter]))
        })?;
        if !matches!(asks, Asks::Nothing { value: false }) {
            let glued = word.get(at + letter.len_utf8()..).filter(|glued| !glued.is_empty());
            return Some(Some((*asks, glued)));
        }
    }
    Some(None)
}

fn named(name: &str, value: Option<&str>) -> String {
    match value {
        None => name.to_owned(),
        Some(value) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            let bare = value.chars().all(plain) && !value.is_empty();
            let value = if bare { value.to_owned() } else { quoted(value) };
            format!("{name} {value}")
        }
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    // Writing into a text cannot fail.
    let _ = write_quoted(&mut quoted, text.as_bytes());
    quoted
}
