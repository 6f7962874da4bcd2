//! Tests of the parser on a file of requests, and on the example requests in the papers.

mod common;

use common::{read_cases, request_text, updated_case_file};
use pipeline::language::diagnose::Diagnostic;
use pipeline::language::parse;

/// Formats the result of parsing a request in the format of the case file.
fn format_parse_result(line: &str) -> Vec<String> {
    let (request, mistakes) = parse(&request_text(line));
    if mistakes.is_empty() {
        return vec![format!("= {}", request.outline()), format!("~ {request}")];
    }
    mistakes.iter().flat_map(format_mistake).collect()
}

fn format_mistake(mistake: &Diagnostic) -> Vec<String> {
    let mut lines = vec![format!("! {} {}", mistake.span.start, mistake.what)];
    for (sign, text) in [('%', &mistake.why), ('?', &mistake.hint)] {
        if !text.is_empty() {
            lines.push(format!("{sign} {text}"));
        }
    }
    lines
}

#[test]
fn parser_matches_the_case_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/language.cases");
    let text = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, updated_case_file(&text, format_parse_result)).unwrap();
    }
    let cases = read_cases(&std::fs::read_to_string(path).unwrap());
    assert!(cases.len() > 100, "the table is there");
    for (line, expected) in cases {
        assert_eq!(format_parse_result(&line), expected, "{line}");
    }
}

/// The requests printed in the papers, after adding the underscores that the PDF lacks and
/// replacing `..` with valid text.
const PAPER_EXAMPLES: &[&str] = &[
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
fn requests_of_the_papers_parse_and_print_unchanged() {
    for line in PAPER_EXAMPLES {
        let (request, mistakes) = parse(line);
        assert!(mistakes.is_empty(), "{line}: {mistakes:?}");
        assert_eq!(request.to_string(), *line);
    }
    let (both, mistakes) = parse(&PAPER_EXAMPLES.join(" ; "));
    assert!(mistakes.is_empty());
    assert_eq!(both.pipelines.len(), PAPER_EXAMPLES.len());
}
