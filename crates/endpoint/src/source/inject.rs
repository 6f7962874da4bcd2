//! `inject`: gives the frames that the program in which Streamline runs hands in, a call for each.
//! [SL §6.1, "a simple DBuf injection routine for legacy drivers"]
//!
//! In: frames from any thread, through an [`Injector`]. Out: the same frames, copied once, with the
//! time at which they were handed in. The injector never waits: what finds no room is dropped and
//! counted, and the caller is told. A source that owns memory lends it instead
//! ([`Source::lends`](crate::Source::lends)), and copies nothing.

use crate::{Failure, Given, Intake, Opening, Seen, Source, SourceEntry};
use abi::{BLOCK_MAX, BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use filter::{
    Amount, Description, Form, Forms, Gives, Kind, Parameter, Several, StateFacts, Time, Type,
};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::eventfd::EventFd;
use wire::link::LinkType;

/// The description of `inject`.
pub const INJECT: Description = Description {
    name: "inject",
    summary: "give the frames that the program around hands in",
    details: "\
For programs that have Streamline as a library: `endpoint::source::inject::Injector::new(\"name\")`
is the other end, and `injector.inject(frame)` hands in one frame. `queue` bounds how many bytes
wait; what finds no room is dropped and counted in `queue`. The path ends when the injector is
dropped. The command itself hands nothing in.",
    example: "inject driver0 | dport |53 count",
    kind: Kind::Source,
    takes: Forms::NONE,
    gives: Gives::Form(Form::Frame),
    state: StateFacts::NONE
        .several(|_| Several::Not("what is handed in comes to one process", Several::LEAVE)),
    parameters: &[
        Parameter::needed("name", Type::Text, "what the injector is called"),
        Parameter::named(
            "queue",
            Type::Size { low: 64 << 10, high: 1 << 30 },
            "4M",
            "how many bytes may wait",
        ),
    ],
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SourceEntry = SourceEntry::new(&INJECT, open);

/// All injectors that exist, by name.
static INJECTORS: Mutex<BTreeMap<String, Arc<Door>>> = Mutex::new(BTreeMap::new());

/// Hands frames into a path. One name has one injector at a time; dropping it ends the path.
#[derive(Debug)]
pub struct Injector {
    name: String,
    door: Arc<Door>,
}

/// State shared by both ends.
#[derive(Debug)]
struct Door {
    queue: Mutex<Queue>,
    event: EventFd,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Waiting>,
    bytes: u64,
    /// The most bytes waiting, set when the source is opened; before that, nothing is taken.
    room: u64,
    offered: Amount,
    refused: u64,
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    link: LinkType,
    time: Time,
}

/// The result of handing in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Injected {
    /// The path will give it.
    Taken,
    /// There was no room, or it is longer than a block may be: it is dropped, and counted.
    Dropped,
    /// No path has this injector as its source (any more): nobody counts it.
    NoPath,
}

impl Injector {
    /// The injector of this name, for lines that say `inject NAME`.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let event = EventFd::new().map_err(|error| Failure::new("make", "an injector", error))?;
        let door = Arc::new(Door { queue: Mutex::default(), event });
        let mut injectors = locked(&INJECTORS);
        if injectors.contains_key(name) {
            return Err(Failure::new("make", name, "an injector of this name exists already"));
        }
        injectors.insert(name.to_owned(), Arc::clone(&door));
        Ok(Self { name: name.to_owned(), door })
    }

    /// Hands in an Ethernet frame, now.
    pub fn inject(&self, frame: &[u8]) -> Injected {
        self.inject_as(frame, LinkType::ETHERNET, sys::clock::real())
    }

    /// Hands in a frame of this link type with this time, in ns since 1970.
    pub fn inject_as(&self, frame: &[u8], link: LinkType, time: Time) -> Injected {
        let length = frame.len() as u64;
        let mut queue = locked(&self.door.queue);
        if queue.room == 0 {
            return Injected::NoPath;
        }
        queue.offered.blocks += 1;
        queue.offered.bytes += length;
        if queue.bytes + length > queue.room || frame.len() > BLOCK_MAX {
            queue.refused += 1;
            return Injected::Dropped;
        }
        queue.bytes += length;
        queue.frames.push_back(Waiting { bytes: frame.to_vec(), link, time });
        let first = queue.frames.len() == 1;
        drop(queue);
        if first {
            self.door.event.notify();
        }
        Injected::Taken
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        locked(&INJECTORS).remove(&self.name);
        locked(&self.door.queue).ended = true;
        self.door.event.notify();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Inject {
    door: Arc<Door>,
    origin: u16,
    given: Amount,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Source>, Failure> {
    let name = opening.arguments.text("name").unwrap_or_default();
    let Some(door) = locked(&INJECTORS).get(name).cloned() else {
        let why = "nobody in this program hands frames in under this name";
        return Err(Failure::new("open", format!("injector {name}"), why)
            .hint("make the `Injector` before the path is built"));
    };
    let mut queue = locked(&door.queue);
    if queue.room > 0 {
        let why = "another path has it as its source";
        return Err(Failure::new("open", format!("injector {name}"), why));
    }
    queue.room = opening.arguments.number("queue").unwrap_or_default();
    drop(queue);
    Ok(Box::new(Inject { door, origin: opening.origin, given: Amount::default() }))
}

impl Source for Inject {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        self.door.event.clear();
        let mut queue = locked(&self.door.queue);
        let before = self.given.blocks;
        while intake.room() > 0
            && let Some(waiting) = queue.frames.front()
        {
            let Some(entry) = self.entry(intake, waiting)? else {
                return Ok(Given::Wait { until: Some(intake.now), readable: false });
            };
            intake.put(entry);
            self.given.add(entry.pointer.length());
            queue.bytes -= waiting.bytes.len() as u64;
            queue.frames.pop_front();
        }
        Ok(match (self.given.blocks > before, queue.ended && queue.frames.is_empty()) {
            (_, true) => Given::End,
            (true, false) => Given::Blocks,
            (false, false) => Given::Wait { until: None, readable: true },
        })
    }

    fn seen(&self) -> Seen {
        let queue = locked(&self.door.queue);
        let unread = (queue.room == 0).then_some(queue.frames.len() as u64);
        let mut dropped = vec![("queue".into(), Some(queue.refused))];
        dropped.extend(unread.map(|unread| (crate::DropReason::Unread, Some(unread))));
        Seen { dropped, seen: Some(queue.offered), ..Seen::all(self.given) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.door.event.as_fd())
    }

    fn close(&mut self) {
        locked(&self.door.queue).room = 0;
    }
}

impl Inject {
    /// Copies a frame into the pool; none if there is no room before the next turn.
    fn entry(&self, intake: &Intake<'_>, frame: &Waiting) -> Result<Option<Entry>, Failure> {
        let pool = intake.pool;
        let bytes = &frame.bytes;
        if bytes.len() > pool.block_max() {
            let why = format!("the buffers of this path hold {} bytes at most", pool.block_max());
            return Err(Failure::new("take", "an injected frame", why));
        }
        let copied = pool.append(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        });
        let Some((place, _)) = copied else { return Ok(None) };
        let length = place.length();
        let (time, origin, flags) = (frame.time, self.origin, Flags::NONE);
        let context = BlockMetadata { time, session: 0, origin, flags };
        let marks = Marks::frame(frame.link.0, length, length);
        Ok(Some(Entry::new(RichPointer::new(pool.id(), place, Class::YES), context, marks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{arguments, ask, opening, pool, refused};

    fn source(name: &str) -> Result<Box<dyn Source>, Failure> {
        let given = arguments(&INJECT, &[("name", name), ("queue", "64k")]);
        open(&opening(&given, &[]))
    }

    #[test]
    fn g5_frames_come_out_as_they_were_handed_in() {
        let injector = Injector::new("order").unwrap();
        assert_eq!(injector.inject(b"too early"), Injected::NoPath);
        let mut source = source("order").unwrap();
        let mut pool = pool(1 << 16);
        let wait = Given::Wait { until: None, readable: true };
        assert_eq!(ask(&mut *source, &mut pool, 8, 5).unwrap().0, wait);
        assert_eq!(injector.inject_as(b"one", LinkType::RAW, 7), Injected::Taken);
        assert_eq!(injector.inject(b"two"), Injected::Taken);
        let event = source.descriptor().unwrap();
        assert_eq!(sys::poll::readable(&[event], None), [true]);
        let (given, gifts) = ask(&mut *source, &mut pool, 8, 5).unwrap();
        assert_eq!((given, gifts.len()), (Given::Blocks, 2));
        assert_eq!((&gifts[0].bytes[..], &gifts[1].bytes[..]), (&b"one"[..], &b"two"[..]));
        assert_eq!((gifts[0].entry.context.time, gifts[0].entry.marks.link), (7, 101));
        injector.inject(b"last");
        drop(injector);
        let (given, gifts) = ask(&mut *source, &mut pool, 8, 5).unwrap();
        assert_eq!((given, gifts.len()), (Given::End, 1));
        let seen = source.seen();
        assert_eq!((seen.seen, seen.given.blocks), (Some(Amount { blocks: 3, bytes: 10 }), 3));
        assert!(Injector::new("order").is_ok(), "the name is free again");
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let injector = Injector::new("full").unwrap();
        let mut source = source("full").unwrap();
        let frame = [0; 1 << 10];
        let taken = (0..70).filter(|_| injector.inject(&frame) == Injected::Taken).count();
        assert_eq!(taken, 64);
        let mut pool = pool(1 << 16);
        let (_, gifts) = ask(&mut *source, &mut pool, 10, 5).unwrap();
        assert_eq!(gifts.len(), 10);
        source.close();
        assert_eq!(injector.inject(&frame), Injected::NoPath);
        let seen = source.seen();
        assert_eq!(
            seen.dropped,
            [("queue".into(), Some(6)), (crate::DropReason::Unread, Some(54))]
        );
        assert_eq!((seen.seen.unwrap().blocks, seen.given.blocks), (70, 10));
    }

    #[test]
    fn a_name_means_one_injector_and_one_path() {
        let failure = refused(source("nobody"));
        assert_eq!(
            failure.to_string(),
            "cannot open injector nobody: nobody in this program hands frames in under this name; \
             make the `Injector` before the path is built"
        );
        let _injector = Injector::new("one").unwrap();
        assert!(refused(Injector::new("one")).to_string().contains("exists already"));
        let _source = source("one").unwrap();
        assert!(refused(source("one")).to_string().contains("another path"));
    }
}
