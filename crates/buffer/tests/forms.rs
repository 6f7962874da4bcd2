//! One exam for every form of a ring: blocks of any length and slots of one size, read by threads
//! of the writer's process and by strangers, with every policy and every wish of a reader.
//! (FEATURES D11, D14; CONTRACT 19)
//!
//! The judge is a list of all that was put. Whatever a reader gets must be the block that the list
//! has at that number, later than the one before; what it did not get must be what it has counted
//! as lost or skipped, to the block.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use abi::DbufId;
use streamline_buffer::dbuf::{self, fixed};
use streamline_buffer::pace::{Pace, Paced, Skip, Start};
use streamline_buffer::share;
use streamline_buffer::stream::{self, Input, Output};
use streamline_buffer::{Fault, Policy, Put, Taken};
use testkit::Random;

/// Bytes of the longest block of the exam.
const LONGEST: usize = 200;
/// So little room that laps are short.
const CAPACITY: usize = 4096;
const POLICIES: [Policy; 3] = [Policy::Block, Policy::DropNew, Policy::Overwrite];

// ---- what every form can do

trait Writes {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault>;
    /// By reserve and commit: room for more than is used.
    fn fill(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault>;
    /// Opens room and gives it up.
    fn give_up(&mut self, room: usize) -> Result<(), Fault>;
    fn show(&mut self);
    fn shut_out(&mut self, reader: usize);
    fn longest(&self) -> usize;
    fn count(&self) -> Put;
    fn taken(&self, reader: usize) -> Option<Taken>;
}

trait Reads: Skip {
    fn written(&self) -> Put;
    fn is_finished(&mut self) -> Result<bool, Fault>;
    /// In place, where the form has that: the block, without taking it.
    fn peek(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
        None
    }
    /// In place, and taken; not given back before `release`.
    fn take_in_place(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
        None
    }
    fn release(&mut self) {}
}

macro_rules! rings {
    ($writer:ty, $reader:ty, $visitor:ty) => {
        impl Writes for $writer {
            fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
                self.write(block)
            }
            fn fill(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
                let Some(mut room) = self.reserve(room)? else { return Ok(false) };
                room[..block.len()].copy_from_slice(block);
                let place = room.commit(block.len());
                assert_eq!(place.length() as usize, block.len());
                Ok(true)
            }
            fn give_up(&mut self, room: usize) -> Result<(), Fault> {
                self.reserve(room).map(drop)
            }
            fn show(&mut self) {
                self.publish();
            }
            fn shut_out(&mut self, reader: usize) {
                self.shut_out(reader);
            }
            fn longest(&self) -> usize {
                self.block_max()
            }
            fn count(&self) -> Put {
                self.count()
            }
            fn taken(&self, reader: usize) -> Option<Taken> {
                self.taken(reader)
            }
        }

        impl Reads for $reader {
            fn written(&self) -> Put {
                self.written()
            }
            fn is_finished(&mut self) -> Result<bool, Fault> {
                self.is_finished()
            }
            fn peek(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
                Some(self.peek().map(|block| block.map(<[u8]>::to_vec)))
            }
            fn take_in_place(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
                Some(self.next_block().map(|block| block.map(<[u8]>::to_vec)))
            }
            fn release(&mut self) {
                self.release();
            }
        }

        impl Reads for $visitor {
            fn written(&self) -> Put {
                self.written()
            }
            fn is_finished(&mut self) -> Result<bool, Fault> {
                self.is_finished()
            }
        }
    };
}

rings!(dbuf::Writer, dbuf::Reader, dbuf::Visitor);
rings!(fixed::Writer, fixed::Reader, fixed::Visitor);

/// A stream waits where it blocks; the exam asks it only when there is room.
struct Stream {
    output: Output,
    room: fn(&Output) -> bool,
}

impl Writes for Stream {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if (self.room)(&self.output) { self.output.write(block) } else { Ok(false) }
    }
    fn fill(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
        if !(self.room)(&self.output) {
            return Ok(false);
        }
        self.output.write_with(room, |room| {
            room[..block.len()].copy_from_slice(block);
            block.len()
        })
    }
    fn give_up(&mut self, _room: usize) -> Result<(), Fault> {
        Ok(())
    }
    fn show(&mut self) {
        self.output.flush();
    }
    fn shut_out(&mut self, reader: usize) {
        self.output.shut_out(reader);
        // From here on it is asked whoever is behind.
        self.room = |_| true;
    }
    fn longest(&self) -> usize {
        self.output.block_max()
    }
    fn count(&self) -> Put {
        self.output.count()
    }
    fn taken(&self, reader: usize) -> Option<Taken> {
        self.output.taken(reader)
    }
}

