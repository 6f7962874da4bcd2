//! Copies that come and go while a path runs.

use crate::common::{LONG, during, edit, given, numbers, on, set};
use engine::change::{Switched, reshape};
use engine::live::Live;
use pipeline::plan::{Costs, FilterCost, Machine};

/// A machine on which a filter costs so much that it is shared out among so many.
fn machine(processors: usize) -> Machine {
    let mut costs = Costs::default();
    for filter in ["match", "compress"] {
        let filter = filter.to_owned();
        costs.put(FilterCost { filter, kernel: false, block: 50_000.0, byte: 0.0 });
    }
    Machine { processors, costs, ..Machine::example() }
}

/// Shares the work out among so many, or among none; nothing may happen to any block.
fn share(live: &Live, processors: usize) -> Switched {
    let switched = reshape(live, (&[], processors > 1), &machine(processors), LONG);
    let switched = switched.unwrap_or_else(|why| panic!("{processors}: {why}"));
    assert_eq!(
        (switched.lost, switched.duplicated, switched.reordered),
        (0, 0, 0),
        "{processors}: {switched}"
    );
    switched
}

fn copies(live: &Live) -> usize {
    live.plan().expect("a plan").copied.iter().map(|copied| copied.spaces.len()).sum()
}

#[test]
fn n1_v13_copies_come_and_go_while_blocks_do() {
    // What the request says runs here once: it is the machine that is told otherwise.
    let text = "--parallel=latency generate rate=20000 seq=yes | inspect | match hex=ff \
                |all pcap@thread0 copies";
    let ((), outcome) = during(text, |live| {
        for processors in [2, 1, 3, 1, 2, 3, 1] {
            on(live, 200);
            share(live, processors);
            let wanted = if processors == 1 { 0 } else { processors };
            assert_eq!(copies(live), wanted);
            assert_eq!(live.text().as_deref(), Some(text), "nobody asked for anything else");
        }
        on(live, 200);
        share(live, 2);
        on(live, 200);
    });
    assert!(numbers("copies").into_iter().eq(0..given(&outcome)), "each once, in order");
    let lines = outcome.ledger.filters.iter().filter(|node| node.name == "match");
    let taken: Vec<u64> = lines.map(|node| node.taken.blocks).collect();
    assert_eq!(taken, [given(&outcome)], "one line, whichever copy it was");
}

#[test]
fn n1_v13_a_line_with_copies_is_edited() {
    let text = "--parallel=latency generate rate=20000 seq=yes | inspect | match hex=ff \
                |all pcap edited";
    let ((), outcome) = during(text, |live| {
        on(live, 200);
        share(live, 2);
        on(live, 200);
        set(live, "insert dport before match");
        assert_eq!(copies(live), 0, "they go, and come again when it pays");
        on(live, 200);
        share(live, 2);
        assert_eq!(copies(live), 2);
        on(live, 200);
        set(live, "remove match");
        on(live, 200);
        assert_eq!(copies(live), 0);
        let why = reshape(live, (&[], true), &machine(2), LONG).expect_err("nothing costs much");
        assert!(why.to_string().contains("worth a copy"), "{why}");
        assert!(edit(live, "remove match").is_err());
    });
    assert!(numbers("edited").into_iter().eq(0..given(&outcome)), "each once, in order");
}
