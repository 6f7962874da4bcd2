//! Parser for DNS messages (RFC 1035), as they occur in a datagram or after the length prefix of a
//! stream.
//!
//! Parses the header, questions and records, and formats names and data as text. A [`Message`] is a
//! view: nothing is collected or allocated, and each access parses the bytes again.
//!
//! Hostile input: a name has at most 255 bytes and may follow at most 127 compression pointers,
//! including forward ones, which resolvers also follow. The parser therefore needs at most a few
//! hundred steps per record. A truncated message ([`DnsFault::Truncated`]) is distinguished from an
//! invalid one ([`DnsFault::Invalid`]), because the capture may have truncated the message.

mod fault;
mod name;
mod parameter;
mod resource_data;
mod svcb;
#[cfg(test)]
mod tests;

pub use fault::DnsFault;
pub use name::{Labels, NAME_MAX, Name};
pub use parameter::{
    OPT_RECORD_TYPE, Opcode, RCODE_NAMES, RECORD_TYPE_NAMES, Rcode, RecordClass, RecordType,
};
pub use resource_data::ResourceData;

use crate::read::{be16, be32};

/// Length of the DNS message header in bytes.
pub const HEADER_LENGTH: usize = 12;
/// Minimum length in bytes of a DNS question: one with the root as its name.
const QUESTION_LENGTH_MIN: usize = 5;
/// Minimum length in bytes of a DNS record: one with the root as its name and without data.
const RECORD_LENGTH_MIN: usize = 11;

/// A section of a DNS message that contains records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Section {
    /// The answers; in an update, the prerequisites.
    Answer,
    /// The authority records; in an update, the changes.
    Authority,
    /// The additional records of the message.
    Additional,
}

/// A view of a DNS message. The message header is complete.
#[derive(Clone, Copy, Debug)]
pub struct Message<'m> {
    bytes: &'m [u8],
}

/// A question in a message.
#[derive(Clone, Copy, Debug)]
pub struct Question<'m> {
    /// Domain name that the question asks about.
    pub name: Name<'m>,
    /// Record type that the question asks for.
    pub kind: RecordType,
    /// Queried class. In multicast DNS, the highest bit requests a unicast response.
    pub class: RecordClass,
}

/// A resource record in a message.
#[derive(Clone, Copy, Debug)]
pub struct ResourceRecord<'m> {
    /// Section that contains the record.
    pub section: Section,
    /// Domain name of the record's owner.
    pub name: Name<'m>,
    /// Type of the record.
    pub kind: RecordType,
    /// Class of the record. In an OPT record, the sender's UDP payload size.
    pub class: RecordClass,
    /// Time to live in seconds. In an OPT record, extended header bits (RFC 6891 §6.1.3).
    pub ttl: u32,
    /// Data of the record.
    pub data: ResourceData<'m>,
}

