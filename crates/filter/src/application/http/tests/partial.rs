//! Tests of connections observed in part: with holes, in one direction only, or from midstream.

use super::*;

#[test]
fn holes_in_bodies_are_counted_and_passed_on() {
    let text = response_text(200, &content_length_field("0123456789"), "012");
    let parts = [
        forward_block(request_text("GET", "", "")),
        backward_block(text),
        hole_block(true, 4),
        backward_block("789"),
        backward_block(response_text(200, "", "more")),
        end_block(true),
    ];
    let (output, node) = run_connection(&["emit=body"], true, &parts);
    assert_eq!(output.classes(), [1, 200, 1200, 200, 1200]);
    let body = &output.messages[1];
    assert_eq!((&body.bytes[..], body.missing_bytes), (&b"012789"[..], 4));
    let exchange = &output.messages[2];
    assert_eq!(exchange.number(Field::ResponseBody), Some(6));
    assert_eq!(exchange.number(Field::Missing), Some(4));
    assert_eq!(exchange.number(Field::Incomplete), None);
    let missing = HTTP.counters.iter().position(|name| *name == "missing bytes").unwrap();
    assert_eq!(node.counts.counters[missing], 4);
}

#[test]
fn messages_resume_after_a_lost_head() {
    for (hidden, lost) in [(3, "456789 not a message"), (40, "in the middle of it")] {
        let parts = [
            forward_block(request_text("GET", "", "")),
            backward_block(response_text(200, &content_length_field("012"), "012")),
            forward_block(request_text("PUT", "", "")),
            backward_block(
                &response_text(200, &content_length_field("0123456789"), "0123456789")[..20],
            ),
            hole_block(true, hidden),
            backward_block(lost),
            backward_block(response_text(404, &content_length_field("abc"), "abc")),
            forward_block(request_text("POST", "", "")),
            backward_block(response_text(500, &content_length_field("x"), "x")),
        ];
        let (output, _) = run_connection(&[], true, &parts);
        let wanted = [(200, "GET"), (404, ""), (500, "POST")];
        let responses: Vec<_> = classes_and_methods(&output, 100)
            .into_iter()
            .filter(|(class, _)| *class < 1000)
            .collect();
        assert_eq!(responses, wanted);
        let exchanges = [(1200, "GET"), (1000, "PUT"), (1404, ""), (1500, "POST")];
        assert_eq!(classes_and_methods(&output, 1000), exchanges);
        assert!(String::from_utf8_lossy(&output.unanswered_bytes()).contains(lost));
    }
}

#[test]
fn single_direction_is_described() {
    let (output, _) = run_connection(
        &[],
        true,
        &[forward_block(GET_REQUEST), forward_block(GET_REQUEST), end_block(false)],
    );
    assert_eq!(output.classes(), [1, 1, 1000, 1000]);
    let (output, _) = run_connection(
        &[],
        true,
        &[backward_block(OK_RESPONSE), backward_block(OK_RESPONSE), end_block(true)],
    );
    assert_eq!(output.classes(), [200, 1200, 200, 1200]);
    assert_eq!(output.messages[1].number(Field::Time), Some(1000));
    let (output, _) = run_connection(
        &["pending=2"],
        true,
        &[forward_block(GET_REQUEST.repeat(4)), backward_block(OK_RESPONSE.repeat(4))],
    );
    assert_eq!(
        output.classes(),
        [1, 1, 1, 1000, 1, 1000, 200, 1200, 200, 1200, 200, 1200, 200, 1200]
    );
    assert_eq!(
        classes_and_methods(&output, 1200)[2..],
        [(1200, ""), (1200, "")],
        "not paired with another one"
    );
}

#[test]
fn client_is_detected_without_a_handshake() {
    let (output, _) = run_midstream_connection(
        &[],
        true,
        &[backward_block(GET_REQUEST), forward_block(OK_RESPONSE)],
    );
    let directions: Vec<(u32, bool)> = output.messages.iter().map(|m| (m.class, m.back)).collect();
    assert_eq!(directions, [(1, false), (200, true), (1200, false)]);
    assert_eq!(output.messages[0].number(Field::ServerPort), Some(4000));
    let (output, node) = run_midstream_connection(
        &[],
        true,
        &[
            backward_block("the rest of a body"),
            backward_block(OK_RESPONSE),
            forward_block(GET_REQUEST),
        ],
    );
    assert_eq!(output.classes(), [200, 1200, 1, 1000]);
    assert_eq!(output.unanswered_bytes(), b"the rest of a body");
    assert_eq!(node.unanswered_reasons().find(|(_, n)| *n > 0), Some(("lost", 1)));
}

