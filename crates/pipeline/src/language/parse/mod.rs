//! The parser: the grammar of [SL §4.2] made unambiguous, one method per rule.
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
//! One pass finds all errors of a request. A missing filter becomes a `Term::Hole` that consumes no
//! token, a missing operator is read as a pipe, and an unclosed parenthesis ends with the text.
//! Each token is consumed once, and recursion stops at `NESTING_DEPTH_MAX`, so for any text the
//! time is linear and the stack depth is bounded. [SL §4.2]

mod node;
mod recover;

use std::cell::Cell;
use std::collections::HashSet;

use super::diagnose::{Diagnostic, Span, sort_and_join_diagnostics};
use super::lex::{Token, TokenKind, lex};
use super::limits::{NESTING_DEPTH_MAX, TEXT_MAX};
use super::tree::{Branch, Group, Label, Not, Operator, Pipe, Pipeline, Request, Stage, Term};

/// Parses a request into a tree and diagnostics, sorted by position.
///
/// The tree is complete even after errors, with a `Term::Hole` for each missing filter, so that the
/// checks can find further errors.
pub fn parse(text: &str) -> (Request, Vec<Diagnostic>) {
    let (request, mistakes, _) = parse_and_count_steps(text);
    (request, mistakes)
}

/// Parses a request as `parse` does. Also returns the number of lexer and parser steps, which tests
/// compare with the text length.
pub fn parse_and_count_steps(text: &str) -> (Request, Vec<Diagnostic>, u64) {
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
    let request = parser.parse_request();
    (request, sort_and_join_diagnostics(parser.mistakes), parser.steps.get())
}

struct Parser<'t> {
    text: &'t str,
    /// The tokens, the last of which is `End`. `bump` never advances beyond it.
    tokens: Vec<Token>,
    at: usize,
    mistakes: Vec<Diagnostic>,
    /// The number of tokens inspected. Every loop of the parser inspects a token, so this number
    /// bounds the run time.
    steps: Cell<u64>,
    /// The number of parentheses and negations that enclose the current token.
    depth: usize,
    /// The number of parentheses that are open at the current token.
    open: usize,
    /// The number of parentheses that were still open at an earlier `;`. Their closing parentheses
    /// may follow later, and are then not reported as unmatched.
    unclosed: usize,
    /// The index of the token up to which missing filters have been reported, so that none is
    /// reported twice.
    reported_until: usize,
    filters: usize,
    marks: HashSet<String>,
}

