//! Tests that compare our output byte for byte with that of the tools of PcapPlusPlus: the streams
//! of a connection, and reassembled packets.

use crate::collect::{COLLECT_FILTERS, CollectedBlock, run_and_collect};
use crate::request::PlannedRequest;
use crate::streams::group_into_streams;
use std::path::{Path, PathBuf};
use wire::flow::Flow;

fn examples_directory() -> Option<PathBuf> {
    Some(testkit::case_directory()?.join("pcapplusplus/ExamplesTest"))
}

/// Returns the blocks that the filters `rest` emit for a capture.
fn run_filters(capture: &Path, rest: &str) -> Vec<CollectedBlock> {
    let text = format!("replay '{}' | {rest} | collect | discard", capture.display());
    let (blocks, outcome) =
        run_and_collect(&PlannedRequest::with_filters(text, COLLECT_FILTERS)).expect("a capture");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    blocks
}

/// Compares captures of one connection with its segments in different orders. Asserts that the
/// streams of the request and of the response are the same for each order.
#[test]
fn h5_both_directions_of_a_connection_are_exact() {
    let sides = |name: &str| {
        let blocks = run_filters(
            &testkit::generated::capture_path(&format!("streams/{name}.pcap")),
            "ip | tcp",
        );
        let streams = group_into_streams(&blocks);
        let [stream] = &streams[..] else { panic!("{name}: {} connections", streams.len()) };
        let missing = stream.missing_byte_count(0) + stream.missing_byte_count(1);
        ([stream.bytes(0), stream.bytes(1)], missing)
    };
    let ([question, answer], missing) = sides("reset");
    assert!(question.starts_with(b"GET /page HTTP/1.1\r\n") && question.ends_with(b"\r\n\r\n"));
    let (head, body) = answer.split_at(answer.len() - 6_000);
    assert!(head.ends_with(b"\r\n\r\n") && body.starts_with(b"<!DOCTYPE html>"));
    assert_eq!(missing, 0);
    for name in ["reversed", "twice", "no-end"] {
        assert!(sides(name) == ([question.clone(), answer.clone()], 0), "{name}");
    }
    let ([_, six], _) = sides("six");
    assert!(six == answer, "over IPv6");
    let ([_, gap], missing) = sides("gap");
    let without = [&answer[..2 * 1_440], &answer[3 * 1_440..]].concat();
    assert!(gap == without && missing == 1_440, "all but what was not captured");
}

/// Reassembles fragmented datagrams. Asserts that they equal the same datagrams sent without
/// fragmentation.
#[test]
fn fragments_reassemble_to_the_sent_packets() {
    let blocks = run_filters(&testkit::generated::capture_path("fragments/many.pcap"), "ip");
    let (cut, whole): (Vec<&CollectedBlock>, Vec<&CollectedBlock>) =
        blocks.iter().partition(|block| block.bytes.len() > 100);
    assert_eq!((cut.len(), whole.len()), (200, 100));
    for block in cut {
        assert_eq!(block.flow.expect("a flow").protocol, 17);
        assert_eq!(block.bytes.len(), 3_008);
        let bytes = block.bytes[8..].iter().map(|byte| usize::from(*byte));
        assert!(bytes.enumerate().all(|(at, byte)| byte == at * 7 % 251));
    }
}

