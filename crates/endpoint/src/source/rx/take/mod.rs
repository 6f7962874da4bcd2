//! `rx IF take`: frames that this line takes, and the host does not get. [SL §5.5; CONTRACT 2, 3,
//! 6]
//!
//! Out: one block per frame, named in the frame of the memory that the kernel filled (AF_XDP): a
//! frame goes back to the kernel when the last filter, sink or reader of a ring is done with it.
//! A packet in several frames is put together, by a copy into the general memory of its space. The
//! point of observation is XDP, before generic receive offload: frames are as long as the driver
//! hands them up, their tags are in place, and nobody says whether a checksum was left to a device.
//!
//! - [`device`]: everything in place, in the order in which nothing is lost;
//! - [`rest`]: how long queues are left alone while many frames come;
//! - [`routes`]: what nobody takes by mistake;
//! - [`ways`]: where a program looks at frames first, and says over which edges they leave it.

mod device;
mod rest;
mod routes;
mod ways;

use super::unpack::{TAG, put_back};
use super::{DOWN_NS, KEPT_NS};
use crate::interface::{Counts, removed};
use crate::{DropReason, Failure, Given, Intake, Opening, Seen, Source, SourceProperties};
use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use device::{Asked, Device};
pub use device::{Maker, Making};
use filter::{Amount, Time};
use rest::Rest;
use std::os::fd::{AsFd as _, BorrowedFd};
use sys::packet::layout::VlanTag;
use sys::xdp::{Descriptor, Stamp};
use ways::{Front, Ways};
pub use ways::{Head, PLACE, PLACES_MAX, REST, WAY, rest};
use wire::link::LinkType;

struct Taking {
    device: Device,
    origin: u16,
    pieces: Vec<Descriptor>,
    entries: Vec<Entry>,
    /// The ways on which frames come out of a program that looks at them first.
    ways: Option<Ways>,
    long: Long,
    rest: Rest,
    given: Amount,
    /// Longer than a block can be.
    too_long: u64,
    /// Frames that lay in the rings when it was closed.
    unread: u64,
    stopped: bool,
    closed: bool,
}

/// A packet in several frames, as far as it came.
#[derive(Debug, Default)]
struct Long {
    bytes: Vec<u8>,
    time: Time,
    front: Option<Front>,
    /// All of it is here.
    whole: bool,
}

/// Takes what an interface receives, all of it.
pub(super) fn open(opening: &Opening<'_>) -> Result<Box<dyn Source>, Failure> {
    Ok(Box::new(Taking::open(opening, None)?))
}

/// Takes what an interface receives and a program that `make` makes hands on, over ways on which
/// frames begin like this; of so many places in front of a frame each is one of the ways'.
pub fn by_program(
    opening: &Opening<'_>,
    (heads, places): (Vec<Head>, usize),
    make: Maker<'_>,
) -> Result<Box<dyn Source>, Failure> {
    let taking = Taking::open(opening, Some(make))?;
    Ok(Box::new(Taking { ways: Some(Ways::new(heads, places)), ..taking }))
}

impl Taking {
    fn open(opening: &Opening<'_>, make: Option<Maker<'_>>) -> Result<Self, Failure> {
        let arguments = opening.arguments;
        let Some(interface) = arguments.text("interface") else {
            let hint = "name the interface: `rx eth0 take`";
            return Err(Failure::new("take from", "all interfaces", "one is taken from").hint(hint));
        };
        if arguments.flag("both") {
            let why = "what the host sends cannot be taken from it";
            let hint = "leave `both=yes` or `take` out";
            return Err(Failure::new("take from", interface, why).hint(hint));
        }
        let device = Device::open(&Asked {
            interface,
            netns: arguments.text("netns"),
            ring: arguments.number("ring"),
            promiscuous: arguments.flag("promisc"),
            force: opening.force,
            make,
            steps: opening.steps,
        })?;
        let room = device.frames.count() / device.queues.len().max(1);
        Ok(Self {
            rest: Rest::new(opening.latency, room),
            device,
            origin: opening.origin,
            pieces: Vec::new(),
            entries: Vec::new(),
            ways: None,
            long: Long::default(),
            given: Amount::default(),
            too_long: 0,
            unread: 0,
            stopped: false,
            closed: false,
        })
    }
}

