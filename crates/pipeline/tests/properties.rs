//! Tests of properties of all trees and texts: parsing the printed form of a tree returns the tree,
//! and the parser never panics.

mod common;

use common::{Random, random_writer, read_cases, request_text, trees};
use pipeline::language::fuzz::check_language;
use pipeline::language::limits::{
    DIAGNOSTICS_MAX, FILTERS_MAX, LABEL_CLASSES_MAX, MARKS_MAX, NESTING_DEPTH_MAX, TEXT_MAX,
};
use pipeline::language::parse;

#[test]
fn random_trees_survive_printing_and_parsing() {
    let mut random = Random::from_environment();
    for _ in 0..100_000 {
        let tree = trees::random_request(&mut random);
        let canonical = tree.to_string();
        let (again, mistakes) = parse(&canonical);
        assert!(mistakes.is_empty(), "{canonical}\n{mistakes:?}");
        assert_eq!(trees::without_spans(again), tree, "{canonical}");

        let varied = random_writer::write_random_text(&tree, &mut random);
        let (again, mistakes) = parse(&varied);
        assert!(mistakes.is_empty(), "{varied}\n{mistakes:?}");
        assert_eq!(again.to_string(), canonical, "{varied}");
        assert_eq!(trees::without_spans(again), tree, "{varied}");
    }
}

#[test]
fn canonical_text_has_no_redundant_parentheses() {
    let mut random = Random::from_environment();
    for _ in 0..5_000 {
        let tree = trees::random_request(&mut random);
        let canonical = tree.to_string();
        for (open, close) in parenthesis_pairs(&canonical) {
            let mut fewer = canonical.clone();
            fewer.replace_range(close..=close, " ");
            fewer.replace_range(open..=open, " ");
            let (other, mistakes) = parse(&fewer);
            let same = mistakes.is_empty() && trees::without_spans(other) == tree;
            assert!(!same, "{canonical}\n{fewer}");
        }
    }
}

/// Returns the positions of matching parentheses outside quotes.
fn parenthesis_pairs(text: &str) -> Vec<(usize, usize)> {
    let (mut open, mut found, mut quoted, mut escaped) = (Vec::new(), Vec::new(), false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'(' if !quoted => open.push(at),
            b')' if !quoted => found.push((open.pop().expect("balanced"), at)),
            _ => {}
        }
    }
    found
}

#[test]
fn parser_never_panics_on_random_or_damaged_text() {
    let mut random = Random::from_environment();
    let seeds: Vec<String> = read_cases(include_str!("language.cases"))
        .iter()
        .map(|(line, _)| request_text(line))
        .collect();
    for _ in 0..6_000 {
        let noise: Vec<u8> = (0..random.next_below(120)).map(|_| random.next_u64() as u8).collect();
        check_language(&noise);
        check_language(&random_tokens(&mut random));
        let line = &seeds[random.next_below(seeds.len())];
        check_language(&damage_line(line.as_bytes().to_vec(), &seeds, &mut random));
    }
}

/// Returns a text of random tokens.
fn random_tokens(random: &mut Random) -> Vec<u8> {
    const TOKENS: &[&str] = &[
        "|", "+", "++", "+*", "!", "(", ")", ";", " ", " ", "\n", "#", "a", "tcp", "|22", "|!",
        "|ssh", ":", ",", "all", "0x", "--name=", "--", "@", "=", "k=", "\"", "'", "\\", "\"x\"",
        "é", "\u{a0}",
    ];
    let mut out = Vec::new();
    for _ in 0..random.next_below(40) {
        out.extend_from_slice(random.pick(TOKENS).as_bytes());
    }
    out
}

