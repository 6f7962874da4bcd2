//! From tokens to the tree: the grammar of seed 000 §4.2, made unambiguous, one function per rule.
//!
//! ```text
//! Request  = { Option } , Pipeline , { ";" , Pipeline } , [ ";" ] ;
//! Pipeline = Parallel , { Pipe , Parallel } ;
//! Parallel = Union    , { "+"  , Union } ;
//! Union    = Section  , { "++" , Section } ;
//! Section  = Branch   , { "+*" , Branch } ;
//! Branch   = [ Label ] , Unary ;                 (* Label only after "(" "+" "++" "+*" *)
//! Unary    = "!" , Unary | "(" , Pipeline , ")" | FilterTerm ;
//! ```
//!
//! All mistakes of a request are found in one pass: where a filter is missing the tree gets
//! `Term::Missing` and nothing is consumed; where an operator is missing a pipe is assumed; a
//! parenthesis that is never closed is closed at the end. Each token is consumed once, and
//! recursion stops at `DEPTH_MAX`, so time is linear and the stack bounded whatever the text.
//! [SL §4.2]

mod missing;
mod node;

use std::cell::Cell;
use std::collections::HashSet;

use super::diagnose::{Diagnostic, Span, settle};
use super::lex::{Token, TokenKind, lex};
use super::limits::{DEPTH_MAX, TEXT_MAX};
use super::tree::{Branch, Group, Label, Not, Operator, Pipe, Pipeline, Request, Stage, Term};

/// Reads a request: the tree and everything that is wrong with it, in the order of the text.
///
/// The tree is whole even if there are mistakes, with `Term::Missing` in their places, so that the
/// checks can find further mistakes in the rest.
pub fn parse(text: &str) -> (Request, Vec<Diagnostic>) {
    let (request, mistakes, _) = parse_counted(text);
    (request, mistakes)
}

/// Like `parse`, with the number of steps that lexer and parser took: tests hold it against the
/// length of the text.
pub fn parse_counted(text: &str) -> (Request, Vec<Diagnostic>, u64) {
    if text.len() > TEXT_MAX {
        let span = Span::new(TEXT_MAX, text.len());
        let what = format!("the request has {} bytes", text.len());
        let mistake = Diagnostic::error(span, what).why(format!("at most {TEXT_MAX} are read"));
        return (Request::default(), vec![mistake], 0);
    }
    let lexed = lex(text);
    let mut parser = Parser {
        text,
        tokens: lexed.tokens,
        at: 0,
        mistakes: lexed.mistakes,
        steps: Cell::new(lexed.steps),
        depth: 0,
        open: 0,
        unclosed: 0,
        reported_until: 0,
        filters: 0,
        marks: HashSet::new(),
    };
    let request = parser.request();
    (request, settle(parser.mistakes), parser.steps.get())
}

struct Parser<'t> {
    text: &'t str,
    /// Never empty: the last is `End`, and it is never passed.
    tokens: Vec<Token>,
    at: usize,
    mistakes: Vec<Diagnostic>,
    /// Counted wherever a token is looked at, so that no loop escapes the count.
    steps: Cell<u64>,
    /// Parentheses and negations around the current token.
    depth: usize,
    /// Parentheses alone.
    open: usize,
    /// Parentheses that a `;` has cut: what would have closed them is not reported again.
    unclosed: usize,
    /// Up to this token, a missing filter has been reported already.
    reported_until: usize,
    filters: usize,
    marks: HashSet<String>,
}

