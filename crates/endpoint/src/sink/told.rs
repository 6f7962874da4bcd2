//! Reads the description of a message (`wire::record`), for programs and for people.
//!
//! In: a block that describes a message. Out: its fields as they stand in the objects that `json`
//! and `files` write ([`Fields`]), and one phrase for `print`:
//! `10.0.0.1:1234 > 10.0.0.2:80 http GET http://host/path`. Nothing in a description is trusted:
//! texts are shown without control characters, and what cannot be read is left out.

use crate::clock::Rfc3339;
use abi::{Direction, Flags};
use filter::{Amount, Block, Form, Time};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Flow;
use wire::ports::Ports;
use wire::record::{self, Field, FieldType, Record, RecordKind};

/// A description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a>(Record<'a>);

impl<'a> Told<'a> {
    /// Reads the description of the message that this block begins; `None` if it describes none.
    pub(crate) fn of(block: &Block<'a>) -> Option<Self> {
        if block.marks.is_description() { Self::read(block.frame) } else { None }
    }

    /// The description that these bytes are.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        Record::parse(bytes).map(Self)
    }

    /// Returns the kind of the message.
    pub(crate) const fn kind(&self) -> RecordKind {
        self.0.kind()
    }

    /// A text as it was on the wire.
    pub(crate) fn text(&self, field: Field) -> Option<&'a [u8]> {
        self.0.text(field)
    }

    /// A number.
    pub(crate) fn number(&self, field: Field) -> Option<u64> {
        self.0.number(field)
    }

    /// Returns the time at which the message began.
    pub(crate) fn time(&self) -> Option<Time> {
        self.number(Field::Time)
    }

    /// Returns the time at which it, or the last message of an exchange, ended.
    pub(crate) fn end(&self) -> Option<Time> {
        self.number(Field::End)
    }

    /// An address.
    pub(crate) fn address(&self, field: Field) -> Option<IpAddr> {
        self.text(field).and_then(address)
    }

    /// A port.
    pub(crate) fn port(&self, field: Field) -> Option<u16> {
        self.number(field).and_then(|port| u16::try_from(port).ok())
    }

    /// Returns the sender and receiver of the message, without a transport protocol, which is
    /// unknown.
    pub(crate) fn flow(&self, backward: bool) -> Option<Flow> {
        let ports = self.port(Field::ClientPort).zip(self.port(Field::ServerPort));
        let flow = Flow {
            source: self.address(Field::Client)?,
            target: self.address(Field::Server)?,
            protocol: 0,
            ports: ports.map(|(source, target)| Ports { source, target }),
        };
        Some(if backward { flow.reversed() } else { flow })
    }

    /// All fields with their values as they are stored.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Field, &'a [u8])> {
        self.0.fields()
    }

    /// Returns true if it has this mark.
    pub(crate) fn is(&self, field: Field) -> bool {
        self.number(field).is_some_and(|value| value != 0)
    }

    /// The fields as they stand in a JSON object.
    pub(crate) const fn fields(self) -> Fields<'a> {
        Fields(self)
    }

    /// The address of what is asked for, whole if the host is known.
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

/// The address in these bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
}

/// The fields of a description as JSON. The time is left out: objects have one already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(Told<'a>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = self.0.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", record.kind().name())?;
        // A name stands in an object once, whatever a record says.
        let mut told = 1u64 << Field::Time as u8;
        for (field, value) in record.fields() {
            if told >> field as u8 & 1 == 1 {
                continue;
            }
            told |= 1 << field as u8;
            let name = field.json();
            match field.shape() {
                FieldType::Text => map.serialize_entry(name, &String::from_utf8_lossy(value))?,
                FieldType::List => map.serialize_entry(name, &All { record, field })?,
                FieldType::Number => entry(&mut map, name, record::number(value))?,
                FieldType::Flag => entry(&mut map, name, record::number(value).map(|n| n != 0))?,
                FieldType::Time => entry(&mut map, name, record::number(value).map(Rfc3339))?,
                FieldType::Address => entry(&mut map, name, address(value))?,
            }
        }
        if record.is_cut() {
            map.serialize_entry("cut", &true)?;
        }
        map.end()
    }
}

