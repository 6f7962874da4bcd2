//! The process's end of a program in the kernel: what was handed over becomes blocks.
//! [SL §5.3, §6.2; CONTRACT 3, 16, 29]
//!
//! In: the rings that programs of one interface write ([`reader`]), and where that is ([`place`]).
//! Out: one block per frame and edge, in the order of time; frames are copied into the pool of the
//! space once, however many edges lead out. What beside the frame belongs to it comes along: a VLAN
//! tag goes back to its place, the time becomes that of day, and a checksum that was left to the
//! device is marked. To see that, one must find the headers: where they begin is marked, too, so
//! that no filter behind has to find them. Who asks is told over which edge the blocks went, one
//! edge at a time.
//!
//! Sleeping: a program rings when it has handed over something and the last bell was a time T_t
//! ago, so who finds nothing sleeps until then at most, and for good once nobody has rung for that
//! long.
//!
//! Deviation: whether a checksum is filled in is not told to programs. A frame that is yet to be
//! cut has none; of the others those have none in which the field holds the sum over the pseudo
//! header, which is what a stack leaves there for the card.

mod checksum;
pub mod place;
pub mod reader;
mod time;

use crate::{Failure, Given, Intake, Seen, Source, SourceProperties};
use abi::{BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use buffer::pool::Pool;
use filter::{Amount, Time};
use place::Place;
use reader::{AT_ONCE, Handed, Missing, Reader};
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use sys::bpf::{RingBuffer, Rings};
use time::TimeOfDay;
use wire::ethernet;

/// An edge that leaves the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// True if the view begins behind a tag, which may lie beside the frame.
    pub behind_tag: bool,
    /// The sink of the rings to which it leads.
    pub sink: u32,
}

/// Counts of frames handed over by one edge.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrived {
    /// It was put into the space.
    pub taken: Amount,
    /// The program came round before it was copied.
    pub lapped: u64,
    /// It was there when the path ended.
    pub unread: u64,
    /// The lapped ones: positions on the way, per processor.
    pub missing: crate::Missing,
}

/// An attachment at an interface that hands frames over until the path stops.
pub trait Standing: fmt::Debug + Send + Sync {
    /// Nothing is handed over any more when it returns.
    fn leave(&self);

    /// Returns the number of frames given to the programs, including those that ended there; `None`
    /// where that is unknown. Called once nothing is handed over any more.
    fn frames(&self) -> Option<u64> {
        None
    }

    /// Returns the reason why frames are no longer handed over without being asked to stop: the
    /// process that did it has ended, or has removed the line.
    fn lost(&self) -> Option<Failure> {
        None
    }
}

/// The parts of a source of handed-over frames.
#[derive(Debug)]
pub struct Parts {
    /// The rings that the programs write.
    pub rings: Arc<Rings>,
    /// On which they ring.
    pub bell: RingBuffer,
    /// The attachment that hands frames over.
    pub standing: Arc<dyn Standing>,
    /// To where.
    pub place: Place,
    /// The edges, by way.
    pub edges: Vec<Edge>,
    /// The number of the source among those of its path.
    pub origin: u16,
    /// After how many ns a program rings in any case (T_t).
    pub wait_ns: u64,
    /// True if an uncounted frame is lost, which the ledger must find.
    pub loses: bool,
}

/// The frames that programs at one place hand over.
#[derive(Debug)]
pub struct KernelSource {
    parts: Parts,
    reader: Reader,
    time: TimeOfDay,
    arrived: Vec<Arrived>,
    /// Over which edge the blocks went that were put last.
    edge: usize,
    /// The last copy, and its place.
    copied: Option<(u32, u64, Copied)>,
    /// Frames copied and not yet put; empty between two batches.
    staged: Vec<Staged>,
    /// True if nothing was left when blocks were last put.
    drained: bool,
    /// Time of the last look at the interface.
    looked: Time,
    ending: Option<Ending>,
    closed: bool,
}

/// The end of the input, with its cause.
#[derive(Debug)]
enum Ending {
    /// The path is stopped.
    Stopped,
    /// The interface is gone.
    Gone,
    /// The handover has stopped by itself.
    Lost(Failure),
}

/// The interval at which the interface is checked while nothing comes, in ns.
const LOOK_NS: Time = 200_000_000;
/// Time until the next try for memory, in ns.
const MEMORY_NS: Time = 1_000_000;
/// Bytes of a VLAN tag, and where it stands.
const TAG: usize = 4;
const TAG_AT: usize = ethernet::ETHERTYPE;

/// A frame in the memory of the space.
#[derive(Clone, Copy, Debug)]
struct Copied {
    place: abi::Extent,
    /// True if its checksum was left to the device.
    unset: bool,
    /// Its length, and the offsets of its headers.
    marks: Marks,
}

/// A block of which it is not known yet whether the frame was copied before the program came round.
#[derive(Debug)]
struct Staged {
    handed: Handed,
    entry: Entry,
    /// The copy was looked at before, when the frame went over another edge.
    known: bool,
}

