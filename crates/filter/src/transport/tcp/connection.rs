//! What is remembered of a connection: plain data, 120 bytes.
//!
//! A connection has two sides, the client's and the server's. A side is what one end sends: the
//! sequence number that comes next, what the other end has acknowledged of it and will take, and
//! the segments that came too early.

use crate::contract::{Field, HeldList, Session, Unit};
use crate::transport::flows::{Identity, Record};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Connection {
    /// `word`: when it was last heard of, or the RST that waits for what follows; `port`: the
    /// server's; `down`: which way the client sends; `flags`: [`CLOSED`] and so on.
    pub(super) identity: Identity,
    /// What the client sends, and what the server sends.
    pub(super) sides: [Side; 2],
    /// Where the client's data would begin if the SYN that came for an open connection is heeded.
    pub(super) probe: u32,
    /// Where its first block came from.
    pub(super) origin: u16,
    pub(super) spare: u16,
}

const _: () = assert!(size_of::<Connection>() == 120);

/// Both sides have ended; what still comes for it is late.
pub(super) const CLOSED: u8 = 1;
/// A SYN came for an open connection: see [`Connection::probe`].
pub(super) const PROBED: u8 = 1 << 1;
/// It is among those that are looked at when their gap gets too old.
pub(super) const WATCHED: u8 = 1 << 2;
/// The client, or the server, has sent a RST that the other end may heed ([`super::reset`]).
pub(super) const RESET: [u8; 2] = [1 << 3, 1 << 4];
/// Either has.
pub(super) const ANY_RESET: u8 = RESET[0] | RESET[1];

/// What one end of a connection sends.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Side {
    /// Since when, by the clock of the path, the bytes at `next` are missing while later ones are
    /// here.
    pub(super) since: u64,
    /// The sequence number of the first byte that was not given yet.
    pub(super) next: u32,
    /// The sequence number of the first byte of all.
    pub(super) start: u32,
    /// The highest number that the other end has acknowledged.
    pub(super) acknowledged: u32,
    /// One past the last byte that the other end will take.
    pub(super) edge: u32,
    /// The sequence number of the FIN, if [`FIN`].
    pub(super) fin: u32,
    /// Segments beyond `next`: none overlaps another.
    pub(super) held: HeldList,
    /// The bytes in them.
    pub(super) held_bytes: u32,
    /// [`OPEN`] and so on.
    pub(super) flags: u8,
    /// By how many bits the windows that it states are shifted.
    pub(super) scale: u8,
    /// True if its SYN was signed (TCP-MD5, TCP-AO).
    pub(super) signed: u8,
    pub(super) spare: u8,
}

/// It was heard: `next` is known.
pub(super) const OPEN: u8 = 1;
/// Its beginning is known.
pub(super) const BEGUN: u8 = 1 << 1;
/// A block of it was given.
pub(super) const GIVEN: u8 = 1 << 2;
/// Where it ends is known.
pub(super) const FIN: u8 = 1 << 3;
/// The end was given.
pub(super) const TOLD: u8 = 1 << 4;
/// `acknowledged` and `edge` are known.
pub(super) const ACKED: u8 = 1 << 5;
/// Its SYN was seen, and so `scale` is known.
pub(super) const SCALED: u8 = 1 << 6;
/// Its end is where it broke off: no FIN was seen.
pub(super) const BROKEN: u8 = 1 << 7;
/// The scale of a side that does not scale.
pub(super) const UNSCALED: u8 = u8::MAX;
/// The largest scale (RFC 7323 §2.3): what is assumed where no SYN was seen.
pub(super) const SCALE_MAX: u8 = 14;

/// How far a sequence number may lie ahead: the largest window there is (RFC 7323 §2.3).
pub(super) const FAR: u32 = 1 << 30;
/// How far behind the window that we know of a sequence number may lie and be believed: the other
/// end's latest word may have been missed.
const SLACK: u32 = 1 << 20;

impl Session for Connection {
    fn lists(&mut self) -> Vec<&mut HeldList> {
        self.sides.iter_mut().map(|side| &mut side.held).collect()
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("port", Unit::Number, "the server's", |it, _| it.identity.port.into()),
        Field::new("client_bytes", Unit::Bytes, GIVEN_HELP, |it, _| it.sides[0].given().into()),
        Field::new("server_bytes", Unit::Bytes, GIVEN_HELP, |it, _| it.sides[1].given().into()),
        Field::new("client_held", Unit::Bytes, HELD_HELP, |it, _| it.sides[0].held_bytes.into()),
        Field::new("server_held", Unit::Bytes, HELD_HELP, |it, _| it.sides[1].held_bytes.into()),
        Field::new("heard", Unit::Nanoseconds, "last, by the clock of the path", |it, _| {
            it.identity.word
        }),
        Field::new("closed", Unit::YesNo, "both sides have ended", |it, _| it.has(CLOSED).into()),
    ];

