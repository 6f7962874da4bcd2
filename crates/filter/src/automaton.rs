//! Pattern automaton for segmented text. The state between segments is one number.
//!
//! Input: the patterns at creation; then the pieces of a text, each with the [`MatchState`]
//! returned for the previous piece. Output: the state after the piece, and the lowest index of a
//! pattern with a match that *ends* in the piece. Since a match may span pieces, the result does
//! not depend on the segmentation. All matches count, not only leftmost ones, so that the result
//! does not depend on earlier matches either. [SL §6.1 Table I]
//!
//! The automaton is regex-automata's dense DFA. It reports a match one byte late, because
//! assertions (`$`, `\b`) inspect the next byte, which is not known yet at the end of a piece. A
//! final step therefore reports a match that holds for every possible next byte. Any other match is
//! reported in the piece that contains the deciding byte.
//!
//! Patterns match bytes, not UTF-8: `.` and `\xff` match one byte, `(?i)` applies to ASCII.

use crate::contract::Mistake;
use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::util::primitives::{PatternID, StateID};
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind, Span};
use regex_syntax::hir::{Hir, Look, LookSet};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An automaton compiled from a list of patterns.
pub(crate) struct Automaton {
    dfa: dense::DFA<Vec<u32>>,
    begin: StateID,
    after_hole: StateID,
    /// For each pattern, true if a match never depends on the byte after it.
    ignores_next_byte: Vec<bool>,
    skip: Option<LiteralPrefilter>,
    fingerprint: u32,
    /// The reachable state with the highest number, which bounds the valid state numbers.
    last_state: StateID,
}

/// The state of a search after part of a text. Plain data, valid only for automata with the same
/// [`Automaton::fingerprint`].
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub(crate) struct MatchState(u32);

impl MatchState {
    /// The state of a search before the first byte of the text.
    pub(crate) const START: Self = Self(0);
}

/// Options for the compilation of an automaton.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompileOptions {
    /// Maximum size of the compiled automaton, in bytes.
    pub(crate) size_max: usize,
    /// True if matches must begin at the first byte of the text.
    pub(crate) is_anchored: bool,
}

/// Prefilter that skips to the next occurrence of a literal while no match has begun.
struct LiteralPrefilter {
    literals: Prefilter,
    /// Length in bytes of the longest proper prefix of a literal. The prefilter cannot skip this
    /// many bytes at the end of a piece, because a literal may begin there.
    tail_length: usize,
    /// States in which no match has begun, one for each value of the preceding byte.
    start_states: Vec<StateID>,
}

impl Automaton {
    /// Compiles a list of patterns.
    ///
    /// # Errors
    ///
    /// Fails if a pattern is invalid (the error contains its index), or if the automaton is too
    /// large.
    pub(crate) fn new(patterns: &[&[u8]], options: CompileOptions) -> Result<Self, PatternError> {
        let parsed = patterns.iter().enumerate().map(|(which, pattern)| {
            parse_pattern(pattern)
                .map_err(|wrong| PatternError { pattern_index: Some(which), ..wrong })
        });
        let parsed: Vec<Hir> = parsed.collect::<Result<_, _>>()?;
        let literals = Prefilter::from_hirs_prefix(MatchKind::LeftmostFirst, &parsed)
            .filter(|found| found.is_fast() && !options.is_anchored);
        let dfa = compile_dfa(&parsed, options, literals.is_some()).map_err(|wrong| {
            let alone = |hir: &Hir| compile_dfa(std::slice::from_ref(hir), options, false).is_err();
            let which = if parsed.len() == 1 { Some(0) } else { parsed.iter().position(alone) };
            PatternError { pattern_index: which, ..wrong }
        })?;
        for (which, pattern) in parsed.iter().enumerate() {
            if matches_every_text(pattern, options)? {
                let wrong =
                    PatternError::new("the pattern may be empty: it would match every block")
                        .with_hint("let it match at least one byte, or anchor both ends: `^$`");
                return Err(PatternError { pattern_index: Some(which), ..wrong });
            }
        }
        let from = |before| {
            let anchored = if options.is_anchored { Anchored::Yes } else { Anchored::No };
            dfa.start_state(&start::Config::new().anchored(anchored).look_behind(before))
        };
        let from = |before| from(before).map_err(|error| PatternError::new(error.to_string()));
        // A missing byte counts as NUL, which neither ends a line nor belongs to a word.
        let (begin, after_hole) = (from(None)?, from(Some(0))?);
        let starts: Vec<StateID> =
            (0..=u8::MAX).map(|byte| from(Some(byte))).collect::<Result<_, _>>()?;
        let skip = literals.map(|literals| {
            let tail = literals.max_needle_len().saturating_sub(1);
            LiteralPrefilter { literals, tail_length: tail, start_states: starts.clone() }
        });
        let ignores_next_byte = parsed.iter().map(ignores_next_byte).collect();
        let fingerprint = fingerprint(&dfa);
        let all = starts.into_iter().chain([begin, after_hole]);
        let last_state = highest_reachable_state(&dfa, all);
        Ok(Self { dfa, begin, after_hole, ignores_next_byte, skip, fingerprint, last_state })
    }

