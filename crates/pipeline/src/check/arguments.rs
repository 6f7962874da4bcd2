//! Matching of a filter's arguments with its parameters.

use filter::{Arguments, COMMON_PARAMETERS, Description, Mistake, Parameter, ParameterType, Value};

use crate::language::label::truncate_word;
use crate::language::tree::{Argument, FilterTerm, Text};
use crate::language::{Diagnostic, Span, find_nearest_word};
use crate::registry::Registry;

/// The texts of a filter's arguments as written in the request, which give later error messages
/// their positions.
pub(crate) struct ArgumentTexts<'a> {
    node: &'a FilterTerm,
    entry: &'static Description,
    /// The text of each value in the arguments, with the name of the parameter that it sets.
    texts: Vec<(&'static str, &'a Text)>,
    /// True if no argument is invalid, unknown, surplus or missing. The arguments are not yet
    /// checked in combination.
    pub(super) is_valid: bool,
}

/// Parses the arguments of the filter term `node` according to the parameters of `entry`, and adds
/// the defaults. The result is a copy of `none`, which has no arguments but the services that
/// parsing needs, such as the expression compiler, with the parsed arguments added. Omits invalid
/// arguments, and appends their errors to `mistakes`.
pub(crate) fn parse_arguments<'a>(
    node: &'a FilterTerm,
    entry: &'static Description,
    none: &Arguments,
    registry: &'a dyn Registry,
    mistakes: &mut Vec<Diagnostic>,
) -> (Arguments, ArgumentTexts<'a>) {
    let mut reader =
        ArgumentReader { node, entry, given: Vec::new(), mistakes: Vec::new(), registry };
    let mut surplus: Vec<&Argument> = Vec::new();
    for argument in &node.arguments {
        match reader.find_parameter(argument) {
            Ok(parameter) => reader.add_argument(argument, parameter),
            Err(true) => surplus.push(argument),
            Err(false) => {}
        }
    }
    reader.report_surplus_arguments(&surplus);
    reader.report_missing_arguments();
    let ArgumentReader { given, mistakes: mut found, .. } = reader;
    let mut arguments = none.clone();
    for parameter in entry.all_parameters() {
        let value = given.iter().find(|(known, ..)| known.name == parameter.name);
        let value = match value {
            Some((known, ..)) if known.repeatable => continue,
            Some((_, _, value)) => Some(value.clone()),
            None => parameter.default.and_then(|text| parameter.parse(text).ok()),
        };
        // A common parameter that is set to its default `no` is the same as an unset parameter.
        let plain = COMMON_PARAMETERS.iter().any(|common| common.name == parameter.name)
            && value == Some(Value::Flag(false));
        if let Some(value) = value.filter(|_| !plain) {
            arguments.set(parameter.name, value);
        }
    }
    // Repeatable parameters keep the order in which they were written.
    for (parameter, _, value) in given.iter().filter(|(known, ..)| known.repeatable) {
        arguments.add(parameter.name, value.clone());
    }
    let texts = given.iter().map(|(known, text, _)| (known.name, *text)).collect();
    let read = ArgumentTexts { node, entry, texts, is_valid: found.is_empty() };
    mistakes.append(&mut found);
    (arguments, read)
}

impl ArgumentTexts<'_> {
    /// Returns the text of the first value of a parameter, or `None` if it is not given.
    pub(crate) fn value_text(&self, name: &str) -> Option<&Text> {
        self.texts.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// Returns the end of the filter term, as a byte offset in the text of the request.
    pub(super) fn end_offset(&self) -> usize {
        self.node.span.end
    }

    /// Converts a filter's error to a diagnostic. The diagnostic points at the invalid argument or,
    /// if no single argument is invalid, at the filter's name.
    pub(super) fn argument_diagnostic(
        &self,
        mistake: Mistake,
        severity: fn(Span, String) -> Diagnostic,
    ) -> Diagnostic {
        let mut texts = self.texts.iter().filter(|(known, _)| Some(*known) == mistake.parameter);
        let place = match (texts.nth(mistake.value_index), &mistake.range) {
            (Some((_, text)), Some(at)) => value_subspan(text, at.start, at.end),
            (Some((_, text)), None) => text.span,
            (None, _) => self.node.name.span,
        };
        let what = format!("`{}`: {}", self.entry.name, mistake.message);
        severity(place, what).hint(mistake.hint.unwrap_or_default())
    }
}

