//! `match`: classifies by the first pattern of a list that occurs anywhere in the view, or at a
//! given offset.
//!
//! Input: any blocks, each searched within its view. Output: the same block with the class.
//! Patterns are bytes, written as text or in hexadecimal. One pass over the view searches for all
//! of them. [SL §6.1 Table I], [Th §5.2.1]
//!
//! Matches across two blocks of a stream are not found.

use crate::prelude::*;
use crate::twin::{self, EmitResult};
use aho_corasick::{AhoCorasick, MatchKind};
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope, UnfitReason};
use memchr::memmem::Finder;

/// Catalog entry of `match`, which classifies by the first pattern of a list that the view
/// contains.
pub const MATCH: Description = Description {
    name: "match",
    summary: "classify by the first of several patterns that the view contains",
    details: "\
Searches the view of each block for patterns. The class is the number of the first pattern in the
list that occurs: 1 for the first, 2 for the second. Patterns are text, in which double quotes allow
any byte as `\\xHH`, or hexadecimal digits after `hex=`. With `at=` a pattern must begin at that
offset of the view. With `nocase=yes` ASCII letters match in both cases.

Reasons for no class: `no pattern` (none occurs). For a match across two blocks, use `regex`.",
    example: "replay web.pcap | match \"GET \" \"POST \" |1 count",
    kind: FilterKind::Classification,
    reads: ReadDepth::All,
    parameters: &[
        Parameter::optional("text", ParameterType::Bytes, "a pattern as text")
            .positional()
            .repeatable(),
        Parameter::optional("hex", ParameterType::Text, "a pattern as hexadecimal digits")
            .repeatable(),
        Parameter::optional(
            "at",
            ParameterType::Number { low: 0, high: abi::BLOCK_LENGTH_MAX as u64 },
            AT_HELP,
        ),
        Parameter::with_default(
            "nocase",
            ParameterType::Flag,
            "no",
            "ASCII letters match in both cases",
        ),
    ],
    classes: Classes::Number {
        meaning: "the number of the pattern",
        range: ValueRange { low: 1, high: PATTERNS_MAX as u32 },
        names: &[],
    },
    reasons: &["no pattern"],
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    twin_test_arguments: &[
        "at=0 hex=4500 hex=45 hex=60",
        "at=1 nocase=yes \"et \" \"SH-2.0-o\" bcdefgh",
    ],
    ..Description::FILTER_DEFAULTS
};

const AT_HELP: &str = "offset in the view at which a pattern must begin";
const NO_PATTERN: Reason = MATCH.reason("no pattern");
/// Maximum number of patterns of one filter. It exceeds the number that fits into the longest
/// request.
const PATTERNS_MAX: usize = 65_535;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let patterns = parse_patterns(arguments)?;
    let nocase = arguments.flag("nocase");
    let at = arguments.number("at").map(|at| at as usize);
    // Each kind of search has its own filter type, so that there is no branch per block.
    Ok(match (at, patterns.as_slice()) {
        (Some(at), [one]) if one.len() == 1 && !nocase => {
            Filter::lanes(ByteAtOffsetSearch { at, byte: one.first().copied().unwrap_or(0) })
        }
        (Some(at), _) => {
            Filter::classify(MatchFilter(PatternsAtOffsetSearch { at, patterns, nocase }))
        }
        (None, [one]) if !nocase => {
            Filter::lanes(SinglePatternSearch(Finder::new(one).into_owned()))
        }
        (None, _) => Filter::classify(MatchFilter(MultiPatternSearch::new(&patterns, nocase)?)),
    })
}

/// Returns the patterns in the order of the request. Fails if there are none or too many, or if one
/// of them is empty or not hexadecimal.
fn parse_patterns(arguments: &Arguments) -> Result<Vec<Vec<u8>>, Mistake> {
    let mut patterns = Vec::new();
    for (name, value) in arguments.iter() {
        match (name, value) {
            ("text", Value::Bytes(text)) => patterns.push((name, text.clone())),
            ("hex", Value::Text(text)) => {
                let which = patterns.iter().filter(|(n, _)| *n == name).count();
                let bytes =
                    parse_hex(text).map_err(|mistake| Mistake { value_index: which, ..mistake })?;
                patterns.push((name, bytes));
            }
            _ => {}
        }
    }
    if let Some(at) = patterns.iter().position(|(_, pattern)| pattern.is_empty()) {
        let name = patterns.get(at).map_or("text", |(name, _)| *name);
        let which = patterns.iter().take(at).filter(|(n, _)| *n == name).count();
        let mistake =
            Mistake::new(name, "a pattern is empty").with_hint("it would match every block");
        return Err(Mistake { value_index: which, ..mistake });
    }
    let patterns: Vec<_> = patterns.into_iter().map(|(_, pattern)| pattern).collect();
    match patterns.len() {
        0 => Err(Mistake::new("text", "`match` has nothing to look for")
            .with_hint("give a text, or bytes after `hex=`")),
        1..=PATTERNS_MAX => Ok(patterns),
        _ => Err(Mistake::new("text", format!("there are more than {PATTERNS_MAX} patterns"))),
    }
}

