//! Test with the published cases of http-evader, in which a server tries to hide the body of a
//! response. For every case in which Suricata's rules match a body, a body in our output must
//! contain the matched text, except for [`CASES_WITHOUT_BODY`].

use crate::captures;
use crate::messages;
use std::path::Path;

/// The texts that Suricata's rules for these cases search for in the response body.
const BODY_TEXTS: [&[u8]; 2] = [b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE", b"X5O!P%@AP[4"];

/// Cases whose body is not in our output, each with the reason.
pub(crate) const CASES_WITHOUT_BODY: &[(&str, &str)] = &[
    ("http-evader-116-lzma", "Content-Encoding: lzma, which is not registered"),
    ("http-evader-268", FOLDED_FIELD_REASON),
    ("http-evader-274", FOLDED_FIELD_REASON),
    (
        "http-evader-453",
        "304: the response ends after its head whatever the head states (RFC 9112 §6.3)",
    ),
];

const FOLDED_FIELD_REASON: &str =
    "chunks announced only by a folded line, which is not a field (RFC 9112 §5.2)";

#[test]
fn corpus_http_evasions_do_not_hide_bodies() {
    let Some(mut captures) = testkit::corpus_captures() else { return };
    captures.paths.retain(|path| path.components().any(|part| part.as_os_str() == "http-evader"));
    let results = captures::examine_captures(&captures, |path| Some(contains_body_texts(path)));
    let missed: Vec<&str> = results
        .iter()
        .filter(|(_, found)| !found)
        .filter_map(|(name, _)| name.split('/').nth(2))
        .collect();
    for (case, why) in CASES_WITHOUT_BODY {
        println!("missed: {case}: {why}");
    }
    println!("{} of {} cases yield the expected body", results.len() - missed.len(), results.len());
    let listed: Vec<&str> = CASES_WITHOUT_BODY.iter().map(|(case, _)| *case).collect();
    assert_eq!(missed, listed);
    assert!(missed.len() * 100 <= results.len() * 2, "98 of 100 yield it");
}

/// Returns true if a body in the capture contains all of [`BODY_TEXTS`].
fn contains_body_texts(path: &Path) -> bool {
    let has = |body: &[u8], word: &[u8]| body.windows(word.len()).any(|part| part == word);
    let messages = messages::messages_with_bodies(path).expect("a capture that can be read");
    messages.iter().any(|(_, body)| BODY_TEXTS.iter().all(|word| has(body, word)))
}

/// Parses responses with every framing, coding and segmentation. Asserts that each body equals the
/// body that was sent.
#[test]
fn framing_does_not_hide_bodies() {
    let bodies = |name: &str| -> Vec<Vec<u8>> {
        let path = testkit::generated::capture_path(&format!("http/{name}.pcap"));
        let messages = messages::messages_with_bodies(&path).expect("a capture that can be read");
        let bodies = messages.into_iter().map(|(_, body)| body);
        bodies.filter(|body| !body.is_empty()).collect()
    };
    let page = bodies("plain");
    assert_eq!(page.iter().map(Vec::len).collect::<Vec<_>>(), [2_500]);
    for name in ["chunked", "chunked-small", "packed", "until-close", "other-port", "six"] {
        assert!(bodies(name) == page, "{name}");
    }
    let [one, missing, four] = &bodies("pipelined")[..] else { panic!("three of them") };
    assert!(*one == page[0] && *four == page[0] && missing.starts_with(b"<!DOCTYPE"));
    assert_eq!(bodies("trailer"), [b"first and 2."]);
    assert_eq!(bodies("byte-by-byte"), [b"slowly"]);
    assert_eq!(bodies("form")[0], b"q=streams");
    for name in ["not-modified", "no-http"] {
        assert!(bodies(name).is_empty(), "{name}");
    }
}
