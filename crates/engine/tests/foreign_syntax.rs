//! Tests of requests written in the syntax of tcpdump, grep or a shell. The error must name the
//! tool and propose an equivalent, valid request.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use engine::registry::MachineRegistry;
use pipeline::{Diagnostic, translate};

/// Pairs of a mistaken request and the request that the error must propose.
const EXPECTED_PROPOSALS: &[(&str, &str)] = &[
    ("tcp port 80", "rx | bpf \"tcp port 80\" | print"),
    ("host 10.0.0.1", "rx | bpf \"host 10.0.0.1\" | print"),
    ("port 80", "rx | bpf \"port 80\" | print"),
    ("icmp", "rx | bpf \"icmp\" | print"),
    ("net 10.0.0.0/8", "rx | bpf \"net 10.0.0.0/8\" | print"),
    ("not port 22", "rx | bpf \"not port 22\" | print"),
    ("(port 80 or port 81)", "rx | bpf \"(port 80 or port 81)\" | print"),
    ("replay x | src host 10.0.0.1 | count", "replay x | bpf \"src host 10.0.0.1\" | count"),
    ("replay x | udp dst port 53", "replay x | bpf \"udp dst port 53\" | print"),
    ("replay x | less 100 | count", "replay x | bpf \"less 100\" | count"),
    ("replay x | tcp port 80 + udp | count", "replay x | bpf \"tcp port 80\" + udp | count"),
    ("rx lo | tcp[13] & 2 != 0 | print", "rx lo | bpf \"tcp[13] & 2 != 0\" | print"),
    ("replay x | grep foo", "replay x | match \"foo\" | print"),
    ("replay x | grep -i 'foo' | count", "replay x | match \"foo\" | count"),
    ("replay x | egrep 'fo.' | count", "replay x | regex \"fo.\" | count"),
    ("grep foo x.log", "read x.log lines=yes | match \"foo\" | print"),
    ("cat x.pcap | port 80 | wc -l", "replay x.pcap | bpf \"port 80\" | count"),
    ("replay x | print | sort -u", "streamline 'replay x | print' | sort -u"),
    ("replay x | udp | head -5 | tr a b", "streamline 'replay x | udp | print' | head -5 | tr a b"),
    ("dport 80", "rx | dport |80 count"),
    ("replay x | dport 80 | count", "replay x | dport |80 count"),
    ("replay x | vlan 7,8 | print", "replay x | vlan |7,8 print"),
    ("replay x | count --latency=5ms", "--latency=5ms replay x | count"),
    ("rx -i lo | count", "rx lo | count"),
    ("replay -r x | pcap -w y", "replay x | pcap y"),
    ("-i lo -n port 80", "rx lo | bpf \"port 80\" | print"),
    ("-r x.pcap -w y.pcap icmp", "replay x.pcap | bpf \"icmp\" | pcap y.pcap"),
    ("tcpdump -nni any -c 10 icmp", "streamline run -c 10 'rx | bpf \"icmp\" | print'"),
    ("tcpdump -i lo -w x.pcap", "rx lo | pcap x.pcap"),
    ("/pipes/rx/ip/dport/80/untcp/http/get/all", "rx | ip | dport |80 untcp | http |get print"),
    (
        "cat /pipes/rx/ip/dport/80/untcp/http/get/all | gzip > log.gz",
        "rx | ip | dport |80 untcp | http |get exec \"gzip > log.gz\"",
    ),
    ("/rx/bpf:udp/dport/22:23/count", "rx | bpf \"udp\" | dport |22:23 count"),
];

fn request_errors(text: &str) -> Vec<Diagnostic> {
    let (_, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    mistakes.into_iter().filter(Diagnostic::is_error).collect()
}

/// Extracts the request from a proposed command.
fn proposed_request(proposed: &str) -> &str {
    match proposed.strip_prefix("streamline ") {
        Some(command) => command.split('\'').nth(1).unwrap(),
        None => proposed,
    }
}

#[test]
fn foreign_options_are_translated_to_a_request() {
    for (written, wanted) in EXPECTED_PROPOSALS {
        let found = request_errors(written);
        let [mistake] = found.as_slice() else { panic!("{written}: {found:?}") };
        let proposed = mistake.hint.strip_prefix("write `").and_then(|hint| hint.strip_suffix('`'));
        assert_eq!(proposed, Some(*wanted), "{written}: {mistake:?}");
        assert_eq!(request_errors(proposed_request(wanted)), [], "{written}");
        let words = written.get(mistake.span.start..mistake.span.end).unwrap();
        assert!(mistake.what.starts_with(&format!("`{words}` ")), "{}", mistake.what);
    }
}

#[test]
fn foreign_commands_are_translated_to_streamline() {
    for (words, wanted) in [
        ("-i lo port 80", "streamline 'rx lo | bpf \"port 80\" | print'"),
        ("-i lo -w x.pcap", "streamline 'rx lo | pcap x.pcap'"),
        ("-r x.pcap", "streamline 'replay x.pcap | print'"),
        ("-r x.pcap udp | count", "streamline 'replay x.pcap | udp | count'"),
        ("-nnvi any -c5 icmp", "streamline run -c 5 'rx | bpf \"icmp\" | print'"),
        ("-ilo", "streamline 'rx lo | print'"),
        ("host 10.0.0.1", "streamline 'rx | bpf \"host 10.0.0.1\" | print'"),
        ("tcpdump -i lo port 53", "streamline 'rx lo | bpf \"port 53\" | print'"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let meant = translate::translate_command(&words, &MachineRegistry::Local)
            .unwrap_or_else(|| panic!("{words:?}"));
        assert_eq!(meant.command(), wanted);
        assert_eq!(request_errors(&meant.line), []);
    }
    for words in [&["--bogus"][..], &["-Z", "x"], &["doctr"], &["-c"], &["-w"], &["-i"], &[]] {
        assert_eq!(translate::translate_command(words, &MachineRegistry::Local), None, "{words:?}");
    }
}

/// A request with an unknown word gets the usual error without a proposed request, and a correct
/// request gets no error. No request is proposed that would still be wrong.
#[test]
fn unknown_words_and_correct_requests_get_no_proposal() {
    let found = request_errors("replay x | dpotr |80 count | coutn");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].hint.starts_with("did you mean `dport`?"), "{found:?}");
    for right in ["replay x | udp | count", "replay x | tcp | http |get print", "rx lo | icmp"] {
        let is_expression = right.ends_with("icmp");
        assert_eq!(request_errors(right).is_empty(), !is_expression, "{right}");
    }
    let found = request_errors("replay x | port 80 | nonsense");
    assert!(found.iter().all(|mistake| !mistake.hint.starts_with("write `")), "{found:?}");
    assert!(
        !request_errors("sort").is_empty()
            && !request_errors("|||").is_empty()
            && !request_errors("-").is_empty()
    );
}
