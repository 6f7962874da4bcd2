//! Positions in a ring: of its writer and of its readers. [SL §5.2]
//!
//! A position is monotone and 64 bits wide; it counts bytes in a dbuf and entries in an ibuf. Each
//! party writes only its own page of control words, keeps its own position privately, and remembers
//! the last position that it saw of the other, so that the other's cache line is fetched only when
//! the remembered value says full or empty. Publication is once per batch.
//!
//! SYNC POINTS (each Release names its Acquire):
//! - *block published*: [`Producer::publish`] stores `COMMIT` with Release, [`Consumer::refresh`]
//!   loads it with Acquire: who sees the position sees the blocks before it.
//! - *block released*: [`Consumer::release`] stores `CURSOR` with Release, [`Producer::refresh`]
//!   loads it with Acquire: who sees the position may write where the reader has read.
//! - *writing begins* (lossy rings): [`Producer::begin`] stores `RESERVE`, then a Release fence,
//!   then the data; [`Consumer::overtaken`] makes an Acquire fence after copying the data, then
//!   loads `RESERVE`: who has seen a new byte sees the new position.
//! - *closed*: `STATE` is stored with Release after the last publication; who sees it sees all
//!   positions.
//!
//! Before a position a party stores the count that belongs to it ([`told`]): whoever is killed
//! between the two has told the truth about what it has shown.
//!
//! A position that comes from the other party is checked each time it is read: it must lie within
//! one capacity of our own and never go back. If not, the link to that party is poisoned: nothing
//! is clamped, and no other party of the ring notices (RELIABILITY T3). A reader gets the fault; a
//! writer evicts the reader that lied, counts it, and goes on for the others: the fault is its own
//! only where that reader was the last.

mod told;

use self::told::Teller;
use crate::atomic::{Ordering, acquire, fence};
use crate::join::{Coming, Contact, Door, Ticket};
use crate::region::Region;
use crate::{Fault, Policy, Put, Taken};
use abi::ring::{CLOSED, PAGE_WORDS, SWITCHED, reader, writer};
use std::sync::Arc;

mod consumer;

pub(crate) use consumer::Consumer;

/// Largest position: 2⁶³ bytes take 29 years at 10 GB/s, so sums of positions never overflow.
pub(crate) const POSITION_MAX: u64 = u64::MAX >> 1;

/// Offset of the data in the writer's memory. Models, which pay for each word, have a short page.
pub(crate) const DATA_WORDS: usize =
    if cfg!(loom) { writer::WAIT + abi::ring::LINE_WORDS } else { PAGE_WORDS };

/// The memory of one ring.
#[derive(Debug)]
pub struct Store {
    /// The writer's control words, and from [`DATA_WORDS`] on the data.
    pub writer: Region,
    /// The control words of each reader; an untrusted peer maps only its own.
    pub readers: Box<[Arc<Region>]>,
    /// Positions from one lap to the next: a power of two.
    pub capacity: u64,
    /// Policy of a full ring.
    pub policy: Policy,
}

impl Store {
    /// A ring on the heap, for threads of one process.
    pub(crate) fn heap(
        data_words: usize,
        capacity: u64,
        policy: Policy,
        readers: usize,
    ) -> Arc<Self> {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
        let words = reader::WAIT + abi::ring::LINE_WORDS;
        Arc::new(Self {
            writer: Region::heap(DATA_WORDS + data_words),
            readers: (0..readers).map(|_| Arc::new(Region::heap(words))).collect(),
            capacity,
            policy,
        })
    }

    /// Returns the counts that the writer has published.
    pub(crate) fn put(&self) -> Put {
        Put::from_words(told::told(&self.writer, writer::COMMIT, writer::LEDGER))
    }

    /// Returns the counts that a reader has published.
    pub(crate) fn taken(&self, index: usize) -> Option<Taken> {
        self.readers.get(index).map(|page| taken(page))
    }
}

fn taken(page: &Region) -> Taken {
    Taken::from_words(told::told(page, reader::CURSOR, reader::LEDGER))
}

/// The writer's side of a ring.
#[derive(Debug)]
pub struct Producer {
    /// The shared memory.
    pub store: Arc<Store>,
    /// Positions from one lap to the next.
    pub(crate) capacity: u64,
    pub(crate) policy: Policy,
    /// The step of positions: a reader stands at multiples of it.
    pub(crate) step: u64,
    /// Up to here blocks are written; published by [`Producer::publish`].
    pub head: u64,
    published: u64,
    /// Position at which a lapped reader resumes (lossy rings).
    marked: u64,
    /// Start of the segment that we write: memory in which no reader has older data.
    start: u64,
    /// The capacity moved within the same memory, and readers may still be before that.
    cut: Option<Cut>,
    /// The oldest position that some reader still needs, when we last looked.
    oldest: u64,
    seen: Vec<ReaderRecord>,
    /// Door through which readers join while the ring runs.
    door: Option<Arc<Door>>,
    /// Readers that came or left since somebody asked.
    changes: Vec<Change>,
    /// Readers that were evicted because they showed an impossible position.
    evicted: u64,
    /// Blocks and bytes that this side has counted.
    pub put: Put,
    teller: Teller,
}

