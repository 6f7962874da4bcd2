//! State of an HTTP connection: plain data of 152 bytes. The *open* message of a direction is the
//! one whose head is complete and whose body has not ended.

use crate::contract::{Block, Field, HeldList, Session, Unit};
use abi::{BlockFlags, Class};
use wire::http::Body;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of a connection. The state of the filter as a whole (the private session) has the same
/// type, but uses only the field `protocol_counts`.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct HttpConnection {
    /// The two directions, indexed by the direction number from the `tcp` filter: 0 forward, 1
    /// backward.
    pub(super) directions: [HttpDirection; 2],
    /// Pending descriptions: the request with sequence number `n` under key `4 n`, the size of its
    /// body under `4 n + 1`, its response under `4 n + 2`.
    pub(super) pending_descriptions: HeldList,
    /// Sequence number that the next request of the connection gets.
    pub(super) next_request: u32,
    /// Number of requests that follow those in `pending_descriptions` and could not be held.
    pub(super) unheld_requests: u32,
    /// Discriminant of the connection's [`Protocol`] plus 1; 0 if unknown.
    pub(super) protocol_number: u8,
    /// Nonzero if requests flow in the backward direction. Without a handshake, `tcp` can only
    /// guess which peer is the client, and may guess wrong.
    pub(super) requests_flow_backward: u8,
    /// Nonzero if the last request was CONNECT or asked for an upgrade, so the connection may
    /// switch to another protocol.
    pub(super) may_switch: u8,
    /// Bit set of directions in which messages may have been lost. Bit N is set for direction N,
    /// and is cleared when a response ends.
    pub(super) lost_directions: u8,
    /// Number of connections per protocol. Used only in the private session, which holds the state
    /// of the filter as a whole.
    pub(super) protocol_counts: [u32; Protocol::ALL.len()],
}

const _: () = assert!(size_of::<HttpConnection>() <= 160);

impl Session for HttpConnection {
    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        let [one, other] = &mut self.directions;
        vec![&mut self.pending_descriptions, &mut one.held, &mut other.held]
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("speaks", Unit::Number, PROTOCOL_HELP, |it, _| it.protocol_number.into()),
        Field::new("requests", Unit::Messages, "observed", |it, _| it.next_request.into()),
        Field::new("waits", Unit::YesNo, "a request waits for its response", |it, _| {
            (!it.pending_descriptions.is_empty()).into()
        }),
        Field::new("forward_body", Unit::Bytes, BODY_HELP, |it, _| it.directions[0].observed_bytes),
        Field::new("backward_body", Unit::Bytes, BODY_HELP, |it, _| {
            it.directions[1].observed_bytes
        }),
    ];
}

const PROTOCOL_HELP: &str = "0 unknown, 1 HTTP/1, 2 TLS, 3 HTTP/2, 4 another protocol";
const BODY_HELP: &str = "observed of the body of the open message";

/// The HTTP state of one direction of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct HttpDirection {
    /// Progress of the parser in the open message's body.
    pub(super) body: Body,
    /// Number of bytes of the open message's body that were observed.
    pub(super) observed_bytes: u64,
    /// Number of bytes of the open message's body that are missing.
    pub(super) missing_bytes: u32,
    /// Held pieces of an incomplete head, or of a coded body that has not ended.
    pub(super) held: HeldList,
    /// Number of bytes in the held pieces.
    pub(super) held_bytes: u32,
    /// Class of the open message.
    pub(super) class: u32,
    /// Content codings of the body if the filter will decode it, encoded by
    /// [`wire::http::ContentCodings::number`]; otherwise 0.
    pub(super) codings: u16,
    /// Discriminant of the direction's [`Phase`].
    pub(super) phase_number: u8,
    /// State of the search for the end of a head ([`wire::http::HeadSearch`]).
    pub(super) head_search: u8,
    /// Nonzero if the current message's last fragment is still to be emitted.
    pub(super) owes_last_fragment: u8,
    /// Nonzero if the open message ended early or lost bytes.
    pub(super) is_broken: u8,
    /// Nonzero after the first nonempty block.
    pub(super) has_begun: u8,
    /// Nonzero if the connection closes after the open message; used in strict mode only.
    pub(super) closes_connection: u8,
}

