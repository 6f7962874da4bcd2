//! A small registry for tests, with one description for every kind of filter that the checks
//! distinguish.

use filter::{
    Arguments, Classes, Description, EndpointFacts, Filter, FilterKind, Form, Forms, Mistake,
    ObservedSource, OutputForm, Parameter, ParameterType, ValueRange,
};
use pipeline::registry::RegistryList;

const PORTS: &[(&str, u32)] = &[("ssh", 22), ("telnet", 23), ("dns", 53), ("http_port", 80)];

const fn description(
    name: &'static str,
    kind: FilterKind,
    input_forms: Forms,
    output_form: OutputForm,
) -> Description {
    Description { name, kind, input_forms, output_form, ..Description::FILTER_DEFAULTS }
}

const fn number_class_description(
    name: &'static str,
    input_forms: Forms,
    what: &'static str,
    range: ValueRange,
    names: &'static [(&'static str, u32)],
) -> Description {
    let classes = Classes::Number { meaning: what, range, names };
    Description {
        classes,
        ..description(name, FilterKind::Classification, input_forms, OutputForm::Same)
    }
}

const fn class_range(low: u32, high: u32) -> ValueRange {
    ValueRange { low, high }
}

const RX: Description = Description {
    parameters: &[
        Parameter::optional("interface", ParameterType::Text, "where to listen").positional(),
        Parameter::with_default("both", ParameterType::Flag, "no", "what the host sends, too"),
        Parameter::with_default(
            "take",
            ParameterType::Flag,
            "no",
            "take the packets from the host",
        ),
        Parameter::with_default("snap", ParameterType::SIZE, "64k", "how much of a frame"),
        Parameter::optional("wait", ParameterType::Duration, "how long"),
        Parameter::with_default(
            "slots",
            ParameterType::Number { low: 1, high: 4096 },
            "256",
            "ring size",
        ),
        Parameter::with_default("at", ParameterType::OneOf(&["host", "wire"]), "host", "where"),
    ],
    ..description("rx", FilterKind::Source, Forms::NONE, OutputForm::Form(Form::Frame))
};
const TX_SOURCE: Description = Description {
    parameters: &[
        Parameter::optional("interface", ParameterType::Text, "where to listen").positional(),
        Parameter::with_default("loopback", ParameterType::Flag, "yes", "what it sends to itself"),
    ],
    ..description("tx", FilterKind::Source, Forms::NONE, OutputForm::Form(Form::Frame))
};

fn observed_source(arguments: &Arguments, received: bool, sent: bool) -> ObservedSource {
    let interface = arguments.text("interface").map(str::to_owned);
    ObservedSource::Frames { interface, netns: None, received, sent, own_sockets: false }
}
const TX: Description = description(
    "tx",
    FilterKind::Sink,
    Forms::of(&[Form::Frame, Form::Bytes]),
    OutputForm::Nothing,
);
const BUFFER: Description = Description {
    parameters: &[Parameter::required("name", ParameterType::Text, "the buffer's name")],
    ..description("buffer", FilterKind::Source, Forms::NONE, OutputForm::Form(Form::Bytes))
};
const BPF: Description = Description {
    parameters: &[Parameter::required(
        "expression",
        ParameterType::Text,
        "the expression in pcap-filter's words.",
    )],
    classes: Classes::YesNo,
    constructor: Some(reject_expression),
    ..description("bpf", FilterKind::Inspection, Forms::FRAMED, OutputForm::Same)
};
const ETH: Description = number_class_description(
    "eth",
    Forms::of(&[Form::Frame]),
    "the ethertype",
    class_range(0, 0xffff),
    &[],
);
const IP: Description = Description {
    output_form: OutputForm::Form(Form::Packet),
    ..number_class_description(
        "ip",
        Forms::of(&[Form::Frame]),
        "the version",
        class_range(4, 6),
        &[],
    )
};
const DPORT: Description = number_class_description(
    "dport",
    Forms::FRAMED,
    "the destination port",
    class_range(0, 0xffff),
    PORTS,
);
const FLAVOUR_FILTER: Description = number_class_description(
    "flavour",
    Forms::FRAMED,
    "the flavour",
    class_range(1, 9),
    &[("ssh", 7), ("odd", 1)],
);
const TCP: Description = Description {
    parameters: &[Parameter::with_default(
        "depth",
        ParameterType::Number { low: 1, high: 64 },
        "8",
        "how deep",
    )],
    ..description(
        "tcp",
        FilterKind::Reordering,
        Forms::of(&[Form::Packet]),
        OutputForm::Form(Form::Stream),
    )
};
const HTTP: Description = Description {
    classes: Classes::Number {
        meaning: "the kind of message",
        range: class_range(1, 1999),
        names: &[("get", 1), ("post", 2)],
    },
    class_groups: &[
        ("request", class_range(1, 99)),
        ("response", class_range(100, 999)),
        ("exchange", class_range(1000, 1999)),
    ],
    ..description(
        "http",
        FilterKind::Classification,
        Forms::of(&[Form::Stream]),
        OutputForm::Form(Form::Message),
    )
};
const SSH: Description = Description {
    parameters: &[Parameter::optional("user", ParameterType::Text, "whose").positional()],
    ..description("ssh", FilterKind::Inspection, Forms::ANY, OutputForm::Same)
};
const COUNT_FILTER: Description =
    description("count", FilterKind::Statistics, Forms::ANY, OutputForm::Same);