    fn number(&self, _: u64) -> u64 {
        self.identity.session.into()
    }
}

const GIVEN_HELP: &str = "of what it sends, given or missed for good; modulo 2^32";
const HELD_HELP: &str = "of what it sends, here before what comes before them";

impl Record for Connection {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn identity_mut(&mut self) -> &mut Identity {
        &mut self.identity
    }
}

impl Connection {
    /// Returns true if it has this flag, or one of these.
    pub(super) const fn has(&self, flag: u8) -> bool {
        self.identity.flags & flag != 0
    }
}

impl Side {
    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// How many bytes of it were given, or given up; modulo 2³².
    const fn given(&self) -> u32 {
        if self.has(OPEN) { self.next.wrapping_sub(self.start) } else { 0 }
    }

    /// Its data begin at `sequence`; `begun` if nothing can have come before.
    pub(super) fn open(&mut self, sequence: u32, begun: bool) {
        (self.start, self.next) = (sequence, sequence);
        self.flags |= OPEN | if begun { BEGUN } else { 0 };
    }

    /// Whether it may begin with another number: nothing was given, and the other end has not
    /// agreed to the one that we know. So a server answers that forgot the first SYN.
    pub(super) fn may_restart(&self) -> bool {
        let agreed = self.has(ACKED) && !after(self.start, self.acknowledged);
        !self.has(GIVEN) && self.held.is_empty() && !agreed
    }

    /// Whether all that it sends was given or given up.
    pub(super) const fn is_at_end(&self) -> bool {
        self.has(FIN) && self.next == self.fin
    }

    /// Whether bytes are missing although later ones are here, or the end.
    pub(super) const fn waits(&self) -> bool {
        !self.held.is_empty() || (self.has(FIN) && self.next != self.fin)
    }

    /// What is known to have been sent by what the other end acknowledged. A FIN that was not seen
    /// counts as a byte: nobody can tell.
    pub(super) fn acknowledged(&self) -> Option<u32> {
        if !self.has(ACKED) || !self.has(OPEN) {
            return None;
        }
        let beyond_end = self.has(FIN) && after(self.acknowledged, self.fin);
        Some(if beyond_end { self.fin } else { self.acknowledged })
    }

    /// Whether the other end may take a byte at `sequence`. What it takes is only known as long as
    /// it is heard.
    pub(super) const fn may_be_taken(&self, sequence: u32) -> bool {
        let known = self.has(ACKED) && !after(self.next, self.edge);
        !known || !after(sequence, self.edge.wrapping_add(SLACK))
    }

    /// Whether a RST with this number is one that the other end heeds: it lies in the window (RFC
    /// 9293 §3.5.3; RFC 5961 §3 would have it exact, which needs to see all that the other end
    /// saw). A side that was not heard may only answer, as a host does that knows of no connection.
    pub(super) fn may_reset(&self, number: u32, answers: bool) -> bool {
        if !self.has(OPEN) {
            return answers || (self.has(ACKED) && self.acknowledged == number);
        }
        let (low, high) = match self.has(ACKED) {
            true => (self.acknowledged, self.edge),
            false => (self.next, self.next.wrapping_add(0xffff)),
        };
        number == self.next || number == low || (!after(low, number) && after(high, number))
    }

    /// Whether a segment says what was not said before: data that are new, and that the other end
    /// may take.
    pub(super) const fn is_new(&self, from: u32, to: u32) -> bool {
        let new = !self.has(OPEN) || (after(to, self.next) && self.may_be_taken(from));
        from != to && new && distance(self.next, from).unsigned_abs() <= FAR
    }

    /// The same side of a connection that goes on although it was taken for closed.
    pub(super) fn again(self) -> Self {
        let Self { next, acknowledged, edge, scale, signed, .. } = self;
        let flags = self.flags & (OPEN | ACKED | SCALED);
        Self { next, start: next, acknowledged, edge, scale, signed, flags, ..Self::default() }
    }

    /// The other end acknowledges all before `number`, and takes `window` bytes more.
    pub(super) fn acknowledge(&mut self, number: u32, window: u32) {
        if self.has(OPEN) && distance(self.next, number).unsigned_abs() > FAR {
            return;
        }
        let edge = number.wrapping_add(window);
        if !self.has(ACKED) {
            (self.acknowledged, self.edge) = (number, edge);
            self.flags |= ACKED;
            return;
        }
        if after(number, self.acknowledged) {
            self.acknowledged = number;
        }
        if after(edge, self.edge) {
            self.edge = edge;
        }
    }
}

/// Whether sequence number `a` lies behind `b`, with wrap-around (RFC 9293 §3.4).
#[inline]
pub(super) const fn after(a: u32, b: u32) -> bool {
    distance(b, a) > 0
}

/// How far it is from `a` to `b`, with wrap-around.
#[inline]
pub(super) const fn distance(a: u32, b: u32) -> i32 {
    b.wrapping_sub(a).cast_signed()
}
