//! Tests of edits: each applies an edit to a request and checks the resulting request.

use super::*;
use crate::language::Span;
use crate::registry::RegistryList;
use filter::catalog;
use tree::parse_tree;
use words::EDIT_USAGE;

/// A registry of the filters in the catalog.
const CATALOG: RegistryList<'_> =
    RegistryList { entries: catalog::FILTERS, endpoints: &[], spaces: &[] };

fn apply_words(text: &str, words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    Edit::parse(&words).and_then(|edit| edit.apply(text, &CATALOG)).map_or_else(|e| e.0, |e| e.text)
}

#[test]
fn v3_edit_printed_as_words_parses_to_the_same_edit() {
    let line = "rx | dport |22 ssh |80 (count + http |1 print)";
    let cases = [
        ("insert inspect before dport", "rx | inspect | dport |22 ssh |80 (count + http |1 print)"),
        ("insert inspect after dport", "rx | dport | inspect |22 ssh |80 (count + http |1 print)"),
        ("insert pcap x after count", "rx | dport |22 ssh |80 ((count | pcap x) + http |1 print)"),
        ("insert a | b before ssh", "rx | dport |22 a | b | ssh |80 (count + http |1 print)"),
        ("insert count at rx", "rx | (count + (dport |22 ssh |80 (count + http |1 print)))"),
        (
            "insert count at dport",
            "rx | dport |all (count + |22 (ssh |80 (count + http |1 print)))",
        ),
        ("remove dport", "rx | ssh |80 (count + http |1 print)"),
        ("remove count", "rx | dport |22 ssh |80 http |1 print"),
        ("remove print", "rx | dport |22 ssh |80 (count + http)"),
        ("remove http", "rx | dport |22 ssh |80 count |1 print"),
        ("replace ssh with tcp held=1M", "rx | dport |22 tcp held=1M |80 (count + http |1 print)"),
        ("move http to thread1", "rx | dport |22 ssh |80 (count + http@thread1 |1 print)"),
        ("move dport kernel", "rx | dport@kernel |22 ssh |80 (count + http |1 print)"),
        ("move dport process", "rx | dport@thread0 |22 ssh |80 (count + http |1 print)"),
        ("upgrade http", "rx | dport |22 ssh |80 (count + http |1 print)"),
        ("move http sandbox", "rx | dport |22 ssh |80 (count + http untrusted=yes |1 print)"),
    ];
    for (words, expected) in cases {
        let normal = |text: &str| parse_tree(text, "").map(|tree| tree.to_string()).expect(text);
        assert_eq!(apply_words(line, words), normal(expected), "{words}");
        let read = Edit::parse(&words.split(' ').collect::<Vec<_>>()).expect(words);
        assert_eq!(Edit::parse(&read.to_words()), Ok(read), "{words}: what is told is read");
    }
}

#[test]
fn v3_set_argument_replaces_the_value_in_place() {
    for (line, words, expected) in [
        ("rx | sample 3 | count", "arg sample every=5", "rx | sample 5 | count"),
        ("rx | sample every=3 | count", "arg sample every=5", "rx | sample every=5 | count"),
        ("rx | ratelimit per=2s 9", "arg ratelimit rate=5", "rx | ratelimit per=2s 5"),
        ("rx | ratelimit 9", "arg ratelimit burst=2 rate=5", "rx | ratelimit 5 burst=2"),
        ("rx | regex keep a b", "arg regex keep=no", "rx | regex keep=no a b"),
        ("rx | regex a b", "arg regex keep=yes", "rx | regex a b keep=yes"),
        ("rx | tcp@thread1 | tcp", "arg tcp:1 gap=2s", "rx | tcp@thread1 gap=2s | tcp"),
    ] {
        assert_eq!(apply_words(line, words), expected, "{words}");
        let words: Vec<&str> = words.split(' ').collect();
        let read = Edit::parse(&words).expect("an edit");
        assert_eq!(Edit::parse(&read.to_words()), Ok(read.clone()));
        let edited = read.apply(line, &CATALOG).expect("an edit");
        assert!(edited.filters.iter().all(|(_, old)| old.is_some()), "the same filters");
    }
    let line = "rx | sample 3 | count | tcp --name=a";
    for (words, why) in [
        ("arg sample every=5 x", "write `arg NODE NAME=VALUE`"),
        (
            "arg count x=1",
            "`count` has no parameter `x`, and none of its arguments can be set: replace it",
        ),
        ("arg sample", EDIT_USAGE),
    ] {
        assert_eq!(apply_words(line, words), why, "{words}");
    }
    let whole =
        Edit::ReplaceText("rx | sample 4 | sample 3 | tcp".to_owned()).apply(line, &CATALOG);
    let old: Vec<bool> =
        whole.expect("whole").filters.iter().map(|(_, old)| old.is_some()).collect();
    assert_eq!(old, [true, false, true, true], "equal filters match before others of their name");
}

#[test]
fn v18_filter_moved_to_a_sandbox_keeps_its_identity() {
    let line = "rx | tcp@thread1 held=1M |http http | print";
    let apart = apply_words(line, "move tcp to sandbox");
    assert_eq!(apart, "rx | tcp held=1M untrusted=yes |http http | print");
    assert_eq!(apply_words(&apart, "move tcp sandbox"), apart, "once is enough");
    let home = apply_words(&apart, "move tcp thread1");
    assert_eq!(home, line);
    assert_eq!(apply_words(&apart, "move tcp process"), line.replace("thread1", "thread0"));
    for (from, to) in [(line, &apart), (&apart, &home)] {
        let edited = Edit::ReplaceText(to.clone()).apply(from, &CATALOG).expect("whole");
        assert!(edited.filters.iter().all(|(_, old)| old.is_some()), "{from}: {edited:?}");
    }
}

