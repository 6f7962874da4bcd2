//! The built-in catalog with additional test filters, and requests that use it.

use engine::build::{RunSettings, build};
use engine::run::{RunOutcome, StopConditions, run};
use filter::Description;
use pipeline::Registry;
use pipeline::plan::{Machine, plan};

/// The built-in catalog, preceded by the given filters.
pub(crate) struct ExtendedCatalog(pub(crate) &'static [&'static Description]);

impl Registry for ExtendedCatalog {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let own = self.0.iter().copied().find(|entry| entry.name == name);
        own.or_else(|| engine::registry::MachineRegistry::Local.find(name))
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        let own = self.0.iter().copied().find(|entry| entry.name == name);
        own.or_else(|| engine::registry::MachineRegistry::Local.find_filter(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        engine::registry::MachineRegistry::Local.find_source(name)
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static filter::EndpointFacts {
        engine::registry::MachineRegistry::Local.endpoint_facts(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        engine::registry::MachineRegistry::Local.names()
    }

    fn spaces(&self) -> Vec<&str> {
        vec!["kernel", "thread*"]
    }
}

/// Runs a request to its end; asserts that its ledger balances and nothing failed.
pub(crate) fn run_request(text: &str, filters: &'static [&'static Description]) -> RunOutcome {
    let catalog = ExtendedCatalog(filters);
    let (graph, mistakes) = pipeline::read_request(text, &catalog);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &catalog, &Machine::example()).expect("a plan");
    let paths = build(&plan, RunSettings::default()).expect("spaces");
    let outcome = run(paths, StopConditions::default()).expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    outcome
}

/// Returns a counter from the report of a filter.
pub(crate) fn reported_counter(outcome: &RunOutcome, filter: &str, row: &str) -> u64 {
    let report = outcome.reports.iter().find(|r| r.name == filter).expect("a report");
    let row = report.report.rows.iter().find(|(name, _)| name == row);
    row.unwrap_or_else(|| panic!("no such row: {report:?}")).1
}