struct ArgumentReader<'a> {
    node: &'a FilterTerm,
    entry: &'static Description,
    given: Vec<(&'static Parameter, &'a Text, Value)>,
    mistakes: Vec<Diagnostic>,
    registry: &'a dyn Registry,
}

impl<'a> ArgumentReader<'a> {
    /// Returns the parameter that an argument sets. If there is none, returns `Err(true)` for a
    /// surplus positional argument, or reports an unknown key and returns `Err(false)`.
    fn find_parameter(&mut self, argument: &Argument) -> Result<&'static Parameter, bool> {
        let parameters = self.entry.parameters;
        if let Some(key) = &argument.key {
            let known = self.entry.parameter(&key.text);
            return known.ok_or_else(|| {
                let what = format!(
                    "`{}` has no parameter `{}`",
                    self.entry.name,
                    truncate_word(&key.text)
                );
                let names = || self.entry.all_parameters().map(|known| known.name);
                let hint = match find_nearest_word(&key.text, names()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format_usage(self.entry),
                };
                self.mistakes.push(Diagnostic::error(argument.span, what).hint(hint));
                false
            });
        }
        let bare = |known: &&Parameter| {
            known.kind == ParameterType::Flag
                && !argument.value.quoted
                && argument.value.bytes == known.name.as_bytes()
        };
        if let Some(flag) = parameters.iter().find(bare) {
            return Ok(flag);
        }
        let free =
            |known: &&Parameter| known.positional && (known.repeatable || !self.has_value(known));
        parameters.iter().find(free).ok_or(true)
    }

    fn has_value(&self, parameter: &Parameter) -> bool {
        self.given.iter().any(|(known, ..)| known.name == parameter.name)
    }

    fn add_argument(&mut self, argument: &'a Argument, parameter: &'static Parameter) {
        if self.has_value(parameter) && !parameter.repeatable {
            let what = format!("`{}` of `{}` is given twice", parameter.name, self.entry.name);
            self.mistakes.push(Diagnostic::error(argument.span, what).hint("it takes one value"));
            return;
        }
        let text = &argument.value;
        let bare_flag = argument.key.is_none() && parameter.kind == ParameterType::Flag;
        let value = match bare_flag {
            true => Ok(Value::Flag(true)),
            false => parameter.parse_bytes(&text.bytes),
        };
        match value {
            Ok(value) => self.given.push((parameter, text, value)),
            Err(mistake) => {
                let what =
                    format!("`{}` of `{}`: {}", parameter.name, self.entry.name, mistake.message);
                let hint = mistake.hint.unwrap_or_default();
                self.mistakes.push(Diagnostic::error(text.span, what).hint(hint));
                // A recorded value prevents a second error, that the parameter is missing.
                self.given.push((parameter, text, Value::Flag(false)));
            }
        }
    }

    /// Reports all arguments without a matching parameter as one error.
    fn report_surplus_arguments(&mut self, surplus: &[&Argument]) {
        let (Some(first), Some(last)) = (surplus.first(), surplus.last()) else { return };
        let name = self.entry.name;
        let span = first.span.to(last.span);
        if let Some(mistake) = self.unquoted_text_error(first, last) {
            self.mistakes.push(mistake);
            return;
        }
        let written = truncate_word(&first.value.to_string_lossy());
        let what = match self.entry.parameters.iter().any(|known| known.positional) {
            true => format!("`{name}` has no place for `{written}`"),
            false => format!("`{name}` takes no argument `{written}`"),
        };
        let filter = !first.value.quoted && self.registry.names().contains(&written.as_str());
        let hint = match filter {
            true => format!("for the filter write `| {written}`"),
            false => format_usage(self.entry),
        };
        self.mistakes.push(Diagnostic::error(span, what).hint(hint));
    }

    /// Returns an error if the surplus arguments from `first` to `last` seem to continue an
    /// unquoted text of several words, as in `bpf tcp port 80`; otherwise returns `None`.
    fn unquoted_text_error(&self, first: &Argument, last: &Argument) -> Option<Diagnostic> {
        let (parameter, text, _) = self.given.last()?;
        let texts = is_required(parameter)
            && matches!(
                parameter.kind,
                ParameterType::Text | ParameterType::Bytes | ParameterType::Path
            );
        let at =
            self.node.arguments.iter().position(|argument| argument.value.span == text.span)?;
        let follows = self.node.arguments.get(at + 1).is_some_and(|next| next.span == first.span);
        let words = self.node.arguments.get(at..)?;
        let bare = words.iter().skip(1).all(|word| word.key.is_none() && !word.value.quoted);
        if !texts || text.quoted || !follows || !bare {
            return None;
        }
        let whole: Vec<_> = words.iter().map(|word| word.value.to_string_lossy()).collect();
        let (name, what) = (self.entry.name, parameter.name);
        let mistake = Diagnostic::error(
            text.span.to(last.span),
            format!("`{name}` takes one {what}: quote it"),
        );
        Some(mistake.hint(format!("`{name} \"{}\"`", truncate_word(&whole.join(" ")))))
    }

    fn report_missing_arguments(&mut self) {
        for parameter in self.entry.parameters {
            if is_required(parameter) && !self.has_value(parameter) {
                let what = format!("`{}` needs `{}`", self.entry.name, parameter.name);
                let why = parameter.help.trim_end_matches('.');
                let mistake = Diagnostic::error(self.node.name.span, what).why(why);
                self.mistakes.push(mistake.hint(format_usage(self.entry)));
            }
        }
    }
}