    /// Returns a hash of the automaton. A stored state is valid only for an automaton with the same
    /// hash.
    pub(crate) const fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    /// Returns the state in which a search continues after missing bytes: no match has begun, and
    /// anchored patterns can no longer match.
    pub(crate) fn state_after_hole(&self) -> MatchState {
        MatchState(self.after_hole.as_u32() + 1)
    }

    /// Continues the search from `state` over `bytes`. Returns the new state, and the lowest index
    /// below `below` of a pattern with a match that ends in `bytes`. `last` means that the text
    /// ends after `bytes`.
    #[inline]
    pub(crate) fn search(
        &self,
        state: MatchState,
        bytes: &[u8],
        last: bool,
        below: u32,
    ) -> (MatchState, Option<u32>) {
        let mut id = self.state_id(state);
        let mut found = LowestMatch { below, first: None };
        match bytes.split_first() {
            Some((byte, rest)) => {
                let before = id;
                id = self.dfa.next_state(id, *byte);
                if self.dfa.is_match_state(id) {
                    // A match that ended with the previous piece, but depended on this byte.
                    found.record(self, id, |pattern| {
                        !self.matches_for_any_next_byte(before, pattern)
                    });
                }
                id = self.run_over_bytes(id, rest, &mut found);
                let end = self.dfa.next_eoi_state(id);
                if self.dfa.is_match_state(end) {
                    found.record(self, end, |pattern| {
                        last || self.matches_for_any_next_byte(id, pattern)
                    });
                }
            }
            None if last => {
                let end = self.dfa.next_eoi_state(id);
                if self.dfa.is_match_state(end) {
                    found.record(self, end, |pattern| !self.matches_for_any_next_byte(id, pattern));
                }
            }
            None => {}
        }
        (MatchState(id.as_u32() + 1), found.first)
    }

    /// Returns true if no match is possible any more in this state.
    pub(crate) fn is_dead(&self, state: MatchState) -> bool {
        self.dfa.is_dead_state(self.state_id(state))
    }

    /// Converts a stored state to a state of the automaton. Zero and invalid numbers become the
    /// initial state.
    #[inline]
    fn state_id(&self, state: MatchState) -> StateID {
        let id = state.0.wrapping_sub(1);
        // The stride is a power of two.
        let between = self.dfa.stride() - 1;
        let is_state = id <= self.last_state.as_u32() && id as usize & between == 0;
        match StateID::new(id as usize) {
            Ok(id) if is_state => id,
            _ => self.begin,
        }
    }

    /// Runs the automaton over `bytes` and returns the new state. Records all matches except
    /// matches that end at the last byte.
    #[inline]
    fn run_over_bytes(&self, mut id: StateID, bytes: &[u8], found: &mut LowestMatch) -> StateID {
        let dfa = &self.dfa;
        let mut at = 0;
        if dfa.is_start_state(id) {
            (id, at) = self.skip_to_match_start(id, bytes, at);
        }
        while let Some(byte) = bytes.get(at) {
            id = dfa.next_state(id, *byte);
            at += 1;
            if !dfa.is_special_state(id) {
                continue;
            }
            if dfa.is_match_state(id) {
                found.record(self, id, |_| true);
            }
            if dfa.is_start_state(id) && self.skip.is_some() {
                (id, at) = self.skip_to_match_start(id, bytes, at);
            } else if dfa.is_accel_state(id) {
                at = find_any_byte(dfa.accelerator(id), bytes, at);
            } else if dfa.is_dead_state(id) {
                break;
            }
        }
        id
    }

    /// Skips from offset `at` to the next offset at which a match may begin. Returns the state
    /// before that offset, and the offset. Returns both arguments unchanged if there is no
    /// prefilter, or if too few bytes remain for it.
    #[inline]
    fn skip_to_match_start(&self, id: StateID, bytes: &[u8], at: usize) -> (StateID, usize) {
        let Some(skip) = &self.skip else { return (id, at) };
        let tail = bytes.len().saturating_sub(skip.tail_length);
        if at >= tail {
            return (id, at);
        }
        let rest = Span { start: at, end: bytes.len() };
        let to = skip.literals.find(bytes, rest).map_or(tail, |found| found.start);
        let before = to.checked_sub(1).filter(|_| to > at).and_then(|before| bytes.get(before));
        let start = before.and_then(|byte| skip.start_states.get(usize::from(*byte)));
        (start.copied().unwrap_or(id), to)
    }

