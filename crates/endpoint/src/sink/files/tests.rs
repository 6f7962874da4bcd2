//! Blocks in, files and index lines out.

use super::*;
use crate::testing::{TIME, TempDir, arguments, bare, batch, frame, hex, opening, refused};
use serde_json::{Value, json};
use std::fs;

/// A sink on `dir` with these arguments, for blocks of this form.
fn on(dir: &str, given: &[(&str, &str)], form: Form) -> Files {
    let given: Vec<_> = [("dir", dir)].iter().chain(given).copied().collect();
    let given = arguments(&FILES, &given);
    Files::new(&Opening { form, ..opening(&given, &[]) }).unwrap()
}

/// A block of a session: its number, flags and bytes.
fn block(session: u32, flags: u16, bytes: &[u8]) -> Block<'_> {
    let mut block = bare(bytes);
    block.context.session = session;
    block.context.flags = Flags(flags);
    block
}

const FIRST: u16 = Flags::FIRST.0;
const LAST: u16 = Flags::LAST.0;
const BACK: u16 = Flags::BACKWARD.0;
const END: u16 = Flags::END.0;

/// The files of a directory and what is in them, without the index.
fn contents(dir: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .filter(|(name, _)| name != INDEX)
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect();
    found.sort();
    found
}

fn index(dir: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("{dir}/{INDEX}")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is in each file, in the order of their numbers.
fn texts(dir: &str) -> Vec<String> {
    contents(dir).into_iter().map(|(_, text)| text).collect()
}

fn column(dir: &str, name: &str) -> Vec<Value> {
    index(dir).iter().map(|line| line[name].clone()).collect()
}

#[test]
fn a_session_gets_a_file_for_each_direction() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = on(&out, &[], Form::Stream);
    let mut later = block(7, 0, b"c");
    later.context.time = TIME + 5;
    let blocks =
        [block(7, 0, b"a"), block(7, BACK, b"b"), later, block(0, 0, b"x"), block(7, END, b"d")];
    files.take(&batch(&blocks), 0).unwrap();
    let rows = files.finish().unwrap().rows;
    let expected = [("files", 3), ("blocks", 5), ("bytes", 5)].map(|(n, v)| (n.to_owned(), v));
    assert_eq!(rows, expected);
    assert_eq!(texts(&out), ["acd", "b", "x"]);
    assert_eq!(files.written(), Some(Amount { blocks: 5, bytes: 5 }));
    let time = "2009-02-13T23:31:30.123456789Z";
    let line = |file: &str, blocks: u64, complete: bool| {
        json!({
            "version": 1, "file": file, "first": time, "last": time, "blocks": blocks,
            "bytes": blocks, "complete": complete,
        })
    };
    let mut expected = [line("000003", 1, true), line("000001", 3, true), line("000002", 1, false)];
    for (line, direction) in expected[1..].iter_mut().zip(["forward", "backward"]) {
        line["session"] = json!(7);
        line["direction"] = json!(direction);
    }
    expected[1]["last"] = json!("2009-02-13T23:31:30.123456794Z");
    assert_eq!(index(&out), expected);
}

#[test]
fn what_gets_a_file_is_a_choice() {
    let blocks = [
        block(1, FIRST, b"a"),
        block(1, BACK | FIRST | LAST, b"b"),
        block(2, FIRST | LAST, b"c"),
        block(1, LAST, b"d"),
        block(1, FIRST, b"e"),
    ];
    for (per, form, expected, complete) in [
        ("auto", Form::Stream, vec!["ade", "b", "c"], vec![false; 3]),
        ("connection", Form::Stream, vec!["abde", "c"], vec![false; 2]),
        ("block", Form::Stream, vec!["a", "b", "c", "d", "e"], vec![true; 5]),
        ("auto", Form::Message, vec!["ad", "b", "c", "e"], vec![true, true, true, false]),
        ("message", Form::Stream, vec!["ad", "b", "c", "e"], vec![true, true, true, false]),
        ("session", Form::Message, vec!["ade", "b", "c"], vec![false; 3]),
    ] {
        let dir = TempDir::new();
        let out = dir.path("out");
        let mut files = on(&out, &[("per", per)], form);
        files.take(&batch(&blocks), 0).unwrap();
        files.finish().unwrap();
        assert_eq!(texts(&out), expected, "{per}");
        assert_eq!(column(&out, "complete"), complete, "{per}");
    }
}

#[test]
fn a_message_without_its_beginning_is_not_complete() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = on(&out, &[], Form::Message);
    let blocks = [block(1, LAST, b"tail"), block(1, FIRST, b"one"), block(1, FIRST | LAST, b"two")];
    files.take(&batch(&blocks), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(texts(&out), ["tail", "one", "two"]);
    assert_eq!(column(&out, "complete"), [false, false, true]);
}

