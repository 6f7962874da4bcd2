//! Tests of the limits on incomplete datagrams: their age, their number, and memory.

use super::*;

const SECOND: u64 = 1_000_000_000;

#[test]
fn incomplete_datagram_expires() {
    let (first, last) =
        (ipv4_fragment(0, true, &UDP_DATAGRAM[..8]), ipv4_fragment(8, false, &UDP_DATAGRAM[8..]));
    for (after, whole) in [(30 * SECOND, true), (30 * SECOND + 1, false)] {
        let frames = [first.clone().at_time(5), last.clone().at_time(5 + after)];
        for size in [1, 2] {
            let output = run_batches(&[], &frames, equal_batch_sizes(2, size), None);
            assert_eq!(output.answers.len() == 1, whole, "however they are batched");
            assert_eq!(output.count("fragments missing"), if whole { 0 } else { 2 });
        }
    }
    // Without further fragments, the path's clock expires the datagram.
    let arena = Arena::new(2);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&IP, &["timeout=2s"]).unwrap();
    node.process_batch(space.batch(&[first]), &mut space, 100);
    for (now, held) in [(2 * SECOND, 1), (2 * SECOND + 100, 0)] {
        node.tick(&mut space, now);
        assert_eq!(node.counts.held.blocks, held);
    }
}

#[test]
fn pending_datagrams_and_fragments_are_bounded() {
    let of = |id: u8, frame: Frame| {
        let mut frame = frame;
        frame.bytes[18] = id;
        frame
    };
    let begun: Vec<Frame> =
        (0..9).map(|id| of(id, ipv4_fragment(0, true, &UDP_DATAGRAM[..8]))).collect();
    let output = run_ip(&["datagrams=4"], &begun);
    assert_eq!((output.count("evicted datagrams"), output.count("fragments missing")), (5, 9));

    let mut many: Vec<Frame> =
        (1..=1024).map(|unit| ipv4_fragment(8 * unit, true, &[1; 8])).collect();
    many.push(ipv4_fragment(8 * 1025, false, &[1; 8]));
    many.push(ipv4_fragment(0, true, &[1; 8]));
    let output = run_ip(&[], &many);
    assert_eq!((output.answers.len(), output.count("too many fragments")), (0, 1026));

    // After 1,024 fragments, further fragments are dropped without a search for duplicates.
    let again = vec![ipv4_fragment(0, true, &[1; 8]); 2000];
    let output = run_ip(&[], &again);
    assert_eq!((output.count("duplicate"), output.count("too many fragments")), (1023, 977));
}

#[test]
fn ledger_balances_without_free_memory() {
    let arena = Arena::new(3);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&IP, &[]).unwrap();
    let frames = [
        ipv4_fragment(0, true, &UDP_DATAGRAM[..8]),
        ipv4_fragment(8, true, &UDP_DATAGRAM[8..16]),
        ipv4_fragment(16, false, &UDP_DATAGRAM[16..]),
    ];
    let answers = node.process_batch(space.batch(&frames), &mut space, 0);
    assert_eq!(testing::total_amount(&answers).blocks, 0);
    let counts = &node.counts;
    assert_eq!((counts.consumed.blocks, counts.made.blocks, counts.no_room.blocks), (3, 1, 1));
    assert_eq!(counts.held.blocks, 0);
}
