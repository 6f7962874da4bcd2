//! Random syntax trees in normal form, and a function that clears the spans of a tree for
//! comparisons.

use pipeline::language::Span;
use pipeline::language::tree::{
    Argument, Branch, Classes, FilterTerm, Group, Label, LabelEntry, Name, Not, Operator, Pipe,
    Pipeline, Request, RequestOption, Stage, Term, Text, Value,
};

use super::Random;

const EMPTY_SPAN: Span = Span { start: 0, end: 0 };
const CANDIDATE_NAMES: &[&str] =
    &["a", "rx", "tcp", "http", "dport", "x1_y", "all", "x", "name", "files"];
const ARGUMENT_KEYS: &[&str] = &["k", "per", "max-age", "name", "a_b", "x9"];
const MARKS: &[&str] = &["X", "y", "Loop_1"];
const PIN_NAMES: &[&str] = &["kernel", "thread2", "s"];
const UNQUOTED_WORDS: &[&str] =
    &["eth0", "-", "out/", "10.0.0.1/8", "-5s", "a@b", "x#y", "é", "1:2,3", "*", "a\\b"];
const QUOTED_TEXTS: &[&[u8]] = &[
    b"",
    b"tcp port 80",
    b"--name=X",
    b"@kernel",
    b"k=v",
    b"#",
    b"a | b + (c) ! ; d",
    b"\"",
    b"'",
    b"\\",
    b"\n\t\r\0",
    b"\xff\xc3",
    "é…".as_bytes(),
    "\u{202e}\u{a0}".as_bytes(),
    b"eth0",
];

/// Returns a random tree in the normal form that the parser produces.
pub(crate) fn random_request(random: &mut Random) -> Request {
    let options =
        (0..random.next_below(3).saturating_sub(1)).map(|_| random_option(random)).collect();
    let count = if random.one_chance_in(8) { 2 } else { 1 };
    let mut fuel = 2 + random.next_below(9);
    let pipelines = (0..count).map(|_| random_term(random, &mut fuel, 5)).collect();
    Request { options, pipelines }
}

fn random_option(random: &mut Random) -> RequestOption {
    let value = (!random.one_chance_in(3)).then(|| random_text(random));
    RequestOption { key: random_name(random, ARGUMENT_KEYS), value, span: EMPTY_SPAN }
}

/// Returns a random term with about `fuel` filters and at most `depth` levels of nesting.
fn random_term(random: &mut Random, fuel: &mut usize, depth: usize) -> Term {
    *fuel = fuel.saturating_sub(1);
    if *fuel == 0 || depth == 0 {
        return Term::Filter(random_filter_term(random));
    }
    match random.next_below(10) {
        0..=2 => Term::Filter(random_filter_term(random)),
        3 => Term::Not(Not {
            term: Box::new(random_term(random, fuel, depth - 1)),
            span: EMPTY_SPAN,
        }),
        4..=6 => random_pipeline(random, fuel, depth - 1),
        _ => random_group(random, fuel, depth - 1),
    }
}

fn random_pipeline(random: &mut Random, fuel: &mut usize, depth: usize) -> Term {
    let mut stage = |random: &mut Random| loop {
        let term = random_term(random, fuel, depth);
        if !matches!(term, Term::Pipeline(_)) {
            return term;
        }
    };
    let first = Box::new(stage(random));
    let rest = (0..1 + random.next_below(3))
        .map(|_| {
            let label = random.one_chance_in(3).then(|| random_label(random));
            Stage { arc: Pipe { label, span: EMPTY_SPAN }, term: stage(random) }
        })
        .collect();
    Term::Pipeline(Pipeline { first, rest, span: EMPTY_SPAN })
}

fn random_group(random: &mut Random, fuel: &mut usize, depth: usize) -> Term {
    if random.one_chance_in(8) {
        let term = random_term(random, fuel, depth);
        let branches = vec![Branch { label: Some(random_label(random)), term, span: EMPTY_SPAN }];
        return Term::Group(Group { operator: Operator::Parallel, branches, span: EMPTY_SPAN });
    }
    let operator = [Operator::Parallel, Operator::Union, Operator::Section][random.next_below(3)];
    let branches = (0..2 + random.next_below(2))
        .map(|_| random_branch(random, fuel, depth, operator))
        .collect();
    Term::Group(Group { operator, branches, span: EMPTY_SPAN })
}

fn random_branch(
    random: &mut Random,
    fuel: &mut usize,
    depth: usize,
    operator: Operator,
) -> Branch {
    let label = random.one_chance_in(3).then(|| random_label(random));
    loop {
        let term = random_term(random, fuel, depth);
        let spliced = matches!(&term, Term::Group(group)
            if group.operator == operator || group.branches.len() == 1);
        if label.is_some() || !spliced {
            return Branch { label, term, span: EMPTY_SPAN };
        }
    }
}

