//! The contract of sources and sinks.

use crate::missing::Missing;
use crate::origins::Origins;
use crate::process::{Process, Stands, Started};
use crate::readers::Readers;
use crate::reason::DropReason;
use crate::source::kernel::Arrived;
use abi::{BLOCK_MAX, Entry};
use buffer::pool::Pool;
use filter::{
    Amount, Arguments, Batch, Classes, Columns, Counts, Description, EndpointFacts, Form, Mistake,
    Report, Time,
};
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use sys::memory::Lender;
use sys::steps::Steps;
use wire::LinkType;

/// Puts blocks into a space.
pub trait Source: Send {
    /// Puts up to as many blocks as the intake has room for. Never blocks: without input it returns
    /// [`Given::Wait`].
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure>;

    /// Returns the counters of the device or file for the ledger (CONTRACT 19).
    fn seen(&self) -> Seen;

    /// Returns what does not change while it is open. The space asks once, before the first `give`.
    fn properties(&self) -> SourceProperties {
        SourceProperties::default()
    }

    /// Returns the descriptor that becomes readable with new input.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks the giver of the bytes to end, because the path stops. Returns true if input under way
    /// still comes: then the space calls `give` until [`Given::End`].
    fn stop(&mut self) -> bool {
        false
    }

    /// Releases what others may wait for; nothing more is taken.
    fn close(&mut self) {}

    /// Returns itself for its maker, who downcasts it.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// Properties of an open source that do not change.
#[derive(Clone, Debug)]
pub struct SourceProperties {
    /// The longest block that it puts, in bytes; the segments of its pool are chosen by it.
    pub block_max: usize,
    /// True if the path's clock is the time of its blocks (replay), not the monotonic one.
    pub tells_time: bool,
    /// True if memory that others give back wakes it while it waits for its descriptor.
    pub heeds_memory: bool,
    /// True if it chooses the arc of its blocks itself ([`Intake::arc`]).
    pub chooses_arc: bool,
    /// Memory of its own, which another party fills: the space makes a pool of it, which is then
    /// [`Intake::pool`].
    pub lender: Option<Arc<dyn Lender>>,
    /// The program whose output it gives.
    pub process: Option<Arc<Process>>,
}

impl Default for SourceProperties {
    fn default() -> Self {
        Self {
            block_max: BLOCK_MAX,
            tells_time: false,
            heeds_memory: true,
            chooses_arc: false,
            lender: None,
            process: None,
        }
    }
}

/// A source's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// Blocks were put.
    Blocks,
    /// Nothing yet: ask again when the path's clock reaches this time, or when the descriptor is
    /// ready.
    Wait {
        /// The latest time to ask again; `None`: only when the descriptor is ready.
        until: Option<Time>,
        /// True if [`Source::descriptor`] should be waited for too.
        readable: bool,
    },
    /// Nothing will come any more. Blocks may have been put in the same call.
    End,
}

/// The counters of a source, for the ledger: seen = given + dropped by place; `None` where a
/// counter cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Blocks that the device or file had.
    pub seen: Option<Amount>,
    /// Blocks put into the space.
    pub given: Amount,
    /// Losses on the way, by place.
    pub dropped: Vec<(DropReason, Option<u64>)>,
    /// Positions of the lost blocks, by place, where known: counted among all blocks that came
    /// there.
    pub missing: Vec<(&'static str, Missing)>,
    /// A remark for the user: the interface has another name now.
    pub remark: Option<String>,
    /// Position in its file, for progress; `None` if the input has no known end.
    pub position: Option<Position>,
    /// The blocks of each arc, where it chooses the arc itself.
    pub arrived: Vec<Arrived>,
    /// The counters of the filter whose blocks come here from a process of its own.
    pub counts: Option<Counts>,
}

/// A position in a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// So many bytes were read.
    pub read: u64,
    /// So many there are now.
    pub size: u64,
}

impl Seen {
    /// All that there was has been given.
    #[must_use]
    pub fn all(given: Amount) -> Self {
        Self { seen: Some(given), given, ..Self::default() }
    }
}

