//! `json`: writes one JSON object per block or described message, one per line, to standard output
//! (NDJSON).
//!
//! [`JsonLine`] is the schema in version [`SCHEMA_VERSION`]. Unknown values are omitted. Within a
//! version, fields keep their names and types, but new fields may be added.

use super::buffered_output::BufferedOutputFile;
use super::class_names::ClassNames;
use super::headers::Headers;
use super::json_object::{add_member, append_line, write_line};
use super::message::{MessageCounts, MessageRecord};
use super::text_sink::{BlockFormatter, TextSink};
use crate::timestamp_text::Rfc3339;
use crate::{Failure, OpenArguments, Origins, Sink, SinkEntry};
use abi::{BlockFlags, Direction};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use filter::{
    Arguments, Block, Classes, Description, Form, Parameter, ParameterType, Report, StandardOutput,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::net::IpAddr;
use wire::Flow;
use wire::ip::protocol;
use wire::link::NetworkProtocol;

/// Version of the output schema of `json`.
pub const SCHEMA_VERSION: u32 = 1;

/// Description of `json`, the sink that writes one JSON object per block.
pub const JSON: Description = Description {
    name: "json",
    summary: "print one JSON object per block or message on standard output",
    details: "\
Prints one object per line. Always present: version (1), time (RFC 3339 in UTC with nanoseconds),
form (frame, packet, segment, stream, message, record, bytes). Blocks have length (bytes in view),
wire_length and captured (bytes of the frame on the wire, and captured).

A message that a filter such as `http`, `dns` or `tls` describes is one object with its description:
kind (http_request, http_response, http_exchange, dns, tls), client, client_port, server,
server_port, and method, url, host, http_version, status, user_agent, referer, content_type,
content_length, request_body_bytes, response_body_bytes, end and more; cut is true if the
description is not whole, because a text has more than 8,192 bytes, for example. Its bytes get no
objects of their own unless `payload` selects them; the report counts them as fragments.

If known: origin (the source, if there are several), class and class_name (from the last filter;
absent without a class), session and direction (forward, backward), first and last (fragments of a
message), hole (lost bytes), vlan, network (ipv4, ipv6, arp, 0x…), src, dst, proto (tcp, udp, …, or
a number as text), src_port, dst_port, malformed. An absent field is unknown, never null.

`payload=base64` adds the viewed bytes exactly, `payload=text` as text in which U+FFFD replaces
bytes that are not UTF-8.",
    example: "replay web.pcap | dport | json payload=base64",
    parameters: &[Parameter::with_default(
        "payload",
        ParameterType::OneOf(&["none", "base64", "text"]),
        "none",
        "format of the viewed bytes, if they are added",
    )],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `json`.
pub const ENTRY: SinkEntry =
    SinkEntry::new(&JSON, open).with_standard_output(|_| StandardOutput::Lines);

/// A line of the output of `json`, which describes a block, or a message with a description.
struct JsonLine<'a> {
    json: &'a JsonFormatter,
    block: &'a Block<'a>,
    record: Option<MessageRecord<'a>>,
}

impl Serialize for JsonLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { json: JsonFormatter { names, form, .. }, block, record } = self;
        let (class, context) = (block.pointer.class, block.context);
        let time = record.and_then(|record| record.time()).unwrap_or(context.time);
        let form = if record.is_some() { Form::Message } else { *form };
        let session = (context.session != 0).then_some(context.session);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &SCHEMA_VERSION)?;
        map.serialize_entry("time", &Rfc3339(time))?;
        add_member(&mut map, "origin", names.origin_name(context.origin))?;
        map.serialize_entry("form", form.name())?;
        add_member(&mut map, "class", names.class_value(class))?;
        add_member(&mut map, "class_name", names.class_name(class))?;
        add_member(&mut map, "session", session)?;
        add_member(&mut map, "direction", session.map(|_| direction_word(block)))?;
        match record {
            Some(record) => record.write_fields(&mut map)?,
            None => self.write_block(&mut map)?,
        }
        map.end()
    }
}

