//! Tests of `http` on hand-written connections: blocks in, messages out.

mod broken;
mod codings;
mod partial;
mod pieces;
mod resync;

use super::*;
use crate::testing::{Arena, Frame, Node, Space};
use wire::record::{Field, Record, RecordKind};

/// An input block, as `tcp` emits it.
#[derive(Clone, Debug)]
struct StreamBlock {
    back: bool,
    bytes: Vec<u8>,
    /// Length in bytes of a hole; 0 for a block with bytes.
    hole: u32,
    flags: BlockFlags,
}

fn forward_block(bytes: impl AsRef<[u8]>) -> StreamBlock {
    StreamBlock { back: false, bytes: bytes.as_ref().to_vec(), hole: 0, flags: BlockFlags::NONE }
}

fn backward_block(bytes: impl AsRef<[u8]>) -> StreamBlock {
    StreamBlock { back: true, ..forward_block(bytes) }
}

fn hole_block(back: bool, hole: u32) -> StreamBlock {
    StreamBlock { back, bytes: Vec::new(), hole, flags: BlockFlags::NONE }
}

fn end_block(back: bool) -> StreamBlock {
    StreamBlock { flags: BlockFlags::SESSION_END, ..hole_block(back, 0) }
}

/// An output message, reassembled from its fragments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct OutputMessage {
    class: u32,
    back: bool,
    kind: Option<RecordKind>,
    fields: Vec<(Field, Vec<u8>)>,
    bytes: Vec<u8>,
    /// Number of missing bytes: the total length of the holes.
    missing_bytes: u32,
    whole: bool,
    /// True if a fragment has decoded bytes.
    is_decoded: bool,
    /// True if a text of the description was cut.
    is_cut: bool,
}

impl OutputMessage {
    fn text(&self, field: Field) -> &str {
        let value = self.fields.iter().find(|(f, _)| *f == field).map(|(_, value)| value);
        value.map_or("", |value| std::str::from_utf8(value).unwrap())
    }

    fn number(&self, field: Field) -> Option<u64> {
        let value = self.fields.iter().find(|(f, _)| *f == field).map(|(_, value)| value)?;
        wire::record::decode_number(value)
    }
}

/// The output of `http` for one connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ConnectionOutput {
    messages: Vec<OutputMessage>,
    /// Bytes that `http` emitted without a class, per direction.
    unanswered: [Vec<u8>; 2],
    /// Index of the message whose fragments have not all arrived, per direction.
    open: [Option<usize>; 2],
}

impl ConnectionOutput {
    fn record_block(&mut self, block: &Block<'_>) {
        let back = block.context.flags.contains(BlockFlags::BACKWARD);
        if !block.pointer.class.is_answered() {
            self.unanswered[usize::from(back)].extend(block.bytes());
            return;
        }
        let class = block.pointer.class.0;
        let direction = usize::from(back);
        if block.context.flags.contains(BlockFlags::FIRST) {
            assert!(block.marks.is_description() && block.length() == 0, "{block:?}");
            let record = Record::parse(block.frame).expect("a record");
            let is_cut = record.is_truncated();
            let fields = record.fields().map(|(field, value)| (field, value.to_vec()));
            let kind = Some(record.kind());
            if class < 1000 {
                assert!(self.open[direction].is_none(), "a message begins within one: {block:?}");
                self.open[direction] = Some(self.messages.len());
            }
            let fields = fields.collect();
            self.messages.push(OutputMessage {
                class,
                back,
                kind,
                fields,
                is_cut,
                ..OutputMessage::default()
            });
            if class >= 1000 {
                self.messages.last_mut().expect("an exchange").whole = true;
                assert!(block.context.flags.contains(BlockFlags::LAST));
                return;
            }
        }
        let open = self.open[direction].expect("a fragment of an open message");
        let message = &mut self.messages[open];
        assert_eq!((message.class, message.back), (class, back));
        message.bytes.extend(block.bytes());
        message.missing_bytes += block.length() - block.bytes().len() as u32;
        let flags = block.context.flags;
        message.is_decoded |= flags.contains(BlockFlags::DECODED);
        if flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END) {
            message.whole = flags.contains(BlockFlags::LAST);
            self.open[direction] = None;
        }
    }

    fn unanswered_bytes(&self) -> Vec<u8> {
        self.unanswered.concat()
    }

    fn classes(&self) -> Vec<u32> {
        self.messages.iter().map(|message| message.class).collect()
    }

    fn body_texts(&self) -> Vec<String> {
        let text = |m: &OutputMessage| String::from_utf8_lossy(&m.bytes).into_owned();
        self.messages.iter().map(text).collect()
    }
}