/// Adds what could be read.
fn entry<M: SerializeMap>(
    map: &mut M,
    name: &str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

/// All texts of a field.
struct All<'a> {
    record: Record<'a>,
    field: Field,
}

impl Serialize for All<'_> {
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

/// Bytes of strangers for a terminal or a line of a log: quotes, backslashes and everything but
/// printable ASCII as `\x0A`, as nginx writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'a>(pub(crate) &'a [u8]);

impl Plain<'_> {
    /// Appends the text to a line.
    pub(crate) fn add_to(self, line: &mut Vec<u8>) {
        const DIGITS: [u8; 16] = *b"0123456789ABCDEF";
        let mut rest = self.0;
        while let Some(at) = rest.iter().position(|byte| !is_plain(*byte)) {
            let (plain, behind) = rest.split_at(at);
            line.extend_from_slice(plain);
            let Some((byte, behind)) = behind.split_first() else { break };
            let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'?');
            line.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
            rest = behind;
        }
        line.extend_from_slice(rest);
    }
}

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            if is_plain(*byte) {
                f.write_char(char::from(*byte))?;
            } else {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// Counts messages, once each, by their descriptions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    /// True if descriptions are followed by their messages; where streams come, they stand for
    /// themselves.
    followed: bool,
    messages: u64,
    fragments: u64,
    /// The session and the direction of the last description, until its first fragment has come.
    /// That may be the first block of its stream, and say so.
    open: Option<(u32, Direction)>,
}

impl Described {
    /// Nothing yet, of blocks of this form.
    pub(crate) const fn new(form: Form) -> Self {
        Self { followed: matches!(form, Form::Message), messages: 0, fragments: 0, open: None }
    }

    /// Returns true if a block is a part of a message that was counted before. Filters that
    /// describe messages describe all of them; other filters mark the first part of theirs.
    pub(crate) fn is_told(&self, block: &Block<'_>) -> bool {
        let begins = block.context.flags.has(Flags::FIRST) && self.open != Some(place(block));
        self.followed && self.messages > 0 && !begins
    }

    /// Counts a block.
    pub(crate) fn note(&mut self, block: &Block<'_>) {
        if block.marks.is_description() {
            self.messages += 1;
            let alone = block.context.flags.has(Flags::LAST);
            self.open = (!alone).then(|| place(block));
        } else if self.is_told(block) {
            self.fragments += 1;
            self.open = self.open.filter(|open| *open != place(block));
        }
    }

    /// Returns the counts of these blocks.
    pub(crate) fn rows(&self, blocks: Amount) -> Vec<(String, u64)> {
        let row = |name: &str, value| (name.to_owned(), value);
        let mut rows = vec![row("blocks", blocks.blocks)];
        if self.messages > 0 {
            rows.push(row("messages", self.messages));
        }
        if self.fragments > 0 {
            rows.push(row("fragments", self.fragments));
        }
        rows
    }
}

/// Returns a block's session and direction.
const fn place(block: &Block<'_>) -> (u32, Direction) {
    (block.context.session, block.context.flags.direction())
}

/// A description as a phrase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phrase<'a> {
    /// The description.
    pub(crate) told: Told<'a>,
    /// The direction of the message.
    pub(crate) direction: Direction,
}

impl fmt::Display for Phrase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = &self.told;
        if let Some(flow) = told.flow(self.direction == Direction::Backward) {
            write!(f, "{flow} ")?;
        }
        match told.kind() {
            RecordKind::HttpRequest | RecordKind::HttpResponse | RecordKind::HttpExchange => {
                http(f, told)?
            }
            RecordKind::Dns => dns(f, told)?,
            RecordKind::Tls => tls(f, told)?,
        }
        if let Some(missing) = told.number(Field::Missing).filter(|missing| *missing > 0) {
            write!(f, ", {missing} bytes missing")?;
        }
        if told.is(Field::Incomplete) {
            f.write_str(", incomplete")?;
        }
        Ok(())
    }
}

