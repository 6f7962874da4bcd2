//! The contract of sources and sinks: the traits that they implement, and the types used by these
//! traits.

pub use crate::batch_limit::BatchLimit;
pub use crate::open_arguments::OpenArguments;
pub use crate::source_counts::{ArcCounts, FileReadPosition};
pub use crate::source_status::{NextBlockTime, SourceStatus};

use crate::class_selection::ClassSelection;
use crate::drop_reason::DropReason;
use crate::failure::Failure;
use crate::history::RetainedFrames;
use crate::loss_ranges::LossRanges;
use crate::named_endpoints::RingState;
use crate::process::child::Process;
use crate::source::kernel::frames_in_place::FramesInPlace;
use abi::{BLOCK_LENGTH_MAX, BlockFlags, BlockMetadata, Class, Entry, Extent, Marks, RichPointer};
use buffer::pool::Pool;
use filter::{Amount, Batch, Columns, Counts, Report, Time};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use sys::memory::SegmentLender;

/// A producer of blocks, driven by the space that owns it.
pub trait Source: Send {
    /// Appends blocks until the intake is full or no input is ready. Never blocks. Returns
    /// [`SourceStatus::Wait`] if no input was ready. An error ends the path.
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure>;

    /// Returns the counters of the source and of its device or file, for the ledger (CONTRACT 19).
    fn counters(&self) -> SourceCounters;

    /// Returns the properties that stay constant while the source is open. The space calls this
    /// function once, before the first `produce`.
    fn properties(&self) -> SourceProperties {
        SourceProperties::default()
    }

    /// Returns the state of the rings from which the source reads and to which other programs
    /// write: the size of the largest ring, and how often the sizes of these rings have changed.
    /// `None` if there are no such rings.
    fn ring_state(&self) -> Option<RingState> {
        None
    }

    /// Returns the number of blocks that the source has lost on the arc with this index. The result
    /// is 0 unless the source chooses the arcs of its blocks ([`SourceProperties::chooses_arc`]).
    fn lost_on_arc(&self, _arc: usize) -> u64 {
        0
    }

    /// Returns the timestamp of the next block. The space compares the timestamps of its sources,
    /// to merge their blocks in time order.
    fn next_block_time(&self) -> NextBlockTime {
        NextBlockTime::Unordered
    }

    /// Returns the descriptor that becomes readable when input arrives, or `None` if the source has
    /// no such descriptor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Requests the end of the input because the path stops, for example by terminating a child
    /// process. Returns true if buffered input remains to be read; the space then calls `produce`
    /// until it returns [`SourceStatus::End`].
    fn stop(&mut self) -> bool {
        false
    }

    /// Releases resources on which other processes may be waiting. The space calls no other method
    /// afterwards.
    fn close(&mut self) {}

