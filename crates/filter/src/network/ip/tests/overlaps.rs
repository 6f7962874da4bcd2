//! Tests of overlapping fragments under each policy.

use super::*;

#[test]
fn overlapping_ipv6_fragments_end_their_datagram() {
    let frames = [
        ipv6_fragment(0, true, &UDP_DATAGRAM[..16]),
        ipv6_fragment(8, false, &UDP_DATAGRAM[8..]),
        ipv6_fragment(8, true, &UDP_DATAGRAM[8..16]),
        ipv6_fragment(16, false, &UDP_DATAGRAM[16..]),
    ];
    for policy in FragmentPolicy::KEYWORDS {
        let output = run_ip(&[&format!("policy={policy}")], &frames);
        assert_eq!((output.answers.len(), output.count("overlap")), (0, 4), "{policy}: RFC 5722");
    }
    // The same applies to contradictory last fragments.
    let frames = [
        ipv6_fragment(16, false, &UDP_DATAGRAM[16..]),
        ipv6_fragment(16, false, &UDP_DATAGRAM[16..20]),
    ];
    assert_eq!(run_ip(&[], &frames).count("overlap"), 2);
}

#[test]
fn drop_policy_drops_overlapping_ipv4_fragments() {
    let frames =
        [ipv4_fragment(0, true, &UDP_DATAGRAM[..16]), ipv4_fragment(8, false, &UDP_DATAGRAM[8..])];
    let output = run_ip(&["policy=drop"], &frames);
    assert_eq!((output.answers.len(), output.count("overlap")), (0, 2));
    let output = run_ip(&[], &frames);
    assert_eq!(
        (output.only_block_data(), output.count("overlapping datagrams")),
        (UDP_DATAGRAM, 1)
    );
}

#[test]
fn teardrop_stays_within_the_datagram() {
    // The second fragment lies wholly inside the first (CVE-1999-0015).
    let frames = [ipv4_fragment(0, true, &[b'a'; 32]), ipv4_fragment(24, false, b"bbbb")];
    for (policy, expected) in [("first", [b'a'; 28]), ("windows", [b'a'; 28])] {
        let output = run_ip(&[&format!("policy={policy}")], &frames);
        assert_eq!(output.only_block_data(), expected, "{policy}");
    }
    let output = run_ip(&["policy=last"], &frames);
    assert_eq!(output.only_block_data(), [&[b'a'; 24][..], b"bbbb"].concat());
    // Under `linux`, the first fragment extends beyond the end that the second fragment states.
    assert_eq!(run_ip(&["policy=linux"], &frames).count("overlap"), 2);
}

/// Overlapping fragments from J. Novak's paper: offset, length in bytes, the more-fragments flag,
/// and the letter that fills the fragment.
const NOVAK_FRAGMENTS: [(u16, usize, bool, u8); 17] = [
    (0, 24, true, b'A'),
    (32, 16, true, b'B'),
    (48, 24, true, b'C'),
    (80, 8, true, b'D'),
    (104, 16, true, b'E'),
    (120, 24, true, b'F'),
    (144, 16, true, b'G'),
    (160, 16, true, b'H'),
    (176, 8, true, b'I'),
    (8, 32, true, b'J'),
    (48, 24, true, b'K'),
    (72, 24, true, b'L'),
    (96, 24, true, b'M'),
    (128, 8, true, b'N'),
    (152, 8, true, b'O'),
    (160, 8, true, b'P'),
    (176, 16, false, b'Q'),
];

fn fragments_of_letters(set: &[(u16, usize, bool, u8)]) -> Vec<Frame> {
    set.iter()
        .map(|&(at, length, more, letter)| ipv4_fragment(at, more, &vec![letter; length]))
        .collect()
}

/// Returns the letter that fills each unit of 8 bytes of `data`. Panics if a unit contains
/// different bytes.
fn unit_letters(data: &[u8]) -> String {
    let unit = |unit: &[u8]| {
        assert!(unit.iter().all(|byte| *byte == unit[0]), "{unit:?}");
        char::from(unit[0])
    };
    data.chunks(8).map(unit).collect()
}

