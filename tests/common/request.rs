//! Complete requests: the text is parsed, checked and planned once, and the plan is run as often as
//! a test needs.
//!
//! Input: a request, and test filters that take precedence over those of the catalog. Output: the
//! outcomes; this module asserts nothing about them.

use engine::build::{BuildError, BuiltPath, PathOptions, RunSettings, build, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::path::AdaptationSettings;
use engine::run::{RunOutcome, StopConditions, run, run_in_calling_thread};
use filter::Description;
use pipeline::Registry;
use pipeline::plan::{Machine, Plan, plan};

/// A request that has been parsed, checked and planned, and can be run several times.
pub(crate) struct PlannedRequest {
    /// Text of the request, for messages.
    pub(crate) text: String,
    plan: Plan,
}

impl PlannedRequest {
    /// Plans a request that uses only filters of the catalog.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::with_filters(text, &[])
    }

    /// Plans a request that may also use the given filters.
    pub(crate) fn with_filters(
        text: impl Into<String>,
        filters: &'static [&'static Description],
    ) -> Self {
        Self::plan_on_machine(&Machine::example(), text, filters)
    }

    /// Plans a request for the given machine; the request may also use the given filters.
    pub(crate) fn plan_on_machine(
        machine: &Machine,
        text: impl Into<String>,
        filters: &'static [&'static Description],
    ) -> Self {
        let (text, catalog) = (text.into(), ExtendedCatalog(filters));
        let (graph, mistakes) = pipeline::read_request(&text, &catalog);
        // Warnings are expected here.
        let wrong = mistakes.iter().any(|mistake| mistake.is_error());
        assert!(!wrong, "{}", pipeline::render(&text, &mistakes, false));
        let plan = plan(graph, &catalog, machine);
        let plan = plan.unwrap_or_else(|mistakes| panic!("{text}: {mistakes:?}"));
        Self { text, plan }
    }

    /// Runs the request in the calling thread, with one space after the other.
    pub(crate) fn run_sequential(&self) -> Result<RunOutcome, BuildError> {
        Ok(run_in_calling_thread(self.build(RunSettings::default())?))
    }

    /// Runs the request with a thread for each space.
    pub(crate) fn run_threaded(&self, settings: RunSettings) -> RunOutcome {
        let paths = self.build(settings);
        let paths = paths.unwrap_or_else(|error| panic!("{}: {error}", self.text));
        run(paths, StopConditions::default()).expect("threads")
    }

    /// Runs the request with a thread for each space, while another thread calls `work` with the
    /// running path. Returns the outcome of the request, and the result of `work`.
    pub(crate) fn run_concurrently_with<T: Send>(
        &self,
        settings: RunSettings,
        work: impl FnOnce(&PathHandle) -> T + Send,
    ) -> (RunOutcome, T) {
        let paths = self.build(settings).unwrap_or_else(|error| panic!("{}: {error}", self.text));
        run_with_live_path(paths, work)
    }

    /// Like [`PlannedRequest::run_concurrently_with`], but the path makes the automatic changes
    /// that the request permits.
    pub(crate) fn run_adapting<T: Send>(
        &self,
        machine: &Machine,
        work: impl FnOnce(&PathHandle) -> T + Send,
    ) -> (RunOutcome, T) {
        let extras = PathOptions {
            adaptation: AdaptationSettings::permitted_by(&self.plan, machine),
            ..Default::default()
        };
        let built = build_with_options(
            &self.plan,
            RunSettings::default(),
            &AttachPoints::default(),
            &extras,
        );
        run_with_live_path(built.unwrap_or_else(|error| panic!("{}: {error}", self.text)), work)
    }

    /// Returns the total number of replicas in the plan; 0 if no chain of filters is replicated.
    pub(crate) fn replica_count(&self) -> usize {
        self.plan.replicas.iter().map(|copied| copied.spaces.len()).sum()
    }

    /// Returns the number of spaces in the plan.
    pub(crate) fn space_count(&self) -> usize {
        self.plan.spaces.len()
    }

    fn build(&self, settings: RunSettings) -> Result<Vec<BuiltPath>, BuildError> {
        build(&self.plan, settings)
    }
}

fn run_with_live_path<T: Send>(
    paths: Vec<BuiltPath>,
    work: impl FnOnce(&PathHandle) -> T + Send,
) -> (RunOutcome, T) {
    let live = paths[0].live();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| work(&live));
        let outcome = run(paths, StopConditions::default()).expect("threads");
        (outcome, beside.join().expect("a thread beside the path"))
    })
}

/// The built-in catalog, preceded by the given filters.
struct ExtendedCatalog(&'static [&'static Description]);

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

    fn key_reader(&self) -> Option<std::sync::Arc<dyn filter::KeyReader>> {
        engine::registry::MachineRegistry::Local.key_reader()
    }
}
