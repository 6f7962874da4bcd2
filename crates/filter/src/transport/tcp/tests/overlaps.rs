//! Tests of overlapping segments under each policy.

use super::run::run_tcp;
use super::*;

const POLICIES: [&str; 6] = ["first", "last", "linux", "windows", "bsd", "solaris"];

/// Returns the reassembled stream under each policy. The `old` segments arrive first, then `new`,
/// and finally the byte at offset 0. A segment is given by its offset and its letters.
fn stream_per_policy(old: &[(u32, &str)], new: (u32, &str)) -> [String; 6] {
    let segment = |&(at, bytes): &(u32, &str)| client_segment(0, 101 + at, bytes.as_bytes());
    let segments = old.iter().chain([&new]).map(segment);
    let frames = with_handshake(segments.chain([client_segment(0, 101, b"_")]));
    POLICIES.map(|policy| {
        let found = run_tcp(&[&format!("policy={policy}")], &frames, 64);
        let stream = &found.streams()[&(1, false)];
        assert!(stream.holes.is_empty() && stream.first && stream.ended);
        String::from_utf8(stream.bytes.clone()).unwrap()
    })
}

#[test]
fn policy_decides_overlap_that_begins_before_old_segment() {
    let ends_before = stream_per_policy(&[(3, "aaaa")], (1, "bbbb"));
    assert_eq!(ends_before, ["_bbaaaa", "_bbbbaa", "_bbbbaa", "_bbbbaa", "_bbbbaa", "_bbaaaa"]);
    let ends_with = stream_per_policy(&[(3, "aa")], (1, "bbbb"));
    assert_eq!(ends_with, ["_bbaa", "_bbbb", "_bbbb", "_bbbb", "_bbbb", "_bbbb"]);
    let ends_behind = stream_per_policy(&[(3, "aa")], (1, "bbbbbb"));
    assert_eq!(ends_behind, ["_bbaabb", "_bbbbbb", "_bbbbbb", "_bbbbbb", "_bbbbbb", "_bbbbbb"]);
}

#[test]
fn policy_decides_overlap_that_begins_with_old_segment() {
    let ends_before = stream_per_policy(&[(1, "aaaa")], (1, "bb"));
    assert_eq!(ends_before, ["_aaaa", "_bbaa", "_aaaa", "_aaaa", "_aaaa", "_aaaa"]);
    let ends_with = stream_per_policy(&[(1, "aaaa")], (1, "bbbb"));
    assert_eq!(ends_with, ["_aaaa", "_bbbb", "_aaaa", "_aaaa", "_aaaa", "_bbbb"]);
    let ends_behind = stream_per_policy(&[(1, "aa")], (1, "bbbb"));
    assert_eq!(ends_behind, ["_aabb", "_bbbb", "_bbbb", "_aabb", "_aabb", "_bbbb"]);
}

#[test]
fn policy_decides_overlap_that_begins_after_old_segment() {
    let ends_before = stream_per_policy(&[(1, "aaaa")], (2, "bb"));
    assert_eq!(ends_before, ["_aaaa", "_abba", "_aaaa", "_aaaa", "_aaaa", "_aaaa"]);
    let ends_with = stream_per_policy(&[(1, "aaaa")], (3, "bb"));
    assert_eq!(ends_with, ["_aaaa", "_aabb", "_aaaa", "_aaaa", "_aaaa", "_aaaa"]);
    let ends_behind = stream_per_policy(&[(1, "aaaa")], (3, "bbbb"));
    assert_eq!(ends_behind, ["_aaaabb", "_aabbbb", "_aaaabb", "_aaaabb", "_aaaabb", "_aabbbb"]);
}

#[test]
fn policy_decides_overlap_that_covers_several_segments() {
    let old = [(2, "aa"), (6, "cc"), (9, "dd")];
    let over = stream_per_policy(&old, (1, "bbbbbbbbb"));
    assert_eq!(
        over,
        ["_baabbccbdd", "_bbbbbbbbbd", "_bbbbbbbbbd", "_bbbbbbbbbd", "_bbbbbbbbbd", "_bbbbbbbbdd",]
    );
}

#[test]
fn in_order_segment_follows_policy_and_emitted_bytes_stay() {
    let frames = with_handshake([
        client_segment(0, 104, b"aaa"),
        client_segment(0, 101, b"bbbbb"),
        client_segment(0, 103, b"ccccc"),
        client_segment(0, 101, b"ddd"),
    ]);
    let lines =
        POLICIES.map(|policy| run_tcp(&[&format!("policy={policy}")], &frames, 1).to_line());
    let old_stays = ">^bbb|aaa|c|$ <^$";
    let new_wins = ">^bbbbb|a|c|$ <^$";
    assert_eq!(lines, [old_stays, new_wins, new_wins, new_wins, new_wins, old_stays]);
}

#[test]
fn policy_decides_overlap_with_two_held_segments() {
    let frames = with_handshake([
        client_segment(0, 103, b"a"),
        client_segment(0, 106, b"a"),
        client_segment(FIN, 101, b"bbbbbbbb"),
    ]);
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^bb|a|bb|a|bb$ <^$");
    assert_eq!(found.counts.made.blocks, 3, "two more pieces, and the server's end");
    let found = run_tcp(&["policy=bsd"], &frames, 64);
    assert_eq!(
        (found.to_line().as_str(), found.dropped_blocks("overlapped")),
        (">^bbbbbbbb$ <^$", 2)
    );
}
