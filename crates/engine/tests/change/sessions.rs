//! Tests of changes that add a second filter that numbers sessions. No filter may use a session
//! number that another filter has used, in any space and after any number of upgrades. (A14)

use crate::common::{TIME_LIMIT, edit_losslessly};
use crate::script::{CONNECTION_COUNT, OutputBlock, run_script_with_request};
use engine::change::{SwitchReport, change};
use engine::live::PathHandle;
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use std::collections::BTreeSet;

/// The first number of the range from which filters added by a change take their session numbers.
const FIRST_ADDED_SESSION_NUMBER: u32 = 1 << 31;

fn replace_request(live: &PathHandle, line: &str) -> SwitchReport {
    let edit = Edit::ReplaceText(line.to_owned());
    let switched = change(live, &edit, &Machine::example(), TIME_LIMIT);
    let switched = switched.unwrap_or_else(|why| panic!("{line}: {why}"));
    assert_eq!((switched.lost, switched.duplicated, switched.reordered), (0, 0, 0), "{switched}");
    switched
}

/// Runs the script with a request that processes half of the connections, and returns the output.
/// Calls `act` while every message is half complete.
fn output_during_action(act: impl FnOnce(&PathHandle)) -> Vec<OutputBlock> {
    let line = "generate | split 2 |1 tcp | http | pcap x";
    let (out, outcome) = run_script_with_request((line, "split"), CONNECTION_COUNT, act);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    out
}

#[test]
fn a14_second_tcp_in_a_live_path_disturbs_no_message() {
    let undisturbed = output_during_action(|_| {});
    let sessions: BTreeSet<u32> = undisturbed.iter().map(|(session, ..)| *session).collect();
    assert!(sessions.len() > CONNECTION_COUNT as usize / 3, "{}", sessions.len());
    assert!(sessions.iter().copied().eq(1..=sessions.len() as u32), "one alone counts from 1");
    // The second `tcp` sees streams from the middle of messages, which `http` does not answer.
    let both = "generate | split 2 | (|1 tcp + |2 tcp gap=2s) | http | pcap x";
    let joined = output_during_action(|live| drop(replace_request(live, both)));
    assert!(undisturbed == joined, "what the first gives is the same, byte by byte");
    let moved = output_during_action(|live| {
        replace_request(live, both);
        for words in [
            "move tcp:1 to thread1",
            "upgrade tcp:1",
            "move tcp:2 to thread2",
            "upgrade tcp:2",
            "upgrade http",
        ] {
            edit_losslessly(live, words);
        }
    });
    assert!(undisturbed == moved, "wherever they are, and made anew");
}

#[test]
fn a14_added_filters_use_session_numbers_of_their_own() {
    let line = "generate | split 2 | (|1 tcp + |2 inspect) | pcap x";
    let second = "generate | split 2 | (|1 tcp + |2 tcp gap=2s) | pcap x";
    let third = "generate | split 2 | (|1 tcp + |2 tcp policy=last) | pcap x";
    let (out, _) = run_script_with_request((line, "split"), CONNECTION_COUNT, |live| {
        for _ in 0..2 {
            replace_request(live, second);
            replace_request(live, third);
            replace_request(live, line);
        }
        replace_request(live, third);
        edit_losslessly(live, "upgrade tcp:1");
    });
    let sessions: BTreeSet<u32> = out.iter().map(|(session, ..)| *session).collect();
    let low: Vec<u32> = sessions.range(1..FIRST_ADDED_SESSION_NUMBER).copied().collect();
    let late: Vec<u32> = sessions.range(FIRST_ADDED_SESSION_NUMBER..).copied().collect();
    assert_eq!(low.len() + late.len(), CONNECTION_COUNT as usize, "each connection has its own");
    assert!(low.iter().copied().eq(1..=low.len() as u32), "who stays goes on as it was");
    // This `tcp` is the fifth filter that a change has added.
    let first = FIRST_ADDED_SESSION_NUMBER + 4 * (1 << 25);
    assert!(late.iter().copied().eq(first..first + late.len() as u32), "{:?}", late.first());
}

/// `http` emits exchanges only if an arc selects them. A change that adds or removes such an arc
/// therefore concerns the running `http` filter too.
#[test]
fn v3_added_arc_receives_exchanges_of_the_running_http() {
    let line = "generate | tcp | http |post pcap x";
    let both = "generate | tcp | http | (|post pcap x + |exchange pcap y)";
    let exchanges = |act: &dyn Fn(&PathHandle)| {
        let (out, outcome) = run_script_with_request((line, "tcp"), CONNECTION_COUNT, act);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        out.iter().filter(|(_, class, _)| (1000..2000).contains(class)).count()
    };
    assert_eq!(exchanges(&|live| drop(replace_request(live, both))), CONNECTION_COUNT as usize);
    let removed = exchanges(&|live| {
        replace_request(live, both);
        replace_request(live, line);
    });
    assert_eq!(removed, 0);
}
