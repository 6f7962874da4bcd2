//! Tests against suricata-verify on streams: our streams contain the data that Suricata's rules
//! match, and not the data that they do not match. The table has a row for each test; a row without
//! expectations has a reason.

use crate::streams::reassemble_streams;
use std::collections::BTreeSet;
use std::path::Path;

/// A requirement on the TCP streams in a capture, derived from a test of suricata-verify.
#[derive(Clone, Copy, Debug)]
enum Requirement {
    /// The given number of streams contain these bytes; each side of a connection is a stream.
    Has(usize, &'static [u8]),
    /// No stream contains these bytes.
    Lacks(&'static [u8]),
    /// The streams together lack the given number of bytes.
    Missing(u64),
    /// The test of suricata-verify is out of scope, for this reason.
    OutOfScope(&'static str),
}
use Requirement::{Has, Lacks, Missing, OutOfScope};

/// Name prefixes of the tests of suricata-verify that are about TCP streams.
const STREAM_TEST_PREFIXES: &[&str] =
    &["tcp-", "bug-3286-", "bug-6244-", "eve-overlap-", "eve-payload-"];

/// Reason why a test is excluded: Suricata expects a stream without urgent data, but `tcp` keeps
/// urgent data in the stream.
const URGENT_DATA_INLINE_REASON: &str =
    "urgent data stay in the stream (RFC 6093 §3), as they do in ours";
const IN_ORDER_DATA_REASON: &str =
    "data in order are emitted at once: a policy concerns held data only (CONTRACT 4)";
const INLINE_MODE_REASON: &str =
    "Suricata in inline mode, in which it drops packets before the receiver gets them";
const ABOUT_HEADERS_REASON: &str = "about options of a header, not about a stream";

/// The tests of suricata-verify, each with its capture, the arguments of `tcp`, and its
/// requirements.
const SURICATA_CASES: &[(&str, &str, &str, &[Requirement])] = &[
    ("bug-3286-02-linux-evasion", "with_evasion_linux.pcap", "", &[Has(1, b"THIS_IS_A_TEST")]),
    ("bug-3286-03-windows-evasion", "with_evasion_windows.pcap", "", &[Has(1, b"THIS_IS_A_TEST")]),
    (
        "bug-6244-tcp-rst-with-data",
        "tcp-rst-with-data.pcap",
        "",
        &[Has(1, b"Please Let Me In!"), Lacks(b"Access Denied")],
    ),
    (
        "bug-6244-tcp-rst-with-data-02",
        "tcp-rst-with-data.pcap",
        "",
        &[Has(1, b"Please Let Me In!"), Lacks(b"Access Denied")],
    ),
    (
        "eve-overlap-payload-01",
        "tcp-overlap.pcap",
        "policy=bsd",
        &[Has(1, b"GOOD"), Lacks(b"EVIL")],
    ),
    ("eve-overlap-payload-02-policy-oldlinux", "", "", &[OutOfScope(IN_ORDER_DATA_REASON)]),
    (
        "eve-overlap-payload-03-ips",
        "tcp-overlap.pcap",
        "policy=first",
        &[Has(1, b"GOOD"), Lacks(b"EVIL")],
    ),
    (
        "eve-payload-01-tcp-exact-overlap",
        "tcp-overlap.pcap",
        "policy=bsd",
        &[Has(1, b"GOOD"), Lacks(b"EVIL")],
    ),
    (
        "eve-payload-02-tcp-exact-overlap-policy-oldlinux",
        "",
        "",
        &[OutOfScope(IN_ORDER_DATA_REASON)],
    ),
    (
        "eve-payload-03-tcp-exact-overlap-ips",
        "tcp-overlap.pcap",
        "policy=first",
        &[Has(1, b"GOOD"), Lacks(b"EVIL")],
    ),
    (
        "eve-payload-06-tcp-data-leading-gap",
        "tcp-leading-gap.pcap",
        "",
        &[Has(1, b"GOODDATA"), Lacks(b"VERY"), Missing(4)],
    ),
    ("eve-payload-07-http-gap", "", "", &[OutOfScope("see the gaps of HTTP bodies")]),
    ("tcp-5379", "", "", &[Has(1, b"AAA"), Lacks(b"DDD")]),
    ("tcp-async-01", "", "", &[Has(1, b"C6 OK ID completed\r\n* 21 EXISTS\r\n* 6 RECENT")]),
    ("tcp-empty-sack", "", "", &[OutOfScope(ABOUT_HEADERS_REASON)]),
    ("tcp-fastopen-01", "tfo.pcap", "", &[Has(1, b"/etc/passwd"), Has(1, b"GET /index.php")]),
    ("tcp-fastopen-02", "../tcp-fastopen-01/tfo.pcap", "", &[Has(1, b"/etc/passwd")]),
    ("tcp-fastopen-04", "../tcp-fastopen-05/tfo.pcap", "", &[Has(2, b"Hello!")]),
    ("tcp-fastopen-05", "tfo.pcap", "", &[Has(2, b"Hello!")]),
    ("tcp-fastopen-06", "", "", &[Has(1, b"/etc/passwd")]),
    ("tcp-fastopen-10-syn-data-ignore", "input.pcap", "", &[Has(2, b"\x16\x03")]),
    ("tcp-fastopen-12", "../tcp-fastopen-05/tfo.pcap", "", &[Has(2, b"Hello!")]),
    ("tcp-fastopen-13", "tfo.pcap", "", &[Has(1, b"/index.php")]),
    ("tcp-hdr-keyword", "", "", &[OutOfScope(ABOUT_HEADERS_REASON)]),
    ("tcp-rst-unacked-stream-01-raw", "input.pcap", "", &[Has(1, b"Let Me In"), Missing(0)]),
    ("tcp-rst-unacked-stream-02-raw-ips", "input.pcap", "", &[Has(1, b"Let Me In"), Missing(0)]),
    ("tcp-rst-unacked-stream-04-gap-ips", "input.pcap", "", &[Has(1, b"Me In")]),
    ("tcp-rst-unacked-stream-07-http", "input.pcap", "", &[Has(1, b"User-Agent: Mozilla")]),
    ("tcp-rst-unacked-stream-08-http-ips", "input.pcap", "", &[Has(1, b"User-Agent: Mozilla")]),
    ("tcp-rst-unacked-stream-09", "", "", &[OutOfScope("by digest of the body: see HTTP")]),
    ("tcp-rst-unacked-stream-11", "", "", &[OutOfScope("by digest of the body: see HTTP")]),
    ("tcp-urgp-01-oob", "", "", &[OutOfScope(URGENT_DATA_INLINE_REASON)]),
    ("tcp-urgp-02-drop-ips", "", "", &[OutOfScope(INLINE_MODE_REASON)]),
    ("tcp-urgp-03-inline", "", "", &[OutOfScope(URGENT_DATA_INLINE_REASON)]),
    ("tcp-urgp-04-2byte-XY", "", "", &[OutOfScope(URGENT_DATA_INLINE_REASON)]),
];

/// Generated captures, each with the arguments of `tcp`, and the requirements that its generator
/// states.
const GENERATED_CASES: &[(&str, &str, &[Requirement])] = &[
    ("overlap", "policy=bsd", &[Has(1, b"THE GOOD END"), Lacks(b"EVIL"), Missing(0)]),
    ("overlap", "policy=first", &[Has(1, b"THE GOOD END"), Lacks(b"EVIL"), Missing(0)]),
    ("overlap", "policy=last", &[Has(1, b"THE EVIL END"), Lacks(b"GOOD"), Missing(0)]),
    ("overlap-longer", "policy=first", &[Has(1, b"BEFORE..GOOD..AFTER"), Missing(0)]),
    ("overlap-longer", "policy=last", &[Has(1, b"BEFORE..EVIL..AFTER"), Missing(0)]),
    ("leading-gap", "", &[Has(1, b"GOODDATA"), Missing(4)]),
    ("data-in-reset", "", &[Has(1, b"GOOD DATA"), Lacks(b"EVIL")]),
    ("data-in-syn", "", &[Has(1, b"GET /fast HTTP/1.0\r\n\r\n"), Has(1, b"204 No Content")]),
    ("around-zero", "", &[Has(1, b"before zero behind it"), Missing(0)]),
    ("gap", "", &[Has(1, b"HTTP/1.1 200 OK"), Missing(1_440)]),
    ("first-missing", "", &[Lacks(b"HTTP/1.1 200 OK"), Missing(1_440)]),
    ("reversed", "", &[Has(1, b"HTTP/1.1 200 OK"), Missing(0)]),
    ("twice", "", &[Has(1, b"HTTP/1.1 200 OK"), Missing(0)]),
    ("same-ports-again", "", &[Has(2, b"first or second"), Missing(0)]),
    ("many-small", "", &[Has(80, b"says this in two pieces"), Missing(0)]),
];

#[test]
fn streams_hold_all_sent_bytes_and_no_others() {
    let judged = GENERATED_CASES.iter().flat_map(|(name, arguments, wants)| {
        unmet_requirements(
            name,
            &testkit::generated::capture_path(&format!("streams/{name}.pcap")),
            arguments,
            wants,
        )
    });
    let wrong: Vec<String> = judged.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn corpus_suricata_rules_agree_on_streams() {
    let Some(cases) = testkit::case_directory() else { return };
    let suricata = cases.join("suricata");
    let (mut judged, mut out, mut wrong) = (0, 0, Vec::new());
    for (test, capture, arguments, wants) in SURICATA_CASES {
        if let [OutOfScope(why)] = wants {
            println!("out of scope: {test}: {why}");
            out += 1;
            continue;
        }
        judged += 1;
        let folder = suricata.join(test);
        let path =
            if capture.is_empty() { single_capture_path(&folder) } else { folder.join(capture) };
        wrong.extend(unmet_requirements(test, &path, arguments, wants));
    }
    println!("{judged} tests of suricata-verify judged, {out} out of scope");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the requirements that the streams of a capture do not meet.
fn unmet_requirements(
    test: &str,
    path: &Path,
    arguments: &str,
    wants: &[Requirement],
) -> Vec<String> {
    let streams = reassemble_streams(path, arguments).unwrap_or_else(|why| panic!("{test}: {why}"));
    let sides: Vec<Vec<u8>> =
        streams.iter().flat_map(|stream| [stream.bytes(0), stream.bytes(1)]).collect();
    let having = |word: &[u8]| {
        sides.iter().filter(|side| side.windows(word.len()).any(|part| part == word)).count()
    };
    let missing: u64 =
        streams.iter().map(|s| s.missing_byte_count(0) + s.missing_byte_count(1)).sum();
    let wrong = wants.iter().filter(|want| match **want {
        Has(number, word) => having(word) != number,
        Lacks(word) => having(word) != 0,
        Missing(bytes) => missing != bytes,
        OutOfScope(_) => true,
    });
    let lengths: Vec<usize> = sides.iter().map(Vec::len).collect();
    let describe = |want| format!("{test}: {want:?}; sides of {lengths:?}, {missing} missing");
    wrong.map(describe).collect()
}

/// Every stream test of suricata-verify is either judged, or excluded with a reason.
#[test]
fn corpus_table_lists_every_stream_test() {
    let Some(cases) = testkit::case_directory() else { return };
    let folders = std::fs::read_dir(cases.join("suricata")).expect("the set").flatten();
    let names = folders.filter_map(|folder| folder.file_name().into_string().ok());
    let about = |name: &String| STREAM_TEST_PREFIXES.iter().any(|begin| name.starts_with(begin));
    let found: BTreeSet<String> = names.filter(about).collect();
    let listed: BTreeSet<String> =
        SURICATA_CASES.iter().map(|(test, ..)| (*test).to_owned()).collect();
    assert_eq!(found, listed);
}

fn single_capture_path(folder: &Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).expect("the test").flatten().map(|file| file.path());
    let mut captures = files.filter(|path| path.extension().is_some_and(|end| end == "pcap"));
    captures.next().unwrap_or_else(|| panic!("{}: no capture", folder.display()))
}