impl KernelSource {
    /// Makes a source over these programs, from the first frame on.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let arrived = vec![Arrived::default(); parts.edges.len()];
        let sinks = parts.edges.iter().map(|edge| edge.sink).collect();
        let reader = Reader::new(Arc::clone(&parts.rings), sinks);
        let time = TimeOfDay::new();
        Self {
            parts,
            reader,
            time,
            arrived,
            edge: 0,
            copied: None,
            staged: Vec::with_capacity(AT_ONCE),
            drained: false,
            looked: 0,
            ending: None,
            closed: false,
        }
    }

    /// Puts what is there, as far as it goes over the same edge.
    fn put(&mut self, intake: &mut Intake<'_>) -> usize {
        let mut count = 0;
        self.drained = false;
        loop {
            let goes_on = self.copy_some(intake, count > 0);
            count += self.put_whole(intake);
            if !goes_on {
                return count;
            }
        }
    }

    /// Copies some frames that go over one edge, which is given if some were put before. Answers
    /// whether there may be more of them.
    fn copy_some(&mut self, intake: &Intake<'_>, given: bool) -> bool {
        let room = intake.room();
        while self.staged.len() < room.min(AT_ONCE) {
            let Some(handed) = self.reader.front() else {
                self.drained = true;
                return false;
            };
            let edge = handed.way as usize;
            let begun = !self.staged.is_empty();
            if (given || begun) && edge != self.edge {
                // If nothing of what was copied turns out to be whole, that edge is the next.
                return begun;
            }
            if !std::mem::take(&mut self.parts.loses) {
                let Some(staged) = self.staged(intake.pool, handed) else { return false };
                self.edge = edge;
                self.staged.push(staged);
            }
            self.reader.pass(&handed);
        }
        self.staged.len() < room
    }

    /// Puts those that were whole behind the last copy; answers how many.
    fn put_whole(&mut self, intake: &mut Intake<'_>) -> usize {
        let mut count = 0;
        let mut looked = None;
        for Staged { handed, entry, known } in self.staged.drain(..) {
            let reserved = match looked {
                Some((cpu, reserved)) if cpu == handed.cpu => reserved,
                _ => self.reader.reserved(handed.cpu),
            };
            looked = Some((handed.cpu, reserved));
            if known || self.reader.is_whole(&handed, reserved) {
                if let Some(arrived) = self.arrived.get_mut(handed.way as usize) {
                    arrived.taken.add(entry.pointer.length());
                }
                count += usize::from(intake.put(entry));
            } else {
                self.reader.lose(&handed);
                // Over another edge nobody gets what is not whole.
                self.copied = None;
            }
        }
        count
    }

    /// The block that a frame becomes; the frame is copied if it was not the last one that was.
    /// None if there is no room for it.
    fn staged(&mut self, pool: &Pool, handed: Handed) -> Option<Staged> {
        let name = (handed.cpu, handed.pointer.position);
        let before = self.copied.filter(|(cpu, position, _)| (*cpu, *position) == name);
        let before = before.filter(|(.., copied)| pool.bytes(copied.place).is_some());
        // What was staged in the same turn is looked at together.
        let together =
            |last: &Staged| !last.known && (last.handed.cpu, last.handed.pointer.position) == name;
        let known = before.is_some() && !self.staged.last().is_some_and(together);
        let copied = match before {
            Some((.., copied)) => copied,
            None => self.copy(pool, &handed)?,
        };
        self.copied = Some((name.0, name.1, copied));
        let Copied { place, unset, mut marks } = copied;
        let header = &handed.header;
        let tag = if header.tag.is_some() { TAG as u32 } else { 0 };
        let behind = self.parts.edges.get(handed.way as usize).is_some_and(|e| e.behind_tag);
        let from = handed.pointer.offset.saturating_add(if behind { tag } else { 0 });
        let from = from.min(place.length());
        let length = handed.pointer.length.min(place.length() - from);
        let mut flags = if header.sent { Flags::BACKWARD } else { Flags::NONE };
        if unset {
            flags = flags.with(Flags::CHECKSUM_UNSET);
        }
        let (origin, time) = (self.parts.origin, self.time.of(header.time));
        let context = BlockMetadata { time, session: 0, origin, flags };
        marks.view = from;
        let class = Class(handed.pointer.class);
        let pointer = RichPointer::new(pool.id(), place.within(from, length), class);
        Some(Staged { handed, entry: Entry::new(pointer, context, marks), known })
    }

    /// Copies a frame, its tag in its place, and looks where its headers begin. None if there is no
    /// room for it.
    fn copy(&self, pool: &Pool, handed: &Handed) -> Option<Copied> {
        let header = &handed.header;
        let tag = header.tag.filter(|_| header.kept as usize >= TAG_AT);
        let length = header.kept as usize + if tag.is_some() { TAG } else { 0 };
        let mut draft = pool.draft(length, length)?;
        let bytes = draft.get_mut(..length).unwrap_or_default();
        match tag {
            None => {
                let _ = self.reader.copy(handed, 0, bytes);
            }
            Some((control, protocol)) => {
                let (addresses, rest) = bytes.split_at_mut(TAG_AT);
                let (between, rest) = rest.split_at_mut(TAG);
                let _ = self.reader.copy(handed, 0, addresses);
                let _ = self.reader.copy(handed, TAG_AT as u32, rest);
                let words = [protocol.to_be_bytes(), control.to_be_bytes()];
                between.copy_from_slice(words.as_flattened());
            }
        }
        let layers = wire::layers(self.parts.place.link(), bytes);
        let unset = header.segment != 0 || checksum::is_unset(&layers, bytes);
        let place = draft.commit(length);
        let beside = if header.tag.is_some() { TAG as u32 } else { 0 };
        let whole = header.length.saturating_add(beside);
        let mut marks = Marks::frame(layers.link.0, place.length(), whole);
        filter::layers::remember(&mut marks, &layers);
        Some(Copied { place, unset, marks })
    }

    /// Returns the answer when nothing was put.
    fn nothing(&mut self, now: Time) -> Result<Given, Failure> {
        if let Some(ending) = &self.ending {
            return match ending {
                Ending::Stopped => self.parts.standing.lost().map_or(Ok(Given::End), Err),
                Ending::Gone => Err(self.parts.place.gone(self.parts.standing.frames())),
                Ending::Lost(failure) => Err(failure.clone()),
            };
        }
        let looks = now.saturating_sub(self.looked) >= LOOK_NS;
        if looks {
            self.looked = now;
        }
        if looks && self.parts.place.is_gone() {
            // What was handed over before is still there.
            self.detach();
            self.ending = Some(Ending::Gone);
            return Ok(Given::Wait { until: Some(now), readable: false });
        }
        if looks && let Some(failure) = self.parts.standing.lost() {
            self.ending = Some(Ending::Lost(failure));
            return Ok(Given::Wait { until: Some(now), readable: false });
        }
        // Silent since then, so whatever comes rings.
        let due = self.reader.rang().saturating_add(self.parts.wait_ns);
        let left = due.saturating_sub(sys::clock::monotonic());
        let until = now + if left > 0 { left.min(LOOK_NS) } else { LOOK_NS };
        Ok(Given::Wait { until: Some(until), readable: true })
    }

    fn taken(&self) -> Amount {
        self.arrived.iter().fold(Amount::default(), |sum, one| Amount {
            blocks: sum.blocks + one.taken.blocks,
            bytes: sum.bytes + one.taken.bytes,
        })
    }

    /// Nothing is handed over any more when it returns.
    fn detach(&self) {
        self.parts.standing.leave();
    }
}