impl JsonLine<'_> {
    /// Adds the JSON fields of a block that describes no message to `map`.
    fn write_block<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let (json, block, flags) = (self.json, self.block, self.block.context.flags);
        let message = json.form == Form::Message;
        add_member(map, "first", message.then(|| flags.contains(BlockFlags::FIRST)))?;
        add_member(map, "last", message.then(|| flags.contains(BlockFlags::LAST)))?;
        map.serialize_entry("length", &block.length())?;
        map.serialize_entry("wire_length", &block.marks.wire_length)?;
        map.serialize_entry("captured", &block.marks.captured)?;
        add_member(map, "hole", block.pointer.is_hole().then_some(true))?;
        EndpointFields::from_headers(Headers::parse_frame(block).as_ref()).write_members(map)?;
        match json.payload {
            PayloadEncoding::None => Ok(()),
            PayloadEncoding::Base64 => map.serialize_entry("payload", &Base64(block.bytes())),
            PayloadEncoding::Text => {
                map.serialize_entry("payload", &String::from_utf8_lossy(block.bytes()))
            }
        }
    }
}

/// The addresses, ports and protocols of a block, as JSON fields. `json` and `files` share this
/// public schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointFields {
    vlan: Option<u16>,
    network: Option<Cow<'static, str>>,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    proto: Option<Cow<'static, str>>,
    src_port: Option<u16>,
    dst_port: Option<u16>,
    malformed: bool,
}

impl EndpointFields {
    /// Creates the fields from the headers of a frame. All fields are empty if `headers` is `None`.
    pub(crate) fn from_headers(headers: Option<&Headers<'_>>) -> Self {
        let Some(headers) = headers else { return Self::default() };
        let network = match headers.layers.network {
            NetworkProtocol::Ipv4 => Some("ipv4".into()),
            NetworkProtocol::Ipv6 => Some("ipv6".into()),
            NetworkProtocol::Arp => Some("arp".into()),
            NetworkProtocol::Other(ethertype) => Some(format!("0x{ethertype:04x}").into()),
            NetworkProtocol::Unknown => None,
        };
        let named = |number: u8| match protocol::name(number) {
            Some(name) => name.into(),
            None => number.to_string().into(),
        };
        let flow = headers.flow;
        let ports = flow.and_then(|flow| flow.ports);
        Self {
            vlan: headers.vlan_id(),
            network,
            src: headers.addresses.map(|(source, _)| source),
            dst: headers.addresses.map(|(_, target)| target),
            proto: headers.layers.protocol.map(named),
            src_port: ports.map(|ports| ports.source),
            dst_port: ports.map(|ports| ports.target),
            malformed: headers.layers.faults.malformed,
        }
    }

    /// Creates the fields from the addresses and ports in a description. The protocol stays
    /// unknown, because descriptions do not contain it.
    pub(crate) fn from_described_flow(flow: Flow) -> Self {
        Self {
            network: Some(if flow.source.is_ipv4() { "ipv4" } else { "ipv6" }.into()),
            src: Some(flow.source),
            dst: Some(flow.target),
            src_port: flow.ports.map(|ports| ports.source),
            dst_port: flow.ports.map(|ports| ports.target),
            ..Self::default()
        }
    }

    /// Returns true if the addresses are known.
    pub(crate) const fn has_addresses(&self) -> bool {
        self.src.is_some()
    }

    /// Returns the addresses, ports and protocols with source and destination exchanged.
    pub(crate) fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            ..self
        }
    }

    /// Adds the known addresses, ports and protocols to a JSON object.
    pub(crate) fn write_members<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        add_member(map, "vlan", self.vlan)?;
        add_member(map, "network", self.network.as_deref())?;
        add_member(map, "src", self.src)?;
        add_member(map, "dst", self.dst)?;
        add_member(map, "proto", self.proto.as_deref())?;
        add_member(map, "src_port", self.src_port)?;
        add_member(map, "dst_port", self.dst_port)?;
        add_member(map, "malformed", self.malformed.then_some(true))
    }
}

