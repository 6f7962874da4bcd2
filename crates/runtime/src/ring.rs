//! The writing and reading ends of rings between spaces.
//!
//! Only rich pointers cross a ring. The bytes stay in their pool until every reader has released
//! them (`buffer::crossing`). Within a space, an arc is a function call and needs no notification.
//! Between spaces, the writer notifies the reader once per batch: after a number of blocks (T_b),
//! before the writer sleeps, or, if the writer is busy with other work, from a timer after a time
//! limit (T_t) (`buffer::signal::wakeup_moderation`). Each call to `RingExport::put` publishes its
//! blocks at once, so only a sleeping reader needs a notification. [Th §5.2.2]

use crate::failure::RingFailure;
use crate::latency::LatencyGauge;
use crate::ledger::{EdgeKind, RingSize, must_lose_block};
use crate::space::memory::Memory;
use crate::space::stall::StallProbe;
use crate::status::SpaceStatus;
use buffer::crossing::{
    Batch as RingBatch, Columns, CrossingReader, CrossingWriter, Origin, Pools,
};
use buffer::ibuf::PushResult;
use buffer::scale::ScalingParameters;
use buffer::signal::Doorbell;
use buffer::signal::wakeup_moderation::{
    WakeupCounts, WakeupModerator, WakeupThreshold, WakeupTimer,
};
use buffer::{Fault, WriterCounts};
use filter::{Amount, Batch};
use std::sync::Arc;

/// The writing end of a ring between two spaces. It also decides when the reader is notified.
#[derive(Debug)]
pub struct RingExport {
    /// Number of the edge to which the ring belongs. The number stays the same when the path is
    /// changed.
    pub planned: usize,
    writer: Option<CrossingWriter>,
    doorbell: Arc<Doorbell>,
    /// Doorbell on which the reader's space sleeps.
    reader_doorbell: Arc<Doorbell>,
    spins: u32,
    /// Moderator that decides, after each put, whether to notify the reader now or later.
    events: WakeupModerator,
    /// Capacity of the ring, in entries, from which the thresholds in `events` were last computed.
    /// The capacity changes when the ring is resized.
    entries: usize,
    /// Size of the ring at the time when it was closed. Meaningless while the ring is open.
    size_at_end: RingSize,
    counts: WriterCounts,
    /// Amount of blocks that fault injection has removed: the writer counted them as put, but did
    /// not put them into the ring. Always 0 in builds without fault injection.
    lost: Amount,
    /// Status of the writer's space, in which a full ring is recorded; `None` until the space is
    /// connected.
    status: Option<Arc<SpaceStatus>>,
    /// Handle with which the writer waits at a full ring in a replay, so that the replay detects a
    /// stall; `None` outside a replay.
    stall_probe: Option<StallProbe>,
    /// Kind of the edge in the ledger.
    pub kind: EdgeKind,
    /// Progress of a replica's shutdown, which ends the filters of the replica one after the other:
    /// the number of the filter that is being ended, counted from 1. The value is 0 before the
    /// shutdown. It is stored in the marks of entries (see `crate::space::replica_shutdown`).
    pub step: u32,
    /// Gauge that measures how long blocks wait in this ring; `None` if this is not measured.
    gauge: Option<Arc<LatencyGauge>>,
}

impl RingExport {
    /// Creates the writing end of a ring. The writer's space sleeps on `doorbell` while the ring is
    /// full. The reader's space sleeps on `reader_doorbell`.
    #[must_use]
    pub fn new(
        planned: usize,
        writer: CrossingWriter,
        (doorbell, reader_doorbell): (Arc<Doorbell>, Arc<Doorbell>),
        threshold: WakeupThreshold,
    ) -> Self {
        let spins = buffer::signal::spin_limit_for_processors(
            std::thread::available_parallelism().map_or(1, usize::from),
        );
        let entries = writer.capacity();
        let threshold = threshold.limited_to_ring(entries);
        Self {
            entries,
            size_at_end: RingSize::default(),
            planned,
            writer: Some(writer),
            doorbell,
            events: WakeupModerator::new(
                WakeupTimer::for_process(),
                threshold,
                reader_doorbell.clone(),
            ),
            reader_doorbell,
            spins,
            counts: WriterCounts::default(),
            lost: Amount::default(),
            status: None,
            stall_probe: None,
            kind: EdgeKind::Ring,
            step: 0,
            gauge: None,
        }
    }

    /// Attaches a gauge that measures how long blocks wait in this ring.
    pub fn attach_gauge(&mut self, gauge: Arc<LatencyGauge>) {
        self.gauge = Some(gauge);
    }

    /// Connects the ring to the status of the writer's space, in which a full ring is recorded. In
    /// a replay, `probe` is the space's handle to the stall detector.
    pub fn connect_space_status(&mut self, status: Arc<SpaceStatus>, probe: Option<StallProbe>) {
        (self.status, self.stall_probe) = (Some(status), probe);
    }

