//! `ssh`, `rtsp`, `mpeg`, `telnet`: recognize the protocol of a connection, message or datagram by
//! its first bytes.
//!
//! Input: the output of `tcp`, `udp` or `http`. Output: the same blocks. The block that contains
//! the deciding byte and all later blocks of the text have class 1. Earlier blocks have no class
//! (`undecided`), since the filter holds nothing. A match in one direction identifies both
//! directions of a connection. [SL §4.2, `tcp | http + ssh + rtsp | inspect`, `mpeg +* !http`]
//!
//! A signature is a list of patterns and the number of bytes to search. Between blocks the filter
//! stores the state of an automaton ([`crate::automaton`]), so that the result does not depend on
//! the segmentation. The papers name these filters but do not define their signatures.

use crate::automaton::{Automaton, CompileOptions, MatchState};
use crate::layers;
use crate::prelude::*;
use crate::text_position::TextPosition;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `ssh`, which recognizes SSH by its version line.
pub const SSH: Description = Description {
    name: "ssh",
    summary: "recognize SSH by its version line",
    details: "\
Recognizes SSH by its version line. The class is 1 from the block on that completes `SSH-2.0-` or
another version at the beginning of either direction, within 1,024 bytes; a server may send other
lines before it (RFC 4253, 4.2). Earlier blocks have no class.

Reasons for no class: `undecided` (too few bytes so far), `not recognised` (another protocol, or its
first bytes were not observed).",
    example: "replay web.pcap | tcp | ssh | count",
    constructor: Some(|arguments| make_filter(arguments, &SSH_SIGNATURE)),
    ..RECOGNIZER_DEFAULTS
};

/// Catalog entry of `rtsp`, which recognizes RTSP by its request and status lines.
pub const RTSP: Description = Description {
    name: "rtsp",
    summary: "recognize RTSP by its first request or response",
    details: "\
Recognizes RTSP by its first line. The class is 1 from the block on that completes a request line or
the beginning of a status line with `RTSP/1.0` or `RTSP/2.0` at the beginning of either direction,
within 4,096 bytes. Earlier blocks have no class.

Reasons for no class: `undecided` (too few bytes so far), `not recognised` (another protocol, or its
first bytes were not observed).",
    example: "replay web.pcap | tcp | rtsp | count",
    constructor: Some(|arguments| make_filter(arguments, &RTSP_SIGNATURE)),
    ..RECOGNIZER_DEFAULTS
};

/// Catalog entry of `mpeg`, which recognizes MPEG transport, program and elementary streams.
pub const MPEG: Description = Description {
    name: "mpeg",
    summary: "recognize MPEG streams by their packets and start codes",
    details: "\
Recognizes MPEG at the beginning of a connection, message or datagram, after the head of an HTTP
response, or in RTP (RFC 2250): a transport stream (two packets of 188 bytes, and the next sync byte
or the end), a program stream (pack header) or its packets (PES), or the first start codes of video
(MPEG-1, MPEG-2, MPEG-4, AVC). The class is 1 from the block on that completes the pattern, within
16,384 bytes. Earlier blocks have no class. After `ip` it searches the payload of each packet.

Reasons for no class: `undecided` (too few bytes so far), `not recognised` (another protocol, or its
first bytes were not observed).",
    example: "replay web.pcap | udp | mpeg | count",
    input_forms: Forms::of(&[
        Form::Segment,
        Form::Stream,
        Form::Message,
        Form::Record,
        Form::Bytes,
    ]),
    constructor: Some(|arguments| make_filter(arguments, &MPEG_SIGNATURE)),
    ..RECOGNIZER_DEFAULTS
};

/// Catalog entry of `telnet`, which recognizes telnet by its option negotiation.
pub const TELNET: Description = Description {
    name: "telnet",
    summary: "recognize telnet by its option negotiation",
    details: "\
Recognizes telnet by its option negotiation. The class is 1 from the block on that completes the
second command (the first is IAC WILL, WONT, DO or DONT with a registered option) at the beginning
of either direction, within 512 bytes and with only text between the two. Earlier blocks have no
class. A telnet connection that negotiates nothing is not recognized.

Reasons for no class: `undecided` (too few bytes so far), `not recognised` (another protocol, or its
first bytes were not observed).",
    example: "replay web.pcap | tcp | telnet | count",
    constructor: Some(|arguments| make_filter(arguments, &TELNET_SIGNATURE)),
    ..RECOGNIZER_DEFAULTS
};

