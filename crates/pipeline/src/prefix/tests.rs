//! Tests of splitting a request after its shared prefix.

use super::*;
use crate::registry::RegistryList;
use filter::catalog;

/// A registry of all filters in the catalog.
const FILTERS: RegistryList<'_> =
    RegistryList { entries: catalog::FILTERS, endpoints: &[], spaces: &[] };

fn shared_prefixes(text: &str) -> SharedPrefixes {
    split_prefix(text, &FILTERS).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Splits a request after the shortest possible prefix. Returns the texts of the prefix and of the
/// rest.
fn split_texts(text: &str) -> (String, String) {
    let cut = shared_prefixes(text).cuts.pop().unwrap();
    (cut.prefix, cut.rest)
}

#[test]
fn o6_request_splits_after_the_reassembling_filter() {
    let cases = [
        ("--prefix=shared rx eth0|tcp|http |get count", "rx eth0 | tcp", "http |get count"),
        (
            "rx eth0 both=yes | ip |tcp tcp | (count + http)",
            "rx eth0 both=yes | ip |tcp tcp",
            "count + http",
        ),
        ("tx | dport |80 untcp gap=2s | count", "tx | dport |80 untcp gap=2s", "count"),
    ];
    for (text, prefix, rest) in cases {
        let wanted = format!("shared \"{prefix}\" | {rest}");
        assert_eq!(split_texts(text), (prefix.to_owned(), wanted), "{text}");
    }
    let (prefix, rest) = split_texts("--prefix=shared --no-loss rx | tcp |http files out/");
    assert_eq!(
        (prefix.as_str(), rest.as_str()),
        ("rx | tcp", "--no-loss shared \"rx | tcp\" |http files out/")
    );
    // Differences in white space do not matter, but differences in arguments do.
    assert_eq!(split_texts("rx   lo |  tcp |   count").0, split_texts("rx lo | tcp | print").0);
    assert_ne!(split_texts("rx lo | tcp | count").0, split_texts("rx lo | tcp gap=2s | count").0);
}

#[test]
fn o6_prefix_reaches_to_the_last_filter_that_keeps_sessions() {
    // Each case lists the prefixes from the longest to the shortest, and the prefix that is
    // started.
    let cases: [(&str, &[&str], usize); 9] = [
        ("rx lo | tcp | count", &["rx lo | tcp"], 0),
        ("rx lo | tcp | http |get json", &["rx lo | tcp | http", "rx lo | tcp"], 0),
        ("rx lo | tcp |80 http | dport | count", &["rx lo | tcp |80 http", "rx lo | tcp"], 0),
        (
            "rx lo | tcp | http decode=yes | count",
            &["rx lo | tcp | http decode=yes", "rx lo | tcp"],
            1,
        ),
        ("rx lo | tcp | http |get match \"a\" | json", &["rx lo | tcp | http", "rx lo | tcp"], 0),
        ("rx lo | tcp | tls | count", &["rx lo | tcp | tls", "rx lo | tcp"], 0),
        // The filter `http` produces exchanges only for requests that select them.
        ("rx lo | tcp | http |exchange count", &["rx lo | tcp"], 0),
        ("rx lo | tcp | http |all count", &["rx lo | tcp"], 0),
        ("rx lo | tcp | http@thread1 | count", &["rx lo | tcp"], 0),
    ];
    for (text, prefixes, start) in cases {
        let found = shared_prefixes(text);
        let found_prefixes: Vec<&str> = found.cuts.iter().map(|cut| &*cut.prefix).collect();
        assert_eq!((&found_prefixes[..], found.start), (prefixes, start), "{text}");
    }
}

#[test]
fn o6_prefix_request_shares_output_after_tcp_and_http() {
    let made =
        |prefix: &str, runs: &str| build_prefix_request(prefix, &FILTERS, |text| text == runs);
    assert_eq!(made("rx lo | tcp", ""), "rx lo | tcp | share \"rx lo | tcp\" last=yes");
    assert_eq!(
        made("rx lo | tcp |80 http", ""),
        "rx lo | tcp | share \"rx lo | tcp\" last=yes + |80 (http | share \"rx lo | tcp |80 \
         http\" messages=yes last=yes)"
    );
    assert_eq!(
        made("rx lo | tcp | http", "rx lo | tcp"),
        "shared \"rx lo | tcp\" | http | share \"rx lo | tcp | http\" messages=yes last=yes"
    );
    // Classes that a filter emits only on request are not offered to other requests.
    let asks = made("rx lo | tcp | http |exchange match \"a\"", "");
    assert!(asks.starts_with("rx lo | tcp | share \"rx lo | tcp\" last=yes + (http |"), "{asks}");
    assert!(
        !offers_prefix(&asks, "rx lo | tcp | http") && offers_prefix(&asks, "rx lo | tcp"),
        "{asks}"
    );
    for prefix in ["rx lo | tcp", "rx lo | tcp | http"] {
        assert!(offers_prefix(&made("rx lo | tcp | http", ""), prefix), "{prefix}");
    }
}

#[test]
fn o6_prefix_with_quotes_is_quoted_in_derived_requests() {
    let text = r#"rx lo | match "a\"\\b" | tcp | count"#;
    let (prefix, rest) = split_texts(text);
    assert!(text.starts_with(&prefix), "{prefix}");
    for made in [rest, build_prefix_request(&prefix, &FILTERS, |_| false)] {
        let (request, mistakes) = parse(&made);
        assert!(mistakes.is_empty(), "{made}: {mistakes:?}");
        assert_eq!(request.to_string(), made);
        let [Term::Pipeline(whole)] = request.pipelines.as_slice() else { panic!("{made}") };
        let mut terms =
            std::iter::once(&*whole.first).chain(whole.rest.iter().map(|stage| &stage.term));
        let named = |term: &&Term| match term {
            Term::Filter(term) => term.name.text.starts_with("share"),
            _ => false,
        };
        let Some(Term::Filter(term)) = terms.find(named) else { panic!("{made}") };
        assert_eq!(term.arguments[0].value.to_string_lossy(), prefix);
    }
}

#[test]
fn o6_prefix_that_differs_between_requests_stays_private() {
    let cases = [
        ("replay a.pcap | tcp | count", "`replay a.pcap` is not a single interface"),
        ("rx a + rx b | tcp | count", "`rx a + rx b` is not a single interface"),
        ("(rx a ++ rx b) | tcp | count", "is not a single interface"),
        ("rx lo take | tcp | count", "it takes frames from the host"),
        ("rx lo | tcp", "nothing follows it"),
        ("rx lo | udp | count", "no `tcp` follows the interface in it"),
        ("rx lo | (tcp + udp) | count", "no `tcp` follows the interface in it"),
        ("rx lo | ratelimit 5 | tcp | count", "`ratelimit` before `tcp` has private state"),
        ("rx lo | tcp@thread1 | count", "`tcp` is pinned"),
        ("rx lo | tcp state=web | count", "`tcp` has `state=`"),
        ("rx lo | tcp --name=T | count", "`tcp` has a mark"),
        ("rx lo | tcp |all count", "the next pipe also passes blocks outside of connections"),
        ("rx lo | tcp |!80 count", "the next pipe also passes blocks outside of connections"),
        ("--latency=1ms rx lo | tcp | count", "`--latency` applies to the whole request"),
        ("rx lo | tcp | count; rx lo | count", "it is not one pipeline"),
    ];
    for (text, why) in cases {
        let refused = split_prefix(text, &FILTERS).expect_err(text).to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
