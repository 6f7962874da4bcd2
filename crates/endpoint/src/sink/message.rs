//! The description record of a message (`wire::record`) as JSON and as text.
//!
//! A description is output as fields in the objects of `json` and `files`, and as a phrase by
//! `print`: `10.0.0.1:1234 > 10.0.0.2:80 http GET http://host/path`. Records are untrusted: texts
//! are printed without control characters, and malformed fields are omitted.

use crate::sink::json_object::add_member;
use crate::timestamp_text::Rfc3339;
use abi::text::VisibleText;
use abi::{BlockFlags, Direction};
use filter::{Amount, Block, Report, Time};
use serde::ser::{SerializeMap, SerializeSeq as _};
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Flow;
use wire::ports::Ports;
use wire::record::{self, Field, FieldType, Record, RecordKind};

/// A parsed description record, which describes a message or an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRecord<'a>(Record<'a>);

impl<'a> MessageRecord<'a> {
    /// Parses the record of a description block. Returns `None` for other blocks and malformed
    /// records.
    pub(crate) fn from_block(block: &Block<'a>) -> Option<Self> {
        if block.marks.is_description() { Self::parse(block.frame) } else { None }
    }

    /// Parses a record. Returns `None` if it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Record::parse(bytes).map(Self)
    }

    /// Returns the kind of the message that the record describes.
    pub(crate) const fn kind(&self) -> RecordKind {
        self.0.kind()
    }

    /// Returns the raw bytes of a text field, or `None` if absent.
    pub(crate) fn text(&self, field: Field) -> Option<&'a [u8]> {
        self.0.text(field)
    }

    /// Returns the value of a numeric field, or `None` if absent.
    pub(crate) fn number(&self, field: Field) -> Option<u64> {
        self.0.number(field)
    }

    /// Returns the arrival time of the message's first byte, or `None` if the record has none.
    pub(crate) fn time(&self) -> Option<Time> {
        self.number(Field::Time)
    }

    /// Returns the time at which the message ended. For an exchange, returns the time at which the
    /// later of its two messages ended. Returns `None` if the record contains no end time.
    pub(crate) fn end_time(&self) -> Option<Time> {
        self.number(Field::End)
    }

    /// Returns the value of an address field, or `None` if absent or malformed.
    pub(crate) fn address(&self, field: Field) -> Option<IpAddr> {
        self.text(field).and_then(decode_address)
    }

    /// Returns the value of a port field, or `None` if absent or out of range.
    pub(crate) fn port(&self, field: Field) -> Option<u16> {
        self.number(field).and_then(|port| u16::try_from(port).ok())
    }

    /// Returns the addresses and ports of the sender and the receiver or, for an exchange, of the
    /// client and the server. The transport protocol in the result is 0, because the record does
    /// not contain it. Returns `None` if an address is missing.
    pub(crate) fn flow(&self) -> Option<Flow> {
        let ports = self.port(Field::ClientPort).zip(self.port(Field::ServerPort));
        let flow = Flow {
            source: self.address(Field::Client)?,
            target: self.address(Field::Server)?,
            protocol: 0,
            ports: ports.map(|(source, target)| Ports { source, target }),
        };
        Some(if self.is_from_server() { flow.reversed() } else { flow })
    }

    /// Returns true if the server has sent the message. The direction of the block does not
    /// determine the sender, because the forward direction of a session is the direction of its
    /// first observed block.
    fn is_from_server(&self) -> bool {
        match self.kind() {
            RecordKind::HttpRequest | RecordKind::HttpExchange => false,
            RecordKind::HttpResponse => true,
            RecordKind::Dns => self.has_flag(Field::Answer),
            // Only the hello of a server contains the selected cipher suite.
            RecordKind::Tls => self.text(Field::Cipher).is_some(),
        }
    }

    /// Returns all fields with their raw values, in stored order.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (Field, &'a [u8])> {
        self.0.fields()
    }

    /// Returns true if a flag field is set.
    pub(crate) fn has_flag(&self, field: Field) -> bool {
        self.number(field).is_some_and(|value| value != 0)
    }

    /// Adds the fields of the description, except the time, to a JSON object.
    pub(crate) fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let record = self.0;
        map.serialize_entry("kind", record.kind().name())?;
        // Names in a JSON object must be unique, so only the first field of each kind is written.
        let mut written = 1u64 << Field::Time as u8;
        for (field, value) in record.fields() {
            if written >> field as u8 & 1 == 1 {
                continue;
            }
            written |= 1 << field as u8;
            let name = field.json();
            match field.shape() {
                FieldType::Text => map.serialize_entry(name, &String::from_utf8_lossy(value))?,
                FieldType::RepeatedText => {
                    map.serialize_entry(name, &FieldList { record, field })?
                }
                FieldType::Number => add_member(map, name, record::decode_number(value))?,
                FieldType::Flag => {
                    add_member(map, name, record::decode_number(value).map(|n| n != 0))?
                }
                FieldType::Time => {
                    add_member(map, name, record::decode_number(value).map(Rfc3339))?
                }
                FieldType::Address => add_member(map, name, decode_address(value))?,
            }
        }
        add_member(map, "cut", self.is_truncated().then_some(true))
    }

    /// Returns true if the record was too long, so that some fields or the end of a text are
    /// missing.
    pub(crate) fn is_truncated(&self) -> bool {
        self.0.is_truncated()
    }

    /// Returns the requested URL, made absolute if it is a path and the host is known. Returns
    /// `None` if the record has no URL.
    pub(crate) fn url(&self) -> Option<Vec<u8>> {
        let target = self.text(Field::Url)?;
        let mut url = Vec::new();
        if let (Some(host), b"/") = (self.text(Field::Host), target.get(..1).unwrap_or_default()) {
            url.extend_from_slice(b"http://");
            url.extend_from_slice(host);
        }
        url.extend_from_slice(target);
        Some(url)
    }
}

