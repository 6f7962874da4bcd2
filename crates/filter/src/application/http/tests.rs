//! Connections by hand: blocks in, messages out.

use super::*;
use crate::testing::{Arena, Frame, Node, Space};
use wire::record::{Field, Kind as Told, Record};

/// What the stream filter gives.
#[derive(Clone, Debug)]
struct Part {
    back: bool,
    bytes: Vec<u8>,
    /// The length of a hole instead of bytes.
    hole: u32,
    flags: Flags,
}

fn ahead(bytes: impl AsRef<[u8]>) -> Part {
    Part { back: false, bytes: bytes.as_ref().to_vec(), hole: 0, flags: Flags::NONE }
}

fn back(bytes: impl AsRef<[u8]>) -> Part {
    Part { back: true, ..ahead(bytes) }
}

fn hole(back: bool, hole: u32) -> Part {
    Part { back, bytes: Vec::new(), hole, flags: Flags::NONE }
}

fn end(back: bool) -> Part {
    Part { flags: Flags::END, ..hole(back, 0) }
}

/// A message as it left, put together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Message {
    class: u32,
    back: bool,
    kind: Option<Told>,
    fields: Vec<(Field, Vec<u8>)>,
    bytes: Vec<u8>,
    /// Bytes in holes.
    missing: u32,
    whole: bool,
}

impl Message {
    fn text(&self, field: Field) -> &str {
        let value = self.fields.iter().find(|(f, _)| *f == field).map(|(_, value)| value);
        value.map_or("", |value| std::str::from_utf8(value).unwrap())
    }

    fn number(&self, field: Field) -> Option<u64> {
        let value = self.fields.iter().find(|(f, _)| *f == field).map(|(_, value)| value)?;
        wire::record::number(value)
    }
}

/// What a connection becomes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Seen {
    messages: Vec<Message>,
    /// Bytes that were not answered, by direction.
    asides: [Vec<u8>; 2],
    /// Open messages, by direction.
    open: [Option<usize>; 2],
}

impl Seen {
    fn take(&mut self, block: &Block<'_>) {
        let back = block.context.flags.has(Flags::BACKWARD);
        if !block.pointer.class.answered() {
            self.asides[usize::from(back)].extend(block.bytes());
            return;
        }
        let class = block.pointer.class.0;
        let way = usize::from(back);
        if block.context.flags.has(Flags::FIRST) {
            assert!(block.marks.is_description() && block.length() == 0, "{block:?}");
            let record = Record::parse(block.frame).expect("a record");
            assert!(!record.is_cut());
            let fields = record.fields().map(|(field, value)| (field, value.to_vec()));
            let kind = Some(record.kind());
            if class < 1000 {
                assert!(self.open[way].is_none(), "a message begins within one: {block:?}");
                self.open[way] = Some(self.messages.len());
            }
            let fields = fields.collect();
            self.messages.push(Message { class, back, kind, fields, ..Message::default() });
            if class >= 1000 {
                self.messages.last_mut().expect("an exchange").whole = true;
                assert!(block.context.flags.has(Flags::LAST));
                return;
            }
        }
        let open = self.open[way].expect("a fragment of an open message");
        let message = &mut self.messages[open];
        assert_eq!((message.class, message.back), (class, back));
        message.bytes.extend(block.bytes());
        message.missing += block.length() - block.bytes().len() as u32;
        let flags = block.context.flags;
        if flags.has(Flags::LAST) || flags.has(Flags::END) {
            message.whole = flags.has(Flags::LAST);
            self.open[way] = None;
        }
    }

    fn aside(&self) -> Vec<u8> {
        self.asides.concat()
    }

    fn classes(&self) -> Vec<u32> {
        self.messages.iter().map(|message| message.class).collect()
    }

    fn texts(&self) -> Vec<String> {
        let text = |m: &Message| String::from_utf8_lossy(&m.bytes).into_owned();
        self.messages.iter().map(text).collect()
    }
}

const SESSION: u32 = 7;

