//! The truth about `regex` and the signatures, on captures that others made: grep over the bytes of
//! the same streams, written to files.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod line;
#[path = "../common/scratch.rs"]
mod scratch;

use line::Line;
use scratch::Scratch;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::need;

/// Captures larger than this are left out, so that the test takes seconds.
const CAPTURE_MAX: u64 = 100_000;

/// Patterns that mean the same to both, over bytes.
const PATTERNS: &[&str] = &[
    "(?i)content-type: [^\\r\\n]*(html|script)",
    "[Hh][Tt]{2}P/1[.][01] [0-9]{3}",
    r"\bstream|[a-z]{3}[0-9]+[.]",
    "<[a-z]+>[^<]{1,12}</",
    r"[\x80-\xff]{4}",
    r"\AGET /",
];

/// The beginnings of SSH, RTSP and telnet, as far as one pattern expresses them: lines before the
/// version of SSH are left to the tests beside the filters.
const FIRST: &str = concat!(
    r"\A(SSH-[12]\.[0-9]+-[!-~]|RTSP/[12]\.[0-9] [1-6]",
    r"|[A-Z_]{3,} [^\x00-\x20]+ RTSP/[12]\.[0-9]\r?\n",
    r"|[\r\n]*\xff[\xfb-\xfe][\x00-\x31\x8a-\x8c][\x07-\x0d\x1b -~]*",
    r"\xff([\xf0-\xfa]|[\xfb-\xfe][\x00-\x31\x8a-\x8c]))"
);

/// Recognised, and not by grep: its second option is 0, at which grep cuts.
const OPTION_0: &str = "10.56.83.20.23-10.56.83.204.1201";

/// Applies `look` to the small captures with streams: the name of the capture, the folder with its
/// streams, and a finder of those that other filters answer.
fn examine<T>(
    captures: testkit::Captures,
    look: impl Fn(&str, &Path, &dyn Fn(&str) -> BTreeSet<String>) -> T,
) -> Option<Vec<(String, T)>> {
    need::command("grep")?;
    let small = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() < CAPTURE_MAX);
    let small = captures.paths.iter().filter(|path| small(path));
    let told = small.filter_map(|capture| {
        let scratch = Scratch::new();
        let run = |name: &str, filters: &str| {
            let (capture, folder) = (capture.display(), scratch.path(name));
            let sink = format!("files \"{}\" per=session", folder.display());
            let line = Line::new(format!("replay \"{capture}\" | tcp {filters} | {sink}"));
            line.alone().map(|_| folder)
        };
        let name = captures.name(capture);
        // What is no capture, or has no streams, says nothing here.
        let streams = run("streams", "").ok()?;
        streams_in(&streams).next()?;
        let through = |filters: &str| {
            let folder = run("through", filters).expect("the same capture");
            let found = streams_in(&folder).map(|path| stream(&path)).collect();
            fs::remove_dir_all(&folder).expect("a folder of the test");
            found
        };
        let told = look(&name, &streams, &through);
        Some((name, told))
    });
    Some(told.collect())
}

/// The files of streams in a folder.
fn streams_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files.map(|file| file.path()).filter(|path| path.extension().is_none_or(|e| e != "jsonl"))
}

/// The name of a stream's file without its number, which counts the files.
fn stream(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split_once('-').map_or(name, |(_, rest)| rest).to_owned()
}

/// The streams in which grep finds the pattern. No stream is cut into lines: NUL ends them, and
/// what holds NUL is not asked for.
fn grep(folder: &Path, pattern: &str) -> BTreeSet<String> {
    let files: Vec<PathBuf> = streams_in(folder).collect();
    let mut grep = Command::new("grep");
    grep.env("LC_ALL", "C").args(["-lazP", "--", pattern]).args(files);
    let told = grep.output().expect("grep");
    let names = String::from_utf8(told.stdout).expect("names");
    names.lines().map(|name| stream(Path::new(name))).collect()
}

#[test]
fn a14_h13_regex_finds_what_grep_finds_in_the_same_streams() {
    find_what_grep_finds(testkit::made());
}

#[test]
fn corpus_regex_finds_what_grep_finds_in_the_same_streams() {
    testkit::corpus().into_iter().for_each(find_what_grep_finds);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn find_what_grep_finds(captures: testkit::Captures) {
    let told = examine(captures, |name, streams, through| {
        // Each capture is asked for some of the patterns.
        let turn: usize = name.bytes().map(usize::from).sum();
        let patterns = (0..2).map(|n| PATTERNS[(turn + 3 * n) % PATTERNS.len()]);
        let found = patterns.map(|pattern| {
            let ours = through(&format!("| regex '{pattern}' keep=yes"));
            (pattern, ours, grep(streams, pattern))
        });
        found.collect::<Vec<_>>()
    });
    let Some(told) = told else { return };
    let mut streams = 0;
    for (capture, patterns) in &told {
        for (pattern, ours, theirs) in patterns {
            assert_eq!(ours, theirs, "{capture}: {pattern}");
            streams += theirs.len();
        }
    }
    println!("{streams} streams of {} captures", told.len());
    assert!(streams > 100, "{streams}");
}

#[test]
fn signatures_recognise_what_begins_like_them() {
    recognise_what_begins_like_them(testkit::made());
}

#[test]
fn corpus_signatures_recognise_what_begins_like_them() {
    testkit::corpus().into_iter().for_each(recognise_what_begins_like_them);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn recognise_what_begins_like_them(captures: testkit::Captures) {
    let told = examine(captures, |_, streams, through| {
        (through("| (ssh ++ rtsp ++ telnet)"), grep(streams, FIRST))
    });
    let Some(told) = told else { return };
    let mut streams = 0;
    for (capture, (ours, theirs)) in &told {
        assert!(theirs.is_subset(ours), "{capture}: {ours:?} {theirs:?}");
        // A connection is recognised by either direction.
        let other = |name: &str| match name.split_once('-') {
            Some((from, to)) => format!("{to}-{from}"),
            None => String::new(),
        };
        let strange: Vec<&String> = ours
            .difference(theirs)
            .filter(|name| !theirs.contains(&other(name)) && *name != OPTION_0)
            .collect();
        assert!(strange.is_empty(), "{capture}: {strange:?} begin like none");
        streams += theirs.len();
    }
    println!("{streams} streams of {} captures", told.len());
    assert!(streams >= 10, "{streams}");
}
