//! The parser of filters with their arguments, and of request options.
//!
//! ```text
//! FilterTerm      = NAME , { Argument } ;
//! Argument  = WORD | STRING | Parameter | Mark | Pin ;
//! Parameter = KEY , "=" , ( WORD | STRING ) ;
//! Mark      = "--name=" , NAME ;
//! Pin       = "@" , NAME ;                        (* tcp@thread2  or  tcp @thread2 *)
//! Option    = "--" , KEY , [ "=" , ( WORD | STRING ) ] ;
//! ```
//!
//! Two deviations from a shell's rules prevent misreadings. A quoted text must be separated from
//! its neighbours by white space (`out/"my dir"` is one word in a shell, but would be two words
//! here). A mark may contain capital letters, as in `a --name=X` in the paper.

use super::Parser;
use crate::language::diagnose::{Diagnostic, Span};
use crate::language::label::{is_name, truncate_word};
use crate::language::lex::TokenKind;
use crate::language::limits::{FILTERS_MAX, MARKS_MAX};
use crate::language::tree::{Argument, FilterTerm, Name, RequestOption, Term, Text};

impl Parser<'_> {
    pub(super) fn parse_options(&mut self) -> Vec<RequestOption> {
        let mut options = Vec::new();
        while let Some(word) = self.current_word().filter(|word| word.starts_with("--")) {
            let span = self.bump().span;
            let (key, value) = split_key_and_value(&word, 2);
            let key = Name {
                text: key.to_owned(),
                span: Span::new(span.start, span.start + 2 + key.len()),
            };
            if !is_key(&key.text) {
                let what = format!("`{}` is not an option", truncate_word(&word));
                self.report(span, what, "options are `--key=value` or `--key`");
                continue;
            }
            let value = match value {
                None => None,
                Some(value) => match self.parse_value(value, span) {
                    None => continue,
                    value => value,
                },
            };
            let span = value.as_ref().map_or(span, |value| span.to(value.span));
            options.push(RequestOption { key, value, span });
        }
        options
    }

    pub(super) fn parse_filter_term(&mut self) -> Term {
        let span = self.span();
        let Some(word) = self.current_word() else { return self.report_quoted_name(span) };
        let clean = matches!(self.kind(), TokenKind::Word { clean: true });
        let (name, pin) = match word.split_once('@') {
            Some((name, pin)) => (name, Some(pin)),
            None => (word.as_str(), None),
        };
        let named = is_name(name);
        if clean && !named && !self.has_broken_label_before() {
            let mistake = self.invalid_name_error(&word, span);
            self.mistakes.push(mistake);
        }
        self.bump();
        self.filters += 1;
        if self.filters == FILTERS_MAX + 1 {
            self.report(span, format!("the request has more than {FILTERS_MAX} filters"), "");
        }
        let middle = span.start + name.len();
        let name = Name { text: name.to_owned(), span: Span::new(span.start, middle) };
        let mut node = FilterTerm { name, arguments: Vec::new(), mark: None, pin: None, span };
        if let Some(pin) = pin.filter(|_| named) {
            self.parse_pin(pin, Span::new(middle, span.end), &mut node);
        }
        self.parse_arguments(&mut node);
        if named { Term::Filter(node) } else { Term::Hole(node.span) }
    }

    /// Parses arguments up to the first token that cannot start an argument.
    fn parse_arguments(&mut self, node: &mut FilterTerm) {
        loop {
            let span = self.span();
            match self.kind().clone() {
                TokenKind::Word { clean } => {
                    let word = self.current_word().unwrap_or_default();
                    self.report_adjacent_text(&word);
                    self.bump();
                    if clean {
                        self.parse_argument(&word, span, node);
                    }
                }
                TokenKind::Quoted(bytes) => {
                    self.report_adjacent_text("\"");
                    self.bump();
                    let value = Text { bytes, quoted: true, span };
                    node.arguments.push(Argument { key: None, value, span });
                }
                _ => return,
            }
            let end = self.tokens[self.at - 1].span;
            node.span = node.span.to(end);
        }
    }

    fn parse_argument(&mut self, word: &str, span: Span, node: &mut FilterTerm) {
        if let Some(mark) = word.strip_prefix("--name=") {
            self.parse_mark(mark, span, node);
        } else if word.starts_with("--") {
            self.mistakes.push(misplaced_option_error(word, span));
        } else if let Some(pin) = word.strip_prefix('@') {
            self.parse_pin(pin, span, node);
        } else if word.contains('=') {
            let (key, value) = split_key_and_value(word, 0);
            if !is_key(key) {
                self.mistakes.push(invalid_parameter_error(word, key, span));
                return;
            }
            let key =
                Name { text: key.to_owned(), span: Span::new(span.start, span.start + key.len()) };
            if let Some(value) = self.parse_value(value.unwrap_or_default(), span) {
                let span = span.to(value.span);
                node.arguments.push(Argument { key: Some(key), value, span });
            }
        } else {
            let value = Text { bytes: word.as_bytes().to_vec(), quoted: false, span };
            node.arguments.push(Argument { key: None, value, span });
        }
    }

    /// Parses the value after the `=` in the word at `span`. The value is the rest of the word or
    /// an adjacent quoted text. Reports an error and returns `None` if both are missing.
    fn parse_value(&mut self, rest: &str, span: Span) -> Option<Text> {
        if !rest.is_empty() {
            let span = Span::new(span.end - rest.len(), span.end);
            return Some(Text { bytes: rest.as_bytes().to_vec(), quoted: false, span });
        }
        let glued = self.tokens[self.at].glued;
        if let (TokenKind::Quoted(bytes), true) = (self.kind().clone(), glued) {
            let span = self.bump().span;
            return Some(Text { bytes, quoted: true, span });
        }
        let word = self.text.get(span.start..span.end).unwrap_or_default();
        let what = format!("a value is missing after `{}`", truncate_word(word));
        let hint =
            format!("no white space around `=`; the empty text is `{}\"\"`", truncate_word(word));
        self.report(span, what, hint);
        None
    }

    fn parse_mark(&mut self, mark: &str, span: Span, node: &mut FilterTerm) {
        if !is_mark(mark) {
            if self.skip_adjacent_quote() {
                self.report(span, "a mark is written without quotes", "for instance `--name=X`");
                return;
            }
            let what = match mark {
                "" => "`--name=` needs a name".to_owned(),
                mark => format!("`{}` is not a mark", truncate_word(mark)),
            };
            self.report(
                span,
                what,
                "a mark is letters, digits and `_`, a letter first: `--name=X`",
            );
            return;
        }
        if node.mark.is_some() {
            self.report(
                span,
                "the filter has two marks",
                "one is enough: equal marks are one node",
            );
            return;
        }
        let new = self.marks.insert(mark.to_owned());
        if new && self.marks.len() == MARKS_MAX + 1 {
            self.report(span, format!("the request has more than {MARKS_MAX} names"), "");
        }
        let span = Span::new(span.end - mark.len(), span.end);
        node.mark = Some(Name { text: mark.to_owned(), span });
    }

    fn parse_pin(&mut self, pin: &str, span: Span, node: &mut FilterTerm) {
        if !is_name(pin) {
            if self.skip_adjacent_quote() {
                self.report(span, "a pin is written without quotes", "for instance `@kernel`");
                return;
            }
            let what = format!("`@{}` names no space", truncate_word(pin));
            self.report(
                span,
                what,
                "for instance `@kernel`; a text that begins with `@` is quoted",
            );
            return;
        }
        if node.pin.is_some() {
            self.report(span, "the filter has two pins", "a filter runs in one space");
            return;
        }
        let span = Span::new(span.end - pin.len(), span.end);
        node.pin = Some(Name { text: pin.to_owned(), span });
    }

    /// Skips a quoted text that directly follows the previous token. Returns false if there is no
    /// such text.
    fn skip_adjacent_quote(&mut self) -> bool {
        let token = &self.tokens[self.at];
        let found = token.glued && matches!(token.kind, TokenKind::Quoted(_));
        if found {
            self.bump();
        }
        found
    }

    /// Reports a text that directly follows the previous text, without white space.
    fn report_adjacent_text(&mut self, word: &str) {
        let touches = self.tokens[self.at].glued && !word.starts_with('@');
        let text = self.at > 0
            && matches!(
                self.tokens[self.at - 1].kind,
                TokenKind::Word { .. } | TokenKind::Quoted(_)
            );
        if touches && text {
            let span = self.span();
            self.report(
                span,
                "white space is missing before this text",
                "two texts are two arguments; for one, quote all of it",
            );
        }
    }

    /// Returns the text of the current token, or `None` if it is not a word.
    pub(super) fn current_word(&mut self) -> Option<String> {
        let span = self.span();
        match self.kind() {
            TokenKind::Word { .. } => self.text.get(span.start..span.end).map(str::to_owned),
            _ => None,
        }
    }

    fn report_quoted_name(&mut self, span: Span) -> Term {
        let text = match self.bump().kind {
            TokenKind::Quoted(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            _ => String::new(),
        };
        let hint = match is_name(&text) {
            true => format!("write `{}`", truncate_word(&text)),
            false => String::new(),
        };
        self.report(span, "a quoted text cannot be a filter name", hint);
        let name = Name { text, span };
        let mut node = FilterTerm { name, arguments: Vec::new(), mark: None, pin: None, span };
        self.parse_arguments(&mut node);
        Term::Hole(node.span)
    }

    /// Explains why a word cannot be a filter name, and guesses the intention from the neighbouring
    /// tokens.
    fn invalid_name_error(&mut self, word: &str, span: Span) -> Diagnostic {
        let mistake =
            Diagnostic::error(span, format!("`{}` cannot be a filter name", truncate_word(word)));
        if word.starts_with("--") {
            return misplaced_option_error(word, span);
        }
        if word.starts_with('@') {
            return Diagnostic::error(span, "a pin without a filter")
                .hint("for instance `tcp@thread2`");
        }
        let before = |back: usize| self.at.checked_sub(back).and_then(|at| self.tokens.get(at));
        let glued = self.tokens[self.at].glued;
        if let (Some(operator), Some(left)) = (before(1), before(2)) {
            let words = (&operator.kind, &left.kind);
            if let (TokenKind::Operator(symbol), TokenKind::Word { .. }, true, true) =
                (words.0, words.1, glued, operator.glued)
            {
                let whole = self.text.get(left.span.start..span.end).unwrap_or_default();
                let left = self.text.get(left.span.start..left.span.end).unwrap_or_default();
                let (symbol, left) = (symbol.symbol(), truncate_word(left));
                return Diagnostic::error(
                    span,
                    format!("`{}` is not a filter", truncate_word(word)),
                )
                .why(format!("`{symbol}` ends the word `{left}`"))
                .hint(format!("quote the file name: `\"{}\"`", truncate_word(whole)));
            }
        }
        let class = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ','))
            && (word.starts_with(|c: char| c.is_ascii_digit()) || word.contains([':', ',']));
        let inverted = matches!(before(1).map(|t| &t.kind), Some(TokenKind::Bang));
        let pipe = before(if inverted { 2 } else { 1 }).map(|token| &token.kind);
        if class && matches!(pipe, Some(TokenKind::Pipe)) {
            let bang = if inverted { "!" } else { "" };
            return mistake
                .hint(format!("for the arc class write `|{bang}{}`", truncate_word(word)));
        }
        let option = before(1).filter(|token| matches!(token.kind, TokenKind::Word { .. }));
        if let Some(option) =
            option.and_then(|token| self.text.get(token.span.start..token.span.end))
        {
            return mistake.hint(format!(
                "for the option write `{}={}`",
                truncate_word(option),
                truncate_word(word)
            ));
        }
        mistake
            .hint(guess_spelling(word))
            .why("a filter name is small letters, digits and `_`, a letter first")
    }
}

