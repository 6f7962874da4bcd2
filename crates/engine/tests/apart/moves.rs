//! Tests of filters with open connections that move into sandboxes, out of sandboxes, and between
//! sandboxes.

use crate::common::{TIME_LIMIT, edit_losslessly, received_numbers, run_while, wait_for_blocks};
use crate::hostile::expect_change_refusal;
use crate::record::{Folder, record_run, replay_run};
use crate::script::{
    CONNECTION_COUNT, OutputBlock, assert_one_session_per_connection, run_script_with_request,
    tcp_blocks_held,
};
use engine::build::RunSettings;
use engine::change::change;
use engine::digest::changed_lines;
use engine::live::PathHandle;
use engine::record::{Completeness, Record};
use engine::registry::MachineRegistry;
use engine::run::RunOutcome;
use filter::testing::Node;
use filter::{Description, FilterKind, StateScope};
use pipeline::Registry as _;
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use std::sync::OnceLock;
use testkit::wait_until;

/// The tests of this file, by name.
pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "v18_tcp_and_http_upgrade_within_their_sandboxes",
        v18_tcp_and_http_upgrade_within_their_sandboxes,
    ),
    (
        "v18_tcp_and_http_move_into_and_out_of_sandboxes",
        v18_tcp_and_http_move_into_and_out_of_sandboxes,
    ),
    (
        "v18_every_stateful_filter_keeps_its_output_when_moved",
        v18_every_stateful_filter_keeps_its_output_when_moved,
    ),
    (
        "v3_v18_sandboxed_filter_may_emit_blocks_of_a_new_source",
        v3_v18_sandboxed_filter_may_emit_blocks_of_a_new_source,
    ),
    (
        "v10_v18_recorded_sandboxed_filter_refuses_changes",
        v10_v18_recorded_sandboxed_filter_refuses_changes,
    ),
];

/// Returns the output of a run without changes.
fn output_without_changes() -> &'static [OutputBlock] {
    static UNCHANGED_OUTPUT: OnceLock<Vec<OutputBlock>> = OnceLock::new();
    UNCHANGED_OUTPUT.get_or_init(|| {
        let (out, outcome) = run_script_with_request(
            ("generate | tcp | http | pcap x", "tcp"),
            CONNECTION_COUNT,
            |_| (),
        );
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let messages = out.iter().filter(|(_, class, _)| *class != 0).count();
        assert!(messages >= CONNECTION_COUNT as usize, "{messages}");
        out
    })
}

/// Asserts that `act` leaves the output of this request unchanged. Calls `act` while every message
/// is half complete.
fn assert_output_unchanged(line: &str, act: impl FnOnce(&PathHandle)) -> RunOutcome {
    let (out, outcome) = run_script_with_request((line, "tcp"), CONNECTION_COUNT, act);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(output_without_changes() == out, "{line}: what comes out is the same, byte by byte");
    assert_one_session_per_connection(&outcome);
    outcome
}

/// Asserts that `tcp` runs in a thread of this process if `home` is true, and in a sandbox
/// otherwise.
fn assert_tcp_location(live: &PathHandle, home: bool) {
    assert_eq!(tcp_blocks_held(live), if home { u64::from(CONNECTION_COUNT) } else { 0 });
}

fn v18_tcp_and_http_upgrade_within_their_sandboxes() {
    assert_output_unchanged("generate | tcp untrusted=yes | http | pcap x", |live| {
        edit_losslessly(live, "upgrade tcp");
        edit_losslessly(live, "arg tcp gap=9s");
        assert!(live.request_text().is_some_and(|text| text.contains("gap=9s")));
        edit_losslessly(live, "upgrade tcp");
        assert_tcp_location(live, false);
    });
    assert_output_unchanged("generate | tcp untrusted=yes | http untrusted=yes | pcap x", |live| {
        edit_losslessly(live, "upgrade http");
        edit_losslessly(live, "upgrade tcp");
    });
}

fn v18_tcp_and_http_move_into_and_out_of_sandboxes() {
    assert_output_unchanged("generate | tcp | http | pcap x", |live| {
        assert_tcp_location(live, true);
        edit_losslessly(live, "move tcp sandbox");
        assert_tcp_location(live, false);
        edit_losslessly(live, "upgrade tcp");
        edit_losslessly(live, "move tcp process");
        assert_tcp_location(live, true);
        edit_losslessly(live, "move tcp sandbox");
        edit_losslessly(live, "move http sandbox");
        edit_losslessly(live, "move tcp process");
        assert_tcp_location(live, true);
    });
}

