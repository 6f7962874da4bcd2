//! Complete runs of requests. The text passes through the parser, the checks and the planner, as
//! for a user, and the ledger must balance after the run.

use crate::copying_endpoints;
use crate::parallel::WORK_FILTER;
use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, run_in_calling_thread};
use filter::{Description, EndpointFacts};
use pipeline::Registry;
use pipeline::plan::{Machine, Plan, plan};

/// The built-in catalog with the sources, the sinks and the filter of the benches.
struct BenchCatalog;

impl Registry for BenchCatalog {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let own =
            copying_endpoints::SINKS.iter().map(|entry| entry.description).find(|d| d.name == name);
        let work = Some(&WORK_FILTER).filter(|known| known.name == name);
        own.or(work).or_else(|| MachineRegistry::Local.find(name))
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        MachineRegistry::Local.find_filter(name).or_else(|| self.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let own = copying_endpoints::SOURCES
            .iter()
            .map(|entry| entry.description)
            .find(|d| d.name == name);
        own.or_else(|| MachineRegistry::Local.find_source(name))
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts {
        MachineRegistry::Local.endpoint_facts(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        MachineRegistry::Local.names()
    }

    fn spaces(&self) -> Vec<&str> {
        MachineRegistry::Local.spaces()
    }
}

/// Plans a request for the example machine.
pub(crate) fn plan_request(text: &str) -> Result<Plan, String> {
    plan_for_machine(text, &Machine::example())
}

/// Plans a request for the given machine.
pub(crate) fn plan_for_machine(text: &str, machine: &Machine) -> Result<Plan, String> {
    let (graph, mistakes) = pipeline::read_request(text, &BenchCatalog);
    if mistakes.iter().any(|mistake| mistake.is_error()) {
        return Err(pipeline::render(text, &mistakes, false));
    }
    plan(graph, &BenchCatalog, machine).map_err(|why| why.to_string())
}

/// Runs a request to its end, with all spaces in this thread, and returns the outcome. Fails if the
/// ledger does not balance.
pub(crate) fn run_request(text: &str) -> Result<RunOutcome, String> {
    run_request_with_settings(text, RunSettings::default())
}

/// Runs a request as [`run_request`] does, with the given settings. The sources and sinks of the
/// benches replace the sources and sinks in the settings.
pub(crate) fn run_request_with_settings(
    text: &str,
    settings: RunSettings,
) -> Result<RunOutcome, String> {
    let plan = plan_request(text)?;
    let settings = RunSettings {
        sources: copying_endpoints::SOURCES,
        sinks: copying_endpoints::SINKS,
        ..settings
    };
    let paths = build(&plan, settings).map_err(|why| why.to_string())?;
    let outcome = run_in_calling_thread(paths);
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    match outcome.ledger.imbalances().first() {
        Some(imbalance) => Err(imbalance.to_string()),
        None => Ok(outcome),
    }
}

/// Runs a request. Returns the number of blocks from its sources and the time per block, as text.
pub(crate) fn measure_cost_per_block(text: &str) -> Result<String, String> {
    let outcome = run_request(text)?;
    let blocks: u64 =
        outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let ns = outcome.elapsed_ns as f64 / blocks.max(1) as f64;
    Ok(format!("{blocks} blocks, {ns:.2} ns each, {:.1} M blocks/s", 1e3 / ns))
}