fn http(f: &mut fmt::Formatter<'_>, told: &Told<'_>) -> fmt::Result {
    f.write_str("http")?;
    words(f, " ", told, &[Field::Method])?;
    if let Some(url) = told.url() {
        write!(f, " {}", Plain(&url))?;
    }
    if let Some(status) = told.number(Field::Status) {
        write!(f, " {status}")?;
        words(f, " ", told, &[Field::StatusText])?;
    }
    words(f, ", ", told, &[Field::ContentType, Field::ContentEncoding])?;
    let (sent, received) = (told.number(Field::RequestBody), told.number(Field::ResponseBody));
    let stated = told.number(Field::ContentLength).filter(|stated| Some(*stated) != received);
    let sent = sent.filter(|sent| *sent > 0);
    for (bytes, what) in [(stated, "stated"), (sent, "sent"), (received, "received")] {
        if let Some(bytes) = bytes {
            write!(f, ", {bytes} bytes {what}")?;
        }
    }
    if let (Some(time), Some(end), RecordKind::HttpExchange) =
        (told.time(), told.end(), told.kind())
    {
        let micros = end.saturating_sub(time) / 1000;
        write!(f, ", {}.{:03} ms", micros / 1000, micros % 1000)?;
    }
    Ok(())
}

fn dns(f: &mut fmt::Formatter<'_>, told: &Told<'_>) -> fmt::Result {
    f.write_str(if told.is(Field::Answer) { "dns answer" } else { "dns query" })?;
    words(f, " ", told, &[Field::RcodeName, Field::Type, Field::Name])?;
    words(f, ", ", told, &[Field::Data])
}

fn tls(f: &mut fmt::Formatter<'_>, told: &Told<'_>) -> fmt::Result {
    f.write_str("tls")?;
    words(f, " ", told, &[Field::TlsVersion, Field::ServerName])?;
    words(f, ", ", told, &[Field::Alpn, Field::Cipher, Field::Ja4])
}

