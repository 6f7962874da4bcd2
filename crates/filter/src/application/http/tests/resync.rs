//! Tests of messages that follow header lines without a request line.

use super::*;

const HEADER_FIELDS: &str = "Host: h\r\nGet-Away: no\r\nAccept: */*\r\nX: it\r\n\r\n";

/// Makes a request for each path. Returns the text of all requests without the request lines that
/// contain `..` (as after `grep -v`), and the texts of the requests that keep their request line.
fn remove_request_lines(paths: &[&str]) -> (String, Vec<String>) {
    let (mut text, mut whole) = (String::new(), Vec::new());
    for path in paths {
        let line = format!("GET {path} HTTP/1.1\r\n");
        if !path.contains("..") {
            text.push_str(&line);
            whole.push(line + HEADER_FIELDS);
        }
        text.push_str(HEADER_FIELDS);
    }
    (text, whole)
}

fn split_stream(text: &str, size: usize) -> Vec<StreamBlock> {
    let mut parts: Vec<_> = text.as_bytes().chunks(size).map(forward_block).collect();
    parts.push(end_block(false));
    parts
}

fn unanswered_count(node: &Node, reason: &str) -> u64 {
    let place = HTTP.reasons.iter().position(|known| *known == reason).expect("a reason");
    node.counts.unanswered[place]
}

#[test]
fn b8_request_after_headless_header_lines_is_found() {
    for paths in [
        &["/a", "/../b", "/c"][..],
        &["/../a", "/b", "/../c", "/../d", "/e", "/f"],
        &["/../a", "/../b", "/c", "/d/../e"],
    ] {
        let (text, whole) = remove_request_lines(paths);
        for size in (1..=text.len()).step_by(3) {
            let (output, node) = run_connection(&[], false, &split_stream(&text, size));
            let got: Vec<String> = output.body_texts();
            assert_eq!(got, whole, "{paths:?} in pieces of {size}");
            assert!(output.messages.iter().all(|message| message.whole));
            assert!(
                unanswered_count(&node, "malformed") > 0
                    && unanswered_count(&node, "not http") == 0
            );
            let rest = text.len() - whole.concat().len();
            // Empty lines between messages are consumed.
            assert!(output.unanswered_bytes().len() <= rest, "no byte leaves twice");
        }
    }
}

#[test]
fn b8_bytes_that_only_resemble_a_request_are_skipped() {
    let text = "GET /a HTTP/1.1\r\n\r\nX: y\r\nGET-Up: z\r\nPUT:\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    for size in 1..=text.len() {
        let (output, _) = run_connection(&[], false, &split_stream(text, size));
        let last = output.messages.last().expect("a message");
        assert_eq!(last.text(Field::Url), "/b", "in pieces of {size}");
        assert_eq!(output.messages[0].text(Field::Url), "/a");
    }
}