impl Source for Taking {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        self.device.supply()?;
        self.entries.clear();
        let clock = Clock::now();
        self.end_long(intake);
        if self.ways.as_ref().is_none_or(|ways| ways.waiting() == 0) {
            self.gather(intake, &clock)?;
        }
        if self.device.queues.len() > 1 {
            // Each queue is in order; a session stays in one (CONTRACT 16).
            self.entries.sort_by_key(|entry| entry.context.time);
            self.ways.iter_mut().for_each(Ways::sort);
        }
        if let Some(ways) = &mut self.ways {
            let pools = [intake.pool, intake.general.unwrap_or(intake.pool)];
            ways.next(intake.room(), pools, &mut self.entries);
            intake.arc = Some(ways.edge);
        }
        let put = intake.put_all(self.entries.iter().copied());
        debug_assert_eq!(put, self.entries.len(), "no more was taken than there is room for");
        for entry in self.entries.iter().take(put) {
            self.given.add(entry.pointer.length());
        }
        self.rest.came(put);
        if put > 0 { Ok(Given::Blocks) } else { self.nothing(intake) }
    }

    fn seen(&self) -> Seen {
        let (counted, lost) = self.device.counted();
        let (came, mut dropped) = match &self.ways {
            None => {
                let dropped = self.device.losses.before();
                let came =
                    dropped.iter().map(|(_, count)| *count).chain([Some(counted.redirected)]);
                (came.sum::<Option<u64>>(), dropped)
            }
            // What the program has seen it counts itself, and knows whoever made it.
            Some(_) => {
                let here = self.given.blocks + self.too_long + self.unread;
                (lost.map(|lost| lost + here), Vec::new())
            }
        };
        dropped.push((DropReason::Ring, lost));
        let left = [("too long".into(), self.too_long), (DropReason::Unread, self.unread)];
        let left = left.into_iter().filter(|(_, count)| *count > 0);
        dropped.extend(left.map(|(why, count)| (why, Some(count))));
        // Nobody counts the bytes of what did not come.
        let seen = came.map(|blocks| Amount { blocks, bytes: self.given.bytes });
        Seen {
            remark: self.device.remark(),
            seen,
            given: self.given,
            dropped,
            arrived: self.ways.as_ref().map_or_else(Vec::new, Ways::arrived),
            ..Seen::default()
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.group.as_fd())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties {
            lender: Some(self.device.frames.clone()),
            chooses_arc: self.ways.is_some(),
            ..SourceProperties::default()
        }
    }

    fn stop(&mut self) -> bool {
        self.stopped = self.stopped || self.device.detach();
        self.stopped
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.device.detach();
            self.unread = self.count_unread();
        }
    }
}

impl Taking {
    /// Takes as many packets off the queues as there is room for.
    fn gather(&mut self, intake: &Intake<'_>, clock: &Clock) -> Result<(), Failure> {
        let room = intake.room().saturating_sub(self.arrived_here());
        let share = room.div_ceil(self.device.queues.len().max(1));
        let mut left = room;
        for number in 0..self.device.queues.len() {
            if self.long.whole {
                return Ok(());
            }
            self.pieces.clear();
            self.receive(number, share.min(left))?;
            left -= self.pieces.len();
            let pieces = std::mem::take(&mut self.pieces);
            for piece in &pieces {
                self.piece(*piece, intake, clock)?;
            }
            self.pieces = pieces;
            // The rest of a packet lies in the same queue.
            while !self.long.bytes.is_empty() && !self.long.whole {
                self.pieces.clear();
                if self.receive(number, 1)? == 0 {
                    return Err(self.broken("a packet ends in the middle"));
                }
                if let Some(piece) = self.pieces.first().copied() {
                    self.piece(piece, intake, clock)?;
                }
            }
        }
        Ok(())
    }

    /// Blocks that are here and were not put.
    fn arrived_here(&self) -> usize {
        self.entries.len() + self.ways.as_ref().map_or(0, Ways::waiting)
    }

    fn receive(&mut self, number: usize, most: usize) -> Result<usize, Failure> {
        let Some(queue) = self.device.queues.get_mut(number) else { return Ok(0) };
        queue
            .receive(&mut self.pieces, most)
            .map_err(|error| Failure::new("take from", &self.device.name, error))
    }

    /// A piece of a packet, mostly all of it.
    fn piece(
        &mut self,
        piece: Descriptor,
        intake: &Intake<'_>,
        clock: &Clock,
    ) -> Result<(), Failure> {
        let located = self.device.frames.locate(piece.address);
        let arrived = located.and_then(|(slot, at)| Some((intake.pool.arrived_at(slot)?, at)));
        let Some((mut draft, at)) = arrived else {
            return Err(self.broken("a frame came that is here already"));
        };
        let end = at + piece.length as usize;
        let first = self.long.bytes.is_empty();
        let mut at = at;
        if first {
            let stamp = match &self.ways {
                None => stamp(draft.get_mut(at.saturating_sub(Stamp::BYTES)..at)),
                Some(ways) => {
                    let Some((front, stamp)) = draft.get(at..end).and_then(|b| ways.read(b)) else {
                        drop(draft);
                        return Err(self.broken("a frame came without what stands in front"));
                    };
                    at += ways.front();
                    self.long.front = Some(front);
                    stamp
                }
            };
            self.long.time = clock.time(stamp.time);
            at -= restored(stamp.tag, at, &mut draft);
        }
        if first && !piece.continues {
            let head = [draft.get(at).copied().unwrap_or_default()];
            let place = draft.commit(end).within(offset(at), offset(end - at));
            self.arrive((intake.pool.id(), place), &head);
            return Ok(());
        }
        self.long.bytes.extend_from_slice(draft.get(at..end).unwrap_or_default());
        drop(draft);
        if !piece.continues {
            self.long.whole = true;
            self.end_long(intake);
        }
        Ok(())
    }

