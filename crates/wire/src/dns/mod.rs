//! DNS messages (RFC 1035), as they stand in a datagram or behind the two bytes of their length in
//! a stream.
//!
//! In: the bytes of one message. Out: the header, the questions and the records one after the
//! other, names and data as text. Nothing is gathered and nothing allocated: a [`Message`] is a
//! view, and each look walks the bytes again.
//!
//! Hostile bytes: a name is at most 255 bytes long, and of compression pointers at most 127 are
//! followed, ahead too, as resolvers do; so no message takes more than a few hundred steps for each
//! of its records. A message
//! that ends too early ([`Fault::Ends`]) is told from one that contradicts itself
//! ([`Fault::Wrong`]), since a capture may have cut it.

mod data;
mod name;
mod number;
#[cfg(test)]
mod tests;

pub use data::Data;
pub use name::{Labels, NAME_MAX, Name};
pub use number::{OPT, Opcode, RCODES, Rcode, RecordClass, RecordType, TYPES};

use crate::read::{be16, be32};
use core::fmt;

/// The length of the header.
pub const LENGTH: usize = 12;
/// The least length of a question, that of the root.
const QUESTION_MIN: usize = 5;
/// The least length of a record, one of the root without data.
const RECORD_MIN: usize = 11;

/// Why a part of a message cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The bytes end before it does, at this offset or later.
    Ends(usize),
    /// What stands at this offset cannot be.
    Wrong(usize),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends(at) => write!(f, "the message ends inside what begins at byte {at}"),
            Self::Wrong(at) => write!(f, "byte {at} of the message contradicts RFC 1035"),
        }
    }
}

impl core::error::Error for Fault {}

/// The part of a message that a record stands in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Section {
    /// The answers; in an update, the prerequisites.
    Answer,
    /// Where the authority lies; in an update, what is changed.
    Authority,
    /// What else may be of use.
    Additional,
}

/// A view of a message whose header is there.
#[derive(Clone, Copy, Debug)]
pub struct Message<'m> {
    bytes: &'m [u8],
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Question<'m> {
    /// The name.
    pub name: Name<'m>,
    /// The type.
    pub kind: RecordType,
    /// The class; in multicast DNS the highest bit asks for a unicast response.
    pub class: RecordClass,
}

/// A resource record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'m> {
    /// Where it stands.
    pub section: Section,
    /// Whose record it is.
    pub name: Name<'m>,
    /// The type.
    pub kind: RecordType,
    /// The class; in an OPT record the length of datagrams that the sender takes.
    pub class: RecordClass,
    /// How long it may be kept, in seconds; in an OPT record more of the header (RFC 6891 §6.1.3).
    pub ttl: u32,
    /// The data.
    pub data: Data<'m>,
}

