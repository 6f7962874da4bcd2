//! `json`: one JSON object per block, or per message that is described, and line on standard output
//! (NDJSON).
//!
//! The schema is [`Line`] and [`Message`], version [`VERSION`]: a field that is not known is left
//! out, a field that is there keeps its name and type within a version, new fields may come.

use super::headers::{Headers, protocol_name};
use super::names::Names;
use super::out::Out;
use super::text::{Text, Written};
use super::told::{Described, Fields, Told};
use crate::clock::Rfc3339;
use crate::{Failure, Opening, Sink, SinkEntry};
use abi::{Direction, Flags};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use filter::{Block, Description, Form, Forms, Gives, Kind, Parameter, Report, Type};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::net::IpAddr;
use wire::link::Network;

/// The version of the schema.
pub const VERSION: u32 = 1;

/// The description of `json`.
pub const JSON: Description = Description {
    name: "json",
    summary: "print one JSON object per block or message on standard output",
    details: "\
One object per line. Always there: version (1), time (RFC 3339 in UTC with nanoseconds), form
(frame, packet, segment, stream, message, record, bytes). Blocks have length (bytes viewed),
wire_length and captured (bytes of the frame on the wire and here).

A message that a filter such as `http`, `dns` or `tls` describes is one object, with all that is
known about it: kind (http_request, http_response, http_exchange, dns, tls), client, client_port,
server, server_port, and method, url, host, http_version, status, user_agent, referer, content_type,
content_length, request_body_bytes, response_body_bytes, end and so on. Its bytes are not told again
in objects of their own, unless `payload` asks for them; the report counts them as fragments.

Where known: origin (the source, if there are several), class and class_name (what the last filter
answered; missing if it answered nothing, or none classifies), session and direction (forward,
backward), first and last (fragments of a message), hole (bytes that were lost on the way), vlan,
network (ipv4, ipv6, arp, 0x…), src, dst, proto (tcp, udp, …, or a number as text), src_port,
dst_port, malformed. A missing field is unknown, never null.

`payload=base64` adds the viewed bytes exactly, `payload=text` as text in which bytes that are no
UTF-8 are replaced by U+FFFD.",
    example: "replay web.pcap | dport | json payload=base64",
    kind: Kind::Sink,
    takes: Forms::ANY,
    gives: Gives::Nothing,
    parameters: &[Parameter::named(
        "payload",
        Type::OneOf(&["none", "base64", "text"]),
        "none",
        "whether and how the viewed bytes are added",
    )],
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&JSON, open);

/// The fields with which every object begins: the schema.
#[derive(Debug, Serialize)]
struct About<'a> {
    version: u32,
    time: Rfc3339,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
    form: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
}

/// One object: the schema.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    about: About<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<bool>,
    length: u32,
    wire_length: u32,
    captured: u32,
    #[serde(skip_serializing_if = "is_false")]
    hole: bool,
    #[serde(flatten)]
    ends: Ends,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Shown<'a>>,
}

/// One object that tells a message: the schema.
#[derive(Debug, Serialize)]
struct Message<'a> {
    #[serde(flatten)]
    about: About<'a>,
    #[serde(flatten)]
    told: Fields<'a>,
}

/// The part of the schema that says who speaks to whom; `files` writes the same.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Ends {
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proto: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    #[serde(skip_serializing_if = "is_false")]
    malformed: bool,
}

impl Ends {
    /// Converts the headers around a block; empty for blocks that lie in no frame.
    pub(crate) fn of(headers: Option<&Headers<'_>>) -> Self {
        let Some(headers) = headers else { return Self::default() };
        let network = match headers.layers.network {
            Network::Ipv4 => Some("ipv4".into()),
            Network::Ipv6 => Some("ipv6".into()),
            Network::Arp => Some("arp".into()),
            Network::Other(ethertype) => Some(format!("0x{ethertype:04x}").into()),
            Network::Unknown => None,
        };
        let named = |number: u8| match protocol_name(number) {
            Some(name) => name.into(),
            None => number.to_string().into(),
        };
        let flow = headers.flow;
        let ports = flow.and_then(|flow| flow.ports);
        Self {
            vlan: headers.vlan(),
            network,
            src: flow.map(|flow| flow.source),
            dst: flow.map(|flow| flow.target),
            proto: headers.layers.protocol.map(named),
            src_port: ports.map(|ports| ports.source),
            dst_port: ports.map(|ports| ports.target),
            malformed: headers.layers.faults.malformed,
        }
    }
}

