//! Adapters from every kind of ring to a common interface, so that one test suite covers all kinds.

use super::{BLOCK_LENGTH_MAX, CAPACITY, POLICIES};
use abi::DbufId;
use streamline_buffer::dbuf::{self, fixed_size};
use streamline_buffer::rate::SkippingReader;
use streamline_buffer::share;
use streamline_buffer::stream::{self, Input, Output};
use streamline_buffer::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};

pub(crate) trait RingWriter {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault>;
    /// Puts a block by reserving room and committing the block. Reserves more room than the block
    /// uses. Returns false if the ring is full.
    fn write_reserved(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault>;
    /// Reserves room and drops the reservation.
    fn drop_reservation(&mut self, room: usize) -> Result<(), Fault>;
    fn publish(&mut self);
    fn disconnect(&mut self, reader: usize);
    fn block_length_max(&self) -> usize;
    fn counts(&self) -> WriterCounts;
    fn reader_counts(&self, reader: usize) -> Option<ReaderCounts>;
}

pub(crate) trait RingReader: SkippingReader {
    fn writer_counts(&self) -> WriterCounts;
    fn is_finished(&mut self) -> Result<bool, Fault>;
    /// Returns the next block in place, without taking it, or `None` if this kind of ring cannot
    /// peek.
    fn peek(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
        None
    }
    /// Returns the next block in place and keeps it until `release`. Returns `None` if this kind of
    /// ring cannot do that.
    fn take_in_place(&mut self) -> Option<Result<Option<Vec<u8>>, Fault>> {
        None
    }
    fn release(&mut self) {}
}

macro_rules! rings {
    ($writer:ty, $reader:ty, $visitor:ty) => {
        impl RingWriter for $writer {
            fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
                self.write(block)
            }
            fn write_reserved(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
                let Some(mut room) = self.reserve(room)? else { return Ok(false) };
                room[..block.len()].copy_from_slice(block);
                let place = room.commit(block.len());
                assert_eq!(place.length() as usize, block.len());
                Ok(true)
            }
            fn drop_reservation(&mut self, room: usize) -> Result<(), Fault> {
                self.reserve(room).map(drop)
            }
            fn publish(&mut self) {
                self.publish();
            }
            fn disconnect(&mut self, reader: usize) {
                self.disconnect(reader);
            }
            fn block_length_max(&self) -> usize {
                self.block_length_max()
            }
            fn counts(&self) -> WriterCounts {
                self.counts()
            }
            fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
                self.reader_counts(reader)
            }
        }

        impl RingReader for $reader {
            fn writer_counts(&self) -> WriterCounts {
                self.writer_counts()
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

        impl RingReader for $visitor {
            fn writer_counts(&self) -> WriterCounts {
                self.writer_counts()
            }
            fn is_finished(&mut self) -> Result<bool, Fault> {
                self.is_finished()
            }
        }
    };
}

rings!(dbuf::BlockWriter, dbuf::BlockReader, dbuf::ForeignBlockReader);
rings!(fixed_size::SlotWriter, fixed_size::SlotReader, fixed_size::ForeignSlotReader);

/// A stream, to which the tests write only if there is room, because a write to a full stream
/// blocks.
struct Stream {
    output: Output,
    room: fn(&Output) -> bool,
}

impl RingWriter for Stream {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if (self.room)(&self.output) { self.output.write(block) } else { Ok(false) }
    }
    fn write_reserved(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
        if !(self.room)(&self.output) {
            return Ok(false);
        }
        self.output.write_with(room, |room| {
            room[..block.len()].copy_from_slice(block);
            block.len()
        })
    }
    fn drop_reservation(&mut self, _room: usize) -> Result<(), Fault> {
        Ok(())
    }
    fn publish(&mut self) {
        self.output.flush();
    }
    fn disconnect(&mut self, reader: usize) {
        self.output.disconnect(reader);
        // From here on readers no longer limit the writer.
        self.room = |_| true;
    }
    fn block_length_max(&self) -> usize {
        self.output.block_length_max()
    }
    fn counts(&self) -> WriterCounts {
        self.output.counts()
    }
    fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.output.reader_counts(reader)
    }
}

impl RingReader for Input {
    fn writer_counts(&self) -> WriterCounts {
        self.writer_counts()
    }
    fn is_finished(&mut self) -> Result<bool, Fault> {
        // Called when nothing is left to read.
        self.try_read(&mut [0]).map(|count| count == Some(0))
    }
    fn release(&mut self) {
        self.release();
    }
}

/// A stream of slots, to which the tests write only if there is room, because a write to a full
/// stream blocks.
struct Slots {
    output: fixed_size::stream::SlotOutput,
    waits: bool,
    slots: u64,
}

impl Slots {
    /// Returns true if a slot is certainly free, according to the readers' published counts.
    fn has_room(&self) -> bool {
        let put = self.output.counts();
        let mut all = (0..).map_while(|reader| self.output.reader_counts(reader));
        !self.waits
            || all.all(|taken| put.resident_blocks(&taken).is_some_and(|left| left < self.slots))
    }
}

