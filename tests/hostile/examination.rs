//! Examination of one request: runs it over a possibly mutated capture, and checks the invariants
//! of its outcome.

use crate::mutation::Mutation;
use crate::request::PlannedRequest;
use endpoint::SourceCounters;
use engine::build::BuildError;
use engine::run::RunOutcome;
use runtime::failure::{FailureCause, PathFailure};
use std::collections::BTreeSet;
use std::path::Path;

/// The packets that a capture contains according to the capture reader.
pub(crate) struct ExpectedPackets {
    /// Number of packets that the capture reader returns before the first error, or all packets.
    packets: u64,
    /// The reader's error after the readable packets, or `None` if the whole file is readable.
    fault: Option<String>,
    /// True if the capture has several link types, which a pcap file cannot represent.
    has_mixed_link_types: bool,
}

impl ExpectedPackets {
    /// Reads all packets of a capture, given the bytes of its file.
    pub(crate) fn read(capture: &[u8]) -> Self {
        let mut expected = Self { packets: 0, fault: None, has_mixed_link_types: false };
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
        expected.has_mixed_link_types = links.len() > 1;
        expected
    }
}

/// Runs a request that replays a capture, and checks its outcome against the packets `expected` in
/// the capture. Returns the processor time in ns, or a description of the violated invariant.
pub(crate) fn examine_request(
    line: &PlannedRequest,
    expected: &ExpectedPackets,
) -> Result<u64, String> {
    let begin = sys::clock::thread_cpu_ns();
    let outcome = line.run_sequential();
    let spent = sys::clock::thread_cpu_ns().saturating_sub(begin);
    let replays = line.text.starts_with("replay");
    match outcome {
        Err(BuildError::Outside { failure, .. }) if replays => {
            check_broken_header_refusal(&failure.to_string(), expected)
        }
        Err(error) => Err(error.to_string()),
        Ok(outcome) => check_outcome(&outcome, replays, expected),
    }?;
    Ok(spent)
}

/// Checks that the request was refused only because the header of the capture is broken.
fn check_broken_header_refusal(why: &str, expected: &ExpectedPackets) -> Result<(), String> {
    match &expected.fault {
        Some(fault) if expected.packets == 0 && why.contains(fault) => Ok(()),
        fault => Err(format!("refused: {why}; a reader says {fault:?} after {}", expected.packets)),
    }
}

fn check_outcome(
    outcome: &RunOutcome,
    replays: bool,
    expected: &ExpectedPackets,
) -> Result<(), String> {
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(format!("the ledger: {imbalance}"));
    }
    let unexpected = |failure: &&PathFailure| match &failure.cause {
        FailureCause::Endpoint(_) if failure.node == "pcap" => !expected.has_mixed_link_types,
        FailureCause::Endpoint(_) => {
            !replays || failure.node != "replay" || expected.fault.is_none()
        }
        FailureCause::Ring(_)
        | FailureCause::Panic { .. }
        | FailureCause::Program(_)
        | FailureCause::ExitUnknown(_)
        | FailureCause::OtherProcess { .. } => true,
    };
    if let Some(failure) = outcome.failures.iter().find(unexpected) {
        return Err(failure.to_string());
    }
    if !replays || outcome.failures.iter().any(|failure| failure.node == "pcap") {
        return Ok(());
    }
    let given = |(_, counters): &(String, SourceCounters)| counters.given.blocks;
    let (sources, given) = (&outcome.ledger.sources, outcome.ledger.sources.iter().map(given));
    let wanted = expected.packets * sources.len() as u64;
    let given: u64 = given.sum();
    if given != wanted {
        return Err(format!("{given} packets came and {wanted} can be read"));
    }
    let failures: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
    match &expected.fault {
        Some(fault) if failures.is_empty() => Err(format!("{fault}: and nobody was told")),
        // A record may state a length that no buffer holds, wherever the capture ends.
        Some(fault)
            if !failures.iter().all(|t| t.contains(fault) || t.contains("larger buffers")) =>
        {
            Err(format!("{fault}: and {failures:?} was told"))
        }
        _ => Ok(()),
    }
}

/// Formats a failure with everything needed to reproduce it.
pub(crate) fn format_failure(
    why: &str,
    line: &PlannedRequest,
    path: &Path,
    mutation: Mutation,
) -> String {
    format!("{}\n  of {}, {mutation}:\n  {why}", line.text, path.display())
}
