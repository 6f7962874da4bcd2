//! Tests of `regex` against the `regex` crate, on texts segmented at every offset.

use super::*;
use crate::testing::{Answer, Fragment, Frame, Node, answer_frames, run_fragments};
use ::regex::bytes::Regex as Judge;
use std::collections::HashMap;
use testkit::Random;

fn make_node(words: &[&str]) -> Node {
    Node::new(&REGEX, words).unwrap_or_else(|mistake| panic!("{words:?}: {mistake}"))
}

fn answer_classes(answers: &[Answer]) -> Vec<u32> {
    answers.iter().map(|answer| answer.class.0).collect()
}

fn frame_classes(words: &[&str], contents: &[&[u8]]) -> Vec<u32> {
    let frames: Vec<Frame> = contents.iter().map(|bytes| Frame::new(1, bytes)).collect();
    answer_classes(&answer_frames(&REGEX, words, &frames))
}

fn fragment_classes(words: &[&str], fragments: &[Fragment]) -> Vec<u32> {
    answer_classes(&run_fragments(&mut make_node(words), fragments))
}

#[test]
fn block_without_session_is_searched_alone() {
    assert_eq!(
        frame_classes(&["b+c", "^a"], &[b"abbc", b"abb", b"c", b"xa", b""]),
        [1, 2, 0, 0, 0]
    );
    assert_eq!(
        frame_classes(&["(?i)get /", r"\xff\x00"], &[b"GeT /", b"\xff\0", b"\xc3\xbf"]),
        [1, 2, 0]
    );
    assert_eq!(frame_classes(&["a.b", "(?s)a.b"], &[b"a\xffb", b"a\nb"]), [1, 2]);
    assert_eq!(
        frame_classes(&[r"\bcat\b", "cat$"], &[b"a cat", b"cats cat", b"bobcat"]),
        [1, 1, 2]
    );
}

