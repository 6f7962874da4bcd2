//! Lines of many filters: what the kernel takes whole, and what only the beginning of.

use crate::observer::{Observer, Ran};
use crate::segment::{filter, refused, silent};
use crate::send::send_all;
use crate::shared::datagrams;
use testkit::net::{Pair, SERVER_DEVICE};

/// Of so many frames one in four goes to port 53.
const FRAMES: usize = 80;
const WANTED: u64 = FRAMES as u64 / 4;

/// A line with so many pairs of filters that each look into the frame, between four others.
fn line(pairs: usize) -> String {
    let pairs = "bpf \"udp and not port 54\" | sport |1:65535 ".repeat(pairs);
    format!("rx {SERVER_DEVICE} | ip | udp | {pairs}dport |53 count")
}

fn observed(pair: &Pair, pairs: usize) -> Ran {
    let observer = Observer::given(&pair.server, &["--policy=deepest"], &line(pairs));
    send_all(pair, &datagrams(FRAMES));
    let ran = observer.stop();
    ran.assert_whole();
    assert_eq!(filter(&ran, "count")["passed"]["blocks"], WANTED, "{}", ran.ledger);
    ran
}

#[test]
fn v5_a_line_of_many_filters_is_decided_in_the_kernel() {
    let Some(pair) = silent() else { return };
    let ran = observed(&pair, 12);
    assert_eq!(refused(&ran), []);
    assert_eq!(filter(&ran, "dport")["space"], "kernel", "{}", ran.err);
}

/// Every filter may be unsure of a frame, which then leaves on a way of its own.
#[test]
fn v5_of_a_line_with_more_ways_out_than_a_program_has_the_beginning_stays() {
    let Some(pair) = silent() else { return };
    let ran = observed(&pair, 30);
    assert_eq!(filter(&ran, "udp")["space"], "kernel", "{}", ran.err);
    assert_eq!(filter(&ran, "dport")["space"], "thread0", "{}", ran.err);
    let spaces = ran.ledger["filters"].as_array().expect("filters").iter();
    let spaces: Vec<&str> = spaces.filter_map(|filter| filter["space"].as_str()).collect();
    let here = spaces.iter().filter(|space| **space == "kernel").count();
    assert!((25..=31).contains(&here), "{spaces:?}");
    let [(_, why)] = refused(&ran)[..] else { panic!("{}", ran.ledger) };
    assert!(why.contains("65 ways") && why.contains("31"), "{why}");
}
