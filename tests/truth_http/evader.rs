//! The shared half of http-evader: what Suricata's rules find in each body, we find in ours.

use crate::captures;
use crate::messages;
use std::path::Path;

/// The texts that both rules of every case look for in the body of the response.
const NEEDLES: [&[u8]; 2] = [b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE", b"X5O!P%@AP[4"];

/// Cases whose body we do not yield, and why.
pub(crate) const MISSED: &[(&str, &str)] = &[
    ("http-evader-116-lzma", "Content-Encoding: lzma, which is registered nowhere"),
    ("http-evader-268", FOLDED),
    ("http-evader-274", FOLDED),
    ("http-evader-453", "304: it ends behind its head whatever the head says (RFC 9112 §6.3)"),
];

const FOLDED: &str = "chunks that only a folded line announces, which is no field (RFC 9112 §5.2)";

#[test]
fn corpus_evasions_do_not_hide_bodies() {
    let Some(mut captures) = testkit::corpus() else { return };
    captures.paths.retain(|path| path.components().any(|part| part.as_os_str() == "http-evader"));
    let told = captures::each(&captures, |path| Some(found(path)));
    let missed: Vec<&str> = told
        .iter()
        .filter(|(_, found)| !found)
        .filter_map(|(name, _)| name.split('/').nth(2))
        .collect();
    for (case, why) in MISSED {
        println!("missed: {case}: {why}");
    }
    println!("{} of {} cases yield the expected body", told.len() - missed.len(), told.len());
    let listed: Vec<&str> = MISSED.iter().map(|(case, _)| *case).collect();
    assert_eq!(missed, listed);
    assert!(missed.len() * 100 <= told.len() * 2, "98 of 100 yield it");
}

/// Returns true if a body has what the rules look for.
fn found(path: &Path) -> bool {
    let has = |body: &[u8], word: &[u8]| body.windows(word.len()).any(|part| part == word);
    let messages = messages::bodies(path).expect("a capture that can be read");
    messages.iter().any(|(_, body)| NEEDLES.iter().all(|word| has(body, word)))
}

/// However a body is framed, coded and cut, it is the body that was sent.
#[test]
fn framing_does_not_hide_bodies() {
    let bodies = |name: &str| -> Vec<Vec<u8>> {
        let path = testkit::made::file(&format!("http/{name}.pcap"));
        let messages = messages::bodies(&path).expect("a capture that can be read");
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
