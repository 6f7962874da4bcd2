//! Parsing of a single DNS message, and its class and description.

use super::{CUT, FORWARD_POINTERS, MALFORMED, NOT_DNS, QUERIES, RESPONSE_CLASS, RESPONSES};
use crate::application::endpoints::{Endpoints, write_display};
use crate::prelude::*;
use wire::dns::{DnsFault, Message, MessageEntry, Name, Opcode, Question, Section};
use wire::record::{Field, RecordKind as About, Writer};

/// Maximum size of a description in bytes.
const DESCRIPTION_SIZE_MAX: usize = 4096;
/// Maximum number of answers in a description.
const ANSWERS_MAX: usize = 16;

/// A complete DNS message as it was received.
pub(super) struct ReceivedMessage<'a, 'm> {
    /// First block of the message. The description copies the block's time and endpoints.
    pub(super) block: Block<'a>,
    /// Captured bytes of the message.
    pub(super) raw: &'m [u8],
    /// Length of the message on the wire, in bytes.
    pub(super) length: usize,
}

/// Returns the class and the description of a message, and counts the message as a query or a
/// response. The description is `None` if memory runs out. Fails with the reason if the message has
/// no class.
pub(super) fn describe<'a>(
    message: ReceivedMessage<'a, '_>,
    cx: &mut StreamContext<'_, 'a>,
) -> Result<(Class, Option<Block<'a>>), Reason> {
    let ReceivedMessage { block, raw, length } = message;
    let cut = raw.len() < length;
    let message = Message::parse(raw).ok_or(if cut { CUT } else { NOT_DNS })?;
    let found = MessageProperties::from_message(&message, length, cut)?;
    let class = found.class();
    let context = first_fragment_metadata(block.context);
    let ends = Endpoints::from_block(block, message.is_response());
    let written = cx.append_description(DESCRIPTION_SIZE_MAX, class, context, |room| {
        let mut writer = Writer::new(room, About::Dns);
        writer.add_number(Field::Time, context.time);
        if let Some(ends) = ends {
            ends.write(&mut writer);
        }
        found.write_header(&message, &mut writer);
        found.write_answers(&message, &mut writer);
        writer.finish()
    });
    cx.count(FORWARD_POINTERS, found.has_forward_pointer.into());
    cx.count(if message.is_response() { RESPONSES } else { QUERIES }, 1);
    Ok((class, written))
}

fn first_fragment_metadata(context: BlockMetadata) -> BlockMetadata {
    let flags = context
        .flags
        .without(BlockFlags::LAST)
        .without(BlockFlags::SESSION_END_MASK)
        .with(BlockFlags::FIRST);
    BlockMetadata { flags, ..context }
}

/// The properties of a message that determine its class and description, collected in one pass.
#[derive(Default)]
struct MessageProperties<'m> {
    question: Option<Question<'m>>,
    /// Owner name of the first resource record. Used in the description of a multicast DNS
    /// response, which has no question.
    owner_name: Option<Name<'m>>,
    response: bool,
    /// The response code, including the upper bits from an OPT record.
    code: u16,
    /// Minimum time to live of the records in the answer section, in seconds; `None` if the section
    /// is empty.
    min_ttl: Option<u32>,
    /// True if the message is truncated, or if parsing failed after the answer section.
    is_incomplete: bool,
    /// True if a compression pointer in a name points forward, which RFC 1035 forbids.
    has_forward_pointer: bool,
}

