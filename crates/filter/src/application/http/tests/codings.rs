//! Tests of bodies with content codings that can or cannot be decoded.

use super::*;

pub(super) fn gzip_bytes(bytes: &[u8]) -> Vec<u8> {
    compress_bytes(flate2::Compress::new_gzip(flate2::Compression::new(9), 15), bytes)
}

fn compress_bytes(mut compress: flate2::Compress, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 1024);
    compress.compress_vec(bytes, &mut out, flate2::FlushCompress::Finish).expect("room");
    out
}

fn coded_response(coding: &str, body: &[u8]) -> Vec<u8> {
    let fields = format!("Content-Encoding: {coding}\r\nContent-Length: {}\r\n", body.len());
    [response_text(200, &fields, "").as_bytes(), body].concat()
}

/// Runs the filter on a response with a coded body. Returns the decoded body, and the names of the
/// decoding counters that are not zero.
fn run_coded_response(words: &[&str], coding: &str, body: &[u8]) -> (Vec<u8>, Vec<&'static str>) {
    let words = [&["decode=yes", "emit=body"], words].concat();
    let mut parts = vec![forward_block(GET_REQUEST)];
    parts.extend(coded_response(coding, body).chunks(1000).map(backward_block));
    let (output, node) = run_connection(&words, false, &parts);
    let (is_decoded, whole) = (output.messages[1].is_decoded, output.messages[1].whole);
    let counted = HTTP.counters.iter().zip(&node.counts.counters);
    let decoding = counted.filter(|(name, n)| name.contains("deco") && **n > 0);
    let decoding: Vec<_> = decoding.map(|(name, _)| *name).collect();
    let in_part = decoding == ["decoded in part"];
    assert_eq!((is_decoded, whole), (in_part || decoding == ["decoded bodies"], !in_part));
    (output.messages[1].bytes.clone(), decoding)
}

#[test]
fn coded_bodies_are_decoded() {
    let text = b"to be or not to be, that is the question, to be or not to be".repeat(50);
    let level = flate2::Compression::new(6);
    let gzip = gzip_bytes(&text);
    let zlib = compress_bytes(flate2::Compress::new(level, true), &text);
    let bare = compress_bytes(flate2::Compress::new(level, false), &text);
    let done = ["decoded bodies"];
    for (coding, body) in [("gzip", &gzip), ("deflate", &zlib), ("deflate", &bare)] {
        assert_eq!(
            run_coded_response(&[], coding, body),
            (text.clone(), done.to_vec()),
            "{coding}"
        );
    }
    // `brotli` output for "to be or not to be", from another program.
    let brotli = [
        0x8b, 8, 0x80, b't', b'o', b' ', b'b', b'e', b' ', b'o', b'r', b' ', b'n', b'o', b't',
        b' ', b't', b'o', b' ', b'b', b'e', 3,
    ];
    assert_eq!(
        run_coded_response(&[], "br", &brotli),
        (b"to be or not to be".to_vec(), done.to_vec())
    );
    let twice = gzip_bytes(&gzip);
    assert_eq!(run_coded_response(&[], "gzip, gzip", &twice).0, text);
    assert_eq!(run_coded_response(&[], "identity, x-gzip", &gzip).0, text);
    let two = [gzip.clone(), gzip_bytes(b" and more")].concat();
    assert_eq!(run_coded_response(&[], "gzip", &two).0, [&text[..], b" and more"].concat());
}

#[test]
fn empty_body_is_decoded_in_every_coding() {
    let level = flate2::Compression::new(6);
    let zlib = compress_bytes(flate2::Compress::new(level, true), b"");
    let bare = compress_bytes(flate2::Compress::new(level, false), b"");
    let stored = vec![1, 0, 0, 0xff, 0xff];
    for (coding, body) in [
        ("gzip", gzip_bytes(b"")),
        ("deflate", zlib),
        ("deflate", bare),
        ("deflate", stored),
        ("br", vec![6]),
    ] {
        let decoded = run_coded_response(&[], coding, &body);
        assert_eq!(decoded, (vec![], vec!["decoded bodies"]), "{coding} {body:?}");
    }
    let longer = b"\x03\x00not deflate";
    assert_eq!(run_coded_response(&[], "deflate", longer).1, ["not decodable"]);
}

#[test]
fn body_with_one_undecodable_coding_passes_unchanged() {
    let gzip = gzip_bytes(b"bytes that zstd has compressed");
    for codings in ["zstd, gzip", "Compress, gzip", "gzip, gzip, gzip, gzip, gzip"] {
        let passed = run_coded_response(&[], codings, &gzip);
        assert_eq!(passed, (gzip.clone(), vec!["not decodable"]), "{codings}");
    }
    let misnamed = run_coded_response(&[], "utf-8, gzip", &gzip);
    assert_eq!(misnamed.1, ["decoded bodies"], "a character set is not a coding");
}

#[test]
fn undecodable_body_passes_unchanged() {
    let text = b"to be or not to be, that is the question".to_vec();
    for coding in ["gzip", "deflate", "br", "zstd"] {
        assert_eq!(
            run_coded_response(&[], coding, &text),
            (text.clone(), vec!["not decodable"]),
            "{coding}"
        );
    }
    let long: Vec<u8> = (0..200_000u32).flat_map(|n| n.to_le_bytes()).collect();
    let gzip = gzip_bytes(&long);
    let (cut, counted) = run_coded_response(&[], "gzip", &gzip[..gzip.len() / 2]);
    assert!(counted == ["decoded in part"] && cut.len() > 1000 && long.starts_with(&cut));
    let bomb = gzip_bytes(&vec![0; 3_000_000]);
    let too_large = |words: &[&str]| run_coded_response(words, "gzip", &bomb);
    assert_eq!(too_large(&[]), (bomb.clone(), vec!["too large to decode"]));
    assert_eq!(too_large(&["ratio=100000", "most=1M"]).1, ["too large to decode"]);
    assert_eq!(too_large(&["ratio=100000"]).0.len(), 3_000_000);
    let large = run_coded_response(&["most=1k"], "gzip", &gzip);
    assert_eq!(large, (gzip, vec!["too large to decode"]));
}

#[test]
fn head_is_emitted_before_decoded_body() {
    let gzip = gzip_bytes(b"hello");
    let parts = [
        forward_block(GET_REQUEST),
        backward_block(coded_response("gzip", &gzip)),
        backward_block(coded_response("gzip", b"")),
    ];
    let (output, _) = run_connection(&["decode=yes"], false, &parts);
    let texts = output.body_texts();
    assert!(texts[1].starts_with("HTTP/1.1 200") && texts[1].ends_with("\r\n\r\nhello"));
    assert!(texts[2].ends_with("\r\n\r\n") && output.messages.iter().all(|message| message.whole));
}