#[test]
fn match_classifies_the_block_in_which_it_ends() {
    let text = b"..needle..";
    for at in 1..text.len() {
        let wanted = if at >= 8 { [1, 0] } else { [0, 1] };
        assert_eq!(
            fragment_classes(&["needle"], &Fragment::split_at(5, text, &[at])),
            wanted,
            "cut at {at}"
        );
    }
    let each: Vec<usize> = (1..text.len()).collect();
    let bytes = fragment_classes(&["needle"], &Fragment::split_at(5, text, &each));
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    let kept = fragment_classes(&["needle", "keep=yes"], &Fragment::split_at(5, text, &each));
    assert_eq!(kept, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
}

#[test]
fn directions_and_sessions_are_separate_texts() {
    let ne = |session| Fragment::new(session, b"ne");
    let edle = |session| Fragment::new(session, b"edle");
    let back = |piece: Fragment| piece.with_flags(BlockFlags::BACKWARD);
    let found = fragment_classes(
        &["needle", "keep=yes"],
        &[ne(1), ne(2), back(edle(1)), edle(1), back(ne(1)), edle(3), edle(2), back(edle(2))],
    );
    assert_eq!(found, [0, 0, 0, 1, 0, 0, 1, 0]);
}

#[test]
fn messages_and_holes_restart_the_search() {
    let (ne, edle) = (Fragment::new(1, b"ne"), Fragment::new(1, b"edle"));
    let first = |piece: &Fragment| piece.clone().with_flags(BlockFlags::FIRST);
    let last = |piece: &Fragment| piece.clone().with_flags(BlockFlags::LAST);
    let found = |pieces: &[Fragment]| fragment_classes(&["needle|^edle"], pieces);
    assert_eq!(found(&[ne.clone(), edle.clone()]), [0, 1]);
    assert_eq!(found(&[last(&ne), edle.clone()]), [0, 1], "a text begins behind the last piece");
    assert_eq!(found(&[first(&ne), first(&edle)]), [0, 1], "`^edle`");
    assert_eq!(found(&[ne.clone(), Fragment::hole(1, 9), edle.clone()]), [0, 0, 0]);
    assert_eq!(found(&[Fragment::hole(1, 9), edle.clone()]), [0, 0], "not where it begins");
    let empty = Fragment::new(1, b"");
    assert_eq!(found(&[ne.clone(), empty.clone(), edle.clone(), empty]), [0, 0, 1, 0]);
    assert_eq!(
        fragment_classes(&["needle", "keep=yes"], &[first(&ne), edle, first(&ne)]),
        [0, 1, 0]
    );
}

#[test]
fn lookahead_match_waits_for_the_next_byte() {
    let end = Fragment::new(1, b"").with_flags(BlockFlags::SESSION_END);
    let cat = Fragment::new(1, b"a cat");
    let with = |text: &[u8]| Fragment::new(1, text);
    assert_eq!(fragment_classes(&[r"cat\b"], &[cat.clone(), with(b"s")]), [0, 0]);
    assert_eq!(fragment_classes(&[r"cat\b"], &[cat.clone(), with(b" s")]), [0, 1]);
    assert_eq!(fragment_classes(&[r"cat$"], &[cat.clone(), end.clone()]), [0, 1]);
    assert_eq!(
        fragment_classes(&[r"cat$"], &[cat.clone().with_flags(BlockFlags::SESSION_END)]),
        [1]
    );
    assert_eq!(fragment_classes(&[r"\bcat"], &[cat, end]), [1, 0], "known at once, and said once");
}

#[test]
fn ended_and_surplus_sessions_are_dropped() {
    let mut filter = make_node(&["ab", "sessions=3"]);
    let mut keys = |fragments: &[Fragment]| {
        run_fragments(&mut filter, fragments);
        filter.filter.state().map(|state| state.session_keys())
    };
    let a = |session| Fragment::new(session, b"a");
    assert_eq!(
        keys(&[a(1), a(2), a(2).with_flags(BlockFlags::BACKWARD), a(3)]),
        Some(vec![1, 2, 3])
    );
    assert_eq!(
        keys(&[a(1).with_flags(BlockFlags::SESSION_END), a(2).with_flags(BlockFlags::SESSION_END)]),
        Some(vec![2, 3])
    );
    assert_eq!(
        keys(&[a(2).with_flags(BlockFlags::LAST).with_flags(BlockFlags::BACKWARD)]),
        Some(vec![3])
    );
    let many: Vec<Fragment> = (10..60).map(a).collect();
    assert_eq!(keys(&many).map(|keys| keys.len()), Some(3));
    assert_eq!(
        keys(&[a(7).with_flags(BlockFlags::FIRST).with_flags(BlockFlags::SESSION_END)])
            .map(|keys| keys.len()),
        Some(3)
    );
    assert_eq!(filter.counts.counters, [48]);
}

#[test]
fn anchored_pattern_may_match_empty_text() {
    let texts: [&[u8]; 6] = [b"", b"a", b"\n", b"a\n\nb", b" ", b"no more than twenty!!"];
    let matches = |pattern: &str| {
        let mut node = make_node(&[pattern]);
        let pieces = texts.map(|text| Fragment::new(0, text));
        let classes = answer_classes(&run_fragments(&mut node, &pieces));
        classes.iter().map(|class| if *class == 1 { 'x' } else { '.' }).collect::<String>()
    };
    assert_eq!(matches("^$"), "x.....");
    assert_eq!(matches("^.{0,20}$"), "xx..x.");
    assert_eq!(matches("(?m)^$"), "x.xx..");
    assert_eq!(matches(r"(?-u:\b)"), ".x.x.x");
    assert_eq!(matches(r"^ *$"), "x...x.");
    let mut node = make_node(&["^$"]);
    let pieces = [Fragment::description(0), Fragment::hole(0, 9)];
    assert_eq!(answer_classes(&run_fragments(&mut node, &pieces)), [0, 0]);
}

#[test]
fn state_of_other_patterns_is_discarded() {
    let mut one = make_node(&["needle"]);
    run_fragments(&mut one, &[Fragment::new(1, b"need")]);
    let saved = one.take_sessions();
    let mut same = make_node(&["needle"]);
    same.restore_sessions(saved.clone()).unwrap();
    assert_eq!(answer_classes(&run_fragments(&mut same, &[Fragment::new(1, b"le")])), [1]);
    let mut other = make_node(&["n.*|xle$"]);
    other.restore_sessions(saved).unwrap();
    assert_eq!(answer_classes(&run_fragments(&mut other, &[Fragment::new(1, b"le")])), [0]);
}

#[test]
fn errors_have_a_position_and_a_hint() {
    let wrong = |words: &[&str]| Node::new(&REGEX, words).expect_err("a mistake");
    let unclosed = wrong(&["fine", "a(b"]);
    assert_eq!((unclosed.value_index, unclosed.range), (1, Some(1..2)));
    assert_eq!(unclosed.message, "unclosed group");
    for empty in ["", "a*", "^", "$", "(|a)", "x?y?", "^a*", "a*$", "(?m)^", r"^|\b", "(?s)^.*$"] {
        let mistake = wrong(&["a", empty]);
        assert!(
            mistake.value_index == 1 && mistake.message.contains("may be empty"),
            "{empty}: {mistake}"
        );
    }
    assert!(wrong(&["[a&&b]"]).message.contains("never matches"));
    assert!(wrong(&[r"(?u:\b)a"]).hint.is_some());
    assert!(wrong(&[r"(a)\1"]).message.contains("backreferences"));
    assert!(wrong(&["["]).range.is_some());
    assert!(Node::new(&REGEX, &[]).is_err());
    let deep = "(".repeat(5000) + "a" + &")".repeat(5000);
    assert!(wrong(&[&deep]).message.contains("nest"), "{}", wrong(&[&deep]).message);
    for big in ["a.{60}b", "(?:x{1000}){1000}", "[^b]{0,20}a.{20}"] {
        let mistake = wrong(&["a", big, "size=16k"]);
        assert_eq!((mistake.parameter, mistake.value_index), (Some("pattern"), 1), "{big}");
        assert!(mistake.message.contains("larger than 16384 bytes"), "{mistake}");
        assert!(mistake.hint.is_some_and(|hint| hint.contains("`size=`")));
    }
    let together: Vec<String> = (0..200).map(|n| format!("pattern{n}[a-f]{{9}}")).collect();
    let mut words: Vec<&str> = together.iter().map(String::as_str).collect();
    words.push("size=16k");
    assert_eq!(wrong(&words).parameter, None, "no single one is too big");
}

#[test]
fn patterns_need_not_be_valid_utf8() {
    let mut arguments = Arguments::from_parameter_defaults(REGEX.parameters);
    arguments.add("pattern", Value::Bytes(b"[\xfe\xff]x\n".to_vec()));
    let mut node = make_node(&["a"]);
    node.filter = (REGEX.constructor.unwrap())(&arguments).unwrap();
    let found =
        run_fragments(&mut node, &[Fragment::new(0, b"\xffx\n"), Fragment::new(0, b"\xc3\xbfx")]);
    assert_eq!(answer_classes(&found), [1, 0]);
}

/// Checks that the prefilter does not skip a literal that spans two blocks.
#[test]
fn literals_are_found_across_every_block_boundary() {
    for patterns in [&["needle", "haystack"][..], &["(?i)needle"], &["nee|nex|haystack.x"]] {
        let text = b"xxxxxxxxxxxxxxxxxxxneedlexxxxxxxxxxxxxxxhaystackxxxxxxxxxxxxneedle";
        let mut filter = make_node(patterns);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let cut = Fragment::split_at(1, text, &[first, second]);
                let found = answer_classes(&run_fragments(&mut filter, &cut));
                let least = found.iter().filter(|class| **class > 0).min();
                assert_eq!(least, Some(&1), "{patterns:?} cut at {first} and {second}");
            }
        }
    }
}