fn random_filter_term(random: &mut Random) -> FilterTerm {
    let arguments =
        (0..random.next_below(4).saturating_sub(1)).map(|_| random_argument(random)).collect();
    let mark = random.one_chance_in(6).then(|| random_name(random, MARKS));
    let pin = random.one_chance_in(6).then(|| random_name(random, PIN_NAMES));
    FilterTerm {
        name: random_name(random, CANDIDATE_NAMES),
        arguments,
        mark,
        pin,
        span: EMPTY_SPAN,
    }
}

fn random_argument(random: &mut Random) -> Argument {
    let key = random.one_chance_in(2).then(|| random_name(random, ARGUMENT_KEYS));
    Argument { key, value: random_text(random), span: EMPTY_SPAN }
}

fn random_text(random: &mut Random) -> Text {
    let quoted = random.one_chance_in(2);
    let bytes = match quoted {
        true => random.pick(QUOTED_TEXTS).to_vec(),
        false => random.pick(UNQUOTED_WORDS).as_bytes().to_vec(),
    };
    Text { bytes, quoted, span: EMPTY_SPAN }
}

fn random_label(random: &mut Random) -> Label {
    let inverted = random.one_chance_in(4);
    let classes = match random.next_below(8) {
        0 => Classes::All,
        few => Classes::List((0..1 + few / 5).map(|_| random_class(random)).collect()),
    };
    Label { inverted, classes, span: EMPTY_SPAN }
}

fn random_class(random: &mut Random) -> LabelEntry {
    let (low, high) = match random.next_below(5) {
        0 => (Some(random_value(random)), Some(random_value(random))),
        1 => (Some(random_value(random)), None),
        2 => (None, Some(random_value(random))),
        _ => return LabelEntry::One(random_value(random)),
    };
    LabelEntry::Range { low, high, span: EMPTY_SPAN }
}

fn random_value(random: &mut Random) -> Value {
    match random.next_below(3) {
        0 => loop {
            let name = random_name(random, CANDIDATE_NAMES);
            if name.text != "all" {
                return Value::Name(name);
            }
        },
        _ => {
            let value = [0, 22, 80, 0x86dd, u32::MAX][random.next_below(5)];
            Value::Number { value, hex: random.one_chance_in(3), span: EMPTY_SPAN }
        }
    }
}

fn random_name(random: &mut Random, of: &[&str]) -> Name {
    Name { text: random.pick(of).to_owned(), span: EMPTY_SPAN }
}

/// Returns the tree with every span replaced by an empty span.
pub(crate) fn without_spans(mut request: Request) -> Request {
    for option in &mut request.options {
        option.span = EMPTY_SPAN;
        option.key.span = EMPTY_SPAN;
        option.value.iter_mut().for_each(|value| value.span = EMPTY_SPAN);
    }
    request.pipelines.iter_mut().for_each(clear_term_spans);
    request
}

fn clear_term_spans(term: &mut Term) {
    match term {
        Term::Hole(span) => *span = EMPTY_SPAN,
        Term::Filter(node) => clear_filter_spans(node),
        Term::Not(not) => {
            not.span = EMPTY_SPAN;
            clear_term_spans(&mut not.term);
        }
        Term::Group(group) => {
            group.span = EMPTY_SPAN;
            for branch in &mut group.branches {
                branch.span = EMPTY_SPAN;
                branch.label.iter_mut().for_each(clear_label_spans);
                clear_term_spans(&mut branch.term);
            }
        }
        Term::Pipeline(pipeline) => {
            pipeline.span = EMPTY_SPAN;
            clear_term_spans(&mut pipeline.first);
            for stage in &mut pipeline.rest {
                stage.arc.span = EMPTY_SPAN;
                stage.arc.label.iter_mut().for_each(clear_label_spans);
                clear_term_spans(&mut stage.term);
            }
        }
    }
}

fn clear_filter_spans(node: &mut FilterTerm) {
    node.span = EMPTY_SPAN;
    node.name.span = EMPTY_SPAN;
    node.mark.iter_mut().chain(&mut node.pin).for_each(|name| name.span = EMPTY_SPAN);
    for argument in &mut node.arguments {
        argument.span = EMPTY_SPAN;
        argument.value.span = EMPTY_SPAN;
        argument.key.iter_mut().for_each(|key| key.span = EMPTY_SPAN);
    }
}

fn clear_label_spans(label: &mut Label) {
    label.span = EMPTY_SPAN;
    let Classes::List(list) = &mut label.classes else { return };
    for class in list {
        match class {
            LabelEntry::One(value) => clear_value_spans(value),
            LabelEntry::Range { low, high, span } => {
                *span = EMPTY_SPAN;
                low.iter_mut().chain(high).for_each(clear_value_spans);
            }
        }
    }
}

fn clear_value_spans(value: &mut Value) {
    match value {
        Value::Number { span, .. } => *span = EMPTY_SPAN,
        Value::Name(name) => name.span = EMPTY_SPAN,
    }
}
