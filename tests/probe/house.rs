//! The catalogue of the house with filters of a probe in front, and lines run through all of it.

use engine::build::{Settings, build};
use engine::run::{Outcome, Until, run};
use filter::Description;
use pipeline::Catalogue;
use pipeline::plan::{Machine, plan};

/// The house's catalogue and these filters.
pub(crate) struct With(pub(crate) &'static [&'static Description]);

impl Catalogue for With {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let own = self.0.iter().copied().find(|entry| entry.name == name);
        own.or_else(|| engine::catalogue::House.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        engine::catalogue::House.find_source(name)
    }

    fn endpoint(&self, entry: &Description) -> &'static filter::EndpointFacts {
        engine::catalogue::House.endpoint(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        engine::catalogue::House.names()
    }

    fn spaces(&self) -> Vec<&str> {
        vec!["kernel", "thread*"]
    }
}

/// Runs a line to its end; the ledger balances and nothing failed.
pub(crate) fn line(text: &str, filters: &'static [&'static Description]) -> Outcome {
    let catalogue = With(filters);
    let (graph, mistakes) = pipeline::read(text, &catalogue);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &catalogue, &Machine::example()).expect("a plan");
    let paths = build(&plan, Settings::default()).expect("spaces");
    let outcome = run(paths, Until::default()).expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    outcome
}

/// A number out of the report of a filter.
pub(crate) fn reported(outcome: &Outcome, filter: &str, row: &str) -> u64 {
    let report = outcome.reports.iter().find(|r| r.name == filter).expect("a report");
    let row = report.report.rows.iter().find(|(name, _)| name == row);
    row.unwrap_or_else(|| panic!("no such row: {report:?}")).1
}
