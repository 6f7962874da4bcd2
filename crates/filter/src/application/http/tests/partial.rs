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
