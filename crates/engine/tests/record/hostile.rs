//! Tests of recordings with false counts, numbers, times or order. A replay always ends, and its
//! ledger balances.

use crate::changes::record_changes;
use crate::common::{Folder, replay_run};
use engine::record::Record;
use engine::run::RunOutcome;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::Random;

/// A time limit so long that no replay of a few hundred blocks reaches it.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// The type of local blocks (`record/form.rs`).
const LOCAL_BLOCK_TYPE: u32 = 0x8000_4c53;
/// Kind of the local blocks that begin a chunk.
const CHUNK_KIND: u32 = 2;
/// Kind of the local blocks that hold an event.
const EVENT_KIND: u32 = 3;
/// Kind of the local block that ends the file.
const END_KIND: u32 = 5;
/// Code of an event that records blocks from a source.
const PULL_EVENT: u32 = 1;
/// Code of an event that records blocks from a ring.
const IMPORT_EVENT: u32 = 2;
/// Code of an event that records the stop of a space for a change to the path.
const CHANGE_EVENT: u32 = 8;

/// A block of the file: its kind if it is a local block, and its bytes.
#[derive(Clone)]
struct RecordFileBlock(Option<u32>, Vec<u8>);

fn read_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn split_blocks(mut bytes: &[u8]) -> Vec<RecordFileBlock> {
    let mut all = Vec::new();
    while bytes.len() >= 12 {
        let length = read_word(bytes, 4) as usize;
        let (block, rest) = bytes.split_at(length);
        let ours = (read_word(block, 0) == LOCAL_BLOCK_TYPE).then(|| read_word(block, 8));
        all.push(RecordFileBlock(ours, block.to_vec()));
        bytes = rest;
    }
    all
}

impl RecordFileBlock {
    fn event_kind(&self) -> Option<u32> {
        (self.0 == Some(EVENT_KIND)).then(|| read_word(&self.1, 12))
    }

    fn set_bytes(&mut self, at: usize, value: &[u8]) {
        self.1[at..at + value.len()].copy_from_slice(value);
    }

    /// Sets the number of blocks that this event claims to contain. The number follows the event's
    /// kind, node and time.
    fn set_claimed_block_count(&mut self, count: u32) {
        self.set_bytes(28, &count.to_le_bytes());
    }
}

/// Encodes these blocks as a file, with correct chunk lengths and a correct digest.
fn encode_file(mut blocks: Vec<RecordFileBlock>) -> Vec<u8> {
    let mut inside: Option<(usize, u32)> = None;
    for at in 0..blocks.len() {
        match blocks[at].0 {
            Some(CHUNK_KIND) => inside = Some((at, 0)),
            // Interface descriptions lie between chunks.
            None if read_word(&blocks[at].1, 0) == 1 => inside = None,
            Some(EVENT_KIND | 4) | None => {
                if let Some((chunk, length)) = &mut inside {
                    *length += blocks[at].1.len() as u32;
                    let (chunk, length) = (*chunk, *length);
                    blocks[chunk].set_bytes(16, &length.to_le_bytes());
                }
            }
            _ => inside = None,
        }
    }
    let mut bytes = Vec::new();
    for block in &mut blocks {
        if block.0 == Some(END_KIND) {
            let end = block.1.len() - 4;
            let sum = Sha256::new().chain_update(&bytes).chain_update(&block.1[44..end]).finalize();
            block.set_bytes(12, &sum);
        }
        bytes.extend_from_slice(&block.1);
    }
    bytes
}

/// Replays these bytes. Returns `None` if they cannot be opened. Panics if the replay does not end
/// or its ledger does not balance.
fn replay_bytes(bytes: &[u8], folder: &Path, what: &str) -> Option<RunOutcome> {
    let record = folder.join("lies.pcapng");
    std::fs::write(&record, bytes).unwrap();
    Record::open(&record).ok()?;
    let into = folder.join("again");
    let _ = std::fs::remove_dir_all(&into);
    std::fs::create_dir_all(&into).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(replay_run(&record, &into))));
    let Ok((outcome, _, _)) = receiver.recv_timeout(TIME_LIMIT) else {
        panic!("{what}: it does not end")
    };
    assert_eq!(outcome.ledger.imbalances(), [], "{what}: {}", failure_text(&outcome));
    Some(outcome)
}

fn failure_text(outcome: &RunOutcome) -> String {
    outcome.failures.iter().map(|failure| format!("{failure}\n")).collect()
}

/// Records a run of three spaces with four changes. Returns the path of the recording, and its
/// blocks.
fn record_four_changes(folder: &Folder, name: &str) -> (PathBuf, Vec<RecordFileBlock>) {
    let line = "tcp@thread1 gap=1ms | inspect | pcap@thread2 all.pcap";
    let changes =
        ["move inspect to thread2", "insert http after tcp", "upgrade tcp", "remove http"];
    let (record, _) = record_changes(folder, (name, line), (&changes, &|_| true));
    let blocks = split_blocks(&std::fs::read(&record).unwrap());
    (record, blocks)
}

fn event_indices(blocks: &[RecordFileBlock], of: u32) -> Vec<usize> {
    (0..blocks.len()).filter(|at| blocks[*at].event_kind() == Some(of)).collect()
}

#[test]
fn v10_recording_survives_decoding_and_encoding() {
    let folder = Folder::new("lies-none");
    let (record, blocks) = record_four_changes(&folder, "lies-none");
    assert!(encode_file(blocks) == std::fs::read(record).unwrap());
}

