//! State of a connection: plain data, 152 bytes.

use crate::contract::{Block, Field, HeldList, Session, Unit};
use abi::{Class, Flags};
use wire::http::Body;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of a connection; that of the private session holds the tallies.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Connection {
    /// Its directions, as the stream filter numbers them: 0 forward, 1 backward.
    pub(super) ways: [Way; 2],
    /// Pending descriptions: requests under key `4 n`, their bodies under `4 n + 1`, responses
    /// under `4 n + 2`.
    pub(super) asked: HeldList,
    /// Number of the next request.
    pub(super) serial: u32,
    /// Number of requests after those in `asked` that were not kept.
    pub(super) unkept: u32,
    /// Protocol: one of [`Kind`], 0 if unknown.
    pub(super) kind: u8,
    /// Nonzero if requests go backward: without a handshake the stream filter guessed the
    /// direction.
    pub(super) flipped: u8,
    /// Nonzero if the last request may switch the protocol.
    pub(super) may_switch: u8,
    pub(super) spare: u8,
    /// Number of connections per protocol; used in the private session only.
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

/// The state of one direction.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Way {
    /// Progress in the open message's body.
    pub(super) body: Body,
    /// Body bytes observed.
    pub(super) seen: u64,
    /// Body bytes missing.
    pub(super) missing: u32,
    /// Held pieces of an incomplete head, or of a body to be decoded.
    pub(super) held: HeldList,
    /// Number of bytes in them.
    pub(super) gathered: u32,
    /// Class of the open message.
    pub(super) class: u32,
    /// Content codings to undo.
    pub(super) codings: u16,
    /// One of [`at`].
    pub(super) state: u8,
    /// Progress of the search for the head's end.
    pub(super) seek: u8,
    /// Nonzero if the open message still needs its last fragment.
    pub(super) owes: u8,
    /// Nonzero if the open message broke off.
    pub(super) broken: u8,
    /// Nonzero if the direction was observed from its first byte.
    pub(super) begun: u8,
    /// Nonzero if the connection ends behind the open message, in strict mode.
    pub(super) closes: u8,
}

/// Where a direction stands.
pub(super) mod at {
    /// Nothing observed yet.
    pub(in super::super) const NEW: u8 = 0;
    /// Between messages.
    pub(in super::super) const BETWEEN: u8 = 1;
    /// In a head, pieces of which are held.
    pub(in super::super) const HEAD: u8 = 2;
    /// In a body.
    pub(in super::super) const BODY: u8 = 3;
    /// Out of sync with the message framing.
    pub(in super::super) const LOST: u8 = 4;
    /// Not HTTP/1.
    pub(in super::super) const OTHER: u8 = 5;
    /// Another protocol, after both ends agreed to switch.
    pub(in super::super) const SWITCHED: u8 = 6;
    /// Behind the last message of a strict connection.
    pub(in super::super) const CLOSED: u8 = 7;
    /// Ended.
    pub(in super::super) const ENDED: u8 = 8;
}

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Http1,
    Tls,
    Http2,
    Other,
}

impl Kind {
    /// All protocols, with their names in the report.
    pub(super) const ALL: [(Self, &'static str); 4] = [
        (Self::Http1, "connections: HTTP/1"),
        (Self::Tls, "connections: TLS"),
        (Self::Http2, "connections: HTTP/2"),
        (Self::Other, "connections: other"),
    ];

    /// Returns the stored number; 0 means unknown.
    pub(super) const fn number(self) -> u8 {
        self as u8 + 1
    }
}

impl Connection {
    /// Returns true if no more blocks can belong to the connection.
    pub(super) fn is_over(&self) -> bool {
        let [one, other] = &self.ways;
        let ended = |way: &Way| way.state == at::ENDED;
        let unmet = |way: &Way| way.state == at::NEW && self.asked.is_empty();
        (ended(one) && (ended(other) || unmet(other))) || (ended(other) && unmet(one))
    }

    /// Returns the block unchanged if all of it lies within a body: the common case.
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

    /// Returns true if any bytes arrived.
    pub(super) fn was_met(&self) -> bool {
        self.ways.iter().any(|way| way.begun != 0)
    }
}
