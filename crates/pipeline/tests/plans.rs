//! Golden plans: a request, a machine by name, and what `explain` says about them.
//!
//! Each file of `tests/plans` has comments, a line `machine: NAME`, the request, a line `----`, and
//! the text. `UPDATE=1` writes the texts anew; look at the difference before it is kept.

use filter::{
    Arguments, Attach, Description, Filter, Form, Forms, Gives, Kind, Mistake, PLAIN, Parameter,
    Reads, Side, Type,
};
use pipeline::catalogue::{Catalogue, List};
use pipeline::explain;
use pipeline::plan::{Machine, Plan, Refused, SpaceKind, plan};
use std::fs;
use std::path::{Path, PathBuf};

const fn source(name: &'static str, form: Form, parameters: &'static [Parameter]) -> Description {
    let gives = Gives::Form(form);
    let takes = Forms::NONE;
    Description { name, kind: Kind::Source, takes, gives, parameters, ..Description::EMPTY }
}

const fn sink(name: &'static str, parameters: &'static [Parameter]) -> Description {
    Description { name, kind: Kind::Sink, gives: Gives::Nothing, parameters, ..Description::EMPTY }
}

const FILE: Parameter = Parameter::needed("file", Type::Path, "the file");
const RX: Description = Description {
    takes_filter: true,
    attaches: Some(attach),
    ..source(
        "rx",
        Form::Frame,
        &[Parameter::optional("interface", Type::Text, "where").positional()],
    )
};
/// A program stands at one interface.
fn attach(arguments: &Arguments) -> Result<Attach, String> {
    let interface = arguments.text("interface").ok_or("a program stands at one interface")?;
    let interface = interface.to_owned();
    Ok(Attach { interface, netns: None, side: Side::Received, takes: false })
}

const REPLAY: Description = source("replay", Form::Frame, &[FILE]);
const READ: Description = source(
    "read",
    Form::Bytes,
    &[FILE, Parameter::named("block", Type::SIZE, "64k", "how long a block is")],
);
const PRINT: Description = sink("print", &[]);
const DISCARD: Description =
    Description { reads: Reads::Nothing, kernel: Some(PLAIN), ..sink("discard", &[]) };
const PCAP: Description = Description { writes_files: true, ..sink("pcap", &[FILE]) };

const EXEC: Description = Description {
    name: "exec",
    kind: Kind::Editing,
    gives: Gives::Form(Form::Bytes),
    parameters: &[Parameter::needed("command", Type::Text, "the command")],
    process: true,
    ..Description::EMPTY
};
const EXEC_AT_HEAD: Description = Description { kind: Kind::Source, takes: Forms::NONE, ..EXEC };

/// What passes blocks on, so that a cycle can be drawn.
const AROUND: Description =
    Description { name: "around", user: Some(around), ..Description::EMPTY };

fn around(_: &Arguments) -> Result<Filter, Mistake> {
    Err(Mistake {
        parameter: None,
        which: 0,
        at: None,
        what: "is never made".to_owned(),
        hint: None,
    })
}

/// The filters of the house, with sources and sinks made up for the planner.
struct World(List<'static>);

impl Catalogue for World {
    fn find(&self, name: &str) -> Option<&'static Description> {
        self.0.find(name)
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        self.0.find_source(name)
    }

    fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    fn spaces(&self) -> Vec<&str> {
        self.0.spaces()
    }

    fn refuses(&self, _: &Description, _: &Arguments) -> Option<Mistake> {
        None
    }
}

fn entries() -> Vec<&'static Description> {
    let mut entries: Vec<&'static Description> =
        vec![&RX, &REPLAY, &READ, &EXEC_AT_HEAD, &EXEC, &AROUND];
    entries.extend(filter::catalog::FILTERS);
    entries.extend([&PRINT, &DISCARD, &PCAP]);
    entries
}

fn machine(name: &str) -> Machine {
    match name {
        "example" => Machine::example(),
        "open kernel" => Machine::with_kernel(),
        "small cache" => Machine { l2: 64 << 10, ..Machine::example() },
        _ => panic!("no machine is called `{name}`"),
    }
}

struct Case {
    path: PathBuf,
    head: String,
    machine: Machine,
    request: String,
    expected: String,
}

fn case(path: &Path) -> Case {
    let text = fs::read_to_string(path).expect("a plan");
    let (head, expected) = text.split_once("----\n").unwrap_or((&text, ""));
    let (comments, rest) = head.split_once("machine: ").expect("the machine is named");
    assert!(comments.lines().all(|line| line.starts_with('#')), "{}", path.display());
    let (name, request) = rest.split_once('\n').expect("a request follows");
    Case {
        path: path.to_owned(),
        head: head.to_owned(),
        machine: machine(name),
        request: request.trim_end().to_owned(),
        expected: expected.to_owned(),
    }
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).expect("the plans").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "plan"))
        .map(|p| case(p))
        .collect()
}

fn planned(case: &Case) -> Result<Plan, String> {
    let entries: &'static [&'static Description] = entries().leak();
    let world = World(List { entries, spaces: &["kernel", "thread*"] });
    let (graph, mistakes) = pipeline::read(&case.request, &world);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&case.request, &mistakes, false));
    plan(graph.clone(), &world, &case.machine)
        .map_err(|refused| explain::unplaceable(&graph, &refused))
}

#[test]
fn every_plan_is_explained_as_it_was() {
    let cases = cases();
    assert!(cases.len() >= 12, "the plans are there");
    for case in cases {
        let text = match planned(&case) {
            Ok(plan) => explain::text(&plan, &case.machine),
            Err(text) => text,
        };
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&case.path, format!("{}----\n{text}", case.head)).unwrap();
            continue;
        }
        assert_eq!(text, case.expected, "{}", case.path.display());
        for line in text.lines() {
            assert!(line.chars().count() <= explain::COLUMNS, "{}: {line}", case.path.display());
        }
    }
}