    /// Limits the number of blocks that the writer puts into the ring before it notifies the
    /// reader. Without this limit, these blocks could fill a dbuf while the reader sleeps. [SL
    /// §6.2]
    pub fn limit_unnotified_blocks(&mut self, blocks: u64) {
        self.events.limit_blocks(blocks);
    }

    /// Allows the number of blocks after which the reader is notified (T_b) to grow to up to `most`
    /// while blocks arrive at a high rate. If `scaling` is given, the ring also grows and shrinks
    /// with the load, within the limits of `scaling`.
    pub fn enable_adaptation(&mut self, most: u64, scaling: Option<ScalingParameters>) {
        self.events.set_adaptation_max(most);
        if let Some(scaling) = scaling {
            self.writer = self.writer.take().map(|writer| writer.with_scaling(scaling));
        }
        self.events.limit_to_ring(self.entries);
    }

    /// Returns the number of entries in the ring that the reader has not taken yet; 0 once the ring
    /// is closed.
    pub fn untaken_entries(&mut self) -> usize {
        self.writer.as_mut().map_or(0, CrossingWriter::unreleased_entries)
    }

    /// Returns the size of the ring, the number of blocks after which the reader is notified, and
    /// the reason for the last resize. For a closed ring, returns the values at the time of
    /// closing.
    #[must_use]
    pub fn size(&self) -> RingSize {
        let Some(writer) = &self.writer else { return self.size_at_end.clone() };
        let (entries, signal_blocks) = (self.entries as u64, self.events.wakeup_threshold().blocks);
        match writer.sizing_state() {
            None => RingSize { entries, signal_blocks, ..RingSize::default() },
            Some(scale) => {
                let (grown, shrunk, last_resize_reason) =
                    (scale.grown, scale.shrunk, scale.last_change_reason());
                RingSize { entries, signal_blocks, grown, shrunk, last_resize_reason }
            }
        }
    }

    /// Returns the limits after which the ring currently notifies its reader: a number of unread
    /// blocks, and a time.
    #[must_use]
    pub const fn wakeup_threshold(&self) -> WakeupThreshold {
        self.events.wakeup_threshold()
    }

    /// Returns the number of notifications sent to the reader, by cause.
    #[must_use]
    pub fn wakeup_counts(&self) -> WakeupCounts {
        self.events.wakeup_counts()
    }

    /// Puts the blocks in the live lanes of a batch into the ring, in order. Waits while the ring
    /// is full. `last` is true if the space will sleep after this batch unless input arrives.
    ///
    /// # Errors
    ///
    /// Fails with [`RingFailure::Abandoned`] if the reader has ended, and with
    /// [`RingFailure::Fault`] if the ring is inconsistent.
    pub(crate) fn put(
        &mut self,
        batch: &mut Batch<'_>,
        memory: &Memory<'_>,
        last: bool,
    ) -> Result<(), RingFailure> {
        let Some(writer) = &mut self.writer else { return Err(RingFailure::Abandoned) };
        let mut mask = batch.live_lanes();
        let put = Amount { blocks: u64::from(mask.count_ones()), bytes: 0 };
        // Losing the only block of a replica's part would make the join wait for the replica
        // forever.
        let may_lose = self.kind != EdgeKind::Dispatch || put.blocks > 1;
        if may_lose
            && must_lose_block(self.kind, put)
            && let Some(last) = mask.checked_ilog2()
        {
            mask &= !(1 << last);
            self.lost.add_block(batch.block(last as usize).length());
        }
        match self.kind {
            EdgeKind::Dispatch => {
                batch.store_sequence_numbers(mask, mask.checked_ilog2().map(|last| last as usize));
            }
            EdgeKind::Join => batch.store_end_step(mask, self.step),
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
            gauge.watch_block(writer.counts().blocks + 1);
        }
        let mut rest = mask.count_ones() as usize;
        let mut entries = batch.entries(mask);
        let mut at_once = match batch.dense_columns().filter(|_| mask == batch.live_lanes()) {
            Some((pointers, context, marks)) => {
                writer.push_columns(Columns { pointers, metadata: context, marks }, origins)?
            }
            None => false,
        };
        loop {
            let pushed = match std::mem::take(&mut at_once) {
                true => PushResult { put: rest, dropped: 0 },
                false => writer.push_from_iter(&mut entries, rest, origins)?,
            };
            self.counts = writer.counts();
            if writer.capacity() != self.entries {
                self.entries = writer.capacity();
                self.events.limit_to_ring(self.entries);
            }
            rest -= pushed.put + pushed.dropped;
            let (awaited, blocks) =
                (self.reader_doorbell.has_unnotified_sleeper(), pushed.put as u64);
            let due = match last && rest == 0 {
                true => self.events.count_last_published(blocks, awaited),
                false => self.events.count_published(blocks, awaited, sys::clock::monotonic_ns),
            };
            if due {
                writer.wake_readers();
            }
            if rest == 0 {
                return Ok(());
            }
            if writer.grow() {
                continue;
            }
            if self.events.must_notify_before_wait() {
                writer.wake_readers();
            }
            if writer.is_abandoned() {
                return Err(RingFailure::Abandoned);
            }
            let status = self.status.iter();
            status.clone().for_each(|status| status.set_full_ring(Some(self.planned)));
            self.doorbell.set_waits_for_room(true);
            let mut ready =
                || writer.is_abandoned() || writer.free_entries(1).is_ok_and(|room| room > 0);
            match &self.stall_probe {
                None => self.doorbell.wait_until(self.spins, ready),
                Some(stall_probe) => {
                    let what = || format!("room in the ring to node {}", self.planned);
                    stall_probe.wait_until(&self.doorbell, what, &mut ready);
                }
            }
            status.for_each(|status| status.set_full_ring(None));
        }
    }

