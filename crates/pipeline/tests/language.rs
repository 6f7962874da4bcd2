//! The table of the language and the example lines of the sources, each as a text file.

mod common;

use common::{read_cases, request_text, update_cases};
use pipeline::language::diagnose::Diagnostic;
use pipeline::language::parse;

/// Formats the result for a request, as the case file writes it.
fn tell(line: &str) -> Vec<String> {
    let (request, mistakes) = parse(&request_text(line));
    if mistakes.is_empty() {
        return vec![format!("= {}", request.outline()), format!("~ {request}")];
    }
    mistakes.iter().flat_map(tell_mistake).collect()
}

fn tell_mistake(mistake: &Diagnostic) -> Vec<String> {
    let mut told = vec![format!("! {} {}", mistake.span.start, mistake.what)];
    for (sign, text) in [('%', &mistake.why), ('?', &mistake.hint)] {
        if !text.is_empty() {
            told.push(format!("{sign} {text}"));
        }
    }
    told
}

#[test]
fn every_line_of_the_table_reads_as_it_should() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/language.cases");
    let text = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, update_cases(&text, tell)).unwrap();
    }
    let cases = read_cases(&std::fs::read_to_string(path).unwrap());
    assert!(cases.len() > 100, "the table is there");
    for (line, expected) in cases {
        assert_eq!(tell(&line), expected, "{line}");
    }
}

/// The lines of the sources as they are printed there, with the underscores that the PDF lost, and
/// `..` written out.
const SOURCES: &[&str] = &[
    "rx | tcp | http | files",
    "tcp | http + ssh + rtsp | inspect",
    "a --name=X | b | a --name=X",
    "dport |22 ssh",
    "dport |!80 ids",
    "dport |22:23 log",
    "dport |ssh:telnet log",
    "rx ++ tx | ip | mpeg +* !http",
    "rx | ip | tcp | pcap | compress | files",
    "rx + tx | bpf \"tcp\" | user",
    "rx | udp | dport |53 socket export=yes name=rxport_53",
    "buffer txport_53 |all tx",
    "split_rr | f + f + f | join",
];

#[test]
fn every_example_of_the_sources_parses_and_prints_unchanged() {
    for line in SOURCES {
        let (request, mistakes) = parse(line);
        assert!(mistakes.is_empty(), "{line}: {mistakes:?}");
        assert_eq!(request.to_string(), *line);
    }
    let (both, mistakes) = parse(&SOURCES.join(" ; "));
    assert!(mistakes.is_empty());
    assert_eq!(both.pipelines.len(), SOURCES.len());
}
