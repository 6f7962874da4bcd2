//! `share`: offers a stream to other requests of the same user, with all data that downstream
//! filters need: frames, classes, sessions, times and marks.
//!
//! The sink writes the blocks of a batch as one message ([`bundle`]) to a ring that overwrites its
//! oldest messages, so no reader can delay the path or another reader. Without readers, the sink
//! copies nothing.

use super::bundle::{self, BundleItem};
use super::interface::PrefixInterface;
use super::sessions::WriterSessions;
use super::{last_reader_left_descriptor, ring_name};
use crate::named_endpoints::ring_sinks::ring_report;
use crate::{DropReason, Failure, OpenArguments, Sink, SinkEntry, message};
use abi::DbufId;
use abi::access::AccessList;
use buffer::name::{Address, NameHost, ReaderLimits};
use buffer::stream::{Config, Output};
use buffer::{Fault, OverflowPolicy};
use filter::{
    Amount, Batch, Description, Form, Forms, Parameter, ParameterType, Report, StateFacts, Time,
    WorkerRule,
};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::eventfd::EventFd;

/// Description of `share`, the sink that offers its input to other requests of the same user.
pub const SHARE: Description = Description {
    name: "share",
    summary: "offer the streams to other requests with the same prefix",
    details: "\
Offers its streams to requests of the same user that begin with `shared PREFIX`, where PREFIX is the
text of this request up to here. Streamline writes both filters itself for requests with the same
start under a daemon; see `shared`.

A ring of `size` bytes overwrites its oldest blocks, so a reader that is slow, stops or dies delays
nothing, and is told what it lost. Without readers, nothing is copied.

Reasons for a drop: `unread` (no reader; not a loss), `too long` (longer than the ring accepts).",
    example: "rx eth0 | tcp | share \"rx eth0 | tcp\"",
    input_forms: Forms::of(&[Form::Stream, Form::Message]),
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs(
            "a name belongs to one ring, which one process writes",
            WorkerRule::DEFAULT_HINT,
        )
    }),
    parameters: &[
        Parameter::required("prefix", ParameterType::Text, "the text of the request up to here"),
        Parameter::with_default(
            "size",
            ParameterType::Size { low: 4 << 20, high: 1 << 30 },
            "8M",
            "maximum number of bytes that wait for slow readers",
        ),
        Parameter::with_default(
            "messages",
            ParameterType::Flag,
            "no",
            "the blocks are fragments of messages",
        ),
        Parameter::with_default(
            "last",
            ParameterType::Flag,
            "no",
            "end when the last reader has left",
        ),
    ],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `share`.
pub const ENTRY: SinkEntry = SinkEntry::new(&SHARE, open);

const TOO_LONG_REASON: DropReason = DropReason::Named("too long");
/// Maximum number of concurrent readers of a ring.
const READERS_MAX: usize = 256;
/// Delay after which the ring names of `share last=yes` are withdrawn once the last reader has
/// left.
const NO_READER_TIMEOUT: Duration = Duration::from_millis(500);
/// Time after which the ring names of `share last=yes` are withdrawn if no reader has arrived at
/// all.
const FIRST_READER_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum time, in ns, for which sleeping readers are not woken while blocks keep arriving. The
/// limit is needed because some inputs, such as a busy kernel ring, are never empty.
const FLUSH_INTERVAL_NS: Time = 10_000_000;