/// Fields that the catalog entries of `ssh`, `rtsp`, `mpeg` and `telnet` have in common.
const RECOGNIZER_DEFAULTS: Description = Description {
    kind: FilterKind::Classification,
    input_forms: Forms::of(&[Form::Stream, Form::Message, Form::Record, Form::Bytes]),
    reads: ReadDepth::All,
    parameters: &[Parameter::table_size(
        "sessions",
        "65536",
        "maximum number of sessions in memory",
    )],
    classes: Classes::YesNo,
    reasons: &["undecided", "not recognised"],
    counters: &["evicted sessions"],
    state: StateFacts::sessions::<SignatureSession>(),
    ..Description::FILTER_DEFAULTS
};

const UNDECIDED: Reason = RECOGNIZER_DEFAULTS.reason("undecided");
const NOT_RECOGNIZED: Reason = RECOGNIZER_DEFAULTS.reason("not recognised");
const EVICTED_SESSIONS: Counter = RECOGNIZER_DEFAULTS.counter("evicted sessions");

/// The signature of a protocol: patterns, and the number of bytes to search.
struct Signature {
    /// Patterns that identify the protocol at the beginning of either direction of a connection.
    either_end: &'static [&'static str],
    /// Additional patterns to search for at the beginning of the direction from the server.
    server_only: &'static [&'static str],
    /// Maximum number of bytes to search from the start of a direction.
    search_max: u32,
}

/// The version line of SSH (RFC 4253 §4.2). A server may send other lines first; if one of them
/// begins like HTTP, the connection is not SSH.
const SSH_SIGNATURE: Signature = Signature {
    either_end: &[r"\ASSH-[12]\.[0-9]{1,2}-[!-~]"],
    server_only: &[concat!(
        r"\A(?:(?:[^\nHS][^\n]*|H[^\nT][^\n]*|S[^\nS][^\n]*|[HS])?\n)+",
        r"SSH-[12]\.[0-9]{1,2}-[!-~]"
    )],
    search_max: 1024,
};

/// Requests and responses of RTSP (RFC 2326 §6.1, §7.1; RFC 7826 §7.1, §8.1), which may follow
/// empty lines, as in HTTP.
const RTSP_SIGNATURE: Signature = Signature {
    either_end: &[
        r"\A(?:\r?\n)*[A-Z][A-Z_]{2,31} [^\x00-\x20]+ RTSP/[12]\.[0-9]\r?\n",
        r"\A(?:\r?\n)*RTSP/[12]\.[0-9] [1-6][0-9]{2}[ \r\n]",
    ],
    server_only: &[],
    search_max: 4096,
};

/// Option negotiation of telnet (RFC 854, RFC 855). The options are those in the IANA registry, so
/// that neither MPEG audio (FF FB) nor UTF-16 (FF FE) is mistaken for a negotiation; a second
/// command confirms it.
const TELNET_SIGNATURE: Signature = Signature {
    either_end: &[concat!(
        r"\A[\r\n]*\xff[\xfb-\xfe][\x00-\x31\x8a-\x8c][\x07-\x0d\x1b\x20-\x7e]*",
        r"\xff(?:[\xf0-\xfa]|[\xfb-\xfe][\x00-\x31\x8a-\x8c])"
    )],
    server_only: &[],
    search_max: 512,
};