/// The writer's record of one reader.
#[derive(Debug, Default)]
struct ReaderRecord {
    cursor: u64,
    /// The reader has left, or was shut out because it lied.
    gone: bool,
    /// Its page and how it is called, if it came later; else its page is with those of the ring.
    came: Option<(Ticket, Arc<Region>)>,
}

/// The capacity moved at a position.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: u64,
    from: u64,
}

/// A reader came or left while the ring runs.
#[derive(Debug)]
pub enum Change {
    /// It is at this place now, which was another reader's before or is the next one.
    Came(usize, Contact),
    /// The one at this place is gone.
    Left(usize),
}

impl Producer {
    /// The writer of a fresh ring.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let seen = store.readers.iter().map(|_| ReaderRecord::default()).collect();
        Self {
            capacity: store.capacity,
            policy: store.policy,
            store,
            step: 1,
            head: 0,
            published: 0,
            marked: 0,
            start: 0,
            cut: None,
            oldest: 0,
            seen,
            door: None,
            changes: Vec::new(),
            evicted: 0,
            put: Put::default(),
            teller: Teller::default(),
        }
    }

    /// The writer of a segment in which a ring goes on that another writer began.
    pub(crate) fn going_on(store: Arc<Store>, head: u64, put: Put) -> Self {
        let mut begun =
            Self { head, published: head, marked: head, start: head, put, ..Self::new(store) };
        begun.begin(head);
        begun.publish();
        begun
    }

    /// Lets readers come while the ring runs.
    pub(crate) fn open(&mut self, door: Arc<Door>) {
        self.door = Some(door);
    }

    /// The page of a reader.
    #[inline]
    pub(crate) fn page(&self, reader: usize) -> Option<&Region> {
        let seen = self.seen.get(reader)?;
        let came = seen.came.as_ref().map(|(_, page)| page);
        came.or_else(|| self.store.readers.get(reader)).map(|page| &**page)
    }

    /// Returns the counts that a reader has published.
    pub(crate) fn taken(&self, reader: usize) -> Option<Taken> {
        self.page(reader).map(taken)
    }

    /// Readers that came or left since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Looks who came and who left.
    #[inline]
    pub(crate) fn look_at_door(&mut self) {
        if self.door.as_ref().is_some_and(|door| door.has_news()) {
            self.welcome();
        }
    }

    #[cold]
    fn welcome(&mut self) {
        let Some(door) = &self.door else { return };
        let news = door.look(self.published);
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let page = seen.came.as_ref().map(|(_, page)| page);
            let page = page.or_else(|| self.store.readers.get(at));
            seen.gone |= page.is_some_and(|page| acquire(page.word(reader::STATE)) == CLOSED);
        }
        for ticket in news.left {
            let named =
                |seen: &ReaderRecord| seen.came.as_ref().is_some_and(|(its, _)| *its == ticket);
            if let Some(at) = self.seen.iter().position(named) {
                self.shut_out(at);
                self.changes.push(Change::Left(at));
            }
        }
        for coming in news.came {
            let start = coming.start();
            let Coming { ticket, page, contact, .. } = coming;
            let seen = ReaderRecord { cursor: start, gone: false, came: Some((ticket, page)) };
            let at = match self.seen.iter_mut().enumerate().find(|(_, seen)| seen.gone) {
                Some((at, free)) => {
                    *free = seen;
                    at
                }
                None => {
                    self.seen.push(seen);
                    self.seen.len() - 1
                }
            };
            self.changes.extend(contact.map(|contact| Change::Came(at, contact)));
        }
    }

    /// Returns the free positions; looks at the readers only if fewer than `wanted` seem free. A
    /// ring that overwrites is always free.
    pub(crate) fn room(&mut self, wanted: u64) -> Result<u64, Fault> {
        if self.policy == Policy::Overwrite {
            return Ok(self.capacity);
        }
        if self.free() < wanted {
            self.refresh()?;
        }
        Ok(self.free())
    }

    /// Returns the free positions as of the last look. Data that readers still have in an older
    /// segment takes no room in this one; before a cut, where they have it in the same memory, the
    /// smaller of both capacities holds (`segment`, invariant S4).
    fn free(&self) -> u64 {
        let end = match &self.cut {
            Some(cut) if self.oldest < cut.at => self.oldest + cut.from.min(self.capacity),
            _ => self.oldest.max(self.start) + self.capacity,
        };
        end.saturating_sub(self.head)
    }

    /// The oldest position that some reader still needed at the last look.
    pub(crate) const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Goes on in another segment, from the head on.
    pub(crate) fn go_on_in(&mut self, store: Arc<Store>) {
        let marked = self.marked;
        self.marked = self.head;
        // First there: who sees in the old segment that there is a new one sees this.
        store.writer.word(writer::RESERVE).store(self.head, Ordering::Relaxed);
        let mut teller = Teller::default();
        self.show(&store.writer, &mut teller);
        self.marked = marked;
        self.leave_segment();
        self.teller = teller;
        self.capacity = store.capacity;
        (self.start, self.marked, self.cut) = (self.head, self.head, None);
        self.store = store;
    }

    /// Publishes the switch and says that the segment ends with it.
    pub(crate) fn leave_segment(&mut self) {
        self.publish();
        // SYNC POINT: switched; pairs with the load in `Consumer::has_switched`.
        self.store.writer.word(writer::STATE).store(SWITCHED, Ordering::Release);
    }

    /// Goes on with another capacity in the same memory, from the head on.
    pub(crate) fn cut(&mut self, capacity: u64) {
        self.publish();
        self.cut = Some(Cut { at: self.head, from: self.capacity });
        self.capacity = capacity;
    }

    /// The capacity before the last cut, once all readers are past it: told once.
    pub(crate) fn settled(&mut self) -> Option<u64> {
        let oldest = self.oldest;
        self.cut.take_if(|cut| oldest >= cut.at).map(|cut| cut.from)
    }

    /// Returns true if some reader has not reached the last change of the segment.
    pub(crate) const fn is_changing(&self) -> bool {
        self.oldest < self.start || self.cut.is_some()
    }

    /// Looks where the readers are and answers the oldest position that one of them still needs;
    /// the writer's own where all have left. A reader that shows an impossible position is evicted
    /// for ever and counted; the ring goes on for the others. The fault is reported, once, where no
    /// reader is left and none can come.
    pub fn refresh(&mut self) -> Result<u64, Fault> {
        self.look_at_door();
        // Who comes later starts at what is shown, so nobody writes further than a lap behind that
        // (`join`, SYNC POINT entering).
        let newest = if self.door.is_some() { self.published } else { self.head };
        let (mut oldest, mut lie) = (newest, None);
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let page = seen.came.as_ref().map(|(_, page)| page);
            let Some(region) = page.or_else(|| self.store.readers.get(at)) else { continue };
            if seen.gone {
                continue;
            }
            let closed = acquire(region.word(reader::STATE)) == CLOSED;
            // SYNC POINT: block released; pairs with the store in `Consumer::release`.
            let cursor = acquire(region.word(reader::CURSOR));
            if closed {
                seen.gone = true;
            } else if cursor.wrapping_sub(seen.cursor) > self.published - seen.cursor
                || !cursor.is_multiple_of(self.step)
            {
                seen.gone = true;
                self.evicted += 1;
                self.changes.push(Change::Left(at));
                lie = Some(Fault::Poisoned { shown: cursor, mine: self.published });
            } else {
                seen.cursor = cursor;
                oldest = oldest.min(cursor);
            }
        }
        self.oldest = oldest;
        lie.filter(|_| self.abandoned()).map_or(Ok(oldest), Err)
    }

    /// Readers that were evicted because they showed an impossible position.
    pub(crate) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns true if every reader has left or was shut out, as of the last look.
    pub fn abandoned(&self) -> bool {
        let nobody = self.seen.iter().all(|seen| seen.gone);
        nobody && self.door.as_ref().map_or(!self.seen.is_empty(), |door| door.is_shut())
    }

    /// Stops waiting for a reader.
    pub(crate) fn shut_out(&mut self, reader: usize) {
        if let Some(seen) = self.seen.get_mut(reader) {
            seen.gone = true;
        }
    }

    /// Announces that everything up to `position` may be written from now on (lossy rings).
    pub fn begin(&self, position: u64) {
        // SYNC POINT: writing begins; pairs with the fence and load in `Consumer::overtaken`.
        self.store.writer.word(writer::RESERVE).store(position, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Remembers the start of a record as the place where readers that were lapped can go on, if
    /// the last such place is half a lap behind (lossy rings).
    pub(crate) fn mark(&mut self, position: u64) {
        if position - self.marked >= self.capacity / 2 {
            self.marked = position;
        }
    }

    /// Shows the readers everything that was written.
    pub fn publish(&mut self) {
        self.published = self.head;
        let mut teller = std::mem::take(&mut self.teller);
        self.show(&self.store.writer, &mut teller);
        self.teller = teller;
    }

    /// Shows them in this page.
    fn show(&self, page: &Region, teller: &mut Teller) {
        teller.tell(page, writer::LEDGER, self.head, self.put.words());
        // SYNC POINT: block published; pairs with the load in `Consumer::refresh`.
        page.word(writer::COMMIT).store(self.head, Ordering::Release);
        // After the position, so that who sees the mark sees a position that is not before it.
        page.word(writer::MARK).store(self.marked, Ordering::Release);
    }

    /// Publishes and says that nothing more will come.
    pub fn close(&mut self) {
        self.publish();
        // SYNC POINT: closed; pairs with the load in `Consumer::ended`.
        self.store.writer.word(writer::STATE).store(CLOSED, Ordering::Release);
        if let Some(door) = &self.door {
            door.end();
            // Who came last is rung for, too.
            self.look_at_door();
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
