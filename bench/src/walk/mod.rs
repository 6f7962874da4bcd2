//! `bench walk`: the effect of the batch size, the number of blocks that a walk of the graph
//! processes together. FEATURES K2 [SL §6.2, Th §5.2.1]
//!
//! Captures of short and of long blocks are replayed from the page cache through few and through
//! many filters: cheap filters, which read one byte; different filters, with separate code; filters
//! that read every byte; and the filters for headers and requests of a web server. Block by block
//! (`--batch=1`) is the papers' depth-first order; larger batches approach filter by filter. The
//! planner's choice, 64, is compared with the best of the other batch sizes.
//!
//! `replay` reads 256 KB at a time and walks the blocks in this range, so it never has many long
//! blocks at once. The cost of many long blocks, and the gain of calls for more than the 64 blocks
//! of a batch, are measured with filters alone, without walk and source ([`hand_written_walk`]).

mod hand_written_walk;

use crate::harness::{
    BetterDirection, Candidate, Goal, Samples, is_row_selected, measure_interleaved, median,
    rows_of_samples,
};
use crate::options::Options;
use crate::replay::write_capture_in_child;
use crate::request_run::run_request;
use crate::row::Row;
use crate::temp_directory::TempDirectory;
use std::path::Path;

/// The batch sizes to compare, each with its name in the result rows and the option that it adds to
/// the request.
const CANDIDATES: [(&str, &str); 5] = [
    (DEFAULT_BATCH_NAME, ""),
    ("32", "--batch=32"),
    ("16", "--batch=16"),
    ("8", "--batch=8"),
    ("1", "--batch=1"),
];
/// Name of the default batch size, a full batch.
const DEFAULT_BATCH_NAME: &str = "64";
/// Block lengths in bytes: the shortest and the longest Ethernet frames, and longer frames that a
/// network card has merged.
const BLOCK_LENGTHS: [u64; 4] = [64, 1_500, 16_000, 64_000];
/// Maximum size of a capture in bytes.
const CAPTURE_SIZE_MAX: u64 = 64 << 20;
/// Maximum number of blocks in a capture.
const CAPTURE_BLOCKS_MAX: u64 = 100_000;
/// Size in bytes of the capture with HTTP requests.
const MIXED_CAPTURE_SIZE: u64 = 64 << 20;
/// Minimum rate with the batch size that the planner chooses, as a fraction of the best candidate's
/// rate.
const CHOICE_RATIO_MIN: f64 = 1.0 / 1.1;

/// The filter of the chain `cheap`, which reads one byte of a block.
const ONE_BYTE_FILTERS: &[&str] = &["match hex=02 at=0 |all"];
/// The filter of a chain that reads every byte of a block.
const EVERY_BYTE_FILTERS: &[&str] = &["match hex=ffffffff |all"];
/// Filters that each run different code, for a chain without repeated code.
const DIFFERENT_FILTERS: &[&str] = &[
    "ipproto |all",
    "sport |all",
    "dport |all",
    "bpf udp |all",
    "match hex=02 at=0 |all",
    "bpf 'port 9' |all",
    "sample 1 |all",
    "hist of=length |all",
];
/// The chains, each with the filters that it repeats, its name in the result rows, and the numbers
/// of filters to measure.
const CHAINS: [(&[&str], &str, &[usize]); 3] = [
    (ONE_BYTE_FILTERS, "cheap", &[2, 8, 32]),
    (DIFFERENT_FILTERS, "different", &[8, 32]),
    (EVERY_BYTE_FILTERS, "every byte", &[2, 8, 32]),
];

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    // Everything runs on the processor whose caches are measured.
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let folder = TempDirectory::new("walk").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for length in BLOCK_LENGTHS {
        let (file, count) = (
            folder.0.join(format!("{length}.pcap")),
            CAPTURE_BLOCKS_MAX.min(CAPTURE_SIZE_MAX / length),
        );
        let path = file.display();
        run_request(&format!("generate count={count} size={length} seq=yes | pcap {path}"))?;
        for (kinds, name, counts) in CHAINS {
            for filters in counts {
                let row = format!("{filters} {name}, {length} B");
                all.extend(measure_request(
                    &row,
                    &file,
                    &repeat_filters(kinds, *filters),
                    options,
                )?);
            }
        }
    }
    let file = folder.0.join("mixed.pcap");
    write_capture_in_child("mixed", &file, MIXED_CAPTURE_SIZE)?;
    all.extend(measure_request("ip | tcp | http", &file, "ip | tcp | http |all", options)?);
    for (kinds, name, filters) in
        [(DIFFERENT_FILTERS, "different", 32), (EVERY_BYTE_FILTERS, "every byte", 8)]
    {
        for length in BLOCK_LENGTHS {
            let row = format!("by hand, {filters} {name}, {length} B");
            if is_row_selected(&row) {
                let text = repeat_filters(kinds, filters);
                let by_hand = hand_written_walk::batch_size_candidates(&text, length)?;
                all.extend(compare_with_best(&row, DEFAULT_BATCH_NAME, by_hand, options)?);
            }
        }
    }
    Ok(all)
}

