//! Many producers, one reader: a ring for each of them, merged here. [SL §5.1], CONTRACT 16, 24
//!
//! ```text
//! producer 1 ─ ring ─┐
//! producer 2 ─ ring ─┼─ Merged ── blocks, each with the name of who wrote it
//! producer 3 ─ ring ─┘             in current, or by the time that is written in them
//! ```
//!
//! No ring has two writers, so no producer waits for another one, none can spoil what another one
//! wrote, and none that is killed leaves a lock or half a block behind. The reader waits for all
//! doorbells at once. A producer that ends, dies or lies is taken out, with its ledger and the
//! fault if there is one ([`Merged::departed`]); the others go on. Producers may come at any time.
//!
//! **By time** ([`Order::Stamped`]). The time is what producers allege, in any unit. The oldest
//! block is given when every producer has shown that it has nothing older: by a block of its own
//! that is not; or when some producer has shown blocks that are the window apart, or 1 MB of them;
//! or when nothing came for as long as the reader is patient. What comes later than that is given
//! all the same, at once, and counted as late. A producer that writes times in the past gets every
//! second current at most, so it starves nobody; one that writes times in the future is believed,
//! as all are: others are then not waited for, which makes blocks late and loses none.

use buffer::stream::{Piece, Ready};
use buffer::{Fault, Put, Taken, signal};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

mod source;
mod stamped;

use source::Reads;
pub use source::Source;
use stamped::Stage;
pub use stamped::Stamped;

/// In which order blocks of different producers are given. Those of one producer stay in theirs.
#[derive(Debug)]
pub enum Order {
    /// In current, at most so many blocks of one producer while others have some.
    Fair(usize),
    /// Blocks in order of their stamps.
    Stamped(Stamped),
}

/// Names a producer; never given twice by one reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProducerId(u64);

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// A block of so many bytes.
    Block {
        /// The producer of the block.
        from: ProducerId,
        /// Its bytes.
        length: usize,
    },
    /// Nothing is there yet.
    Nothing,
    /// There is no producer (any more).
    End,
}

/// A producer that is there no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departed {
    /// The producer.
    pub producer: ProducerId,
    /// The fault, if it did not close its stream.
    pub fault: Option<Fault>,
    /// Counts that the producer claims to have put.
    pub put: Put,
    /// Counts that were taken of those.
    pub taken: Taken,
}

/// The reading end of many streams.
pub struct Merged {
    order: Order,
    producers: Vec<Producer>,
    departed: VecDeque<Departed>,
    next: u64,
    /// Index of the producer that is read, and the blocks that it has given in this round.
    current: usize,
    given: usize,
    spins: u32,
}

#[derive(Debug)]
struct Producer {
    id: ProducerId,
    input: Box<dyn Reads>,
    /// Blocks that were taken and not given yet (by time only).
    stage: Stage,
    /// It gives nothing more, for this reason.
    over: Option<Option<Fault>>,
}

