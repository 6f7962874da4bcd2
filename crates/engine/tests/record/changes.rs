//! Tests of paths that are changed while they are recorded. The replay must make the same changes
//! at the same positions, and produce the same files, byte for byte, and the same ledger.

use crate::common::{
    Folder, assert_same_replays, inject_frames, random_frames, read_files, record_run, replay_run,
};
use endpoint::source::inject::Injector;
use engine::build::RunSettings;
use engine::change::{ChangeError, SwitchReport, change};
use engine::live::PathHandle;
use engine::record::{Completeness, Record};
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::Random;

/// A time limit so long that no test reaches it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn edit(live: &PathHandle, words: &str) -> Result<SwitchReport, ChangeError> {
    let edit = Edit::parse(&words.split(' ').collect::<Vec<_>>()).expect(words);
    // The machine passed here is ignored: a recorded path is planned for the recorded machine.
    change(live, &edit, &Machine::example_with_kernel(), TIME_LIMIT)
}

fn edit_losslessly(live: &PathHandle, words: &str) {
    let switched = edit(live, words).unwrap_or_else(|why| panic!("{words}: {why}"));
    let SwitchReport { lost, duplicated, reordered, .. } = switched;
    assert_eq!((lost, duplicated, reordered), (0, 0, 0), "{words}: {switched}");
}

/// Records a request and makes these changes, 60 frames apart. Replays the recording twice, and
/// compares files, digests and ledgers.
fn assert_replayed(name: &str, line: &str, changes: &[&str]) {
    let mut random = Random::with_replayable_seed();
    let frames = random_frames(&mut random, 60 * (changes.len() + 1));
    let injector = Injector::new(name).unwrap();
    let (text, seed) = (format!("inject {name} | {line}"), random.below(u64::MAX));
    let outcome = assert_same_replays(name, &text, RunSettings::default(), |live| {
        let mut next = changes.iter();
        inject_frames(injector, &frames, seed, &mut |number| {
            if number % 60 == 59
                && let Some(words) = next.next()
            {
                edit_losslessly(live, words);
            }
        });
        assert_eq!(live.change_count(), changes.len() as u64, "{text}");
    });
    assert!(outcome.ledger.sources[0].1.given.blocks > 100, "{text}");
}

#[test]
fn v3_v10_changed_path_is_replayed_identically() {
    let changes: [&[&str]; 11] = [
        &["insert ipproto before pcap", "replace ipproto with dport", "remove dport"],
        &["insert pcap guest.pcap at tcp", "remove pcap", "insert pcap again.pcap at tcp"],
        &["move tcp to thread1", "upgrade tcp", "move tcp to thread0", "upgrade http"],
        &["remove ratelimit", "insert ratelimit 900 before count", "upgrade count"],
        &["insert files@thread2 b/ at tcp", "move http to thread1", "remove http", "upgrade tcp"],
        &["replace sample with inspect", "insert sample every=2 before tcp", "remove inspect"],
        &["arg sample every=2", "arg tcp gap=3ms timeout=5ms", "arg tcp held=0", "upgrade tcp"],
        &["arg ratelimit rate=300 burst=9", "move count to thread1", "arg ratelimit per=2s"],
        &["add pcap new.pcap below tcp/all", "add inspect below tcp", "move http below inspect"],
        &["join count below ratelimit", "sever count from sample", "move count below inject"],
        &["add generate count=300 | udp | pcap own.pcap", "move udp below inject"],
    ];
    let lines = [
        "udp | pcap all.pcap",
        "tcp gap=1ms | http | files got/",
        "tcp gap=1ms | http | files got/",
        "ratelimit 1500 | count | pcap some.pcap",
        "tcp gap=2ms timeout=3ms | ((http |get files got/) + pcap all.pcap)",
        "sample every=3 | tcp gap=1ms | files all/ per=connection",
        "sample every=3 | tcp@thread1 gap=1ms | files all/ per=connection",
        "ratelimit 1500 | count | pcap some.pcap",
        "tcp gap=1ms | http | files got/",
        "ratelimit 1500 | sample every=3 | count | pcap some.pcap",
        "tcp gap=1ms | http | files got/",
    ];
    for (number, (line, changes)) in lines.into_iter().zip(changes).enumerate() {
        assert_replayed(&format!("v3-v10-{number}"), line, changes);
    }
}