/// The parse state of a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    /// No byte of the direction has been observed yet.
    New,
    /// A message has ended or has not begun; the next bytes begin a message.
    BetweenMessages,
    /// The next bytes belong to an incomplete head, whose pieces are held.
    InHead,
    /// The next bytes belong to a body.
    InBody,
    /// The next bytes belong to no known message, after a syntax error or a gap.
    FramingLost,
    /// The direction does not carry HTTP/1.
    OtherProtocol,
    /// Both peers have switched to another protocol, for example after CONNECT.
    Switched,
    /// The last message of the connection has ended; in strict mode, later bytes get no class.
    Closed,
    /// The direction has ended.
    Ended,
    /// Like [`Phase::FramingLost`], but the next byte begins a line.
    LostAtLineStart,
}

impl Phase {
    /// Returns true if the filter searches for the next message after a syntax error or a gap.
    pub(super) const fn is_lost(self) -> bool {
        matches!(self, Self::FramingLost | Self::LostAtLineStart)
    }
}

impl HttpDirection {
    /// Returns the parse state of the direction, or [`Phase::FramingLost`] if the stored
    /// discriminant is invalid.
    pub(super) fn phase(&self) -> Phase {
        use Phase::{
            BetweenMessages, Closed, Ended, FramingLost, InBody, InHead, LostAtLineStart, New,
            OtherProtocol, Switched,
        };
        let all = [
            New,
            BetweenMessages,
            InHead,
            InBody,
            FramingLost,
            OtherProtocol,
            Switched,
            Closed,
            Ended,
            LostAtLineStart,
        ];
        all.get(usize::from(self.phase_number)).copied().unwrap_or(FramingLost)
    }

    /// Changes the parse state of the direction.
    pub(super) const fn enter_phase(&mut self, phase: Phase) {
        self.phase_number = phase as u8;
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Http1,
    Tls,
    Http2,
    Other,
}

impl Protocol {
    /// All protocols, with their names in the report.
    pub(super) const ALL: [(Self, &'static str); 4] = [
        (Self::Http1, "connections: HTTP/1"),
        (Self::Tls, "connections: TLS"),
        (Self::Http2, "connections: HTTP/2"),
        (Self::Other, "connections: other"),
    ];

    /// Returns the value that is stored for the protocol: its discriminant plus 1, because 0 means
    /// unknown.
    pub(super) const fn stored_number(self) -> u8 {
        self as u8 + 1
    }
}

impl HttpConnection {
    /// Returns the protocol of the connection, or `None` if it is not known yet.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        let known = Protocol::ALL.get(usize::from(self.protocol_number).checked_sub(1)?);
        known.map(|(protocol, _)| *protocol)
    }

    /// Returns true if no more bytes are expected: both directions have ended, or one direction has
    /// ended, the other has no bytes yet, and no request is pending.
    pub(super) fn is_over(&self) -> bool {
        let [one, other] = &self.directions;
        let ended = |direction: &HttpDirection| direction.phase() == Phase::Ended;
        let has_no_bytes = |direction: &HttpDirection| {
            direction.phase() == Phase::New && self.pending_descriptions.is_empty()
        };
        (ended(one) && (ended(other) || has_no_bytes(other))) || (ended(other) && has_no_bytes(one))
    }

    /// If all bytes of the block belong to a body that continues after it, advances the body over
    /// them, and returns the block with the class and the flags of its message. Otherwise changes
    /// nothing and returns `None`. This is the fast path.
    #[inline]
    pub(super) fn advance_within_body<'a>(&mut self, block: &Block<'a>) -> Option<Block<'a>> {
        let flags = block.context.flags;
        let [one, other] = &mut self.directions;
        let direction = if flags.contains(BlockFlags::BACKWARD) { other } else { one };
        let plain = direction.phase() == Phase::InBody
            && direction.codings == 0
            && !flags.contains(BlockFlags::SESSION_END);
        if !plain || block.pointer.is_hole() || !direction.body.consume_if_all_data(block.length())
        {
            return None;
        }
        direction.observed_bytes = direction.observed_bytes.saturating_add(block.length().into());
        let mut block = block.with_class(Class(direction.class));
        let stream = BlockFlags::FIRST.with(BlockFlags::LAST);
        block.context.flags = flags.without(stream);
        if self.requests_flow_backward != 0 {
            block.context.flags.0 ^= BlockFlags::BACKWARD.0;
        }
        Some(block)
    }

    /// Returns true if any bytes of the connection have arrived.
    pub(super) fn has_received_bytes(&self) -> bool {
        self.directions.iter().any(|direction| direction.has_begun != 0)
    }
}
