//! A one-line notation of the syntax tree for people and tests. Every group is bracketed, so
//! precedence is visible.
//!
//! `[a > b]` is a pipeline, `>{c}` an arc with a class, `(… + …)` a group, `{c}a` a branch with a
//! class, `#X` a mark, `@s` a pin, `?` a missing filter.

use std::fmt::Write as _;

use super::print::write_quoted;
use super::tree::{Argument, FilterTerm, Group, Label, Pipeline, Request, Term, Text};

impl Request {
    /// Returns the tree as one line: `[tcp > (http + ssh) > inspect]`.
    pub fn outline(&self) -> String {
        let mut out = String::new();
        for option in &self.options {
            let _ = write!(out, "{option} ");
        }
        if !self.options.is_empty() {
            out.push_str(": ");
        }
        for (index, pipeline) in self.pipelines.iter().enumerate() {
            if index > 0 {
                out.push_str(" ; ");
            }
            draw_term(&mut out, pipeline);
        }
        out
    }
}

impl Term {
    /// Returns the term in the notation of [`Request::outline`].
    pub fn outline(&self) -> String {
        let mut out = String::new();
        draw_term(&mut out, self);
        out
    }
}

fn draw_term(out: &mut String, term: &Term) {
    match term {
        Term::Hole(_) => out.push('?'),
        Term::Filter(node) => draw_node(out, node),
        Term::Not(not) => {
            out.push('!');
            draw_term(out, &not.term);
        }
        Term::Group(group) => draw_group(out, group),
        Term::Pipeline(pipeline) => draw_pipeline(out, pipeline),
    }
}

fn draw_pipeline(out: &mut String, pipeline: &Pipeline) {
    out.push('[');
    draw_term(out, &pipeline.first);
    for stage in &pipeline.rest {
        out.push_str(" >");
        if let Some(label) = &stage.arc.label {
            draw_label(out, label);
        }
        out.push(' ');
        draw_term(out, &stage.term);
    }
    out.push(']');
}

fn draw_group(out: &mut String, group: &Group) {
    out.push('(');
    for (index, branch) in group.branches.iter().enumerate() {
        if index > 0 {
            let _ = write!(out, " {} ", group.operator.symbol());
        }
        if let Some(label) = &branch.label {
            draw_label(out, label);
        }
        draw_term(out, &branch.term);
    }
    out.push(')');
}

fn draw_label(out: &mut String, label: &Label) {
    let text = label.to_string();
    let _ = write!(out, "{{{}}}", text.strip_prefix('|').unwrap_or(&text));
}

fn draw_node(out: &mut String, node: &FilterTerm) {
    out.push_str(&node.name.text);
    if !node.arguments.is_empty() {
        out.push('(');
        for (index, argument) in node.arguments.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            draw_argument(out, argument);
        }
        out.push(')');
    }
    if let Some(mark) = &node.mark {
        let _ = write!(out, "#{}", mark.text);
    }
    if let Some(pin) = &node.pin {
        let _ = write!(out, "@{}", pin.text);
    }
}

fn draw_argument(out: &mut String, argument: &Argument) {
    let Argument { key, value, .. } = argument;
    if let Some(key) = key {
        let _ = write!(out, "{}=", key.text);
    }
    match value {
        Text { quoted: true, bytes, .. } => {
            let _ = write_quoted(out, bytes);
        }
        text => {
            let _ = write!(out, "{text}");
        }
    }
}