#[test]
fn names_and_index_say_who_spoke_to_whom() {
    let dir = TempDir::new();
    let out = dir.path("out/");
    let bytes = hex("020000000002 020000000001 86dd 60000000 000a 11 40
                     fe800000000000000000000000000001 20010db8000000000000000000000002
                     0035 0400 000a 0000 6869");
    let mut files = on(&out, &[], Form::Segment);
    files.take(&batch(&[frame(&bytes).narrow(62, 2)]), 0).unwrap();
    files.finish().unwrap();
    let name = "000001-fe80__1.53-2001_db8__2.1024";
    assert_eq!(contents(&out), [(name.to_owned(), "hi".to_owned())]);
    let line = &index(&out)[0];
    assert_eq!((&line["file"], &line["src"]), (&json!(name), &json!("fe80::1")));
    assert_eq!((&line["proto"], &line["dst_port"]), (&json!("udp"), &json!(1024)));
}

#[test]
fn few_open_files_serve_many_sessions() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = on(&out, &[("open", "3")], Form::Stream);
    let mut expected = vec![String::new(); 20];
    for round in 0..10_u32 {
        for session in 0..20_u32 {
            let text = format!("{round}:{session} ");
            files.take(&batch(&[block(session + 1, 0, text.as_bytes())]), 0).unwrap();
            expected[session as usize] += &text;
            let open = files.volumes.values().filter(|volume| volume.file.is_some()).count();
            assert!(open <= 3, "{open} files are open");
            assert_eq!(open, files.open_by_use.len());
        }
    }
    files.finish().unwrap();
    assert_eq!(texts(&out), expected);
    assert_eq!(index(&out).len(), 20);
}

#[test]
fn forgotten_sessions_go_on_in_another_file() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = on(&out, &[("sessions", "2")], Form::Stream);
    let blocks = [block(1, 0, b"1"), block(2, 0, b"2"), block(1, 0, b"1"), block(3, 0, b"3")];
    files.take(&batch(&blocks), 0).unwrap();
    assert_eq!(files.volumes.len(), 2);
    files.take(&batch(&[block(2, 0, b"more")]), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(texts(&out), ["11", "2", "3", "more"]);
    assert_eq!(column(&out, "session"), [2, 1, 3, 2]);
}

#[test]
fn a_second_run_goes_on_and_overwrites_nothing() {
    let dir = TempDir::new();
    let out = dir.path("out");
    for text in ["first", "second"] {
        let mut files = on(&out, &[], Form::Stream);
        files.take(&batch(&[block(1, 0, text.as_bytes())]), 0).unwrap();
        files.finish().unwrap();
    }
    assert_eq!(texts(&out), ["first", "second"]);
    assert_eq!(column(&out, "file"), ["000001", "000002"]);
}

#[test]
fn a_file_that_was_replaced_is_not_written() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = on(&out, &[("open", "1")], Form::Stream);
    files.take(&batch(&[block(1, 0, b"a"), block(2, 0, b"b")]), 0).unwrap();
    fs::write(dir.path("theirs"), "of others").unwrap();
    fs::rename(dir.path("theirs"), format!("{out}/000001")).unwrap();
    let failure = refused(files.take(&batch(&[block(1, 0, b"c")]), 0)).to_string();
    assert!(failure.ends_with("000001: somebody else has replaced it"), "{failure}");
    assert_eq!(fs::read_to_string(format!("{out}/000001")).unwrap(), "of others");
    assert_eq!(files.written(), Some(Amount { blocks: 2, bytes: 2 }));
    drop(files);
    assert_eq!(index(&out).len(), 2, "the index tells what there is, even after a failure");
}

/// A file system of 64 KB on a directory, taken away at the end.
struct SmallDisk(String);

impl SmallDisk {
    fn on(path: String) -> Option<Self> {
        testkit::need::root()?;
        fs::create_dir(&path).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none", &path])
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        testkit::need::skip("needs to mount a tmpfs")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_with_the_file() {
    let dir = TempDir::new();
    let Some(disk) = SmallDisk::on(dir.path("small")) else { return };
    let mut files = on(&disk.0, &[], Form::Stream);
    let large = vec![b'x'; 40_000];
    let outcome = files.take(&batch(&[block(1, 0, &large), block(1, 0, &large)]), 0);
    let failure = refused(outcome).to_string();
    assert!(
        failure.starts_with(&format!("cannot write {}/000001: no space left", disk.0)),
        "{failure}"
    );
    assert_eq!(files.written(), Some(Amount { blocks: 1, bytes: 40_000 }));
}