/// Computes the expected matches with the `regex` crate, which serves as the reference. The map
/// caches compiled expressions. Its key is a pattern, and the number of bytes between the end of
/// the match and the end of the text.
#[derive(Default)]
struct ExpectedMatches(HashMap<(String, usize), Judge>);

/// Sample bytes: one for each kind of byte that the test patterns distinguish, and one for all
/// other bytes.
const SAMPLE_BYTES: &[u8] = b"abc \n_\r\xff\0";

impl ExpectedMatches {
    /// Returns true if a match of `pattern` ends `behind` bytes before the end of `text`.
    fn has_match_end(&mut self, pattern: &str, text: &[u8], behind: usize) -> bool {
        let judge = self.0.entry((pattern.to_owned(), behind)).or_insert_with(|| {
            let whole = format!("(?s-u:\\A.*?)(?:{pattern})(?s-u:.{{{behind}}}\\z)");
            let mut judge = ::regex::bytes::RegexBuilder::new(&whole);
            judge.unicode(false).build().unwrap()
        });
        judge.is_match(text)
    }

    /// Returns true if a match of `pattern` ends at offset `at`, no matter how the text continues
    /// after this offset.
    fn is_match_certain(&mut self, pattern: &str, text: &[u8], at: usize) -> bool {
        let before = &text[..at];
        self.has_match_end(pattern, before, 0)
            && SAMPLE_BYTES
                .iter()
                .all(|byte| self.has_match_end(pattern, &[before, &[*byte]].concat(), 1))
    }

    /// Returns the expected class of each piece into which `text` is split. `ends` are the end
    /// offsets of the pieces.
    fn expected_classes(&mut self, patterns: &[&str], text: &[u8], ends: &[usize]) -> Vec<u32> {
        let mut classes = vec![0; ends.len()];
        for (number, pattern) in patterns.iter().enumerate().rev() {
            for at in 1..=text.len() {
                if !self.has_match_end(pattern, text, text.len() - at) {
                    continue;
                }
                // A match belongs to the piece that contains its last byte. If the match depends on
                // the next byte, it belongs to the piece that contains the next byte or, without a
                // next byte, to the last piece.
                let piece = ends.iter().position(|end| at <= *end).unwrap();
                let waits = at == ends[piece] && !self.is_match_certain(pattern, text, at);
                let next = ends.iter().position(|end| at < *end).unwrap_or(ends.len() - 1);
                classes[if waits { next } else { piece }] = number as u32 + 1;
            }
        }
        classes
    }
}