/// Bytes that serialize as base64 text.
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PayloadEncoding {
    None,
    Base64,
    Text,
}

#[derive(Debug)]
struct JsonFormatter {
    names: ClassNames,
    form: Form,
    payload: PayloadEncoding,
    described: MessageCounts,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let out = BufferedOutputFile::open_stdout_lines()?.with_stop_limit(&opening.stopped);
    Ok(Box::new(TextSink { formatter: JsonFormatter::new(opening), out }))
}

impl BlockFormatter for JsonFormatter {
    fn append(&mut self, block: &Block<'_>, out: &mut BufferedOutputFile) -> Result<(), Failure> {
        let record = self.count_and_read_record(block);
        let Some(record) = record else { return Ok(()) };
        write_line(out, &JsonLine { json: self, block, record })
    }

    fn report(&self, out: &BufferedOutputFile) -> Report {
        out.report(self.described.rows(out.amount_written()), "line")
    }
}

impl JsonFormatter {
    fn new(opening: &OpenArguments<'_>) -> Self {
        let payload = match opening.arguments.text("payload") {
            Some("base64") => PayloadEncoding::Base64,
            Some("text") => PayloadEncoding::Text,
            _ => PayloadEncoding::None,
        };
        let described = MessageCounts::new(opening.forms().any(|form| form == Form::Message));
        Self { names: ClassNames::new(opening), form: opening.form, payload, described }
    }

    /// Counts a block, and determines the line to write for it. Returns `None` if the block gets no
    /// line, `Some(Some(record))` if the line describes a message, and `Some(None)` for any other
    /// line.
    fn count_and_read_record<'b>(
        &mut self,
        block: &Block<'b>,
    ) -> Option<Option<MessageRecord<'b>>> {
        let record = MessageRecord::from_block(block);
        let hidden = record.is_none() && self.payload == PayloadEncoding::None;
        let has_line = !(hidden && self.described.belongs_to_counted_message(block));
        self.described.count_block(block);
        has_line.then_some(record)
    }
}

/// A formatter that produces the lines of the sink `json` for other output, without a sink.
#[derive(Debug)]
pub struct JsonLines(JsonFormatter);

impl JsonLines {
    /// Creates the formatter for blocks of this form, with these classes, from these sources.
    #[must_use]
    pub fn new(form: Form, classes: &[Classes], origins: Origins) -> Self {
        let arguments = Arguments::from_parameter_defaults(JSON.parameters);
        Self(JsonFormatter::new(&OpenArguments {
            form,
            classes,
            origins,
            ..OpenArguments::new(&arguments)
        }))
    }

    /// Appends the line of a block. Appends nothing for a block of a message that a description has
    /// already covered.
    pub fn append(&mut self, block: &Block<'_>, to: &mut Vec<u8>) {
        let json = &mut self.0;
        if let Some(record) = json.count_and_read_record(block) {
            // Writing to memory cannot fail.
            let _ = append_line(to, &JsonLine { json, block, record });
        }
    }
}