/// Edits from which the tests draw random changes. Most of these edits fit the tested requests.
const EDITS: [&str; 32] = [
    "insert ipproto before tcp",
    "insert inspect after tcp",
    "insert count at tcp",
    "insert pcap NEW.pcap at tcp",
    "insert pcap@thread2 NEW.pcap at inject",
    "insert sample every=2 before tcp",
    "insert ratelimit 2000 before tcp",
    "insert (dport |80 inspect) after inject",
    "replace ipproto with dport",
    "replace pcap with files NEW/",
    "replace inspect with ipproto",
    "move tcp to thread1",
    "move tcp to thread0",
    "move inspect to thread2",
    "upgrade tcp",
    "upgrade ratelimit",
    "upgrade sample",
    "arg sample every=5",
    "arg tcp gap=3ms",
    "arg tcp timeout=1ms held=4k",
    "arg ratelimit rate=900",
    "remove sample",
    "remove inspect",
    "remove count",
    "add pcap NEW.pcap below tcp",
    "add count | pcap@thread2 NEW.pcap below inject",
    "remove count all",
    "remove inspect leaf",
    "move tcp below inject",
    "move inspect below tcp",
    "join inspect below inject",
    "sever inspect from inject",
];

#[test]
fn v3_v10_random_changes_are_replayed_identically() {
    let mut random = Random::with_replayable_seed();
    let lines = [
        "tcp gap=1ms | inspect | pcap all.pcap",
        "sample every=3 | tcp gap=2ms timeout=3ms | files all/ per=connection",
        "((dport |53 pcap dns.pcap) + (tcp gap=1ms | http | files got/))",
        "ratelimit 1500 | tcp gap=1ms | ((count | pcap some.pcap) + inspect)",
    ];
    let (mut made, mut refused) = (0, 0);
    for round in 0..6 {
        let name = format!("v3-v10-random-{round}");
        let frames = random_frames(&mut random, 360);
        let injector = Injector::new(&name).unwrap();
        let line = *random.pick(&lines);
        let (text, seed) = (format!("inject {name} | {line}"), random.below(u64::MAX));
        let mut others = Random::new(random.below(u64::MAX));
        assert_same_replays(&name, &text, RunSettings::default(), |live| {
            inject_frames(injector, &frames, seed, &mut |_| {
                if !others.one_in(25) {
                    return;
                }
                // The names are new, because a removed sink and a new one may write at the same
                // time.
                let words = others.pick(&EDITS).replace("NEW", &format!("new{}", made + refused));
                let words = words.as_str();
                let (before, changes) = (live.request_text(), live.change_count());
                match edit(live, words) {
                    Ok(switched) => {
                        let SwitchReport { lost, duplicated, reordered, .. } = switched;
                        assert_eq!((lost, duplicated, reordered), (0, 0, 0), "{words}: {switched}");
                        made += 1;
                    }
                    Err(_) => {
                        assert_eq!(
                            (live.request_text(), live.change_count()),
                            (before, changes),
                            "{words}"
                        );
                        refused += 1;
                    }
                }
            });
        });
    }
    assert!(made > 12 && refused > 0, "{made} made, {refused} refused");
}

/// Edits to make, and a predicate that returns true for an edit that must succeed. The path must
/// refuse all other edits.
pub(crate) type Changes<'c> = (&'c [&'c str], &'c dyn Fn(&str) -> bool);

/// Records a run of the request `line` with the given changes in `folder`. Returns the path of the
/// recording and the digest of the run.
pub(crate) fn record_changes(
    folder: &Folder,
    (name, line): (&str, &str),
    (changes, may): Changes<'_>,
) -> (PathBuf, String) {
    let mut random = Random::with_replayable_seed();
    let frames = random_frames(&mut random, 60 * (changes.len() + 1));
    let injector = Injector::new(name).unwrap();
    let (record, into) = (folder.0.join("r.pcapng"), folder.0.join("live"));
    let text = format!("inject {name} | {line}");
    let first = (&*record, &*into, 1 << 28);
    let (_, digest) = record_run(&text, RunSettings::default(), first, |live| {
        let mut next = changes.iter();
        inject_frames(injector, &frames, 3, &mut |number| {
            if number % 60 == 59
                && let Some(words) = next.next()
            {
                match edit(live, words) {
                    Ok(_) => assert!(may(words), "{words}"),
                    Err(why) => assert!(!may(words), "{words}: {why}"),
                }
            }
        });
    });
    (record, digest)
}

#[test]
fn v3_v10_failed_change_is_not_recorded() {
    let folder = Folder::new("nothing");
    let changes = [
        "insert nonsense after tcp",
        "insert http before tcp",
        "move tcp kernel",
        "move tcp to thread1",
        "remove inject",
    ];
    let line = "tcp gap=1ms | pcap all.pcap";
    let moves = |words: &str| words == "move tcp to thread1";
    let (record, digest) = record_changes(&folder, ("v3-v10-nothing", line), (&changes, &moves));
    let record = Record::open(&record).unwrap();
    assert_eq!(record.completeness, Completeness::Complete { digest });
    let made: Vec<String> = record.changes.iter().map(|one| one.edit.to_string()).collect();
    assert_eq!(made, ["move tcp to thread1"]);
    assert_eq!(
        record.changes[0].text,
        "inject v3-v10-nothing | tcp@thread1 gap=1ms | pcap all.pcap"
    );
}

