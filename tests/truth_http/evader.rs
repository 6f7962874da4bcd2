//! The shared half of http-evader: what Suricata's rules find in each body, we find in ours.

use crate::captures;
use crate::messages;
use std::path::Path;

/// What both rules of every case look for in the body of the response.
const NEEDLES: [&[u8]; 2] = [b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE", b"X5O!P%@AP[4"];

/// Cases whose body we do not yield, and why.
pub(crate) const MISSED: &[(&str, &str)] = &[
    ("http-evader-116-lzma", "Content-Encoding: lzma, which is registered nowhere"),
    ("http-evader-453", "304: it ends behind its head whatever the head says (RFC 9112 §6.3)"),
];

#[test]
fn evasions_do_not_hide_bodies() {
    let Some(mut captures) = testkit::captures() else { return };
    captures.retain(|path| path.components().any(|part| part.as_os_str() == "http-evader"));
    let told = captures::each(captures, |path| Some(found(path)));
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

/// Whether a body has what the rules look for.
fn found(path: &Path) -> bool {
    let has = |body: &[u8], word: &[u8]| body.windows(word.len()).any(|part| part == word);
    let messages = messages::bodies(path).expect("a capture that can be read");
    messages.iter().any(|(_, body)| NEEDLES.iter().all(|word| has(body, word)))
}
