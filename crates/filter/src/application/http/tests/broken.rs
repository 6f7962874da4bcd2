//! Tests of connections that end within messages, and of stray bytes between messages.

use super::*;

/// Returns a block that ends a direction without FIN, as after a reset, a timeout or the end of a
/// capture.
fn end_without_fin(back: bool) -> StreamBlock {
    StreamBlock { flags: BlockFlags::SESSION_END_MASK, ..hole_block(back, 0) }
}

fn counter_value(node: &Node, name: &str) -> u64 {
    let place = HTTP.counters.iter().position(|counter| *counter == name).expect("a counter");
    node.counts.counters[place]
}

#[test]
fn only_fin_completes_a_body_without_length() {
    for (last_part, whole) in [(end_block(true), true), (end_without_fin(true), false)] {
        let parts = [
            forward_block(GET_REQUEST),
            backward_block(response_text(200, "", "to the end")),
            end_block(false),
            last_part,
        ];
        let (output, node) = run_connection(&["emit=body"], true, &parts);
        assert_eq!(output.classes(), [1, 200, 1200]);
        assert_eq!(
            (output.messages[1].bytes.as_slice(), output.messages[1].whole),
            (&b"to the end"[..], whole)
        );
        assert_eq!(output.messages[2].number(Field::Incomplete).is_none(), whole);
        assert_eq!(counter_value(&node, "incomplete messages"), u64::from(!whole));
    }
    // The stream filter reports no FIN at the end of a path or of an evicted connection.
    let parts = [forward_block(GET_REQUEST), backward_block(response_text(200, "", "to the end"))];
    let (output, _) = run_connection(&[], true, &parts);
    assert!(!output.messages[1].whole);
    assert_eq!(output.messages[2].number(Field::Incomplete), Some(1));
}

#[test]
fn truncated_decoded_body_is_incomplete() {
    let fields = "Content-Encoding: gzip\r\n";
    let coded = codings::gzip_bytes(b"some text in a body");
    let head = response_text(200, fields, "");
    for (last_part, whole) in [(end_block(true), true), (end_without_fin(true), false)] {
        let parts = [
            forward_block(GET_REQUEST),
            backward_block([head.as_bytes(), &coded].concat()),
            end_block(false),
            last_part,
        ];
        let (output, _) = run_connection(&["emit=body", "decode=yes"], false, &parts);
        assert_eq!(output.messages[1].bytes, b"some text in a body");
        assert_eq!(output.messages[1].whole, whole);
    }
}

#[test]
fn stray_bytes_do_not_break_request_response_pairing() {
    let post = "POST /form HTTP/1.1\r\nHost: h\r\n\r\n";
    let strays =
        ["name=value", "name=value\r\n", "a\r\nb\r\nc\r\n", "\0\x01\x02\n", "a b c\n\n", "{\n}"];
    for stray in strays {
        for parts in [
            vec![
                forward_block(post),
                forward_block(stray),
                backward_block(OK_RESPONSE),
                end_block(false),
                end_block(true),
            ],
            vec![
                forward_block([post, stray].concat()),
                backward_block(OK_RESPONSE),
                end_block(false),
                end_block(true),
            ],
        ] {
            let (output, _) = run_connection(&[], true, &parts);
            assert_eq!(classes_and_methods(&output, 1000), [(1200, "POST")], "{stray:?}");
            assert_eq!(classes_and_methods(&output, 200)[0], (200, "POST"), "{stray:?}");
        }
        // A request in the next block is recognized and paired.
        let parts = [
            forward_block(post),
            forward_block(stray),
            forward_block(GET_REQUEST),
            backward_block(OK_RESPONSE.repeat(2)),
            end_block(false),
            end_block(true),
        ];
        let (output, _) = run_connection(&[], true, &parts);
        assert_eq!(
            classes_and_methods(&output, 1000),
            [(1200, "POST"), (1200, "GET")],
            "{stray:?}"
        );
    }
}

#[test]
fn head_without_empty_line_is_incomplete() {
    for last_part in [end_block(false), end_without_fin(false)] {
        let parts =
            [forward_block("GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: half a na"), last_part];
        for words in [&["emit=message"][..], &["emit=head"], &["emit=body"], &["strict=yes"]] {
            let (output, node) = run_connection(words, true, &parts);
            assert_eq!(output.classes(), [1, 1000], "{words:?}");
            let request = &output.messages[0];
            assert_eq!((request.text(Field::Url), request.text(Field::Host)), ("/a", "h"));
            assert_eq!((request.text(Field::UserAgent), request.whole), ("", false));
            assert_eq!(request.number(Field::Incomplete), Some(1));
            assert_eq!(request.text(Field::Client).len(), 4, "from the frame that carried it");
            assert_eq!(
                (counter_value(&node, "requests"), counter_value(&node, "incomplete messages")),
                (1, 1)
            );
        }
    }
    let parts = [
        forward_block(GET_REQUEST),
        backward_block("HTTP/1.1 404 no\r\nContent-Length: 5\r\n"),
        end_block(true),
    ];
    let (output, _) = run_connection(&[], true, &parts);
    assert_eq!(classes_and_methods(&output, 100), [(404, "GET"), (1404, "GET")]);
    assert!(!output.messages[1].whole && output.unanswered_bytes().is_empty());
    assert_eq!(output.messages[2].number(Field::Incomplete), Some(1));
    // An incomplete start line is not recognized as a message.
    for line in ["GET /index.ht", "GET /a HTTP/1.1", "GET /a HTTP/1.1\r"] {
        let (output, node) = run_connection(&[], true, &[forward_block(line), end_block(false)]);
        assert_eq!(
            (output.classes(), output.unanswered_bytes()),
            (vec![], line.as_bytes().to_vec())
        );
        assert_eq!(node.unanswered_reasons().find(|(_, n)| *n > 0), Some(("cut", 1)));
    }
}

#[test]
fn http2_preface_is_no_request() {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let upgrade = request_text("GET", "Connection: Upgrade\r\nUpgrade: h2c\r\n", "");
    for cut in 1..preface.len() {
        let (one, two) = preface.split_at(cut);
        let frames = [
            forward_block(one),
            forward_block(two),
            forward_block("\0\0\0\x04\0\0\0\0\0"),
            backward_block("\0\0\0\x04\0"),
        ];
        let (output, _) = run_connection(&[], true, &frames);
        assert_eq!(output.classes(), [0; 0], "{one:?}");
        // The response that accepted the upgrade is in a hole.
        let mut parts = vec![forward_block(&upgrade), hole_block(true, 70)];
        parts.extend(frames);
        let (output, node) = run_connection(&[], false, &parts);
        assert_eq!(output.classes(), [1], "{one:?}");
        assert_eq!(counter_value(&node, "requests"), 1);
        assert!(node.unanswered_reasons().any(|(why, n)| why == "switched" && n > 0), "{one:?}");
    }
}