    /// Notifies the reader if a notification is pending, and reclaims the memory of blocks that the
    /// reader has released. The space calls this before it sleeps.
    pub fn flush(&mut self) -> Result<(), RingFailure> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if self.events.must_notify_before_wait() {
            writer.wake_readers();
        }
        writer.drop_passed_leases()?;
        Ok(())
    }

    /// Closes the ring. The reader can still take the remaining entries, and then reaches the end.
    pub fn close(&mut self) {
        self.size_at_end = self.size();
        self.writer = None;
    }

    /// Returns the counts of the writing end, including blocks lost by fault injection.
    #[must_use]
    pub const fn writer_counts(&self) -> WriterCounts {
        let (blocks, bytes) = (self.lost.blocks, self.lost.bytes);
        let counted = self.counts;
        WriterCounts { blocks: counted.blocks + blocks, bytes: counted.bytes + bytes, ..counted }
    }
}

/// The reading end of a ring between two spaces.
#[derive(Debug)]
pub struct RingImport {
    /// Number of the edge to which the ring belongs. The number stays the same when the path is
    /// changed.
    pub planned: usize,
    reader: CrossingReader,
    /// Gauge that measures how long blocks wait in this ring; `None` if this is not measured.
    gauge: Option<Arc<LatencyGauge>>,
}

impl Drop for RingImport {
    fn drop(&mut self) {
        self.gauge.iter().for_each(|gauge| gauge.close());
    }
}

impl RingImport {
    /// Creates a reading end without a gauge. `planned` is the number of the edge.
    #[must_use]
    pub const fn new(planned: usize, reader: CrossingReader) -> Self {
        Self { planned, reader, gauge: None }
    }

    /// Attaches a gauge that measures how long blocks wait in this ring.
    pub fn attach_gauge(&mut self, gauge: Arc<LatencyGauge>) {
        self.gauge = Some(gauge);
    }

    /// Returns up to `max` entries, which stay in the ring until [`Self::release`] is called.
    /// Returns `None` if the ring is empty. Does not block. Updates the gauge.
    pub fn peek(&mut self, max: usize) -> Result<Option<RingBatch<'_>>, Fault> {
        let before = self.reader.counts().blocks;
        let there = if self.gauge.is_some() { self.reader.unread_entries()? } else { 0 };
        let taken = self.reader.peek(max)?;
        if let Some(gauge) = self.gauge.as_ref().filter(|_| !taken.is_empty()) {
            gauge.measure_watched_block(before + taken.len() as u64, there > taken.len());
        }
        Ok((!taken.is_empty()).then_some(taken))
    }

    /// Returns the number of unread entries.
    pub fn untaken_entries(&mut self) -> Result<usize, Fault> {
        self.reader.refresh()?;
        self.reader.unread_entries()
    }

    /// Returns true if the writer has closed the ring. Entries may remain in it.
    pub fn is_closed(&self) -> bool {
        self.reader.is_closed()
    }

    /// Loads the writer's latest position and returns all unread entries. They stay in the ring
    /// until [`Self::release`] is called.
    pub fn refresh_and_peek(&mut self) -> Result<RingBatch<'_>, Fault> {
        self.reader.refresh()?;
        self.reader.peek(usize::MAX)
    }

    /// Returns up to `max` unread entries; the batch is empty if there are none.
    pub fn peek_up_to(&mut self, max: usize) -> Result<RingBatch<'_>, Fault> {
        self.reader.peek(max)
    }

    /// Frees the first `count` entries, so that the writer can reuse their slots in the ring.
    pub fn release(&mut self, count: usize) -> Result<(), Fault> {
        self.reader.release(count)?;
        if let Some(gauge) = &self.gauge {
            gauge.measure_watched_block(
                self.reader.counts().blocks,
                self.reader.unread_entries()? > 0,
            );
        }
        Ok(())
    }

    /// Returns true if the writer has closed the ring and every entry has been taken.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.reader.is_finished()
    }

    /// Returns the number of blocks and bytes that the reader has taken from the ring.
    #[must_use]
    pub fn taken_amount(&self) -> Amount {
        let taken = self.reader.counts();
        Amount { blocks: taken.blocks, bytes: taken.bytes }
    }
}