impl Reads for Input {
    fn written(&self) -> Put {
        self.written()
    }
    fn is_finished(&mut self) -> Result<bool, Fault> {
        // Asked when nothing was left.
        self.try_read(&mut [0]).map(|count| count == Some(0))
    }
    fn release(&mut self) {
        self.give_back();
    }
}

/// A stream of slots, asked as [`Stream`] is.
struct Slots {
    output: fixed::stream::Output,
    waits: bool,
    slots: u64,
}

impl Slots {
    /// Whether there is a slot for sure, as far as the readers have shown what they took.
    fn has_room(&self) -> bool {
        let put = self.output.count();
        let mut all = (0..).map_while(|reader| self.output.taken(reader));
        !self.waits || all.all(|taken| put.resident(&taken).is_some_and(|left| left < self.slots))
    }
}

impl Writes for Slots {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.has_room() { self.output.write(block) } else { Ok(false) }
    }
    fn fill(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
        if !self.has_room() {
            return Ok(false);
        }
        self.output.write_with(room, |room| {
            room[..block.len()].copy_from_slice(block);
            block.len()
        })
    }
    fn give_up(&mut self, _room: usize) -> Result<(), Fault> {
        Ok(())
    }
    fn show(&mut self) {
        self.output.flush();
    }
    fn shut_out(&mut self, reader: usize) {
        self.output.shut_out(reader);
        self.waits = false;
    }
    fn longest(&self) -> usize {
        self.output.block_max()
    }
    fn count(&self) -> Put {
        self.output.count()
    }
    fn taken(&self, reader: usize) -> Option<Taken> {
        self.output.taken(reader)
    }
}

impl Reads for fixed::stream::Input {
    fn written(&self) -> Put {
        self.written()
    }
    fn is_finished(&mut self) -> Result<bool, Fault> {
        self.try_read(&mut [0]).map(|piece| piece == stream::Piece::End)
    }
    fn release(&mut self) {
        self.give_back();
    }
}

type Ring = (Box<dyn Writes>, Vec<Box<dyn Reads>>);