/// Returns the span of bytes `start..end` of a value. Returns the span of the entire value if it
/// contains escape sequences, which shift the bytes, or if the bytes are not whole characters.
fn value_subspan(text: &Text, start: usize, end: usize) -> Span {
    let quotes = 2 * usize::from(text.quoted);
    let straight = text.span.end - text.span.start == text.bytes.len() + quotes;
    // An offset inside a character cannot be underlined.
    let whole = std::str::from_utf8(&text.bytes)
        .is_ok_and(|text| text.is_char_boundary(start) && text.is_char_boundary(end));
    if !straight || !whole || start > end {
        return text.span;
    }
    let from = text.span.start + quotes / 2;
    Span::new(from + start, from + end)
}

fn is_required(parameter: &Parameter) -> bool {
    parameter.default.is_none() && !parameter.optional
}

/// Formats the usage of a filter, such as `files directory [per=block|connection]`.
fn format_usage(entry: &Description) -> String {
    let mut usage = format!("`{}", entry.name);
    for parameter in entry.parameters {
        let values = match parameter.kind {
            ParameterType::OneOf(words) => words.join("|"),
            ParameterType::Flag => "yes|no".to_owned(),
            ParameterType::Number { .. } => "number".to_owned(),
            ParameterType::Size { .. } => "size".to_owned(),
            ParameterType::Factor { or } => format!("{or}|factor"),
            ParameterType::Duration => "time".to_owned(),
            _ => "text".to_owned(),
        };
        let needed = is_required(parameter);
        let more = if parameter.repeatable { " …" } else { "" };
        let text = match parameter.positional {
            true => format!("{}{more}", parameter.name),
            false => format!("{}={values}{more}", parameter.name),
        };
        usage.push_str(&if needed { format!(" {text}") } else { format!(" [{text}]") });
    }
    usage.push('`');
    usage
}