const SESSION_NUMBER: u32 = 7;

/// Makes the block for `part`, with `time` as its timestamp, in a frame of its own. The block is a
/// hole if `part` has no bytes.
fn make_block<'a>(space: &Space<'a>, part: &StreamBlock, time: u64) -> Block<'a> {
    let frame = match part.back {
        false => Frame::tcp(4000, 80, &part.bytes),
        true => {
            let mut frame = Frame::tcp(80, 4000, &part.bytes);
            let (source, target) = (frame.bytes[26..30].to_vec(), frame.bytes[30..34].to_vec());
            frame.bytes[26..34].copy_from_slice(&[target, source].concat());
            frame
        }
    };
    let frame = frame.at_time(time);
    let mut block = space.batch(&[frame]).block(0).narrow(54, u32::MAX);
    block.context.session = SESSION_NUMBER;
    block.context.flags = part.flags;
    if part.back {
        block.context.flags = part.flags.with(BlockFlags::BACKWARD);
    }
    if part.bytes.is_empty() {
        block.pointer = RichPointer::hole(part.hole);
        block.marks = Marks::for_plain_block(part.hole);
        block.frame = &[];
    }
    block
}

/// Runs one block through the filter and returns the output.
fn run_block<'a>(
    node: &mut Node,
    space: &mut Space<'a>,
    part: &StreamBlock,
    time: u64,
) -> Vec<Batch<'a>> {
    let mut batch = Batch::empty();
    batch.push(make_block(space, part, time), 0).expect("a free lane");
    node.process_batch(batch, space, time)
}

/// Runs the filter on a connection that is observed from the first byte of both directions.
fn run_connection(
    words: &[&str],
    exchanges: bool,
    parts: &[StreamBlock],
) -> (ConnectionOutput, Node) {
    let mut parts = parts.to_vec();
    for back in [false, true] {
        if let Some(first) = parts.iter_mut().find(|part| part.back == back) {
            first.flags = first.flags.with(BlockFlags::FIRST);
        }
    }
    run_midstream_connection(words, exchanges, &parts)
}

fn run_midstream_connection(
    words: &[&str],
    exchanges: bool,
    parts: &[StreamBlock],
) -> (ConnectionOutput, Node) {
    let asked: &[(u32, u32)] = if exchanges { &[(1000, 1999)] } else { &[] };
    let mut node = Node::with_classes(&HTTP, words, asked).expect("good arguments");
    let arena = Arena::new(parts.len() * 8 + 64);
    let mut space = Space::new(&arena);
    let mut output = ConnectionOutput::default();
    let mut left = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        left.extend(run_block(&mut node, &mut space, part, 1000 + number as u64));
    }
    left.extend(node.finish(&mut space, 9999));
    for batch in &left {
        batch.blocks().for_each(|(_, block)| output.record_block(&block));
    }
    assert_eq!(output.open, [None, None], "a message without an end");
    assert_eq!(node.counts.held.blocks, 0, "nothing is held at the end");
    let is_longest = |(field, value): &(Field, Vec<u8>)| {
        value.len() == if *field == Field::User { 192 } else { 8192 }
    };
    for message in &output.messages {
        assert!(!message.is_cut || message.fields.iter().any(is_longest));
    }
    (output, node)
}

const GET_REQUEST: &str = "GET /a?b HTTP/1.1\r\nHost: h\r\nUser-Agent: me\r\nReferer: r\r\n\
                   Authorization: Basic am9lOnNlY3JldA==\r\n\r\n";
