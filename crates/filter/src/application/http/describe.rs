//! Descriptions of HTTP traffic: of a message once its head is complete, and of an exchange (a
//! request with its response) once both have ended.

use super::reasons;
use super::state::HttpDirection;
use super::walk::BlockWalk;
use crate::application::endpoints::Endpoints;
use crate::prelude::*;
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use wire::http::{Head, StartLine};
use wire::record::{Field, Record, RecordKind, TEXT_LENGTH_MAX, Writer};

/// Upper bound on the size of a description in bytes, excluding the texts copied from the head.
const TEXTLESS_DESCRIPTION_SIZE: usize = 256;

impl<'a> BlockWalk<'_, '_, 'a> {
    /// Emits the description of the message with this head. `alone` is true if no fragments of the
    /// message follow. The description is marked as incomplete if the message broke off within its
    /// head.
    ///
    /// The description of a request is also held until the response ends. That of a final response
    /// is held if exchanges are emitted.
    pub(super) fn emit_description(&mut self, head: &Head<'_>, alone: bool) {
        let requests = self.carries_requests();
        self.cx.count(if requests { reasons::REQUESTS } else { reasons::RESPONSES }, 1);
        let asked = if requests { None } else { self.pending_request() };
        let ends = self.endpoints();
        let time = self.message_start_time();
        let broken = self.direction().is_broken != 0;
        let room = TEXTLESS_DESCRIPTION_SIZE
            + head_texts_size(head)
            + asked.map_or(0, |(_, record)| description_texts_size(&record));
        let mut context = self.block.context;
        context.flags = self.message_flags_function()(context.flags).with(BlockFlags::FIRST);
        if alone {
            context.flags = context.flags.with(self.last_fragment_flag());
        }
        let class = Class(self.direction().class);
        let described = self.cx.append_description(room, class, context, |room| {
            let kind = if requests { RecordKind::HttpRequest } else { RecordKind::HttpResponse };
            let mut writer = Writer::new(room, kind);
            writer.add_number(Field::Time, time);
            if let Some(ends) = ends {
                ends.write(&mut writer);
            }
            match head.start {
                StartLine::Request { method, target, .. } => {
                    write_request_fields(&mut writer, head, method, target);
                }
                StartLine::Response { status, reason } => {
                    write_response_fields(
                        &mut writer,
                        head,
                        status,
                        reason,
                        asked.map(|asked| asked.1),
                    );
                }
            }
            if broken {
                writer.add_number(Field::Incomplete, 1);
            }
            writer.finish()
        });
        if let Some(block) = described {
            self.cx.emit_created_block(block);
            if requests {
                self.hold_request(&block);
            } else if self.options.exchanges && !is_interim(class) {
                self.hold_response(&block, asked.map(|(key, _)| key));
            }
        } else if requests {
            self.connection.unheld_requests = self.connection.unheld_requests.saturating_add(1);
        }
    }

    /// Returns the time at which the first byte of the message's head arrived.
    fn message_start_time(&self) -> u64 {
        let held = self.cx.front_block(&self.connection.directions[self.direction].held);
        held.map_or(self.block.context.time, |(_, block)| block.context.time)
    }

    fn endpoints(&self) -> Option<Endpoints> {
        // The last block of a connection may be a generated block without headers.
        let held = self.cx.front_block(&self.connection.directions[self.direction].held);
        let block = held.map_or(self.block, |(_, block)| block);
        Endpoints::from_block(block, !self.carries_requests())
    }

