//! State of a TCP connection: plain data of 136 bytes.
//!
//! A connection has two sides, the client's and the server's. A side is the stream that one host
//! sends; the host that receives it is the peer of this side. The state of a side consists of the
//! next sequence number, the acknowledgement and window of the peer, and the segments that arrived
//! early.

use super::overlap::SequenceSpan;
use crate::contract::{Field, HeldList, Session, Unit};
use crate::transport::flows::{FlowIdentity, FlowRecord};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of a TCP connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TcpConnection {
    /// Fields that every flow record has. Here, `word` is the time of the last segment or of a
    /// pending RST, `port` is the server's port, `is_forward_down` is the client's direction, and
    /// `flags` combines [`CLOSED_FLAG`] and the constants after it.
    pub(super) identity: FlowIdentity,
    /// The streams of the client and the server.
    pub(super) sides: [StreamSide; 2],
    /// Sequence number at which the client's data starts according to a SYN that arrived while the
    /// connection was open. The number applies only if the server confirms the SYN.
    pub(super) probe: u32,
    /// Index of the source that emitted the connection's first block.
    pub(super) origin: u16,
    pub(super) spare: u16,
}

const _: () = assert!(size_of::<TcpConnection>() == 136);

/// Flag of a closed connection: both sides have ended, or a timeout, an eviction or a RST has
/// closed it. Further segments count as late.
pub(super) const CLOSED_FLAG: u8 = 1;
/// Flag of an open connection in which a further SYN has arrived ([`TcpConnection::probe`]).
pub(super) const SYN_PROBED_FLAG: u8 = 1 << 1;
/// Flag of a connection whose gap timer is set.
pub(super) const GAP_TIMER_SET_FLAG: u8 = 1 << 2;
/// Flags of a connection in which a host has sent a RST that its peer may accept
/// ([`super::reset`]). The first flag stands for a RST of the client, the second for a RST of the
/// server.
pub(super) const RESET_FLAGS: [u8; 2] = [1 << 3, 1 << 4];
/// Mask of the flags in [`RESET_FLAGS`].
pub(super) const ANY_RESET_FLAGS: u8 = RESET_FLAGS[0] | RESET_FLAGS[1];

/// The stream that one host sends to its peer.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct StreamSide {
    /// Time on the path's clock at which the current gap began. The stream has a gap if bytes from
    /// `next` on are missing, and later bytes are held or the end of the stream is known.
    pub(super) gap_start: u64,
    /// Sequence number of the first byte that has not been emitted.
    pub(super) next: u32,
    /// Sequence number of the first byte of the stream or, if [`START_KNOWN_FLAG`] is not set, of
    /// the first byte that was observed.
    pub(super) start: u32,
    /// Highest acknowledgement number sent by the peer.
    pub(super) acknowledged: u32,
    /// Sequence number after the last byte that fits into the receive window of the peer.
    pub(super) window_edge: u32,
    /// Sequence number of the FIN; valid if [`FIN_KNOWN_FLAG`] or `is_fin_pending` is set.
    pub(super) fin: u32,
    /// The most recently abandoned range of sequence numbers: a range that was replaced by holes,
    /// or that precedes the first observed byte. Empty if no bytes were abandoned.
    pub(super) abandoned: SequenceSpan,
    /// Segments that arrived early: they begin after `next`, and do not overlap each other.
    pub(super) held: HeldList,
    /// Number of bytes in the held segments.
    pub(super) held_bytes: u32,
    /// Flags of the stream: [`OPEN_FLAG`] and the constants after it.
    pub(super) flags: u8,
    /// Window scale of the sender: the shift count for the windows that it advertises.
    pub(super) window_scale: u8,
    /// Nonzero if the SYN carried a signature (TCP-MD5, TCP-AO).
    pub(super) is_syn_signed: u8,
    /// Nonzero while a FIN is pending: it arrived while earlier data was missing, although later
    /// bytes had been received or acknowledged. The FIN takes effect if the stream reaches the
    /// sequence number of the FIN ([`StreamSide::update_pending_fin`]).
    pub(super) is_fin_pending: u8,
}

/// Flag of a stream in which data or a SYN was observed, so `next` is known.
pub(super) const OPEN_FLAG: u8 = 1;
/// Flag of a stream whose first sequence number is known.
pub(super) const START_KNOWN_FLAG: u8 = 1 << 1;
/// Flag of a stream that has emitted at least one block.
pub(super) const DATA_EMITTED_FLAG: u8 = 1 << 2;
/// Flag of a stream whose FIN has a known sequence number.
pub(super) const FIN_KNOWN_FLAG: u8 = 1 << 3;
/// Flag of a stream that has emitted its end.
pub(super) const END_EMITTED_FLAG: u8 = 1 << 4;
/// Flag of a stream for which an acknowledgement of the peer was observed, so `acknowledged` and
/// `window_edge` are known.
pub(super) const ACK_OBSERVED_FLAG: u8 = 1 << 5;
/// Flag of a stream whose SYN was observed, so `window_scale` and `is_syn_signed` are known.
pub(super) const SYN_OBSERVED_FLAG: u8 = 1 << 6;
/// Flag of a stream that ended without a FIN.
pub(super) const BROKEN_FLAG: u8 = 1 << 7;
/// Value of `window_scale` for a sender that does not scale its windows.
pub(super) const NO_WINDOW_SCALE: u8 = u8::MAX;
/// Maximum window scale (RFC 7323 §2.3), assumed if no SYN was observed.
pub(super) const WINDOW_SCALE_MAX: u8 = 14;

