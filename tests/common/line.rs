//! Whole lines: text through parser, checks and planner once, then as often as a test likes through
//! the engine.
//!
//! In: a request, and filters of the test that stand before those of the house. Out: outcomes.
//! Nothing is asserted of a run: that is what the tests are for.

use engine::build::{BuildError, Path, Settings, build};
use engine::run::{Outcome, Until, run, run_alone};
use filter::Description;
use pipeline::Catalogue;
use pipeline::plan::{Machine, Plan, plan};

/// A line that is ready to run.
pub(crate) struct Line {
    /// Standard output.
    pub(crate) text: String,
    plan: Plan,
}

impl Line {
    /// A line of the house's filters.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::with(text, &[])
    }

    /// A line in which these filters may stand too.
    pub(crate) fn with(text: impl Into<String>, filters: &'static [&'static Description]) -> Self {
        let (text, catalogue) = (text.into(), With(filters));
        let (graph, mistakes) = pipeline::read(&text, &catalogue);
        // What it warns of is asked for here.
        let wrong = mistakes.iter().any(|mistake| mistake.is_error());
        assert!(!wrong, "{}", pipeline::render(&text, &mistakes, false));
        let plan = plan(graph, &catalogue, &Machine::example());
        let plan = plan.unwrap_or_else(|mistakes| panic!("{text}: {mistakes:?}"));
        Self { text, plan }
    }

    /// Runs it in this thread, one space after the other.
    pub(crate) fn alone(&self) -> Result<Outcome, BuildError> {
        Ok(run_alone(self.build(Settings::default())?))
    }

    /// Runs it in a thread per space.
    pub(crate) fn threads(&self, settings: Settings) -> Outcome {
        let paths = self.build(settings);
        let paths = paths.unwrap_or_else(|error| panic!("{}: {error}", self.text));
        run(paths, Until::default()).expect("threads")
    }

    /// Returns the number of replicas of the chain that has any.
    pub(crate) fn copies(&self) -> usize {
        self.plan.copied.iter().map(|copied| copied.spaces.len()).sum()
    }

    fn build(&self, settings: Settings) -> Result<Vec<Path>, BuildError> {
        build(&self.plan, settings)
    }
}

/// The house's catalogue with these filters in front.
struct With(&'static [&'static Description]);

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

    fn keys(&self) -> Option<std::sync::Arc<dyn filter::Keys>> {
        engine::catalogue::House.keys()
    }
}
