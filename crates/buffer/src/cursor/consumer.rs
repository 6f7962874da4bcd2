//! A reader's side of a ring: what is there, and what is needed no more. The SYNC POINTS are those
//! of [`cursor`](super).

use super::told::Teller;
use super::{POSITION_MAX, Store};
use crate::atomic::{Ordering, acquire, fence};
use crate::region::Region;
use crate::{Fault, Policy, Taken};
use abi::ring::{CLOSED, SWITCHED, reader, writer};
use std::sync::Arc;

/// A reader's side of a ring.
#[derive(Debug)]
pub struct Consumer {
    pub store: Arc<Store>,
    /// Positions from one lap to the next.
    pub(crate) capacity: u64,
    pub(crate) policy: Policy,
    pub index: usize,
    /// The next position that we read.
    pub next: u64,
    /// The position up to which we have told the writer that we need nothing.
    released: u64,
    /// The published position when we last looked.
    commit: u64,
    poisoned: bool,
    pub taken: Taken,
    teller: Teller,
}

impl Consumer {
    /// Reader number `index` of a fresh ring.
    pub(crate) fn new(store: Arc<Store>, index: usize) -> Self {
        Self::starting(store, index, 0)
    }

    /// Reader number `index`, from this position on.
    pub(crate) fn starting(store: Arc<Store>, index: usize, start: u64) -> Self {
        assert!(index < store.readers.len(), "a reader has a page of its own");
        Self {
            capacity: store.capacity,
            policy: store.policy,
            store,
            index,
            next: start,
            released: start,
            commit: start,
            poisoned: false,
            taken: Taken::default(),
            teller: Teller::default(),
        }
    }

    /// The position up to which there is something to read; looks at the writer only when
    /// everything that was seen has been read.
    pub fn available(&mut self) -> Result<u64, Fault> {
        if self.next == self.commit { self.refresh() } else { Ok(self.commit) }
    }

    /// Returns true if there is anything to read.
    pub fn has_more(&mut self) -> Result<bool, Fault> {
        Ok(self.available()? != self.next)
    }

    /// The published position when we last looked.
    #[inline]
    pub(crate) const fn seen(&self) -> u64 {
        self.commit
    }

    /// Returns true if everything observed so far has been read; does not look at the writer.
    #[inline]
    pub const fn is_read(&self) -> bool {
        self.next == self.commit
    }

    /// Looks how far the writer has published.
    pub fn refresh(&mut self) -> Result<u64, Fault> {
        // SYNC POINT: block published; pairs with the store in `Producer::publish`.
        let commit = acquire(self.store.writer.word(writer::COMMIT));
        let ahead = commit.wrapping_sub(self.commit);
        // In a lossy ring the writer may be any distance ahead, but never behind.
        let limit = match self.policy {
            Policy::Overwrite => POSITION_MAX,
            Policy::Block | Policy::DropNew => {
                self.capacity.saturating_sub(self.commit.wrapping_sub(self.released))
            }
        };
        if ahead > limit || commit > POSITION_MAX || self.poisoned {
            self.poisoned = true;
            return Err(Fault::Poisoned { shown: commit, mine: self.next });
        }
        self.commit = commit;
        Ok(commit)
    }

    /// Returns true if the writer may have begun to overwrite what we copied from `start` (lossy
    /// rings). Called after the copy.
    pub fn overtaken(&self, start: u64) -> bool {
        // SYNC POINT: writing begins; pairs with the store and fence in `Producer::begin`.
        fence(Ordering::Acquire);
        let reserve = self.store.writer.word(writer::RESERVE).load(Ordering::Relaxed);
        reserve.wrapping_sub(start) > self.capacity
    }

    /// Returns the position at which a reader that was lapped at `start` resumes: the mark, at most
    /// half a lap and a record behind, so that the next attempt is likely to succeed. `None`: the
    /// writer is just overwriting all that there was, and the reader stays where it is.
    pub(crate) fn resume(&mut self, start: u64) -> Result<Option<u64>, Fault> {
        let mark = acquire(self.store.writer.word(writer::MARK));
        let commit = self.refresh()?;
        if mark > commit {
            self.poisoned = true;
            return Err(Fault::Poisoned { shown: mark, mine: start });
        }
        self.next = start;
        Ok(Some(mark).filter(|&mark| mark > start))
    }

    /// Goes on in another segment, from the next position on, where everything that was seen was
    /// read.
    pub(crate) fn go_on_in(&mut self, store: Arc<Store>) {
        self.release();
        self.commit = self.next;
        self.capacity = store.capacity;
        self.store = store;
    }

    /// Goes on with another capacity in the same memory, from the next position on.
    pub(crate) fn cut(&mut self, capacity: u64) {
        self.release();
        self.capacity = capacity;
    }

    /// The position up to which we have told the writer that we need nothing.
    #[inline]
    pub const fn released(&self) -> u64 {
        self.released
    }

    /// Tells the writer that we need nothing before `next` any more.
    pub fn release(&mut self) {
        let mut teller = std::mem::take(&mut self.teller);
        let page = self.page();
        teller.tell(page, reader::LEDGER, self.next, self.taken.words());
        // SYNC POINT: block released; pairs with the load in `Producer::refresh`.
        page.word(reader::CURSOR).store(self.next, Ordering::Release);
        self.released = self.next;
        self.teller = teller;
    }

    /// Says on which processor we are: shown with the next release.
    #[cfg(not(loom))]
    pub(crate) fn is_on(&self, processor: u64) {
        self.page().word(reader::PROCESSOR).store(processor + 1, Ordering::Relaxed);
    }

    /// Returns the positions published (as of the last look) and not released.
    pub(crate) fn resident(&self) -> u64 {
        self.commit.wrapping_sub(self.released)
    }

    /// Returns true if the writer has left this segment. Called before the position is loaded,
    /// which is the last one then, with a switch before it.
    pub(crate) fn has_switched(&self) -> bool {
        // SYNC POINT: switched; pairs with the store in `Producer::leave_segment`.
        acquire(self.store.writer.word(writer::STATE)) == SWITCHED
    }

    /// Returns true if the writer has closed: a position loaded after this is the last one.
    pub(crate) fn closed(&self) -> bool {
        // SYNC POINT: closed; pairs with the store in `Producer::close`.
        acquire(self.store.writer.word(writer::STATE)) == CLOSED
    }

    /// Returns true if the writer has closed and everything has been read.
    pub fn ended(&mut self) -> Result<bool, Fault> {
        Ok(self.closed() && self.refresh()? == self.next)
    }

    /// Says that we read no more; the writer waits for us no longer.
    pub fn leave(&mut self) {
        self.release();
        // SYNC POINT: closed; pairs with the load in `Producer::refresh`.
        self.page().word(reader::STATE).store(CLOSED, Ordering::Release);
    }

    /// Marks the link as broken by what the writer has put into the ring.
    pub(crate) fn poison(&mut self, fault: Fault) -> Fault {
        self.poisoned = true;
        fault
    }

    fn page(&self) -> &Region {
        // The index was checked when the reader was made.
        self.store.readers.get(self.index).map_or(&self.store.writer, |page| &**page)
    }
}