/// Upgrades every filter of the catalog with movable state in its process while messages are half
/// complete, then moves the filter out of the process and back. The output must equal that of a run
/// without changes. Filters that need arguments, end with a report or share their name with a sink
/// are left out.
fn v18_every_stateful_filter_keeps_its_output_when_moved() {
    const CONNECTIONS_PER_FILTER: u32 = 200;
    let keeps = |d: &&&'static Description| {
        matches!(d.state.scope, StateScope::Private | StateScope::Sessions)
    };
    let plain = |d: &&&'static Description| Node::new(d, &[]).is_ok();
    let mut movable = 0;
    for description in filter::catalog::FILTERS.iter().filter(keeps).filter(plain) {
        let name = description.name;
        // The final report would stay in the filter's process, so the outputs would differ.
        if description.ends_with_report() {
            continue;
        }
        // An edit could not tell the filter from the sink of the same name after it.
        if MachineRegistry::Local.find(name).is_some_and(|found| found.kind == FilterKind::Sink) {
            continue;
        }
        // Finds a prefix whose output the filter accepts.
        let line =
            |first: &str, option: &str| format!("generate | {first}{name}{option} |all pcap x");
        let fits = |first: &&str| {
            pipeline::read_request(&line(first, ""), &MachineRegistry::Local).1.is_empty()
        };
        let first = ["", "tcp | ", "tcp | http | "].into_iter().find(fits);
        let first = first.unwrap_or_else(|| panic!("nothing before `{name}` fits"));
        let node = if first.is_empty() { name } else { "tcp" };
        let (home, _) =
            run_script_with_request((&line(first, ""), node), CONNECTIONS_PER_FILTER, |_| ());
        let (moved, outcome) = run_script_with_request(
            (&line(first, " untrusted=yes"), node),
            CONNECTIONS_PER_FILTER,
            |live| {
                edit_losslessly(live, &format!("upgrade {name}"));
                edit_losslessly(live, &format!("move {name} process"));
                edit_losslessly(live, &format!("move {name} sandbox"));
            },
        );
        assert!(outcome.failures.is_empty(), "{name}: {:?}", outcome.failures);
        assert!(home == moved, "{name}: {} blocks and {}", home.len(), moved.len());
        movable += 1;
    }
    assert!(movable > 8, "{movable} filters keep something that can move");
}

/// A recording never contains the state of a process. Changes that would save such state are
/// therefore refused, and the recording contains only the original request.
fn v10_v18_recorded_sandboxed_filter_refuses_changes() {
    let folder = Folder::new("apart");
    let (record, live, again) = (folder.0.join("r"), folder.0.join("live"), folder.0.join("again"));
    let text = "generate rate=20000 seq=yes | dport untrusted=yes |all inspect | discard";
    let (_, recorded) =
        record_run(text, RunSettings::default(), (&record, &live, 1 << 28), |live| {
            wait_for_blocks(live, 100);
            for words in ["upgrade dport", "move dport process", "move dport thread1"] {
                let why = expect_change_refusal(live, words);
                let expected =
                    "its state is in another process, and a record does not contain that state";
                assert_eq!(why, expected, "{words}");
                assert_eq!(
                    (live.request_text().as_deref(), live.change_count()),
                    (Some(text), 0),
                    "{words}"
                );
            }
            wait_for_blocks(live, 100);
            live.stop();
        });
    let read = Record::open(&record).expect("a record");
    assert_eq!(
        (read.completeness, read.changes),
        (Completeness::Complete { digest: recorded.clone() }, Vec::new())
    );
    let (_, now, short) = replay_run(&record, &again);
    assert_eq!((changed_lines(&recorded, &now), short), (Vec::new(), false));
}

/// Blocks from a process are checked against the current sources, even if the process was started
/// before one of the sources was added.
fn v3_v18_sandboxed_filter_may_emit_blocks_of_a_new_source() {
    let source = |name: &str| format!("generate --name={name} rate=5000 seq=yes");
    let behind = "udp untrusted=yes | inspect@thread1 | pcap@thread1 later";
    let (_, outcome) = run_while(&format!("{} | {behind}", source("one")), |live| {
        wait_for_blocks(live, 100);
        let both = format!("({} + {}) | {behind}", source("one"), source("two"));
        change(live, &Edit::ReplaceText(both), &Machine::example(), TIME_LIMIT).expect("a change");
        let came =
            || live.take_snapshot(TIME_LIMIT).ledger.sources.get(1).map_or(0, |s| s.1.given.blocks);
        wait_until("blocks of the new one", || came() > 100);
    });
    let given: u64 = outcome.ledger.sources.iter().map(|(_, source)| source.given.blocks).sum();
    assert_eq!(received_numbers("later").len() as u64, given);
}