/// A sink that writes to the ring of a shared prefix. A prefix is the sequence of filters with
/// which several requests begin.
struct ShareSink {
    host: Arc<NameHost>,
    output: Option<Output>,
    address: Address,
    sessions: WriterSessions,
    /// Number of the next block in the ring, from 0.
    number: u64,
    /// Reusable memory for the stamps and entries of a batch.
    items: Vec<BundleItem>,
    written: Amount,
    unread: Amount,
    too_long: Amount,
    readers_max: usize,
    /// Time at which the sink wakes sleeping readers, even if blocks keep arriving.
    flush_at: Time,
    /// Time of the pass in which the last batch arrived.
    last_time: Time,
    /// True if the ring contains blocks for which the sink has not yet woken sleeping readers.
    has_unflushed: bool,
    /// Number of blocks lost upstream of this sink, as of the last call of [`Sink::on_idle`].
    lost_before: u64,
    watch: Option<ReaderWatch>,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let prefix = opening.arguments.text("prefix").unwrap_or_default();
    let name = ring_name(prefix, PrefixInterface::find(prefix));
    let wrong = |why: &dyn std::fmt::Display| Failure::new("share", prefix, why);
    let id = DbufId::new(1).ok_or_else(|| wrong(&"no id"))?;
    let config = Config::new(id).policy(OverflowPolicy::Overwrite);
    let config = config.capacity(opening.arguments.number_as_usize("size"));
    let address = Address::for_current_user(&name).map_err(|error| wrong(&error))?;
    let host = Arc::new(NameHost::open().map_err(|error| wrong(&error))?);
    let access = AccessList::private(sys::process::effective_ids());
    let limits = ReaderLimits { readers: READERS_MAX, ..ReaderLimits::default() };
    let output = host.create(&name, access, &config, limits).map_err(|error| wrong(&error))?;
    let watch = opening.arguments.flag("last").then(|| ReaderWatch::start(&host, &address));
    let watch = watch.transpose().map_err(|error| wrong(&error))?;
    Ok(Box::new(ShareSink {
        host,
        output: Some(output),
        address,
        sessions: WriterSessions::new(opening.arguments.flag("messages")),
        number: 0,
        items: Vec::new(),
        written: Amount::default(),
        unread: Amount::default(),
        too_long: Amount::default(),
        readers_max: 0,
        flush_at: 0,
        last_time: 0,
        has_unflushed: false,
        lost_before: 0,
        watch,
    }))
}