/// Returns a hint that guesses the intended spelling of an invalid name; the hint is empty if there
/// is no guess.
fn guess_spelling(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let joined = lower.replace('-', "_");
    if is_name(&joined) {
        return format!("write `{}`", truncate_word(&joined));
    }
    match word.split_once([':', '=', '/', ',']) {
        Some((name, rest)) if is_name(name) && !rest.is_empty() => {
            format!(
                "arguments follow after white space: `{} {}`",
                truncate_word(name),
                truncate_word(rest)
            )
        }
        _ => String::new(),
    }
}

fn misplaced_option_error(word: &str, span: Span) -> Diagnostic {
    let hint = match word.trim_start_matches('-') {
        "" => "a text that begins with `--` is quoted".to_owned(),
        bare => format!("parameters are `key=value`: `{}`", truncate_word(bare)),
    };
    Diagnostic::error(span, format!("`{}` follows a filter or a pipe", truncate_word(word)))
        .why("request options precede the first filter")
        .hint(hint)
}

fn invalid_parameter_error(word: &str, key: &str, span: Span) -> Diagnostic {
    let mistake = Diagnostic::error(span, format!("`{}` is not a parameter", truncate_word(word)));
    match key {
        "" => mistake
            .why("parameters are `key=value` without white space around `=`")
            .hint("a text that contains `=` is quoted"),
        _ => mistake
            .why("a parameter's key is small letters, digits, `_` and `-`, a letter first")
            .hint(format!("a text that contains `=` is quoted: `\"{}\"`", truncate_word(word))),
    }
}

/// Removes the first `skip` bytes, and splits the remaining `key=value` at the first `=`. The value
/// is `None` if there is no `=`.
fn split_key_and_value(word: &str, skip: usize) -> (&str, Option<&str>) {
    let word = word.get(skip..).unwrap_or_default();
    match word.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (word, None),
    }
}

/// Returns true if the word can be the key of an option or parameter: `[a-z][a-z0-9_-]*`.
fn is_key(word: &str) -> bool {
    word.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// Returns true if the word can be a mark: `[A-Za-z][A-Za-z0-9_]*`.
fn is_mark(word: &str) -> bool {
    word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