/// The texts of these fields, all of them where there are several.
fn words(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    told: &Told<'_>,
    wanted: &[Field],
) -> fmt::Result {
    for wanted in wanted {
        for (field, value) in told.0.fields() {
            if field == *wanted && !value.is_empty() {
                write!(f, "{before}{}", Plain(value))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TIME, described};
    use serde_json::{Value, json};

    fn exchange() -> Vec<u8> {
        described(RecordKind::HttpExchange, |writer| {
            writer.number(Field::Time, TIME);
            writer.number(Field::End, TIME + 12_345_678);
            writer.text(Field::Client, &[10, 0, 0, 1]);
            writer.number(Field::ClientPort, 1234);
            writer.text(Field::Server, &[10, 0, 0, 2]);
            writer.number(Field::ServerPort, 80);
            writer.text(Field::Method, b"GET");
            writer.text(Field::Url, b"/a\x1b[2J\"\xff");
            writer.text(Field::Host, b"example.com");
            writer.text(Field::Version, b"1.1");
            writer.number(Field::Status, 200);
            writer.text(Field::StatusText, b"OK");
            writer.number(Field::ResponseBody, 1024);
        })
    }

    fn phrase(bytes: &[u8], direction: Direction) -> String {
        Phrase { told: Told::read(bytes).unwrap(), direction }.to_string()
    }

    #[test]
    fn a_message_is_a_phrase_without_control_characters() {
        let ends = "10.0.0.1:1234 > 10.0.0.2:80";
        assert_eq!(
            phrase(&exchange(), Direction::Forward),
            format!(
                "{ends} http GET http://example.com/a\\x1B[2J\\x22\\xFF 200 OK, \
                 1024 bytes received, 12.345 ms"
            )
        );
        let response = described(RecordKind::HttpResponse, |writer| {
            writer.text(Field::Client, &[0; 16]);
            writer.text(Field::Server, &[1; 16]);
            writer.number(Field::Status, 404);
            writer.text(Field::StatusText, b"Not\nFound");
            writer.text(Field::ContentType, b"text/html");
            writer.number(Field::ContentLength, 7);
            writer.number(Field::Missing, 3);
            writer.number(Field::Incomplete, 1);
        });
        assert_eq!(
            phrase(&response, Direction::Backward),
            "101:101:101:101:101:101:101:101 > :: http 404 Not\\x0AFound, text/html, \
             7 bytes stated, 3 bytes missing, incomplete"
        );
        let answer = described(RecordKind::Dns, |writer| {
            writer.number(Field::Answer, 1);
            writer.text(Field::RcodeName, b"NOERROR");
            writer.text(Field::Type, b"A");
            writer.text(Field::Name, b"example.com");
            writer.text(Field::Data, b"1.2.3.4");
            writer.text(Field::Data, b"5.6.7.8");
        });
        let told = "dns answer NOERROR A example.com, 1.2.3.4, 5.6.7.8";
        assert_eq!(phrase(&answer, Direction::Forward), told);
        let hello = described(RecordKind::Tls, |writer| {
            writer.text(Field::TlsVersion, b"1.3");
            writer.text(Field::ServerName, b"example.com");
            writer.text(Field::Alpn, b"h2");
        });
        assert_eq!(phrase(&hello, Direction::Forward), "tls 1.3 example.com, h2");
    }

    #[test]
    fn every_shape_has_its_json() {
        let bytes = described(RecordKind::Dns, |writer| {
            writer.number(Field::Time, TIME);
            writer.number(Field::End, TIME);
            writer.text(Field::Client, &[10, 0, 0, 1]);
            writer.text(Field::Server, b"no address");
            writer.text(Field::Class, b"IN");
            writer.text(Field::Version, b"1.1");
            writer.number(Field::Rcode, 0);
            writer.number(Field::Answer, 1);
            writer.text(Field::Name, b"a\x00\xff");
            writer.text(Field::Name, b"again");
            writer.text(Field::Data, b"x");
            writer.text(Field::Data, b"y");
        });
        let told = Told::read(&bytes).unwrap();
        let expected = json!({
            "kind": "dns", "end": "2009-02-13T23:31:30.123456789Z", "client": "10.0.0.1",
            "question_class": "IN", "http_version": "1.1", "rcode": 0, "answer": true,
            "name": "a\u{0}\u{fffd}", "data": ["x", "y"],
        });
        assert_eq!(serde_json::to_value(told.fields()).unwrap(), expected);
    }

    #[test]
    fn no_name_stands_for_two_things() {
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
            "hole",
        ];
        let mut names: Vec<&str> = Field::ALL.iter().map(|field| field.json()).collect();
        names.retain(|name| *name != "time");
        assert!(names.iter().all(|name| !others.contains(name)), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len() + 1, Field::ALL.len());
        assert!(Field::ALL.len() <= 64, "a mask of 64 bits tells them apart");
    }

    #[test]
    fn a_record_that_was_cut_says_so() {
        let whole = exchange();
        let mut room = vec![0; whole.len() - 20];
        let mut writer = record::Writer::new(&mut room, RecordKind::HttpExchange);
        writer.all(&Record::parse(&whole).unwrap());
        let used = writer.finish();
        let told = Told::read(&room[..used]).unwrap();
        let value = serde_json::to_value(told.fields()).unwrap();
        assert_eq!((&value["cut"], &value["method"]), (&json!(true), &json!("GET")));
        assert_eq!(value["status_text"], Value::Null);
    }
}
