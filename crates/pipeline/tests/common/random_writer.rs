//! A writer that formats syntax trees with random white space, comments, redundant parentheses,
//! quotes, and order of pins and marks. Parsing the text must return the same tree.

use std::fmt::Write as _;

use pipeline::language::tree::{
    Branch, FilterTerm, Group, Label, Operator, Request, Stage, Term, Text,
};

use super::Random;

/// Returns a random text for which the parser returns this request.
pub(crate) fn write_random_text(request: &Request, random: &mut Random) -> String {
    let mut writer = Writer { out: String::new(), random };
    writer.write_space(false);
    for option in &request.options {
        let _ = write!(writer.out, "--{}", option.key.text);
        if let Some(value) = &option.value {
            writer.out.push('=');
            writer.write_text(value);
        }
        writer.write_space(true);
    }
    for (index, pipeline) in request.pipelines.iter().enumerate() {
        if index > 0 {
            writer.out.push(';');
            writer.write_space(false);
        }
        writer.write_term(pipeline, 0, false);
        writer.write_space(false);
    }
    if writer.random.one_chance_in(4) {
        writer.out.push(';');
        writer.write_space(false);
    }
    writer.out
}

struct Writer<'r> {
    out: String,
    random: &'r mut Random,
}

impl Writer<'_> {
    fn write_space(&mut self, needed: bool) {
        if needed || self.random.one_chance_in(2) {
            let space = self.random.pick(&[" ", " ", " ", "\t", "\n", "  ", " \r\n", " # | (x\n"]);
            self.out.push_str(space);
        }
    }

    fn write_term(&mut self, term: &Term, level: usize, label_ok: bool) {
        let own = match term {
            Term::Pipeline(_) => 0,
            Term::Group(group) => precedence_level(group.operator),
            _ => 4,
        };
        let labelled = !label_ok && begins_with_label(term);
        if own < level || labelled || self.random.one_chance_in(8) {
            self.write_parentheses(|writer| writer.write_term(term, 0, true));
            return;
        }
        match term {
            Term::Hole(_) => unreachable!("generated trees are whole"),
            Term::Filter(node) => self.write_filter_term(node),
            Term::Not(not) => {
                self.out.push('!');
                self.write_space(false);
                self.write_term(&not.term, 4, false);
            }
            Term::Group(group) => self.write_group(group, label_ok),
            Term::Pipeline(pipeline) => {
                self.write_pipeline(&pipeline.first, &pipeline.rest, label_ok)
            }
        }
    }

    fn write_parentheses(&mut self, inside: impl FnOnce(&mut Self)) {
        self.out.push('(');
        self.write_space(false);
        inside(self);
        self.write_space(false);
        self.out.push(')');
    }

    fn write_pipeline(&mut self, first: &Term, rest: &[Stage], label_ok: bool) {
        self.write_term(first, 1, label_ok);
        let mut at = 0;
        while at < rest.len() {
            self.write_arc(rest[at].arc.label.as_ref(), &rest[at].term);
            let end = at + 1 + self.random.next_below(rest.len() - at);
            if end > at + 1 && self.random.one_chance_in(3) {
                // A pipeline may have parentheses around some of its stages without changing its
                // meaning.
                let (term, inner) = (&rest[at].term, &rest[at + 1..end]);
                self.write_parentheses(|writer| writer.write_pipeline(term, inner, true));
                at = end;
            } else {
                self.write_term(&rest[at].term, 1, false);
                at += 1;
            }
        }
    }

    fn write_arc(&mut self, label: Option<&Label>, target: &Term) {
        match label {
            Some(label) => {
                self.write_space(!is_numeric(label));
                self.write_label(label);
                self.write_space(matches!(
                    target,
                    Term::Filter(_) | Term::Pipeline(_) | Term::Group(_)
                ));
            }
            None => {
                // Both `a|b` and `a | b` are pipes, but `a |b` would be a label.
                let apart = self.random.one_chance_in(2);
                if apart {
                    self.write_space(false);
                }
                self.out.push('|');
                self.write_space(apart);
            }
        }
    }

    fn write_label(&mut self, label: &Label) {
        let _ = write!(self.out, "{label}");
    }

    fn write_group(&mut self, group: &Group, label_ok: bool) {
        let branches = &group.branches;
        let mut at = 0;
        while at < branches.len() {
            if at > 0 {
                self.write_space(false);
                self.out.push_str(group.operator.symbol());
                self.write_space(false);
            }
            let end = at + 1 + self.random.next_below(branches.len() - at);
            if end > at + 1 && (at > 0 || end < branches.len()) && self.random.one_chance_in(3) {
                let operator = group.operator;
                let inner =
                    Group { operator, branches: branches[at..end].to_vec(), span: group.span };
                self.write_parentheses(|writer| writer.write_group(&inner, true));
                at = end;
            } else {
                self.write_branch(
                    &branches[at],
                    precedence_level(group.operator) + 1,
                    label_ok || at > 0,
                );
                at += 1;
            }
        }
    }

    fn write_branch(&mut self, branch: &Branch, level: usize, label_ok: bool) {
        match &branch.label {
            Some(label) if label_ok => {
                self.write_label(label);
                self.write_space(true);
                self.write_term(&branch.term, 4, false);
            }
            Some(label) => self.write_parentheses(|writer| {
                writer.write_label(label);
                writer.write_space(true);
                writer.write_term(&branch.term, 4, false);
            }),
            None => self.write_term(&branch.term, level.min(4), label_ok),
        }
    }

    fn write_filter_term(&mut self, node: &FilterTerm) {
        self.out.push_str(&node.name.text);
        let places = node.arguments.len() + 1;
        let pin = self.random.next_below(places + 1);
        let mark = self.random.next_below(places);
        for place in 0..places {
            if let (Some(name), true) = (&node.pin, pin.saturating_sub(1) == place) {
                // A pin may be adjacent only to the name itself.
                if place > 0 || pin > 0 {
                    self.write_space(true);
                }
                let _ = write!(self.out, "@{}", name.text);
            }
            if let (Some(name), true) = (&node.mark, mark == place) {
                self.write_space(true);
                let _ = write!(self.out, "--name={}", name.text);
            }
            if let Some(argument) = node.arguments.get(place) {
                self.write_space(true);
                if let Some(key) = &argument.key {
                    let _ = write!(self.out, "{}=", key.text);
                }
                self.write_text(&argument.value);
            }
        }
    }

    fn write_text(&mut self, text: &Text) {
        let whole = std::str::from_utf8(&text.bytes);
        match whole {
            Ok(plain) if !text.quoted => self.out.push_str(plain),
            Ok(plain) if !plain.contains('\'') && self.random.one_chance_in(2) => {
                let _ = write!(self.out, "'{plain}'");
            }
            _ => {
                self.out.push('"');
                for byte in &text.bytes {
                    let _ = match byte {
                        b'a'..=b'z' | b' ' | b'|' if !self.random.one_chance_in(9) => {
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

fn precedence_level(operator: Operator) -> usize {
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

/// Returns true for labels that need no white space before them, because they cannot be filter
/// names.
fn is_numeric(label: &Label) -> bool {
    let text = label.to_string();
    let text = text.trim_start_matches(['|', '!']);
    text.starts_with(|c: char| c.is_ascii_digit()) || text.contains([':', ','])
}