fn parse_hex(text: &str) -> Result<Vec<u8>, Mistake> {
    let digits = text.as_bytes();
    let wrong = |at: usize, what: String| Mistake {
        range: Some(at..digits.len()),
        ..Mistake::new("hex", what)
    };
    if !digits.len().is_multiple_of(2) {
        return Err(wrong(0, format!("`{text}` has an odd number of hexadecimal digits")));
    }
    let value = |at: usize| {
        let digit = digits.get(at).and_then(|d| char::from(*d).to_digit(16));
        digit.ok_or_else(|| wrong(at, format!("`{text}` is not hexadecimal")))
    };
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| Ok((value(at)? << 4 | value(at + 1)?) as u8)).collect()
}

/// A search for the patterns of a `match` filter in the view of a block.
trait PatternSearch: Send {
    /// Returns the index of the first pattern in the list that occurs in `bytes`, or `None` if no
    /// pattern occurs.
    fn first_pattern(&self, bytes: &[u8]) -> Option<usize>;
}

/// Search for a byte at a fixed offset in the view.
struct ByteAtOffsetSearch {
    at: usize,
    byte: u8,
}

/// Search for a single pattern at any offset in the view.
struct SinglePatternSearch(Finder<'static>);

/// Search for patterns at a fixed offset in the view.
struct PatternsAtOffsetSearch {
    at: usize,
    patterns: Vec<Vec<u8>>,
    nocase: bool,
}

/// Search for several patterns at any offset in the view. The automaton `leftmost` finds the start
/// of the leftmost match, and is fast on text without matches. From this start on, the automaton
/// `all` finds every match, because an earlier pattern of the list may match further right.
struct MultiPatternSearch {
    leftmost: AhoCorasick,
    all: AhoCorasick,
}

struct MatchFilter<S>(S);

impl<S: PatternSearch> Classify for MatchFilter<S> {
    const SETS_MARKS: bool = false;

    #[inline]
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match self.0.first_pattern(block.bytes()) {
            Some(index) => Class(index as u32 + 1),
            None => cx.answer_absent(NO_PATTERN),
        }
    }
}

impl LaneFilter for ByteAtOffsetSearch {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        let others = batch.classify_byte(self.at, |byte| byte == self.byte);
        cx.common.answer_absent_lanes(NO_PATTERN, others);
    }
}

impl LaneFilter for SinglePatternSearch {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        let others = batch.classify_view(|view| self.0.find(view).is_some());
        cx.common.answer_absent_lanes(NO_PATTERN, others);
    }
}

impl PatternSearch for PatternsAtOffsetSearch {
    fn first_pattern(&self, bytes: &[u8]) -> Option<usize> {
        let bytes = bytes.get(self.at..)?;
        let matches_here = |pattern: &Vec<u8>| match bytes.get(..pattern.len()) {
            Some(here) if self.nocase => here.eq_ignore_ascii_case(pattern),
            here => here == Some(pattern.as_slice()),
        };
        self.patterns.iter().position(matches_here)
    }
}

impl MultiPatternSearch {
    fn new(patterns: &[Vec<u8>], nocase: bool) -> Result<Self, Mistake> {
        let build = |kind| {
            let mut builder = AhoCorasick::builder();
            let built = builder.match_kind(kind).ascii_case_insensitive(nocase).build(patterns);
            built.map_err(|error| Mistake::new("text", format!("too many patterns: {error}")))
        };
        Ok(Self { leftmost: build(MatchKind::LeftmostFirst)?, all: build(MatchKind::Standard)? })
    }
}

impl PatternSearch for MultiPatternSearch {
    fn first_pattern(&self, bytes: &[u8]) -> Option<usize> {
        let found = self.leftmost.find(bytes)?;
        let mut first = found.pattern().as_usize();
        let rest = bytes.get(found.start()..).unwrap_or_default();
        for other in self.all.find_overlapping_iter(rest) {
            if first == 0 {
                break;
            }
            first = first.min(other.pattern().as_usize());
        }
        Some(first)
    }
}