impl Merged {
    /// A reader of nobody yet.
    #[must_use]
    pub fn new(order: Order) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            order,
            producers: Vec::new(),
            departed: VecDeque::new(),
            next: 0,
            current: 0,
            given: 0,
            spins: signal::spins(processors),
        }
    }

    /// Sets how often to look at every producer before sleeping; 0 where all share a processor.
    pub const fn spin(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// One more producer: the reading end of a stream, or of a stream of slots.
    pub fn join(&mut self, input: impl Source + 'static) -> ProducerId {
        let input = Box::new(input);
        let id = ProducerId(self.next);
        self.next += 1;
        self.producers.push(Producer { id, input, stage: Stage::default(), over: None });
        id
    }

    /// Reads a producer no more; it is told that. What was taken of it and not given is given
    /// still. `false`: it is not there.
    pub fn leave(&mut self, producer: ProducerId) -> bool {
        let Some(at) = self.producers.iter().position(|known| known.id == producer) else {
            return false;
        };
        self.producers[at].over.get_or_insert(None);
        self.depart();
        true
    }

    /// Returns the number of producers.
    #[must_use]
    pub fn producers(&self) -> usize {
        self.producers.len()
    }

    /// The next producer that has gone since this was asked.
    pub fn departed(&mut self) -> Option<Departed> {
        self.departed.pop_front()
    }

    /// Returns the number of blocks that came after a younger one of another producer had been
    /// given.
    #[must_use]
    pub const fn late(&self) -> u64 {
        match &self.order {
            Order::Fair(_) => 0,
            Order::Stamped(stamped) => stamped.late,
        }
    }

    /// Returns the counts taken of a producer so far, waiting blocks included.
    #[must_use]
    pub fn count(&self, producer: ProducerId) -> Option<Taken> {
        self.producers.iter().find(|known| known.id == producer).map(|known| known.input.taken())
    }

    /// Copies the next block into `out`; waits for it. Where `out` is too short the answer is
    /// [`Fault::TooLong`], and the block stays.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Next, Fault> {
        loop {
            match self.try_read(out)? {
                Next::Nothing => {}
                found => return Ok(found),
            }
            let patience = match &self.order {
                Order::Stamped(stamped) if self.is_staged() => Some(stamped.patience),
                _ => None,
            };
            let ready = self.wait(patience);
            if ready == Ready::Nothing
                && patience.is_some()
                && let Some(found) = self.give_staged(out, false)?
            {
                return Ok(found);
            }
        }
    }

    /// As [`Merged::read`], without waiting.
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<Next, Fault> {
        let found = match self.order {
            Order::Fair(most) => self.take_round_robin(most.max(1), out)?,
            Order::Stamped(_) => {
                self.fill_stages();
                self.give_staged(out, true)?
            }
        };
        self.depart();
        Ok(match found {
            Some(found) => found,
            None if self.producers.is_empty() => Next::End,
            None => Next::Nothing,
        })
    }

    /// Waits until a producer of which nothing is staged has something, or is gone; for at most
    /// `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Ready {
        for _ in 0..self.spins {
            if self.has_something() {
                return Ready::Something;
            }
            std::hint::spin_loop();
        }
        let mut found = false;
        let mut waited: Vec<_> = self.producers.iter_mut().filter(|p| p.is_waited_for()).collect();
        for producer in &mut waited {
            match producer.input.fall_asleep() {
                Ok(has) => found |= has,
                Err(fault) => {
                    producer.over = Some(Some(fault));
                    found = true;
                }
            }
        }
        let rang = if found || waited.is_empty() {
            vec![false; waited.len()]
        } else {
            let doorbells: Vec<_> =
                waited.iter().map(|producer| producer.input.doorbell()).collect();
            sys::poll::readable(&doorbells, limit)
        };
        for (producer, rang) in waited.into_iter().zip(rang) {
            producer.input.wake(rang);
        }
        if found || self.has_something() { Ready::Something } else { Ready::Nothing }
    }

    /// The doorbells of all producers: readable when one has rung, which it does after
    /// [`Merged::wait`] has found nothing; for who waits for more than this.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.producers.iter().map(|producer| producer.input.doorbell())
    }

    fn has_something(&mut self) -> bool {
        let mut waited = self.producers.iter_mut().filter(|producer| producer.is_waited_for());
        // A fault is something, too: the next look takes it.
        waited.any(|producer| producer.input.has_something().unwrap_or(true))
    }

    /// The next block of the producer whose current it is, or of the next one that has some.
    fn take_round_robin(&mut self, most: usize, out: &mut [u8]) -> Result<Option<Next>, Fault> {
        for _ in 0..=self.producers.len() {
            if self.given >= most || self.current >= self.producers.len() {
                self.current =
                    if self.current + 1 < self.producers.len() { self.current + 1 } else { 0 };
                self.given = 0;
            }
            let Some(producer) = self.producers.get_mut(self.current) else { return Ok(None) };
            match producer.take(out)? {
                Some(length) => {
                    self.given += 1;
                    return Ok(Some(Next::Block { from: producer.id, length }));
                }
                None => self.given = most,
            }
        }
        Ok(None)
    }

    /// Takes out who gives nothing more.
    fn depart(&mut self) {
        let mut at = 0;
        while let Some(producer) = self.producers.get_mut(at) {
            match producer.over {
                Some(fault) if producer.stage.is_empty() => {
                    let gone = self.producers.remove(at);
                    let (put, taken) = (gone.input.put(), gone.input.taken());
                    self.departed.push_back(Departed { producer: gone.id, fault, put, taken });
                    if at < self.current {
                        self.current -= 1;
                    } else if at == self.current {
                        self.given = 0;
                    }
                }
                _ => at += 1,
            }
        }
    }
}

impl Producer {
    /// Returns true if its next block must come from its ring.
    fn is_waited_for(&self) -> bool {
        self.over.is_none() && self.stage.is_empty()
    }

    /// Takes its next block; notes if it gives nothing more. Only that `out` is too short is the
    /// caller's to know.
    fn take(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.over.is_some() {
            return Ok(None);
        }
        match self.input.read_block(out) {
            Ok(Piece::Block(length)) => return Ok(Some(length)),
            Ok(Piece::Nothing) => {}
            Ok(Piece::End) => self.over = Some(None),
            Err(fault @ Fault::TooLong { .. }) => return Err(fault),
            Err(fault) => self.over = Some(Some(fault)),
        }
        Ok(None)
    }
}

impl fmt::Debug for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged")
            .field("order", &self.order)
            .field("producers", &self.producers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