/// The block that a part is, in a frame of its own.
fn block<'a>(space: &Space<'a>, part: &Part, time: u64) -> Block<'a> {
    let frame = match part.back {
        false => Frame::tcp(4000, 80, &part.bytes),
        true => {
            let mut frame = Frame::tcp(80, 4000, &part.bytes);
            let (source, target) = (frame.bytes[26..30].to_vec(), frame.bytes[30..34].to_vec());
            frame.bytes[26..34].copy_from_slice(&[target, source].concat());
            frame
        }
    };
    let frame = frame.at(time);
    let mut block = space.batch(&[frame]).block(0).narrow(54, u32::MAX);
    block.context.session = SESSION;
    block.context.flags = part.flags;
    if part.back {
        block.context.flags = part.flags.with(Flags::BACKWARD);
    }
    if part.bytes.is_empty() {
        block.pointer = RichPointer::hole(part.hole);
        block.marks = Marks::bare(part.hole);
        block.frame = &[];
    }
    block
}

fn turn<'a>(node: &mut Node, space: &mut Space<'a>, part: &Part, time: u64) -> Vec<Batch<'a>> {
    let mut batch = Batch::empty();
    batch.push(block(space, part, time), 0).expect("a free lane");
    node.turn(batch, space, time)
}

/// What the filter makes of a connection whose directions are seen from their first byte.
fn connection(words: &[&str], exchanges: bool, parts: &[Part]) -> (Seen, Node) {
    let mut parts = parts.to_vec();
    for back in [false, true] {
        if let Some(first) = parts.iter_mut().find(|part| part.back == back) {
            first.flags = first.flags.with(Flags::FIRST);
        }
    }
    midstream(words, exchanges, &parts)
}

fn midstream(words: &[&str], exchanges: bool, parts: &[Part]) -> (Seen, Node) {
    let asked: &[(u32, u32)] = if exchanges { &[(1000, 1999)] } else { &[] };
    let mut node = Node::asked_for(&HTTP, words, asked).expect("good arguments");
    let arena = Arena::new(parts.len() * 8 + 64);
    let mut space = Space::new(&arena);
    let mut seen = Seen::default();
    let mut left = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        left.extend(turn(&mut node, &mut space, part, 1000 + number as u64));
    }
    left.extend(node.finish(&mut space, 9999));
    for batch in &left {
        batch.blocks().for_each(|(_, block)| seen.take(&block));
    }
    assert_eq!(seen.open, [None, None], "a message without an end");
    assert_eq!(node.counts.held.blocks, 0, "nothing is held at the end");
    (seen, node)
}

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: h\r\nUser-Agent: me\r\nReferer: r\r\n\
                   Authorization: Basic am9lOnNlY3JldA==\r\n\r\n";
const OK: &str = "HTTP/1.1 200 fine\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello";

/// As a server writes them into its log: `""` and `"-"` are two things, and what has no colon is no
/// name with a password (RFC 7617).
#[test]
fn what_is_empty_is_told_apart_from_what_is_not_there() {
    let told = |fields: &str, field: Field| {
        let get = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let (seen, _) = connection(&[], true, &[ahead(&get), back(OK), end(false), end(true)]);
        let fields = &seen.messages[0].fields;
        fields.iter().find(|(known, _)| *known == field).map(|(_, value)| value.clone())
    };
    assert_eq!(told("", Field::Referer), None);
    assert_eq!(told("Referer:\r\n", Field::Referer), Some(Vec::new()));
    assert_eq!(told("User-Agent: \r\nUser-Agent: b\r\n", Field::UserAgent), Some(Vec::new()));
    let user = |letters: &str| told(&format!("Authorization: basic {letters}\r\n"), Field::User);
    assert_eq!(user("am9lOng="), Some(b"joe".to_vec()));
    assert_eq!((user("am9l"), user("Ong=")), (None, None), "no colon, no name");
    let long = "YWFh".repeat(100);
    assert_eq!(user(&format!("{long}Ong=")), Some(vec![b'a'; 192]), "its beginning");
}

#[test]
fn v22_a_request_and_its_response_are_described() {
    let (seen, node) = connection(&[], true, &[ahead(GET), back(OK), end(false), end(true)]);
    assert_eq!(seen.classes(), [1, 200, 1200]);
    assert_eq!(seen.texts(), [GET, OK, ""]);
    let [request, response, exchange] = &seen.messages[..] else { panic!() };
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
    assert_eq!(exchange.number(Field::RequestHead), Some(GET.len() as u64));
    assert_eq!(exchange.number(Field::ResponseHead), Some(OK.len() as u64 - 5));
    assert_eq!(exchange.number(Field::Incomplete), None);
    let tally: Vec<u64> = node.report().rows.iter().map(|(_, n)| *n).collect();
    assert_eq!(tally, [1, 0, 0, 0]);
}