    /// Emits the description of an exchange: the request, the response, and the observed size of
    /// each body.
    pub(super) fn emit_exchange(
        &mut self,
        request: Option<Record<'a>>,
        request_body: Option<Record<'a>>,
        response: Option<(Record<'a>, u32, ObservedBody)>,
    ) {
        let room = TEXTLESS_DESCRIPTION_SIZE
            + request.map_or(0, |record| description_texts_size(&record))
            + response.map_or(0, |(record, ..)| description_texts_size(&record));
        let mut context = self.block.context;
        let stream = BlockFlags::BACKWARD.with(BlockFlags::SESSION_END_MASK);
        context.flags =
            context.flags.without(stream).with(BlockFlags::FIRST).with(BlockFlags::LAST);
        let class = Class(1000 + response.map_or(0, |(_, class, _)| class));
        let end = context.time;
        let described = self.cx.append_description(room, class, context, |room| {
            let mut writer = Writer::new(room, RecordKind::HttpExchange);
            let (mut missing, mut broken) = (0_u64, false);
            if let Some(request) = &request {
                writer.inherit_truncation(request);
            }
            // The body that an exchange describes is that of the response.
            let of_body = |field| {
                matches!(field, Field::ContentType | Field::ContentEncoding | Field::ContentLength)
            };
            let fields = request.iter().flat_map(Record::fields);
            for (field, value) in fields.filter(|(field, _)| !of_body(*field)) {
                writer.add_text(field, value);
            }
            let length = |record: &Record<'_>| record.number(Field::RequestBody);
            writer.add_number(
                Field::RequestBody,
                request_body.as_ref().and_then(length).unwrap_or(0),
            );
            if let Some(request_body) = request_body {
                missing = missing.saturating_add(request_body.number(Field::Missing).unwrap_or(0));
                broken |= request_body.number(Field::Incomplete).is_some();
            }
            if let Some((record, _, observed)) = response {
                write_exchange_response(&mut writer, &record, request.is_none());
                writer.add_number(Field::ResponseBody, observed.bytes);
                missing = missing.saturating_add(observed.missing.into());
                broken |= observed.broken;
            }
            writer.add_number(Field::End, end);
            if missing > 0 {
                writer.add_number(Field::Missing, missing);
            }
            if broken {
                writer.add_number(Field::Incomplete, 1);
            }
            writer.finish()
        });
        if let Some(block) = described {
            self.cx.emit_created_block(block);
        }
    }

    /// Creates a record that stores the size of an observed request body for the description of the
    /// exchange. Returns `None` if memory runs out.
    pub(super) fn create_body_record(&mut self, observed: ObservedBody) -> Option<Block<'a>> {
        let context = self.block.context;
        self.cx.append_description(TEXTLESS_DESCRIPTION_SIZE, Class::YES, context, |room| {
            let mut writer = Writer::new(room, RecordKind::HttpRequest);
            writer.add_number(Field::RequestBody, observed.bytes);
            if observed.missing > 0 {
                writer.add_number(Field::Missing, observed.missing.into());
            }
            if observed.broken {
                writer.add_number(Field::Incomplete, 1);
            }
            writer.finish()
        })
    }
}

/// The number of bytes observed of a message body, and whether they are all. `bytes` counts the
/// observed bytes, and `missing` those that were not captured. `broken` is true if the message
/// ended early or lost bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedBody {
    pub(super) bytes: u64,
    pub(super) missing: u32,
    pub(super) broken: bool,
}

impl ObservedBody {
    pub(super) fn from_direction(direction: &HttpDirection) -> Self {
        Self {
            bytes: direction.observed_bytes,
            missing: direction.missing_bytes,
            broken: direction.is_broken != 0,
        }
    }
}

/// Returns true if the class is that of an interim (1xx) response, after which the server sends a
/// further response to the same request (RFC 9110 §15.2). Returns false for 101, which switches the
/// protocol.
pub(super) const fn is_interim(class: Class) -> bool {
    100 <= class.0 && class.0 < 200 && class.0 != 101
}

fn write_request_fields(writer: &mut Writer<'_>, head: &Head<'_>, method: &[u8], target: &[u8]) {
    let fields = &head.fields;
    writer.add_text(Field::Method, method);
    writer.add_text(Field::Url, target);
    write_line(writer, Field::Host, fields.host);
    write_text(writer, Field::Version, head.version);
    write_user_name(writer, fields.authorization);
    for (field, value) in [(Field::UserAgent, fields.user_agent), (Field::Referer, fields.referer)]
    {
        if let Some(value) = value {
            writer.add_header_value(field, value);
        }
    }
    write_body_fields(writer, head);
    writer.add_number(Field::RequestHead, (head.end - head.begin) as u64);
}