impl<'m> MessageProperties<'m> {
    fn from_message(message: &Message<'m>, length: usize, cut: bool) -> Result<Self, Reason> {
        if !message.is_likely_dns(length) && (cut || !message.is_exactly_one_message()) {
            return Err(NOT_DNS);
        }
        let has_question = message.question_count() > 0;
        if !has_question && !message.opcode().is_assigned() {
            return Err(NOT_DNS);
        }
        let (response, code) = (message.is_response(), message.rcode().0);
        let mut found = Self { response, code, ..Self::default() };
        let mut answers = 0;
        let mut entries = message.entries();
        for entry in entries.by_ref() {
            match entry {
                // Type 0 in class 0 is reserved: no client queries it, and no server has it.
                Ok(MessageEntry::Question(question))
                    if (question.kind.0, question.class.0) == (0, 0) =>
                {
                    return Err(NOT_DNS);
                }
                Ok(MessageEntry::Record(record)) if (record.kind.0, record.class.0) == (0, 0) => {
                    return Err(NOT_DNS);
                }
                Ok(MessageEntry::Question(question)) => {
                    found.has_forward_pointer |= question.name.has_forward_pointer();
                    found.question.get_or_insert(question);
                }
                Ok(MessageEntry::Record(record)) => {
                    found.has_forward_pointer |= record.name.has_forward_pointer();
                    found.owner_name.get_or_insert(record.name);
                    found.code |= record.extended_rcode_bits().unwrap_or(0);
                    if record.section == Section::Answer {
                        answers += 1;
                        found.min_ttl =
                            Some(found.min_ttl.map_or(record.ttl, |ttl| ttl.min(record.ttl)));
                    }
                }
                Err(fault) => {
                    let asked = found.question.is_some() || message.question_count() == 0;
                    let answered = asked && answers == message.record_count(Section::Answer);
                    match fault {
                        DnsFault::Truncated(_) if cut && !asked => return Err(CUT),
                        DnsFault::Truncated(_) if cut => {}
                        // An error after the answers leaves the answers readable.
                        _ if !answered => return Err(MALFORMED),
                        _ => {}
                    }
                    found.is_incomplete = true;
                }
            }
        }
        // Nearly any bytes can be the header of a response without a question. Such a message must
        // therefore contain exactly the stated records, with nothing after them. Messages of
        // stateful operations have other data after the header (RFC 8490 §5.4).
        let has_data_after_records = message.opcode() == Opcode::STATEFUL_OPERATIONS;
        if !has_question
            && !cut
            && !has_data_after_records
            && (found.is_incomplete || entries.offset() != length)
        {
            return Err(NOT_DNS);
        }
        Ok(found)
    }

    fn class(&self) -> Class {
        match (&self.question, self.response) {
            (_, true) => Class(RESPONSE_CLASS + u32::from(self.code)),
            (Some(question), false) => Class::from_natural(question.kind.0.into()),
            (None, false) => Class::ZERO,
        }
    }

    fn write_header(&self, message: &Message<'_>, writer: &mut Writer<'_>) {
        writer.add_number(Field::Id, message.id().into());
        writer.add_number(Field::Opcode, message.opcode().0.into());
        if self.response {
            writer.add_number(Field::Answer, 1);
            writer.add_number(Field::Rcode, self.code.into());
            write_display(writer, Field::RcodeName, wire::dns::Rcode(self.code));
        }
        if message.flags().next().is_some() {
            write_display(writer, Field::Flags, FlagNames(message));
        }
        if let Some(question) = &self.question {
            write_display(writer, Field::Name, question.name);
            write_display(writer, Field::Type, question.kind);
            write_display(writer, Field::Class, question.class);
            if message.question_count() > 1 {
                writer.add_number(Field::Questions, message.question_count().into());
            }
        } else if let Some(owner) = &self.owner_name {
            write_display(writer, Field::Name, owner);
        }
        if self.is_incomplete {
            writer.add_number(Field::Incomplete, 1);
        }
    }

    fn write_answers(&self, message: &Message<'_>, writer: &mut Writer<'_>) {
        if !self.response {
            return;
        }
        writer.add_number(Field::Answers, message.record_count(Section::Answer).into());
        if let Some(ttl) = self.min_ttl {
            writer.add_number(Field::Ttl, ttl.into());
        }
        let records = message.entries().filter_map(|entry| match entry {
            Ok(MessageEntry::Record(record)) => Some(record),
            _ => None,
        });
        let mut answers = records.take_while(|record| record.section == Section::Answer);
        for record in answers.by_ref().take(ANSWERS_MAX) {
            write_display(writer, Field::Data, record.data);
        }
        if answers.next().is_some() {
            writer.mark_truncated();
        }
    }
}

/// Adapter that displays the flags of a message, separated by spaces.
struct FlagNames<'s, 'm>(&'s Message<'m>);

impl std::fmt::Display for FlagNames<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, name) in self.0.flags().enumerate() {
            write!(f, "{}{name}", if number > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
