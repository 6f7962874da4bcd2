//! The type of fuzz bodies, a reader of fuzz input, and the fuzz bodies for the language and for
//! rich pointers.

use abi::{DbufId, Entry, Extent, RichPointer};
use buffer::crossing::{self, Origin, crossing};
use buffer::pool::{Pool, PoolConfig, SegmentPin};
use buffer::signal::Doorbell;
use engine::registry::MachineRegistry;
use pipeline::plan::{Machine, plan};
use std::sync::Arc;
use zerocopy::FromBytes;

/// A function that is called with arbitrary bytes and panics if an invariant is violated, with a
/// corpus of well-formed inputs.
pub(crate) struct FuzzTarget {
    /// Name of the tested code, for reports, such as `dns`.
    pub(crate) name: &'static str,
    /// A function that returns well-formed inputs, from which other inputs are derived.
    pub(crate) corpus: fn() -> Vec<Vec<u8>>,
    /// Number of random inputs in a smoke run.
    pub(crate) rounds: usize,
    /// The function to call. It panics if an invariant is violated.
    pub(crate) run: fn(&[u8]),
}

/// A reader that consumes fuzz input from the front and returns zeros after its end.
pub(crate) struct InputReader<'i>(pub(crate) &'i [u8]);

impl<'i> InputReader<'i> {
    /// Returns the next `length` bytes of the input, or fewer at its end.
    pub(crate) fn read_bytes(&mut self, length: usize) -> &'i [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Returns the next eight bytes as a number.
    pub(crate) fn read_u64(&mut self) -> u64 {
        let bytes = self.read_bytes(8);
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns the next two bytes as a number.
    pub(crate) fn read_u16(&mut self) -> u16 {
        let bytes = self.read_bytes(2);
        bytes.iter().fold(0, |number, byte| number << 8 | u16::from(*byte))
    }

    /// Returns the next byte of the input, or 0 after its end.
    pub(crate) fn read_u8(&mut self) -> u8 {
        self.read_bytes(1).first().copied().unwrap_or(0)
    }
}

/// Fuzz body for the parser: any text either parses to a request or yields a list of errors.
pub(crate) const PARSER_FUZZ_TARGET: FuzzTarget = FuzzTarget {
    name: "language",
    corpus: request_corpus,
    rounds: 15_000,
    run: pipeline::language::fuzz::check_language,
};

/// Fuzz body for the planner: any request is either planned or refused with reasons.
pub(crate) const PLANNER_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "request", corpus: request_corpus, rounds: 8000, run: fuzz_planner };

fn request_corpus() -> Vec<Vec<u8>> {
    let examples = MachineRegistry::descriptions().map(|d| d.example);
    let people = [
        "rx ++ tx | ip | mpeg +* !http",
        "replay - | dport |1:1023 (|22 count + |80 hist) | json",
        "generate seq=yes | dport --name=X |53,80 (inspect | dport --name=X) + |all discard",
        "--latency=1ms replay a@thread0 | (eth |all vlan) ++ !bpf \"tcp\" |!zero files 'x y/'",
        "read 'f' lines=yes | compress gzip | decompress ; generate count=1 | (ip +* !udp) | print",
    ];
    examples.chain(people).map(|text| text.as_bytes().to_vec()).collect()
}

fn fuzz_planner(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    let rendered = pipeline::render(&text, &mistakes, false);
    assert_eq!(rendered.is_empty(), mistakes.is_empty(), "{rendered}");
    let wrong = |m: &pipeline::Diagnostic| m.severity == pipeline::language::Severity::Error;
    if mistakes.iter().any(wrong) {
        return;
    }
    match plan(graph, &MachineRegistry::Local, &Machine::example()) {
        Ok(plan) => assert_eq!(plan.placements.len(), plan.graph.nodes.len()),
        Err(refused) => assert!(!refused.refusals.is_empty(), "refused without a reason: {text}"),
    }
}

/// Fuzz body for rich pointers: any two words resolve to bytes in the pool or to a fault, and any
/// ring entry is accepted or refused.
pub(crate) const POINTER_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "resolve", corpus: Vec::new, rounds: 10_000, run: fuzz_pointers };

fn fuzz_pointers(bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let id = DbufId::new(7).expect("a small number");
    let mut pool = Pool::new(id, PoolConfig { segment: 1 << 12, segments: 4 }).expect("memory");
    let mut places = Vec::new();
    for _ in 0..input.read_u8() % 16 {
        let length = usize::from(input.read_u16() % 4096);
        let mark = places.len() as u8;
        let appended = pool.append(length, |room| {
            room.fill(mark);
            length
        });
        places.extend(appended.map(|(place, _)| place));
    }
    let (doorbell, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let config = crossing::RingConfig { entries: 64, ..crossing::RingConfig::default() };
    let (mut writer, mut readers) = crossing(&config, doorbell, &[far]).expect("a ring");
    let mut pin = None;
    while !input.0.is_empty() {
        let pointer = untrusted_pointer(&mut input, &places);
        let place = pointer.place;
        match pool.resolve(pointer) {
            Ok(found) => assert_eq!(found.len(), pointer.length() as usize),
            Err(_) => assert!(pointer.dbuf() != id || pool.bytes(place).is_none()),
        }
        pin = pool.pin(place).or(pin);
        assert!(pool.lease(place).is_ok() == pool.bytes(place).is_some());
        pool.unpin(SegmentPin::from_word(input.read_u64()));
        let mut entry = [0; size_of::<Entry>()];
        let rest = input.read_bytes(size_of::<Entry>() - 16);
        entry[..8].copy_from_slice(&pointer.words()[0].to_le_bytes());
        entry[8..16].copy_from_slice(&pointer.words()[1].to_le_bytes());
        entry[16..16 + rest.len()].copy_from_slice(rest);
        let entry = Entry::read_from_bytes(&entry).expect("any bytes are an entry");
        let origins: [&dyn Origin; 1] = [&pool];
        if writer.push(&[entry], &origins).is_ok_and(|pushed| pushed.put == 1) {
            let batch = readers[0].peek(1).expect("what was just put");
            assert_eq!(batch.entry(0), entry);
            let frame = entry.frame();
            match batch.frame(0) {
                Ok(bytes) => assert_eq!(bytes.len(), frame.length() as usize),
                Err(_) => assert!(pool.resolve(frame).is_err()),
            }
            readers[0].release(1).expect("what was just seen");
            writer.drop_passed_leases().expect("what was just passed");
        }
    }
    if let Some(pin) = pin {
        pool.unpin(pin);
    }
    pool.end_pass();
}

/// Returns a pointer derived from the input: arbitrary words, or a pointer near one of the valid
/// extents `places`.
fn untrusted_pointer(input: &mut InputReader<'_>, places: &[Extent]) -> RichPointer {
    let [kind, which] = [input.read_u8(), input.read_u8()].map(usize::from);
    let words = [input.read_u64(), input.read_u64()];
    match places.get(which % places.len().max(1)) {
        Some(place) if kind % 4 != 0 => {
            let id = DbufId::new(if kind % 8 == 1 { words[1] as u32 >> 8 } else { 7 });
            let near = place.subrange(words[0] as u32 % 64, words[1] as u32 % 8192);
            let class = abi::Class(words[1] as u32);
            RichPointer::new(id.unwrap_or(DbufId::HOLE), near, class)
        }
        _ => RichPointer::from_words(words),
    }
}