/// Decodes an IPv4 or IPv6 address from 4 or 16 bytes. Returns `None` for any other length.
fn decode_address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
}

/// The values of a list field in a description record, which serialize as a JSON array.
struct FieldList<'a> {
    record: Record<'a>,
    field: Field,
}

impl Serialize for FieldList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for (field, value) in self.record.fields() {
            if field == self.field {
                list.serialize_element(&String::from_utf8_lossy(value))?;
            }
        }
        list.end()
    }
}

/// Untrusted bytes, escaped for output to a terminal or a log. Double quotes, backslashes and
/// non-printable bytes are written as `\x0A` and the like, as in nginx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EscapedBytes<'a>(pub(crate) &'a [u8]);

impl EscapedBytes<'_> {
    /// Appends the escaped text to `line`.
    pub(crate) fn append_to_line(self, line: &mut Vec<u8>) {
        let mut rest = self.0;
        while let Some(position) = rest.iter().position(|byte| !is_unescaped(*byte)) {
            let (plain, after) = rest.split_at(position);
            line.extend_from_slice(plain);
            let Some((byte, after)) = after.split_first() else { break };
            // Writing to memory cannot fail.
            let _ = write!(line, "\\x{byte:02X}");
            rest = after;
        }
        line.extend_from_slice(rest);
    }
}