    /// Returns true if `pattern` matches in state `id` whatever the next byte is.
    fn matches_for_any_next_byte(&self, id: StateID, pattern: PatternID) -> bool {
        if self.ignores_next_byte.get(pattern.as_usize()) == Some(&true) {
            return true;
        }
        let dfa = &self.dfa;
        let matches = |next: StateID| {
            dfa.is_match_state(next)
                && (0..dfa.match_len(next)).any(|at| dfa.match_pattern(next, at) == pattern)
        };
        let bytes = dfa.byte_classes().representatives(0..=u8::MAX);
        matches(dfa.next_eoi_state(id))
            && bytes.filter_map(|unit| unit.as_u8()).all(|byte| matches(dfa.next_state(id, byte)))
    }
}

/// The lowest index of a pattern that has matched (`first`), or `None` before the first match.
/// Patterns with the index `below` or a higher one are ignored.
struct LowestMatch {
    below: u32,
    first: Option<u32>,
}

impl LowestMatch {
    /// Records the lowest pattern that matches in state `id` and for which `counts` returns true.
    /// Does nothing if the index of this pattern is not less than `below`.
    #[inline]
    fn record(&mut self, automaton: &Automaton, id: StateID, counts: impl Fn(PatternID) -> bool) {
        if self.below == 0 {
            return;
        }
        for at in 0..automaton.dfa.match_len(id) {
            let pattern = automaton.dfa.match_pattern(id, at);
            if pattern.as_u32() < self.below && counts(pattern) {
                self.below = pattern.as_u32();
                self.first = Some(self.below);
            }
        }
    }
}

/// An error in a list of patterns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PatternError {
    /// Index of the pattern, or `None` if the error concerns all patterns.
    pub(crate) pattern_index: Option<usize>,
    /// Byte range of the error in the pattern, or `None` for the entire pattern.
    pub(crate) range: Option<Range<usize>>,
    /// Description of the error.
    pub(crate) message: String,
    /// Suggested correction of the pattern, or `None` if there is no suggestion.
    pub(crate) hint: Option<String>,
}

impl PatternError {
    fn new(what: impl Into<String>) -> Self {
        Self { pattern_index: None, range: None, message: what.into(), hint: None }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Converts the error to a [`Mistake`] about `parameter` or, if the error concerns all
    /// patterns, about no particular parameter.
    pub(crate) fn into_mistake(self, parameter: &'static str) -> Mistake {
        let Self { pattern_index, range, message, hint } = self;
        let parameter = pattern_index.map(|_| parameter);
        let value_index = pattern_index.unwrap_or(0);
        Mistake { parameter, value_index, range, message, hint }
    }
}

/// Maximum nesting depth of groups in a pattern.
const NESTING_MAX: u32 = 100;

fn parse_pattern(pattern: &[u8]) -> Result<Hir, PatternError> {
    let text = to_escaped_text(pattern);
    let mut parser = regex_syntax::ParserBuilder::new();
    parser.unicode(false).utf8(false).nest_limit(NESTING_MAX);
    let parsed = parser.build().parse(&text).map_err(|error| {
        let (what, span) = match &error {
            regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span())),
            regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span())),
            other => (other.to_string(), None),
        };
        let straight = matches!(text, Cow::Borrowed(_));
        let at = span.filter(|_| straight).map(|span| span.start.offset..span.end.offset);
        PatternError { range: at, ..PatternError::new(what) }
    })?;
    let properties = parsed.properties();
    match properties.minimum_len() {
        None => Err(PatternError::new("the pattern never matches")),
        Some(_) if properties.look_set().contains_word_unicode() => {
            Err(PatternError::new("word boundaries are those of ASCII")
                .with_hint("write `(?-u:\\b)`"))
        }
        Some(_) => Ok(parsed),
    }
}