impl Source for KernelSource {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        self.parts.bell.drain(|_| {});
        self.time.keep_up();
        self.reader.look();
        let put = self.put(intake);
        (intake.arc, intake.drained) = (Some(self.edge), self.drained);
        if put > 0 {
            return Ok(Given::Blocks);
        }
        if self.reader.front().is_some() {
            // There is something, and no memory for it.
            return Ok(Given::Wait { until: Some(intake.now + MEMORY_NS), readable: false });
        }
        self.nothing(intake.now)
    }

    fn seen(&self) -> Seen {
        let given = self.taken();
        let missing = self.reader.missing();
        let lapped: u64 = missing.iter().map(|missing| missing.lost).sum();
        let unread = missing.iter().map(|missing| missing.unread).filter(|_| self.closed).sum();
        let blocks = given.blocks + lapped + unread;
        let dropped = [("lapped".into(), lapped), (crate::DropReason::Unread, unread)];
        let dropped = dropped.into_iter().filter(|(_, n)| *n > 0);
        Seen {
            seen: Some(Amount { blocks, bytes: given.bytes }),
            given,
            dropped: dropped.map(|(why, n)| (why, Some(n))).collect(),
            arrived: self.arrived(),
            ..Seen::default()
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.bell.as_fd())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties {
            block_max: self.parts.rings.shape().record_max as usize + TAG,
            // Programs write into memory of their own. Without memory to copy to, `give` returns
            // the time of the next attempt.
            heeds_memory: false,
            chooses_arc: true,
            ..SourceProperties::default()
        }
    }

    fn stop(&mut self) -> bool {
        if self.ending.is_none() {
            self.detach();
            self.ending = Some(Ending::Stopped);
        }
        true
    }

    fn close(&mut self) {
        self.detach();
        self.closed = true;
    }
}

impl KernelSource {
    /// Returns what became of the blocks of each edge.
    fn arrived(&self) -> Vec<Arrived> {
        let both = self.arrived.iter().zip(self.reader.missing()).zip(self.reader.gaps());
        both.map(|((arrived, missing), gaps)| {
            let Missing { lost: lapped, unread } = missing;
            Arrived { lapped, unread, missing: gaps.clone(), ..arrived.clone() }
        })
        .collect()
    }
}