const OK_RESPONSE: &str =
    "HTTP/1.1 200 fine\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello";

/// Empty and absent fields differ, as server logs distinguish `""` from `"-"`. Credentials without
/// a colon have no user name (RFC 7617).
#[test]
fn empty_fields_differ_from_absent_fields() {
    let reported = |fields: &str, field: Field| {
        let get = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let (output, _) = run_connection(
            &[],
            true,
            &[forward_block(&get), backward_block(OK_RESPONSE), end_block(false), end_block(true)],
        );
        let fields = &output.messages[0].fields;
        let value = fields.iter().find(|(known, _)| *known == field).map(|(_, value)| value);
        assert_eq!(output.messages[0].is_cut, value.is_some_and(|value| value.len() == 192));
        value.cloned()
    };
    assert_eq!(reported("", Field::Referer), None);
    assert_eq!(reported("Referer:\r\n", Field::Referer), Some(Vec::new()));
    assert_eq!(reported("User-Agent: \r\nUser-Agent: b\r\n", Field::UserAgent), Some(Vec::new()));
    let user =
        |letters: &str| reported(&format!("Authorization: basic {letters}\r\n"), Field::User);
    assert_eq!(user("am9lOng="), Some(b"joe".to_vec()));
    assert_eq!((user("am9l"), user("Ong=")), (None, None), "no colon, no name");
    let long = "YWFh".repeat(100);
    assert_eq!(user(&format!("{long}Ong=")), Some(vec![b'a'; 192]), "its beginning");
}

#[test]
fn v22_request_and_response_are_described() {
    let (output, node) = run_connection(
        &[],
        true,
        &[
            forward_block(GET_REQUEST),
            backward_block(OK_RESPONSE),
            end_block(false),
            end_block(true),
        ],
    );
    assert_eq!(output.classes(), [1, 200, 1200]);
    assert_eq!(output.body_texts(), [GET_REQUEST, OK_RESPONSE, ""]);
    let [request, response, exchange] = &output.messages[..] else { panic!() };
    for message in [request, response, exchange] {
        assert_eq!(message.text(Field::Method), "GET");
        assert_eq!(message.text(Field::Url), "/a?b");
        assert_eq!(message.text(Field::Host), "h");
        assert_eq!(message.text(Field::Version), "1.1");
        assert_eq!(message.number(Field::ClientPort), Some(4000));
        assert_eq!(message.number(Field::ServerPort), Some(80));
        let client = message.fields.iter().find(|(field, _)| *field == Field::Client);
        assert_eq!(client.map(|(_, value)| &value[..]), Some(&[10, 0, 0, 1][..]));
        assert!(message.whole);
    }
    for message in [request, exchange] {
        assert_eq!(message.text(Field::User), "joe");
        assert_eq!(message.text(Field::UserAgent), "me");
        assert_eq!(message.text(Field::Referer), "r");
        assert_eq!(message.number(Field::Time), Some(1000));
    }
    for message in [response, exchange] {
        assert_eq!(message.number(Field::Status), Some(200));
        assert_eq!(message.text(Field::StatusText), "fine");
        assert_eq!(message.text(Field::ContentType), "text/plain");
        assert_eq!(message.number(Field::ContentLength), Some(5));
    }
    assert_eq!(response.number(Field::Time), Some(1001));
    assert_eq!(exchange.number(Field::ResponseTime), Some(1001));
    assert_eq!(exchange.number(Field::End), Some(1001));
    assert_eq!(exchange.number(Field::ResponseBody), Some(5));
    assert_eq!(exchange.number(Field::RequestBody), Some(0));
    assert_eq!(exchange.number(Field::RequestHead), Some(GET_REQUEST.len() as u64));
    assert_eq!(exchange.number(Field::ResponseHead), Some(OK_RESPONSE.len() as u64 - 5));
    assert_eq!(exchange.number(Field::Incomplete), None);
    let tally: Vec<u64> = node.report().rows.iter().map(|(_, n)| *n).collect();
    assert_eq!(tally, [1, 0, 0, 0]);
}