fn response(status: u16, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\n{fields}\r\n{body}")
}

fn request(method: &str, fields: &str, body: &str) -> String {
    format!("{method} /{method} HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}")
}

fn length(body: &str) -> String {
    format!("Content-Length: {}\r\n", body.len())
}

/// Status and method of every response or exchange with classes from `low`.
fn pairs(seen: &Seen, low: u32) -> Vec<(u32, &str)> {
    let from = seen.messages.iter().filter(|message| message.class >= low);
    from.map(|message| (message.class, message.text(Field::Method))).collect()
}

#[test]
fn responses_belong_to_requests_in_their_order() {
    let requests = [
        request("GET", "", ""),
        request("HEAD", "", ""),
        request("POST", &length("abc"), "abc"),
        request("PUT", "Transfer-Encoding: chunked\r\n", "2\r\nab\r\n0\r\n\r\n"),
        request("BREW", "", ""),
    ];
    let responses = [
        response(304, &length("12345"), ""),
        response(200, &length("12345"), ""),
        response(100, "", ""),
        response(201, &length("done"), "done"),
        response(204, "", ""),
        response(418, "", "until the end"),
    ];
    let parts = [ahead(requests.concat()), back(responses.concat()), end(false), end(true)];
    let (seen, node) = connection(&[], true, &parts);
    let wanted = [(304, "GET"), (200, "HEAD"), (100, "POST"), (201, "POST"), (204, "PUT")];
    let wanted: Vec<(u32, &str)> = wanted.into_iter().chain([(418, "BREW")]).collect();
    let responded: Vec<(u32, &str)> =
        pairs(&seen, 100).into_iter().filter(|(class, _)| *class < 1000).collect();
    assert_eq!(responded, wanted);
    let exchanged: Vec<(u32, &str)> =
        wanted.iter().filter(|(class, _)| *class != 100).map(|(c, m)| (c + 1000, *m)).collect();
    assert_eq!(pairs(&seen, 1000), exchanged);
    let requested: Vec<u32> =
        seen.messages.iter().map(|m| m.class).filter(|class| *class < 100).collect();
    assert_eq!(requested, [1, 2, 3, 4, 99]);
    let texts = seen.texts();
    for text in requests.iter().chain(&responses) {
        assert!(texts.contains(text), "{text}");
    }
    let bodies = seen.messages.iter().filter(|message| message.class >= 1000);
    let lengths = bodies.map(|m| (m.number(Field::RequestBody), m.number(Field::ResponseBody)));
    let lengths: Vec<_> = lengths.map(|(a, b)| (a.unwrap(), b.unwrap())).collect();
    assert_eq!(lengths, [(0, 0), (0, 0), (3, 4), (2, 0), (0, 13)]);
    assert!(seen.aside().is_empty());
    assert_eq!(node.counts.unanswered.iter().sum::<u64>(), 0);
}

#[test]
fn what_is_given_is_what_was_asked_for() {
    let chunked =
        response(200, "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    let get = request("GET", "", "");
    let parts = [ahead(&get), back(&chunked)];
    let texts = |word: &str| connection(&[word], false, &parts).0.texts();
    let head = chunked.split_inclusive("\r\n\r\n").next().unwrap();
    assert_eq!(texts("emit=message"), [&get[..], &chunked]);
    assert_eq!(texts("emit=head"), [&get[..], head]);
    assert_eq!(texts("emit=body"), ["", "abcde"]);
}

/// Connections that mean something, each direction as one text.
fn examples() -> Vec<(String, String)> {
    let chunks = "Transfer-Encoding: chunked\r\n";
    vec![
        (request("GET", "", ""), response(200, &length("hello"), "hello")),
        (
            request("POST", chunks, "3;x\r\nabc\r\n0\r\nA: b\r\n\r\n")
                + "\r\n"
                + &request("GET", "", ""),
            response(100, "", "")
                + &response(200, chunks, "1\r\n!\r\n0\r\n\r\n")
                + &response(204, "", ""),
        ),
        (
            request("HEAD", "", ""),
            response(200, &length("none"), "") + &response(200, "", "to the end"),
        ),
        (request("CONNECT", "", "") + "\x16tls", response(200, "", "") + "\x16more"),
        (
            request("GET", "Connection: upgrade\r\nUpgrade: x\r\n", "") + "new",
            response(101, "Connection: upgrade\r\nUpgrade: x\r\n", "") + "words",
        ),
        ("GET /old\r\n".to_owned(), "no head at all".to_owned()),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "\0\0\0\x04".to_owned()),
        ("\x16\x03\x01\x02\0\x01".to_owned(), "\x16\x03\x03".to_owned()),
        ("SSH-2.0-a b\r\n".to_owned(), "SSH-2.0-c\r\n".to_owned()),
        (request("GET", "", "") + "( no request\r\n\r\n", response(200, "", "x")),
        ("GET / HTTP/1.1\r\nHos".to_owned(), response(200, &length("cut short"), "cut")),
    ]
}