impl Parser<'_> {
    fn request(&mut self) -> Request {
        let options = self.options();
        let mut pipelines = Vec::new();
        if matches!(self.kind(), TokenKind::End) {
            let what = match options.is_empty() {
                true => "the request is empty",
                false => "a pipeline is missing after the options",
            };
            self.report(self.span(), what, "for instance `rx eth0 | tcp | http | files out/`");
        }
        while !matches!(self.kind(), TokenKind::End) {
            if matches!(self.kind(), TokenKind::Semicolon) {
                self.report(self.span(), "a pipeline is missing before `;`", "");
            } else {
                pipelines.push(self.pipeline(false));
            }
            if matches!(self.kind(), TokenKind::Semicolon) {
                self.bump();
            }
        }
        Request { options, pipelines }
    }

    /// Ends before `;`, the end, or a `)` that closes something.
    fn pipeline(&mut self, label_ok: bool) -> Term {
        let first = self.group(Operator::Parallel, label_ok);
        let mut stages = Stages::new(stage_of(first));
        loop {
            let arc = match self.kind() {
                TokenKind::Pipe | TokenKind::Label(_) => self.arc(),
                TokenKind::Word { .. }
                | TokenKind::Quoted(_)
                | TokenKind::Open
                | TokenKind::Bang => {
                    self.missing_operator();
                    Pipe { label: None, span: Span::new(self.span().start, self.span().start) }
                }
                TokenKind::Semicolon
                | TokenKind::End
                | TokenKind::Close
                | TokenKind::Operator(_) => break,
            };
            let branch = self.group(Operator::Parallel, false);
            stages.push(arc, stage_of(branch));
        }
        stages.finish()
    }

    fn arc(&mut self) -> Pipe {
        let token = self.bump();
        let label = match token.kind {
            TokenKind::Label(label) => Some(label),
            _ => None,
        };
        Pipe { label, span: token.span }
    }

    /// Reads one level of operators; a single operand is returned as it is.
    fn group(&mut self, operator: Operator, label_ok: bool) -> Branch {
        let first = self.operand(operator, label_ok);
        if !self.at_operator(operator) {
            return first;
        }
        let start = first.span;
        let mut branches = Vec::new();
        splice(operator, first, &mut branches);
        while self.at_operator(operator) {
            self.bump();
            let next = self.operand(operator, true);
            splice(operator, next, &mut branches);
        }
        let span = branches.last().map_or(start, |last| start.to(last.span));
        Branch { label: None, term: Term::Group(Group { operator, branches, span }), span }
    }

    fn operand(&mut self, operator: Operator, label_ok: bool) -> Branch {
        match operator {
            Operator::Parallel => self.group(Operator::Union, label_ok),
            Operator::Union => self.group(Operator::Section, label_ok),
            Operator::Section => self.branch(label_ok),
        }
    }

    fn at_operator(&self, operator: Operator) -> bool {
        matches!(self.kind(), TokenKind::Operator(found) if *found == operator)
    }

    fn branch(&mut self, label_ok: bool) -> Branch {
        let mut label: Option<Label> = None;
        if label_ok && matches!(self.kind(), TokenKind::Label(_)) {
            label = self.arc().label;
        }
        let term = self.unary();
        let span = label.as_ref().map_or_else(|| term.span(), |label| label.span.to(term.span()));
        Branch { label, term, span }
    }

    fn unary(&mut self) -> Term {
        while self.closes_nothing() {}
        let start = self.span();
        let term = match self.kind() {
            TokenKind::Bang if self.depth >= DEPTH_MAX => {
                self.too_deep();
                while matches!(self.kind(), TokenKind::Bang) {
                    self.bump();
                }
                match self.kind() {
                    TokenKind::Open => self.skip_parentheses(),
                    TokenKind::Word { .. } | TokenKind::Quoted(_) => drop(self.node()),
                    _ => {}
                }
                Term::Missing(start)
            }
            TokenKind::Bang => {
                self.bump();
                self.depth += 1;
                let term = self.unary();
                self.depth -= 1;
                let span = start.to(term.span());
                return Term::Not(Not { term: Box::new(term), span });
            }
            TokenKind::Open if self.depth >= DEPTH_MAX => {
                self.too_deep();
                self.skip_parentheses();
                Term::Missing(start)
            }
            TokenKind::Open => self.parentheses(),
            TokenKind::Word { .. } | TokenKind::Quoted(_) => self.node(),
            _ => self.missing(),
        };
        while self.closes_nothing() || self.stray() {}
        term
    }

    fn parentheses(&mut self) -> Term {
        let opened = self.bump().span;
        if matches!(self.kind(), TokenKind::Close) {
            let span = opened.to(self.bump().span);
            self.report(span, "the parentheses are empty", "");
            return Term::Missing(span);
        }
        if matches!(self.kind(), TokenKind::Semicolon | TokenKind::End) {
            self.report(
                opened,
                "the parenthesis is never closed",
                "a filter and a `)` are missing",
            );
            return Term::Missing(opened);
        }
        self.depth += 1;
        self.open += 1;
        let term = self.pipeline(true);
        self.depth -= 1;
        self.open -= 1;
        if matches!(self.kind(), TokenKind::Close) {
            self.bump();
        } else {
            self.report(opened, "the parenthesis is never closed", "a `)` is missing");
            self.unclosed += usize::from(matches!(self.kind(), TokenKind::Semicolon));
        }
        term
    }

    /// Passes a parenthesis with everything in it.
    fn skip_parentheses(&mut self) {
        let mut open = 0usize;
        loop {
            match self.kind() {
                TokenKind::End => return,
                TokenKind::Open => open += 1,
                TokenKind::Close => open = open.saturating_sub(1),
                _ => {}
            }
            self.bump();
            if open == 0 {
                return;
            }
        }
    }

    fn too_deep(&mut self) {
        let what = format!("parentheses and negations are deeper than {DEPTH_MAX} here");
        self.report(self.span(), what, "what is inside is not read");
    }

    /// Passes a parenthesis that closes nothing; false if there is none.
    fn closes_nothing(&mut self) -> bool {
        let found = self.open == 0 && matches!(self.kind(), TokenKind::Close);
        if found {
            let span = self.bump().span;
            if self.unclosed > 0 {
                self.unclosed -= 1;
            } else {
                self.report(span, "this parenthesis closes nothing", "a `(` is missing before it");
            }
        }
        found
    }

    fn kind(&self) -> &TokenKind {
        self.count();
        &self.tokens[self.at].kind
    }

    fn count(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    /// The current token, which is passed unless it is the end.
    fn bump(&mut self) -> Token {
        self.count();
        let token = self.tokens[self.at].clone();
        if !matches!(token.kind, TokenKind::End) {
            self.at += 1;
        }
        token
    }

    fn report(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.mistakes.push(Diagnostic::error(span, what).hint(hint));
    }
}

