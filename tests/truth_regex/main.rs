//! Tests of `regex` and the protocol signatures on generated and external captures, compared with
//! grep over the same streams in files.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;

use request::PlannedRequest;
use scratch::Scratch;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::need;

/// Maximum size of a capture in bytes, so that the test takes seconds.
const CAPTURE_MAX: u64 = 100_000;

/// Patterns over bytes that have the same meaning for `regex` and for grep.
const PATTERNS: &[&str] = &[
    "(?i)content-type: [^\\r\\n]*(html|script)",
    "[Hh][Tt]{2}P/1[.][01] [0-9]{3}",
    r"\bstream|[a-z]{3}[0-9]+[.]",
    "<[a-z]+>[^<]{1,12}</",
    r"[\x80-\xff]{4}",
    r"\AGET /",
];

/// The first bytes of SSH, RTSP and telnet streams, as one pattern. Text before the SSH version is
/// tested elsewhere.
const FIRST_BYTES_PATTERN: &str = concat!(
    r"\A(SSH-[12]\.[0-9]+-[!-~]|RTSP/[12]\.[0-9] [1-6]",
    r"|[A-Z_]{3,} [^\x00-\x20]+ RTSP/[12]\.[0-9]\r?\n",
    r"|[\r\n]*\xff[\xfb-\xfe][\x00-\x31\x8a-\x8c][\x07-\x0d\x1b -~]*",
    r"\xff([\xf0-\xfa]|[\xfb-\xfe][\x00-\x31\x8a-\x8c]))"
);

/// Name of a stream that we recognize and grep does not, because grep splits the stream at the NUL
/// of a telnet option.
const STREAM_SPLIT_BY_GREP: &str = "10.56.83.20.23-10.56.83.204.1201";

/// Calls `examine` for each capture that is small and contains streams. The arguments of `examine`
/// are the capture's name, the directory of its streams, and a function that returns the names of
/// the streams that given filters select. Returns the name and the result for each, or `None` if
/// grep is not installed.
fn examine_streams<T>(
    captures: testkit::Captures,
    examine: impl Fn(&str, &Path, &dyn Fn(&str) -> BTreeSet<String>) -> T,
) -> Option<Vec<(String, T)>> {
    need::require_command("grep")?;
    let small = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() < CAPTURE_MAX);
    let small = captures.paths.iter().filter(|path| small(path));
    let results = small.filter_map(|capture| {
        let scratch = Scratch::new();
        let run = |name: &str, filters: &str| {
            let (capture, folder) = (capture.display(), scratch.path(name));
            let sink = format!("files \"{}\" per=session", folder.display());
            let line =
                PlannedRequest::new(format!("replay \"{capture}\" | tcp {filters} | {sink}"));
            line.run_sequential().map(|_| folder)
        };
        let name = captures.name(capture);
        // Skips files that are no captures or have no streams.
        let streams = run("streams", "").ok()?;
        stream_files(&streams).next()?;
        let through = |filters: &str| {
            let folder = run("through", filters).expect("the same capture");
            let found = stream_files(&folder).map(|path| stream_name(&path)).collect();
            fs::remove_dir_all(&folder).expect("a folder of the test");
            found
        };
        let results = examine(&name, &streams, &through);
        Some((name, results))
    });
    Some(results.collect())
}

/// Returns the stream files of a directory.
fn stream_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files.map(|file| file.path()).filter(|path| path.extension().is_none_or(|e| e != "jsonl"))
}

/// Returns the name of a stream: the name of its file without the sequence number.
fn stream_name(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split_once('-').map_or(name, |(_, rest)| rest).to_owned()
}

/// Returns the streams in which grep finds the pattern. grep ends lines at NUL, which no pattern
/// contains, so nearly all streams are searched as a whole.
fn streams_matching_grep(folder: &Path, pattern: &str) -> BTreeSet<String> {
    let files: Vec<PathBuf> = stream_files(folder).collect();
    let mut grep = Command::new("grep");
    grep.env("LC_ALL", "C").args(["-lazP", "--", pattern]).args(files);
    let results = grep.output().expect("grep");
    let names = String::from_utf8(results.stdout).expect("names");
    names.lines().map(|name| stream_name(Path::new(name))).collect()
}

#[test]
fn a14_h13_regex_matches_grep_on_the_same_streams() {
    assert_regex_matches_grep(testkit::generated_captures());
}

#[test]
fn corpus_regex_matches_grep_on_the_same_streams() {
    testkit::corpus_captures().into_iter().for_each(assert_regex_matches_grep);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_regex_matches_grep(captures: testkit::Captures) {
    let results = examine_streams(captures, |name, streams, through| {
        // Each capture is tested with some of the patterns.
        let offset: usize = name.bytes().map(usize::from).sum();
        let patterns = (0..2).map(|n| PATTERNS[(offset + 3 * n) % PATTERNS.len()]);
        let found = patterns.map(|pattern| {
            let ours = through(&format!("| regex '{pattern}' keep=yes"));
            (pattern, ours, streams_matching_grep(streams, pattern))
        });
        found.collect::<Vec<_>>()
    });
    let Some(results) = results else { return };
    let mut streams = 0;
    for (capture, patterns) in &results {
        for (pattern, ours, theirs) in patterns {
            assert_eq!(ours, theirs, "{capture}: {pattern}");
            streams += theirs.len();
        }
    }
    println!("{streams} streams of {} captures", results.len());
    assert!(streams > 100, "{streams}");
}

#[test]
fn signatures_match_stream_prefixes() {
    assert_signatures_match_prefixes(testkit::generated_captures());
}

#[test]
fn corpus_signatures_match_stream_prefixes() {
    testkit::corpus_captures().into_iter().for_each(assert_signatures_match_prefixes);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_signatures_match_prefixes(captures: testkit::Captures) {
    let results = examine_streams(captures, |_, streams, through| {
        (through("| (ssh ++ rtsp ++ telnet)"), streams_matching_grep(streams, FIRST_BYTES_PATTERN))
    });
    let Some(results) = results else { return };
    let mut streams = 0;
    for (capture, (ours, theirs)) in &results {
        assert!(theirs.is_subset(ours), "{capture}: {ours:?} {theirs:?}");
        // A connection is recognized by either direction.
        let other = |name: &str| match name.split_once('-') {
            Some((from, to)) => format!("{to}-{from}"),
            None => String::new(),
        };
        let strange: Vec<&String> = ours
            .difference(theirs)
            .filter(|name| !theirs.contains(&other(name)) && *name != STREAM_SPLIT_BY_GREP)
            .collect();
        assert!(strange.is_empty(), "{capture}: {strange:?} begin like none");
        streams += theirs.len();
    }
    println!("{streams} streams of {} captures", results.len());
    assert!(streams >= 10, "{streams}");
}