/// What must not depend on how the bytes were cut.
fn essence(seen: &Seen) -> Vec<Message> {
    let mut messages = seen.messages.clone();
    for message in &mut messages {
        let times = [Field::Time, Field::End, Field::ResponseTime];
        message.fields.retain(|(field, _)| !times.contains(field));
    }
    messages.sort_by_key(|message| (message.class >= 1000, message.back));
    messages
}

#[test]
fn messages_are_the_same_however_they_are_cut() {
    for words in [&["emit=message"][..], &["emit=body"], &["strict=yes", "emit=head"]] {
        for (there, here) in examples() {
            let whole = [ahead(&there), back(&here), end(false), end(true)];
            let (wanted, _) = connection(words, true, &whole);
            for (text, backward) in [(&there, false), (&here, true)] {
                let step = 1 + text.len() / 24;
                for first in (1..text.len()).step_by(step) {
                    for second in (first + 1..text.len()).step_by(step) {
                        let (a, rest) = text.as_bytes().split_at(first);
                        let (b, c) = rest.split_at(second - first);
                        let part = if backward { back } else { ahead };
                        let mut parts = vec![part(a), part(b), part(c), end(false), end(true)];
                        match backward {
                            true => parts.insert(0, ahead(&there)),
                            false => parts.insert(3, back(&here)),
                        }
                        let (found, _) = connection(words, true, &parts);
                        let at = format!("{words:?} {text:?} cut at {first} and {second}");
                        assert_eq!(essence(&found), essence(&wanted), "{at}");
                        assert_eq!(found.asides, wanted.asides, "{at}");
                    }
                }
            }
        }
    }
}

#[test]
fn state_that_moves_at_any_time_changes_nothing() {
    for words in [&["emit=message"][..], &["emit=body", "decode=yes"]] {
        let gzip = gzipped(b"some text to be packed, some text");
        let mut packed = response(
            200,
            &format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", gzip.len()),
            "",
        )
        .into_bytes();
        packed.extend(gzip);
        let mut all: Vec<(Vec<u8>, Vec<u8>)> =
            examples().into_iter().map(|(a, b)| (a.into_bytes(), b.into_bytes())).collect();
        all.push((request("GET", "", "").into_bytes(), packed));
        for (there, here) in &all {
            let cut = |text: &[u8], part: fn(Vec<u8>) -> Part| -> Vec<Part> {
                text.chunks(7).map(|piece| part(piece.to_vec())).collect()
            };
            let mut parts = cut(there, ahead);
            parts.extend(cut(here, back));
            parts.extend([end(false), end(true)]);
            parts[0].flags = Flags::FIRST;
            let first = parts.iter().position(|part| part.back).expect("a way back");
            parts[first].flags = Flags::FIRST;
            let (wanted, _) = midstream(words, true, &parts);
            for moved in 0..parts.len() {
                assert_eq!(moved_at(words, &parts, moved), wanted, "{words:?} {there:?} {moved}");
            }
        }
    }
}

