//! Tests of published filter state (`state=NAME`) during changes to the path. The name and the
//! content of the state must stay with the filter.

use crate::common::{
    TIME_LIMIT, blocks_emitted, edit, edit_losslessly, run_while, wait_for_blocks,
};
use engine::change::change;
use engine::published::TableReader;
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use testkit::wait;

#[test]
fn m3_m4_published_state_survives_upgrades_and_moves() {
    let name = format!("change-{}", std::process::id());
    let other = format!("{name}-other");
    let line = format!(
        "generate seq=yes rate=20000 | count state={name} | sample 1 state={other} | pcap seen"
    );
    let (reader, outcome) = run_while(&line, |live| {
        let (reader, sample) =
            (TableReader::open(&name).unwrap(), TableReader::open(&other).unwrap());
        let blocks = || reader.snapshot().rows.first().map_or(0, |row| row[0]);
        for words in [
            "upgrade count",
            "move count to thread1",
            "upgrade count",
            "insert inspect before count",
            "move count to thread0",
            "remove inspect",
        ] {
            wait_for_blocks(live, 500);
            let before = blocks();
            edit_losslessly(live, words);
            let after = blocks();
            assert!(after >= before, "{words}: it goes on at {after}, and was at {before}");
            wait::wait_until("blocks", || blocks() > after + 500);
        }
        // A name belongs to one filter, even during the replacement of that filter.
        let words = ["replace", "count", "with", &format!("count state={name}")];
        let refused = change(live, &Edit::parse(&words).unwrap(), &Machine::example(), TIME_LIMIT);
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("is taken by another state of the same user"), "{why}");
        // The reader of a removed filter's state detects the end of the state.
        assert!(!sample.has_ended());
        edit(live, "remove sample").unwrap();
        wait::wait_until("the end of what was removed", || sample.has_ended());
        assert!(!reader.has_ended());
        reader
    });
    let count = outcome.ledger.filters.iter().find(|node| node.name == "count").unwrap();
    let look = reader.snapshot();
    assert!(look.is_consistent && look.ended);
    assert_eq!(look.rows[0][..2], [count.taken.blocks, count.taken.bytes], "to the last block");
    assert_eq!(count.taken.blocks, blocks_emitted(&outcome));
}
