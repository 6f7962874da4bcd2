//! Recognition of tcpdump, grep and shell syntax, with the equivalent request as a proposal.
//!
//! The input is a text with errors or the words of a command line. The output is one error that
//! names the other program and the equivalent request. There is no output if the text matches no
//! table, or if the equivalent request would itself have errors. The tables are [`STAGE_WORDS`],
//! with the first words of stages, and `options`, with the options of tcpdump.

mod options;
mod path;

use filter::general::bpf::parses_as_expression;
use filter::{Classes, Description, FilterKind};

use self::options::{is_option, translate_options};
use crate::check::read_native_request;
use crate::language::{Diagnostic, Span, write_quoted};
use crate::registry::Registry;

/// The equivalent of a stage that begins with a word of another program, such as `tcpdump`.
enum StageEquivalent {
    /// A filter whose argument is the next word, and optionally a file to read, as in `grep -i foo
    /// x`.
    Match(&'static str),
    /// The source that reads a file, whose name is the next word.
    File,
    /// A filter without arguments, as the equivalent of `wc -l`.
    Filter(&'static str),
    /// A tcpdump command with options.
    Options,
    /// A shell command into which the output of this program is piped.
    ShellCommand,
}

const TCPDUMP_MESSAGE: &str = "is written for tcpdump";
const GREP_MESSAGE: &str = "is written for grep";
const SHELL_MESSAGE: &str = "is written for a shell";
const CLASS_ARGUMENT_MESSAGE: &str =
    "has a class for an argument: classes are written on the arc after the filter";
const MISPLACED_OPTION_MESSAGE: &str =
    "has an option of the request: those precede the first filter";

/// The known first words of stages, each group with its message and its equivalent.
const STAGE_WORDS: &[(&[&str], &str, StageEquivalent)] = &[
    (&["tcpdump", "tshark", "dumpcap", "windump"], TCPDUMP_MESSAGE, StageEquivalent::Options),
    (&["grep", "fgrep", "ngrep"], GREP_MESSAGE, StageEquivalent::Match("match")),
    (&["egrep", "rg", "pcre2grep"], GREP_MESSAGE, StageEquivalent::Match("regex")),
    (&["wc"], SHELL_MESSAGE, StageEquivalent::Filter("count")),
    (&["cat"], SHELL_MESSAGE, StageEquivalent::File),
    (
        &[
            "sort", "uniq", "head", "tail", "awk", "sed", "cut", "tr", "jq", "less", "more", "tee",
            "xargs",
        ],
        SHELL_MESSAGE,
        StageEquivalent::ShellCommand,
    ),
];

/// The request equivalent to a command line of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The message that names the other program, such as `is written for tcpdump`.
    pub message: &'static str,
    /// Text of the equivalent request.
    pub line: String,
    /// Maximum number of blocks that the sinks receive (`-c`), as text; `None` for no limit.
    pub count: Option<String>,
    /// The shell command into which the output is piped, or `None` if there is none.
    pub shell: Option<String>,
}

impl Translation {
    /// Returns the shell command line that runs the translated request.
    #[must_use]
    pub fn command(&self) -> String {
        let count =
            self.count.as_ref().map_or_else(String::new, |count| format!("run -c {count} "));
        let shell = self.shell.as_ref().map_or_else(String::new, |shell| format!(" | {shell}"));
        // A shell represents a single quote in a quoted string as `'\''`.
        format!("streamline {count}'{}'{shell}", self.line.replace('\'', r"'\''"))
    }

