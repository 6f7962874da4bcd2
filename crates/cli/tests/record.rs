//! Tests of records on the command line: creation, replay, truncated records and invalid files.
//! (Capability V10.)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use std::fs;
use std::process::Command;
use testkit::wait_until;

const RECORDED_REQUEST: &str = "replay examples/web.pcap speed=200 | tcp | http | \
                    ((|exchange weblog zone=utc) + (|get files got/ per=message))";

#[test]
fn v10_recorded_run_replays_identically() {
    let folder = Folder::new();
    let first = folder.run(&["run", "--record=r.pcapng", RECORDED_REQUEST]);
    assert_eq!(first.status, Some(0), "{first:?}");
    assert!(first.err.contains("note: recorded into r.pcapng ("), "{}", first.err);
    assert!(first.out.lines().count() > 3, "{}", first.out);
    for into in ["r.pcapng.replay", "r.pcapng.replay.2"] {
        let again = folder.run(&["run", "--replay", "r.pcapng"]);
        assert_eq!((again.status, &again.out), (Some(0), &first.out), "{}", again.err);
        assert!(again.err.contains(&format!("its output is in {into}\n")), "{}", again.err);
        assert!(again.err.contains("the replay matches the recorded run"), "{}", again.err);
        let mut names: Vec<_> = fs::read_dir(folder.path().join("got")).unwrap().collect();
        names.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        assert!(names.len() > 2);
        for entry in names {
            let path = entry.unwrap().path();
            let other = folder.path().join(into).join("got").join(path.file_name().unwrap());
            assert!(fs::read(&path).unwrap() == fs::read(other).unwrap(), "{}", path.display());
        }
    }
    let counted = folder.run(&["replay r.pcapng | count", "-q"]);
    let before = folder.run(&["replay examples/web.pcap | count", "-q"]);
    assert_eq!(counted.out, before.out, "a record is a capture");
}

#[test]
fn v10_recorded_blocks_without_bytes_are_replayed() {
    let folder = Folder::new();
    fs::write(folder.path().join("in.txt"), "a\n\nb\n").unwrap();
    let made = folder.run(&["run", "--record=r.pcapng", "read in.txt lines=yes | print"]);
    assert_eq!((made.status, made.out.lines().count()), (Some(0), 3), "{made:?}");
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!((again.status, &again.out), (Some(0), &made.out), "{}", again.err);
}

