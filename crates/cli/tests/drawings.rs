//! Tests of `explain --svg` and `--dot`, with and without the figures of a run.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{CommandResult, Folder};
use engine::registry::MachineRegistry;
use pipeline::explain;
use pipeline::plan::{Machine, plan};
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::need;

const REQUEST: &str = "replay examples/web.pcap | tcp | http | pcap out.pcap";
/// The request of the drawing in the book, which is also the first request in the README.
const DRAWN_REQUEST: &str = "rx eth0 both=yes | bpf \"tcp port 80\" | tcp | http |exchange weblog";

#[test]
fn plan_is_drawn_on_standard_output_or_into_files() {
    let folder = Folder::new();
    let ran = folder.run(&["explain", "--svg", REQUEST]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("<svg ") && ran.out.ends_with("</svg>\n"), "{}", ran.out);
    assert!(ran.out.contains(" ns expected") && ran.out.contains("ring of "), "{}", ran.out);
    let ran = folder.run(&["explain", REQUEST, "--dot=plan.dot", "--svg=plan.svg"]);
    assert_eq!((ran.status, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    assert!(folder.read("plan.dot").starts_with("digraph streamline {\n"));
    assert!(folder.read("plan.svg").starts_with("<svg "));
    let ran = folder.run(&["explain", REQUEST, "--svg=no/such/plan.svg"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.contains("cannot write the drawing to no/such/plan.svg"), "{}", ran.err);
}

#[test]
fn book_drawing_equals_the_plan_of_the_first_request() {
    // The plan is made for an example machine, so the drawing is the same on every machine.
    let registry = MachineRegistry::Recorded;
    let (graph, mistakes) = pipeline::read_request(DRAWN_REQUEST, &registry);
    assert!(mistakes.is_empty(), "{}", pipeline::render(DRAWN_REQUEST, &mistakes, false));
    let drawn = explain::format_svg(
        &plan(graph, &registry, &Machine::example_with_kernel()).unwrap(),
        None,
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/pictures/plan.svg");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawn == known, "{} differs; UPDATE=1 rewrites it:\n{drawn}", path.display());
}

#[test]
fn analyzed_drawing_has_rates_costs_and_losses() {
    let folder = Folder::new();
    // No program reads the ring of `user`, so all of its blocks are lost.
    let line = "generate rate=5000 count=400 | (user nobody + pcap out.pcap)";
    let ran = folder.run(&["explain", "--analyze", "--svg=a.svg", "--dot=a.dot", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    for drawing in [folder.read("a.svg"), folder.read("a.dot")] {
        assert!(drawing.contains("lost 400"), "{drawing}");
        assert!(drawing.contains("/s") && drawing.contains(" ns"), "{drawing}");
    }
}

#[test]
fn drawing_and_data_are_not_mixed_on_standard_output() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | count";
    let ran = folder.run(&["explain", "--analyze", "--svg", line]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("--svg=plan.svg"), "{}", ran.err);
}

#[test]
fn drawings_are_read_by_graphviz_and_an_xml_parser() {
    let folder = Folder::new();
    let line = "rx lo | bpf \"tcp port 80 or host 1.2.3.4\" | \
                ((match \"a<b&c\" | count) + (tcp | http | json))";
    let dot = folder.run(&["explain", "--embedded", "--dot", line]).out;
    let svg = folder.run(&["explain", "--embedded", "--svg", line]).out;
    assert!(dot.contains("a<b&c") && svg.contains("a&lt;b&amp;c"), "{dot}{svg}");
    let judges: [(&str, &[&str], &str); 2] = [
        ("dot", &["-Tplain"], &dot),
        (
            "python3",
            &["-c", "import sys,xml.dom.minidom as m;m.parseString(sys.stdin.read())"],
            &svg,
        ),
    ];
    for (program, words, text) in judges {
        let Some(program) = need::require_command(program) else { continue };
        let mut judge = Command::new(program);
        judge.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut judge = judge.spawn().unwrap();
        let mut input = judge.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, text.as_bytes()).unwrap();
        drop(input);
        let judged = CommandResult::from(judge.wait_with_output().unwrap());
        assert_eq!((judged.status, judged.err.as_str()), (Some(0), ""), "{text}");
    }
}
