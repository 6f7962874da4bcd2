//! Tests of recorded paths and their replays. A replay produces the same files, byte for byte, and
//! the same ledger. (v10)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod changes;
mod common;
mod hostile;

use common::{
    Folder, assert_same_replays, inject_frames, random_frames, read_files, record_run, replay_run,
};
use endpoint::source::inject::Injector;
use engine::build::RunSettings;
use engine::record::{Completeness, Record};
use std::path::Path;
use testkit::Random;

#[test]
fn v10_paths_with_timers_and_holds_are_replayed_identically() {
    let mut random = Random::with_replayable_seed();
    let lines = [
        "tcp gap=1ms | http | files got/",
        "tcp gap=2ms timeout=3ms | ((http |get files got/) + pcap all.pcap)",
        "ip defragment=yes timeout=1s | udp | pcap udp.pcap",
        "ratelimit 1500 | ((count | pcap some.pcap) + (dport |53 pcap dns.pcap))",
        "sample every=3 | tcp gap=1ms | regex \"GET /[0-9]+\" | files all/ per=connection",
        "((dport |53 udp) + (dport |80 tcp gap=1ms)) | files both/ per=session",
    ];
    for (number, line) in lines.into_iter().enumerate() {
        let name = format!("v10-{number}");
        let frames = random_frames(&mut random, 400);
        let injector = Injector::new(&name).unwrap();
        let (text, seed) = (format!("inject {name} | {line}"), random.below(u64::MAX));
        let outcome = assert_same_replays(&name, &text, RunSettings::default(), |_| {
            inject_frames(injector, &frames, seed, &mut |_| ())
        });
        assert!(outcome.ledger.sources[0].1.given.blocks > 300, "{text}");
    }
}

#[test]
fn v10_replay_runs_no_program() {
    let mut random = Random::with_replayable_seed();
    let frames = random_frames(&mut random, 200);
    let injector = Injector::new("v10-exec").unwrap();
    // The program's output differs in every run.
    let text = "inject v10-exec | tcp gap=1ms | exec \"wc -c; date +%N; echo $$\" | files said.txt";
    assert_same_replays("v10-exec", text, RunSettings::default(), |_| {
        inject_frames(injector, &frames, 3, &mut |_| ())
    });
}

#[test]
fn v10_replay_honours_the_block_limit() {
    let mut random = Random::with_replayable_seed();
    let frames = random_frames(&mut random, 600);
    let injector = Injector::new("v10-count").unwrap();
    let text = "inject v10-count | (pcap one.pcap + (dport |80 pcap two.pcap))";
    let settings = RunSettings { count: Some(150), ..RunSettings::default() };
    assert_same_replays("v10-count", text, settings, |_| {
        inject_frames(injector, &frames, 5, &mut |_| ())
    });
}

#[test]
fn v10_full_recording_is_replayed_to_its_end() {
    let folder = Folder::new("full");
    let at = |name: &str| folder.0.join(name);
    let mut random = Random::with_replayable_seed();
    let frames = random_frames(&mut random, 2000);
    let injector = Injector::new("v10-full").unwrap();
    let text = "inject v10-full | (pcap all.pcap + (tcp gap=1ms | files all/))";
    let first = (&*at("r.pcapng"), &*at("live"), 1 << 16);
    record_run(text, RunSettings::default(), first, |_| {
        inject_frames(injector, &frames, 1, &mut |_| ())
    });
    let record = Record::open(&at("r.pcapng")).unwrap();
    let Completeness::Full { beyond } = record.completeness else { panic!("{record:?}") };
    assert!(beyond.blocks > 0);
    let (outcome, _, short) = replay_run(&at("r.pcapng"), &at("again"));
    assert!(short);
    assert_eq!(outcome.ledger.imbalances(), []);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let (live, again) = (read_files(&at("live")), read_files(&at("again")));
    let all = Path::new("all.pcap");
    assert!(again[all].len() > 10_000 && live[all].starts_with(&again[all]), "a beginning of it");
}