    /// Returns the text that the hint proposes: the request or, if it needs a block limit or a
    /// shell command, the entire command line.
    fn proposal_text(&self) -> String {
        match (&self.count, &self.shell) {
            (None, None) => self.line.clone(),
            _ => self.command(),
        }
    }
}

/// Returns an error that proposes an equivalent request, if a stage of the text is written for
/// tcpdump, grep or a shell and the tables of this module contain it; otherwise returns `None`.
pub(crate) fn translation_diagnostic(
    text: &str,
    mistakes: &[Diagnostic],
    registry: &dyn Registry,
) -> Option<Diagnostic> {
    let (stage, translation) = translate_first_error(text, mistakes, registry)?;
    let translation = translate_stages(translation, registry, TRANSLATED_STAGES_MAX)?;
    let what = format!("`{}` {}", text.get(stage.start..stage.end)?, translation.message);
    Some(Diagnostic::error(stage, what).hint(format!("write `{}`", translation.proposal_text())))
}

/// Translates a command line in tcpdump or shell syntax; returns `None` for any other command.
pub fn translate_command(words: &[&str], registry: &dyn Registry) -> Option<Translation> {
    let text = words.join(" ");
    let stages = stage_spans(&text, PIPE_SEPARATORS);
    let translation =
        translate_stage(&text, &stages, 0, registry).or_else(|| translate_options(words))?;
    translate_stages(translation, registry, TRANSLATED_STAGES_MAX)
}

/// The maximum number of stages that are translated, one after another.
const TRANSLATED_STAGES_MAX: usize = 4;
/// The separator of the stages of a command line.
const PIPE_SEPARATORS: &[char] = &['|'];
const OPERATOR_SEPARATORS: &[char] = &['|', '+', '(', ')', ';'];

/// Finds the first stage that has an error and matches a table, and translates it. Splits the text
/// into stages at pipes and, if no such stage matches, at all operators. Returns the stage's span
/// and the translation, or `None` if no stage matches.
fn translate_first_error(
    text: &str,
    mistakes: &[Diagnostic],
    registry: &dyn Registry,
) -> Option<(Span, Translation)> {
    if !mistakes.iter().any(Diagnostic::is_error) {
        return None;
    }
    [PIPE_SEPARATORS, OPERATOR_SEPARATORS].into_iter().find_map(|between| {
        let stages = stage_spans(text, between);
        let is_wrong = |stage: &Span| {
            let mut errors = mistakes.iter().filter(|mistake| mistake.is_error());
            errors.any(|error| (stage.start..=stage.end).contains(&error.span.start))
        };
        let mut wrong = stages.iter().enumerate().filter(|(_, stage)| is_wrong(stage));
        wrong.find_map(|(at, stage)| Some((*stage, translate_stage(text, &stages, at, registry)?)))
    })
}

/// Translates further stages of a translated request, until the request passes the checks. Returns
/// `None` if it still has errors after `rounds` stages, or if an error has no translation.
fn translate_stages(
    translation: Translation,
    registry: &dyn Registry,
    rounds: usize,
) -> Option<Translation> {
    let (_, mistakes) = read_native_request(&translation.line, registry);
    if !mistakes.iter().any(Diagnostic::is_error) {
        return Some(translation);
    }
    let rounds = rounds.checked_sub(1)?;
    let (_, next) = translate_first_error(&translation.line, &mistakes, registry)?;
    let (count, shell) = (translation.count.or(next.count), translation.shell.or(next.shell));
    translate_stages(
        Translation { message: translation.message, line: next.line, count, shell },
        registry,
        rounds,
    )
}

/// Returns the spans between the separators of a text, without surrounding white space. Separators
/// within quotes do not count.
fn stage_spans(text: &str, between: &[char]) -> Vec<Span> {
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

/// Splits a stage at white space. Returns the words without the quotes at their ends, except that a
/// word of quotes only is returned unchanged.
fn stage_words(stage: &str) -> Vec<&str> {
    let bare = |word: &'_ str| -> usize { word.trim_matches(['"', '\'']).len() };
    stage
        .split_ascii_whitespace()
        .map(|word| if bare(word) > 0 { word.trim_matches(['"', '\'']) } else { word })
        .collect()
}

/// Translates a request whose stage with index `at` is not valid here, but is known: syntax of
/// another program, a PipesFS path, or a filter with a misplaced option or with classes as
/// arguments. Returns `None` for any other stage.
fn translate_stage(
    text: &str,
    stages: &[Span],
    at: usize,
    registry: &dyn Registry,
) -> Option<Translation> {
    let stage = *stages.get(at)?;
    let content = text.get(stage.start..stage.end)?;
    let words = stage_words(content);
    let (first, arguments) = words.split_first()?;
    let (is_head, last) = (text.get(..stage.start)?.trim().is_empty(), at + 1 == stages.len());
    let of = |message, line| Some(Translation { message, line, count: None, shell: None });
    if let Some(line) = move_option_to_front(text, stage, &words) {
        return of(MISPLACED_OPTION_MESSAGE, line);
    }
    if let Some(line) = translate_pipes_path(text, stages, at, registry).filter(|_| is_head) {
        return of(path::PIPES_PATH_MESSAGE, line);
    }
    let entry = registry.find(first);
    if let Some(written) = entry.and_then(|entry| argument_as_label(entry, arguments)) {
        // The label replaces the next pipe.
        let end = stages.get(at + 1).map_or(text.len(), |next| next.start);
        let written = if last { format!("{written} count") } else { format!("{written} ") };
        return of(
            CLASS_ARGUMENT_MESSAGE,
            rewrite_stage(text, Span::new(stage.start, end), &written, is_head, false),
        );
    }
    // `tcp` alone is a filter in this language, too.
    if parses_as_expression(content) && (entry.is_none() || !arguments.is_empty()) {
        let written = format!("bpf {}", quote_word(content));
        return of(TCPDUMP_MESSAGE, rewrite_stage(text, stage, &written, is_head, last));
    }
    if first.starts_with('-') {
        return translate_options(&words).filter(|_| is_head && last);
    }
    if entry.is_some() {
        let remaining: Vec<&str> = words.iter().copied().filter(|word| !is_option(word)).collect();
        let line = replace_stage(text, stage, &remaining.join(" "));
        return if remaining.len() < words.len() { of(TCPDUMP_MESSAGE, line) } else { None };
    }
    let (_, message, means) = STAGE_WORDS.iter().find(|(known, ..)| known.contains(first))?;
    let mut plain = arguments.iter().copied().filter(|word| !word.starts_with('-'));
    match means {
        StageEquivalent::Match(name) => {
            let written = format!("{name} {}", quote_word(plain.next()?));
            let file = plain.next().filter(|_| is_head);
            let written = match file {
                Some(file) => format!("{} | {written}", file_source(file)),
                None => written,
            };
            of(message, rewrite_stage(text, stage, &written, is_head && file.is_none(), last))
        }
        StageEquivalent::File => {
            of(message, replace_stage(text, stage, &file_source(plain.next()?)))
        }
        StageEquivalent::Filter(name) => {
            of(message, rewrite_stage(text, stage, name, is_head, false))
        }
        StageEquivalent::Options => translate_options(arguments),
        StageEquivalent::ShellCommand => {
            let line = request_before_shell(text, stages, at, registry)?;
            let shell = text.get(stage.start..).map(str::to_owned);
            Some(Translation { message, line, count: None, shell })
        }
    }
}

/// Translates a PipesFS path, bare or after `cat`, and the stages that follow it. Returns `None` if
/// the stage is not such a path.
fn translate_pipes_path(
    text: &str,
    stages: &[Span],
    at: usize,
    registry: &dyn Registry,
) -> Option<String> {
    let stage = stages.get(at)?;
    let behind = stages.get(at + 1).and_then(|next| text.get(next.start..));
    match stage_words(text.get(stage.start..stage.end)?).as_slice() {
        [path] => path::pipes_path_request(path, behind.map(str::to_owned), registry),
        ["cat", path] => {
            let command = behind.map(|shell| format!("exec {}", quote_word(shell)));
            path::pipes_path_request(path, command, registry)
        }
        _ => None,
    }
}

/// Returns the source that reads a file: `replay` for a capture, otherwise the source that reads
/// lines.
fn file_source(file: &str) -> String {
    let is_capture = [".pcap", ".pcapng", ".cap"].iter().any(|end| file.ends_with(end));
    let lines = if is_capture { "" } else { " lines=yes" };
    format_with_argument(if is_capture { "replay" } else { "read" }, Some(file)) + lines
}

/// Replaces a stage of the text with `written`.
fn replace_stage(text: &str, stage: Span, written: &str) -> String {
    let (before, after) = (text.get(..stage.start), text.get(stage.end..));
    format!("{}{written}{}", before.unwrap_or_default(), after.unwrap_or_default())
}

/// Replaces a stage of the text with `written`. Adds a source before it if `is_head` is true, and
/// `print` after it if `prints` is true.
fn rewrite_stage(text: &str, stage: Span, written: &str, is_head: bool, prints: bool) -> String {
    let source = if is_head { "rx | " } else { "" };
    let print = if prints { " | print" } else { "" };
    replace_stage(text, stage, &format!("{source}{written}{print}"))
}

/// Moves an option of the request (`--…`) from its place behind a filter to the front of the text.
/// Returns `None` if the stage contains no such option.
fn move_option_to_front(text: &str, stage: Span, words: &[&str]) -> Option<String> {
    let is_option = |word: &&&str| word.starts_with("--") && !word.starts_with("--name=");
    let option = words.iter().skip(1).find(is_option)?;
    let remaining: Vec<&str> = words.iter().copied().filter(|word| word != option).collect();
    let known = option.trim_start_matches('-').split('=').next()?;
    crate::check::REQUEST_OPTIONS.iter().find(|parameter| parameter.name == known)?;
    Some(format!("{option} {}", replace_stage(text, stage, &remaining.join(" "))))
}

/// Formats a filter whose arguments are classes (`dport 80`) as a filter and a label. Returns
/// `None` if the arguments are not classes.
fn argument_as_label(entry: &Description, arguments: &[&str]) -> Option<String> {
    let Classes::Number { names, .. } = entry.classes else { return None };
    let is_number = |part: &str| part.is_empty() || part.bytes().all(|byte| byte.is_ascii_digit());
    let is_class = |word: &str| {
        names.iter().any(|(name, _)| *name == word) || word.split([':', '-']).all(is_number)
    };
    let classes: Vec<&str> = arguments.iter().flat_map(|word| word.split(',')).collect();
    let fits = !classes.is_empty() && classes.iter().all(|class| is_class(class));
    fits.then(|| format!("{} |{}", entry.name, classes.join(",").replace('-', ":")))
}

/// Returns the request that precedes a shell command, with `| print` added unless the request
/// outputs text anyway. Returns `None` if nothing precedes the command, or if the preceding filter
/// is unknown.
fn request_before_shell(
    text: &str,
    stages: &[Span],
    at: usize,
    registry: &dyn Registry,
) -> Option<String> {
    let before = stages.get(at.checked_sub(1)?)?;
    let line = text.get(..before.end)?;
    let name = stage_words(text.get(before.start..before.end)?).first().copied()?;
    let entry = registry.find(name)?;
    let writes_output = entry.kind == FilterKind::Sink || entry.ends_with_report();
    Some(if writes_output { line.to_owned() } else { format!("{line} | print") })
}

fn format_with_argument(name: &str, value: Option<&str>) -> String {
    match value {
        None => name.to_owned(),
        Some(value) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            let bare = value.chars().all(plain) && !value.is_empty();
            let value = if bare { value.to_owned() } else { quote_word(value) };
            format!("{name} {value}")
        }
    }
}

fn quote_word(text: &str) -> String {
    let mut quoted = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_quoted(&mut quoted, text.as_bytes());
    quoted
}