/// Returns the direction of a block as a word in the output.
pub(crate) const fn direction_word(block: &Block<'_>) -> &'static str {
    match block.context.flags.direction() {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::UNLOGGED_CREATION;
    use crate::testing::{
        TEST_TIME, TempDir, batch_from_blocks, checked_arguments, decode_hex, description_block,
        description_record, frame_block, frameless_block, hole_block, sink_opening,
    };
    use abi::Class;
    use filter::{Classes, ValueRange};
    use serde_json::{Value, json};
    use wire::record::{Field, RecordKind};

    fn output_lines(
        payload: &str,
        change: fn(&mut OpenArguments<'_>),
        blocks: &[Block<'_>],
    ) -> Vec<Value> {
        let given = checked_arguments(&JSON, &[("payload", payload)]);
        let origins = ["a".to_owned(), "say \"b\"\n".to_owned()];
        let mut opening = sink_opening(&given, &origins);
        change(&mut opening);
        let dir = TempDir::new();
        let out = BufferedOutputFile::create(&dir.path("out"), UNLOGGED_CREATION).unwrap();
        let mut json = TextSink { formatter: JsonFormatter::new(&opening), out };
        json.consume(&batch_from_blocks(blocks), 0).unwrap();
        json.finish().unwrap();
        let text = std::fs::read_to_string(dir.path("out")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn frame_object_contains_header_fields() {
        let bytes = decode_hex(
            "020000000002 020000000001 8100 0007 0800 4500001e 00010000 40110000
                         0a000001 0a000002 04d20035 000a 0000 6869",
        );
        let classes = |o: &mut OpenArguments<'_>| {
            const CLASSES: Classes = Classes::Number {
                meaning: "port",
                range: ValueRange { low: 0, high: 65_535 },
                names: &[("dns", 53)],
            };
            o.classes = &[CLASSES];
        };
        let mut block = frame_block(&bytes).with_class(Class(53)).narrow(46, 2);
        block.context.origin = 1;
        block.context.session = 4;
        block.context.flags = BlockFlags::BACKWARD;
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456789Z", "origin": "say \"b\"\n",
            "form": "frame", "class": 53, "class_name": "dns", "session": 4,
            "direction": "backward", "length": 2, "wire_length": 48, "captured": 48, "vlan": 7,
            "network": "ipv4", "src": "10.0.0.1", "dst": "10.0.0.2", "proto": "udp",
            "src_port": 1234, "dst_port": 53, "payload": "aGk=",
        });
        assert_eq!(output_lines("base64", classes, &[block]), [expected]);
    }

    #[test]
    fn described_message_is_one_object() {
        let request = description_record(RecordKind::HttpRequest, |writer| {
            writer.add_number(Field::Time, TEST_TIME + 1);
            writer.add_text(Field::Method, b"GET");
            writer.add_text(Field::Url, b"/\x1b");
        });
        let flagged = |mut block: Block<'static>, flags| {
            (block.context.session, block.context.flags) = (3, flags);
            block
        };
        let request: &'static [u8] = request.leak();
        let blocks = [
            flagged(description_block(request), BlockFlags::FIRST.with(BlockFlags::BACKWARD)),
            flagged(
                frameless_block(b"GET / HTTP/1.1"),
                BlockFlags::FIRST.with(BlockFlags::BACKWARD),
            ),
            flagged(hole_block(7), BlockFlags::LAST.with(BlockFlags::BACKWARD)),
            flagged(frameless_block(b"of another filter"), BlockFlags::FIRST),
        ];
        let form = |o: &mut OpenArguments<'_>| o.form = Form::Message;
        let found = output_lines("none", form, &blocks);
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456790Z", "origin": "a",
            "form": "message", "kind": "http_request", "session": 3, "direction": "backward",
            "method": "GET", "url": "/\u{1b}",
        });
        assert_eq!((found.len(), &found[0]), (2, &expected));
        assert_eq!(found[1]["length"], json!(17));
        let found = output_lines("text", form, &blocks);
        assert_eq!((found.len(), &found[1]["payload"]), (4, &json!("GET / HTTP/1.1")));
        assert_eq!((&found[2]["hole"], &found[2]["length"]), (&json!(true), &json!(7)));
    }

    #[test]
    fn message_fragments_are_objects_with_lossy_text() {
        let mut block = frameless_block(b"\xff\"\\\x00\n\xe2\x82\xac").with_class(Class::NONE);
        block.context.flags = BlockFlags::LAST;
        let expected = json!({
            "version": 1, "time": "2009-02-13T23:31:30.123456789Z", "origin": "a",
            "form": "message", "first": false, "last": true,
            "length": 8, "wire_length": 8, "captured": 8, "payload": "\u{fffd}\"\\\u{0}\n\u{20ac}",
        });
        assert_eq!(output_lines("text", |o| o.form = Form::Message, &[block]), [expected]);
    }
}