#[test]
fn v10_excessive_counts_are_reported_with_their_offset() {
    let folder = Folder::new("lies-counts");
    let (_, whole) = record_four_changes(&folder, "lies-counts");
    let begins = |blocks: &[RecordFileBlock], at: usize| -> usize {
        blocks[..at].iter().map(|block| block.1.len()).sum()
    };
    for of in [PULL_EVENT, IMPORT_EVENT] {
        let all = event_indices(&whole, of);
        for at in [all[0], all[all.len() / 2], all[all.len() - 1]] {
            for count in [5000, u32::MAX] {
                let what = format!("event {of}, block {at}, count {count}");
                let mut blocks = whole.clone();
                blocks[at].set_claimed_block_count(count);
                let byte = begins(&blocks, at);
                let outcome = replay_bytes(&encode_file(blocks), &folder.0, &what).expect(&what);
                let message = failure_text(&outcome);
                assert!(message.contains("the record is invalid"), "{what}: {message}");
                // The reported offset is the offset of the event itself only if the event comes
                // from a ring.
                if of == IMPORT_EVENT {
                    assert!(
                        message.contains(&format!("byte {byte}")),
                        "{what} at {byte}: {message}"
                    );
                }
            }
        }
    }
}

#[test]
fn v10_deadlock_around_a_recorded_change_is_reported() {
    let folder = Folder::new("lies-change");
    let (_, whole) = record_four_changes(&folder, "lies-change");
    let changes = event_indices(&whole, CHANGE_EVENT);
    assert!(changes.len() > 6, "{}", changes.len());
    for at in changes {
        for number in [0, 3, u64::MAX] {
            let mut blocks = whole.clone();
            blocks[at].set_bytes(16, &u64::to_le_bytes(number));
            replay_bytes(&encode_file(blocks), &folder.0, &format!("change {number} at {at}"));
        }
        // The upstream space is stopped for the change, and the current space waits for its blocks.
        let taken = event_indices(&whole[..at], IMPORT_EVENT);
        if let Some(last) = taken.last() {
            let mut blocks = whole.clone();
            blocks[*last].set_claimed_block_count(900);
            let what = format!("900 before the change at {at}");
            let message =
                failure_text(&replay_bytes(&encode_file(blocks), &folder.0, &what).expect(&what));
            assert!(message.contains("the record is invalid"), "{what}: {message}");
        }
    }
}

/// Changes, removes, repeats or exchanges random blocks. Returns a description of the corruption.
fn corrupt_block(blocks: &mut Vec<RecordFileBlock>, random: &mut Random) -> String {
    // Head and interfaces stay intact, so the same line is replayed.
    let first = blocks.iter().position(|block| block.0 == Some(CHUNK_KIND)).unwrap();
    let last = blocks.len() - 1;
    let any = random.within(first..last);
    let events: Vec<usize> =
        (first..last).filter(|at| blocks[*at].event_kind().is_some()).collect();
    let event = *random.pick(&events);
    let count = *random.pick(&[0, 1, 2, 63, 65, 4000, u32::MAX]);
    match random.within(0..8) {
        0 if blocks[event].1.len() > 32 => {
            blocks[event].set_claimed_block_count(count);
            format!("block {event} counts {count}")
        }
        1 => {
            blocks[event].set_bytes(16, &count.to_le_bytes());
            format!("block {event} is of node {count}")
        }
        2 if blocks[event].1.len() > 28 => {
            let time = random.below(u64::MAX) >> random.within(0..64);
            blocks[event].set_bytes(20, &time.to_le_bytes());
            format!("block {event} is at {time}")
        }
        3 => {
            blocks.swap(any, event);
            format!("blocks {any} and {event} are exchanged")
        }
        4 => {
            blocks.remove(event);
            format!("block {event} is missing")
        }
        5 => {
            let twice = blocks[any].clone();
            blocks.insert(event, twice);
            format!("block {any} stands before {event}, too")
        }
        6 => {
            let kind = random.below(12) as u32;
            blocks[event].set_bytes(12, &kind.to_le_bytes());
            format!("block {event} is event {kind}")
        }
        _ => {
            // The length stays intact, since it locates all later blocks.
            let length = blocks[any].1.len();
            if length > 16 {
                let at = random.within(8..length - 4);
                blocks[any].1[at] ^= 1 << random.below(8);
            }
            format!("a bit of block {any} is another")
        }
    }
}

#[test]
fn v10_replay_of_any_corruption_terminates() {
    let folder = Folder::new("lies-any");
    let (_, whole) = record_four_changes(&folder, "lies-any");
    let mut random = Random::with_replayable_seed();
    let (mut opened, mut failed) = (0, 0);
    for _ in 0..120 {
        let mut blocks = whole.clone();
        let lies: Vec<String> =
            (0..random.within(1..4)).map(|_| corrupt_block(&mut blocks, &mut random)).collect();
        let mut bytes = encode_file(blocks);
        if random.one_in(8) {
            bytes.truncate(random.within(bytes.len() / 2..bytes.len()));
        }
        if let Some(outcome) = replay_bytes(&bytes, &folder.0, &lies.join(", ")) {
            opened += 1;
            failed += usize::from(!outcome.failures.is_empty());
        }
    }
    assert!(opened > 40 && failed > 10, "{opened} opened, {failed} failed");
}