impl fmt::Display for EscapedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.append_to_line(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

const fn is_unescaped(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// Maximum number of described messages of which a [`MessageCounts`] expects fragments. Blocks of a
/// message beyond it count as blocks that belong to no message.
const OPEN_MESSAGES_MAX: usize = 1 << 18;

/// Counters of the messages, and of their fragments, that a sink has received.
#[derive(Clone, Debug)]
pub(crate) struct MessageCounts {
    /// True if blocks of the form [`Form::Message`](filter::Form::Message) arrive, in which the
    /// blocks of a message follow its description.
    has_following_blocks: bool,
    messages: u64,
    fragments: u64,
    /// The described messages whose last fragment has not arrived, by session and direction. The
    /// value is true once a fragment has arrived. The first fragment may have the flag
    /// [`BlockFlags::FIRST`], because it may also begin its stream.
    open_messages: HashMap<(u32, bool), bool>,
}

impl MessageCounts {
    /// Creates zeroed counters. `has_following_blocks` is true if blocks of the form
    /// [`Form::Message`](filter::Form::Message) arrive.
    pub(crate) fn new(has_following_blocks: bool) -> Self {
        Self { has_following_blocks, messages: 0, fragments: 0, open_messages: HashMap::new() }
    }

    /// Returns true if the block is a fragment of a message that has already been counted. A block
    /// with the flag [`BlockFlags::FIRST`] begins a message that has not been counted, unless it
    /// directly follows its description. Returns false for blocks that belong to no described
    /// message, such as those of a connection of another protocol.
    pub(crate) fn belongs_to_counted_message(&self, block: &Block<'_>) -> bool {
        let begins = block.context.flags.contains(BlockFlags::FIRST);
        let open = self.open_messages.get(&stream_key(block));
        open.is_some_and(|has_fragment| !(begins && *has_fragment))
    }

    /// Counts a block as a message if it is a description, or as a fragment if it belongs to a
    /// counted message.
    pub(crate) fn count_block(&mut self, block: &Block<'_>) {
        let flags = block.context.flags;
        if block.marks.is_description() {
            self.messages += 1;
            let has_room = self.open_messages.len() < OPEN_MESSAGES_MAX;
            // The hello of TLS is described in a stream, whose blocks are no fragments of it.
            let is_hello = MessageRecord::from_block(block)
                .is_some_and(|record| record.kind() == RecordKind::Tls);
            // No fragment follows a complete message, which may also arrive between the fragments
            // of another one.
            let opens = self.has_following_blocks && !is_hello && !flags.contains(BlockFlags::LAST);
            if opens && has_room {
                self.open_messages.insert(stream_key(block), false);
            }
            return;
        }
        let key = stream_key(block);
        let Some(has_fragment) = self.open_messages.get_mut(&key) else { return };
        let is_fragment = !(flags.contains(BlockFlags::FIRST) && *has_fragment);
        *has_fragment = true;
        self.fragments += u64::from(is_fragment);
        let ends = flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END);
        if !is_fragment || ends {
            self.open_messages.remove(&key);
        }
    }

    /// Returns the counters as report rows.
    pub(crate) fn rows(&self, blocks: Amount) -> Report {
        let others = [("messages", self.messages), ("fragments", self.fragments)];
        Report::from_rows([("blocks", blocks.blocks)]).with_nonzero_rows(others)
    }
}

/// Returns the session of a block, and true if its direction is backward. They identify its stream.
fn stream_key(block: &Block<'_>) -> (u32, bool) {
    (block.context.session, block.context.flags.direction() == Direction::Backward)
}

/// A description record, formatted as a phrase by its `Display` implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePhrase<'a>(pub(crate) MessageRecord<'a>);

impl fmt::Display for MessagePhrase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.0;
        if let Some(flow) = record.flow() {
            write!(f, "{flow} ")?;
        }
        match record.kind() {
            RecordKind::HttpRequest | RecordKind::HttpResponse | RecordKind::HttpExchange => {
                write_http(f, record)?
            }
            RecordKind::Dns => write_dns(f, record)?,
            RecordKind::Tls => write_tls(f, record)?,
        }
        if let Some(missing) = record.number(Field::Missing).filter(|missing| *missing > 0) {
            write!(f, ", {missing} bytes missing")?;
        }
        if record.has_flag(Field::Incomplete) {
            f.write_str(", incomplete")?;
        }
        if record.is_truncated() {
            f.write_str(", text cut")?;
        }
        Ok(())
    }
}

fn write_http(f: &mut fmt::Formatter<'_>, record: &MessageRecord<'_>) -> fmt::Result {
    f.write_str("http")?;
    write_fields(f, " ", record, &[Field::Method])?;
    if let Some(url) = record.url() {
        write!(f, " {}", EscapedBytes(&url))?;
    }
    if let Some(status) = record.number(Field::Status) {
        write!(f, " {status}")?;
        write_fields(f, " ", record, &[Field::StatusText])?;
    }
    write_fields(f, ", ", record, &[Field::ContentType, Field::ContentEncoding])?;
    let (sent, received) = (record.number(Field::RequestBody), record.number(Field::ResponseBody));
    let stated = record.number(Field::ContentLength).filter(|stated| Some(*stated) != received);
    let sent = sent.filter(|sent| *sent > 0);
    for (bytes, what) in [(stated, "stated"), (sent, "sent"), (received, "received")] {
        if let Some(bytes) = bytes {
            write!(f, ", {bytes} bytes {what}")?;
        }
    }
    if let (Some(time), Some(end), RecordKind::HttpExchange) =
        (record.time(), record.end_time(), record.kind())
    {
        let micros = end.saturating_sub(time) / 1000;
        write!(f, ", {}.{:03} ms", micros / 1000, micros % 1000)?;
    }
    Ok(())
}

fn write_dns(f: &mut fmt::Formatter<'_>, record: &MessageRecord<'_>) -> fmt::Result {
    f.write_str(if record.has_flag(Field::Answer) { "dns answer" } else { "dns query" })?;
    // Names and data already use the escapes of the zone file format, so they are not escaped
    // again.
    for (wanted, before) in
        [(Field::RcodeName, " "), (Field::Type, " "), (Field::Name, " "), (Field::Data, ", ")]
    {
        for (field, value) in record.fields() {
            if field == wanted && !value.is_empty() {
                write!(f, "{before}{}", VisibleText(&String::from_utf8_lossy(value)))?;
            }
        }
        if wanted == Field::Name
            && let Some(questions) = record.number(Field::Questions)
        {
            write!(f, " (first of {questions} questions)")?;
        }
    }
    Ok(())
}