    /// Gives a packet that was put together, if there is one and room for it.
    fn end_long(&mut self, intake: &Intake<'_>) {
        if !self.long.whole || intake.room() <= self.arrived_here() {
            return;
        }
        let pool = intake.general.unwrap_or(intake.pool);
        let bytes = &self.long.bytes;
        if bytes.len() > pool.block_max() {
            self.too_long += 1;
        } else {
            let copied = pool.append(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                bytes.len()
            });
            // No room now: it is tried again.
            let Some((place, _)) = copied else { return };
            let head = [bytes.first().copied().unwrap_or_default()];
            self.arrive((pool.id(), place), &head);
        }
        self.long.bytes.clear();
        self.long.whole = false;
    }

    /// A whole frame is there.
    fn arrive(&mut self, at: (DbufId, Extent), head: &[u8]) {
        let stamped = (self.origin, self.long.time);
        match (&mut self.ways, &self.long.front) {
            (Some(ways), Some(front)) => ways.send(front, at, head, stamped),
            _ => self.entries.push(self.entry(at)),
        }
    }

    fn entry(&self, (dbuf, place): (DbufId, Extent)) -> Entry {
        let (origin, time) = (self.origin, self.long.time);
        let context = BlockMetadata { time, session: 0, origin, flags: Flags::NONE };
        let marks = Marks::frame(LinkType::ETHERNET.0, place.length(), place.length());
        Entry::new(RichPointer::new(dbuf, place, Class::YES), context, marks)
    }

    /// Returns the answer when nothing was given.
    fn nothing(&mut self, intake: &Intake<'_>) -> Result<Given, Failure> {
        let soon = Some(intake.now + KEPT_NS);
        if self.long.whole {
            // The queues may have more, which has to wait.
            return Ok(Given::Wait { until: soon, readable: false });
        }
        if self.stopped {
            return Ok(Given::End);
        }
        if self.device.is_gone() {
            let frames = self.given.blocks;
            // A program has ended some by itself, unless there is none.
            let counts = match self.ways {
                None => Counts::All(frames),
                Some(_) => Counts::Passed(frames),
            };
            return Err(removed("take from", &self.device.name, counts));
        }
        if let Some(until) = self.rest.until(intake.now) {
            return Ok(Given::Wait { until: Some(until), readable: false });
        }
        // Others keep frames, and do not say when they let go of them; and a socket of AF_XDP does
        // not wake who waits when its interface goes.
        let until = soon.filter(|_| intake.pool.kept() > 0).or(Some(intake.now + DOWN_NS));
        Ok(Given::Wait { until, readable: true })
    }

    /// Packets that came and that nobody takes.
    fn count_unread(&mut self) -> u64 {
        let mut packets = u64::from(self.long.whole);
        if let Some(ways) = &mut self.ways {
            packets += ways.waiting() as u64;
            ways.leave_all();
            if let Some(front) = self.long.front.filter(|_| self.long.whole) {
                ways.leave(&front);
            }
        }
        for queue in &mut self.device.queues {
            self.pieces.clear();
            // What cannot be read is not counted, and shows as a ledger that does not balance.
            let _ = queue.receive(&mut self.pieces, usize::MAX);
            packets += self.pieces.iter().filter(|piece| !piece.continues).count() as u64;
            let Some(ways) = &mut self.ways else { continue };
            let mut begins = true;
            for piece in &self.pieces {
                let mut bytes = vec![0; ways.front()];
                if begins && self.device.frames.copy(piece.address, &mut bytes) {
                    let read = ways.read(&bytes);
                    read.iter().for_each(|(front, _)| ways.leave(front));
                }
                begins = !piece.continues;
            }
        }
        packets
    }

    fn broken(&self, what: &str) -> Failure {
        Failure::new("take from", &self.device.name, format!("the kernel's rings: {what}"))
    }
}

/// The time of day of what the monotonic clock stamped.
struct Clock {
    real: Time,
    /// The difference of the time of day and the monotonic clock.
    ahead: Time,
}

impl Clock {
    fn now() -> Self {
        let real = sys::clock::real();
        Self { real, ahead: real.wrapping_sub(sys::clock::monotonic()) }
    }

    /// The time of day of a time of the monotonic clock; now, where there is none.
    fn time(&self, stamp: Option<Time>) -> Time {
        stamp.map_or(self.real, |stamp| stamp.wrapping_add(self.ahead))
    }
}

/// Reads the program's words before a frame.
fn stamp(before: Option<&mut [u8]>) -> Stamp {
    before.and_then(|bytes| bytes.first_chunk_mut()).map(Stamp::take).unwrap_or_default()
}

/// Puts the tag that the device took out of the frame at `at` back; answers by how much it is
/// longer.
fn restored(tag: Option<VlanTag>, at: usize, frame: &mut [u8]) -> usize {
    tag.and_then(|tag| put_back(tag, at, frame)).map_or(0, |()| TAG)
}

/// A place in a frame of a page.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