impl Parser<'_> {
    fn parse_request(&mut self) -> Request {
        let options = self.parse_options();
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
                pipelines.push(self.parse_pipeline(false));
            }
            if matches!(self.kind(), TokenKind::Semicolon) {
                self.bump();
            }
        }
        Request { options, pipelines }
    }

    /// Parses a pipeline up to a `;`, the end of the text, or the `)` that closes an open
    /// parenthesis. `label_ok` is true if the pipeline may begin with a label.
    fn parse_pipeline(&mut self, label_ok: bool) -> Term {
        let first = self.parse_group(Operator::Parallel, label_ok);
        let mut stages = PipelineBuilder::new(stage_from_branch(first));
        loop {
            let arc = match self.kind() {
                TokenKind::Pipe | TokenKind::Label(_) => self.parse_pipe(),
                TokenKind::Word { .. }
                | TokenKind::Quoted(_)
                | TokenKind::Open
                | TokenKind::Bang => {
                    self.report_missing_operator();
                    Pipe { label: None, span: Span::new(self.span().start, self.span().start) }
                }
                TokenKind::Semicolon
                | TokenKind::End
                | TokenKind::Close
                | TokenKind::Operator(_) => break,
            };
            let branch = self.parse_group(Operator::Parallel, false);
            stages.push(arc, stage_from_branch(branch));
        }
        stages.finish()
    }

    fn parse_pipe(&mut self) -> Pipe {
        let token = self.bump();
        let label = match token.kind {
            TokenKind::Label(label) => Some(label),
            _ => None,
        };
        Pipe { label, span: token.span }
    }

    /// Parses operands separated by `operator`. A single operand is returned unchanged. `label_ok`
    /// is true if the first operand may begin with a label.
    fn parse_group(&mut self, operator: Operator, label_ok: bool) -> Branch {
        let first = self.parse_group_operand(operator, label_ok);
        if !self.is_at_operator(operator) {
            return first;
        }
        let start = first.span;
        let mut branches = Vec::new();
        add_operand(operator, first, &mut branches);
        while self.is_at_operator(operator) {
            self.bump();
            let next = self.parse_group_operand(operator, true);
            add_operand(operator, next, &mut branches);
        }
        let span = branches.last().map_or(start, |last| start.to(last.span));
        Branch { label: None, term: Term::Group(Group { operator, branches, span }), span }
    }

    fn parse_group_operand(&mut self, operator: Operator, label_ok: bool) -> Branch {
        match operator {
            Operator::Parallel => self.parse_group(Operator::Union, label_ok),
            Operator::Union => self.parse_group(Operator::Section, label_ok),
            Operator::Section => self.parse_branch(label_ok),
        }
    }

    fn is_at_operator(&self, operator: Operator) -> bool {
        matches!(self.kind(), TokenKind::Operator(found) if *found == operator)
    }

    fn parse_branch(&mut self, label_ok: bool) -> Branch {
        let mut label: Option<Label> = None;
        if label_ok && matches!(self.kind(), TokenKind::Label(_)) {
            label = self.parse_pipe().label;
        }
        let term = self.parse_unary();
        let span = label.as_ref().map_or_else(|| term.span(), |label| label.span.to(term.span()));
        Branch { label, term, span }
    }

    fn parse_unary(&mut self) -> Term {
        while self.skip_unmatched_parenthesis() {}
        let start = self.span();
        let term = match self.kind() {
            TokenKind::Bang if self.depth >= NESTING_DEPTH_MAX => {
                self.report_excessive_depth();
                while matches!(self.kind(), TokenKind::Bang) {
                    self.bump();
                }
                match self.kind() {
                    TokenKind::Open => self.skip_parentheses(),
                    TokenKind::Word { .. } | TokenKind::Quoted(_) => drop(self.parse_filter_term()),
                    _ => {}
                }
                Term::Hole(start)
            }
            TokenKind::Bang => {
                self.bump();
                self.depth += 1;
                let term = self.parse_unary();
                self.depth -= 1;
                let span = start.to(term.span());
                return Term::Not(Not { term: Box::new(term), span });
            }
            TokenKind::Open if self.depth >= NESTING_DEPTH_MAX => {
                self.report_excessive_depth();
                self.skip_parentheses();
                Term::Hole(start)
            }
            TokenKind::Open => self.parse_parentheses(),
            TokenKind::Word { .. } | TokenKind::Quoted(_) => self.parse_filter_term(),
            _ => self.report_missing_filter(),
        };
        while self.skip_unmatched_parenthesis() || self.skip_stray_pin_or_mark() {}
        term
    }

    fn parse_parentheses(&mut self) -> Term {
        let opened = self.bump().span;
        if matches!(self.kind(), TokenKind::Close) {
            let span = opened.to(self.bump().span);
            self.report(span, "the parentheses are empty", "");
            return Term::Hole(span);
        }
        if matches!(self.kind(), TokenKind::Semicolon | TokenKind::End) {
            self.report(
                opened,
                "the parenthesis is never closed",
                "a filter and a `)` are missing",
            );
            return Term::Hole(opened);
        }
        self.depth += 1;
        self.open += 1;
        let term = self.parse_pipeline(true);
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

    /// Skips a parenthesized term.
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

    fn report_excessive_depth(&mut self) {
        let what = format!("parentheses and negations are deeper than {NESTING_DEPTH_MAX} here");
        self.report(self.span(), what, "its contents are ignored");
    }

    /// Skips an unmatched `)`, and reports it unless it matches a parenthesis that was open at a
    /// `;`. Returns false if there is no unmatched `)`.
    fn skip_unmatched_parenthesis(&mut self) -> bool {
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
        self.count_step();
        &self.tokens[self.at].kind
    }

    fn count_step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    /// Returns the current token and advances, unless it is `End`.
    fn bump(&mut self) -> Token {
        self.count_step();
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

/// Converts a branch to a stage of a pipeline. Only a group may contain a label, so a labelled
/// branch becomes a group of one branch.
fn stage_from_branch(branch: Branch) -> Term {
    match branch.label {
        None => branch.term,
        Some(_) => {
            let span = branch.span;
            Term::Group(Group { operator: Operator::Parallel, branches: vec![branch], span })
        }
    }
}

/// Appends an operand to the branches of a group. If the operand is itself a group that can be
/// dissolved, appends its branches instead, which preserves the normal form (see `tree`).
fn add_operand(operator: Operator, branch: Branch, branches: &mut Vec<Branch>) {
    match branch {
        Branch { label: None, term: Term::Group(group), .. }
            if group.operator == operator || group.branches.len() == 1 =>
        {
            branches.extend(group.branches);
        }
        branch => branches.push(branch),
    }
}

/// A growing pipeline in normal form: inner pipelines are replaced with their stages.
struct PipelineBuilder {
    first: Term,
    rest: Vec<Stage>,
}

impl PipelineBuilder {
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