/// The destination of a source's blocks: the pool of its space, and the columns of the next batch.
#[derive(Debug)]
pub struct Intake<'s> {
    /// The memory of the space. Shared, so that a source can look at bytes while it puts blocks.
    pub pool: &'s Pool,
    /// The memory of the space that nobody lends, where a source that lends its own puts what
    /// does not fit in there as it is.
    pub general: Option<&'s Pool>,
    columns: &'s mut Columns,
    room: usize,
    /// The path's clock before this pass.
    pub now: Time,
    /// The arc of the blocks that were put, set by a source that chooses it; `None`: all arcs that
    /// select them.
    pub arc: Option<usize>,
    /// True, set by the source, if nothing is left to give: the space flushes downstream before it
    /// sleeps.
    pub drained: bool,
}

impl<'s> Intake<'s> {
    /// An intake for at most `room` blocks.
    pub fn new(pool: &'s Pool, columns: &'s mut Columns, room: usize, now: Time) -> Self {
        Self { pool, general: None, columns, room, now, arc: None, drained: false }
    }

    /// The same intake, with the memory of the space beside what the source lends.
    #[must_use]
    pub const fn beside(self, general: &'s Pool) -> Self {
        Self { general: Some(general), ..self }
    }

    /// Returns the number of blocks that still fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.room.saturating_sub(self.columns.len())
    }

    /// Puts blocks whose bytes lie in the pool as long as there is room for them; answers how many.
    #[inline]
    pub fn put_all(&mut self, entries: impl Iterator<Item = Entry>) -> usize {
        let room = self.room();
        self.columns.extend(&mut entries.take(room))
    }

    /// Puts a block whose bytes lie in the pool; answers false when there is no room for it.
    #[inline]
    pub fn put(&mut self, entry: Entry) -> bool {
        self.room() > 0 && self.columns.push(entry)
    }
}

/// Takes blocks out of a space.
pub trait Sink: Send {
    /// Takes the live blocks. A failure ends the path; what was not written is then counted as
    /// dropped.
    fn take(&mut self, batch: &Batch<'_>, now: Time) -> Result<(), Failure>;

    /// Is called when nothing came for a while, so that what is buffered becomes visible.
    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Is called when nothing will come any more: everything must be out when it returns.
    fn finish(&mut self) -> Result<Report, Failure>;

    /// Returns the blocks and viewed bytes written so far, from which the ledger computes losses
    /// after a failure; `None` if the sink cannot tell.
    fn written(&self) -> Option<Amount> {
        None
    }

    /// Returns the blocks taken and not written, by reason, where the sink has one; all others
    /// missing in `written` have failed.
    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        Vec::new()
    }

    /// The program to whose input it writes.
    fn process(&self) -> Option<&Arc<Process>> {
        None
    }

    /// Itself, for whoever made it and wants more of it than sinks do.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// The arguments with which a source or sink is opened.
#[derive(Debug)]
pub struct Opening<'o> {
    /// Its arguments, checked.
    pub arguments: &'o Arguments,
    /// The form of the input (sinks).
    pub form: Form,
    /// The meaning of the classes that come in: those of the nearest classifier upstream (sinks).
    pub classes: Classes,
    /// Its number among the sources of the path: what it writes into `BlockMetadata::origin`
    /// (sources).
    pub origin: u16,
    /// The names of all sources of the path, by origin (sinks). More may come while the sink is
    /// open.
    pub origins: Origins,
    /// The question of the first filter behind it, where the plan found that the kernel can ask it
    /// too (sources whose description says `takes_filter`).
    pub ahead: Option<&'o Arguments>,
    /// The longest wait of a block, in ns, if the request sets a bound (T_t).
    pub latency: Option<Time>,
    /// True if the request may take what its user may need (`--force`).
    pub force: bool,
    /// The memory that sources of this part of the path lend (sinks).
    pub lent: &'o [Arc<dyn Lender>],
    /// The users who may read all files from which blocks come (sinks).
    pub readers: &'o Readers,
    /// Is told each step that may fail, and what a failure elsewhere is to take back.
    pub steps: &'o Steps,
}