const COMPRESS: Description =
    description("compress", FilterKind::Editing, Forms::ANY, OutputForm::Same);
const EXEC: Description = Description {
    parameters: &[Parameter::required("command", ParameterType::Text, "what to run")],
    classes: Classes::YesNo,
    ..description("exec", FilterKind::Editing, Forms::ANY, OutputForm::Form(Form::Bytes))
};
const EXEC_AT_HEAD: Description =
    Description { kind: FilterKind::Source, input_forms: Forms::NONE, ..EXEC };
const FILES_SINK: Description = Description {
    parameters: &[
        Parameter::required("directory", ParameterType::Path, "where the files go"),
        Parameter::with_default(
            "per",
            ParameterType::OneOf(&["block", "connection"]),
            "block",
            "one file for each",
        ),
    ],
    ..description("files", FilterKind::Sink, Forms::ANY, OutputForm::Nothing)
};
const PRINT: Description = Description {
    parameters: &[Parameter::optional("field", ParameterType::Text, "what to print")
        .positional()
        .repeatable()],
    ..description("print", FilterKind::Sink, Forms::ANY, OutputForm::Nothing)
};
const LOG_SINK: Description = description("log", FilterKind::Sink, Forms::ANY, OutputForm::Nothing);

/// Rejects every expression; the error is at the word `nonsense` if the expression contains it.
fn reject_expression(arguments: &Arguments) -> Result<Filter, Mistake> {
    let text = arguments.text("expression").unwrap_or_default();
    let mut mistake = Mistake::new("expression", "`nonsense` is not an expression")
        .with_hint("for instance `tcp`");
    mistake.range = text.find("nonsense").map(|at| at..at + 8);
    Err(mistake)
}

/// Facts about the sources and programs that the registry of these tests contains.
const ENDPOINTS: &[(&str, &EndpointFacts)] = &[
    (
        "rx",
        &EndpointFacts {
            observed_source: Some(|arguments| {
                observed_source(arguments, true, arguments.flag("both"))
            }),
            ..EndpointFacts::NONE
        },
    ),
    (
        "tx",
        &EndpointFacts {
            observed_source: Some(|arguments| observed_source(arguments, false, true)),
            ..EndpointFacts::NONE
        },
    ),
    ("exec", &EndpointFacts { is_program: true, ..EndpointFacts::NONE }),
];

/// The small registry. It rejects expressions that contain `nonsense`, and accepts all others.
#[derive(Debug)]
pub(crate) struct CheckRegistry(pub(crate) RegistryList<'static>);

pub(crate) fn check_registry() -> CheckRegistry {
    CheckRegistry(RegistryList {
        entries: &[
            &RX,
            &TX,
            &TX_SOURCE,
            &BUFFER,
            &BPF,
            &ETH,
            &IP,
            &DPORT,
            &FLAVOUR_FILTER,
            &TCP,
            &HTTP,
            &SSH,
            &COUNT_FILTER,
            &COMPRESS,
            &EXEC,
            &EXEC_AT_HEAD,
            &FILES_SINK,
            &PRINT,
            &LOG_SINK,
        ],
        endpoints: ENDPOINTS,
        spaces: &["kernel", "process", "thread*"],
    })
}

impl pipeline::Registry for CheckRegistry {
    fn find(&self, name: &str) -> Option<&'static Description> {
        self.0.find(name)
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        self.0.find_filter(name)
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        self.0.find_source(name)
    }

    fn endpoint_facts(&self, description: &Description) -> &'static EndpointFacts {
        self.0.endpoint_facts(description)
    }

    fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    fn spaces(&self) -> Vec<&str> {
        self.0.spaces()
    }

    fn argument_refusal(
        &self,
        description: &Description,
        arguments: &Arguments,
    ) -> Option<Mistake> {
        let nonsense = arguments.text("expression").is_some_and(|text| text.contains("nonsense"));
        description.constructor.filter(|_| nonsense).and_then(|make| make(arguments).err())
    }
}