impl RingWriter for Slots {
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.has_room() { self.output.write(block) } else { Ok(false) }
    }
    fn write_reserved(&mut self, room: usize, block: &[u8]) -> Result<bool, Fault> {
        if !self.has_room() {
            return Ok(false);
        }
        self.output.write_with(room, |room| {
            room[..block.len()].copy_from_slice(block);
            block.len()
        })
    }
    fn drop_reservation(&mut self, _room: usize) -> Result<(), Fault> {
        Ok(())
    }
    fn publish(&mut self) {
        self.output.flush();
    }
    fn disconnect(&mut self, reader: usize) {
        self.output.disconnect(reader);
        self.waits = false;
    }
    fn block_length_max(&self) -> usize {
        self.output.block_length_max()
    }
    fn counts(&self) -> WriterCounts {
        self.output.counts()
    }
    fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.output.reader_counts(reader)
    }
}

impl RingReader for fixed_size::stream::SlotInput {
    fn writer_counts(&self) -> WriterCounts {
        self.writer_counts()
    }
    fn is_finished(&mut self) -> Result<bool, Fault> {
        self.try_read(&mut [0]).map(|piece| piece == stream::BlockReadResult::End)
    }
    fn release(&mut self) {
        self.release();
    }
}

type Ring = (Box<dyn RingWriter>, Vec<Box<dyn RingReader>>);

type RingKind = (&'static str, fn(OverflowPolicy, usize) -> Ring);

/// The name and the constructor of each kind of ring. A constructor takes a policy and the number
/// of readers.
const RING_KINDS: [RingKind; 6] = [
    ("blocks of any length, in a process", |policy, readers| {
        let (writer, readers) = dbuf::ring(&block_ring_config(policy, readers));
        (
            Box::new(writer),
            readers.into_iter().map(|r| Box::new(r) as Box<dyn RingReader>).collect(),
        )
    }),
    ("slots of one size, in a process", |policy, readers| {
        let (writer, readers) = fixed_size::ring(&slot_ring_config(policy, readers));
        (
            Box::new(writer),
            readers.into_iter().map(|r| Box::new(r) as Box<dyn RingReader>).collect(),
        )
    }),
    ("blocks of any length, among untrusted peers", |policy, readers| {
        let (writer, offers) = share::block_ring(&block_ring_config(policy, readers)).unwrap();
        let attach = |offer: share::RingOffer| {
            Box::new(offer.open_block_reader().unwrap()) as Box<dyn RingReader>
        };
        (Box::new(writer), offers.into_iter().map(attach).collect())
    }),
    ("slots of one size, among untrusted peers", |policy, readers| {
        let (writer, offers) = share::slot_ring(&slot_ring_config(policy, readers)).unwrap();
        let attach = |offer: share::RingOffer| {
            Box::new(offer.open_slot_reader().unwrap()) as Box<dyn RingReader>
        };
        (Box::new(writer), offers.into_iter().map(attach).collect())
    }),
    ("a stream of slots", |policy, readers| {
        let shape = slot_ring_config(policy, readers);
        let (mut output, offers) = fixed_size::stream::stream(&shape, 3).unwrap();
        output.set_spin_limit(0);
        let open = |offer: fixed_size::stream::SlotOffer| {
            Box::new(offer.open().unwrap()) as Box<dyn RingReader>
        };
        let (waits, slots) = (policy == OverflowPolicy::Block, shape.slots as u64);
        (Box::new(Slots { output, waits, slots }), offers.into_iter().map(open).collect())
    }),
    ("a stream", |policy, readers| {
        let config = stream::Config::new(DbufId::new(3).unwrap()).capacity(CAPACITY);
        let config = stream::Config { every: 3, ..config.policy(policy).readers(readers) };
        let (mut output, offers) = stream::stream(&config).unwrap();
        output.set_spin_limit(0);
        let room: fn(&Output) -> bool = match policy {
            OverflowPolicy::Block => has_room,
            OverflowPolicy::DropNew | OverflowPolicy::Overwrite => |_| true,
        };
        let open = |offer: stream::Offer| Box::new(offer.open().unwrap()) as Box<dyn RingReader>;
        (Box::new(Stream { output, room }), offers.into_iter().map(open).collect())
    }),
];

/// Returns true if a block of these tests certainly fits, according to the readers' published
/// counts.
fn has_room(output: &Output) -> bool {
    let all = (0..).map_while(|reader| output.reader_counts(reader));
    let put = output.counts();
    let span = (BLOCK_LENGTH_MAX + 32) as u64;
    all.into_iter().all(|taken| {
        let resident = put.resident_blocks(&taken).unwrap_or(u64::MAX);
        resident.saturating_mul(span) + 3 * span < CAPACITY as u64
    })
}

fn block_ring_config(policy: OverflowPolicy, readers: usize) -> dbuf::BlockConfig {
    dbuf::BlockConfig { id: DbufId::new(3).unwrap(), capacity: CAPACITY, policy, readers }
}

pub(crate) fn slot_ring_config(policy: OverflowPolicy, readers: usize) -> fixed_size::SlotConfig {
    let (slot, slots) = (256, CAPACITY / 256);
    fixed_size::SlotConfig { id: DbufId::new(3).unwrap(), slot, slots, policy, readers }
}

/// Runs a test for each kind of ring, policy and number of readers.
pub(crate) fn for_each_ring(
    test: impl Fn(&str, OverflowPolicy, Box<dyn RingWriter>, Vec<Box<dyn RingReader>>),
) {
    for (name, make) in RING_KINDS {
        for policy in POLICIES {
            for readers in [1, 3] {
                let (writer, all) = make(policy, readers);
                test(&format!("{name}, {policy:?}, {readers} readers"), policy, writer, all);
            }
        }
    }
}
