//! Published state of filters (`state=NAME`) while the path changes: the name stays with the
//! filter, and so does its content.

use crate::common::{LONG, during, edit, given, on, set};
use engine::change::change;
use engine::seen::Reader;
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use testkit::wait;

#[test]
fn m3_m4_what_is_seen_stays_through_upgrades_and_moves() {
    let name = format!("change-{}", std::process::id());
    let other = format!("{name}-other");
    let line = format!(
        "generate seq=yes rate=20000 | count state={name} | sample 1 state={other} | pcap seen"
    );
    let (reader, outcome) = during(&line, |live| {
        let (reader, sample) = (Reader::open(&name).unwrap(), Reader::open(&other).unwrap());
        let blocks = || reader.look().rows.first().map_or(0, |row| row[0]);
        for words in [
            "upgrade count",
            "move count to thread1",
            "upgrade count",
            "insert inspect before count",
            "move count to thread0",
            "remove inspect",
        ] {
            on(live, 500);
            let before = blocks();
            set(live, words);
            let after = blocks();
            assert!(after >= before, "{words}: it goes on at {after}, and was at {before}");
            wait::until("blocks", || blocks() > after + 500);
        }
        // A name is one filter's, also when the other one is to take its place.
        let words = ["replace", "count", "with", &format!("count state={name}")];
        let refused = change(live, &Edit::parse(&words).unwrap(), &Machine::example(), LONG);
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("is taken by another state of the same user"), "{why}");
        // What goes is seen to have ended.
        assert!(!sample.has_ended());
        edit(live, "remove sample").unwrap();
        wait::until("the end of what was removed", || sample.has_ended());
        assert!(!reader.has_ended());
        reader
    });
    let count = outcome.ledger.filters.iter().find(|node| node.name == "count").unwrap();
    let look = reader.look();
    assert!(look.whole && look.ended);
    assert_eq!(look.rows[0][..2], [count.taken.blocks, count.taken.bytes], "to the last block");
    assert_eq!(count.taken.blocks, given(&outcome));
}
