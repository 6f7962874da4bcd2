//! Tests of forged state: a filter loads session state that another process claims to have saved.
//! The filter checks only the format of the state (decision 0041).
//!
//! For any session bytes and held blocks, a filter must not panic, must stay within its limits of
//! time, held blocks and emitted blocks, and its ledger must balance. The filter's results may be
//! meaningless.

use abi::{BlockFlags, RichPointer};
use filter::catalog::FILTERS;
use filter::testing::{Arena, Frame, Node, Space, example_words, total_amount};
use filter::{
    Amount, Batch, Counts, Description, Form, Gateway as _, LANES, MovedSession,
    PRIVATE_SESSION_KEY, StateScope, Time,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use testkit::{Random, TcpHeader};

/// Number of forged states for each filter and argument list. The variable `ROUNDS` multiplies it.
const FORGED_STATES_PER_FILTER: usize = 20;
/// Limit on processor time per pass in ns. A sandboxed process that exceeds it would be killed.
const PASS_NS_MAX: u64 = 2_000_000_000;
/// Maximum number of blocks that a filter may emit for one input block. Around a gap, these are
/// several blocks with their descriptions.
const EMITTED_PER_BLOCK_MAX: u64 = 16;
/// Maximum number of blocks that a filter may emit for one connection, in addition to those for its
/// input. In the worst case, all bytes of both directions are missing, and each MB of them becomes
/// a hole.
const EMITTED_PER_CONNECTION_MAX: u64 = 2 << 11;
/// Boundary values of integers, which are written into forged session state.
const BOUNDARY_VALUES: [u64; 9] = [
    0,
    1,
    0x7f,
    u8::MAX as u64,
    u16::MAX as u64,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns the argument lists with which a filter is tested: the arguments of its example and, if
/// the filter accepts it, an empty list.
fn argument_lists(d: &'static Description) -> Vec<Vec<String>> {
    let mut sets = vec![example_words(d)];
    if !sets[0].is_empty() && Node::new(d, &[]).is_ok() {
        sets.push(Vec::new());
    }
    sets
}

/// Returns frames of connections with gaps and reordering, mixed with frames of every shape.
fn mixed_frames(random: &mut Random, count: usize) -> Vec<Frame> {
    let texts: [&[u8]; 6] = [
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03abcdefgh",
        b"\x00\x1d\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x00\x00\x01\x00\x01",
        b"SSH-2.0-x\r\n",
    ];
    let (mut next, mut time) = ([[1000_u32; 2]; 4], 0);
    let mut all = Vec::new();
    for _ in 0..count {
        let step = 1 << random.within(1..31);
        time += random.below(step);
        let (flow, back) = (random.within(0..4), random.within(0..2));
        let mut frame = match random.within(0..6) {
            0 => {
                let length = random.within(0..200);
                Frame::new(*random.pick(&[1, 101, 9999]), &random.bytes(length))
            }
            1 => {
                let here = testkit::Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2");
                let (at, more) = (8 * random.below(4) as u16, random.one_in(2));
                Frame::new(1, &here.fragment(at, more).ip_payload(17, &random.bytes(32)))
            }
            _ => {
                let ends = ["10.0.0.1", "10.0.0.2"];
                let here = testkit::Frame::ethernet().ipv4(ends[back], ends[1 - back]);
                let ports = [4000 + flow as u16, [80, 443, 53, 22][flow]];
                let text = *random.pick(&texts);
                let segment = TcpHeader {
                    source: ports[back],
                    target: ports[1 - back],
                    sequence: next[flow][back],
                    ..TcpHeader::default()
                };
                let gap = if random.one_in(6) { random.below(3000) as u32 } else { 0 };
                next[flow][back] = next[flow][back].wrapping_add(text.len() as u32 + gap);
                Frame::new(1, &here.tcp(&segment, text))
            }
        };
        frame.time = time;
        all.push(frame);
    }
    all
}

/// A filter that is tested with forged state, with the filter that must precede it, if any.
struct FilterUnderTest {
    before: Option<Node>,
    node: Node,
    taken: u64,
    passed: u64,
    /// Number of held blocks in the state that the filter has loaded.
    loaded_blocks: u64,
}

impl FilterUnderTest {
    fn new(d: &'static Description, words: &[String]) -> Self {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let tcp = filter::catalog::find("tcp").expect("it is in the catalogue");
        let before = (!d.input_forms.contains(Form::Frame))
            .then(|| Node::new(tcp, &[]).expect("it is plain"));
        let node = Node::new(d, &words).unwrap_or_else(|mistake| panic!("{}: {mistake}", d.name));
        Self { before, node, taken: 0, passed: 0, loaded_blocks: 0 }
    }

    /// Sends frames through the tested filters in one batch. Each frame gets a random session
    /// number.
    fn send_frame_round<'a>(
        &mut self,
        frames: &[Frame],
        space: &mut Space<'a>,
        random: &mut Random,
    ) {
        let now = frames.last().map_or(0, |frame| frame.time);
        let mut batch = space.batch(frames);
        for l in filter::lanes(batch.live_lanes()) {
            let mut block = batch.block(l);
            block.context.session = random.below(5) as u32;
            batch.set_block(l, block);
        }
        let batches = match &mut self.before {
            None => vec![batch],
            Some(before) => before.process_batch(batch, space, now),
        };
        for batch in batches {
            let came = u64::from(batch.live_lanes().count_ones());
            self.taken += came;
            self.call_filter(came, |node, space| node.process_batch(batch, space, now), space);
        }
    }

    /// Calls the filter once, by `call`. Asserts that the filter stays within its limits on time,
    /// held blocks and emitted blocks. `came` is the number of blocks that it receives.
    fn call_filter<'a>(
        &mut self,
        came: u64,
        call: impl FnOnce(&mut Node, &mut Space<'a>) -> Vec<Batch<'a>>,
        space: &mut Space<'a>,
    ) {
        let state = self.node.filter.state();
        let sessions = state.map_or(0, |state| state.session_keys().len() as u64);
        let (held, begin) = (self.node.counts.held.blocks, sys::clock::thread_cpu_ns());
        let left = total_amount(&call(&mut self.node, space)).blocks;
        let spent = sys::clock::thread_cpu_ns() - begin;
        assert!(spent < PASS_NS_MAX, "a turn took {} ms", spent / 1_000_000);
        let most =
            EMITTED_PER_BLOCK_MAX * (came + held + 1) + EMITTED_PER_CONNECTION_MAX * sessions;
        assert!(left <= most, "{left} blocks came of {came}, {held} held, {sessions} sessions");
        let counts = &self.node.counts;
        let may = u64::from(self.node.description.state.held_max).max(held);
        assert!(counts.held.blocks <= may, "{} blocks are held", counts.held.blocks);
        self.passed += left;
        let came = self.taken + counts.made.blocks + self.loaded_blocks;
        assert_eq!(came, self.passed + consumed_or_held(counts), "its ledger: {counts:?}");
    }

    /// Calls the filter at the time `now` without blocks. Then makes it publish its state, and
    /// reads its report.
    fn tick(&mut self, now: Time, space: &mut Space<'_>) {
        self.call_filter(0, |node, space| node.tick(space, now), space);
        if let Some((whose, _)) = self.node.description.published_state() {
            let state = self.node.filter.state().expect("what shows keeps");
            state.publish(whose, true, &mut |_, _| ());
        }
        assert!(self.node.report().rows.len() <= 100, "what it reports");
    }
}

/// Returns the number of blocks that a filter consumed or dropped, or still holds, according to its
/// counters.
fn consumed_or_held(counts: &Counts) -> u64 {
    let all = [counts.consumed, counts.held, counts.evicted, counts.no_room];
    all.iter().chain(&counts.dropped).map(|amount: &Amount| amount.blocks).sum()
}

/// Overwrites a session with forged state.
fn forge_session(moved: &mut MovedSession, space: &mut Space<'_>, random: &mut Random) {
    let length = moved.bytes.len();
    match random.within(0..8) {
        0 => random.flip_bits(&mut moved.bytes, 1),
        1 => moved.bytes = random.bytes(length),
        2 => moved.bytes.fill(*random.pick(&[0, 1, 0x7f, 0xff])),
        // Numbers of any width that are too large, or barely valid.
        _ => {
            for _ in 0..random.within(1..6) {
                let width = *random.pick(&[1, 2, 4, 8]);
                let edge = random.pick(&BOUNDARY_VALUES).wrapping_sub(random.below(3));
                if let Some(places) = length.checked_sub(width) {
                    let at = random.within(0..places / width + 1) * width;
                    moved.bytes[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
                }
            }
        }
    }
    for list in &mut moved.held {
        // Arbitrary data in place of the filter's own.
        match random.within(0..6) {
            0 => list.clear(),
            1 => {
                let frame = Frame::tcp(1, 2, &random.bytes(40));
                let block = space.batch(&[frame]).block(0).narrow(54, random.below(41) as u32);
                list.extend(space.pin(&block).map(|(entry, pin)| (0, entry, pin)));
            }
            _ => {}
        }
        for (key, entry, _) in list {
            if random.one_in(3) && !entry.pointer.is_hole() {
                // The copy differs from the frame in a few bits.
                let mut bytes = space.frame(entry).to_vec();
                let flips = random.within(1..9);
                random.flip_bits(&mut bytes, flips);
                let mut copy = |room: &mut [u8]| {
                    room.copy_from_slice(&bytes);
                    bytes.len()
                };
                if let Some((pointer, _)) = space.append(bytes.len(), &mut copy) {
                    let place = pointer.place.subrange(entry.marks.view, entry.pointer.length());
                    let class = entry.pointer.class;
                    entry.pointer = RichPointer::new(pointer.dbuf(), place, class);
                }
            }
            if random.one_in(2) {
                *key = (*random.pick(&BOUNDARY_VALUES)).wrapping_sub(random.below(3)) as u32;
            }
            if random.one_in(2) {
                let flags = [
                    BlockFlags::FIRST,
                    BlockFlags::LAST,
                    BlockFlags::BACKWARD,
                    BlockFlags::SESSION_END,
                    BlockFlags(0),
                ];
                entry.context.flags = random.pick(&flags).with(*random.pick(&flags));
                entry.context.time = random.pick(&BOUNDARY_VALUES).wrapping_sub(random.below(3));
                entry.context.session = random.below(5) as u32;
            }
        }
    }
}

/// Tests one filter with one forged state.
fn test_forged_state(d: &'static Description, words: &[String], random: &mut Random) {
    let arena = Arena::new(4000);
    let mut space = Space::new(&arena);
    let frames = mixed_frames(random, 60);
    let (early, late) = frames.split_at(random.within(1..frames.len()));
    let mut leaves = FilterUnderTest::new(d, words);
    for frames in early.chunks(LANES) {
        leaves.send_frame_round(frames, &mut space, random);
    }
    let mut saved = leaves.node.take_sessions();
    for moved in &mut saved {
        if !random.one_in(4) {
            forge_session(moved, &mut space, random);
        }
        if moved.key != PRIVATE_SESSION_KEY && random.one_in(8) {
            moved.key = random.pick(&BOUNDARY_VALUES).wrapping_sub(random.below(3));
        }
    }
    // State of an invalid format is rejected as a whole.
    if random.one_in(8)
        && let Some(moved) = saved.first()
    {
        let mut wrong = MovedSession { held: Vec::new(), ..moved.clone() };
        wrong.bytes.resize(random.within(0..3 * moved.bytes.len() + 2), 0xff);
        let fits = wrong.bytes.len() == moved.bytes.len();
        assert_eq!(FilterUnderTest::new(d, words).node.restore_sessions(vec![wrong]).is_ok(), fits);
        let held = vec![Vec::new(); moved.held.len() + 1];
        let wrong = MovedSession { held, ..moved.clone() };
        assert!(
            FilterUnderTest::new(d, words).node.restore_sessions(vec![wrong]).is_err(),
            "a list too many"
        );
    }
    let mut comes = FilterUnderTest::new(d, words);
    comes.node.restore_sessions(saved).expect("the form is that of the filter");
    comes.loaded_blocks = comes.node.counts.held.blocks;
    for frames in late.chunks(random.within(1..LANES)) {
        comes.send_frame_round(frames, &mut space, random);
        let now = frames.last().map_or(0, |frame| frame.time);
        if random.one_in(4) {
            comes.tick(now, &mut space);
        }
    }
    // Its deadline may be long past, or never come.
    let now = *random.pick(&[0, late.last().map_or(0, |frame| frame.time), 1 << 50]);
    comes.tick(now, &mut space);
    comes.call_filter(0, |node, space| node.finish(space, now), &mut space);
    comes.node.take_sessions();
}

#[test]
fn v18_forged_state_makes_no_filter_panic_or_exceed_bounds() {
    let mut random = Random::with_replayable_seed();
    let keeps = |d: &&&'static Description| {
        matches!(d.state.scope, StateScope::Private | StateScope::Sessions)
    };
    let factor = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut found, mut stateful) = (Vec::new(), 0);
    for d in FILTERS.iter().filter(keeps) {
        for words in argument_lists(d) {
            for number in 0..FORGED_STATES_PER_FILTER * factor {
                let mut its = Random::new(random.next_u64());
                let done =
                    catch_unwind(AssertUnwindSafe(|| test_forged_state(d, &words, &mut its)));
                if done.is_err() {
                    found.push(format!("{} {words:?}, round {number}", d.name));
                    break;
                }
            }
        }
        stateful += 1;
    }
    assert!(stateful > 12, "{stateful} filters keep something that can move");
    assert_eq!(found, [""; 0], "filters that believed too much");
}