#[test]
fn v3_v10_recorded_path_refuses_moves_into_the_kernel() {
    let folder = Folder::new("kernel");
    let first = (&*folder.0.join("r.pcapng"), &*folder.0.join("live"), 1 << 28);
    let injector = Injector::new("v3-v10-kernel").unwrap();
    let text = "inject v3-v10-kernel | ip | pcap all.pcap";
    record_run(text, RunSettings::default(), first, |live| {
        let injector = injector;
        let why = edit(live, "move ip kernel").expect_err("it is recorded").to_string();
        assert!(
            why.contains("a record must contain the frames that a program there would reject"),
            "{why}"
        );
        assert_eq!(live.request_text().as_deref(), Some(text));
        drop(injector);
    });
}

#[test]
fn v10_v18_recorded_path_refuses_moves_to_a_sandbox() {
    let folder = Folder::new("sandbox");
    let first = (&*folder.0.join("r.pcapng"), &*folder.0.join("live"), 1 << 28);
    let injector = Injector::new("v10-v18-sandbox").unwrap();
    let text = "inject v10-v18-sandbox | tcp gap=1ms | pcap all.pcap";
    record_run(text, RunSettings::default(), first, |live| {
        let injector = injector;
        let why = edit(live, "move tcp sandbox").expect_err("it is recorded").to_string();
        assert_eq!(
            why,
            "its state is in another process, and a record does not contain that state"
        );
        assert_eq!((live.request_text().as_deref(), live.change_count()), (Some(text), 0));
        drop(injector);
    });
    assert!(Record::open(&folder.0.join("r.pcapng")).unwrap().changes.is_empty());
}

#[test]
fn v3_v10_recording_truncated_between_changes_replays_to_its_end() {
    let folder = Folder::new("cut-changes");
    // No filter holds blocks, so a shorter run outputs a prefix of a longer one.
    let line = "udp | inspect | pcap all.pcap";
    let changes = [
        "insert pcap guest.pcap at udp",
        "move inspect to thread1",
        "insert ipproto before inspect",
        "remove pcap:1",
        "upgrade udp",
    ];
    let (record, _) = record_changes(&folder, ("v3-v10-cut", line), (&changes, &|_| true));
    let bytes = std::fs::read(&record).unwrap();
    let whole = read_files(&folder.0.join("live"));
    assert_eq!(Record::open(&record).unwrap().changes.len(), changes.len());
    let mut random = Random::with_replayable_seed();
    let cuts: Vec<usize> =
        (0..16).map(|_| random.within(bytes.len() / 4..bytes.len() - 1)).collect();
    for at in cuts {
        let cut = folder.0.join("cut.pcapng");
        std::fs::write(&cut, &bytes[..at]).unwrap();
        let into = folder.0.join(format!("at-{at}"));
        std::fs::create_dir_all(&into).unwrap();
        let (outcome, _, short) = replay_run(&cut, &into);
        assert!(short && outcome.failures.is_empty(), "cut at {at}: {:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "cut at {at}");
        for (name, bytes) in read_files(&into) {
            assert!(whole[&name].starts_with(&bytes), "cut at {at}: {}", name.display());
        }
    }
    assert!(whole.contains_key(Path::new("guest.pcap")));
}

#[test]
fn v3_v10_diverging_change_ends_the_replay_with_a_message() {
    let folder = Folder::new("otherwise");
    let named = ("v3-v10-otherwise", "udp | pcap all.pcap");
    let (record, _) = record_changes(&folder, named, (&["insert dport before pcap"], &|_| true));
    let mut bytes = std::fs::read(&record).unwrap();
    // The first occurrence is in the words of the edit, not in the resulting line.
    let at = bytes.windows(5).position(|word| word == b"dport").unwrap();
    bytes[at] = b's';
    std::fs::write(&record, bytes).unwrap();
    let (outcome, _, _) = replay_run(&record, &folder.0.join("again"));
    let messages: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
    let why = "insert sport before pcap: streamline 0.";
    assert!(!messages.is_empty(), "{outcome:?}");
    for message in messages {
        assert!(
            message.contains(why) && message.contains("places this change in another way"),
            "{message}"
        );
    }
    assert_eq!(outcome.ledger.imbalances(), []);
}