/// A question or record of a message.
#[derive(Clone, Copy, Debug)]
pub enum MessageEntry<'m> {
    /// A question of the message.
    Question(Question<'m>),
    /// A resource record of the message.
    Record(ResourceRecord<'m>),
}

impl<'m> Message<'m> {
    /// Returns a view of the message in `bytes`; `None` if the header of the message is truncated.
    #[must_use]
    pub fn parse(bytes: &'m [u8]) -> Option<Self> {
        (bytes.len() >= HEADER_LENGTH).then_some(Self { bytes })
    }

    /// Returns the id with which a response is matched to its query.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.header_word(0)
    }

    /// Returns true if the message is a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.header_word(2) & 0x8000 != 0
    }

    /// Returns the operation code of the message.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode((self.header_word(2) >> 11 & 0xf) as u8)
    }

    /// Returns the four bits of the response code in the header. An OPT record may extend them
    /// ([`ResourceRecord::extended_rcode_bits`]).
    #[must_use]
    pub fn rcode(&self) -> Rcode {
        Rcode(self.header_word(2) & 0xf)
    }

    /// Iterates over the names of those flags that are set in the header.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        const FLAG_NAMES: [(&str, u16); 7] = [
            ("aa", 0x0400),
            ("tc", 0x0200),
            ("rd", 0x0100),
            ("ra", 0x0080),
            ("z", 0x0040),
            ("ad", 0x0020),
            ("cd", 0x0010),
        ];
        let word = self.header_word(2);
        FLAG_NAMES.into_iter().filter(move |(_, bit)| word & bit != 0).map(|(name, _)| name)
    }

    /// Returns the number of questions stated in the header.
    #[must_use]
    pub fn question_count(&self) -> u16 {
        self.header_word(4)
    }

    /// Returns the number of records that the header states for a section.
    #[must_use]
    pub fn record_count(&self, section: Section) -> u16 {
        match section {
            Section::Answer => self.header_word(6),
            Section::Authority => self.header_word(8),
            Section::Additional => self.header_word(10),
        }
    }

    /// Returns true if arbitrary bytes are likely to be a DNS message. The header must be one that
    /// real software sends. The questions and records that the header states must fit into `length`
    /// bytes, the length of the message on the wire.
    #[must_use]
    pub fn is_likely_dns(&self, length: usize) -> bool {
        let questions = usize::from(self.question_count());
        let sections = [Section::Answer, Section::Authority, Section::Additional];
        let records = sections.map(|section| usize::from(self.record_count(section)));
        let all: usize = records.iter().sum();
        let opcode = self.opcode();
        let is_usual = match opcode {
            _ if !opcode.is_assigned() => false,
            _ if self.is_response() => true,
            _ if self.rcode().0 != 0 => false,
            // A query for a cookie alone (RFC 7873 §5.4) has no question.
            Opcode::QUERY => questions > 0 || records == [0, 0, 1],
            // RFC 2136 §2.3: exactly one zone.
            Opcode::UPDATE => questions == 1,
            // RFC 8490 §5.4: stateful operations carry no records.
            Opcode::STATEFUL_OPERATIONS | Opcode::STATUS => questions + all == 0,
            _ => questions > 0,
        };
        is_usual
            && HEADER_LENGTH + questions * QUESTION_LENGTH_MIN + all * RECORD_LENGTH_MIN <= length
    }

    /// Returns true if the questions and records that the header states fit into `length` bytes,
    /// and the message is not an empty query.
    #[must_use]
    pub fn counts_fit_length(&self, length: usize) -> bool {
        let sections = [Section::Answer, Section::Authority, Section::Additional];
        let all: usize =
            sections.iter().map(|section| usize::from(self.record_count(*section))).sum();
        let questions = usize::from(self.question_count());
        let has_content = questions + all > 0 || self.is_response();
        has_content
            && HEADER_LENGTH + questions * QUESTION_LENGTH_MIN + all * RECORD_LENGTH_MIN <= length
    }

    /// Returns true if the bytes are exactly one complete message, even with an unusual header: a
    /// response code in a query, an unassigned operation code, or an inverse query (RFC 1035 §6.4).
    #[must_use]
    pub fn is_exactly_one_message(&self) -> bool {
        let mut entries = self.entries();
        let is_complete =
            self.counts_fit_length(self.bytes.len()) && entries.all(|entry| entry.is_ok());
        is_complete && entries.offset() == self.bytes.len()
    }

    /// Iterates over the questions, then the records. Ends after the first fault.
    #[must_use]
    pub fn entries(&self) -> MessageEntries<'m> {
        let left =
            [self.header_word(4), self.header_word(6), self.header_word(8), self.header_word(10)];
        MessageEntries { bytes: self.bytes, at: HEADER_LENGTH, left }
    }

    fn header_word(&self, at: usize) -> u16 {
        be16(self.bytes, at).unwrap_or(0)
    }
}

impl ResourceRecord<'_> {
    /// Returns the upper eight bits of the response code, shifted left by four, so that the lower
    /// four bits can be added; `None` unless this record is an OPT record.
    #[must_use]
    pub fn extended_rcode_bits(&self) -> Option<u16> {
        (self.kind == OPT_RECORD_TYPE).then(|| u16::from(self.ttl.to_be_bytes()[0]) << 4)
    }
}

/// An iterator over the questions and records of a message.
#[derive(Clone, Debug)]
pub struct MessageEntries<'m> {
    bytes: &'m [u8],
    at: usize,
    /// Numbers of remaining questions, answers, authority records and additional records.
    left: [u16; 4],
}

impl MessageEntries<'_> {
    /// Returns the offset in bytes after the last parsed question or record.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'m> Iterator for MessageEntries<'m> {
    type Item = Result<MessageEntry<'m>, DnsFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.left.iter().position(|left| *left > 0)?;
        if let Some(left) = self.left.get_mut(part) {
            *left -= 1;
        }
        let section = match part {
            0 => None,
            1 => Some(Section::Answer),
            2 => Some(Section::Authority),
            _ => Some(Section::Additional),
        };
        let read = match section {
            None => self.parse_question().map(MessageEntry::Question),
            Some(section) => self.parse_record(section).map(MessageEntry::Record),
        };
        if read.is_err() {
            self.left = [0; 4];
        }
        Some(read)
    }
}

impl<'m> MessageEntries<'m> {
    fn parse_question(&mut self) -> Result<Question<'m>, DnsFault> {
        let (name, at) = Name::read(self.bytes, self.at)?;
        let (kind, class) = (be16(self.bytes, at), be16(self.bytes, at + 2));
        let (Some(kind), Some(class)) = (kind, class) else { return Err(DnsFault::Truncated(at)) };
        self.at = at + 4;
        Ok(Question { name, kind: RecordType(kind), class: RecordClass(class) })
    }

    fn parse_record(&mut self, section: Section) -> Result<ResourceRecord<'m>, DnsFault> {
        let (name, at) = Name::read(self.bytes, self.at)?;
        let fixed = || {
            let (kind, class) = (be16(self.bytes, at)?, be16(self.bytes, at + 2)?);
            Some((kind, class, be32(self.bytes, at + 4)?, be16(self.bytes, at + 8)?))
        };
        let (kind, class, ttl, length) = fixed().ok_or(DnsFault::Truncated(at))?;
        let (kind, class) = (RecordType(kind), RecordClass(class));
        let from = at + 10;
        let data = ResourceData::read(self.bytes, kind, from, from + usize::from(length))?;
        self.at = from + usize::from(length);
        Ok(ResourceRecord { section, name, kind, class, ttl, data })
    }
}