type Form = (&'static str, fn(Policy, usize) -> Ring);

/// Each form makes a ring with so many readers.
const FORMS: [Form; 6] = [
    ("blocks of any length, in a process", |policy, readers| {
        let (writer, readers) = dbuf::ring(&blocks(policy, readers));
        (Box::new(writer), readers.into_iter().map(|r| Box::new(r) as Box<dyn Reads>).collect())
    }),
    ("slots of one size, in a process", |policy, readers| {
        let (writer, readers) = fixed::ring(&slots(policy, readers));
        (Box::new(writer), readers.into_iter().map(|r| Box::new(r) as Box<dyn Reads>).collect())
    }),
    ("blocks of any length, among strangers", |policy, readers| {
        let (writer, offers) = share::blocks(&blocks(policy, readers)).unwrap();
        let attach = |offer: share::Offer| Box::new(offer.read_blocks().unwrap()) as Box<dyn Reads>;
        (Box::new(writer), offers.into_iter().map(attach).collect())
    }),
    ("slots of one size, among strangers", |policy, readers| {
        let (writer, offers) = share::slots(&slots(policy, readers)).unwrap();
        let attach = |offer: share::Offer| Box::new(offer.read_slots().unwrap()) as Box<dyn Reads>;
        (Box::new(writer), offers.into_iter().map(attach).collect())
    }),
    ("a stream of slots", |policy, readers| {
        let shape = slots(policy, readers);
        let (mut output, offers) = fixed::stream::stream(&shape, 3).unwrap();
        output.spin(0);
        let open = |offer: fixed::stream::Offer| Box::new(offer.open().unwrap()) as Box<dyn Reads>;
        let (waits, slots) = (policy == Policy::Block, shape.slots as u64);
        (Box::new(Slots { output, waits, slots }), offers.into_iter().map(open).collect())
    }),
    ("a stream", |policy, readers| {
        let config = stream::Config::new(DbufId::new(3).unwrap()).capacity(CAPACITY);
        let config = stream::Config { every: 3, ..config.policy(policy).readers(readers) };
        let (mut output, offers) = stream::stream(&config).unwrap();
        output.spin(0);
        let room: fn(&Output) -> bool = match policy {
            Policy::Block => has_room,
            Policy::DropNew | Policy::Overwrite => |_| true,
        };
        let open = |offer: stream::Offer| Box::new(offer.open().unwrap()) as Box<dyn Reads>;
        (Box::new(Stream { output, room }), offers.into_iter().map(open).collect())
    }),
];

/// Whether a block of the exam fits for sure, as far as the readers have shown what they took.
fn has_room(output: &Output) -> bool {
    let all = (0..).map_while(|reader| output.taken(reader));
    let put = output.count();
    let span = (LONGEST + 32) as u64;
    all.into_iter().all(|taken| {
        let resident = put.resident(&taken).unwrap_or(u64::MAX);
        resident.saturating_mul(span) + 3 * span < CAPACITY as u64
    })
}

fn blocks(policy: Policy, readers: usize) -> dbuf::Config {
    dbuf::Config { id: DbufId::new(3).unwrap(), capacity: CAPACITY, policy, readers }
}

fn slots(policy: Policy, readers: usize) -> fixed::Config {
    let (slot, slots) = (256, CAPACITY / 256);
    fixed::Config { id: DbufId::new(3).unwrap(), slot, slots, policy, readers }
}

/// Does something for each form, policy and number of readers.
fn each(exam: impl Fn(&str, Policy, Box<dyn Writes>, Vec<Box<dyn Reads>>)) {
    for (name, make) in FORMS {
        for policy in POLICIES {
            for readers in [1, 3] {
                let (writer, all) = make(policy, readers);
                exam(&format!("{name}, {policy:?}, {readers} readers"), policy, writer, all);
            }
        }
    }
}

// ---- the judge

/// Block number `number`: its length and its bytes are told by the number.
fn block(number: u64) -> Vec<u8> {
    let length = 8 + usize::try_from(number * 7919 % (LONGEST as u64 - 8)).unwrap();
    let mut block = vec![number.wrapping_mul(37) as u8; length];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// What one reader has been given so far.
#[derive(Default)]
struct Seen {
    /// The number that comes next, had nothing been left out.
    next: u64,
    blocks: u64,
    bytes: u64,
    left_out: u64,
}

impl Seen {
    fn take(&mut self, what: &str, bytes: &[u8]) {
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, block(number), "{what}: block {number} is not what was put");
        assert!(number >= self.next, "{what}: {number} after {}", self.next);
        self.left_out += number - self.next;
        self.next = number + 1;
        self.blocks += 1;
        self.bytes += bytes.len() as u64;
    }

    fn balances(&self, what: &str, counted: Taken) {
        assert_eq!((counted.blocks, counted.bytes), (self.blocks, self.bytes), "{what}");
    }
}

fn read(reader: &mut dyn Reads) -> Option<Vec<u8>> {
    let mut out = vec![0; LONGEST];
    let length = reader.read(&mut out).unwrap()?;
    out.truncate(length);
    Some(out)
}

// ---- the exam

/// Any order of writes and looks: everything is in its place and every ledger balances to the end.
#[test]
fn d11_in_any_order_every_block_is_whole_in_its_place_and_accounted_for() {
    let seed = Random::replayable().next();
    each(|what, policy, mut writer, mut readers| {
        let mut random = Random::new(seed);
        let wishes = [
            (Start::Oldest, Pace::Everything),
            (Start::Oldest, Pace::Latest),
            (Start::Now, Pace::Everything),
        ];
        let mut seen: Vec<Seen> = readers.iter().map(|_| Seen::default()).collect();
        let (mut number, mut dropped) = (0, 0);
        for _ in 0..6000 {
            match random.below(5) {
                0..=2 => {
                    let next = block(number);
                    let put = if random.below(2) == 0 {
                        writer.write(&next).unwrap()
                    } else {
                        writer.fill((next.len() + 20).min(LONGEST), &next).unwrap()
                    };
                    number += u64::from(put);
                    dropped += u64::from(!put && policy == Policy::DropNew);
                    assert!(put || policy != Policy::Overwrite, "{what}");
                }
                3 => writer.show(),
                _ => {
                    let at = random.within(0..readers.len());
                    let (_, pace) = wishes[at];
                    if pace == Pace::Latest {
                        readers[at].skip_to_latest().unwrap();
                    } else if at == 2 && random.below(50) == 0 {
                        readers[at].skip_to_now().unwrap();
                    }
                    for _ in 0..random.below(8) {
                        let Some(bytes) = read(&mut *readers[at]) else { break };
                        seen[at].take(what, &bytes);
                    }
                    readers[at].release();
                }
            }
        }
        assert!(number > 500, "{what}: {number}");
        let put = writer.count();
        assert_eq!((put.blocks, put.dropped), (number, dropped), "{what}");
        drop(writer);
        for (at, (reader, seen)) in readers.iter_mut().zip(&mut seen).enumerate() {
            while let Some(bytes) = read(&mut **reader) {
                seen.take(what, &bytes);
            }
            assert!(reader.is_finished().unwrap(), "{what}");
            let counted = reader.count();
            seen.balances(what, counted);
            assert_eq!(counted.blocks + counted.lost + counted.skipped, number, "{what}");
            assert_eq!(reader.written(), put, "{what}: two tell the same");
            assert_eq!(put.resident(&counted), Some(0), "{what}");
            let (start, pace) = wishes[at];
            let is_picky = start == Start::Now || pace == Pace::Latest;
            assert_eq!(counted.skipped > 0, is_picky, "{what} {at}: {counted:?}");
            assert!(counted.lost == 0 || policy == Policy::Overwrite, "{what}: {counted:?}");
        }
    });
}

#[test]
fn what_was_looked_at_stays_until_it_is_given_back() {
    each(|what, policy, mut writer, mut readers| {
        let reader = &mut *readers[0];
        if reader.peek().is_none() {
            return;
        }
        if policy == Policy::Overwrite {
            assert_eq!(reader.peek(), Some(Err(Fault::Lossy)), "{what}");
            assert_eq!(reader.take_in_place(), Some(Err(Fault::Lossy)), "{what}");
            return;
        }
        assert_eq!(reader.peek(), Some(Ok(None)), "{what}");
        assert!(writer.write(&block(0)).unwrap() && writer.write(&block(1)).unwrap());
        assert_eq!(reader.peek(), Some(Ok(None)), "{what}: not shown yet");
        writer.show();
        for _ in 0..3 {
            assert_eq!(reader.peek(), Some(Ok(Some(block(0)))), "{what}");
        }
        assert_eq!(reader.take_in_place(), Some(Ok(Some(block(0)))), "{what}");
        assert_eq!(reader.peek(), Some(Ok(Some(block(1)))), "{what}");
        // Taken and not given back: the writer comes as far as that and not further.
        let (mut number, mut released) = (2, false);
        for _ in 0..2 {
            drain_others(&mut readers);
            while writer.write(&block(number)).unwrap() {
                number += 1;
                writer.show();
                drain_others(&mut readers);
            }
            if released {
                break;
            }
            assert_eq!(readers[0].peek(), Some(Ok(Some(block(1)))), "{what}: not overwritten");
            readers[0].release();
            released = true;
        }
        assert!(number > 10, "{what}");
    });
}

/// All but the first take what there is.
fn drain_others(readers: &mut [Box<dyn Reads>]) {
    for other in readers.iter_mut().skip(1) {
        while read(&mut **other).is_some() {}
    }
}

#[test]
fn what_does_not_fit_is_told_and_changes_nothing() {
    each(|what, _, mut writer, mut readers| {
        let limit = writer.longest();
        let long = vec![0; limit + 1];
        assert_eq!(writer.write(&long), Err(Fault::TooLong { length: limit + 1, limit }), "{what}");
        assert!(writer.write(&block(0)).unwrap());
        writer.give_up(100).unwrap();
        assert!(writer.write(&[]).unwrap() && writer.write(&block(2)).unwrap());
        writer.show();
        for reader in &mut readers {
            let length = block(0).len();
            let refused = reader.read(&mut vec![0; length - 1]);
            assert!(matches!(refused, Err(Fault::TooLong { .. })), "{what}: {refused:?}");
            assert_eq!(read(&mut **reader), Some(block(0)), "{what}: it stayed");
            assert_eq!(read(&mut **reader), Some(Vec::new()), "{what}: one of no bytes is a block");
            assert_eq!(read(&mut **reader), Some(block(2)), "{what}: what was given up is nothing");
            assert_eq!(read(&mut **reader), None, "{what}");
        }
    });
}

#[test]
fn the_newest_and_what_is_to_come_can_be_had_at_any_time() {
    each(|what, _, mut writer, mut readers| {
        let mut number = 0;
        for round in 1..60 {
            for _ in 0..round % 7 {
                number += u64::from(writer.write(&block(number)).unwrap());
            }
            writer.show();
            for (at, reader) in readers.iter_mut().enumerate() {
                if at == 1 {
                    reader.skip_to_now().unwrap();
                    assert_eq!(read(&mut **reader), None, "{what}");
                } else {
                    let before = reader.count();
                    let skipped = reader.skip_to_latest().unwrap();
                    assert_eq!(reader.count().skipped - before.skipped, skipped, "{what}");
                    let newest = (round % 7 > 0).then(|| block(number - 1));
                    assert_eq!(read(&mut **reader), newest, "{what}, round {round}");
                    assert_eq!(reader.skip_to_latest(), Ok(0), "{what}");
                }
                reader.release();
                let counted = reader.count();
                let all = counted.blocks + counted.lost + counted.skipped;
                assert_eq!(all, number, "{what}: {counted:?}");
            }
        }
    });
}

/// A reader that wants the newest, made of the same parts.
#[test]
fn a_paced_reader_takes_the_newest_each_time() {
    for policy in POLICIES {
        let (mut writer, mut readers) = fixed::ring(&slots(policy, 1));
        for number in 0..5 {
            assert!(writer.write(&block(number)).unwrap());
        }
        writer.publish();
        let mut out = [0; LONGEST];
        let reader = readers.remove(0);
        let mut paced = Paced::new(reader, Start::Now, Pace::Latest).unwrap();
        assert_eq!(paced.read(&mut out).unwrap(), None);
        for number in 5..9 {
            assert!(writer.write(&block(number)).unwrap());
        }
        writer.publish();
        let length = paced.read(&mut out).unwrap().unwrap();
        assert_eq!(out[..length], block(8));
        let expected = Taken { blocks: 1, bytes: length as u64, lost: 0, skipped: 8 };
        assert_eq!((paced.count(), paced.reader().written().blocks), (expected, 9));
    }
}

#[test]
fn a_reader_that_was_shut_out_or_has_left_holds_up_nobody() {
    each(|what, policy, mut writer, mut readers| {
        let all = readers.len();
        writer.shut_out(0);
        let left = readers.drain(1..).collect::<Vec<_>>();
        drop(left);
        let mut written = 0;
        let ended = loop {
            match writer.write(&block(written)) {
                Ok(true) => written += 1,
                Ok(false) => break None,
                Err(fault) => break Some(fault),
            }
            if written > 200 {
                break None;
            }
        };
        // A ring that keeps what was not read hears of it when it looks for room; one that
        // overwrites never has to look.
        let hears = ended == Some(Fault::Abandoned);
        assert!(hears || policy == Policy::Overwrite, "{what}: {written} of {all}, {ended:?}");
    });
}

#[test]
fn both_sides_tell_a_third_what_they_have_counted() {
    each(|what, _, mut writer, mut readers| {
        for number in 0..9 {
            assert!(writer.write(&block(number)).unwrap());
        }
        writer.show();
        for (at, reader) in readers.iter_mut().enumerate() {
            for _ in 0..at + 2 {
                read(&mut **reader);
            }
            reader.release();
            assert_eq!(writer.taken(at), Some(reader.count()), "{what}");
            assert_eq!(reader.written(), writer.count(), "{what}");
            let resident = writer.count().resident(&reader.count());
            assert_eq!(resident, Some(9 - (at as u64 + 2)), "{what}");
        }
        assert_eq!(writer.taken(readers.len()), None, "{what}");
    });
}