/// MPEG packets and packs (ISO/IEC 13818-1), and MPEG start codes (ISO/IEC 11172-2, 13818-2,
/// 14496-2, 14496-10).
const MPEG_SIGNATURE: Signature = Signature {
    either_end: &[
        concat!(
            r"(?s)\A(?:HTTP/1\.[01] 2[0-9]{2}[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n",
            // The length of the first chunk.
            r"(?:[0-9A-Fa-f]{1,8}[ ;]?[^\n]*\n)?)?(?:",
            // Transport stream packets, alone or in RTP: no error flag; adaptation field or
            // payload.
            r"(?:\x80[\x21\xa1].{10})?(?:\x47[\x00-\x7f].[\x10-\x3f\x50-\x7f\x90-\xbf\xd0-\xff]",
            r".{184}){2}(?:\x47|\z)",
            // An MPEG-2 pack, an MPEG-1 pack or a PES packet, each with its marker bits.
            r"|\x00\x00\x01(?:\xba[\x44-\x47\x4c-\x4f\x54-\x57\x5c-\x5f\x64-\x67\x6c-\x6f",
            r"\x74-\x77\x7c-\x7f]|\xba[\x21\x23\x25\x27\x29\x2b\x2d\x2f]",
            r"|[\xbd\xc0-\xef]..[\x80-\xbf].[\x00-\x3f])",
            // An MPEG-1 or MPEG-2 sequence header: size, valid aspect ratio and frame rate, marker
            // bit.
            r"|\x00\x00\x01\xb3.{3}[\x11-\x18\x21-\x28\x31-\x38\x41-\x48\x51-\x58\x61-\x68",
            r"\x71-\x78\x81-\x88\x91-\x98\xa1-\xa8\xb1-\xb8\xc1-\xc8\xd1-\xd8\xe1-\xe8]",
            r"..[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff]",
            // MPEG-4 visual objects, or an AVC parameter set, with or without an access unit
            // delimiter.
            r"|\x00\x00\x01\xb0.\x00\x00\x01\xb5|\x00\x00\x01[\x00-\x1f]\x00\x00\x01[\x20-\x2f]",
            r"|(?:\x00{2,3}\x01\x09[\x10-\xf0])?\x00{2,3}\x01[\x27\x47\x67]",
            r"[\x42\x4d\x58\x64\x6e\x7a\xf4])"
        ),
        // MPEG-1 or MPEG-2 video in RTP: a header of four bytes, then a start code.
        r"(?s)\A\x80[\x20\xa0].{14}\x00\x00\x01[\x00-\xaf\xb3\xb8]",
    ],
    server_only: &[],
    search_max: 16_384,
};

/// Compiles the signature and creates the filter.
fn make_filter(arguments: &Arguments, signature: &'static Signature) -> Result<Filter, Mistake> {
    /// Maximum size of an automaton in bytes; every signature above needs less.
    const AUTOMATON_SIZE_MAX: usize = 4 << 20;
    let compiled = |patterns: &[&str]| {
        let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_bytes()).collect();
        let automaton = Automaton::new(
            &patterns,
            CompileOptions { size_max: AUTOMATON_SIZE_MAX, is_anchored: true },
        );
        automaton.map_err(|wrong| wrong.into_mistake("sessions"))
    };
    let Signature { either_end: first, server_only: server, .. } = signature;
    let own = (!server.is_empty()).then(|| compiled(&[*first, *server].concat()));
    Ok(Filter::classify(Recognizer {
        any: compiled(first)?,
        server: own.transpose()?,
        search_max: signature.search_max,
        sessions_max: arguments.number_as_usize("sessions"),
        sessions: Sessions::default(),
    }))
}

struct Recognizer {
    any: Automaton,
    /// Automaton for bytes from the server, or `None` if client and server use the same patterns.
    server: Option<Automaton>,
    search_max: u32,
    sessions_max: usize,
    sessions: Sessions<SignatureSession>,
}

/// The search states of a session's two directions.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct SignatureSession {
    forward: SignatureSearch,
    backward: SignatureSearch,
    /// Fingerprint of the automata that produced the stored search states.
    fingerprint: u32,
}

/// The search state of one text: a message, or one direction of a session.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct SignatureSearch {
    state: MatchState,
    /// Number of bytes of the text searched so far.
    searched_bytes: u32,
    /// The result of the search: [`VERDICT_YES`], [`VERDICT_NO`], or 0 while undecided.
    verdict: u16,
    /// Nonzero if the searched text is a message. The verdict on a message does not apply to the
    /// other direction.
    is_message: u8,
    /// Nonzero if the text has ended with a verdict. The verdict still applies to the other
    /// direction.
    has_ended: u8,
}

/// [`SignatureSearch::verdict`] of a text that matched the signature.
const VERDICT_YES: u16 = 1;
/// [`SignatureSearch::verdict`] of a text that can no longer match.
const VERDICT_NO: u16 = 2;

impl Session for SignatureSession {}

impl SignatureSession {
    fn own_and_other_search(
        &mut self,
        backward: bool,
    ) -> (&mut SignatureSearch, &mut SignatureSearch) {
        let Self { forward, backward: other, .. } = self;
        if backward { (other, forward) } else { (forward, other) }
    }
}