/// The same connection with its state saved, dropped and restored before part `moved`.
fn moved_at(words: &[&str], parts: &[Part], moved: usize) -> Seen {
    let arena = Arena::new(parts.len() * 8 + 64);
    let mut space = Space::new(&arena);
    let new = || Node::asked_for(&HTTP, words, &[(1000, 1999)]).expect("good arguments");
    let (mut node, mut seen) = (new(), Seen::default());
    for (number, part) in parts.iter().enumerate() {
        if number == moved {
            let saved = node.save();
            node = new();
            node.restore(saved).expect("the same filter");
        }
        for batch in turn(&mut node, &mut space, part, 1000 + number as u64) {
            batch.blocks().for_each(|(_, block)| seen.take(&block));
        }
    }
    for batch in node.finish(&mut space, 9999) {
        batch.blocks().for_each(|(_, block)| seen.take(&block));
    }
    seen
}

#[test]
fn holes_in_bodies_are_counted_and_passed_on() {
    let text = response(200, &length("0123456789"), "012");
    let parts = [
        ahead(request("GET", "", "")),
        back(text),
        hole(true, 4),
        back("789"),
        back(response(200, "", "more")),
        end(true),
    ];
    let (seen, node) = connection(&["emit=body"], true, &parts);
    assert_eq!(seen.classes(), [1, 200, 1200, 200, 1200]);
    let body = &seen.messages[1];
    assert_eq!((&body.bytes[..], body.missing), (&b"012789"[..], 4));
    let exchange = &seen.messages[2];
    assert_eq!(exchange.number(Field::ResponseBody), Some(6));
    assert_eq!(exchange.number(Field::Missing), Some(4));
    assert_eq!(exchange.number(Field::Incomplete), None);
    let missing = HTTP.counters.iter().position(|name| *name == "missing bytes").unwrap();
    assert_eq!(node.counts.counters[missing], 4);
}

#[test]
fn behind_a_hole_that_hides_a_head_messages_are_found_again() {
    for (hidden, lost) in [(3, "456789 not a message"), (40, "in the middle of it")] {
        let parts = [
            ahead(request("GET", "", "")),
            back(response(200, &length("012"), "012")),
            ahead(request("PUT", "", "")),
            back(&response(200, &length("0123456789"), "0123456789")[..20]),
            hole(true, hidden),
            back(lost),
            back(response(404, &length("abc"), "abc")),
            ahead(request("POST", "", "")),
            back(response(500, &length("x"), "x")),
        ];
        let (seen, _) = connection(&[], true, &parts);
        let wanted = [(200, "GET"), (404, ""), (500, "POST")];
        let responses: Vec<_> =
            pairs(&seen, 100).into_iter().filter(|(class, _)| *class < 1000).collect();
        assert_eq!(responses, wanted);
        let exchanges = [(1200, "GET"), (1000, "PUT"), (1404, ""), (1500, "POST")];
        assert_eq!(pairs(&seen, 1000), exchanges);
        assert!(String::from_utf8_lossy(&seen.aside()).contains(lost));
    }
}

#[test]
fn one_direction_alone_is_told_as_it_is() {
    let (seen, _) = connection(&[], true, &[ahead(GET), ahead(GET), end(false)]);
    assert_eq!(seen.classes(), [1, 1, 1000, 1000]);
    let (seen, _) = connection(&[], true, &[back(OK), back(OK), end(true)]);
    assert_eq!(seen.classes(), [200, 1200, 200, 1200]);
    assert_eq!(seen.messages[1].number(Field::Time), Some(1000));
    let (seen, _) = connection(&["pending=2"], true, &[ahead(GET.repeat(4)), back(OK.repeat(4))]);
    assert_eq!(
        seen.classes(),
        [1, 1, 1, 1000, 1, 1000, 200, 1200, 200, 1200, 200, 1200, 200, 1200]
    );
    assert_eq!(pairs(&seen, 1200)[2..], [(1200, ""), (1200, "")], "not paired with another one");
}

#[test]
fn who_asks_is_found_out_where_nobody_saw_a_handshake() {
    let (seen, _) = midstream(&[], true, &[back(GET), ahead(OK)]);
    let ways: Vec<(u32, bool)> = seen.messages.iter().map(|m| (m.class, m.back)).collect();
    assert_eq!(ways, [(1, false), (200, true), (1200, false)]);
    assert_eq!(seen.messages[0].number(Field::ServerPort), Some(4000));
    let (seen, node) = midstream(&[], true, &[back("the rest of a body"), back(OK), ahead(GET)]);
    assert_eq!(seen.classes(), [200, 1200, 1, 1000]);
    assert_eq!(seen.aside(), b"the rest of a body");
    assert_eq!(node.unanswered().find(|(_, n)| *n > 0), Some(("lost", 1)));
}