fn named(name: &str) -> Case {
    cases().into_iter().find(|case| case.path.ends_with(name)).expect("a plan of this name")
}

#[test]
fn o9_what_the_kernel_refuses_runs_in_the_next_space_and_explain_says_why() {
    let case = named("22-kernel-only.plan");
    let first = planned(&case).unwrap();
    let node = |name: &str| first.graph.ids().find(|(_, n)| n.name() == name).unwrap().0;
    assert!(first.graph.ids().all(|(id, _)| first.space_of(id).kind == SpaceKind::Kernel));
    assert_eq!(first.programs[0].steps.len(), 4);
    let why = "R2 invalid mem access 'scalar'".to_owned();
    let refused = [Refused { node: node("dport"), why: why.clone() }];
    let second = first.again(&case.machine, &refused).unwrap().unwrap();
    for (name, kind) in [("udp", SpaceKind::Kernel), ("dport", SpaceKind::Thread)] {
        assert_eq!(second.space_of(node(name)).kind, kind, "{name}");
    }
    assert_eq!((second.programs[0].steps.len(), second.programs[0].leaves.len()), (1, 1));
    assert_eq!(second.reports, first.reports);
    let text = explain::text(&second, &case.machine)
        .replace("\n                                                         ", " ");
    assert!(text.contains(&format!("kernel: {why}")), "{text}");
    assert!(text.contains("kernel: behind `dport`, which the kernel refused"), "{text}");
    assert!(second.again(&case.machine, &refused).is_none(), "nothing new");
    let all = [Refused { node: node("rx"), why: "no such interface".to_owned() }];
    let third = second.again(&case.machine, &all).unwrap().unwrap();
    assert!(third.programs.is_empty() && third.pushed.len() == 1);
    assert!(third.graph.ids().all(|(id, _)| third.space_of(id).kind == SpaceKind::Thread));
}

#[test]
fn o6_lines_that_begin_alike_are_one_program() {
    let plan = planned(&named("24-shared-prefix.plan")).unwrap();
    let [program] = &plan.programs[..] else { panic!("{:?}", plan.programs) };
    assert_eq!(program.sources.len(), 2);
    let nodes: Vec<usize> = program.steps.iter().map(|step| step.nodes.len()).collect();
    assert_eq!(nodes, [2, 1, 1, 1], "`bpf` is one, what follows it is not");
    let froms: Vec<_> = program.steps.iter().map(|step| step.from).collect();
    assert_eq!(froms, [None, Some(0), Some(0), Some(2)]);
    let leave = &program.leaves[..];
    assert!(leave.len() == 1 && leave[0].from == Some(1) && leave[0].classes.contains(53));
    assert!(!leave[0].classes.contains(54));
}

#[test]
fn every_node_and_edge_is_in_the_dot_form() {
    for case in cases() {
        let Ok(plan) = planned(&case) else { continue };
        let dot = explain::dot(&plan);
        let edges = dot.lines().filter(|line| line.contains(" -> ")).count();
        assert_eq!(edges, plan.graph.edges.len());
        let outer = plan.graph.ids().filter(|(_, node)| node.inside.is_none()).count();
        assert_eq!(
            dot.lines().filter(|line| line.trim_start().starts_with('n')).count(),
            outer + edges + 1
        );
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }
}

#[test]
fn what_is_asked_ahead_is_in_every_form() {
    let plan = planned(&named("19-asked-ahead.plan")).unwrap();
    assert_eq!(explain::dot(&plan).matches("xlabel=\"in the kernel too\"").count(), 3);
    let asked: Vec<_> = plan.pushed.iter().map(|p| plan.ahead(p.source).unwrap()).collect();
    let asked: Vec<_> = asked.iter().filter_map(|given| given.text("expression")).collect();
    assert_eq!(asked, ["tcp port 80", "udp", "udp", "arp", "arp"]);
    let hosts: Vec<String> = (0..200).map(|n| format!("host 10.0.0.{n}")).collect();
    let request = format!("rx | bpf \"{}\" | discard", hosts.join(" or "));
    let long = Case { request, ..named("19-asked-ahead.plan") };
    let text = explain::text(&planned(&long).unwrap(), &long.machine);
    let except = "\n   of devices without an Ethernet header everything enters, ";
    assert!(text.contains(except), "{text}");
    let plan = planned(&named("20-not-asked-ahead.plan")).unwrap();
    assert!(!explain::dot(&plan).contains("in the kernel too"));
    assert_eq!(plan.pushed.len(), 6);
    assert!(plan.pushed.iter().all(|p| p.filter.is_err() && plan.ahead(p.source).is_none()));
    assert!(explain::help(&RX).contains("    asks ahead    what the first filter behind it asks"));
    let bpf = filter::catalog::FILTERS.iter().find(|entry| entry.name == "bpf").unwrap();
    assert!(explain::help(bpf).contains("    asked ahead   by the source before it"));
}

#[test]
fn every_filter_has_a_help_text() {
    for entry in filter::catalog::FILTERS {
        let help = explain::help(entry);
        assert!(help.starts_with(entry.name) && help.contains("Example\n"), "{help}");
        for parameter in entry.parameters {
            assert!(help.contains(&format!("    {}", parameter.name)), "{help}");
        }
        assert!(help.lines().all(|l| l.chars().count() <= 104 && !l.ends_with(' ')), "{help}");
    }
}
