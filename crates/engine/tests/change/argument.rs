//! Tests of arguments that are set in running filters: the filter keeps its state, and the reported
//! position separates the blocks before and after the change.

use crate::common::{
    TIME_LIMIT, blocks_emitted, edit, edit_losslessly, received_numbers, run_while, wait_for_blocks,
};
use crate::script::{CONNECTION_COUNT, OutputBlock, run_script_with_request, tcp_blocks_held};
use engine::change::{SwitchReport, change};
use pipeline::edit::Edit;
use pipeline::plan::Machine;

/// Returns the frame numbers that pass `sample` if its value changes at the given blocks.
fn sampled_numbers(values: &[(u64, u64)], end: u64) -> Vec<u64> {
    let current = |number: &u64| values.iter().rev().find(|(from, _)| from <= number);
    let every = |number: u64| current(&number).expect("the first value is from 0 on").1;
    (0..end).filter(|number| number.is_multiple_of(every(*number))).collect()
}

#[test]
fn v3_argument_change_applies_to_later_blocks_and_keeps_count() {
    for (file, place) in [("set", "thread0"), ("set-apart", "thread1")] {
        let text = format!("generate rate=20000 seq=yes | sample@{place} 3 | pcap {file}");
        let (values, outcome) = run_while(&text, |live| {
            let mut values = vec![(0, 3)];
            for every in [5, 2, 7] {
                wait_for_blocks(live, 200);
                let switched = edit_losslessly(live, &format!("arg sample every={every}"));
                assert_eq!(
                    switched.text,
                    text.replace("0 3", "0 {}")
                        .replace("1 3", "1 {}")
                        .replace("{}", &every.to_string())
                );
                assert_eq!(live.request_text(), Some(switched.text));
                values.push((switched.position, every));
            }
            wait_for_blocks(live, 200);
            values
        });
        assert!(values.is_sorted() && values[1].0 >= 200, "{values:?}");
        assert_eq!(
            received_numbers(file),
            sampled_numbers(&values, blocks_emitted(&outcome)),
            "{values:?}"
        );
    }
}

#[test]
fn v3_changed_request_sets_arguments_and_keeps_state() {
    let line = |every: u64, more: &str| {
        format!("generate rate=20000 seq=yes | sample {every} {more}| pcap@thread0 whole-set")
    };
    let (values, outcome) = run_while(&line(3, ""), |live| {
        let mut values = vec![(0, 3)];
        // The first change is made in place. The second also changes the graph, so a new filter
        // gets the state of the old one.
        for (every, more) in [(5, ""), (4, "| inspect ")] {
            wait_for_blocks(live, 200);
            let whole = Edit::ReplaceText(line(every, more));
            let switched = change(live, &whole, &Machine::example(), TIME_LIMIT).expect("a change");
            let SwitchReport { lost, duplicated, reordered, position, .. } = switched;
            assert_eq!((lost, duplicated, reordered), (0, 0, 0));
            values.push((position, every));
        }
        wait_for_blocks(live, 200);
        values
    });
    assert_eq!(
        received_numbers("whole-set"),
        sampled_numbers(&values, blocks_emitted(&outcome)),
        "{values:?}"
    );
}

#[test]
fn v3_refused_argument_leaves_the_path_unchanged() {
    let text = "generate rate=20000 seq=yes | sample 3 | ratelimit 1000000000 burst=1000000 | \
                count | pcap refused-set";
    let ((), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        for (words, why) in [
            ("arg sample every=0", "`every` of `sample`: 0 is not between 1 and 4294967295"),
            ("arg sample evry=4", "`sample` has no parameter `evry`; `arg` sets `every`"),
            (
                "arg sample state=x",
                "`state` of `sample` cannot change at run time; `arg` sets `every`",
            ),
            ("arg sample 4", "write `arg NODE NAME=VALUE`"),
            ("arg sample every=4 --name=X", "write `arg NODE NAME=VALUE`"),
            (
                "arg count sort=yes",
                "`count` has no parameter `sort`, and none of its arguments can be set",
            ),
            ("arg tcp gap=1s", "the request has no `tcp`"),
            ("arg generate rate=5", "`rate` of `generate` cannot change at run time, and none of"),
            // Each value alone would be valid.
            ("arg ratelimit rate=1000000000 per=1us", "more than one block per nanosecond"),
        ] {
            let refused = edit(live, words).expect_err(words).to_string();
            assert!(refused.contains(why), "{words}: {refused}");
            assert_eq!(
                (live.request_text().as_deref(), live.change_count()),
                (Some(text), 0),
                "{words}"
            );
        }
        wait_for_blocks(live, 200);
    });
    assert_eq!(
        received_numbers("refused-set"),
        sampled_numbers(&[(0, 3)], blocks_emitted(&outcome))
    );
}

#[test]
fn v3_tcp_argument_change_keeps_connections_and_held_blocks() {
    let line = ("generate | tcp | http | pcap x", "tcp");
    let (undisturbed, _) = run_script_with_request(line, CONNECTION_COUNT, |_| {});
    let (set_amid, outcome) = run_script_with_request(line, CONNECTION_COUNT, |live| {
        for words in ["arg tcp gap=5s timeout=1h", "arg tcp held=1M", "arg tcp gap=2s"] {
            edit_losslessly(live, words);
            assert_eq!(tcp_blocks_held(live), u64::from(CONNECTION_COUNT), "{words}");
        }
        let text = live.request_text().expect("a text");
        assert_eq!(text, "generate | tcp gap=2s timeout=1h held=1M | http | pcap x");
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(undisturbed == set_amid, "what comes out is the same, byte by byte");
}

#[test]
fn v3_argument_change_reaches_all_replicas_and_their_sessions() {
    let line = ("--parallel=2 generate | tcp | regex POST |all pcap x", "tcp");
    let matched = |out: &[OutputBlock]| out.iter().filter(|(_, class, _)| *class == 1).count();
    let (before, _) = run_script_with_request(line, CONNECTION_COUNT, |_| {});
    assert_eq!(matched(&before), CONNECTION_COUNT as usize, "the first quarter of each message");
    let (after, outcome) = run_script_with_request(line, CONNECTION_COUNT, |live| {
        let replicas = live.plan().expect("a plan").replicas;
        assert!(replicas.iter().any(|copied| copied.spaces.len() == 2 && copied.nodes.len() == 2));
        let why = edit(live, "upgrade regex").expect_err("they have sessions").to_string();
        assert!(why.contains("replicas with sessions of their own"), "{why}");
        edit_losslessly(live, "arg regex keep=yes");
        assert_eq!(live.plan().expect("a plan").replicas.len(), replicas.len());
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    // `regex` found its match before the change. With `keep=yes`, blocks of the three other
    // quarters and of the end of the connection get the same class.
    assert_eq!(matched(&after), 5 * CONNECTION_COUNT as usize);
}
