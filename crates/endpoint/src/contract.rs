//! What a source and a sink are.

use crate::missing::Missing;
use crate::origins::Origins;
use crate::process::{Process, Stands, Started};
use crate::readers::Readers;
use crate::reason::DropReason;
use crate::source::kernel::Arrived;
use abi::{BLOCK_MAX, Entry};
use buffer::pool::Pool;
use filter::{
    Amount, Arguments, Batch, Classes, Columns, Counts, Description, Form, Mistake, Report, Time,
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
    /// Puts up to as many blocks as the intake has room for. Never blocks: what is not there yet is
    /// answered as [`Given::Wait`].
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure>;

    /// What the device or file had, and what was lost before it came here (CONTRACT 19).
    fn seen(&self) -> Seen;

    /// What becomes readable when there is something to give.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether what it gave last was all that there was: then the space is about to sleep, and
    /// those behind it are told at once, without an alarm.
    fn is_drained(&self) -> bool {
        false
    }

    /// Whether it goes on sooner, while it waits for what its descriptor tells, when others give
    /// memory back. If not, who lets go of blocks does not wake it for that.
    fn heeds_memory(&self) -> bool {
        true
    }

    /// Memory of its own, which another party fills: the space makes a pool of it, and
    /// [`Intake::pool`] is that pool whenever this source is asked. Is called once.
    fn lends(&mut self) -> Option<Arc<dyn Lender>> {
        None
    }

    /// The longest block that it may put, in bytes: what fits in the cache is chosen by it.
    fn block_max(&self) -> usize {
        BLOCK_MAX
    }

    /// Whether the path's clock is the time of this source's blocks (replay), not the monotonic
    /// one.
    fn tells_time(&self) -> bool {
        false
    }

    /// The path is stopped: asks whoever gives the bytes to end. Answers whether what is under way
    /// still comes, so that the source is asked on until it ends by itself.
    fn stop(&mut self) -> bool {
        false
    }

    /// Is called when nothing more is taken: lets go of what others may wait for.
    fn close(&mut self) {}

    /// The program whose output it gives.
    fn process(&self) -> Option<&Arc<Process>> {
        None
    }

    /// Along which of its arcs the blocks go that were put last, where it knows; none: along all
    /// that want them.
    fn edge(&self) -> Option<usize> {
        None
    }

    /// What a filter has counted whose blocks come here from a process of its own, as far as it
    /// said.
    fn counts(&self) -> Option<&Counts> {
        None
    }

    /// Itself, for whoever made it and wants more of it than sources do.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// What came for each of its arcs, where it knows along which one blocks go.
    fn arrived(&self) -> Vec<Arrived> {
        Vec::new()
    }
}

/// What came of asking a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// Blocks were put.
    Blocks,
    /// Nothing yet: ask again when the path's clock reaches this time, or when the descriptor is
    /// ready.
    Wait {
        /// When to ask again at the latest; `None`: only when the descriptor is ready.
        until: Option<Time>,
        /// Whether to wait for [`Source::descriptor`] too.
        readable: bool,
    },
    /// Nothing will come any more. Blocks may have been put in the same call.
    End,
}

/// What a source saw, for the ledger: seen = given + dropped, by place; `None` where a counter
/// cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// What the device or file had.
    pub seen: Option<Amount>,
    /// What was put into the space.
    pub given: Amount,
    /// What was lost on the way, by place.
    pub dropped: Vec<(DropReason, Option<u64>)>,
    /// Which blocks those were, by place, where that is known: positions among all that came there.
    pub missing: Vec<(&'static str, Missing)>,
    /// What a person should know besides: the interface has another name now.
    pub remark: Option<String>,
    /// How far it has read its file, for progress; none: what it reads has no end that is known.
    pub position: Option<Position>,
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

/// Where a source puts blocks: the pool of its space, and the columns of the next batch.
#[derive(Debug)]
pub struct Intake<'s> {
    /// The memory of the space. Shared, so that a source can look at bytes while it puts blocks.
    pub pool: &'s Pool,
    /// The memory of the space that nobody lends, where a source that lends its own puts what
    /// does not fit in there as it is.
    pub general: Option<&'s Pool>,
    columns: &'s mut Columns,
    room: usize,
    /// The path's clock before this turn.
    pub now: Time,
}