/// The viewed bytes as a JSON string.
#[derive(Debug)]
enum Shown<'a> {
    Base64(&'a [u8]),
    Text(&'a [u8]),
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Base64(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
            Self::Text(bytes) => serializer.serialize_str(&String::from_utf8_lossy(bytes)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Payload {
    None,
    Base64,
    Text,
}

#[derive(Debug)]
struct Json {
    out: Out,
    names: Names,
    form: Form,
    payload: Payload,
    described: Described,
    /// Objects written.
    lines: u64,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(Written(Json::new(opening, Out::lines()?))))
}

impl Text for Json {
    fn out(&self) -> &Out {
        &self.out
    }

    fn out_mut(&mut self) -> &mut Out {
        &mut self.out
    }

    fn tell(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        self.lines += 1;
        match Told::of(block) {
            Some(told) => self.message(block, told)?,
            None if self.payload == Payload::None && self.described.is_told(block) => {
                self.lines -= 1;
            }
            None => self.line(block)?,
        }
        self.described.note(block);
        Ok(())
    }

    fn report(&self) -> Report {
        self.out.report(self.described.rows(self.out.written()), self.lines, "line")
    }
}

impl Json {
    fn new(opening: &Opening<'_>, out: Out) -> Self {
        let payload = match opening.arguments.text("payload") {
            Some("base64") => Payload::Base64,
            Some("text") => Payload::Text,
            _ => Payload::None,
        };
        let described = Described::new(opening.form);
        Self { out, names: Names::new(opening), form: opening.form, payload, described, lines: 0 }
    }

    fn message(&mut self, block: &Block<'_>, told: Told<'_>) -> Result<(), Failure> {
        let time = told.time().unwrap_or(block.context.time);
        let message = Message {
            about: About::of(block, &self.names, time, Form::Message),
            told: told.fields(),
        };
        add(&mut self.out, &message)
    }

    fn line(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let headers = Headers::of(block);
        let context = block.context;
        let message = self.form == Form::Message;
        let line = Line {
            about: About::of(block, &self.names, context.time, self.form),
            first: message.then(|| context.flags.has(Flags::FIRST)),
            last: message.then(|| context.flags.has(Flags::LAST)),
            length: block.length(),
            wire_length: block.marks.wire_length,
            captured: block.marks.captured,
            hole: block.pointer.is_hole(),
            ends: Ends::of(headers.as_ref()),
            payload: match self.payload {
                Payload::None => None,
                Payload::Base64 => Some(Shown::Base64(block.bytes())),
                Payload::Text => Some(Shown::Text(block.bytes())),
            },
        };
        add(&mut self.out, &line)
    }
}

impl<'a> About<'a> {
    fn of(block: &Block<'_>, names: &'a Names, time: u64, form: Form) -> Self {
        let (class, context) = (block.pointer.class, block.context);
        let session = (context.session != 0).then_some(context.session);
        Self {
            version: VERSION,
            time: Rfc3339(time),
            origin: names.origin(context.origin),
            form: form.name(),
            class: names.class(class),
            class_name: names.class_name(class),
            session,
            direction: session.map(|_| way(block)),
        }
    }
}

/// Adds an object as a line.
fn add(out: &mut Out, object: &impl Serialize) -> Result<(), Failure> {
    let written = super::object::write(out.text(), object);
    out.text().push(b'\n');
    written.map_err(|error| Failure::new("write", out.target(), error))
}

/// Returns the direction of a block, as a word.
const fn way(block: &Block<'_>) -> &'static str {
    match block.context.flags.direction() {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MAKING;
    use crate::testing::{
        TIME, TempDir, arguments, bare, batch, described, description, frame, hex, hole, opening,
    };
    use abi::Class;
    use filter::{Classes, ValueRange};
    use serde_json::{Value, json};
    use wire::record::{Field, RecordKind};

    fn lines(payload: &str, change: fn(&mut Opening<'_>), blocks: &[Block<'_>]) -> Vec<Value> {
        let given = arguments(&JSON, &[("payload", payload)]);
        let origins = ["a".to_owned(), "say \"b\"\n".to_owned()];
        let mut opening = opening(&given, &origins);
        change(&mut opening);
        let dir = TempDir::new();
        let out = Out::create(&dir.path("out"), MAKING).unwrap();
        let mut json = Written(Json::new(&opening, out));
        json.take(&batch(blocks), 0).unwrap();
        json.finish().unwrap();
        let text = std::fs::read_to_string(dir.path("out")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_frame_has_all_that_its_headers_say() {
        let bytes = hex("020000000002 020000000001 8100 0007 0800 4500001e 00010000 40110000
                         0a000001 0a000002 04d20035 000a 0000 6869");
        let classes = |o: &mut Opening<'_>| {
            let range = ValueRange { low: 0, high: 65_535 };
            o.classes = Classes::Number { what: "port", range, names: &[("dns", 53)] };
        };
        let mut block = frame(&bytes).with_class(Class(53)).narrow(46, 2);
        block.context.origin = 1;
        block.context.session = 4;
        block.context.flags = Flags::BACKWARD;
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456789Z", "origin": "say \"b\"\n",
            "form": "frame", "class": 53, "class_name": "dns", "session": 4,
            "direction": "backward", "length": 2, "wire_length": 48, "captured": 48, "vlan": 7,
            "network": "ipv4", "src": "10.0.0.1", "dst": "10.0.0.2", "proto": "udp",
            "src_port": 1234, "dst_port": 53, "payload": "aGk=",
        });
        assert_eq!(lines("base64", classes, &[block]), [expected]);
    }

    #[test]
    fn a_message_that_is_described_is_one_object() {
        let request = described(RecordKind::HttpRequest, |writer| {
            writer.number(Field::Time, TIME + 1);
            writer.text(Field::Method, b"GET");
            writer.text(Field::Url, b"/\x1b");
        });
        let flagged = |mut block: Block<'static>, flags| {
            (block.context.session, block.context.flags) = (3, flags);
            block
        };
        let request: &'static [u8] = request.leak();
        let blocks = [
            flagged(description(request), Flags::FIRST.with(Flags::BACKWARD)),
            flagged(bare(b"GET / HTTP/1.1"), Flags::FIRST.with(Flags::BACKWARD)),
            flagged(hole(7), Flags::LAST),
            flagged(bare(b"of another filter"), Flags::FIRST),
        ];
        let form = |o: &mut Opening<'_>| o.form = Form::Message;
        let found = lines("none", form, &blocks);
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456790Z", "origin": "a",
            "form": "message", "kind": "http_request", "session": 3, "direction": "backward",
            "method": "GET", "url": "/\u{1b}",
        });
        assert_eq!((found.len(), &found[0]), (2, &expected));
        assert_eq!(found[1]["length"], json!(17));
        let found = lines("text", form, &blocks);
        assert_eq!((found.len(), &found[1]["payload"]), (4, &json!("GET / HTTP/1.1")));
        assert_eq!((&found[2]["hole"], &found[2]["length"]), (&json!(true), &json!(7)));
    }

    #[test]
    fn a_message_is_told_in_fragments_and_any_byte_is_text() {
        let mut block = bare(b"\xff\"\\\x00\n\xe2\x82\xac").with_class(Class::NONE);
        block.context.flags = Flags::LAST;
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456789Z", "origin": "a",
            "form": "message", "first": false, "last": true,
            "length": 8, "wire_length": 8, "captured": 8, "payload": "\u{fffd}\"\\\u{0}\n\u{20ac}",
        });
        assert_eq!(lines("text", |o| o.form = Form::Message, &[block]), [expected]);
    }
}