/// Turns a branch into a stage: its label, which only parentheses can have let in, keeps them.
fn stage_of(branch: Branch) -> Term {
    match branch.label {
        None => branch.term,
        Some(_) => {
            let span = branch.span;
            Term::Group(Group { operator: Operator::Parallel, branches: vec![branch], span })
        }
    }
}

/// Adds an operand to a group in normal form (see `tree`).
fn splice(operator: Operator, branch: Branch, branches: &mut Vec<Branch>) {
    match branch {
        Branch { label: None, term: Term::Group(group), .. }
            if group.operator == operator || group.branches.len() == 1 =>
        {
            branches.extend(group.branches);
        }
        branch => branches.push(branch),
    }
}

/// A pipeline in normal form while it grows: pipelines inside it are spliced.
struct Stages {
    first: Term,
    rest: Vec<Stage>,
}

impl Stages {
    fn new(first: Term) -> Self {
        match first {
            Term::Pipeline(pipeline) => Self { first: *pipeline.first, rest: pipeline.rest },
            first => Self { first, rest: Vec::new() },
        }
    }

    fn push(&mut self, arc: Pipe, term: Term) {
        match term {
            Term::Pipeline(pipeline) => {
                self.rest.push(Stage { arc, term: *pipeline.first });
                self.rest.extend(pipeline.rest);
            }
            term => self.rest.push(Stage { arc, term }),
        }
    }

    fn finish(self) -> Term {
        match self.rest.last() {
            None => self.first,
            Some(last) => {
                let span = self.first.span().to(last.term.span());
                Term::Pipeline(Pipeline { first: Box::new(self.first), rest: self.rest, span })
            }
        }
    }
}
