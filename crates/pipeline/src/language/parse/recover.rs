//! Error recovery: reports missing filters and operators, and proposes corrections derived from the
//! neighbouring tokens.

use super::Parser;
use crate::language::diagnose::{Diagnostic, Span};
use crate::language::label::truncate_word;
use crate::language::lex::{Token, TokenKind};
use crate::language::tree::{Classes, Label, Operator, Term};

impl Parser<'_> {
    /// Reports a missing filter at the current token; consumes nothing.
    pub(super) fn report_missing_filter(&mut self) -> Term {
        let span = self.span();
        let term = Term::Hole(span);
        if (self.at <= self.reported_until && self.at > 0) || self.has_broken_label_before() {
            return term;
        }
        self.reported_until = self.at;
        let Some(before) = self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).cloned()
        else {
            let what = format!("a filter is missing before {}", self.describe_token(self.at));
            self.report(span, what, "a pipeline begins with a source, for instance `rx eth0`");
            return term;
        };
        let here = self.kind().clone();
        let mistake = match (before.kind, here) {
            (TokenKind::Pipe, TokenKind::Pipe) => {
                let hint = match self.tokens[self.at].glued {
                    true => "`||` is not an operator; for one or the other write `++`",
                    false => "",
                };
                error_between_pipes(span).hint(hint)
            }
            (TokenKind::Pipe, TokenKind::Label(_)) => error_between_pipes(span),
            (TokenKind::Label(label), TokenKind::Label(_)) => {
                self.labels_without_filter_error(span, label)
            }
            (TokenKind::Label(label), TokenKind::Pipe) => {
                error_between_pipes(span).hint(propose_filters(&[label]))
            }
            (TokenKind::Label(label), _) => {
                let what = format!("a filter is missing after the class `{}`", label_text(&label));
                Diagnostic::error(span, what).hint(propose_filters(&[label]))
            }
            (TokenKind::Pipe, _) => Diagnostic::error(span, "a filter is missing after the pipe")
                .hint("name the filter that takes the stream, for instance `count`"),
            (TokenKind::Operator(operator), _) => self.error_after_operator(span, operator),
            (TokenKind::Bang, TokenKind::Label(label)) => {
                Diagnostic::error(span, "a filter is missing after `!`")
                    .hint(format!("the class precedes it: `|{} !…`", label_text(&label)))
            }
            (TokenKind::Bang, _) => Diagnostic::error(span, "a filter is missing after `!`"),
            _ => {
                let what = format!("a filter is missing before {}", self.describe_token(self.at));
                Diagnostic::error(span, what)
            }
        };
        self.mistakes.push(mistake);
        term
    }

    pub(super) fn has_broken_label_before(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        let Some(Token { kind: TokenKind::Label(label), span, .. }) = before else { return false };
        let text = self.text.get(span.start..span.end).unwrap_or_default();
        text.ends_with(',') || (label.classes == Classes::All && !text.ends_with("all"))
    }

    /// Returns a single error for consecutive labels without filters, such as `rx |tcp |http`,
    /// which probably means three filters.
    fn labels_without_filter_error(&mut self, span: Span, first: Label) -> Diagnostic {
        let mut run = vec![first];
        let mut end = self.at;
        while let Some(Token { kind: TokenKind::Label(label), .. }) = self.tokens.get(end) {
            self.count_step();
            run.push(label.clone());
            end += 1;
        }
        self.reported_until = end;
        let used = self.tokens.get(end).is_some_and(|token| {
            matches!(
                token.kind,
                TokenKind::Word { .. } | TokenKind::Open | TokenKind::Bang | TokenKind::Quoted(_)
            )
        });
        if used && run.iter().all(|label| !label.inverted && label.single_name().is_none()) {
            let all: Vec<String> = run.iter().take(4).map(label_text).collect();
            return error_between_pipes(span)
                .hint(format!("for either class write `|{}`", all.join(",")));
        }
        if used {
            run.pop();
        }
        error_between_pipes(span).hint(propose_filters(&run))
    }

    fn error_after_operator(&mut self, span: Span, operator: Operator) -> Diagnostic {
        let what = match self.kind() {
            TokenKind::Operator(next) => {
                format!(
                    "a filter is missing between `{}` and `{}`",
                    operator.symbol(),
                    next.symbol()
                )
            }
            _ => format!("a filter is missing after `{}`", operator.symbol()),
        };
        let mistake = Diagnostic::error(span, what);
        // In `replay c++ | count`, the operator is meant as part of the word.
        let glued = self.at >= 2 && self.tokens[self.at - 1].glued;
        match self.at.checked_sub(2).and_then(|at| self.tokens.get(at)) {
            Some(Token { kind: TokenKind::Word { .. }, span: word, .. }) if glued => {
                let word = self.text.get(word.start..word.end).unwrap_or_default();
                let symbol = operator.symbol();
                mistake
                    .hint(format!("`{symbol}` ends a word; in a text quote it: \"{word}{symbol}\""))
            }
            _ => mistake,
        }
    }

    /// Reports that an operator is missing between two adjacent terms, which are then parsed as if
    /// separated by a pipe.
    pub(super) fn report_missing_operator(&mut self) {
        let span = self.span();
        let (what, hint) = match self.kind() {
            TokenKind::Bang => {
                ("an operator is missing before `!`", "write `| !…`, or `+* !…` for both")
            }
            TokenKind::Open => {
                ("an operator is missing before `(`", "write `| (…)`; a text with `(` is quoted")
            }
            _ => (
                "an operator is missing before this filter",
                "write `|`, or `+` for a copy to each",
            ),
        };
        self.report(span, what, hint);
    }

    /// Skips and reports a pin or a mark after a parenthesis, because only filters can have pins
    /// and marks. Returns false if there is neither.
    pub(super) fn skip_stray_pin_or_mark(&mut self) -> bool {
        let span = self.span();
        let word = match self.kind() {
            TokenKind::Word { clean: true } => {
                self.text.get(span.start..span.end).unwrap_or_default()
            }
            _ => return false,
        };
        let what = match word {
            word if word.starts_with('@') => "a pin belongs to one filter",
            word if word.starts_with("--name=") => "a mark belongs to one filter",
            _ => return false,
        };
        self.report(span, what, "write it after the filter's name, inside the parentheses");
        self.bump();
        true
    }

    /// Describes the token with index `at` for a message.
    fn describe_token(&self, at: usize) -> String {
        match self.tokens.get(at).map(|token| &token.kind) {
            Some(TokenKind::Pipe | TokenKind::Label(_)) => "the pipe".to_owned(),
            Some(TokenKind::Operator(operator)) => format!("`{}`", operator.symbol()),
            Some(TokenKind::Close) => "`)`".to_owned(),
            Some(TokenKind::Semicolon) => "`;`".to_owned(),
            _ => "the end".to_owned(),
        }
    }
}

fn error_between_pipes(span: Span) -> Diagnostic {
    Diagnostic::error(span, "a filter is missing between two pipes")
}

/// Formats a label without its pipe, truncated by [`truncate_word`].
fn label_text(label: &Label) -> String {
    truncate_word(label.to_string().trim_start_matches('|'))
}

/// Proposes to write these labels as filters; returns an empty text unless all of them are plain
/// names.
fn propose_filters(labels: &[Label]) -> String {
    const LABELS_MAX: usize = 8;
    let named = |label: &Label| label.single_name().is_some() && label.classes != Classes::All;
    let (Some(first), true) = (labels.first(), labels.iter().all(named)) else {
        return String::new();
    };
    let filters: Vec<String> =
        labels.iter().take(LABELS_MAX).map(|label| format!("| {}", label_text(label))).collect();
    let kind = if first.inverted { "negated filter" } else { "filter" };
    format!(
        "`|{}` is an arc class; for the {kind} write `{}`",
        label_text(first),
        filters.join(" ")
    )
}
