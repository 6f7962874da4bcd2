//! `regex`: classifies by the first of several regular expressions with a match that ends in the
//! block.
//!
//! Input: any blocks, each searched within its view. Output: the same block with the class. A match
//! may span blocks of a connection or message, independent of segmentation: the state between
//! blocks is one number per direction of each session. [SL §6.1 Table I], [Th §5.2.1]
//!
//! The `regex` filter of the papers classifies packets. This filter classifies a block by the
//! matches that end in the block, so it needs to hold no blocks. Likewise, `grep` reports the line
//! that completes a match, and Suricata the packet. With `keep=yes`, all later blocks of the text
//! have the class too. A hole ends every match in progress. The search state of a session is
//! dropped when the session ends. If the table of sessions is full, the state of a session that has
//! not been used recently is evicted.

use crate::automaton::{Automaton, CompileOptions, MatchState};
use crate::prelude::*;
use crate::text_position::TextPosition;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `regex`, which classifies by the first regular expression with a match that
/// ends in the block.
pub const REGEX: Description = Description {
    name: "regex",
    summary: "classify by the first of several regular expressions that match",
    details: "\
Searches blocks for regular expressions. The class is the number of the first pattern in the list
with a match that ends in the block: 1 for the first, 2 for the second. In a connection (after
`tcp`) and in a message (after `http`) a match may begin in an earlier block. Only the block in
which it ends has the class, as `grep` prints the line that matches; earlier blocks and the
description of a message have none. With `keep=yes` later blocks of the same direction or message
have the class too, until a pattern earlier in the list matches. A hole ends matches in progress.
Datagrams and other blocks without a connection are searched alone.

Patterns are those of Rust and grep -E, without backreferences. Quote them with '…', in which a
backslash is a backslash. They match bytes: `.` is any byte but a line end, `\\xff` is that byte,
`(?i)` ignores the case of ASCII letters, `(?s)` lets `.` match line ends, `(?m)` lets `^` and `$`
match at line ends; otherwise they match at the ends of the connection, message or datagram. A match
that depends on the next byte (`$`, `\\b`) ends in the block of that byte. All patterns become one
automaton of at most `size=` bytes, in which counted repeats of `.` take the most room. `^$` matches
an empty line or block; a pattern that every block would match, such as `a*`, is an error.

Reasons for no class: `no match`.",
    example: "replay web.pcap | regex \"GET [^ ]*[.]js\" |1 count",
    kind: FilterKind::Classification,
    reads: ReadDepth::All,
    parameters: &[
        Parameter::required("pattern", ParameterType::Bytes, "a regular expression").repeatable(),
        Parameter::with_default(
            "keep",
            ParameterType::Flag,
            "no",
            "also classify the blocks after a match",
        )
        .make_writable(),
        Parameter::with_default(
            "size",
            ParameterType::Size { low: 1 << 10, high: 1 << 30 },
            "4M",
            "maximum size of the automaton",
        ),
        Parameter::table_size("sessions", "65536", "maximum number of sessions in memory"),
    ],
    classes: Classes::Number {
        meaning: "the number of the pattern",
        range: ValueRange { low: 1, high: PATTERNS_MAX },
        names: &[],
    },
    reasons: &["no match"],
    counters: &["evicted sessions"],
    state: StateFacts {
        scope_without_session: StateScope::Nothing,
        ..StateFacts::sessions::<SessionSearch>()
    },
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

const NO_MATCH: Reason = REGEX.reason("no match");
const EVICTED_SESSIONS: Counter = REGEX.counter("evicted sessions");
/// Maximum number of patterns of one filter. It exceeds the number that fits into the longest
/// request.
const PATTERNS_MAX: u32 = 65_535;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let patterns: Vec<&[u8]> = arguments.bytes("pattern").collect();
    if patterns.len() > PATTERNS_MAX as usize {
        let what = format!("there are more than {PATTERNS_MAX} patterns");
        return Err(Mistake::new("pattern", what));
    }
    let number = |name| arguments.number(name).and_then(|n| usize::try_from(n).ok());
    let plan =
        CompileOptions { size_max: number("size").unwrap_or(usize::MAX), is_anchored: false };
    let automaton =
        Automaton::new(&patterns, plan).map_err(|wrong| wrong.into_mistake("pattern"))?;
    Ok(Filter::classify(Regex {
        automaton,
        keep: arguments.flag("keep"),
        sessions_max: number("sessions").unwrap_or(1),
        sessions: Sessions::default(),
    }))
}