fn response_text(status: u16, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\n{fields}\r\n{body}")
}

fn request_text(method: &str, fields: &str, body: &str) -> String {
    format!("{method} /{method} HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}")
}

fn content_length_field(body: &str) -> String {
    format!("Content-Length: {}\r\n", body.len())
}

/// Returns the class and method of each message whose class is at least `low`.
fn classes_and_methods(output: &ConnectionOutput, low: u32) -> Vec<(u32, &str)> {
    let from = output.messages.iter().filter(|message| message.class >= low);
    from.map(|message| (message.class, message.text(Field::Method))).collect()
}

#[test]
fn responses_pair_with_requests_in_order() {
    let requests = [
        request_text("GET", "", ""),
        request_text("HEAD", "", ""),
        request_text("POST", &content_length_field("abc"), "abc"),
        request_text("PUT", "Transfer-Encoding: chunked\r\n", "2\r\nab\r\n0\r\n\r\n"),
        request_text("BREW", "", ""),
    ];
    let responses = [
        response_text(304, &content_length_field("12345"), ""),
        response_text(200, &content_length_field("12345"), ""),
        response_text(100, "", ""),
        response_text(201, &content_length_field("done"), "done"),
        response_text(204, "", ""),
        response_text(418, "", "until the end"),
    ];
    let parts = [
        forward_block(requests.concat()),
        backward_block(responses.concat()),
        end_block(false),
        end_block(true),
    ];
    let (output, node) = run_connection(&[], true, &parts);
    let wanted = [(304, "GET"), (200, "HEAD"), (100, "POST"), (201, "POST"), (204, "PUT")];
    let wanted: Vec<(u32, &str)> = wanted.into_iter().chain([(418, "BREW")]).collect();
    let responded: Vec<(u32, &str)> =
        classes_and_methods(&output, 100).into_iter().filter(|(class, _)| *class < 1000).collect();
    assert_eq!(responded, wanted);
    let exchanged: Vec<(u32, &str)> =
        wanted.iter().filter(|(class, _)| *class != 100).map(|(c, m)| (c + 1000, *m)).collect();
    assert_eq!(classes_and_methods(&output, 1000), exchanged);
    let requested: Vec<u32> =
        output.messages.iter().map(|m| m.class).filter(|class| *class < 100).collect();
    assert_eq!(requested, [1, 2, 3, 4, 99]);
    let texts = output.body_texts();
    for text in requests.iter().chain(&responses) {
        assert!(texts.contains(text), "{text}");
    }
    let bodies = output.messages.iter().filter(|message| message.class >= 1000);
    let lengths = bodies.map(|m| (m.number(Field::RequestBody), m.number(Field::ResponseBody)));
    let lengths: Vec<_> = lengths.map(|(a, b)| (a.unwrap(), b.unwrap())).collect();
    assert_eq!(lengths, [(0, 0), (0, 0), (3, 4), (2, 0), (0, 13)]);
    assert!(output.unanswered_bytes().is_empty());
    assert_eq!(node.counts.unanswered.iter().sum::<u64>(), 0);
}

