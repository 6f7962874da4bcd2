//! `bench walk`: how many blocks a thread walks at once. FEATURES K2 [SL §6.2, Th §5.2.1]
//!
//! Captures of short blocks and of long ones are replayed out of the page cache through few filters
//! and through many: cheap ones, which look at a byte; different ones, whose code is not one
//! another's; ones that look at every byte; and the headers and requests of a web server. Block by
//! block (`--batch=1`) is the sources' depth first; the more at once, the more it is filter by
//! filter. What the planner chooses, 64, is judged against the best of all that were tried.
//!
//! `replay` puts pieces of 256 KB into memory and walks what is in one, so that it never gives
//! many long blocks at once. What they cost, and what a call for more than the 64 blocks of a
//! batch would bring, is shown by hand: filters alone, with neither a walk nor a source around
//! them ([`order`]).

mod order;

use crate::folder::Folder;
use crate::harness::{Better, Candidate, Goal, Samples, in_turn, is_wanted, median, rows};
use crate::line::outcome;
use crate::options::Options;
use crate::replay::made;
use crate::row::Row;
use std::path::Path;

/// The candidates: the name, and the option of the request.
const TRIED: [(&str, &str); 5] = [
    (CHOSEN, ""),
    ("32", "--batch=32"),
    ("16", "--batch=16"),
    ("8", "--batch=8"),
    ("1", "--batch=1"),
];
/// A full batch, which is what is chosen where the request says nothing.
const CHOSEN: &str = "64";
/// Bytes of a block: the shortest frames, the longest of a cable, and longer ones that a network
/// card has joined.
const LENGTHS: [u64; 4] = [64, 1_500, 16_000, 64_000];
/// Bytes and blocks of a capture at most.
const BYTES: u64 = 64 << 20;
const BLOCKS: u64 = 100_000;
/// Bytes of the capture with requests in it.
const MIXED: u64 = 64 << 20;
/// The largest distance of the choice from the best.
const WITHIN: f64 = 1.0 / 1.1;

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
/// The filters of a chain, its name, and its length.
const CHAINS: [(&[&str], &str, &[usize]); 3] = [
    (CHEAP, "cheap", &[2, 8, 32]),
    (DIFFERENT, "different", &[8, 32]),
    (EVERY_BYTE, "every byte", &[2, 8, 32]),
];

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    // Everything on one processor: what is measured is its caches.
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
                all.extend(judged(&row, CHOSEN, by_hand, options)?);
            }
        }
    }
    Ok(all)
}

/// So many filters in a row, of these kinds in turn.
fn chain(kinds: &[&str], filters: usize) -> String {
    kinds.iter().copied().cycle().take(filters).collect::<Vec<_>>().join(" ")
}

/// The rows of a line: millions of blocks per second with each number of blocks at once.
fn line(row: &str, file: &Path, filters: &str, options: &Options) -> Result<Vec<Row>, String> {
    if !is_wanted(row) {
        return Ok(Vec::new());
    }
    let candidates = TRIED.map(|(name, asked)| {
        let text = format!("{asked} replay {} | {filters} discard", file.display());
        // What ran before leaves the caches to the first run.
        let measure = move || rate(&text).and_then(|_| rate(&text));
        Candidate { name, measure: Box::new(measure) }
    });
    judged(row, CHOSEN, candidates.into(), options)
}

/// Millions of blocks per second of a line, whose first filter has to see all of them.
fn rate(text: &str) -> Result<f64, String> {
    let outcome = outcome(text)?;
    let given: u64 = outcome.ledger.sources.iter().map(|(_, seen)| seen.given.blocks).sum();
    let seen = outcome.ledger.filters.iter().map(|node| node.taken.blocks).max().unwrap_or(0);
    if given == 0 || seen != given {
        return Err(format!(
            "{given} blocks came, and no filter of `{text}` took more than {seen}"
        ));
    }
    Ok(given as f64 * 1e3 / outcome.elapsed_ns as f64)
}

/// Measures the candidates in turn, and judges one against the best of the others.
fn judged(
    row: &str,
    one: &str,
    candidates: Vec<Candidate<'_>>,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let (sentinel_ns, samples) = in_turn(options.rounds, candidates)?;
    let goals: Vec<Goal> = goal(&samples, one).into_iter().collect();
    Ok(rows(("walk", row, f64::NAN), ("Mblocks/s", Better::More), sentinel_ns, &samples, &goals))
}

/// This candidate is to be within a tenth of the best of the others.
fn goal(samples: &[Samples], one: &str) -> Option<Goal> {
    let judged = samples.iter().find(|samples| samples.name == one)?;
    let others = samples.iter().filter(|samples| samples.name != one);
    let best = others.max_by(|a, b| median(&a.values).total_cmp(&median(&b.values)))?;
    Some(Goal { candidate: judged.name, reference: best.name, goal: "K2", target: WITHIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_choice_is_judged_against_the_best_candidate() {
        let samples = [("64", 9.0), ("32", 8.0), ("8", 10.0), ("1", 2.0)]
            .map(|(name, value)| Samples { name, values: vec![value; 3] });
        let goal = goal(&samples, CHOSEN).unwrap();
        assert_eq!((goal.candidate, goal.reference), ("64", "8"));
        assert_eq!(crate::line::planned("generate | discard").unwrap().at_once.most, 64);
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