impl<'s> Intake<'s> {
    /// An intake for at most `room` blocks.
    pub fn new(pool: &'s Pool, columns: &'s mut Columns, room: usize, now: Time) -> Self {
        Self { pool, general: None, columns, room, now }
    }

    /// The same intake, with the memory of the space beside what the source lends.
    #[must_use]
    pub const fn beside(self, general: &'s Pool) -> Self {
        Self { general: Some(general), ..self }
    }

    /// How many more blocks fit.
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

    /// What has left so far, in blocks and viewed bytes, so that the ledger knows after a failure
    /// what was taken and is lost; `None`: the sink cannot tell.
    fn written(&self) -> Option<Amount> {
        None
    }

    /// What was taken and did not leave, by reason, where the sink has one to tell; what else is
    /// missing in `written` has failed.
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

/// What a source or sink is told when it is opened.
#[derive(Debug)]
pub struct Opening<'o> {
    /// Its arguments, checked.
    pub arguments: &'o Arguments,
    /// What comes in (sinks).
    pub form: Form,
    /// What the classes that come in mean: those of the nearest classifier upstream (sinks).
    pub classes: Classes,
    /// Its number among the sources of the path: what it writes into `ContextLane::origin`
    /// (sources).
    pub origin: u16,
    /// The names of all sources of the path, by origin (sinks). More may come while the sink is
    /// open.
    pub origins: Origins,
    /// What the first filter behind it asks, where the plan found that the kernel can ask it too
    /// (sources whose description says `takes_filter`).
    pub ahead: Option<&'o Arguments>,
    /// How long a block may wait on its way, in ns, where the request says so (T_t).
    pub latency: Option<Time>,
    /// Whether the request takes what its writer may need (`--force`).
    pub force: bool,
    /// The memory that sources of this part of the path lend (sinks).
    pub lent: &'o [Arc<dyn Lender>],
    /// Who may read all files from which blocks come (sinks).
    pub readers: &'o Readers,
    /// Is told each step that may fail, and what a failure elsewhere is to take back.
    pub steps: &'o Steps,
}

/// A source in the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct SourceEntry {
    /// What is known about it.
    pub description: &'static Description,
    /// Opens it. Nothing has changed in the world when it fails.
    pub open: fn(&Opening<'_>) -> Result<Box<dyn Source>, Failure>,
    /// The link types of the frames that it would give with these arguments, without opening it;
    /// `None`: nobody knows before the first frame.
    pub links: fn(&Arguments) -> Option<Vec<LinkType>>,
}

impl SourceEntry {
    /// A source of which nobody knows ahead what frames it gives.
    #[must_use]
    pub const fn new(
        description: &'static Description,
        open: fn(&Opening<'_>) -> Result<Box<dyn Source>, Failure>,
    ) -> Self {
        Self { description, open, links: |_| None }
    }

    /// The same source, with what tells the link types of its frames.
    #[must_use]
    pub const fn linked(self, links: fn(&Arguments) -> Option<Vec<LinkType>>) -> Self {
        Self { links, ..self }
    }
}

/// A sink in the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct SinkEntry {
    /// What is known about it.
    pub description: &'static Description,
    /// Opens it. Nothing has changed in the world when it fails.
    pub open: fn(&Opening<'_>) -> Result<Box<dyn Sink>, Failure>,
}

/// A program in the catalogue, which may stand anywhere in a line.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    /// What is known about it behind another filter.
    pub description: &'static Description,
    /// What is known about it at the head of a line, where it is a source.
    pub head: &'static Description,
    /// Why this cannot be a command at all.
    pub refuses: fn(&str) -> Option<Mistake>,
    /// Starts it.
    pub start: fn(&Opening<'_>, Stands) -> Result<Started, Failure>,
}

/// Why the outside world did not let a source or sink go on.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was tried: `open`, `read`, `write`.
    pub call: &'static str,
    /// On what: a file name, an interface.
    pub target: String,
    /// Why not.
    pub why: String,
    /// The error number of the machine, where it refused.
    pub errno: Option<i32>,
    /// What to do about it.
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