/// Returns a line in which a few bytes are changed, removed, repeated or copied from another line.
fn damage_line(mut line: Vec<u8>, seeds: &[String], random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.next_below(4) {
        let at = random.next_below(line.len().max(1));
        let end = (at + random.next_below(5)).min(line.len());
        match random.next_below(4) {
            0 if !line.is_empty() => line[at] ^= 1 << random.next_below(8),
            1 => drop(line.drain(at.min(end)..end)),
            2 => {
                let again = line[at.min(end)..end].to_vec();
                line.splice(at.min(end)..at.min(end), again);
            }
            _ => {
                let other = &seeds[random.next_below(seeds.len())].as_bytes();
                let from = random.next_below(other.len().max(1)).min(other.len());
                line.splice(at.min(end)..end, other[from..].iter().copied());
            }
        }
    }
    line
}

#[test]
fn text_of_maximum_length_parses_in_linear_time() {
    for unit in [
        "(",
        ")",
        "!",
        "|",
        "+",
        "++",
        "+*",
        ";",
        "\"",
        "'",
        "a ",
        "a|",
        "|a ",
        "|22 ",
        "|a,",
        ",",
        ":",
        "(|2 ",
        "(a ",
        "!(",
        "a(",
        "(!",
        "@",
        "a@b ",
        "--x ",
        "--x=\"\" ",
        "a --name=X |",
        "#",
        "#\n",
        "\\",
        "\"\\",
        "=",
        "k= ",
        "é",
        "\u{a0}",
        "\n",
        "a+",
        "(a)",
        "()",
        "\"\"",
        "a |b|",
        "|all ",
        "a++b.c ",
    ] {
        let text = unit.repeat(TEXT_MAX / unit.len());
        check_language(text.as_bytes());
        check_language(format!("a | {text}").as_bytes());
        check_language(format!("{}a", text.get(..TEXT_MAX - 8).unwrap_or_default()).as_bytes());
    }
}

#[test]
fn text_over_each_limit_fails_with_its_own_message() {
    let mistake_start = |text: &str, what: &str| {
        let (_, mistakes) = parse(text);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].what.contains(what), "{:?}", mistakes[0]);
        mistakes[0].span.start
    };
    let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&nested(NESTING_DEPTH_MAX)).1.is_empty());
    assert_eq!(mistake_start(&nested(NESTING_DEPTH_MAX + 1), "deeper than 64"), NESTING_DEPTH_MAX);
    assert!(parse(&format!("{}a", "!".repeat(NESTING_DEPTH_MAX))).1.is_empty());
    assert_eq!(
        mistake_start(&format!("{}a", "!".repeat(NESTING_DEPTH_MAX + 1)), "deeper than 64"),
        NESTING_DEPTH_MAX
    );

    let chain = |filters: usize| vec!["a"; filters].join("|");
    assert!(parse(&chain(FILTERS_MAX)).1.is_empty());
    assert_eq!(mistake_start(&chain(FILTERS_MAX + 5), "more than 1000 filters"), 2 * FILTERS_MAX);

    let named = |names: usize| {
        (0..names).map(|n| format!("a --name=X{n} | a --name=X{n}")).collect::<Vec<_>>().join("|")
    };
    assert!(parse(&named(MARKS_MAX)).1.is_empty());
    mistake_start(&named(MARKS_MAX + 3), "more than 64 names");

    let listed = |classes: usize| format!("a |{} b", vec!["7"; classes].join(","));
    assert!(parse(&listed(LABEL_CLASSES_MAX)).1.is_empty());
    assert_eq!(
        mistake_start(&listed(LABEL_CLASSES_MAX + 9), "more than 256 classes"),
        3 + 2 * LABEL_CLASSES_MAX
    );

    let long = |bytes: usize| format!("a{}", " ".repeat(bytes - 1));
    assert!(parse(&long(TEXT_MAX)).1.is_empty());
    assert_eq!(mistake_start(&long(TEXT_MAX + 1), "65537 bytes"), TEXT_MAX);

    let (_, mistakes) = parse(&"a | | ".repeat(300));
    assert_eq!(mistakes.len(), DIAGNOSTICS_MAX + 1);
}