impl Sink for ShareSink {
    fn consume(&mut self, batch: &Batch<'_>, now: Time) -> Result<(), Failure> {
        let Some(output) = &mut self.output else { return Ok(()) };
        self.last_time = now;
        self.has_unflushed = true;
        output.report_lost_before_ring(super::UPSTREAM_LOST_BLOCKS.load(Ordering::Relaxed));
        let readers = output.present_reader_count();
        self.readers_max = self.readers_max.max(readers);
        let mut items = std::mem::take(&mut self.items);
        for (_, block) in batch.blocks() {
            let (entry, number) =
                (message::entry_for_sending(&block), self.number + items.len() as u64);
            let stamp = self.sessions.next_stamp(&entry, number);
            match readers {
                0 => self.unread.add_block(block.length()),
                _ => items.push(BundleItem { stamp, entry, length: block.frame.len() }),
            }
        }
        let written = self.write_bundles(batch, &items);
        items.clear();
        self.items = items;
        written?;
        if let Some(output) = self.output.as_mut().filter(|_| now >= self.flush_at) {
            output.flush();
            self.has_unflushed = false;
            self.flush_at = now + FLUSH_INTERVAL_NS;
        }
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        let Some(output) = &mut self.output else { return Ok(()) };
        let lost = super::UPSTREAM_LOST_BLOCKS.load(Ordering::Relaxed);
        let is_changed = std::mem::replace(&mut self.lost_before, lost) != lost;
        // A flush wakes the readers, so it is done only if there is something to report.
        if is_changed || std::mem::take(&mut self.has_unflushed) {
            output.report_lost_before_ring(lost);
            output.flush();
            self.flush_at = self.last_time + FLUSH_INTERVAL_NS;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        // Readers consume the remaining blocks and then reach the end of the stream.
        self.end_stream();
        let rows = ring_report(self.written, self.readers_max);
        Ok(rows.with_delivered_items(self.written.blocks, "block", "shared".to_owned()))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        // No request needed the blocks that arrived without a reader.
        let all = [(DropReason::Unread, self.unread), (TOO_LONG_REASON, self.too_long)];
        all.into_iter().filter(|(_, amount)| amount.blocks > 0).collect()
    }
}

impl ShareSink {
    /// Writes the blocks of a batch that have not been dropped or consumed. `items` are their
    /// stamps and entries.
    fn write_bundles(&mut self, batch: &Batch<'_>, items: &[BundleItem]) -> Result<(), Failure> {
        let Some(output) = &mut self.output else { return Ok(()) };
        let mut done = 0;
        while let Some((items, length)) = items.get(done..).and_then(bundle::split_next_bundle) {
            let first = (self.number, self.sessions.holds_fragments());
            let written = output.write_with(length, |room| {
                let Some(frames) = bundle::write_index(items, first, room) else { return 0 };
                let mut rest = frames;
                for (_, block) in batch.blocks().skip(done).take(items.len()) {
                    let frame = rest.split_off_mut(..block.frame.len()).unwrap_or_default();
                    frame.copy_from_slice(&block.frame[..frame.len()]);
                }
                length
            });
            let amount = match written {
                Ok(true) => &mut self.written,
                Ok(false) | Err(Fault::Abandoned) => &mut self.unread,
                Err(Fault::TooLong { .. }) => &mut self.too_long,
                Err(fault) => {
                    return Err(Failure::new("write to", self.address.to_string(), fault));
                }
            };
            items.iter().for_each(|item| amount.add_block(item.entry.pointer.length()));
            // Readers detect the missing numbers as a gap.
            self.number += items.len() as u64;
            done += items.len();
        }
        Ok(())
    }
}

impl ShareSink {
    /// Ends the stream. If this sink has a [`ReaderWatch`], first withdraws the ring names of all
    /// `share last=yes` sinks of this process. Otherwise, a reader that reaches the end of one ring
    /// and starts a new process could join another ring of this exiting process.
    fn end_stream(&mut self) {
        if self.watch.is_some() && self.output.is_some() {
            withdraw_watched_names(&lock_watched_names());
        }
        self.output = None;
    }
}

impl Drop for ShareSink {
    fn drop(&mut self) {
        // Ends the stream before its host ends, so that the name is free again when this function
        // returns.
        self.end_stream();
        self.watch = None;
        self.host.withdraw(&self.address);
    }
}

/// The name of a ring that belongs to a `share last=yes` sink. Once no ring of such a sink in this
/// process has a reader any more, all of these names are withdrawn.
struct WatchedName {
    host: Arc<NameHost>,
    address: Address,
    /// Event that is notified when the number of the ring's readers changes, and that wakes the
    /// thread that watches this name.
    readers_changed: Arc<EventFd>,
}

/// The ring names of all `share last=yes` sinks of this process. There is one name for each filter
/// of the shared prefix after which other requests may join.
static WATCHED_NAMES: Mutex<Vec<WatchedName>> = Mutex::new(Vec::new());

/// A thread that withdraws all [`WATCHED_NAMES`] once none of their rings has a reader, and then
/// makes [`last_reader_left_descriptor`] readable. The thread sleeps while there are readers. It
/// notices that they leave even if no blocks arrive.
struct ReaderWatch {
    address: Address,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl ReaderWatch {
    fn start(host: &Arc<NameHost>, address: &Address) -> sys::Result<Self> {
        last_reader_left_descriptor()?;
        let (stop, readers) = (Arc::new(EventFd::new()?), Arc::new(EventFd::new()?));
        let (stopped, changed) = (Arc::clone(&stop), Arc::clone(&readers));
        let (host, own_address) = (Arc::clone(host), address.clone());
        let mut names = lock_watched_names();
        names.push(WatchedName {
            host: Arc::clone(&host),
            address: own_address,
            readers_changed: readers,
        });
        // Each thread counts the readers of all names.
        for name in names.iter() {
            name.host.notify_on_reader_change(&changed);
            if name.address != *address {
                host.notify_on_reader_change(&name.readers_changed);
            }
        }
        drop(names);
        let thread = std::thread::Builder::new().name("readers".to_owned());
        let thread = thread
            .spawn(move || watch_readers(&stopped, &changed))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { address: address.clone(), stop, thread: Some(thread) })
    }
}

fn lock_watched_names() -> MutexGuard<'static, Vec<WatchedName>> {
    WATCHED_NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn withdraw_watched_names(names: &[WatchedName]) {
    names.iter().for_each(|name| {
        name.host.withdraw(&name.address);
    });
}

/// Waits until the rings of all watched names have been without readers for [`NO_READER_TIMEOUT`],
/// and then withdraws the names. `changed` is notified when the number of readers may have changed;
/// `stop` ends the wait.
fn watch_readers(stop: &EventFd, changed: &EventFd) {
    // `None` while there are readers.
    let mut deadline = Some(Instant::now() + FIRST_READER_WAIT_MAX);
    loop {
        changed.clear();
        let names = lock_watched_names();
        let entries = names.iter().flat_map(|name| name.host.names());
        if entries.map(|entry| entry.readers).sum::<usize>() > 0 {
            deadline = None;
        } else if *deadline.get_or_insert_with(|| Instant::now() + NO_READER_TIMEOUT)
            <= Instant::now()
        {
            // No further reader can join. A reader that has just joined reaches the end of the
            // stream and starts another process.
            withdraw_watched_names(&names);
            super::report_last_reader_left();
            return;
        }
        drop(names);
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        if sys::poll::wait_until_readable(&[stop.as_fd(), changed.as_fd()], left).first()
            == Some(&true)
        {
            return;
        }
    }
}

impl Drop for ReaderWatch {
    fn drop(&mut self) {
        lock_watched_names().retain(|name| name.address != self.address);
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}
