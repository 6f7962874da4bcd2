//! Runs a request as a user does: text through parser, checks, planner and catalog, with a balanced
//! ledger.

use crate::doors;
use crate::parallel::WORK;
use engine::build::{Settings, build};
use engine::registry::MachineRegistry;
use engine::run::{Outcome, run_alone};
use filter::{Description, EndpointFacts};
use pipeline::Registry;
use pipeline::plan::{Machine, Plan, plan};

/// The built-in catalog with the sources and sinks of the benches.
struct BenchCatalog;

impl Registry for BenchCatalog {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let own = doors::SINKS.iter().map(|entry| entry.description).find(|d| d.name == name);
        let work = Some(&WORK).filter(|known| known.name == name);
        own.or(work).or_else(|| MachineRegistry::Local.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let own = doors::SOURCES.iter().map(|entry| entry.description).find(|d| d.name == name);
        own.or_else(|| MachineRegistry::Local.find_source(name))
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
        MachineRegistry::Local.endpoint(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        MachineRegistry::Local.names()
    }

    fn spaces(&self) -> Vec<&str> {
        MachineRegistry::Local.spaces()
    }
}

/// Plans a request.
pub(crate) fn planned(text: &str) -> Result<Plan, String> {
    planned_on(text, &Machine::example())
}

/// Plans a request for this machine.
pub(crate) fn planned_on(text: &str, machine: &Machine) -> Result<Plan, String> {
    let (graph, mistakes) = pipeline::read(text, &BenchCatalog);
    if mistakes.iter().any(|mistake| mistake.is_error()) {
        return Err(pipeline::render(text, &mistakes, false));
    }
    plan(graph, &BenchCatalog, machine).map_err(|why| why.to_string())
}

/// Runs a request to its end, all spaces in this thread, and returns the outcome; an error if the
/// ledger does not balance.
pub(crate) fn outcome(text: &str) -> Result<Outcome, String> {
    outcome_with(text, Settings::default())
}

/// Runs a request like [`outcome`], with the given settings, except that the sources and sinks are
/// those of the benches.
pub(crate) fn outcome_with(text: &str, settings: Settings) -> Result<Outcome, String> {
    let plan = planned(text)?;
    let settings = Settings { sources: doors::SOURCES, sinks: doors::SINKS, ..settings };
    let paths = build(&plan, settings).map_err(|why| why.to_string())?;
    let outcome = run_alone(paths);
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    match outcome.ledger.imbalances().first() {
        Some(imbalance) => Err(imbalance.to_string()),
        None => Ok(outcome),
    }
}

/// Runs a request; returns a text with the number of blocks of its sources and the time per block.
pub(crate) fn per_block(text: &str) -> Result<String, String> {
    let outcome = outcome(text)?;
    let blocks: u64 =
        outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let ns = outcome.elapsed_ns as f64 / blocks.max(1) as f64;
    Ok(format!("{blocks} blocks, {ns:.2} ns each, {:.1} M blocks/s", 1e3 / ns))
}
