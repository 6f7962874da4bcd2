//! Rings between spaces: the end that a space puts blocks into, and the end that it takes them
//! from.
//!
//! Only rich pointers cross; the bytes stay in the pool where they are until every reader has
//! passed them (`buffer::crossing`). Within a space there is no ring and no event; across spaces
//! one event is sent per batch: after T_b blocks, before the writer sleeps, or by the timer when
//! T_t is over and the writer is busy elsewhere (`buffer::signal::moderate`). Every put publishes
//! at once, so an event is only needed by a reader that sleeps. [Th §5.2.2]

use crate::commands::CommandQueue;
use crate::latency::Gauge;
use crate::ledger::{EdgeKind, loses_here};
use crate::space::memory::Memory;
use crate::space::stall::StallProbe;
use buffer::crossing::{Batch as Taken, Columns, Origin, Pools, Reader, Writer};
use buffer::ibuf::Pushed;
use buffer::signal::Doorbell;
use buffer::signal::moderate::{Events, Moderator, Threshold, Timer};
use buffer::{Fault, Put};
use filter::{Amount, Batch};
use std::fmt;
use std::sync::Arc;

/// Failure of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFailure {
    /// The space on the other side has ended.
    Abandoned,
    /// An entry is not what it alleges: a bug of ours.
    Fault(Fault),
}

impl fmt::Display for RingFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abandoned => f.write_str("the space on the other side has ended"),
            Self::Fault(fault) => write!(f, "{fault}"),
        }
    }
}

impl From<Fault> for RingFailure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Abandoned => Self::Abandoned,
            other => Self::Fault(other),
        }
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Export {
    /// Index of the edge in the plan.
    pub planned: usize,
    writer: Option<Writer>,
    bell: Arc<Doorbell>,
    /// Doorbell of the space on the other side.
    far: Arc<Doorbell>,
    spins: u32,
    /// Event moderation for the other side.
    events: Moderator,
    counted: Put,
    /// Amount that a fault-injection build counts as put without putting it.
    lost: Amount,
    /// Command queue to notify when the space waits for room here.
    told: Option<Arc<CommandQueue>>,
    /// Stall probe of the space, if it replays a record.
    post: Option<StallProbe>,
    /// Kind of the edge in the ledger.
    pub kind: EdgeKind,
    /// Step of the end of a replica in which the entry is put.
    pub step: u32,
    /// Gauge of the time that blocks spend in the ring, if measured.
    gauge: Option<Arc<Gauge>>,
}

impl Export {
    /// An end over this writer. The space sleeps on `bell` when the ring is full; the space on the
    /// other side sleeps on `far`.
    #[must_use]
    pub fn new(
        planned: usize,
        writer: Writer,
        (bell, far): (Arc<Doorbell>, Arc<Doorbell>),
        threshold: Threshold,
    ) -> Self {
        let spins =
            buffer::signal::spins(std::thread::available_parallelism().map_or(1, usize::from));
        let threshold = threshold.within(writer.capacity());
        Self {
            planned,
            writer: Some(writer),
            bell,
            events: Moderator::new(Timer::of_process(), threshold, far.clone()),
            far,
            spins,
            counted: Put::default(),
            lost: Amount::default(),
            told: None,
            post: None,
            kind: EdgeKind::Ring,
            step: 0,
            gauge: None,
        }
    }

    /// Tells this gauge what is put.
    pub fn measured_by(&mut self, gauge: Arc<Gauge>) {
        self.gauge = Some(gauge);
    }

    /// Has those who give the space orders know when it waits here.
    pub fn tells(&mut self, orders: Arc<CommandQueue>, post: Option<StallProbe>) {
        (self.told, self.post) = (Some(orders), post);
    }

    /// Never lets more blocks wait for an event than the smallest dbuf that they lie in can do
    /// without. [SL §6.2]
    pub fn bound(&mut self, blocks: u64) {
        self.events.bound(blocks);
    }

    /// Returns the number of entries not yet taken.
    pub fn waiting(&mut self) -> usize {
        let Some(writer) = &mut self.writer else { return 0 };
        let capacity = writer.capacity();
        capacity - writer.room(capacity).unwrap_or(0).min(capacity)
    }

    /// Returns the event threshold of the other side.
    #[must_use]
    pub const fn threshold(&self) -> Threshold {
        self.events.threshold()
    }