/// A source in the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct SourceEntry {
    /// Its description.
    pub description: &'static Description,
    /// Opens it. Nothing has changed in the world when it fails.
    pub open: fn(&Opening<'_>) -> Result<Box<dyn Source>, Failure>,
    /// The link types of the frames that it would give with these arguments, without opening it;
    /// `None`: nobody knows before the first frame.
    pub links: fn(&Arguments) -> Option<Vec<LinkType>>,
    /// Facts for the planner.
    pub facts: EndpointFacts,
}

impl SourceEntry {
    /// A source of which nobody knows ahead what frames it gives.
    #[must_use]
    pub const fn new(
        description: &'static Description,
        open: fn(&Opening<'_>) -> Result<Box<dyn Source>, Failure>,
    ) -> Self {
        Self { description, open, links: |_| None, facts: EndpointFacts::NONE }
    }

    /// The same source, with what tells the link types of its frames.
    #[must_use]
    pub const fn linked(self, links: fn(&Arguments) -> Option<Vec<LinkType>>) -> Self {
        Self { links, ..self }
    }

    /// The same source with these facts.
    #[must_use]
    pub const fn with(self, facts: EndpointFacts) -> Self {
        Self { facts, ..self }
    }
}

/// A sink in the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct SinkEntry {
    /// Its description.
    pub description: &'static Description,
    /// Opens it. Nothing has changed in the world when it fails.
    pub open: fn(&Opening<'_>) -> Result<Box<dyn Sink>, Failure>,
    /// Facts for the planner.
    pub facts: EndpointFacts,
}

impl SinkEntry {
    /// A sink without facts.
    #[must_use]
    pub const fn new(
        description: &'static Description,
        open: fn(&Opening<'_>) -> Result<Box<dyn Sink>, Failure>,
    ) -> Self {
        Self { description, open, facts: EndpointFacts::NONE }
    }

    /// The same sink with these facts.
    #[must_use]
    pub const fn with(self, facts: EndpointFacts) -> Self {
        Self { facts, ..self }
    }

    /// The same sink, run in a space of its own, so that a slow disk stops no other branch.
    #[must_use]
    pub const fn writing_files(self) -> Self {
        self.with(EndpointFacts { writes_files: true, ..self.facts })
    }
}

/// A program in the catalogue, which may stand anywhere in a line.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    /// Its description behind another filter.
    pub description: &'static Description,
    /// Its description at the head of a line, where it is a source.
    pub head: &'static Description,
    /// Facts for the planner.
    pub facts: EndpointFacts,
    /// Returns the reason why a text can be no command at all.
    pub refuses: fn(&str) -> Option<Mistake>,
    /// Starts it.
    pub start: fn(&Opening<'_>, Stands) -> Result<Started, Failure>,
}

/// A failure of the outside world that stopped a source or sink.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The call: `open`, `read`, `write`.
    pub call: &'static str,
    /// On what: a file name, an interface.
    pub target: String,
    /// The reason.
    pub why: String,
    /// The error number of the machine, where it refused.
    pub errno: Option<i32>,
    /// The remedy.
    pub hint: Option<String>,
    /// A closed pipe on a standard stream: the reader has gone, and nobody needs to be told.
    pub quiet: bool,
    /// The capability (capabilities(7)) without which the machine refuses this call, if that is
    /// why.
    pub needs: Option<u32>,
}

impl Failure {
    /// A failure of `call` on `target`.
    pub fn new(call: &'static str, target: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            call,
            target: target.into(),
            why: why.to_string(),
            errno: None,
            hint: None,
            quiet: false,
            needs: None,
        }
    }

    /// The same failure with the error number of the machine.
    #[must_use]
    pub fn errno(self, errno: Option<i32>) -> Self {
        Self { errno, ..self }
    }

    /// Returns true if a file that was to be opened does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        let errno = self.errno.filter(|_| self.call == "open");
        errno.is_some_and(|errno| {
            io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::NotFound
        })
    }

    /// The same failure with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.call, self.target, self.why)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