const PATTERNS: &[&str] = &[
    "ab",
    "a+b",
    "(?:ab|ba)c",
    r"\bab\b",
    "(?m)^bc",
    r"\Bca",
    r"(?m)^a\b",
    r"\nab",
    r"a\n\bb",
    "[^a]b",
    "a.c",
    "(?s)a.c",
    "a(?:bc)*",
    "^ab",
    "b$",
    r"\bab",
    r"ab\b",
    r"a\B",
    r"\b_",
    "(?m)^b",
    "(?m)c$",
    r"(?-u:\xff)a?",
    "a{2,4}",
    "(?:a|b|c){3}",
    "c.*a",
    "(?i)B[A]",
    r"a\b|ab",
    r"(?m)a$\nb",
    r"b\b.?",
    "abcab",
    r"\n",
    r"(?mR)a$",
];

/// Checks that `regex`, on randomly segmented texts, gives the same answers as the `regex` crate on
/// the whole texts. Sessions and directions are interleaved, the state moves to another instance,
/// and the batch size varies.
#[test]
fn random_segmentation_agrees_with_the_whole_text() {
    let mut random = Random::with_replayable_seed();
    let mut expected = ExpectedMatches::default();
    for _ in 0..300 {
        let patterns: Vec<&str> =
            (0..random.within(1..4)).map(|_| *random.pick(PATTERNS)).collect();
        let keep = random.one_in(3);
        let words: Vec<&str> = patterns.iter().copied().chain(keep.then_some("keep=yes")).collect();
        let mut queues: Vec<Vec<(Fragment, u32)>> = Vec::new();
        for text in 0..random.within(1..5) {
            let length = random.within(0..14);
            let kinds = if random.one_in(2) { &SAMPLE_BYTES[..3] } else { SAMPLE_BYTES };
            let bytes: Vec<u8> = (0..length).map(|_| *random.pick(kinds)).collect();
            let mut cuts: Vec<usize> =
                (0..random.within(0..6)).map(|_| random.within(0..bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let way = if text % 2 == 0 { BlockFlags::NONE } else { BlockFlags::BACKWARD };
            let fragments = Fragment::split_at(1 + text as u32 / 2, &bytes, &cuts);
            cuts.push(bytes.len());
            let mut wanted = expected.expected_classes(&patterns, &bytes, &cuts);
            if keep {
                for at in 1..wanted.len() {
                    let best = [wanted[at - 1], wanted[at]].into_iter().filter(|class| *class > 0);
                    wanted[at] = best.min().unwrap_or(0);
                }
            }
            let fragments = fragments.into_iter().map(|piece| piece.with_flags(way));
            queues.push(fragments.zip(wanted).collect::<Vec<_>>().into_iter().rev().collect());
        }
        let mut filter = make_node(&words);
        while !queues.is_empty() {
            let batch: Vec<(Fragment, u32)> = (0..random.within(1..9))
                .filter_map(|_| {
                    let queue = random.below(queues.len().max(1) as u64) as usize;
                    let piece = queues.get_mut(queue)?.pop();
                    queues.retain(|queue| !queue.is_empty());
                    piece
                })
                .collect();
            let (fragments, wanted): (Vec<Fragment>, Vec<u32>) = batch.into_iter().unzip();
            let found = answer_classes(&run_fragments(&mut filter, &fragments));
            assert_eq!(found, wanted, "{words:?} over {fragments:?}");
            if random.one_in(3) {
                let saved = filter.take_sessions();
                filter = make_node(&words);
                filter.restore_sessions(saved).unwrap();
            }
        }
        assert_eq!(filter.filter.state().map(|state| state.session_keys()), Some(vec![]));
    }
}

#[test]
fn noise_and_forged_state_never_panic() {
    let mut random = Random::with_replayable_seed();
    let mut filter = make_node(&["a.*b$", r"\b[^c]{3}\b", "(?i)needle", "keep=yes", "sessions=5"]);
    for _ in 0..2000 {
        let mut piece = Fragment::new(random.below(9) as u32, &random.bytes(40));
        piece.flags = BlockFlags(random.next_u64() as u16);
        if random.one_in(9) {
            piece = Fragment { missing: random.next_u64() as u32 % 5000, ..piece };
        }
        run_fragments(&mut filter, &[piece]);
    }
    // A well-formed search state that belongs to no automaton.
    let mut saved = filter.take_sessions();
    for moved in &mut saved {
        moved.bytes = random.bytes(moved.bytes.len());
    }
    filter.restore_sessions(saved).unwrap();
    for session in 1..9 {
        run_fragments(&mut filter, &[Fragment::new(session, b"aXb needle")]);
    }
}