struct Regex {
    automaton: Automaton,
    keep: bool,
    sessions_max: usize,
    sessions: Sessions<SessionSearch>,
}

/// Search states of the two directions of a session.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct SessionSearch {
    forward: TextSearch,
    backward: TextSearch,
    /// Fingerprint of the automaton that computed the search states. The states are invalid for any
    /// other automaton.
    fingerprint: u32,
}

/// Search state of one text: a message, or one direction of a session.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct TextSearch {
    state: MatchState,
    /// Number, from 1, of the first pattern in the list that matched in the latest block of the
    /// text, or 0 if none did. With `keep=yes`, matches in all blocks of the text so far count.
    lowest_pattern: u32,
}

impl Session for SessionSearch {
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("forward_pattern", Unit::Number, FOUND_HELP, |it, _| {
            it.forward.lowest_pattern.into()
        }),
        Field::new("backward_pattern", Unit::Number, FOUND_HELP, |it, _| {
            it.backward.lowest_pattern.into()
        }),
    ];
}

const FOUND_HELP: &str = "first pattern of the list that matched, from 1; 0: none";

impl SessionSearch {
    fn direction_search(&mut self, backward: bool) -> &mut TextSearch {
        if backward { &mut self.backward } else { &mut self.forward }
    }

    fn is_over(&self) -> bool {
        self.forward == TextSearch::default() && self.backward == TextSearch::default()
    }
}

/// Upper bound (exclusive) on the pattern numbers that a search reports. With this bound, the
/// search reports every pattern.
const ALL_PATTERNS: u32 = u32::MAX;

impl Classify for Regex {
    const SETS_MARKS: bool = false;

    #[inline]
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let piece = TextPosition::from_block(block);
        let found = match piece.session {
            // Holes and descriptions have no bytes, but are not searched as empty texts.
            None if piece.is_hole || piece.is_description => None,
            None => self
                .automaton
                .search(MatchState::START, block.bytes(), true, ALL_PATTERNS)
                .1
                .map(|n| n + 1),
            Some(session) => self.search_session(session, piece, block.bytes(), cx),
        };
        found.map_or_else(|| cx.answer_absent(NO_MATCH), Class)
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.sessions)
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        self.keep = arguments.flag("keep");
        Ok(())
    }
}

impl Regex {
    /// Searches `bytes`, the view of a block of a session. `piece` is the position of the block in
    /// its text, which is a message or one direction of the session. Returns the number, from 1, of
    /// the first pattern in the list with a match that ends in the block. With `keep=yes`, matches
    /// that ended in earlier blocks of the text count too. Returns `None` if no pattern matched.
    fn search_session(
        &mut self,
        session: u64,
        piece: TextPosition,
        bytes: &[u8],
        cx: &mut ClassifyContext<'_>,
    ) -> Option<u32> {
        let evicted = self.sessions.make_room(session, self.sessions_max);
        cx.count(EVICTED_SESSIONS, evicted.is_some().into());
        let search = self.sessions.get_or_create(session);
        if search.fingerprint != self.automaton.fingerprint() {
            *search = SessionSearch {
                fingerprint: self.automaton.fingerprint(),
                ..SessionSearch::default()
            };
        }
        let side = search.direction_search(piece.backward);
        if piece.is_first {
            *side = TextSearch::default();
        }
        if piece.is_hole {
            side.state = self.automaton.state_after_hole();
        }
        let below = if self.keep {
            side.lowest_pattern.checked_sub(1).unwrap_or(ALL_PATTERNS)
        } else {
            ALL_PATTERNS
        };
        let mut answer = if self.keep { side.lowest_pattern } else { 0 };
        // Only earlier patterns in the list can change the result.
        if below > 0 {
            let (state, found) = self.automaton.search(side.state, bytes, piece.is_last, below);
            side.state = state;
            answer = found.map_or(answer, |number| number + 1);
        }
        side.lowest_pattern = answer;
        if piece.is_last {
            *side = TextSearch::default();
            if search.is_over() {
                self.sessions.remove(session);
            }
        }
        (answer > 0).then_some(answer)
    }
}

#[cfg(test)]
mod tests;