fn write_tls(f: &mut fmt::Formatter<'_>, record: &MessageRecord<'_>) -> fmt::Result {
    f.write_str("tls")?;
    write_fields(f, " ", record, &[Field::TlsVersion, Field::ServerName])?;
    write_fields(f, ", ", record, &[Field::Alpn, Field::Cipher, Field::Ja4])
}

/// Writes the fields of the record that `wanted` lists, in the order of `wanted`. Omits empty
/// fields. Escapes each value, and writes the text `before` in front of it.
fn write_fields(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    record: &MessageRecord<'_>,
    wanted: &[Field],
) -> fmt::Result {
    for wanted in wanted {
        for (field, value) in record.0.fields() {
            if field == *wanted && !value.is_empty() {
                write!(f, "{before}{}", EscapedBytes(value))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEST_TIME, description_record};
    use serde_json::{Value, json};

    fn exchange() -> Vec<u8> {
        description_record(RecordKind::HttpExchange, |writer| {
            writer.add_number(Field::Time, TEST_TIME);
            writer.add_number(Field::End, TEST_TIME + 12_345_678);
            writer.add_text(Field::Client, &[10, 0, 0, 1]);
            writer.add_number(Field::ClientPort, 1234);
            writer.add_text(Field::Server, &[10, 0, 0, 2]);
            writer.add_number(Field::ServerPort, 80);
            writer.add_text(Field::Method, b"GET");
            writer.add_text(Field::Url, b"/a\x1b[2J\"\xff");
            writer.add_text(Field::Host, b"example.com");
            writer.add_text(Field::Version, b"1.1");
            writer.add_number(Field::Status, 200);
            writer.add_text(Field::StatusText, b"OK");
            writer.add_number(Field::ResponseBody, 1024);
        })
    }

    fn message_phrase(bytes: &[u8]) -> String {
        MessagePhrase(MessageRecord::parse(bytes).unwrap()).to_string()
    }

    #[test]
    fn phrase_contains_no_control_characters() {
        let ends = "10.0.0.1:1234 > 10.0.0.2:80";
        assert_eq!(
            message_phrase(&exchange()),
            format!(
                "{ends} http GET http://example.com/a\\x1B[2J\\x22\\xFF 200 OK, \
                 1024 bytes received, 12.345 ms"
            )
        );
        let response = description_record(RecordKind::HttpResponse, |writer| {
            writer.add_text(Field::Client, &[0; 16]);
            writer.add_text(Field::Server, &[1; 16]);
            writer.add_number(Field::Status, 404);
            writer.add_text(Field::StatusText, b"Not\nFound");
            writer.add_text(Field::ContentType, b"text/html");
            writer.add_number(Field::ContentLength, 7);
            writer.add_number(Field::Missing, 3);
            writer.add_number(Field::Incomplete, 1);
        });
        assert_eq!(
            message_phrase(&response),
            "101:101:101:101:101:101:101:101 > :: http 404 Not\\x0AFound, text/html, \
             7 bytes stated, 3 bytes missing, incomplete"
        );
        let answer = description_record(RecordKind::Dns, |writer| {
            writer.add_number(Field::Answer, 1);
            writer.add_text(Field::RcodeName, b"NOERROR");
            writer.add_text(Field::Type, b"A");
            writer.add_text(Field::Name, b"example.com");
            writer.add_text(Field::Data, b"1.2.3.4");
            writer.add_text(Field::Data, b"5.6.7.8");
        });
        let record = "dns answer NOERROR A example.com, 1.2.3.4, 5.6.7.8";
        assert_eq!(message_phrase(&answer), record);
        let escaped = description_record(RecordKind::Dns, |writer| {
            writer.add_text(Field::Name, br"a\032b");
            writer.add_number(Field::Questions, 2);
            writer.add_text(Field::Data, b"\"k=v\" \x1b[2J");
        });
        let record = "dns query a\\032b (first of 2 questions), \"k=v\" ·[2J";
        assert_eq!(message_phrase(&escaped), record, "the escapes of zone files are unchanged");
        let hello = description_record(RecordKind::Tls, |writer| {
            writer.add_text(Field::TlsVersion, b"1.3");
            writer.add_text(Field::ServerName, b"example.com");
            writer.add_text(Field::Alpn, b"h2");
        });
        assert_eq!(message_phrase(&hello), "tls 1.3 example.com, h2");
    }

    #[test]
    fn sender_is_read_from_the_message() {
        let ends = ["10.0.0.1:1000 > 10.0.0.2:53", "10.0.0.2:53 > 10.0.0.1:1000"];
        let sent = |kind, field, expected: &str| {
            let record = description_record(kind, |writer| {
                writer.add_text(Field::Client, &[10, 0, 0, 1]);
                writer.add_number(Field::ClientPort, 1000);
                writer.add_text(Field::Server, &[10, 0, 0, 2]);
                writer.add_number(Field::ServerPort, 53);
                writer.add_number(field, 1);
            });
            let phrase = message_phrase(&record);
            assert!(phrase.starts_with(expected), "{kind:?} {field:?}: {phrase}");
        };
        sent(RecordKind::Dns, Field::Opcode, ends[0]);
        sent(RecordKind::Dns, Field::Answer, ends[1]);
        sent(RecordKind::Tls, Field::Ciphers, ends[0]);
        sent(RecordKind::Tls, Field::Cipher, ends[1]);
        sent(RecordKind::HttpRequest, Field::RequestHead, ends[0]);
        sent(RecordKind::HttpResponse, Field::Status, ends[1]);
        sent(RecordKind::HttpExchange, Field::Status, ends[0]);
    }

    #[test]
    fn every_field_type_serializes() {
        let bytes = description_record(RecordKind::Dns, |writer| {
            writer.add_number(Field::Time, TEST_TIME);
            writer.add_number(Field::End, TEST_TIME);
            writer.add_text(Field::Client, &[10, 0, 0, 1]);
            writer.add_text(Field::Server, b"no address");
            writer.add_text(Field::Class, b"IN");
            writer.add_text(Field::Version, b"1.1");
            writer.add_number(Field::Rcode, 0);
            writer.add_number(Field::Answer, 1);
            writer.add_text(Field::Name, b"a\x00\xff");
            writer.add_text(Field::Name, b"again");
            writer.add_text(Field::Data, b"x");
            writer.add_text(Field::Data, b"y");
        });
        let record = MessageRecord::parse(&bytes).unwrap();
        let expected = json!({
            "kind": "dns", "end": "2009-02-13T23:31:30.123456789Z", "client": "10.0.0.1",
            "question_class": "IN", "http_version": "1.1", "rcode": 0, "answer": true,
            "name": "a\u{0}\u{fffd}", "data": ["x", "y"],
        });
        assert_eq!(record_object(&record), expected);
    }

    /// Returns the fields of the record as a JSON object.
    fn record_object(record: &MessageRecord<'_>) -> Value {
        let mut map = serde_json::value::Serializer.serialize_map(None).unwrap();
        record.write_fields(&mut map).unwrap();
        map.end().unwrap()
    }

    #[test]
    fn json_field_names_are_unique() {
        let others = [
            "version",
            "time",
            "origin",
            "form",
            "kind",
            "class",
            "class_name",
            "session",
            "first",
            "direction",
            "last",
            "length",
            "wire_length",
            "captured",
            "vlan",
            "network",
            "src",
            "dst",
            "proto",
            "src_port",
            "dst_port",
            "malformed",
            "payload",
            "file",
            "blocks",
            "bytes",
            "missing",
            "complete",
            "sha256",
            "messages",
            "cut",
            "unfilled",
            "decoded",
            "hole",
        ];
        let mut names: Vec<&str> = Field::ALL.iter().map(|field| field.json()).collect();
        names.retain(|name| *name != "time");
        assert!(names.iter().all(|name| !others.contains(name)), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len() + 1, Field::ALL.len());
        assert!(Field::ALL.len() <= 64, "a mask of 64 bits has a bit for each field");
    }

    #[test]
    fn truncated_record_is_marked() {
        let whole = exchange();
        let mut room = vec![0; whole.len() - 20];
        let mut writer = record::Writer::new(&mut room, RecordKind::HttpExchange);
        writer.add_all_fields(&Record::parse(&whole).unwrap());
        let used = writer.finish();
        let record = MessageRecord::parse(&room[..used]).unwrap();
        let value = record_object(&record);
        assert_eq!((&value["cut"], &value["method"]), (&json!(true), &json!("GET")));
        assert_eq!(value["status_text"], Value::Null);
    }
}