impl Classify for Recognizer {
    const SETS_MARKS: bool = false;

    #[inline]
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let piece = TextPosition::from_block(block);
        let verdict = match piece.session {
            None => {
                let mut side = SignatureSearch::default();
                self.continue_search(&mut side, piece, narrow_to_payload(block).bytes());
                side.verdict
            }
            Some(session) => {
                self.search_session(session, piece, narrow_to_payload(block).bytes(), cx)
            }
        };
        match verdict {
            VERDICT_YES => Class::YES,
            VERDICT_NO => cx.answer_absent(NOT_RECOGNIZED),
            _ => cx.answer_absent(UNDECIDED),
        }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.sessions)
    }
}

/// Returns the payload of a block from `ip`: the part of the view after the transport header.
/// Returns other blocks unchanged.
#[inline]
fn narrow_to_payload<'a>(block: &Block<'a>) -> Block<'a> {
    let Marks { view, transport, .. } = block.marks;
    if !block.marks.is_frame() || transport == Marks::UNKNOWN_OFFSET || view != transport.into() {
        return *block;
    }
    let mut packet = *block;
    if let Ok(Some((_, from, to))) = layers::datagram_ports_and_payload(&mut packet) {
        return block.view_at(from, to.saturating_sub(from));
    }
    match layers::segment(&mut packet) {
        Ok(Some(segment)) => {
            block.view_at(segment.payload, segment.end.saturating_sub(segment.payload))
        }
        _ => *block,
    }
}

impl Recognizer {
    /// Searches for the signature in the next piece of a text that spans several blocks. Returns
    /// the verdict on the text so far.
    fn search_session(
        &mut self,
        session: u64,
        piece: TextPosition,
        bytes: &[u8],
        cx: &mut ClassifyContext<'_>,
    ) -> u16 {
        let evicted = self.sessions.make_room(session, self.sessions_max);
        cx.count(EVICTED_SESSIONS, evicted.is_some().into());
        let mut known = *self.sessions.get_or_create(session);
        let fingerprint =
            self.direction_automaton(true).fingerprint() ^ self.any.fingerprint().rotate_left(1);
        if known.fingerprint != fingerprint {
            known = SignatureSession { fingerprint, ..SignatureSession::default() };
        }
        let (side, other) = known.own_and_other_search(piece.backward);
        if piece.is_first {
            *side = SignatureSearch {
                is_message: piece.is_description.into(),
                ..SignatureSearch::default()
            };
        }
        let apart = side.is_message | other.is_message != 0;
        if side.verdict == 0 && (apart || other.verdict != VERDICT_YES) {
            self.continue_search(side, piece, bytes);
        }
        let verdict =
            if !apart && other.verdict == VERDICT_YES { VERDICT_YES } else { side.verdict };
        if piece.is_last {
            let verdict = if apart { 0 } else { side.verdict };
            *side = SignatureSearch {
                verdict,
                has_ended: verdict.min(1) as u8,
                ..SignatureSearch::default()
            };
        }
        if piece.is_last && (*other == SignatureSearch::default() || other.has_ended != 0) {
            self.sessions.remove(session);
        } else {
            *self.sessions.get_or_create(session) = known;
        }
        verdict
    }

    /// Continues the search over the next bytes of an undecided text.
    fn continue_search(&self, side: &mut SignatureSearch, piece: TextPosition, bytes: &[u8]) {
        let automaton = self.direction_automaton(piece.backward);
        let room = self.search_max.saturating_sub(side.searched_bytes) as usize;
        let here = bytes.get(..room).unwrap_or(bytes);
        let last = piece.is_last && here.len() == bytes.len();
        let (state, found) = automaton.search(side.state, here, last, u32::MAX);
        side.state = state;
        side.searched_bytes += here.len() as u32;
        let enough = side.searched_bytes >= self.search_max;
        side.verdict = match found {
            Some(_) => VERDICT_YES,
            None if piece.is_hole || piece.is_last || enough || automaton.is_dead(state) => {
                VERDICT_NO
            }
            None => 0,
        };
    }

    fn direction_automaton(&self, backward: bool) -> &Automaton {
        self.server.as_ref().filter(|_| backward).unwrap_or(&self.any)
    }
}

#[cfg(test)]
mod tests;