/// Returns true if the pattern matches in every text, including the empty text.
fn matches_every_text(pattern: &Hir, options: CompileOptions) -> Result<bool, PatternError> {
    let properties = pattern.properties();
    if properties.minimum_len() != Some(0) || properties.look_set().is_empty() {
        return Ok(properties.minimum_len() == Some(0));
    }
    let dfa = compile_dfa(std::slice::from_ref(pattern), options, false)?;
    let anchored = if options.is_anchored { Anchored::Yes } else { Anchored::No };
    let begin = dfa
        .start_state(&start::Config::new().anchored(anchored))
        .map_err(|error| PatternError::new(error.to_string()))?;
    let bytes: Vec<u8> =
        dfa.byte_classes().representatives(0..=u8::MAX).filter_map(|unit| unit.as_u8()).collect();
    // Search for a text without a match: visit only states that are reached before any match.
    let (mut known, mut pending) = (HashSet::from([begin]), vec![begin]);
    while let Some(id) = pending.pop() {
        if !dfa.is_match_state(dfa.next_eoi_state(id)) {
            return Ok(false);
        }
        let next = bytes.iter().map(|byte| dfa.next_state(id, *byte));
        pending.extend(next.filter(|id| !dfa.is_match_state(*id) && known.insert(*id)));
    }
    Ok(true)
}

/// Converts the pattern to text. Bytes that are not valid UTF-8 are escaped as `\xHH`.
fn to_escaped_text(pattern: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(pattern) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let mut text = String::new();
            for chunk in pattern.utf8_chunks() {
                text.push_str(chunk.valid());
                chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
            }
            Cow::Owned(text)
        }
    }
}

/// Returns true if matches of the pattern never depend on the next byte.
fn ignores_next_byte(pattern: &Hir) -> bool {
    let behind = LookSet::singleton(Look::Start).insert(Look::StartLF);
    pattern.properties().look_set().subtract(behind).is_empty()
}

fn compile_dfa(
    parsed: &[Hir],
    options: CompileOptions,
    starts: bool,
) -> Result<dense::DFA<Vec<u32>>, PatternError> {
    let nfa = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(options.size_max));
    let nfa = thompson::Compiler::new().configure(nfa).build_many_from_hir(parsed);
    let nfa = nfa.map_err(|error| match error.size_limit() {
        Some(_) => pattern_size_error(options.size_max),
        None => PatternError::new(error.to_string()),
    })?;
    let start = if options.is_anchored { StartKind::Anchored } else { StartKind::Unanchored };
    let config = dense::Config::new()
        .match_kind(MatchKind::All)
        .start_kind(start)
        .specialize_start_states(starts)
        .dfa_size_limit(Some(options.size_max))
        .determinize_size_limit(Some(options.size_max));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|error| {
        match error.is_size_limit_exceeded() {
            true => pattern_size_error(options.size_max),
            false => PatternError::new(error.to_string()),
        }
    })
}

fn pattern_size_error(size: usize) -> PatternError {
    PatternError::new(format!("the automaton would be larger than {size} bytes")).with_hint(
        "write repeats as `.*` or with small counts (`.{0,9}`), classes instead of `.`, \
         or allow more with `size=`",
    )
}

/// Returns a 32-bit hash of an automaton.
fn fingerprint(dfa: &dense::DFA<Vec<u32>>) -> u32 {
    let (bytes, padding) = dfa.to_bytes_little_endian();
    twox_hash::XxHash32::oneshot(0, bytes.get(padding..).unwrap_or_default())
}

/// Returns the highest state that is reachable from any state in `from`. The automaton numbers its
/// states in multiples of a stride, so every multiple up to the result is a valid state.
fn highest_reachable_state(
    dfa: &dense::DFA<Vec<u32>>,
    from: impl Iterator<Item = StateID>,
) -> StateID {
    let bytes: Vec<u8> =
        dfa.byte_classes().representatives(0..=u8::MAX).filter_map(|unit| unit.as_u8()).collect();
    let (mut known, mut pending) = (Vec::new(), Vec::new());
    let mut visit = |id: StateID, pending: &mut Vec<StateID>| {
        let at = id.as_usize() >> dfa.stride2();
        if at >= known.len() {
            known.resize(at + 1, false);
        }
        if !std::mem::replace(&mut known[at], true) {
            pending.push(id);
        }
    };
    from.for_each(|id| visit(id, &mut pending));
    let mut last = StateID::ZERO;
    while let Some(id) = pending.pop() {
        last = last.max(id);
        bytes.iter().for_each(|byte| visit(dfa.next_state(id, *byte), &mut pending));
    }
    last
}

/// Returns the offset of the first byte of `haystack`, at or after offset `at`, that equals one of
/// `needles` (one to three bytes). Returns the length of `haystack` if there is no such byte.
#[inline]
fn find_any_byte(needles: &[u8], haystack: &[u8], at: usize) -> usize {
    let rest = haystack.get(at..).unwrap_or_default();
    let found = match *needles {
        [a] => memchr::memchr(a, rest),
        [a, b] => memchr::memchr2(a, b, rest),
        [a, b, c] => memchr::memchr3(a, b, c, rest),
        _ => Some(0),
    };
    found.map_or(haystack.len(), |found| at + found)
}