    /// Returns the source as [`Any`], from which callers downcast to the concrete type. Returns
    /// `None` for a type to which no caller downcasts.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// Properties of an open source that the space needs. They stay constant while the source is open.
#[derive(Clone, Debug)]
pub struct SourceProperties {
    /// Length of the longest block in bytes, which determines the segment size of the pool.
    pub block_max: usize,
    /// True if block timestamps drive the path's clock (replay) instead of the monotonic clock.
    pub drives_clock: bool,
    /// True if the space must wake the source when a reader releases memory of the pool, in
    /// addition to the usual wake-ups when the source's descriptor becomes readable.
    pub wakes_on_memory: bool,
    /// True if the source selects the arc of its blocks itself ([`Intake::arc`]).
    pub chooses_arc: bool,
    /// Memory of another party that the source lends to the space, such as a packet ring. The space
    /// builds a pool over this memory, and passes the pool to `produce` as [`Intake::pool`]. `None`
    /// if the source lends no memory.
    pub lender: Option<Arc<dyn SegmentLender>>,
    /// Frames in kernel memory that sinks can process there, so that the source need not copy them
    /// ([`Intake::arcs_in_place`]). `None` for a source without such frames.
    pub in_place: Option<Arc<FramesInPlace>>,
    /// The child process whose output the source reads, or `None` for a source without one.
    pub process: Option<Arc<Process>>,
}

impl Default for SourceProperties {
    fn default() -> Self {
        Self {
            block_max: BLOCK_LENGTH_MAX,
            drives_clock: false,
            wakes_on_memory: true,
            chooses_arc: false,
            lender: None,
            in_place: None,
            process: None,
        }
    }
}

/// Counters of a source for the ledger. `observed` equals `given` plus the sum of `dropped`. A
/// counter is `None` if it cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SourceCounters {
    /// Blocks that the device received or that the file contains; `None` if this number cannot be
    /// read.
    pub observed: Option<Amount>,
    /// Blocks that the source has appended to batches of the space.
    pub given: Amount,
    /// Number of blocks lost at each location; `None` for a location whose counter cannot be read.
    pub dropped: Vec<(DropReason, Option<u64>)>,
    /// Positions of the lost blocks, by the location of the loss, if known. A position is the index
    /// of a block among all blocks that reached the location.
    #[serde(deserialize_with = "crate::drop_reason::deserialize_interned_keys")]
    pub missing: Vec<(&'static str, LossRanges)>,
    /// A note for the user, for example that the interface has been renamed; `None` if there is
    /// nothing to note.
    pub remark: Option<String>,
    /// True if [`Self::remark`] is a warning, which is printed at the end of every run.
    #[serde(default)]
    pub warns: bool,
    /// Read position in the input file for progress reports, or `None` if the input has no known
    /// end.
    #[serde(skip)]
    pub position: Option<FileReadPosition>,
    /// Block counts per arc; empty unless the source chooses the arcs of its blocks.
    #[serde(skip)]
    pub arrived: Vec<ArcCounts>,
    /// Counters of a filter that runs in another process and whose output this source receives.
    /// `None` if there is no such filter.
    #[serde(skip)]
    pub counts: Option<Counts>,
}

impl SourceCounters {
    /// Returns the counters of a source without losses.
    #[must_use]
    pub fn lossless(given: Amount) -> Self {
        Self { observed: Some(given), given, ..Self::default() }
    }
}

/// Destination of a source's blocks: the space's pool and the columns of the next batch.
#[derive(Debug)]
pub struct Intake<'s> {
    /// Pool for the bytes of blocks. Shared, so that a source can hold references to the pool's
    /// bytes while it appends blocks.
    pub pool: &'s Pool,
    /// Pool in the space's own memory, for blocks that the source cannot store in the memory that
    /// it lends. `None` unless the source lends the memory of `pool`.
    pub own_pool: Option<&'s Pool>,
    columns: &'s mut Columns,
    room: usize,
    /// Time on the path's clock at the start of the space's current pass.
    pub now: Time,
    /// Latest timestamp of a block that the source may append, for a source that reports a
    /// [`NextBlockTime`]. `None` if there is no limit.
    pub until: Option<Time>,
    /// Limit of the batch in block time, for a source that drives the path's clock. `None` if no
    /// filter of the space has timers.
    pub batch_limit: Option<BatchLimit>,
    /// Bit mask of arcs. The bit of an arc is set if all sinks on the arc have accepted the frames
    /// in [`SourceProperties::in_place`]. The source then need not copy the frames of blocks that
    /// follow the arc.
    pub arcs_in_place: u64,
    /// True if the source has left the frames of the appended blocks in kernel memory, without a
    /// copy. Set by the source.
    pub in_place: bool,
    /// True if no filter or sink in the space reads the bytes of blocks or passes blocks on. The
    /// source may then append blocks whose pointers refer to no memory. It must set
    /// [`Self::in_place`] for these blocks.
    pub without_bytes: bool,
    /// Index of the arc that all appended blocks follow, set by a source that selects arcs itself.
    /// If `None`, each block is routed by its class.
    pub arc: Option<usize>,
    /// True if the source's input is empty for now; set by the source. The space then flushes
    /// downstream before it sleeps.
    pub is_drained: bool,
    /// The classes that the arcs of the source select. A source may omit blocks of all other
    /// classes.
    pub selected_classes: ClassSelection<'s>,
}

impl<'s> Intake<'s> {
    /// Creates an intake with room for `room` blocks.
    pub fn new(pool: &'s Pool, columns: &'s mut Columns, room: usize, now: Time) -> Self {
        let taken = ClassSelection::default();
        Self {
            pool,
            own_pool: None,
            columns,
            room,
            now,
            until: None,
            batch_limit: None,
            arcs_in_place: 0,
            in_place: false,
            without_bytes: false,
            arc: None,
            is_drained: false,
            selected_classes: taken,
        }
    }

    /// Sets the classes that the arcs of the source select ([`Self::selected_classes`]).
    #[must_use]
    pub const fn with_class_selection(self, taken: ClassSelection<'s>) -> Self {
        Self { selected_classes: taken, ..self }
    }