/// Returns a chain of `filters` filters, taken from `kinds` in rotation.
fn repeat_filters(kinds: &[&str], filters: usize) -> String {
    kinds.iter().copied().cycle().take(filters).collect::<Vec<_>>().join(" ")
}

/// Measures a request with each batch size, in millions of blocks per second.
fn measure_request(
    row: &str,
    file: &Path,
    filters: &str,
    options: &Options,
) -> Result<Vec<Row>, String> {
    if !is_row_selected(row) {
        return Ok(Vec::new());
    }
    let candidates = CANDIDATES.map(|(name, asked)| {
        let text = format!("{asked} replay {} | {filters} discard", file.display());
        // The first run fills the caches.
        let measure = move || measure_rate(&text).and_then(|_| measure_rate(&text));
        Candidate { name, measure: Box::new(measure) }
    });
    compare_with_best(row, DEFAULT_BATCH_NAME, candidates.into(), options)
}

/// Runs a request. Returns the rate in millions of blocks per second. Fails unless one of its
/// filters receives all blocks.
fn measure_rate(text: &str) -> Result<f64, String> {
    let outcome = run_request(text)?;
    let given: u64 = outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let observed = outcome.ledger.filters.iter().map(|node| node.taken.blocks).max().unwrap_or(0);
    if given == 0 || observed != given {
        return Err(format!(
            "{given} blocks came, and no filter of `{text}` took more than {observed}"
        ));
    }
    Ok(given as f64 * 1e3 / outcome.elapsed_ns as f64)
}

/// Measures the candidates, interleaved. A goal compares the candidate `one` with the best of the
/// others.
fn compare_with_best(
    row: &str,
    one: &str,
    candidates: Vec<Candidate<'_>>,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goals: Vec<Goal> = goal_within_a_tenth(&samples, one).into_iter().collect();
    Ok(rows_of_samples(
        ("walk", row, f64::NAN),
        ("Mblocks/s", BetterDirection::More),
        sentinel_ns,
        &samples,
        &goals,
    ))
}

/// Returns the goal that the candidate `one` reaches at least [`CHOICE_RATIO_MIN`] times the best
/// rate of the others. Returns `None` if there are no others.
fn goal_within_a_tenth(samples: &[Samples], one: &str) -> Option<Goal> {
    let judged = samples.iter().find(|samples| samples.name == one)?;
    let others = samples.iter().filter(|samples| samples.name != one);
    let best = others.max_by(|a, b| median(&a.values).total_cmp(&median(&b.values)))?;
    Some(Goal {
        candidate: judged.name,
        reference: best.name,
        goal: "K2",
        target: CHOICE_RATIO_MIN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_choice_is_judged_against_the_best_candidate() {
        let samples = [("64", 9.0), ("32", 8.0), ("8", 10.0), ("1", 2.0)]
            .map(|(name, value)| Samples { name, values: vec![value; 3] });
        let goal = goal_within_a_tenth(&samples, DEFAULT_BATCH_NAME).unwrap();
        assert_eq!((goal.candidate, goal.reference), ("64", "8"));
        assert_eq!(crate::request_run::plan_request("generate | discard").unwrap().batch.max, 64);
        let rows = rows_of_samples(
            ("walk", "r", 0.0),
            ("x", BetterDirection::More),
            0.0,
            &samples,
            &[goal],
        );
        let last = rows.last().unwrap();
        assert_eq!((last.goal, last.ratio), (Some("K2"), 0.9));
        assert!(last.target.unwrap() > 0.9, "a tenth of the best is less than that");
    }

    #[test]
    fn chain_alternates_its_kinds() {
        assert_eq!(repeat_filters(&["a |all", "b |all"], 3), "a |all b |all a |all");
    }
}