#[test]
fn v21_the_report_tells_connections_apart() {
    let tally = |there: &str, here: &str| {
        let (seen, node) = connection(&[], false, &[ahead(there), back(here)]);
        let tally: Vec<u64> = node.report().rows.iter().map(|(_, n)| *n).collect();
        (tally, seen.messages.len(), seen.aside().len())
    };
    assert_eq!(tally(GET, OK), (vec![1, 0, 0, 0], 2, 0));
    assert_eq!(tally("\x16\x03\x01\x02\0\x01", "x"), (vec![0, 1, 0, 0], 0, 7));
    assert_eq!(tally("PRI * HTTP/2.0\r\n\r\n", "x"), (vec![0, 0, 1, 0], 0, 19));
    assert_eq!(tally("EHLO there\r\n", "220 mail\r\n"), (vec![0, 0, 0, 1], 0, 22));
    assert_eq!(tally("\0\0\0", OK), (vec![1, 0, 0, 0], 1, 3), "one end speaks it");
}

#[test]
fn a_head_that_never_ends_is_none() {
    let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(600));
    let mut parts: Vec<Part> = long.as_bytes().chunks(50).map(ahead).collect();
    parts.push(ahead(GET));
    let (seen, node) = connection(&["head=256"], false, &parts);
    assert_eq!(seen.messages.len(), 0);
    assert_eq!(seen.aside().len(), long.len() + GET.len());
    assert!(node.unanswered().all(|(why, n)| why == "not http" || n == 0));
    parts.insert(0, ahead(GET));
    let (seen, node) = connection(&["head=256"], false, &parts);
    assert_eq!(seen.texts(), [GET, GET]);
    assert_eq!(seen.aside().len(), long.len());
    assert!(node.unanswered().any(|(why, n)| why == "malformed" && n > 0));
}

#[test]
fn strictly_read_the_last_message_is_the_last() {
    let close = response(200, &format!("{}Connection: close\r\n", length("x")), "x");
    let parts = [ahead(GET), back(close.repeat(2))];
    assert_eq!(connection(&[], false, &parts).0.classes(), [1, 200, 200]);
    let (seen, node) = connection(&["strict=yes"], false, &parts);
    assert_eq!(seen.classes(), [1, 200]);
    assert_eq!(node.unanswered().find(|(_, n)| *n > 0), Some(("after close", 1)));
    let loose = [ahead("GET / HTTP/1.1\nHost: a\n\n")];
    assert_eq!(connection(&[], false, &loose).0.classes(), [1]);
    assert_eq!(connection(&["strict=yes"], false, &loose).0.classes(), [0; 0]);
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    packed(flate2::Compress::new_gzip(flate2::Compression::new(9), 15), bytes)
}

fn packed(mut compress: flate2::Compress, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 1024);
    compress.compress_vec(bytes, &mut out, flate2::FlushCompress::Finish).expect("room");
    out
}

fn coded(coding: &str, body: &[u8]) -> Vec<u8> {
    let fields = format!("Content-Encoding: {coding}\r\nContent-Length: {}\r\n", body.len());
    [response(200, &fields, "").as_bytes(), body].concat()
}

/// The body that a coded one becomes, and what was counted.
fn decoded(words: &[&str], coding: &str, body: &[u8]) -> (Vec<u8>, Vec<&'static str>) {
    let words = [&["decode=yes", "emit=body"], words].concat();
    let mut parts = vec![ahead(GET)];
    parts.extend(coded(coding, body).chunks(1000).map(back));
    let (seen, node) = connection(&words, false, &parts);
    let counted = HTTP.counters.iter().zip(&node.counts.counters);
    let decoding = counted.filter(|(name, n)| name.contains("deco") && **n > 0);
    (seen.messages[1].bytes.clone(), decoding.map(|(name, _)| *name).collect())
}