#[test]
fn emit_parameter_selects_message_parts() {
    let chunked =
        response_text(200, "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    let get = request_text("GET", "", "");
    let parts = [forward_block(&get), backward_block(&chunked)];
    let texts = |word: &str| run_connection(&[word], false, &parts).0.body_texts();
    let head = chunked.split_inclusive("\r\n\r\n").next().unwrap();
    assert_eq!(texts("emit=message"), [&get[..], &chunked]);
    assert_eq!(texts("emit=head"), [&get[..], head]);
    assert_eq!(texts("emit=body"), ["", "abcde"]);
}

#[test]
fn v21_report_counts_connections_per_protocol() {
    let tally = |there: &str, here: &str| {
        let (output, node) =
            run_connection(&[], false, &[forward_block(there), backward_block(here)]);
        let tally: Vec<u64> = node.report().rows.iter().map(|(_, n)| *n).collect();
        (tally, output.messages.len(), output.unanswered_bytes().len())
    };
    assert_eq!(tally(GET_REQUEST, OK_RESPONSE), (vec![1, 0, 0, 0], 2, 0));
    assert_eq!(tally("\x16\x03\x01\x02\0\x01", "x"), (vec![0, 1, 0, 0], 0, 7));
    assert_eq!(tally("PRI * HTTP/2.0\r\n\r\n", "x"), (vec![0, 0, 1, 0], 0, 19));
    assert_eq!(tally("EHLO there\r\n", "220 mail\r\n"), (vec![0, 0, 0, 1], 0, 22));
    assert_eq!(tally("\0\0\0", OK_RESPONSE), (vec![1, 0, 0, 0], 1, 3), "one end speaks it");
}

#[test]
fn overlong_head_is_malformed() {
    let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(600));
    let mut parts: Vec<StreamBlock> = long.as_bytes().chunks(50).map(forward_block).collect();
    parts.push(forward_block(GET_REQUEST));
    let (output, node) = run_connection(&["head=256"], false, &parts);
    assert_eq!(output.messages.len(), 0);
    assert_eq!(output.unanswered_bytes().len(), long.len() + GET_REQUEST.len());
    assert!(node.unanswered_reasons().all(|(why, n)| why == "not http" || n == 0));
    parts.insert(0, forward_block(GET_REQUEST));
    let (output, node) = run_connection(&["head=256"], false, &parts);
    assert_eq!(output.body_texts(), [GET_REQUEST, GET_REQUEST]);
    assert_eq!(output.unanswered_bytes().len(), long.len());
    assert!(node.unanswered_reasons().any(|(why, n)| why == "malformed" && n > 0));
}

#[test]
fn strict_mode_stops_after_the_last_message() {
    let close =
        response_text(200, &format!("{}Connection: close\r\n", content_length_field("x")), "x");
    let parts = [forward_block(GET_REQUEST), backward_block(close.repeat(2))];
    assert_eq!(run_connection(&[], false, &parts).0.classes(), [1, 200, 200]);
    let (output, node) = run_connection(&["strict=yes"], false, &parts);
    assert_eq!(output.classes(), [1, 200]);
    assert_eq!(node.unanswered_reasons().find(|(_, n)| *n > 0), Some(("after close", 1)));
    let loose = [forward_block("GET / HTTP/1.1\nHost: a\n\n")];
    assert_eq!(run_connection(&[], false, &loose).0.classes(), [1]);
    assert_eq!(run_connection(&["strict=yes"], false, &loose).0.classes(), [0; 0]);
}

#[test]
fn connection_beyond_the_maximum_evicts_one() {
    let arena = Arena::new(4096);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&HTTP, &["connections=3"]).expect("good arguments");
    let mut part = forward_block(&GET_REQUEST[..10]);
    part.flags = BlockFlags::FIRST;
    for session in 1..=100 {
        let mut block = make_block(&space, &part, 0);
        block.context.session = session;
        let mut batch = Batch::empty();
        batch.push(block, 0).expect("a free lane");
        node.process_batch(batch, &mut space, 0);
    }
    assert_eq!(node.counts.held.blocks, 3);
    assert_eq!(node.unanswered_reasons().find(|(_, n)| *n > 0), Some(("cut", 97)));
    let left: usize = node.finish(&mut space, 0).iter().map(Batch::len).sum();
    assert_eq!((left, node.counts.held.blocks), (3, 0));
}

#[test]
fn view_beyond_captured_bytes_is_a_hole() {
    let arena = Arena::new(64);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&HTTP, &[]).expect("good arguments");
    let mut part = forward_block(GET_REQUEST);
    part.flags = BlockFlags::FIRST;
    let mut lying = make_block(&space, &part, 0);
    lying.marks.view += 20;
    let mut batch = Batch::empty();
    batch.push(lying, 0).expect("a free lane");
    let left = node.process_batch(batch, &mut space, 0);
    assert_eq!(left.iter().map(Batch::len).sum::<usize>(), 1);
    assert_eq!(node.unanswered_reasons().find(|(_, n)| *n > 0), Some(("lost", 1)));
}