fn write_response_fields(
    writer: &mut Writer<'_>,
    head: &Head<'_>,
    status: u16,
    reason: &[u8],
    asked: Option<Record<'_>>,
) {
    let mut is_longest = false;
    for field in [Field::Method, Field::Url, Field::Host] {
        if let Some(value) = asked.and_then(|record| record.text(field)) {
            writer.add_text(field, value);
            is_longest |= value.len() == TEXT_LENGTH_MAX;
        }
    }
    if let Some(asked) = asked.filter(|_| is_longest) {
        writer.inherit_truncation(&asked);
    }
    write_text(writer, Field::Version, head.version);
    if status > 0 {
        writer.add_number(Field::Status, status.into());
    }
    write_text(writer, Field::StatusText, reason);
    write_body_fields(writer, head);
    writer.add_number(Field::ResponseHead, (head.end - head.begin) as u64);
}

/// Writes the header fields of a head that describe the message's body.
fn write_body_fields(writer: &mut Writer<'_>, head: &Head<'_>) {
    let fields = &head.fields;
    write_line(writer, Field::ContentType, fields.content_type);
    write_line(writer, Field::ContentEncoding, fields.content_encoding);
    if let Some(length) = fields.length {
        writer.add_number(Field::ContentLength, length);
    }
}

/// Writes the fields of a response to the description of an exchange. If no request was observed
/// (`alone`), also writes the time and endpoints of the response in place of the request's.
fn write_exchange_response(writer: &mut Writer<'_>, record: &Record<'_>, alone: bool) {
    writer.inherit_truncation(record);
    for (field, value) in record.fields() {
        match field {
            Field::Time if alone => writer.add_text(field, value),
            Field::Status
            | Field::StatusText
            | Field::ContentType
            | Field::ContentEncoding
            | Field::ContentLength
            | Field::ResponseHead => writer.add_text(field, value),
            Field::Client | Field::ClientPort | Field::Server | Field::ServerPort if alone => {
                writer.add_text(field, value);
            }
            _ => {}
        }
    }
    if let Some(time) = record.number(Field::Time) {
        writer.add_number(Field::ResponseTime, time);
    }
}

fn write_text(writer: &mut Writer<'_>, field: Field, value: &[u8]) {
    if !value.is_empty() {
        writer.add_text(field, value);
    }
}

/// Writes the value of a header field as a single line, unless the value is empty.
fn write_line(writer: &mut Writer<'_>, field: Field, value: &[u8]) {
    if !value.is_empty() {
        writer.add_header_value(field, value);
    }
}

/// Maximum length in bytes of a user name in `Basic` credentials (RFC 7617).
const USER_NAME_MAX: usize = 192;

/// Base64 configuration that accepts missing padding, since a user name can be decoded without it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn write_user_name(writer: &mut Writer<'_>, authorization: &[u8]) {
    let Some((scheme, rest)) = authorization.split_at_checked(6) else { return };
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return;
    }
    // Four letters encode three bytes; decoding stops at the maximum, possibly within the password.
    let letters = rest.trim_ascii();
    let (letters, is_whole) = match letters.get(..USER_NAME_MAX / 3 * 4) {
        Some(beginning) => (beginning, beginning.len() == letters.len()),
        None => (letters, true),
    };
    let mut bytes = [0; USER_NAME_MAX];
    let Ok(length) = BASE64.decode_slice(letters, &mut bytes) else { return };
    let decoded = bytes.get(..length).unwrap_or_default();
    match decoded.iter().position(|byte| *byte == b':') {
        Some(end) => write_text(writer, Field::User, decoded.get(..end).unwrap_or_default()),
        // The colon may lie beyond the maximum. Complete text without a colon is not valid
        // credentials.
        None if !is_whole => {
            write_text(writer, Field::User, decoded);
            writer.mark_truncated();
        }
        None => {}
    }
}

/// Returns an upper bound on the length of the texts that a description copies from this head, in
/// bytes.
fn head_texts_size(head: &Head<'_>) -> usize {
    let fields = &head.fields;
    let start = match head.start {
        StartLine::Request { method, target, .. } => method.len() + target.len(),
        StartLine::Response { reason, .. } => reason.len(),
    };
    start
        + head.version.len()
        + fields.host.len()
        + fields.authorization.len()
        + fields.user_agent.unwrap_or_default().len()
        + fields.referer.unwrap_or_default().len()
        + fields.content_type.len()
        + fields.content_encoding.len()
}

/// Returns an upper bound on the length of the texts in an existing description, in bytes.
fn description_texts_size(record: &Record<'_>) -> usize {
    record.fields().map(|(_, value)| value.len() + 3).sum()
}