#[test]
fn v3_impossible_edit_fails_with_a_reason() {
    let line = "rx | count | count ; generate | a --name=X + b --name=X";
    for (words, expected) in [
        ("remove tcp", "the request has no `tcp`"),
        ("remove count", "the request has 2 of `count`: write `count:1` to `:2`"),
        ("remove count:3", "the request has 2 of `count`: write `count:1` to `:2`"),
        ("insert count at count:2", "nothing follows it in its branch: insert `after` it"),
        ("remove", EDIT_USAGE),
        ("insert count near rx", EDIT_USAGE),
    ] {
        assert_eq!(apply_words(line, words), expected, "{words}");
    }
    assert_eq!(apply_words("count", "remove count"), "without `count` nothing is left");
    let broken = apply_words(line, "insert ( before rx");
    assert!(broken.starts_with("`(`: "), "{broken}");
}

#[test]
fn v3_unchanged_filters_keep_their_identity() {
    let line = "rx | count | count | print";
    let words = ["remove", "count:1"];
    let edited = Edit::parse(&words).and_then(|edit| edit.apply(line, &CATALOG)).expect("an edit");
    let place = |word: &str, n: usize| {
        let at = line.match_indices(word).nth(n).expect("it is there").0;
        Some(Span::new(at, at + word.len()))
    };
    let old: Vec<_> = edited.filters.iter().map(|(_, old)| *old).collect();
    assert_eq!(old, [place("rx", 0), place("count", 1), place("print", 0)]);
    for (new, _) in &edited.filters {
        assert!(["rx", "count", "print"].contains(&&edited.text[new.start..new.end]));
    }
    let whole = Edit::ReplaceText("rx | count | tcp | print".to_owned())
        .apply(line, &CATALOG)
        .expect("whole");
    let old: Vec<_> = whole.filters.iter().map(|(_, old)| *old).collect();
    assert_eq!(old, [place("rx", 0), place("count", 0), None, place("print", 0)]);
}

#[test]
fn o6_edit_of_a_shared_filter_is_refused_with_the_remedy() {
    let edit = |words: &[&str], text: &str| {
        Edit::parse(words).unwrap().apply(text, &CATALOG).unwrap_err().0
    };
    let reader = r#"shared "rx lo | tcp | http" |get count"#;
    let why = edit(&["arg", "tcp", "gap=2s"], reader);
    assert_eq!(
        why,
        "the request has no `tcp`: it runs in the shared prefix `rx lo | tcp | http`, for every \
         request that begins so; start this one with `--prefix=private` to change it for this one \
         alone"
    );
    assert!(edit(&["remove", "http"], reader).contains("shared prefix"));
    assert_eq!(edit(&["remove", "udp"], reader), "the request has no `udp`");
    let server = r#"rx lo | tcp | share "rx lo | tcp" last=yes"#;
    for words in [&["arg", "tcp", "gap=2s"][..], &["insert", "count", "after", "tcp"]] {
        let why = edit(words, server);
        assert!(why.starts_with("it runs `rx lo | tcp` for other requests"), "{why}");
        assert!(why.ends_with("start the request to be changed with `--prefix=private`"), "{why}");
    }
}

#[test]
fn v3_edits_of_one_change_apply_in_order_or_not_at_all() {
    let line = "rx | dport | (|22 (ssh | count) + |80 (http |1 print))";
    let both = "move count below http/1 , remove ssh leaf";
    assert_eq!(apply_words(line, both), "rx | dport |80 http | (|1 print + |1 count)");
    let words: Vec<&str> = both.split(' ').collect();
    let read = Edit::parse(&words).expect("edits");
    assert_eq!(Edit::parse(&read.to_words()), Ok(read.clone()), "what is told is read");
    let edited = read.apply(line, &CATALOG).expect("edits");
    for (new, old) in &edited.filters {
        let old = old.expect("no filter is new");
        assert_eq!(edited.text[new.start..new.end], line[old.start..old.end]);
    }
    let wrong = apply_words(line, "remove count leaf , remove http leaf");
    assert!(wrong.starts_with("`remove http leaf`: `http` is not empty"), "{wrong}");
    for words in [", remove count", "remove count ,", "remove count , , remove ssh"] {
        assert_eq!(apply_words(line, words), EDIT_USAGE, "{words}");
    }
}

#[test]
fn v3_readers_of_a_class_move_behind_a_new_filter() {
    let line = "rx | tcp | http | (|get (count + inspect) + |post print) ; tap | udp | discard";
    assert_eq!(
        apply_words(line, "move http/get below udp"),
        "rx | tcp | http |post print ; tap | udp | http |get count + inspect"
    );
    assert_eq!(
        apply_words(line, "remove http/get all"),
        "rx | tcp | http |post print ; tap | udp | discard"
    );
    let refused = [
        ("move http/head below udp", "nothing is below `http/head`"),
        ("move http/get below count", "`count` cannot be below itself"),
        ("move http/get below http/get", "`http/get` is there already"),
        ("remove http/get leaf", "`http/get` is not empty: `count` is below it"),
    ];
    for (words, why) in refused {
        let message = apply_words(line, words);
        assert!(message.starts_with(why), "{words}: {message}");
    }
    let given =
        extract_subtree("rx | tcp | http held=1M |get count", "http/get").expect("a subtree");
    assert_eq!(given.text, "http held=1M |get count");
    assert_eq!(given.filters.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
}
