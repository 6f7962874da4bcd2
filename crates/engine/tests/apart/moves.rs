//! Filters with open connections go into sandboxes, out of them, and from one into the next.

use crate::common::set;
use crate::script::{CONNECTIONS, Out, amid, assert_sessions, held};
use engine::catalogue::House;
use engine::live::Live;
use engine::run::Outcome;
use filter::testing::Node;
use filter::{Description, Keeps};
use std::sync::OnceLock;

/// The tests of this file, by name.
pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "v18_tcp_and_http_are_made_anew_in_their_processes",
        v18_tcp_and_http_are_made_anew_in_their_processes,
    ),
    (
        "v18_tcp_and_http_go_into_sandboxes_and_out_of_them",
        v18_tcp_and_http_go_into_sandboxes_and_out_of_them,
    ),
    (
        "v18_every_filter_that_keeps_something_goes_on_in_another_process",
        v18_every_filter_that_keeps_something_goes_on_in_another_process,
    ),
];

/// What comes out where nobody does anything.
fn undisturbed() -> &'static [Out] {
    static OUT: OnceLock<Vec<Out>> = OnceLock::new();
    OUT.get_or_init(|| {
        let (out, outcome) = amid(("generate | tcp | http | pcap x", "tcp"), CONNECTIONS, |_| ());
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let messages = out.iter().filter(|(_, class, _)| *class != 0).count();
        assert!(messages >= CONNECTIONS as usize, "{messages}");
        out
    })
}

/// What is done to this line in the middle of all messages changes nothing of what comes out.
fn same(line: &str, act: impl FnOnce(&Live)) -> Outcome {
    let (out, outcome) = amid((line, "tcp"), CONNECTIONS, act);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(undisturbed() == out, "{line}: what comes out is the same, byte by byte");
    assert_sessions(&outcome);
    outcome
}

/// How many blocks `tcp` holds here, and not in a process.
fn is_home(live: &Live, home: bool) {
    assert_eq!(held(live), if home { u64::from(CONNECTIONS) } else { 0 });
}

fn v18_tcp_and_http_are_made_anew_in_their_processes() {
    same("generate | tcp untrusted=yes | http | pcap x", |live| {
        set(live, "upgrade tcp");
        set(live, "upgrade tcp");
        is_home(live, false);
    });
    same("generate | tcp untrusted=yes | http untrusted=yes | pcap x", |live| {
        set(live, "upgrade http");
        set(live, "upgrade tcp");
    });
}

fn v18_tcp_and_http_go_into_sandboxes_and_out_of_them() {
    same("generate | tcp | http | pcap x", |live| {
        is_home(live, true);
        set(live, "move tcp sandbox");
        is_home(live, false);
        set(live, "upgrade tcp");
        set(live, "move tcp process");
        is_home(live, true);
        set(live, "move tcp sandbox");
        set(live, "move http sandbox");
        set(live, "move tcp process");
        is_home(live, true);
    });
}

/// Every filter of the catalogue that keeps something that can move: upgraded in its process in the
/// middle, and moved out of it, it says the same of each block as one that saw everything at home.
fn v18_every_filter_that_keeps_something_goes_on_in_another_process() {
    const FEW: u32 = 200;
    let keeps = |d: &&&'static Description| matches!(d.keeps, Keeps::Private | Keeps::Sessions);
    let plain = |d: &&&'static Description| Node::new(d, &[]).is_ok();
    let mut told = 0;
    for description in filter::catalog::FILTERS.iter().filter(keeps).filter(plain) {
        let name = description.name;
        // What it has to say in the end would stay in its process.
        if description.ends_with_report() {
            continue;
        }
        // Behind what gives it what it takes.
        let line =
            |first: &str, option: &str| format!("generate | {first}{name}{option} |all pcap x");
        let fits = |first: &&str| pipeline::read(&line(first, ""), &House).1.is_empty();
        let first = ["", "tcp | ", "tcp | http | "].into_iter().find(fits);
        let first = first.unwrap_or_else(|| panic!("nothing before `{name}` fits"));
        let node = if first.is_empty() { name } else { "tcp" };
        let (home, _) = amid((&line(first, ""), node), FEW, |_| ());
        let (moved, outcome) = amid((&line(first, " untrusted=yes"), node), FEW, |live| {
            set(live, &format!("upgrade {name}"));
            set(live, &format!("move {name} process"));
            set(live, &format!("move {name} sandbox"));
        });
        assert!(outcome.failures.is_empty(), "{name}: {:?}", outcome.failures);
        assert!(home == moved, "{name}: {} blocks and {}", home.len(), moved.len());
        told += 1;
    }
    assert!(told > 8, "{told} filters keep something that can move");
}
