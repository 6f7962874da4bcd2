//! Tests of properties of a filter that depend on its arguments: parameter values, emitted forms,
//! kind.

use filter::{
    Arguments, Description, Effect, EndpointFacts, FilterKind, Form, Forms, OutputForm, Parameter,
    ParameterType, ReadDepth, Value,
};
use pipeline::plan::{Machine, plan};
use pipeline::{Diagnostic, Graph, Registry, read_request};

const LINES_SOURCE: Description = Description {
    name: "lines",
    kind: FilterKind::Source,
    input_forms: Forms::NONE,
    output_form: OutputForm::Form(Form::Bytes),
    effect: Some(lines_effect),
    parameters: &[
        Parameter::with_default("whole", ParameterType::Flag, "no", "no lines"),
        Parameter::with_default("speed", ParameterType::Factor { or: "max" }, "max", "how fast"),
        Parameter::with_default(
            "block",
            ParameterType::Size { low: 1, high: 4096 },
            "1k",
            "how long",
        ),
    ],
    ..Description::FILTER_DEFAULTS
};

fn lines_effect(arguments: &Arguments) -> Effect {
    let form = if arguments.flag("whole") { Form::Bytes } else { Form::Record };
    Effect { kind: FilterKind::Source, output_form: OutputForm::Form(form), reads: ReadDepth::All }
}

const RECORDS_FILTER: Description = Description {
    name: "records",
    kind: FilterKind::Inspection,
    input_forms: Forms::of(&[Form::Record]),
    ..Description::FILTER_DEFAULTS
};

/// A filter that edits, but with `look=yes` only inspects.
const SCRUB_FILTER: Description = Description {
    name: "scrub",
    kind: FilterKind::Editing,
    effect: Some(scrub_effect),
    parameters: &[Parameter::with_default("look", ParameterType::Flag, "no", "change nothing")],
    ..Description::FILTER_DEFAULTS
};

fn scrub_effect(arguments: &Arguments) -> Effect {
    let kind = if arguments.flag("look") { FilterKind::Inspection } else { FilterKind::Editing };
    Effect { kind, output_form: OutputForm::Same, reads: ReadDepth::All }
}

const PRINT: Description = Description {
    name: "print",
    kind: FilterKind::Sink,
    output_form: OutputForm::Nothing,
    ..Description::FILTER_DEFAULTS
};

#[derive(Debug)]
struct ArgumentRegistry;

impl Registry for ArgumentRegistry {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let own: [&'static Description; 4] =
            [&LINES_SOURCE, &RECORDS_FILTER, &SCRUB_FILTER, &PRINT];
        let own = own.into_iter().find(|entry| entry.name == name);
        own.or_else(|| filter::catalog::find(name))
    }

    fn endpoint_facts(&self, _: &Description) -> &'static EndpointFacts {
        &EndpointFacts::NONE
    }

    fn names(&self) -> Vec<&'static str> {
        vec!["lines", "records", "scrub", "print", "match"]
    }

    fn spaces(&self) -> Vec<&str> {
        vec!["thread*"]
    }
}

fn build_graph(text: &str) -> Graph {
    let (graph, mistakes) = read_request(text, &ArgumentRegistry);
    assert_eq!(mistakes, [], "{text}");
    graph
}

fn mistake_texts(text: &str) -> String {
    let (_, mistakes) = read_request(text, &ArgumentRegistry);
    let texts = mistakes.iter().map(|Diagnostic { what, why, .. }| format!("{what} / {why}"));
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn repeated_parameter_keeps_its_values_in_order() {
    let graph = build_graph("lines | match \"a\" hex=62 \"c\" nocase");
    let used = graph.nodes[1].filter().unwrap();
    let texts = used.arguments.iter().filter_map(|(name, value)| match value {
        Value::Text(text) => Some((name, text.as_bytes())),
        Value::Bytes(bytes) => Some((name, bytes.as_slice())),
        _ => None,
    });
    let texts: Vec<_> = texts.collect();
    assert_eq!(texts, [("text", &b"a"[..]), ("hex", b"62"), ("text", b"c")]);
}

#[test]
fn filter_may_emit_forms_by_its_arguments() {
    let graph = build_graph("lines | records");
    assert_eq!(graph.nodes[1].input_forms, [Form::Record]);
    assert_eq!(
        mistake_texts("lines whole=yes | records"),
        "`records` needs a record / `lines` emits bytes"
    );
    for (text, form) in [("lines", Form::Record), ("lines whole=yes", Form::Bytes)] {
        let plan = plan(build_graph(text), &ArgumentRegistry, &Machine::example()).unwrap();
        assert_eq!(plan.graph.nodes[1].input_forms, [form], "the sink of an open end");
    }
}

#[test]
fn a15_kind_of_a_filter_depends_on_its_arguments() {
    assert!(build_graph("lines | !scrub look=yes").nodes[2].kind() == Some(FilterKind::Inspection));
    let why = mistake_texts("lines | !scrub");
    assert!(why.starts_with("`scrub` cannot be an operand of `!`"), "{why}");
    assert!(why.ends_with("`scrub` changes bytes"), "{why}");
    let cost = |text| {
        plan(build_graph(text), &ArgumentRegistry, &Machine::example()).unwrap().choice.cost_ns
    };
    assert!(cost("lines | scrub look=yes | print") < cost("lines | scrub | print"));
}

#[test]
fn a15_argument_out_of_bounds_is_reported() {
    build_graph("lines speed=0.5 block=4k");
    assert!(
        mistake_texts("lines speed=fast")
            .starts_with("`speed` of `lines`: `fast` is neither `max`")
    );
    assert!(mistake_texts("lines speed=0").contains("a number above 0"));
    assert!(
        mistake_texts("lines block=5k")
            .starts_with("`block` of `lines`: 5k is not between 1 and 4096")
    );
}
