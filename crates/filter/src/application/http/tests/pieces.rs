//! Tests that the output depends neither on the segmentation nor on moves of the state to another
//! instance.

use super::codings::gzip_bytes;
use super::*;

/// Returns example connections, each as the text of its two directions.
fn example_connections() -> Vec<(String, String)> {
    let chunks = "Transfer-Encoding: chunked\r\n";
    vec![
        (request_text("GET", "", ""), response_text(200, &content_length_field("hello"), "hello")),
        (
            request_text("POST", chunks, "3;x\r\nabc\r\n0\r\nA: b\r\n\r\n")
                + "\r\n"
                + &request_text("GET", "", ""),
            response_text(100, "", "")
                + &response_text(200, chunks, "1\r\n!\r\n0\r\n\r\n")
                + &response_text(204, "", ""),
        ),
        (
            request_text("HEAD", "", ""),
            response_text(200, &content_length_field("none"), "")
                + &response_text(200, "", "to the end"),
        ),
        (request_text("CONNECT", "", "") + "\x16tls", response_text(200, "", "") + "\x16more"),
        (
            request_text("GET", "Connection: upgrade\r\nUpgrade: x\r\n", "") + "new",
            response_text(101, "Connection: upgrade\r\nUpgrade: x\r\n", "") + "words",
        ),
        ("GET /old\r\n".to_owned(), "no head at all".to_owned()),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "\0\0\0\x04".to_owned()),
        ("\x16\x03\x01\x02\0\x01".to_owned(), "\x16\x03\x03".to_owned()),
        ("SSH-2.0-a b\r\n".to_owned(), "SSH-2.0-c\r\n".to_owned()),
        (request_text("GET", "", "") + "( no request\r\n\r\n", response_text(200, "", "x")),
        (
            "GET / HTTP/1.1\r\nHos".to_owned(),
            response_text(200, &content_length_field("cut short"), "cut"),
        ),
    ]
}

/// Returns the messages in canonical order. Times are removed, because they depend on the
/// segmentation.
fn normalized_messages(output: &ConnectionOutput) -> Vec<OutputMessage> {
    let mut messages = output.messages.clone();
    for message in &mut messages {
        let times = [Field::Time, Field::End, Field::ResponseTime];
        message.fields.retain(|(field, _)| !times.contains(field));
    }
    messages.sort_by_key(|message| (message.class >= 1000, message.back));
    messages
}

#[test]
fn messages_are_the_same_for_any_segmentation() {
    for words in [&["emit=message"][..], &["emit=body"], &["strict=yes", "emit=head"]] {
        for (there, here) in example_connections() {
            let whole =
                [forward_block(&there), backward_block(&here), end_block(false), end_block(true)];
            let (wanted, _) = run_connection(words, true, &whole);
            for (text, by_server) in [(&there, false), (&here, true)] {
                let step = 1 + text.len() / 24;
                for first in (1..text.len()).step_by(step) {
                    for second in (first + 1..text.len()).step_by(step) {
                        let (a, rest) = text.as_bytes().split_at(first);
                        let (b, c) = rest.split_at(second - first);
                        let part = if by_server { backward_block } else { forward_block };
                        let mut parts =
                            vec![part(a), part(b), part(c), end_block(false), end_block(true)];
                        match by_server {
                            true => parts.insert(0, forward_block(&there)),
                            false => parts.insert(3, backward_block(&here)),
                        }
                        let (found, _) = run_connection(words, true, &parts);
                        let at = format!("{words:?} {text:?} cut at {first} and {second}");
                        assert_eq!(
                            normalized_messages(&found),
                            normalized_messages(&wanted),
                            "{at}"
                        );
                        assert_eq!(found.unanswered, wanted.unanswered, "{at}");
                    }
                }
            }
        }
    }
}

#[test]
fn state_moves_do_not_change_the_output() {
    for words in [&["emit=message"][..], &["emit=body", "decode=yes"]] {
        let gzip = gzip_bytes(b"some text to be packed, some text");
        let mut packed = response_text(
            200,
            &format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", gzip.len()),
            "",
        )
        .into_bytes();
        packed.extend(gzip);
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = example_connections()
            .into_iter()
            .map(|(a, b)| (a.into_bytes(), b.into_bytes()))
            .collect();
        all.push((request_text("GET", "", "").into_bytes(), packed));
        for (there, here) in &all {
            let split = |text: &[u8], part: fn(Vec<u8>) -> StreamBlock| -> Vec<StreamBlock> {
                text.chunks(7).map(|piece| part(piece.to_vec())).collect()
            };
            let mut parts = split(there, forward_block);
            parts.extend(split(here, backward_block));
            parts.extend([end_block(false), end_block(true)]);
            parts[0].flags = BlockFlags::FIRST;
            let first = parts.iter().position(|part| part.back).expect("a way back");
            parts[first].flags = BlockFlags::FIRST;
            let (wanted, _) = run_midstream_connection(words, true, &parts);
            for moved in 0..parts.len() {
                assert_eq!(
                    run_with_state_move(words, &parts, moved),
                    wanted,
                    "{words:?} {there:?} {moved}"
                );
            }
        }
    }
}

/// Runs the filter on the connection. Before block number `moved`, moves the state to a new
/// instance by saving and restoring it.
fn run_with_state_move(words: &[&str], parts: &[StreamBlock], moved: usize) -> ConnectionOutput {
    let arena = Arena::new(parts.len() * 8 + 64);
    let mut space = Space::new(&arena);
    let new = || Node::with_classes(&HTTP, words, &[(1000, 1999)]).expect("good arguments");
    let (mut node, mut output) = (new(), ConnectionOutput::default());
    for (number, part) in parts.iter().enumerate() {
        if number == moved {
            let saved = node.take_sessions();
            node = new();
            node.restore_sessions(saved).expect("the same filter");
        }
        for batch in run_block(&mut node, &mut space, part, 1000 + number as u64) {
            batch.blocks().for_each(|(_, block)| output.record_block(&block));
        }
    }
    for batch in node.finish(&mut space, 9999) {
        batch.blocks().for_each(|(_, block)| output.record_block(&block));
    }
    output
}