/// Compares our streams with the output of PcapPlusPlus `TcpReassembly`: a file per side in
/// `tcpreassembly_sides`, and both sides in order of arrival in `tcpreassembly_sanity`.
#[test]
fn corpus_both_directions_of_a_connection_are_exact() {
    let Some(examples) = examples_directory() else { return };
    let read = |path: &str| std::fs::read(examples.join("expected_output").join(path));
    let [client, server] = ["172.16.133.54.64370", "23.21.118.18.80"];
    let sides = [
        read(&format!("tcpreassembly_sides/{client}-{server}.txt")).expect("the client's side"),
        read(&format!("tcpreassembly_sides/{server}-{client}.txt")).expect("the server's side"),
    ];
    let both = read(&format!("tcpreassembly_sanity/{client}-{server}.txt")).expect("both sides");
    let metadata = read(&format!("tcpreassembly_sanity/{client}-{server}-metadata.txt"));
    let metadata = String::from_utf8(metadata.expect("the numbers")).expect("text");

    let blocks = run_filters(&examples.join("pcap_examples/tcp-reassembly.pcap"), "ip | tcp");
    let ends = ["172.16.133.54:64370", "23.21.118.18:80"];
    let streams = group_into_streams(&blocks);
    let at = streams.iter().position(|stream| stream.ends == ends).expect("the connection");
    for (side, expected) in sides.iter().enumerate() {
        assert!(streams[at].bytes(side) == *expected, "side {side}");
        assert_eq!(streams[at].missing_byte_count(side), 0);
    }
    let session = blocks.iter().find(|block| {
        let from = |flow: Flow| Some((flow.source.to_string(), flow.ports?.source));
        block.flow.and_then(from) == Some(("172.16.133.54".to_owned(), 64370))
    });
    let session = session.expect("a block of it").session;
    let blocks: Vec<&CollectedBlock> =
        blocks.iter().filter(|block| block.session == session).collect();
    let arrived: Vec<&[u8]> = blocks.iter().map(|block| block.bytes.as_slice()).collect();
    assert!(arrived.concat() == both, "in order of arrival");
    for side in [0, 1] {
        let packets = blocks
            .iter()
            .filter(|block| usize::from(block.is_backward()) == side && !block.bytes.is_empty());
        let line = format!("Number of data packets in side {side}:");
        let number = metadata.lines().find_map(|text| text.strip_prefix(&line)).expect("the line");
        assert_eq!(packets.count().to_string(), number.trim(), "packets of side {side}");
    }
}

/// Compares our reassembled packets with the output of PcapPlusPlus `IPDefragUtil`: one packet from
/// eleven fragments, and 190 packets from 3,000.
#[test]
fn corpus_fragments_reassemble_to_the_sent_packets() {
    let Some(examples) = examples_directory() else { return };
    for (fragments, whole, joined, others) in [
        ("pcap_examples/frag_http_req.pcap", "expected_output/http_req.pcap", 1, 0),
        ("pcap_examples/ip-frag.pcap", "expected_output/no-ip-frag-all.pcap", 190, 1_137),
    ] {
        let mut ours = packet_contents(&run_filters(&examples.join(fragments), "ip"));
        let mut theirs = packet_contents(&run_filters(&examples.join(whole), "ip"));
        assert_eq!(theirs.len(), joined + others, "{whole}");
        ours.sort();
        theirs.sort();
        assert_eq!(ours.len(), theirs.len(), "{fragments}");
        assert!(ours == theirs, "{fragments}");
    }
    let alone =
        packet_contents(&run_filters(&examples.join("expected_output/no-ip-frag.pcap"), "ip"));
    let all = packet_contents(&run_filters(&examples.join("pcap_examples/ip-frag.pcap"), "ip"));
    assert_eq!(alone.len(), 190);
    assert!(alone.iter().all(|packet| all.contains(packet)), "the packets that were joined");
}

/// PcapPlusPlus `IPFragUtil` fragments packets. Reassembly must return the same packets.
#[test]
fn corpus_fragments_of_ipfragutil_reassemble_to_packets() {
    let Some(examples) = examples_directory() else { return };
    let run = |file: &str| {
        packet_contents(&run_filters(&examples.join("expected_output").join(file), "ip"))
    };
    let (whole, again) = (run("http_req.pcap"), run("http_req_frag.pcap"));
    assert!(!whole.is_empty());
    assert!(whole == again, "{} and {} packets", whole.len(), again.len());
}

/// Returns the addresses, protocol and data of the packet in each block.
fn packet_contents(blocks: &[CollectedBlock]) -> Vec<(Option<Flow>, u32, Vec<u8>)> {
    blocks.iter().map(|block| (block.flow, block.class, block.bytes.clone())).collect()
}