/// The expected results for each system are from Novak's paper. The tests of Suricata and Snort use
/// the same fragments and expect the same results.
#[test]
fn policies_agree_with_the_results_in_novaks_paper() {
    let frames = fragments_of_letters(&NOVAK_FRAGMENTS);
    for (policy, expected) in [
        ("bsd", "AAAJJBCCCLLLMMMFFFGGHHIQ"),
        ("linux", "AAAJJBKKKLLLMMMFFFGGPHQQ"),
        ("windows", "AAAJBBCCCLLLMEEFFFGGHHIQ"),
        ("solaris", "AAAJBBCCCLLLMMMFFFGGHHIQ"),
        ("first", "AAAJBBCCCLDLMEEFFFGGHHIQ"),
        ("last", "AJJJJBKKKLLLMMMFNFGOPHQQ"),
    ] {
        let output = run_ip(&[&format!("policy={policy}")], &frames);
        assert_eq!(unit_letters(output.only_block_data()), expected, "{policy}");
        assert_eq!(output.count("overlapping datagrams"), 1);
    }
}

#[test]
fn policies_resolve_fragment_sets_from_past_bugs() {
    // A fragment that begins where one fragment ends, and extends into another.
    let linux =
        [(0, 24, true, b'A'), (40, 48, true, b'B'), (24, 48, true, b'C'), (88, 14, false, b'D')];
    assert_eq!(
        unit_letters(run_ip(&["policy=linux"], &fragments_of_letters(&linux)).only_block_data()),
        "AAACCCCCCBBDD"
    );
    // The last fragment first, and one that overlaps both neighbors.
    let bsd =
        [(24, 16, false, b'A'), (8, 16, true, b'B'), (16, 16, true, b'C'), (0, 8, true, b'D')];
    assert_eq!(
        unit_letters(run_ip(&["policy=bsd"], &fragments_of_letters(&bsd)).only_block_data()),
        "DBBCA"
    );
    let bsd = [(8, 24, false, b'E'), (0, 24, true, b'M')];
    assert_eq!(
        unit_letters(run_ip(&["policy=bsd"], &fragments_of_letters(&bsd)).only_block_data()),
        "MMME"
    );
    // Bytes beyond the end that the last fragment states are not part of the datagram.
    let beyond = [(16, 8, true, b'C'), (0, 8, true, b'A'), (8, 8, false, b'B')];
    for policy in ["first", "last", "bsd", "windows", "solaris"] {
        let output = run_ip(&[&format!("policy={policy}")], &fragments_of_letters(&beyond));
        assert_eq!(unit_letters(output.only_block_data()), "AB", "{policy}");
    }
    assert_eq!(run_ip(&["policy=linux"], &fragments_of_letters(&beyond)).count("overlap"), 3);
}

/// For random overlaps, each policy gives the same result as a model that chooses a fragment for
/// each byte, and the ledger balances.
#[test]
fn policies_agree_with_a_bytewise_model() {
    let mut random = Random::with_replayable_seed();
    for round in 0..300 {
        let units = random.within(2..20);
        let mut frames = vec![ipv4_fragment(8 * units as u16 - 8, false, &random.bytes(8))];
        for _ in 0..random.within(3..40) {
            let from = random.within(0..units - 1);
            let to = random.within(from + 1..units + 1).min(units - 1).max(from + 1);
            frames.push(ipv4_fragment(8 * from as u16, true, &random.bytes(8 * (to - from))));
        }
        let mut model: [BTreeMap<usize, u8>; 2] = Default::default();
        let mut arrived = 0;
        for frame in &frames {
            let at = 8 * usize::from(u16::from_be_bytes([frame.bytes[20] & 0x1f, frame.bytes[21]]));
            for (i, byte) in frame.bytes[34..].iter().enumerate() {
                model[0].entry(at + i).or_insert(*byte);
                model[1].insert(at + i, *byte);
            }
            arrived += 1;
            if model[0].len() == 8 * units {
                break;
            }
        }
        let whole = model[0].len() == 8 * units;
        for (policy, model) in ["first", "last"].iter().zip(model) {
            let output = run_ip(&[&format!("policy={policy}")], &frames[..arrived]);
            assert_eq!(output.answers.len(), usize::from(whole), "{round}");
            if whole {
                assert!(output.only_block_data().iter().eq(model.values()), "{policy}, {round}");
            }
        }
        for policy in FragmentPolicy::KEYWORDS {
            run_ip(&[&format!("policy={policy}")], &frames);
        }
    }
}
