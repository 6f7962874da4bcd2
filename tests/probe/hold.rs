//! Probe 2: a reassembler holds rich pointers to out-of-order blocks of a pool that is lapped.
//!
//! 64 MB of two connections pass a pool of 16 MB. The segments of the first connection are
//! shuffled. The first segment of the second connection arrives last of all, so a block is held
//! while the pool is lapped. Every emitted byte is compared with the sent byte.

use crate::catalog_fixture::{reported_counter, run_request};
use filter::prelude::*;
use testkit::{Frame, TcpHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const PAYLOAD_LENGTH: usize = 1000;
const SEGMENT_COUNT: u32 = 64_000;

/// A filter that reassembles streams by holding rich pointers to early segments. A session is a
/// source port.
const REASSEMBLE: Description = Description {
    name: "reorder",
    summary: "holds segments until the ones before them have come",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Frame]),
    output_form: OutputForm::Form(Form::Stream),
    reasons: &["not tcp", "old"],
    state: StateFacts { scope: StateScope::Sessions, held_max: 8192, ..StateFacts::NONE },
    constructor: Some(|_| Ok(Filter::stream(ReassembleFilter::default()))),
    ..Description::FILTER_DEFAULTS
};
const NOT_TCP_REASON: Reason = REASSEMBLE.reason("not tcp");
const OLD_SEGMENT_REASON: Reason = REASSEMBLE.reason("old");

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Connection {
    next: u32,
    early: HeldList,
}

impl Session for Connection {
    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        vec![&mut self.early]
    }
}

#[derive(Default)]
struct ReassembleFilter {
    connections: Sessions<Connection>,
}

impl Stream for ReassembleFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let layers = wire::layers(LinkType(block.marks.link), block.frame);
        let (Some(l4), Some(payload)) = (layers.l4, layers.payload) else {
            return cx.drop(&block, NOT_TCP_REASON);
        };
        let header = block.frame.get(usize::from(l4)..).and_then(wire::tcp::Tcp::parse);
        let Some((tcp, _)) = header else { return cx.drop(&block, NOT_TCP_REASON) };
        let (port, sequence) = (tcp.source(), tcp.sequence());
        let connection = self.connections.get_or_create(u64::from(port));
        let mut view = block.view_at(u32::from(payload), layers.end - u32::from(payload));
        view.context.session = u32::from(port);
        if sequence == connection.next {
            connection.next += view.length();
            cx.pass(view);
        } else if sequence > connection.next {
            cx.hold(&mut connection.early, &view, sequence);
        } else {
            cx.drop(&block, OLD_SEGMENT_REASON);
        }
        while cx.front_block(&connection.early).is_some_and(|(key, _)| key == connection.next) {
            cx.release_front_block(&mut connection.early, |held| {
                connection.next += held.length();
                held
            });
        }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.connections)
    }
}

/// A filter that compares every byte of a stream with the byte that was sent.
const VERIFY_PAYLOAD: Description = Description {
    name: "verify",
    summary: "compares streams with the pattern",
    kind: FilterKind::Inspection,
    input_forms: Forms::of(&[Form::Stream]),
    has_report: true,
    constructor: Some(|_| Ok(Filter::lanes(VerifyPayloadFilter::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct VerifyPayloadFilter {
    at: std::collections::BTreeMap<u32, u32>,
    wrong: u64,
}

impl LaneFilter for VerifyPayloadFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            let at = self.at.entry(block.context.session).or_default();
            let expected = payload(block.context.session as u16, *at / PAYLOAD_LENGTH as u32);
            self.wrong += u64::from(block.bytes() != expected);
            *at += block.length();
        }
    }

    fn report(&self) -> Report {
        let row = |(port, bytes): (&u32, &u32)| (port.to_string(), u64::from(*bytes));
        let mut rows: Vec<_> = self.at.iter().map(row).collect();
        rows.push(("wrong".to_owned(), self.wrong));
        Report::from_rows(rows)
    }
}

fn payload(port: u16, number: u32) -> Vec<u8> {
    let seed = u32::from(port).wrapping_mul(2_654_435_761).wrapping_add(number);
    (0..PAYLOAD_LENGTH as u32)
        .map(|i| (seed.wrapping_add(i).wrapping_mul(40_503) >> 8) as u8)
        .collect()
}

fn segment(port: u16, number: u32) -> Vec<u8> {
    let header = TcpHeader {
        source: port,
        target: 80,
        sequence: number * PAYLOAD_LENGTH as u32,
        ..TcpHeader::default()
    };
    Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").tcp(&header, &payload(port, number))
}

#[test]
fn h6_held_blocks_survive_laps_of_their_pool() {
    let mut random = testkit::Random::with_replayable_seed();
    let mut numbers: Vec<u32> = (0..SEGMENT_COUNT).collect();
    for window in numbers.chunks_mut(64) {
        random.shuffle(window);
    }
    // One segment arrives 3,000 positions late: 3 MB are held until then.
    let late = numbers.remove(20_000);
    numbers.insert(23_000, late);
    let mut frames = vec![segment(2, 1)];
    frames.extend(numbers.iter().map(|number| segment(1, *number)));
    frames.push(segment(2, 0));
    let file = std::env::temp_dir().join(format!("streamline-probe-{}.pcap", std::process::id()));
    let mut capture = wire::capture::write::encode_file_header(LinkType::ETHERNET).to_vec();
    for frame in &frames {
        let length = u32::try_from(frame.len()).unwrap();
        capture.extend(wire::capture::write::encode_record_header(0, length, length));
        capture.extend(frame);
    }
    std::fs::write(&file, &capture).unwrap();
    let text = format!("replay '{}' | reorder | verify", file.display());
    let outcome = run_request(&text, &[&REASSEMBLE, &VERIFY_PAYLOAD]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(reported_counter(&outcome, "verify", "wrong"), 0);
    assert_eq!(
        reported_counter(&outcome, "verify", "1"),
        u64::from(SEGMENT_COUNT) * PAYLOAD_LENGTH as u64
    );
    assert_eq!(reported_counter(&outcome, "verify", "2"), 2 * PAYLOAD_LENGTH as u64);
}