#[test]
fn codings_are_undone() {
    let text = b"to be or not to be, that is the question, to be or not to be".repeat(50);
    let level = flate2::Compression::new(6);
    let gzip = gzipped(&text);
    let zlib = packed(flate2::Compress::new(level, true), &text);
    let bare = packed(flate2::Compress::new(level, false), &text);
    let done = ["decoded bodies"];
    for (coding, body) in [("gzip", &gzip), ("deflate", &zlib), ("deflate", &bare)] {
        assert_eq!(decoded(&[], coding, body), (text.clone(), done.to_vec()), "{coding}");
    }
    // `brotli` of "to be or not to be" by another program.
    let brotli = [
        0x8b, 8, 0x80, b't', b'o', b' ', b'b', b'e', b' ', b'o', b'r', b' ', b'n', b'o', b't',
        b' ', b't', b'o', b' ', b'b', b'e', 3,
    ];
    assert_eq!(decoded(&[], "br", &brotli), (b"to be or not to be".to_vec(), done.to_vec()));
    let twice = gzipped(&gzip);
    assert_eq!(decoded(&[], "gzip, gzip", &twice).0, text);
    assert_eq!(decoded(&[], "identity, x-gzip", &gzip).0, text);
    let two = [gzip.clone(), gzipped(b" and more")].concat();
    assert_eq!(decoded(&[], "gzip", &two).0, [&text[..], b" and more"].concat());
}

#[test]
fn what_cannot_be_decoded_is_given_as_it_came() {
    let text = b"to be or not to be, that is the question".to_vec();
    for coding in ["gzip", "deflate", "br", "zstd"] {
        assert_eq!(decoded(&[], coding, &text), (text.clone(), vec!["not decodable"]), "{coding}");
    }
    let long: Vec<u8> = (0..200_000u32).flat_map(|n| n.to_le_bytes()).collect();
    let gzip = gzipped(&long);
    let (cut, counted) = decoded(&[], "gzip", &gzip[..gzip.len() / 2]);
    assert!(counted == ["decoded in part"] && cut.len() > 1000 && long.starts_with(&cut));
    let bomb = gzipped(&vec![0; 3_000_000]);
    let too_large = |words: &[&str]| decoded(words, "gzip", &bomb);
    assert_eq!(too_large(&[]), (bomb.clone(), vec!["too large to decode"]));
    assert_eq!(too_large(&["ratio=100000", "most=1M"]).1, ["too large to decode"]);
    assert_eq!(too_large(&["ratio=100000"]).0.len(), 3_000_000);
    let large = decoded(&["most=1k"], "gzip", &gzip);
    assert_eq!(large, (gzip, vec!["too large to decode"]));
}

#[test]
fn decoded_messages_have_their_head() {
    let gzip = gzipped(b"hello");
    let parts = [ahead(GET), back(coded("gzip", &gzip)), back(coded("gzip", b""))];
    let (seen, _) = connection(&["decode=yes"], false, &parts);
    let texts = seen.texts();
    assert!(texts[1].starts_with("HTTP/1.1 200") && texts[1].ends_with("\r\n\r\nhello"));
    assert!(texts[2].ends_with("\r\n\r\n") && seen.messages.iter().all(|message| message.whole));
}

#[test]
fn of_too_many_connections_one_is_forgotten() {
    let arena = Arena::new(4096);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&HTTP, &["connections=3"]).expect("good arguments");
    let mut part = ahead(&GET[..30]);
    part.flags = Flags::FIRST;
    for session in 1..=100 {
        let mut block = block(&space, &part, 0);
        block.context.session = session;
        let mut batch = Batch::empty();
        batch.push(block, 0).expect("a free lane");
        node.turn(batch, &mut space, 0);
    }
    assert_eq!(node.counts.held.blocks, 3);
    assert_eq!(node.unanswered().find(|(_, n)| *n > 0), Some(("cut", 97)));
    let left: usize = node.finish(&mut space, 0).iter().map(Batch::len).sum();
    assert_eq!((left, node.counts.held.blocks), (3, 0));
}

#[test]
fn a_view_of_more_than_there_is_is_a_hole() {
    let arena = Arena::new(64);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&HTTP, &[]).expect("good arguments");
    let mut part = ahead(GET);
    part.flags = Flags::FIRST;
    let mut lying = block(&space, &part, 0);
    lying.marks.view += 20;
    let mut batch = Batch::empty();
    batch.push(lying, 0).expect("a free lane");
    let left = node.turn(batch, &mut space, 0);
    assert_eq!(left.iter().map(Batch::len).sum::<usize>(), 1);
    assert_eq!(node.unanswered().find(|(_, n)| *n > 0), Some(("lost", 1)));
}