/// Maximum distance in bytes between a plausible sequence number and the next expected one: the
/// largest possible window (RFC 7323 §2.3).
pub(super) const SEQUENCE_DISTANCE_MAX: u32 = 1 << 30;
/// Maximum size of a window that is not scaled, in bytes (RFC 9293 §3.1).
const UNSCALED_WINDOW_MAX: u32 = 0xffff;
/// Number of bytes after the known window of the peer that this filter still accepts, since the
/// capture may lack the newest window update.
const WINDOW_SLACK_BYTES: u32 = 1 << 20;

impl Session for TcpConnection {
    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        self.sides.iter_mut().map(|side| &mut side.held).collect()
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("port", Unit::Number, "port of the server", |it, _| it.identity.port.into()),
        Field::new("client_bytes", Unit::Bytes, EMITTED_HELP, |it, _| {
            it.sides[0].emitted_byte_count().into()
        }),
        Field::new("server_bytes", Unit::Bytes, EMITTED_HELP, |it, _| {
            it.sides[1].emitted_byte_count().into()
        }),
        Field::new("client_held", Unit::Bytes, HELD_HELP, |it, _| it.sides[0].held_bytes.into()),
        Field::new("server_held", Unit::Bytes, HELD_HELP, |it, _| it.sides[1].held_bytes.into()),
        Field::new(
            "heard",
            Unit::Nanoseconds,
            "time of the last segment, by the path's clock",
            |it, _| it.identity.word,
        ),
        Field::new("closed", Unit::YesNo, "both sides have ended", |it, _| {
            it.has_flags(CLOSED_FLAG).into()
        }),
    ];

    fn session_number(&self, _: u64) -> u64 {
        self.identity.session.into()
    }
}

const EMITTED_HELP: &str = "emitted of its stream, lost bytes included; modulo 2^32";
const HELD_HELP: &str = "received out of order, waiting for earlier bytes";

impl FlowRecord for TcpConnection {
    fn identity(&self) -> &FlowIdentity {
        &self.identity
    }

    fn identity_mut(&mut self) -> &mut FlowIdentity {
        &mut self.identity
    }
}

impl TcpConnection {
    /// Returns true if any of the flags in `flag` is set.
    pub(super) const fn has_flags(&self, flag: u8) -> bool {
        self.identity.flags & flag != 0
    }
}

