//! A registry for the planner tests: the built-in filters, and sources and sinks written for the
//! tests.

use filter::{
    Arguments, AttachTarget, Description, EndpointFacts, Filter, FilterKind, Form, Forms, Mistake,
    OutputForm, PASS_THROUGH_TWIN, Parameter, ParameterType, ReadDepth,
};
use pipeline::plan::{Machine, Plan, plan};
use pipeline::registry::{Registry, RegistryList};
use std::sync::OnceLock;

const fn source_description(
    name: &'static str,
    form: Form,
    parameters: &'static [Parameter],
) -> Description {
    let gives = OutputForm::Form(form);
    let takes = Forms::NONE;
    Description {
        name,
        kind: FilterKind::Source,
        input_forms: takes,
        output_form: gives,
        parameters,
        ..Description::FILTER_DEFAULTS
    }
}

const fn sink_description(name: &'static str, parameters: &'static [Parameter]) -> Description {
    Description {
        name,
        kind: FilterKind::Sink,
        output_form: OutputForm::Nothing,
        parameters,
        ..Description::FILTER_DEFAULTS
    }
}

const FILE_PARAMETER: Parameter = Parameter::required("file", ParameterType::Path, "the file");
pub(crate) const RX: Description = Description {
    ..source_description(
        "rx",
        Form::Frame,
        &[Parameter::optional("interface", ParameterType::Text, "where").positional()],
    )
};

/// Returns the attachment of a kernel program that observes the interface in the source's
/// arguments. Fails if the arguments name no interface.
fn observing_attachment(arguments: &Arguments) -> Result<AttachTarget, String> {
    let interface =
        arguments.text("interface").ok_or("a program is attached to a single interface")?;
    let interface = interface.to_owned();
    Ok(AttachTarget::observing(&interface))
}

const REPLAY: Description = source_description("replay", Form::Frame, &[FILE_PARAMETER]);
const READ_SOURCE: Description = source_description(
    "read",
    Form::Bytes,
    &[
        FILE_PARAMETER,
        Parameter::with_default("block", ParameterType::SIZE, "64k", "how long a block is"),
    ],
);
const PRINT: Description = sink_description("print", &[]);
const DISCARD: Description = Description {
    reads: ReadDepth::Nothing,
    emit_twin: Some(PASS_THROUGH_TWIN),
    ..sink_description("discard", &[])
};
const PCAP: Description = sink_description("pcap", &[FILE_PARAMETER]);

const EXEC: Description = Description {
    name: "exec",
    kind: FilterKind::Editing,
    output_form: OutputForm::Form(Form::Bytes),
    parameters: &[Parameter::required("command", ParameterType::Text, "the command")],
    ..Description::FILTER_DEFAULTS
};
const EXEC_AT_HEAD: Description =
    Description { kind: FilterKind::Source, input_forms: Forms::NONE, ..EXEC };

/// A filter for requests with cycles; it is never instantiated.
const CYCLE_FILTER: Description = Description {
    name: "around",
    constructor: Some(build_cycle_filter),
    ..Description::FILTER_DEFAULTS
};

fn build_cycle_filter(_: &Arguments) -> Result<Filter, Mistake> {
    Err(Mistake {
        parameter: None,
        value_index: 0,
        range: None,
        message: "is never made".to_owned(),
        hint: None,
    })
}

/// The registry of the planner tests: the built-in filters, and the sources and sinks of this
/// module.
#[derive(Debug)]
pub(crate) struct PlannerRegistry(RegistryList<'static>);

impl Registry for PlannerRegistry {
    fn find(&self, name: &str) -> Option<&'static Description> {
        self.0.find(name)
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        self.0.find_filter(name)
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        self.0.find_source(name)
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts {
        self.0.endpoint_facts(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    fn spaces(&self) -> Vec<&str> {
        self.0.spaces()
    }

    fn argument_refusal(&self, _: &Description, _: &Arguments) -> Option<Mistake> {
        None
    }
}

/// The facts about a sink that appends to one file.
const APPENDING_SINK: EndpointFacts =
    EndpointFacts { writes_files: true, only_appends: Some(|_| true), ..EndpointFacts::NONE };

/// The facts about the sources, sinks and programs of the registry.
pub(crate) const ENDPOINTS: &[(&str, &EndpointFacts)] = &[
    (
        "rx",
        &EndpointFacts {
            accepts_pushdown: true,
            attach_point: Some(observing_attachment),
            ..EndpointFacts::NONE
        },
    ),
    ("exec", &EndpointFacts { is_program: true, ..EndpointFacts::NONE }),
    ("pcap", &APPENDING_SINK),
];

pub(crate) fn planner_registry() -> PlannerRegistry {
    static ENTRIES: OnceLock<Vec<&'static Description>> = OnceLock::new();
    let entries = ENTRIES.get_or_init(entries);
    PlannerRegistry(RegistryList { entries, endpoints: ENDPOINTS, spaces: &["kernel", "thread*"] })
}

fn entries() -> Vec<&'static Description> {
    let mut entries: Vec<&'static Description> =
        vec![&RX, &REPLAY, &READ_SOURCE, &EXEC_AT_HEAD, &EXEC, &CYCLE_FILTER];
    entries.extend(filter::catalog::FILTERS);
    entries.extend([&PRINT, &DISCARD, &PCAP]);
    entries
}

/// Plans a request, which must have no errors, on a machine that can run it.
pub(crate) fn plan_without_errors(request: &str, machine: &Machine) -> Plan {
    let (graph, mistakes) = pipeline::read_request(request, &planner_registry());
    assert!(mistakes.is_empty(), "{}", pipeline::render(request, &mistakes, false));
    plan(graph, &planner_registry(), machine).unwrap_or_else(|why| panic!("{request}: {why}"))
}