/// Emits the twin of `match`, which compares patterns at a fixed offset in the view. Fails without
/// a fixed offset: the verifier could find no bound on a search of the entire view.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let patterns = parse_patterns(a).map_err(|mistake| UnfitReason::new(mistake.to_string()))?;
    let too_long = || UnfitReason::new("its patterns are too many or too long");
    let Some(at) = a.number("at") else {
        return Err(UnfitReason::new("it searches the whole view: say where with `at=`"));
    };
    let at =
        u16::try_from(at).map_err(|_| UnfitReason::new("it searches too far into the view"))?;
    if patterns.iter().map(Vec::len).sum::<usize>() > TWIN_PATTERN_BYTES_MAX {
        return Err(too_long());
    }
    twin::require_inline_tag(s, on);
    let (no_pattern, nocase) = (s.absent("no pattern", out), a.flag("nocase"));
    let (place, class) = (s.advance(on.at, at), s.var(0));
    s.arm(|t, found| {
        for (pattern, number) in patterns.iter().zip(1..) {
            let tried = t.arm(|u, next| {
                let length = u16::try_from(pattern.len()).map_err(|_| too_long())?;
                if let Some(view) = on.length {
                    u.only(view, Cmp::Ge, u32::from(at) + u32::from(length), next);
                }
                let span = u.need_dyn(place, length, next)?;
                let mut rest = pattern.as_slice();
                while let Some((part, wanted, mask)) = split_load_unit(&mut rest, nocase) {
                    let from = length - rest.len() as u16 - part;
                    let here = match part {
                        4 => u.load_dyn::<u32>(span, from)?,
                        2 => u.load_dyn::<u16>(span, from)?,
                        _ => u.load_dyn::<u8>(span, from)?,
                    };
                    let here = if mask == 0 { here } else { u.or(here, mask) };
                    u.only(here, Cmp::Eq, wanted | mask, next);
                }
                u.set(class, number);
                u.leave(found);
                Ok(())
            });
            tried?;
        }
        t.leave(no_pattern);
        Ok(())
    })?;
    Ok(Answer::new(s.get(class), on))
}

/// Maximum total length in bytes of the patterns of a twin. The twin makes one comparison for every
/// four bytes of a pattern.
const TWIN_PATTERN_BYTES_MAX: usize = 2048;

/// Removes the first one, two or four bytes of a pattern, which the twin compares with a single
/// load. Returns the number of bytes, their value, and a mask. The twin ORs the mask into the value
/// and into the loaded bytes. If `nocase` is true, this converts letters to lower case; otherwise
/// the mask is 0. Returns `None` at the end of the pattern.
fn split_load_unit(rest: &mut &[u8], nocase: bool) -> Option<(u16, u32, u32)> {
    let part = [4, 2, 1].into_iter().find(|part| *part <= rest.len())?;
    let (bytes, after) = rest.split_at_checked(part)?;
    *rest = after;
    let join = |f: fn(&u8) -> u8| bytes.iter().fold(0, |word, b| word << 8 | u32::from(f(b)));
    let small = if nocase { join(|b| u8::from(b.is_ascii_alphabetic()) << 5) } else { 0 };
    Some((part as u16, join(|b| *b), small))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, Node, answer_frames};

    fn run_classes(words: &[&str], contents: &[&[u8]]) -> Vec<u32> {
        let frames: Vec<Frame> = contents.iter().map(|bytes| Frame::new(1, bytes)).collect();
        answer_frames(&MATCH, words, &frames).iter().map(|answer| answer.class.0).collect()
    }

    #[test]
    fn first_pattern_in_the_list_decides_the_class() {
        assert_eq!(run_classes(&["bc", "ab"], &[b"xabcx", b"xab", b"bx", b""]), [1, 2, 0, 0]);
        assert_eq!(run_classes(&["GET "], &[b"..GET /", b"PUT /"]), [1, 0]);
    }

    #[test]
    fn hexadecimal_patterns_match_at_their_offset() {
        assert_eq!(run_classes(&["hex=00ff", "a"], &[&[1, 0, 255], b"ba", &[0]]), [1, 2, 0]);
        assert_eq!(run_classes(&["b", "a", "at=1"], &[b"ab", b"ba", b"b", b"bb"]), [1, 2, 0, 1]);
        assert_eq!(run_classes(&["get", "nocase=yes"], &[b"GeT", b"gat"]), [1, 0]);
        assert_eq!(run_classes(&["get", "nocase=yes", "at=0"], &[b"GeT", b" get"]), [1, 0]);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for words in [&[][..], &[""], &["hex=0"], &["hex=0g"], &["hex="]] {
            assert!(Node::new(&MATCH, words).is_err(), "{words:?}");
        }
        let wrong = Node::new(&MATCH, &["hex=00fg"]).unwrap_err();
        assert_eq!((wrong.range, wrong.value_index), (Some(3..4), 0));
        let wrong = Node::new(&MATCH, &["hex=00", "a", "hex=0g"]).unwrap_err();
        assert_eq!((wrong.range, wrong.value_index), (Some(1..2), 1));
        let wrong = Node::new(&MATCH, &["hex=00", "a", ""]).unwrap_err();
        assert_eq!((wrong.parameter, wrong.value_index), (Some("text"), 1));
    }

    #[test]
    fn h13_one_pass_agrees_with_one_search_per_pattern() {
        let patterns = ["aa", "b", "ab", "bab", "aab"];
        for number in 0..3u32.pow(7) {
            let digit = |place: u32| b"abc"[(number / 3u32.pow(place) % 3) as usize];
            let text: Vec<u8> = (0..7).map(digit).collect();
            let here =
                |pattern: &&str| text.windows(pattern.len()).any(|w| w == pattern.as_bytes());
            let wanted = patterns.iter().position(here).map_or(0, |index| index as u32 + 1);
            assert_eq!(run_classes(&patterns, &[&text]), [wanted], "{text:?}");
        }
    }
}
