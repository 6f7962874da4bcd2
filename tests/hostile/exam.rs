//! The exam of one run: a broken capture in, an outcome out, and what must hold between them.

use crate::line::Line;
use crate::mutate::Mutation;
use endpoint::Seen;
use engine::build::BuildError;
use engine::run::Outcome;
use runtime::failure::{Cause, PathFailure};
use std::collections::BTreeSet;
use std::path::Path;

/// The packets of a capture, as the reader of captures alone finds them.
pub(crate) struct Expected {
    /// Packets that can be read.
    packets: u64,
    /// The mistake behind them.
    fault: Option<String>,
    /// More link types than one, which one file of `pcap` cannot hold.
    mixed: bool,
}

impl Expected {
    /// Reads a capture that is whole in memory.
    pub(crate) fn of(capture: &[u8]) -> Self {
        let mut expected = Self { packets: 0, fault: None, mixed: false };
        let mut links = BTreeSet::new();
        for packet in wire::capture::packets(capture) {
            match packet {
                Ok((packet, _)) => {
                    expected.packets += 1;
                    links.insert(packet.link.0);
                }
                Err(fault) => expected.fault = Some(fault.to_string()),
            }
        }
        if capture.is_empty() {
            expected.fault = Some("it is empty".to_owned());
        }
        expected.mixed = links.len() > 1;
        expected
    }
}

/// Runs a line over the capture that lies in its file; answers the processor time in ns.
pub(crate) fn examine(line: &Line, expected: &Expected) -> Result<u64, String> {
    let begin = sys::clock::thread();
    let outcome = line.alone();
    let spent = sys::clock::thread().saturating_sub(begin);
    let replays = line.text.starts_with("replay");
    match outcome {
        Err(BuildError::Outside { failure, .. }) if replays => {
            refused(&failure.to_string(), expected)
        }
        Err(error) => Err(error.to_string()),
        Ok(outcome) => ran(&outcome, replays, expected),
    }?;
    Ok(spent)
}

/// A capture whose very beginning is broken is refused before anything runs.
fn refused(why: &str, expected: &Expected) -> Result<(), String> {
    match &expected.fault {
        Some(fault) if expected.packets == 0 && why.contains(fault) => Ok(()),
        fault => Err(format!("refused: {why}; a reader says {fault:?} after {}", expected.packets)),
    }
}

fn ran(outcome: &Outcome, replays: bool, expected: &Expected) -> Result<(), String> {
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(format!("the ledger: {imbalance}"));
    }
    let unexpected = |failure: &&PathFailure| match &failure.cause {
        Cause::Outside(_) if failure.node == "pcap" => !expected.mixed,
        Cause::Outside(_) => !replays || failure.node != "replay" || expected.fault.is_none(),
        Cause::Ring(_)
        | Cause::Panic { .. }
        | Cause::Program(_)
        | Cause::Unseen(_)
        | Cause::Elsewhere { .. } => true,
    };
    if let Some(failure) = outcome.failures.iter().find(unexpected) {
        return Err(failure.to_string());
    }
    if !replays || outcome.failures.iter().any(|failure| failure.node == "pcap") {
        return Ok(());
    }
    let given = |(_, seen): &(String, Seen)| seen.given.blocks;
    let (sources, given) = (&outcome.ledger.sources, outcome.ledger.sources.iter().map(given));
    let wanted = expected.packets * sources.len() as u64;
    let given: u64 = given.sum();
    if given != wanted {
        return Err(format!("{given} packets came and {wanted} can be read"));
    }
    let told: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
    match &expected.fault {
        Some(fault) if told.is_empty() => Err(format!("{fault}: and nobody was told")),
        // A record may state a length that no buffer of ours holds, wherever the capture ends.
        Some(fault) if !told.iter().all(|t| t.contains(fault) || t.contains("larger buffers")) => {
            Err(format!("{fault}: and {told:?} was told"))
        }
        _ => Ok(()),
    }
}

/// Formats a failure with all that is needed to repeat it.
pub(crate) fn report(why: &str, line: &Line, path: &Path, mutation: Mutation) -> String {
    format!("{}\n  of {}, {mutation}:\n  {why}", line.text, path.display())
}
