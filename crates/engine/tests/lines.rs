//! Whole lines, from text to ledger, on the bundled capture.

use engine::catalogue::House;
use engine::run::{Outcome, Until};
use engine::{build, run};
use pipeline::plan::{Machine, plan};

fn line(text: &str) -> Outcome {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build::build(&plan, build::Settings::default()).expect("spaces");
    let outcome = run::run(paths, Until::default()).expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    outcome
}

fn capture() -> String {
    format!("{}/../../examples/web.pcap", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn first_light() {
    let outcome = line(&format!(
        "replay '{}' | bpf \"tcp port 80\" | dport |80 count + !bpf \"tcp\" | discard",
        capture()
    ));
    println!("{:#?}", outcome.reports);
}