#[test]
fn v10_unrepeatable_record_is_refused_with_a_reason() {
    let folder = Folder::new();
    let made = folder.run(&["run", "--record=r.pcapng", "replay examples/web.pcap | udp | print"]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let bytes = fs::read(folder.path().join("r.pcapng")).unwrap();
    fs::write(folder.path().join("cut.pcapng"), &bytes[..bytes.len() / 2]).unwrap();
    let cut = folder.run(&["run", "--replay", "cut.pcapng"]);
    assert_eq!(cut.status, Some(1), "{cut:?}");
    assert!(cut.err.contains("warning: cut.pcapng is truncated at byte "), "{}", cut.err);
    assert!(
        cut.err.contains("differs from the recorded run, because cut.pcapng is damaged"),
        "{}",
        cut.err
    );
    assert!(made.out.starts_with(&cut.out) && !cut.out.is_empty(), "{}", cut.out);

    let changed = bytes.len() - 10;
    let mut other = bytes.clone();
    other[changed] ^= 1;
    fs::write(folder.path().join("changed.pcapng"), &other).unwrap();
    let played = folder.run(&["run", "--replay", "changed.pcapng"]);
    assert!(played.err.contains("was modified"), "{}", played.err);
    assert_eq!(played.status, Some(1), "{played:?}");
    assert_eq!(played.out, made.out);
    let missing = folder.run(&["run", "--replay", "nothing.pcapng"]);
    assert_eq!(missing.status, Some(3), "{missing:?}");
    let capture = folder.run(&["run", "--replay", "examples/web.pcap"]);
    assert_eq!(capture.status, Some(1), "{capture:?}");
    assert!(capture.err.contains("is a capture, not a record"), "{}", capture.err);
    let again = folder.run(&["run", "--record=r.pcapng", "replay examples/web.pcap | count"]);
    assert_eq!(again.status, Some(1), "{again:?}");
    assert!(again.err.contains("a record never overwrites a file"), "{}", again.err);
    assert_eq!(fs::read(folder.path().join("r.pcapng")).unwrap(), bytes);
    let both = folder.run(&["run", "--replay", "r.pcapng", "replay x | count"]);
    assert_eq!(both.status, Some(2), "{both:?}");
}

#[test]
fn v10_full_record_reports_the_missing_blocks() {
    let folder = Folder::new();
    let line = "generate count=20000 size=200 | count";
    let made = folder.run(&["run", "--record=r.pcapng", "--record-bytes=1M", line]);
    assert_eq!(made.status, Some(0), "{made:?}");
    assert!(made.err.contains("was full at 1048576 bytes: "), "{}", made.err);
    assert!(fs::metadata(folder.path().join("r.pcapng")).unwrap().len() < 1 << 20);
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert!(again.err.contains("was full before the run ended"), "{}", again.err);
    assert_eq!(again.status, Some(0), "{again:?}");
}

#[test]
fn v10_request_that_fails_to_start_leaves_no_record() {
    let folder = Folder::new();
    let line = "replay nothing.pcap | count";
    let failed = folder.run(&["run", "--record=r.pcapng", line]);
    assert_eq!(failed.status, Some(3), "{failed:?}");
    assert!(!folder.path().join("r.pcapng").exists());
}

#[test]
fn v3_v10_changes_of_a_recorded_path_are_replayed() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "generate seq=yes rate=1000 | count";
    let mut path =
        folder.spawn_without_output(&["run", "--as", "kept", "-q", "--record=r.pcapng", line]);
    folder.wait_until_listed("kept");
    let set = |words: &[&str]| folder.run(&[&["set", "kept"], words].concat());
    let kernel = set(&["move", "count", "kernel"]);
    assert_eq!(kernel.status, Some(1), "{kernel:?}");
    let why = "a record must contain the frames that a program there would reject";
    assert!(kernel.err.contains("runs as before") && kernel.err.contains(why), "{kernel:?}");
    for words in [
        &["insert", "ip", "after", "generate"][..],
        &["insert", "pcap got.pcap", "at", "ip"],
        &["remove", "ip"],
    ] {
        let done = set(words);
        assert_eq!(done.status, Some(0), "{words:?}: {done:?}");
        assert!(done.out.contains("lost 0, duplicated 0"), "{done:?}");
        wait_until("something came to it", || {
            let metadata = fs::metadata(folder.path().join("got.pcap"));
            words[1] == "ip" || metadata.is_ok_and(|metadata| metadata.len() > 1000)
        });
    }
    let stopped = Command::new("kill").args(["-INT", &path.0.id().to_string()]).status();
    assert!(stopped.unwrap().success() && path.0.wait().unwrap().success());
    let captured = fs::read(folder.path().join("got.pcap")).unwrap();
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{again:?}"
    );
    let message =
        "the recorded path was changed, and the replay repeats it: insert pcap got.pcap at ip";
    assert!(again.err.contains(message), "{again:?}");
    // A sink that was inserted during the run is also replayed, and writes to the directory of the
    // replay.
    assert!(fs::read(folder.path().join("r.pcapng.replay/got.pcap")).unwrap() == captured);
    assert!(fs::read(folder.path().join("got.pcap")).unwrap() == captured);
    let explained = folder.run(&["why", "udp", "r.pcapng"]);
    assert_eq!(explained.status, Some(1), "{explained:?}");
    let needs = "a path that was changed at run time, and `why` traces one request: `why FLOW \
                 r.pcapng REQUEST`";
    assert!(explained.err.contains(needs), "{explained:?}");
    let explained = folder.run(&["why", "udp", "r.pcapng", "ip | count"]);
    assert_eq!(explained.status, Some(0), "{explained:?}");
}

#[test]
fn v10_version_1_record_replays_and_newer_is_refused() {
    let folder = Folder::new();
    // The record was made by a version that did not record changes: `run --record=first-form.pcapng
    // 'generate count=5 size=60 seq=yes | udp | print'`.
    let first = include_bytes!("records/first-form.pcapng");
    fs::write(folder.path().join("first.pcapng"), first).unwrap();
    let again = folder.run(&["run", "--replay", "first.pcapng"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{again:?}"
    );
    assert_eq!(again.out.lines().count(), 5, "{again:?}");
    let made = folder.run(&["run", "--record=r.pcapng", "replay examples/web.pcap | count"]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let mut later = fs::read(folder.path().join("r.pcapng")).unwrap();
    // The version follows the type, the length and the identifier of the header block.
    let section = u32::from_le_bytes(later[4..8].try_into().unwrap()) as usize;
    assert_eq!(later[section + 12..section + 16], 3_u32.to_le_bytes());
    later[section + 12] = 4;
    fs::write(folder.path().join("later.pcapng"), later).unwrap();
    let refused = folder.run(&["run", "--replay", "later.pcapng"]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    let why = "has record format 4, and this version reads 1 to 3";
    assert!(refused.err.contains(why), "{refused:?}");
}

#[test]
fn v10_recorded_path_does_not_adapt_and_prints_a_note() {
    let folder = Folder::new();
    let line = "--adapt replay examples/web.pcap | tcp | count";
    let made = folder.run(&["run", "--record=r.pcapng", line]);
    assert_eq!(made.status, Some(0), "{made:?}");
    assert!(made.err.contains("`--adapt` has no effect on a recorded path"), "{made:?}");
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{again:?}"
    );
}