/// A question or a record, in the order in which they stand.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'m> {
    /// A question.
    Question(Question<'m>),
    /// A record.
    Record(Record<'m>),
}

impl<'m> Message<'m> {
    /// Views a message; nothing if there is no whole header.
    #[must_use]
    pub fn parse(bytes: &'m [u8]) -> Option<Self> {
        (bytes.len() >= LENGTH).then_some(Self { bytes })
    }

    /// The number by which the response is known.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.word(0)
    }

    /// Whether it is a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.word(2) & 0x8000 != 0
    }

    /// The operation.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode((self.word(2) >> 11 & 0xf) as u8)
    }

    /// The four bits of the response code that stand in the header; an OPT record may have more
    /// ([`Record::extended`]).
    #[must_use]
    pub fn rcode(&self) -> Rcode {
        Rcode(self.word(2) & 0xf)
    }

    /// The names of the flags that are set.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        const NAMES: [(&str, u16); 7] = [
            ("aa", 0x0400),
            ("tc", 0x0200),
            ("rd", 0x0100),
            ("ra", 0x0080),
            ("z", 0x0040),
            ("ad", 0x0020),
            ("cd", 0x0010),
        ];
        let word = self.word(2);
        NAMES.into_iter().filter(move |(_, bit)| word & bit != 0).map(|(name, _)| name)
    }

    /// How many questions the header states.
    #[must_use]
    pub fn questions(&self) -> u16 {
        self.word(4)
    }

    /// How many records of a section the header states.
    #[must_use]
    pub fn records(&self, section: Section) -> u16 {
        match section {
            Section::Answer => self.word(6),
            Section::Authority => self.word(8),
            Section::Additional => self.word(10),
        }
    }

    /// Whether bytes that may be anything can be a message: the header is one that somebody sends,
    /// and as much as it states fits into `length` bytes, those of the message on the wire.
    #[must_use]
    pub fn is_likely(&self, length: usize) -> bool {
        let questions = usize::from(self.questions());
        let sections = [Section::Answer, Section::Authority, Section::Additional];
        let records = sections.map(|section| usize::from(self.records(section)));
        let all: usize = records.iter().sum();
        let opcode = self.opcode();
        let sent = match opcode {
            _ if !opcode.is_assigned() => false,
            _ if self.is_response() => true,
            _ if self.rcode().0 != 0 => false,
            // A query for nothing but a cookie (RFC 7873 §5.4) has no question.
            Opcode::QUERY => questions > 0 || records == [0, 0, 1],
            // RFC 2136 §2.3: one zone.
            Opcode::UPDATE => questions == 1,
            // RFC 8490 §5.4: what a stateful operation says does not stand in records.
            Opcode::STATEFUL | Opcode::STATUS => questions + all == 0,
            _ => questions > 0,
        };
        sent && LENGTH + questions * QUESTION_MIN + all * RECORD_MIN <= length
    }

    /// Returns true if as much as the header states fits into `length` bytes, and is something.
    #[must_use]
    pub fn is_possible(&self, length: usize) -> bool {
        let sections = [Section::Answer, Section::Authority, Section::Additional];
        let all: usize = sections.iter().map(|section| usize::from(self.records(*section))).sum();
        let questions = usize::from(self.questions());
        let some = questions + all > 0 || self.is_response();
        some && LENGTH + questions * QUESTION_MIN + all * RECORD_MIN <= length
    }

    /// Whether these bytes are a message from the first to the last, whatever the header says that
    /// nobody sends: bits of a response code in a query, an operation that is not assigned, an
    /// inverse query (RFC 1035 §6.4).
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut entries = self.entries();
        let read = self.is_possible(self.bytes.len()) && entries.all(|entry| entry.is_ok());
        read && entries.offset() == self.bytes.len()
    }

    /// The questions, then the records. Ends behind the first fault.
    #[must_use]
    pub fn entries(&self) -> Entries<'m> {
        let left = [self.word(4), self.word(6), self.word(8), self.word(10)];
        Entries { bytes: self.bytes, at: LENGTH, left }
    }

    fn word(&self, at: usize) -> u16 {
        be16(self.bytes, at).unwrap_or(0)
    }
}

impl Record<'_> {
    /// The upper bits of the response code, if this is an OPT record.
    #[must_use]
    pub fn extended(&self) -> Option<u16> {
        (self.kind == OPT).then(|| u16::from(self.ttl.to_be_bytes()[0]) << 4)
    }
}

/// See [`Message::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'m> {
    bytes: &'m [u8],
    at: usize,
    /// How many questions, answers, authorities and additional records are still to come.
    left: [u16; 4],
}

impl Entries<'_> {
    /// The offset behind what was read.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'m> Iterator for Entries<'m> {
    type Item = Result<Entry<'m>, Fault>;

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
            None => self.question().map(Entry::Question),
            Some(section) => self.record(section).map(Entry::Record),
        };
        if read.is_err() {
            self.left = [0; 4];
        }
        Some(read)
    }
}

impl<'m> Entries<'m> {
    fn question(&mut self) -> Result<Question<'m>, Fault> {
        let (name, at) = Name::read(self.bytes, self.at)?;
        let (kind, class) = (be16(self.bytes, at), be16(self.bytes, at + 2));
        let (Some(kind), Some(class)) = (kind, class) else { return Err(Fault::Ends(at)) };
        self.at = at + 4;
        Ok(Question { name, kind: RecordType(kind), class: RecordClass(class) })
    }

    fn record(&mut self, section: Section) -> Result<Record<'m>, Fault> {
        let (name, at) = Name::read(self.bytes, self.at)?;
        let fixed = || {
            let (kind, class) = (be16(self.bytes, at)?, be16(self.bytes, at + 2)?);
            Some((kind, class, be32(self.bytes, at + 4)?, be16(self.bytes, at + 8)?))
        };
        let (kind, class, ttl, length) = fixed().ok_or(Fault::Ends(at))?;
        let (kind, class) = (RecordType(kind), RecordClass(class));
        let from = at + 10;
        let data = Data::read(self.bytes, kind, from, from + usize::from(length))?;
        self.at = from + usize::from(length);
        Ok(Record { section, name, kind, class, ttl, data })
    }
}
