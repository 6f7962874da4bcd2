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
    /// Bytes that were not answered.
    aside: Vec<u8>,
    /// Open messages, by direction.
    open: [Option<usize>; 2],
}

impl Seen {
    fn take(&mut self, block: &Block<'_>) {
        let back = block.context.flags.has(Flags::BACKWARD);
        if !block.pointer.class.answered() {
            self.aside.extend(block.bytes());
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
        if block.context.flags.has(Flags::LAST) {
            message.whole = true;
            self.open[way] = None;
        }
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

#[test]
fn a_request_and_its_response_are_described() {
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