impl StreamSide {
    pub(super) const fn has_flags(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the number of bytes of the stream that have been emitted or abandoned, modulo 2³².
    const fn emitted_byte_count(&self) -> u32 {
        if self.has_flags(OPEN_FLAG) { self.next.wrapping_sub(self.start) } else { 0 }
    }

    /// Starts the stream at `sequence`. If `begun` is true, this is the sequence number of the
    /// first byte of the stream; otherwise, earlier bytes may have been sent.
    pub(super) fn open(&mut self, sequence: u32, begun: bool) {
        (self.start, self.next, self.is_fin_pending) = (sequence, sequence, 0);
        // Bytes before the first that was observed may have been sent before the capture, or
        // captured late.
        let before = if begun { 0 } else { UNSCALED_WINDOW_MAX };
        self.abandoned = SequenceSpan { from: sequence.wrapping_sub(before), to: sequence };
        self.flags |= OPEN_FLAG | if begun { START_KNOWN_FLAG } else { 0 };
    }

    /// Returns true if the stream may restart at another sequence number: nothing of it has been
    /// emitted, and the peer has not acknowledged its known start. A server changes its sequence
    /// number if it lost the client's first SYN and replies to the second one.
    pub(super) fn may_restart(&self) -> bool {
        let agreed =
            self.has_flags(ACK_OBSERVED_FLAG) && !is_sequence_after(self.start, self.acknowledged);
        !self.has_flags(DATA_EMITTED_FLAG) && self.held.is_empty() && !agreed
    }

    /// Returns true if the end of the stream is known, and every byte before it has been emitted or
    /// abandoned.
    pub(super) const fn is_at_end(&self) -> bool {
        self.has_flags(FIN_KNOWN_FLAG) && self.next == self.fin
    }

    /// Returns true if bytes are missing before held bytes, or before the end of the stream, if the
    /// end is known.
    pub(super) const fn has_gap(&self) -> bool {
        !self.held.is_empty() || (self.has_flags(FIN_KNOWN_FLAG) && self.next != self.fin)
    }

    /// Returns the sequence number up to which the peer has acknowledged the stream, or `None` if
    /// it is unknown. If the peer has acknowledged a FIN that was not observed, the FIN counts as a
    /// byte, because the acknowledgement does not distinguish them.
    pub(super) fn acknowledged_sequence(&self) -> Option<u32> {
        if !self.has_flags(ACK_OBSERVED_FLAG) || !self.has_flags(OPEN_FLAG) {
            return None;
        }
        let beyond_end =
            self.has_flags(FIN_KNOWN_FLAG) && is_sequence_after(self.acknowledged, self.fin);
        Some(if beyond_end { self.fin } else { self.acknowledged })
    }

    /// Returns true if the peer may accept a byte at `sequence`, because it lies within the known
    /// window plus a tolerance, or because the window is unknown.
    pub(super) const fn is_acceptable_sequence(&self, sequence: u32) -> bool {
        let known =
            self.has_flags(ACK_OBSERVED_FLAG) && !is_sequence_after(self.next, self.window_edge);
        !known || !is_sequence_after(sequence, self.window_edge.wrapping_add(WINDOW_SLACK_BYTES))
    }

    /// Returns true if the peer may accept a RST from this side with sequence number `number`,
    /// because the number lies within the window (RFC 9293 §3.5.3). RFC 5961 §3 requires an exact
    /// match, which only the peer can check. On a side that was not observed, the number must be
    /// the one that the peer has acknowledged, or the RST must acknowledge all data of the peer
    /// (`answers` is then true).
    pub(super) fn is_acceptable_reset(&self, number: u32, answers: bool) -> bool {
        if !self.has_flags(OPEN_FLAG) {
            return answers || (self.has_flags(ACK_OBSERVED_FLAG) && self.acknowledged == number);
        }
        let (low, high) = match self.has_flags(ACK_OBSERVED_FLAG) {
            true => (self.acknowledged, self.window_edge),
            false => (self.next, self.next.wrapping_add(0xffff)),
        };
        number == self.next
            || number == low
            || (!is_sequence_after(low, number) && is_sequence_after(high, number))
    }

    /// Returns true if a segment carries new data that the peer may accept. The segment covers the
    /// sequence numbers from `from` up to, but not including, `to`.
    pub(super) const fn has_new_data(&self, from: u32, to: u32) -> bool {
        let new = !self.has_flags(OPEN_FLAG)
            || (is_sequence_after(to, self.next) && self.is_acceptable_sequence(from));
        from != to
            && new
            && sequence_distance(self.next, from).unsigned_abs() <= SEQUENCE_DISTANCE_MAX
    }

    /// Returns the initial state of this side in a new session, for a connection that was
    /// considered closed but continues. The stream of the new session starts at `next`.
    pub(super) fn reopened(self) -> Self {
        let Self {
            next,
            acknowledged,
            window_edge: edge,
            window_scale: scale,
            is_syn_signed: signed,
            ..
        } = self;
        let flags = self.flags & (OPEN_FLAG | ACK_OBSERVED_FLAG | SYN_OBSERVED_FLAG);
        Self {
            next,
            start: next,
            acknowledged,
            window_edge: edge,
            window_scale: scale,
            is_syn_signed: signed,
            flags,
            ..Self::default()
        }
    }

    /// Processes an acknowledgement of all bytes before `number`, and an advertised window of
    /// `window` bytes. Neither the acknowledged position nor the edge of the window moves back.
    /// Ignores a number that is implausibly far from `next`.
    pub(super) fn acknowledge(&mut self, number: u32, window: u32) {
        if self.has_flags(OPEN_FLAG)
            && sequence_distance(self.next, number).unsigned_abs() > SEQUENCE_DISTANCE_MAX
        {
            return;
        }
        let edge = number.wrapping_add(window);
        if !self.has_flags(ACK_OBSERVED_FLAG) {
            (self.acknowledged, self.window_edge) = (number, edge);
            self.flags |= ACK_OBSERVED_FLAG;
            return;
        }
        if is_sequence_after(number, self.acknowledged) {
            self.acknowledged = number;
        }
        if is_sequence_after(edge, self.window_edge) {
            self.window_edge = edge;
        }
    }
}

/// Returns true if sequence number `a` follows `b`, modulo 2³² (RFC 9293 §3.4).
#[inline]
pub(super) const fn is_sequence_after(a: u32, b: u32) -> bool {
    sequence_distance(b, a) > 0
}

/// Returns the signed distance from sequence number `a` to `b`, modulo 2³².
#[inline]
pub(super) const fn sequence_distance(a: u32, b: u32) -> i32 {
    b.wrapping_sub(a).cast_signed()
}
