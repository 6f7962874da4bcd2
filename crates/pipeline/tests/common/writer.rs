//! Writes a syntax tree with random white space, comments, redundant parentheses, quotes, and order
//! of pins and marks. Parsing the text must return the same tree.

use std::fmt::Write as _;

use pipeline::language::tree::{
    Branch, FilterTerm, Group, Label, Operator, Request, Stage, Term, Text,
};

use super::Random;

/// Returns a random text of the request.
pub(crate) fn write(request: &Request, random: &mut Random) -> String {
    let mut writer = Writer { out: String::new(), random };
    writer.space(false);
    for option in &request.options {
        let _ = write!(writer.out, "--{}", option.key.text);
        if let Some(value) = &option.value {
            writer.out.push('=');
            writer.text(value);
        }
        writer.space(true);
    }
    for (index, pipeline) in request.pipelines.iter().enumerate() {
        if index > 0 {
            writer.out.push(';');
            writer.space(false);
        }
        writer.term(pipeline, 0, false);
        writer.space(false);
    }
    if writer.random.once_in(4) {
        writer.out.push(';');
        writer.space(false);
    }
    writer.out
}

struct Writer<'r> {
    out: String,
    random: &'r mut Random,
}

impl Writer<'_> {
    fn space(&mut self, needed: bool) {
        if needed || self.random.once_in(2) {
            let space = self.random.pick(&[" ", " ", " ", "\t", "\n", "  ", " \r\n", " # | (x\n"]);
            self.out.push_str(space);
        }
    }

    fn term(&mut self, term: &Term, level: usize, label_ok: bool) {
        let own = match term {
            Term::Pipeline(_) => 0,
            Term::Group(group) => level_of(group.operator),
            _ => 4,
        };
        let labelled = !label_ok && begins_with_label(term);
        if own < level || labelled || self.random.once_in(8) {
            self.parentheses(|writer| writer.term(term, 0, true));
            return;
        }
        match term {
            Term::Hole(_) => unreachable!("generated trees are whole"),
            Term::Filter(node) => self.node(node),
            Term::Not(not) => {
                self.out.push('!');
                self.space(false);
                self.term(&not.term, 4, false);
            }
            Term::Group(group) => self.group(group, label_ok),
            Term::Pipeline(pipeline) => self.pipeline(&pipeline.first, &pipeline.rest, label_ok),
        }
    }

    fn parentheses(&mut self, inside: impl FnOnce(&mut Self)) {
        self.out.push('(');
        self.space(false);
        inside(self);
        self.space(false);
        self.out.push(')');
    }

    fn pipeline(&mut self, first: &Term, rest: &[Stage], label_ok: bool) {
        self.term(first, 1, label_ok);
        let mut at = 0;
        while at < rest.len() {
            self.arc(rest[at].arc.label.as_ref(), &rest[at].term);
            let end = at + 1 + self.random.below(rest.len() - at);
            if end > at + 1 && self.random.once_in(3) {
                // Part of a pipeline in parentheses is the same pipeline.
                let (term, inner) = (&rest[at].term, &rest[at + 1..end]);
                self.parentheses(|writer| writer.pipeline(term, inner, true));
                at = end;
            } else {
                self.term(&rest[at].term, 1, false);
                at += 1;
            }
        }
    }

    fn arc(&mut self, label: Option<&Label>, target: &Term) {
        match label {
            Some(label) => {
                self.space(!is_numeric(label));
                self.label(label);
                self.space(matches!(target, Term::Filter(_) | Term::Pipeline(_) | Term::Group(_)));
            }
            None => {
                // `a|b` is a pipe, `a | b` too, `a |b` would be a label.
                let apart = self.random.once_in(2);
                if apart {
                    self.space(false);
                }
                self.out.push('|');
                self.space(apart);
            }
        }
    }

    fn label(&mut self, label: &Label) {
        let _ = write!(self.out, "{label}");
    }

    fn group(&mut self, group: &Group, label_ok: bool) {
        let branches = &group.branches;
        let mut at = 0;
        while at < branches.len() {
            if at > 0 {
                self.space(false);
                self.out.push_str(group.operator.symbol());
                self.space(false);
            }
            let end = at + 1 + self.random.below(branches.len() - at);
            if end > at + 1 && (at > 0 || end < branches.len()) && self.random.once_in(3) {
                let operator = group.operator;
                let inner =
                    Group { operator, branches: branches[at..end].to_vec(), span: group.span };
                self.parentheses(|writer| writer.group(&inner, true));
                at = end;
            } else {
                self.branch(&branches[at], level_of(group.operator) + 1, label_ok || at > 0);
                at += 1;
            }
        }
    }

    fn branch(&mut self, branch: &Branch, level: usize, label_ok: bool) {
        match &branch.label {
            Some(label) if label_ok => {
                self.label(label);
                self.space(true);
                self.term(&branch.term, 4, false);
            }
            Some(label) => self.parentheses(|writer| {
                writer.label(label);
                writer.space(true);
                writer.term(&branch.term, 4, false);
            }),
            None => self.term(&branch.term, level.min(4), label_ok),
        }
    }

    fn node(&mut self, node: &FilterTerm) {
        self.out.push_str(&node.name.text);
        let places = node.arguments.len() + 1;
        let pin = self.random.below(places + 1);
        let mark = self.random.below(places);
        for place in 0..places {
            if let (Some(name), true) = (&node.pin, pin.saturating_sub(1) == place) {
                // Glued only to the name itself.
                if place > 0 || pin > 0 {
                    self.space(true);
                }
                let _ = write!(self.out, "@{}", name.text);
            }
            if let (Some(name), true) = (&node.mark, mark == place) {
                self.space(true);
                let _ = write!(self.out, "--name={}", name.text);
            }
            if let Some(argument) = node.arguments.get(place) {
                self.space(true);
                if let Some(key) = &argument.key {
                    let _ = write!(self.out, "{}=", key.text);
                }
                self.text(&argument.value);
            }
        }
    }

    fn text(&mut self, text: &Text) {
        let whole = std::str::from_utf8(&text.bytes);
        match whole {
            Ok(plain) if !text.quoted => self.out.push_str(plain),
            Ok(plain) if !plain.contains('\'') && self.random.once_in(2) => {
                let _ = write!(self.out, "'{plain}'");
            }
            _ => {
                self.out.push('"');
                for byte in &text.bytes {
                    let _ = match byte {
                        b'a'..=b'z' | b' ' | b'|' if !self.random.once_in(9) => {
                            write!(self.out, "{}", char::from(*byte))
                        }
                        byte => write!(self.out, "\\x{byte:02X}"),
                    };
                }
                self.out.push('"');
            }
        }
    }
}

fn level_of(operator: Operator) -> usize {
    match operator {
        Operator::Parallel => 1,
        Operator::Union => 2,
        Operator::Section => 3,
    }
}

fn begins_with_label(term: &Term) -> bool {
    match term {
        Term::Group(group) => {
            let first = &group.branches[0];
            first.label.is_some() || begins_with_label(&first.term)
        }
        Term::Pipeline(pipeline) => begins_with_label(&pipeline.first),
        _ => false,
    }
}

/// Returns true for labels that cannot be a filter's name, so that no white space must precede
/// them.
fn is_numeric(label: &Label) -> bool {
    let text = label.to_string();
    let text = text.trim_start_matches(['|', '!']);
    text.starts_with(|c: char| c.is_ascii_digit()) || text.contains([':', ','])
}