    /// Sets the pool of the space's own memory ([`Self::own_pool`]), for a source that lends the
    /// memory of [`Self::pool`].
    #[must_use]
    pub const fn with_general_pool(self, general: &'s Pool) -> Self {
        Self { own_pool: Some(general), ..self }
    }

    /// Returns an entry, without flags and session, for a block in this extent of the pool. The
    /// pair contains the timestamp of the block and the index of the source.
    #[must_use]
    pub fn entry(&self, place: Extent, (time, origin): (Time, u16), marks: Marks) -> Entry {
        let context = BlockMetadata { time, session: 0, origin, flags: BlockFlags::NONE };
        Entry::new(RichPointer::new(self.pool.id(), place, Class::YES), context, marks)
    }

    /// Returns the number of blocks for which the intake still has room.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.room.saturating_sub(self.columns.len())
    }

    /// Appends blocks, whose bytes must be in the pool, until the intake is full. Returns the
    /// number of appended blocks.
    #[inline]
    pub fn append_block_entries(&mut self, entries: impl Iterator<Item = Entry>) -> usize {
        let room = self.room();
        self.columns.extend(&mut entries.take(room))
    }

    /// Appends a block, whose bytes must be in the pool. Returns false if there is no room.
    #[inline]
    pub fn append_block_entry(&mut self, entry: Entry) -> bool {
        self.room() > 0 && self.columns.push(entry)
    }
}

/// A consumer of blocks at the end of a path.
pub trait Sink: Send {
    /// Consumes the blocks of the batch that no filter upstream has dropped or consumed. A failure
    /// ends the path, and the ledger counts unwritten blocks as dropped.
    fn consume(&mut self, batch: &Batch<'_>, now: Time) -> Result<(), Failure>;

    /// Prepares the sink for batches without bytes, whose frames stay in the kernel ring of a
    /// source. Returns false if the sink cannot process such batches; the source then copies the
    /// frames.
    fn accepts_in_place(&mut self, frames: &Arc<FramesInPlace>) -> bool {
        let _ = frames;
        false
    }

    /// Returns true if the sink reads the bytes of blocks or retains their pointers. Returns the
    /// same value for as long as the sink is open.
    fn reads_bytes(&self) -> bool {
        true
    }

    /// Flushes buffered data to readers. The space calls this after a period without input.
    fn on_idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Writes all buffered data and returns the sink's report. Called after the last block.
    fn finish(&mut self) -> Result<Report, Failure>;

    /// Returns the number of blocks written so far, and the number of bytes in their views. After a
    /// failure, the ledger derives the losses from it. Returns `None` if the sink does not count
    /// written blocks.
    fn amount_written(&self) -> Option<Amount> {
        None
    }

    /// Returns the blocks that the sink has consumed without writing them, by reason. The ledger
    /// counts a consumed block as failed if it appears neither in this list nor in
    /// `amount_written`.
    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        Vec::new()
    }

    /// Returns the duration in nanoseconds of the longest single write to an open file since the
    /// previous call of this function. Returns 0 if the sink does not measure it.
    fn take_longest_write(&mut self) -> u64 {
        0
    }

    /// Returns the size of the ring that other programs read, or `None` for a sink without one.
    fn ring_state(&self) -> Option<RingState> {
        None
    }

    /// Returns the number and size of the past frames that the sink retains, or `None` for a sink
    /// that retains none.
    fn retained_frames(&self) -> Option<RetainedFrames> {
        None
    }

    /// Returns the child process whose standard input the sink writes, or `None` for a sink without
    /// one.
    fn process(&self) -> Option<&Arc<Process>> {
        None
    }

    /// Returns the sink as [`Any`], from which callers downcast to the concrete type. Returns
    /// `None` for a type to which no caller downcasts.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// The two halves of a started program: the sink that writes the program's input, and the source
/// that reads its output.
pub struct StartedProcess {
    /// Sink that writes to the standard input of the program, or `None` if the program is first in
    /// the request.
    pub input: Option<Box<dyn Sink>>,
    /// Source that reads the standard output of the program, or `None` if the program is last in
    /// the request.
    pub output: Option<Box<dyn Source>>,
}

impl fmt::Debug for StartedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (input, output) = (self.input.is_some(), self.output.is_some());
        f.debug_struct("Started").field("input", &input).field("output", &output).finish()
    }
}
