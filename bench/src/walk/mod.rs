//! `bench walk`: the number of blocks that a thread walks at once. FEATURES K2 [SL §6.2, Th §5.2.1]
//!
//! Captures of short and of long blocks are replayed from the page cache through few and through
//! many filters: cheap ones, which read a byte; different ones, with separate code; ones that read
//! every byte; and those for headers and requests of a web server. Block by block (`--batch=1`) is
//! the papers' depth-first order; larger batches approach filter by filter. The planner's choice,
//! 64, is compared with the best of all.
//!
//! `replay` reads pieces of 256 KB into memory and walks the blocks of one piece, so it never has
//! many long blocks at once. Their cost, and the gain of a call for more than the 64 blocks of a
//! batch, is measured with filters alone, without walk and source ([`order`]).

mod order;

use crate::folder::Folder;
use crate::harness::{
    Better, Candidate, Goal, Samples, is_wanted, measure_interleaved, median, rows,
};
use crate::line::outcome;
use crate::options::Options;
use crate::replay::made;
use crate::row::Row;
use std::path::Path;

/// The candidates: name, and option of the request.
const CANDIDATES: [(&str, &str); 5] = [
    (DEFAULT, ""),
    ("32", "--batch=32"),
    ("16", "--batch=16"),
    ("8", "--batch=8"),
    ("1", "--batch=1"),
];
/// The name of the default: a full batch.
const DEFAULT: &str = "64";
/// Block sizes in bytes: the shortest frames, the longest of Ethernet, and longer ones that a
/// network card has merged.
const LENGTHS: [u64; 4] = [64, 1_500, 16_000, 64_000];
/// Maximum size of a capture in bytes, and maximum number of blocks.
const BYTES: u64 = 64 << 20;
const BLOCKS: u64 = 100_000;
/// Size of the capture with requests in bytes.
const MIXED: u64 = 64 << 20;
/// Lowest allowed ratio of the choice to the best candidate.
const RATIO_MIN: f64 = 1.0 / 1.1;

const CHEAP: &[&str] = &["match hex=02 at=0 |all"];
const EVERY_BYTE: &[&str] = &["match hex=ffffffff |all"];
const DIFFERENT: &[&str] = &[
    "ipproto |all",
    "sport |all",
    "dport |all",
    "bpf udp |all",
    "match hex=02 at=0 |all",
    "bpf 'port 9' |all",
    "sample 1 |all",
    "hist of=length |all",
];
/// The filters of a chain, its name, and its lengths.
const CHAINS: [(&[&str], &str, &[usize]); 3] = [
    (CHEAP, "cheap", &[2, 8, 32]),
    (DIFFERENT, "different", &[8, 32]),
    (EVERY_BYTE, "every byte", &[2, 8, 32]),
];

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    // Everything on one processor, whose caches are measured.
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    let folder = Folder::new("walk").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for length in LENGTHS {
        let (file, count) = (folder.0.join(format!("{length}.pcap")), BLOCKS.min(BYTES / length));
        let path = file.display();
        outcome(&format!("generate count={count} size={length} seq=yes | pcap {path}"))?;
        for (kinds, name, counts) in CHAINS {
            for filters in counts {
                let row = format!("{filters} {name}, {length} B");
                all.extend(line(&row, &file, &chain(kinds, *filters), options)?);
            }
        }
    }
    let file = folder.0.join("mixed.pcap");
    made("mixed", &file, MIXED)?;
    all.extend(line("ip | tcp | http", &file, "ip | tcp | http |all", options)?);
    for (kinds, name, filters) in [(DIFFERENT, "different", 32), (EVERY_BYTE, "every byte", 8)] {
        for length in LENGTHS {
            let row = format!("by hand, {filters} {name}, {length} B");
            if is_wanted(&row) {
                let text = chain(kinds, filters);
                let by_hand = order::candidates(&text, length)?;
                all.extend(judged(&row, DEFAULT, by_hand, options)?);
            }
        }
    }
    Ok(all)
}

/// Returns a chain of `filters` filters, taken from `kinds` in rotation.
fn chain(kinds: &[&str], filters: usize) -> String {
    kinds.iter().copied().cycle().take(filters).collect::<Vec<_>>().join(" ")
}

/// Measures a request: millions of blocks per second for each batch size.
fn line(row: &str, file: &Path, filters: &str, options: &Options) -> Result<Vec<Row>, String> {
    if !is_wanted(row) {
        return Ok(Vec::new());
    }
    let candidates = CANDIDATES.map(|(name, asked)| {
        let text = format!("{asked} replay {} | {filters} discard", file.display());
        // The first run fills the caches.
        let measure = move || rate(&text).and_then(|_| rate(&text));
        Candidate { name, measure: Box::new(measure) }
    });
    judged(row, DEFAULT, candidates.into(), options)
}

/// Runs a request, whose first filter must receive all blocks; returns millions of blocks per
/// second.
fn rate(text: &str) -> Result<f64, String> {
    let outcome = outcome(text)?;
    let given: u64 = outcome.ledger.sources.iter().map(|(_, observed)| observed.given.blocks).sum();
    let observed = outcome.ledger.filters.iter().map(|node| node.taken.blocks).max().unwrap_or(0);
    if given == 0 || observed != given {
        return Err(format!(
            "{given} blocks came, and no filter of `{text}` took more than {observed}"
        ));
    }
    Ok(given as f64 * 1e3 / outcome.elapsed_ns as f64)
}

/// Measures the candidates, interleaved, and compares `one` with the best of the others.
fn judged(
    row: &str,
    one: &str,
    candidates: Vec<Candidate<'_>>,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goals: Vec<Goal> = goal(&samples, one).into_iter().collect();
    Ok(rows(("walk", row, f64::NAN), ("Mblocks/s", Better::More), sentinel_ns, &samples, &goals))
}

/// Returns the goal that the candidate `one` is within a tenth of the best of the others; `None`
/// without others.
fn goal(samples: &[Samples], one: &str) -> Option<Goal> {
    let judged = samples.iter().find(|samples| samples.name == one)?;
    let others = samples.iter().filter(|samples| samples.name != one);
    let best = others.max_by(|a, b| median(&a.values).total_cmp(&median(&b.values)))?;
    Some(Goal { candidate: judged.name, reference: best.name, goal: "K2", target: RATIO_MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_choice_is_judged_against_the_best_candidate() {
        let samples = [("64", 9.0), ("32", 8.0), ("8", 10.0), ("1", 2.0)]
            .map(|(name, value)| Samples { name, values: vec![value; 3] });
        let goal = goal(&samples, DEFAULT).unwrap();
        assert_eq!((goal.candidate, goal.reference), ("64", "8"));
        assert_eq!(crate::line::planned("generate | discard").unwrap().batch.max, 64);
        let rows = rows(("walk", "r", 0.0), ("x", Better::More), 0.0, &samples, &[goal]);
        let last = rows.last().unwrap();
        assert_eq!((last.goal, last.ratio), (Some("K2"), 0.9));
        assert!(last.target.unwrap() > 0.9, "a tenth of the best is less than that");
    }

    #[test]
    fn chain_alternates_its_kinds() {
        assert_eq!(chain(&["a |all", "b |all"], 3), "a |all b |all a |all");
    }
}