    /// Returns the number of events sent to the other side, by cause.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events.events()
    }

    /// Puts the live lanes, in order; waits while the ring is full. `last`: the space has nothing
    /// more, and sleeps next.
    pub(crate) fn put(
        &mut self,
        batch: &mut Batch<'_>,
        memory: &Memory<'_>,
        last: bool,
    ) -> Result<(), RingFailure> {
        let Some(writer) = &mut self.writer else { return Err(RingFailure::Abandoned) };
        let mut mask = batch.live();
        let put = Amount { blocks: u64::from(mask.count_ones()), bytes: 0 };
        // Who gets no block of a burst that it has a part in would be waited for.
        let may_lose = self.kind != EdgeKind::Deal || put.blocks > 1;
        if may_lose
            && loses_here(self.kind, put)
            && let Some(last) = mask.checked_ilog2()
        {
            mask &= !(1 << last);
            self.lost.add(batch.block(last as usize).length());
        }
        match self.kind {
            EdgeKind::Deal => {
                batch.tell_turns(mask, mask.checked_ilog2().map(|last| last as usize));
            }
            EdgeKind::Join => batch.tell_steps(mask, self.step),
            _ => {}
        }
        let intakes = Pools(memory.intakes);
        let pools: [&dyn Origin; 2] = [&intakes, memory.work];
        let with_one;
        let with_many: Vec<&dyn Origin>;
        let origins: &[&dyn Origin] = match memory.imported {
            [] => &pools,
            [one] => {
                with_one = [pools[0], pools[1], one];
                &with_one
            }
            many => {
                with_many = pools.into_iter().chain(many.iter().map(|one| one as _)).collect();
                &with_many
            }
        };
        if let Some(gauge) = self.gauge.as_ref().filter(|_| mask != 0) {
            gauge.puts(writer.count().blocks + 1);
        }
        let mut rest = mask.count_ones() as usize;
        let mut entries = batch.entries(mask);
        let mut at_once = match batch.dense().filter(|_| mask == batch.live()) {
            Some((pointers, context, marks)) => {
                writer.push_columns(Columns { pointers, context, marks }, origins)?
            }
            None => false,
        };
        loop {
            let pushed = match std::mem::take(&mut at_once) {
                true => Pushed { put: rest, dropped: 0 },
                false => writer.push_each(&mut entries, rest, origins)?,
            };
            self.counted = writer.count();
            rest -= pushed.put + pushed.dropped;
            let (awaited, blocks) = (self.far.is_awaited(), pushed.put as u64);
            let due = match last && rest == 0 {
                true => self.events.published_last(blocks, awaited),
                false => self.events.published(blocks, awaited, sys::clock::monotonic),
            };
            if due {
                writer.signal();
            }
            if rest == 0 {
                return Ok(());
            }
            if self.events.idle() {
                writer.signal();
            }
            if writer.is_abandoned() {
                return Err(RingFailure::Abandoned);
            }
            let told = self.told.iter();
            told.clone().for_each(|told| told.is_held_up(Some(self.planned)));
            self.bell.heed_room(true);
            let mut ready = || writer.is_abandoned() || writer.room(1).is_ok_and(|room| room > 0);
            match &self.post {
                None => self.bell.wait_until(self.spins, ready),
                Some(post) => {
                    let what = || format!("room on the way to node {}", self.planned);
                    post.wait_until(&self.bell, what, &mut ready);
                }
            }
            told.for_each(|told| told.is_held_up(None));
        }
    }

    /// Tells the other side what has been put since the last event, and takes back the memory that
    /// it has passed: before the space sleeps.
    pub fn flush(&mut self) -> Result<(), RingFailure> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if self.events.idle() {
            writer.signal();
        }
        writer.reap()?;
        Ok(())
    }

    /// Ends the ring: the other side takes what is there and then knows that nothing will come.
    pub fn close(&mut self) {
        self.writer = None;
    }

    /// Returns the counters of this side.
    #[must_use]
    pub const fn counted(&self) -> Put {
        let (blocks, bytes) = (self.lost.blocks, self.lost.bytes);
        let counted = self.counted;
        Put { blocks: counted.blocks + blocks, bytes: counted.bytes + bytes, ..counted }
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Import {
    /// Index of the edge in the plan.
    pub planned: usize,
    reader: Reader,
    /// Gauge of the time that blocks spend in the ring, if measured.
    gauge: Option<Arc<Gauge>>,
}

impl Drop for Import {
    fn drop(&mut self) {
        self.gauge.iter().for_each(|gauge| gauge.close());
    }
}

impl Import {
    /// An end over this reader.
    #[must_use]
    pub const fn new(planned: usize, reader: Reader) -> Self {
        Self { planned, reader, gauge: None }
    }

    /// Tells this gauge what is taken.
    pub fn measured_by(&mut self, gauge: Arc<Gauge>) {
        self.gauge = Some(gauge);
    }

    /// Up to `max` entries, which stay where they are until they are released; `None`: nothing is
    /// there.
    pub fn peek(&mut self, max: usize) -> Result<Option<Taken<'_>>, Fault> {
        let before = self.reader.count().blocks;
        let there = if self.gauge.is_some() { self.reader.waiting()? } else { 0 };
        let taken = self.reader.peek(max)?;
        if let Some(gauge) = self.gauge.as_ref().filter(|_| !taken.is_empty()) {
            gauge.takes(before + taken.len() as u64, there > taken.len());
        }
        Ok((!taken.is_empty()).then_some(taken))
    }

    /// Returns the number of entries available now.
    pub fn waiting(&mut self) -> Result<usize, Fault> {
        self.reader.refresh()?;
        self.reader.waiting()
    }

    /// Returns true if the other side has ended: no more entries follow those in the ring.
    pub fn is_closed(&self) -> bool {
        self.reader.is_closed()
    }

    /// All entries that are there by now.
    pub fn look_again(&mut self) -> Result<Taken<'_>, Fault> {
        self.reader.refresh()?;
        self.reader.peek(usize::MAX)
    }

    /// Up to `max` entries, or none.
    pub fn look(&mut self, max: usize) -> Result<Taken<'_>, Fault> {
        self.reader.peek(max)
    }

    /// Gives back the first `count` entries.
    pub fn release(&mut self, count: usize) -> Result<(), Fault> {
        self.reader.release(count)?;
        if let Some(gauge) = &self.gauge {
            gauge.takes(self.reader.count().blocks, self.reader.waiting()? > 0);
        }
        Ok(())
    }

    /// Returns true if the other side has ended and every entry was taken.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.reader.is_finished()
    }

    /// Returns the amount that this side has taken.
    #[must_use]
    pub fn taken(&self) -> Amount {
        let taken = self.reader.count();
        Amount { blocks: taken.blocks, bytes: taken.bytes }
    }
}