/// Checks that a response is never paired with a request that came after a lost one.
#[test]
fn requests_after_lost_ones_wait_for_a_response() {
    let get = |path: &str| forward_block(format!("GET {path} HTTP/1.1\r\n\r\n"));
    let responded =
        |status: u16| backward_block(response_text(status, "Content-Length: 0\r\n", ""));
    let paired = |output: &ConnectionOutput| -> Vec<(u32, String)> {
        let exchanges = output.messages.iter().filter(|message| message.class >= 1000);
        exchanges.map(|message| (message.class, message.text(Field::Url).to_owned())).collect()
    };
    let named = |exchanges: &[(u32, &str)]| -> Vec<(u32, String)> {
        exchanges.iter().map(|(class, path)| (*class, (*path).to_owned())).collect()
    };
    let all = [responded(201), responded(202), responded(203)].map(|part| part.bytes).concat();
    let pipelined = [hole_block(false, 30), get("/2"), get("/3"), backward_block(&all), get("/4")];
    let parts = [&pipelined[..], &[responded(204)]].concat();
    let (output, _) = run_connection(&[], true, &parts);
    let unpaired = [(1000, "/2"), (1000, "/3"), (1201, ""), (1202, ""), (1203, "")];
    assert_eq!(paired(&output), named(&[&unpaired[..], &[(1204, "/4")]].concat()));
    // The first block that was observed ends a request, or a hole follows a request.
    let mut parts = parts.to_vec();
    parts[0] = forward_block("he: end\r\nof: it\r\n\r\n");
    let (output, _) = run_midstream_connection(&[], true, &parts);
    assert_eq!(paired(&output), named(&[&unpaired[..], &[(1204, "/4")]].concat()));
    let parts = [get("/1"), hole_block(false, 30), get("/3"), backward_block(&all)];
    let (output, _) = run_connection(&[], true, &parts);
    assert_eq!(paired(&output), named(&[(1000, "/3"), (1201, "/1"), (1202, ""), (1203, "")]));
    // Without pipelining, only the lost request is not paired.
    let parts = [
        hole_block(false, 30),
        responded(201),
        get("/2"),
        responded(202),
        get("/3"),
        responded(203),
    ];
    let (output, _) = run_connection(&[], true, &parts);
    assert_eq!(paired(&output), named(&[(1201, ""), (1202, "/2"), (1203, "/3")]));
}

#[test]
fn body_fields_of_an_exchange_are_those_of_the_response() {
    let fields = "Content-Type: a/b\r\nContent-Encoding: br\r\nContent-Length: 3\r\n";
    let post = forward_block(request_text("POST", fields, "abc"));
    let chunked = response_text(200, "Transfer-Encoding: chunked\r\n", "0\r\n\r\n");
    let (output, _) = run_connection(&[], true, &[post.clone(), backward_block(chunked)]);
    let body_fields = [Field::ContentType, Field::ContentEncoding, Field::ContentLength];
    let has = |message: &OutputMessage, field| message.fields.iter().any(|(f, _)| *f == field);
    for field in body_fields {
        let found: Vec<bool> = output.messages.iter().map(|m| has(m, field)).collect();
        assert_eq!(found, [true, false, false], "{field:?}");
    }
    let (output, _) = run_connection(&[], true, &[post, backward_block(OK_RESPONSE)]);
    let exchange = &output.messages[2];
    assert_eq!(exchange.text(Field::ContentType), "text/plain");
    assert_eq!(exchange.number(Field::ContentLength), Some(5));
    let (output, _) =
        run_connection(&[], true, &[forward_block(request_text("PUT", fields, "abc"))]);
    assert!(body_fields.iter().all(|field| !has(&output.messages[1], *field)));
}

#[test]
fn descriptions_with_a_long_text_are_marked() {
    for (length, is_cut) in [(8192, false), (8193, true), (60_000, true)] {
        let get = format!("GET /{} HTTP/1.1\r\n\r\n", "u".repeat(length - 1));
        let mut parts: Vec<_> = get.as_bytes().chunks(1400).map(forward_block).collect();
        parts.extend([backward_block(OK_RESPONSE), end_block(false), end_block(true)]);
        let (output, _) = run_connection(&[], true, &parts);
        assert_eq!(output.classes(), [1, 200, 1200]);
        for message in &output.messages {
            assert_eq!((message.text(Field::Url).len(), message.is_cut), (8192, is_cut));
        }
    }
}

/// Checks that a response to HEAD, which announces a body but has none, does not hide later
/// responses if the HEAD request was not observed.
#[test]
fn unseen_head_request_hides_no_response() {
    for fields in ["Content-Length: 100\r\n", "", "Transfer-Encoding: chunked\r\n"] {
        let first = response_text(200, fields, "");
        for parts in [
            vec![backward_block(&first), backward_block(OK_RESPONSE), end_block(true)],
            vec![backward_block([&first, OK_RESPONSE].concat()), end_block(true)],
        ] {
            let (output, _) = run_connection(&["emit=body"], true, &parts);
            assert_eq!(output.classes(), [200, 1200, 200, 1200], "{fields:?}");
            assert_eq!(output.body_texts(), ["", "", "hello", ""], "{fields:?}");
            assert!(output.messages.iter().all(|message| message.whole), "{fields:?}");
        }
    }
}
