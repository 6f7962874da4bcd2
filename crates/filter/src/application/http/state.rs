//! What is known of a connection: plain data, 152 bytes.

use crate::contract::{Block, Field, HeldList, Session, Unit};
use abi::{Class, Flags};
use wire::http::Body;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A connection; the private one counts the others.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Connection {
    /// Its directions, as the stream filter numbered them: 0 forward, 1 backward.
    pub(super) ways: [Way; 2],
    /// Descriptions of what waits for its response, two keys apart from each other: a request
    /// `4 n`, how it ended `4 n + 1`, its response `4 n + 2`.
    pub(super) asked: HeldList,
    /// The number of the next request.
    pub(super) serial: u32,
    /// How many requests behind those in `asked` were not kept.
    pub(super) unkept: u32,
    /// What it speaks: one of [`Kind`].
    pub(super) kind: u8,
    /// Whether requests go backward: the stream filter saw no handshake and guessed otherwise.
    pub(super) flipped: u8,
    /// Whether the last request may turn the connection to another protocol.
    pub(super) may_switch: u8,
    pub(super) spare: u8,
    /// How many connections were of each kind; only in the private one.
    pub(super) tally: [u32; Kind::ALL.len()],
}

const _: () = assert!(size_of::<Connection>() <= 160);

impl Session for Connection {
    fn lists(&mut self) -> Vec<&mut HeldList> {
        let [one, other] = &mut self.ways;
        vec![&mut self.asked, &mut one.held, &mut other.held]
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("speaks", Unit::Number, SPEAKS_HELP, |it, _| it.kind.into()),
        Field::new("requests", Unit::Messages, "that were seen", |it, _| it.serial.into()),
        Field::new("waits", Unit::YesNo, "a request waits for its response", |it, _| {
            (!it.asked.is_empty()).into()
        }),
        Field::new("forward_body", Unit::Bytes, BODY_HELP, |it, _| it.ways[0].seen),
        Field::new("backward_body", Unit::Bytes, BODY_HELP, |it, _| it.ways[1].seen),
    ];
}

const SPEAKS_HELP: &str = "0 not known yet, 1 HTTP/1, 2 TLS, 3 HTTP/2, 4 something else";
const BODY_HELP: &str = "seen of the body of the open message";

/// One direction of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Way {
    /// How far the body of the open message has come.
    pub(super) body: Body,
    /// How many of its bytes were seen.
    pub(super) seen: u64,
    /// How many were not.
    pub(super) missing: u32,
    /// Pieces of a head that is not all here, or of a body that is to be decoded.
    pub(super) held: HeldList,
    /// The bytes in them.
    pub(super) gathered: u32,
    /// The class of the open message.
    pub(super) class: u32,
    /// What the body is coded with, if it is to be decoded.
    pub(super) codings: u16,
    /// One of [`at`].
    pub(super) state: u8,
    /// How far the search for the end of the head is.
    pub(super) seek: u8,
    /// Whether the open message has not got its last fragment.
    pub(super) owes: u8,
    /// Whether it broke off.
    pub(super) broken: u8,
    /// Whether the direction was seen from its first byte.
    pub(super) begun: u8,
    /// Whether the connection ends behind the open message, strictly read.
    pub(super) closes: u8,
}

/// Where a direction stands.
pub(super) mod at {
    /// Nothing was seen yet.
    pub(in super::super) const NEW: u8 = 0;
    /// Between messages.
    pub(in super::super) const BETWEEN: u8 = 1;
    /// In a head of which pieces are held.
    pub(in super::super) const HEAD: u8 = 2;
    /// Behind a head.
    pub(in super::super) const BODY: u8 = 3;
    /// Somewhere between or within messages: nobody knows.
    pub(in super::super) const LOST: u8 = 4;
    /// No HTTP/1.
    pub(in super::super) const OTHER: u8 = 5;
    /// Another protocol, since both ends agreed on it.
    pub(in super::super) const SWITCHED: u8 = 6;
    /// Behind the last message that may be.
    pub(in super::super) const CLOSED: u8 = 7;
    /// Ended.
    pub(in super::super) const ENDED: u8 = 8;
}

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Http1,
    Tls,
    Http2,
    Other,
}

impl Kind {
    /// All kinds, with their names in the report.
    pub(super) const ALL: [(Self, &'static str); 4] = [
        (Self::Http1, "connections: HTTP/1"),
        (Self::Tls, "connections: TLS"),
        (Self::Http2, "connections: HTTP/2"),
        (Self::Other, "connections: other"),
    ];

    /// How it is stored; 0 is not known yet.
    pub(super) const fn number(self) -> u8 {
        self as u8 + 1
    }
}

impl Connection {
    /// Whether nothing more can come that belongs to it.
    pub(super) fn is_over(&self) -> bool {
        let [one, other] = &self.ways;
        let ended = |way: &Way| way.state == at::ENDED;
        let unmet = |way: &Way| way.state == at::NEW && self.asked.is_empty();
        (ended(one) && (ended(other) || unmet(other))) || (ended(other) && unmet(one))
    }

    /// The block as it goes on, if all of it is in the middle of a body: most blocks are.
    #[inline]
    pub(super) fn goes_on<'a>(&mut self, block: &Block<'a>) -> Option<Block<'a>> {
        let flags = block.context.flags;
        let [one, other] = &mut self.ways;
        let way = if flags.has(Flags::BACKWARD) { other } else { one };
        let plain = way.state == at::BODY && way.codings == 0 && !flags.has(Flags::END);
        if !plain || block.pointer.is_hole() || !way.body.goes_on(block.length()) {
            return None;
        }
        way.seen = way.seen.saturating_add(block.length().into());
        let mut block = block.with_class(Class(way.class));
        let stream = Flags::FIRST.with(Flags::LAST);
        block.context.flags = flags.without(stream);
        if self.flipped != 0 {
            block.context.flags.0 ^= Flags::BACKWARD.0;
        }
        Some(block)
    }

    /// Whether bytes of it came.
    pub(super) fn was_met(&self) -> bool {
        self.ways.iter().any(|way| way.begun != 0)
    }
}
