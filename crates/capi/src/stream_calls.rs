//! Calls on streams, regions and inboxes, with slices instead of pointers.

use crate::config::streamline_config;
use crate::end::{End, EndKind, Reader, Region, Writer};
use crate::failure::{Failure, Outcome, wrong_end_error};
use crate::pointers::{FileEnd, PointerReader, PointerWriter, new_dbuf_id};
use crate::table::{self, LockedEntry, duplicate_descriptor, not_an_end_error, register_end};
use abi::DbufId;
use abi::access::AccessList;
use buffer::name::{self, Address, Error, NameHost, OpenedObject, ReaderLimits};
use buffer::stream::Config;
use buffer::{Fault, OverflowPolicy};
use iolite::interface::StreamReader as _;
use iolite::{indirect, mpipe};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use sys::clock::repeat_until_limit;
use sys::process::effective_ids;
use sys::raw_fd;

/// Converts a configuration from C; `None` selects the defaults. The second value is true if the
/// writer publishes every write immediately. Fails with `EINVAL` if the policy is unknown or the
/// capacity exceeds [`CAPACITY_MAX`].
pub(crate) fn config_from_c(requested: Option<&streamline_config>) -> Outcome<(Config, bool)> {
    let Some(requested) = requested else {
        return Ok((Config { every: 1, ..default_config()?.self_sizing() }, true));
    };
    let policy = match requested.policy {
        0 => OverflowPolicy::Block,
        1 => OverflowPolicy::DropNew,
        2 => OverflowPolicy::Overwrite,
        other => return Err(Failure::invalid(format!("unknown policy {other}"))),
    };
    let config = default_config()?.policy(policy);
    let sized = match usize::try_from(requested.capacity) {
        Ok(0) => config.self_sizing(),
        Ok(bytes) if bytes <= CAPACITY_MAX => config.capacity(bytes),
        _ => return Err(Failure::invalid(format!("a ring of {} bytes", requested.capacity))),
    };
    let every = requested.every.max(1) as usize;
    Ok((Config { every, ..sized }, every == 1))
}

/// Maximum capacity of a ring or region, in bytes.
const CAPACITY_MAX: usize = 1 << 36;

fn default_config() -> Outcome<Config> {
    // The id is assigned when the ring is created.
    Ok(Config::new(DbufId::HOLE))
}

/// Returns the configuration with an id that no ring has had. Fails with `ENOSPC` if none is left.
fn config_with_new_id(mut config: Config) -> Outcome<Config> {
    config.ring.id = new_dbuf_id()?;
    Ok(config)
}

fn access_list(mode: u32) -> AccessList {
    AccessList { mode: mode & 0o777, ..AccessList::private(effective_ids()) }
}

/// The thread that serves this process's names to other processes, with the id of its process. The
/// first use of a name creates the thread. A forked child, which does not inherit the thread,
/// creates it again.
static NAME_HOST: Mutex<Option<(u32, NameHost)>> = Mutex::new(None);

fn call_with_host<T>(work: impl FnOnce(&NameHost) -> Result<T, Error>) -> Outcome<T> {
    let mut host = NAME_HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if host.as_ref().is_none_or(|(of, _)| *of != process) {
        let new = NameHost::open()?;
        if let Some((_, parents)) = host.replace((process, new)) {
            // The host's thread exists only in the parent, so joining it here would hang.
            std::mem::forget(parents);
        }
    }
    let Some((_, host)) = host.as_ref() else { return Err(Failure::invalid("no host")) };
    Ok(work(host)?)
}

pub(crate) fn create(name: &str, config: Option<&streamline_config>) -> Outcome<i32> {
    if config.is_some_and(|config| config.pointers != 0) {
        let why = "a named stream carries bytes: streamline_mpipe_with() makes pipes of pointers";
        return Err(Failure::invalid(why));
    }
    let (shape, publishes_at_once) = config_from_c(config)?;
    let mode = config.map_or(0, |config| config.mode);
    let limits = config.map_or_else(ReaderLimits::default, |config| {
        let usual = ReaderLimits::default();
        let or = |asked: u32, usual| if asked == 0 { usual } else { asked as usize };
        ReaderLimits {
            readers: or(config.readers, usual.readers),
            per_untrusted_user: or(config.readers_of_one_stranger, usual.per_untrusted_user),
        }
    });
    let mode = if mode == 0 { 0o600 } else { mode };
    let shape = config_with_new_id(shape)?;
    let output = call_with_host(|host| host.create(name, access_list(mode), &shape, limits))?;
    register_end(EndKind::Writer(Writer::new(output, publishes_at_once)), None)
}

pub(crate) fn create_region(name: &str, bytes: usize, mode: u32) -> Outcome<i32> {
    if bytes == 0 || bytes > CAPACITY_MAX {
        return Err(Failure::invalid(format!("invalid region size: {bytes} bytes")));
    }
    let memory = call_with_host(|host| host.create_region(name, access_list(mode), bytes))?;
    register_end(EndKind::Region(Region { memory, at: 0, writable: true }), None)
}

pub(crate) fn create_inbox(name: &str, mode: u32) -> Outcome<i32> {
    let inbox = call_with_host(|host| host.create_inbox(name, access_list(mode)))?;
    let doorbell = duplicate_descriptor(&inbox)?;
    register_end(EndKind::Inbox(inbox), Some(doorbell))
}

pub(crate) fn accept(fd: i32, limit: Option<Duration>) -> Outcome<i32> {
    let mut used = table::lock_entry(fd)?;
    let End { kind, nonblocking } = used.require_end(fd)?;
    let limit = if *nonblocking { Some(Duration::ZERO) } else { limit };
    let EndKind::Inbox(inbox) = kind else { return Err(wrong_end_error("an inbox")) };
    let arrival = repeat_until_limit(limit, |left| inbox.accept(left))?;
    match arrival {
        Some(arrival) => register_reader(arrival.input),
        None => Err(Failure::new(crate::failure::EAGAIN, "no program has connected")),
    }
}

pub(crate) fn open(name: &str, write: bool, config: Option<&streamline_config>) -> Outcome<i32> {
    let (shape, publishes_at_once) = config_from_c(config)?;
    let address: Address = name.parse().map_err(Failure::from)?;
    match (name::open_address(&address)?, write) {
        (OpenedObject::Stream(input), false) => register_reader(*input),
        (OpenedObject::Region(memory), write) if !write || memory.is_writable() => {
            register_end(EndKind::Region(Region { memory, at: 0, writable: write }), None)
        }
        (OpenedObject::Region(_), _) => Err(Error::ReadOnly.into()),
        // The inbox was opened for reading; open it again for writing.
        (OpenedObject::Inbox(_), true) => {
            let output = name::open_inbox_writer(name, &config_with_new_id(shape)?)?;
            register_end(EndKind::Writer(Writer::new(output, publishes_at_once)), None)
        }
        (OpenedObject::Inbox(_), false) => Err(wrong_end_error("readable: it is an inbox")),
        (OpenedObject::Stream(_), true) => {
            Err(wrong_end_error("writable: only its creator writes to it"))
        }
    }
}

/// Opens a file as a stream of blocks of up to `block` bytes.
pub(crate) fn open_file(path: &str, block: usize) -> Outcome<i32> {
    register_end(EndKind::File(FileEnd::open(path, block)?), None)
}

fn register_reader(input: buffer::stream::Input) -> Outcome<i32> {
    let doorbell = duplicate_descriptor(&input)?;
    register_end(EndKind::Reader(Reader::new(input)), Some(doorbell))
}

pub(crate) fn pipe(fds: &mut [i32], config: Option<&streamline_config>) -> Outcome<()> {
    let (shape, _) = config_from_c(config)?;
    let ends = match config {
        Some(config) if config.pointers != 0 => {
            let ring = indirect::Config {
                policy: shape.ring.policy,
                publish_threshold: shape.every,
                ..indirect::Config::new(new_dbuf_id()?)
            };
            // The size of a ring that drops or overwrites determines which blocks are lost.
            let bytes = shape.scaling.is_none().then_some(shape.ring.capacity);
            mpipe::pointer_pipe(fds.len(), &ring, bytes)?
        }
        _ => mpipe::mpipe(fds.len(), &config_with_new_id(shape)?)?,
    };
    for (fd, end) in fds.iter_mut().zip(ends) {
        *fd = raw_fd::into_raw(end);
        raw_fd::clear_close_on_exec(*fd)?;
    }
    Ok(())
}

/// Locks the end with this descriptor number. If the number is an unused end of a multiway pipe,
/// first opens it, for writing if `write` is true. Fails with `EBUSY` if another thread uses the
/// end.
#[inline(always)]
pub(crate) fn lock_end(fd: i32, write: bool) -> Outcome<LockedEntry> {
    let mut used = table::lock_entry(fd)?;
    if used.end().is_none() {
        open_end(&mut used, fd, write)?;
    }
    Ok(used)
}

/// Opens an unused end of a multiway pipe, and stores it in its locked table entry.
#[cold]
#[inline(never)]
fn open_end(entry: &mut LockedEntry, fd: i32, write: bool) -> Outcome<()> {
    entry.put(End::new(open_unused_end(fd, write)?));
    Ok(())
}

fn open_unused_end(fd: i32, write: bool) -> Outcome<EndKind> {
    let own = raw_fd::duplicate(fd)?;
    if !sys::descriptor::is_seqpacket_socket(&own) {
        return Err(not_an_end_error(fd));
    }
    match (mpipe::carries_pointers(&own)?, write) {
        (true, true) => return Ok(EndKind::PointerWriter(PointerWriter::open(own)?)),
        (true, false) => {
            let reader = PointerReader::open(own)?;
            return Ok(reader.map_or(EndKind::Closed, EndKind::PointerReader));
        }
        (false, _) => {}
    }
    if write {
        let (output, every) = mpipe::open_write_end(own)?;
        return Ok(EndKind::Writer(Writer::new(output, every == 1)));
    }
    match mpipe::open_read_end(own)? {
        Some(input) => Ok(EndKind::Reader(Reader::new(input))),
        None => Ok(EndKind::Closed),
    }
}

#[inline]
pub(crate) fn read(fd: i32, out: &mut [u8]) -> Outcome<usize> {
    let mut used = lock_end(fd, false)?;
    let End { kind, nonblocking } = used.require_end(fd)?;
    match kind {
        EndKind::Reader(reader) => reader.read(out, *nonblocking),
        EndKind::Region(region) => {
            let count = region.read(region.at, out)?;
            region.at += count as u64;
            Ok(count)
        }
        EndKind::PointerReader(reader) => reader.read(out, *nonblocking),
        EndKind::File(file) => Ok(file.read(out)?),
        EndKind::Closed => Ok(0),
        EndKind::Writer(_)
        | EndKind::PointerWriter(_)
        | EndKind::Inbox(_)
        | EndKind::State(_)
        | EndKind::Run(_) => Err(wrong_end_error("one to read from")),
    }
}

#[inline]
pub(crate) fn write(fd: i32, bytes: &[u8]) -> Outcome<usize> {
    let mut used = lock_end(fd, true)?;
    let End { kind, nonblocking } = used.require_end(fd)?;
    match kind {
        EndKind::Writer(writer) => writer.write(bytes, *nonblocking),
        EndKind::Region(region) => {
            let count = region.write(region.at, bytes)?;
            region.at += count as u64;
            Ok(count)
        }
        EndKind::PointerWriter(writer) => writer.write(bytes),
        EndKind::Reader(_)
        | EndKind::PointerReader(_)
        | EndKind::File(_)
        | EndKind::Inbox(_)
        | EndKind::State(_)
        | EndKind::Run(_)
        | EndKind::Closed => Err(wrong_end_error("one to write to")),
    }
}

pub(crate) fn read_at(fd: i32, at: u64, out: &mut [u8]) -> Outcome<usize> {
    table::lock_entry(fd)?.require_end(fd)?.region()?.read(at, out)
}

pub(crate) fn write_at(fd: i32, at: u64, bytes: &[u8]) -> Outcome<usize> {
    table::lock_entry(fd)?.require_end(fd)?.region()?.write(at, bytes)
}

/// Returns the address and length of the readable bytes in the stream, at most `longest`, or a null
/// pointer and 0 if the end is closed. A ring that overwrites is read in whole blocks: fails with
/// `EMSGSIZE` if the block is longer than `longest`.
pub(crate) fn peek(fd: i32, longest: usize) -> Outcome<(*const u8, usize)> {
    let mut used = lock_end(fd, false)?;
    let end = used.require_end(fd)?;
    if matches!(end.kind, EndKind::Closed) {
        return Ok((std::ptr::null(), 0));
    }
    let nonblocking = end.nonblocking;
    let reader = match &mut end.kind {
        EndKind::Reader(reader) => reader,
        EndKind::PointerReader(reader) => {
            let (at, length) = reader.locate(nonblocking)?;
            return Ok((at, length.min(longest)));
        }
        EndKind::File(file) => {
            let (at, length) = file.locate()?;
            return Ok((at, length.min(longest)));
        }
        _ => return Err(wrong_end_error("one to read from")),
    };
    let (at, length) = reader.locate(nonblocking)?;
    if length > longest && reader.is_lossy() {
        return Err(Fault::TooLong { length, limit: longest }.into());
    }
    Ok((at, length.min(longest)))
}

pub(crate) fn release(fd: i32, count: usize) -> Outcome<()> {
    match &mut table::lock_entry(fd)?.require_end(fd)?.kind {
        EndKind::Reader(reader) => return reader.release(count),
        EndKind::PointerReader(reader) => reader.stream().take(count),
        EndKind::File(file) => file.reader.take(count),
        _ => return Err(wrong_end_error("one to read from")),
    }
    Ok(())
}

/// Sets the offset in bytes of the next read or write of a file or region.
pub(crate) fn seek(fd: i32, offset: u64) -> Outcome<()> {
    match &mut table::lock_entry(fd)?.require_end(fd)?.kind {
        EndKind::File(file) => file.reader.seek(usize::try_from(offset).unwrap_or(usize::MAX)),
        EndKind::Region(region) => region.at = offset,
        _ => return Err(wrong_end_error("a file or a region")),
    }
    Ok(())
}

pub(crate) fn reserve(fd: i32, length: usize) -> Outcome<*mut u8> {
    let mut used = lock_end(fd, true)?;
    let end = used.require_end(fd)?;
    let wait = !end.nonblocking;
    end.writer()?.reserve(length, wait)
}

pub(crate) fn commit(fd: i32, count: usize) -> Outcome<()> {
    table::lock_entry(fd)?.require_end(fd)?.writer()?.commit(count)
}

pub(crate) fn flush(fd: i32) -> Outcome<()> {
    match &mut lock_end(fd, true)?.require_end(fd)?.kind {
        EndKind::Writer(writer) => writer.output.flush(),
        EndKind::PointerWriter(writer) => writer.flush(),
        _ => return Err(wrong_end_error("one to write to")),
    }
    Ok(())
}

/// Returns the number of readers evicted from a stream.
pub(crate) fn evicted_reader_count(fd: i32) -> Outcome<usize> {
    let evicted = match &mut table::lock_entry(fd)?.require_end(fd)?.kind {
        EndKind::Writer(writer) => writer.output.evicted_readers(),
        EndKind::PointerWriter(writer) => writer.pipe.output().evicted_reader_count(),
        _ => return Err(wrong_end_error("one to write to")),
    };
    Ok(usize::try_from(evicted).unwrap_or(usize::MAX))
}

pub(crate) fn set_nonblocking(fd: i32, nonblocking: bool) -> Outcome<()> {
    let mut used = table::lock_entry(fd)?;
    let end = used.require_end(fd)?;
    if nonblocking && matches!(end.kind, EndKind::PointerWriter(_)) {
        return Err(Failure::invalid(
            "the writing end of a pipe of pointers always waits for room",
        ));
    }
    end.nonblocking = nonblocking;
    Ok(())
}

pub(crate) fn close(fd: i32) -> Outcome<()> {
    // Unlocked before the number is closed, because another thread may get the same number at once.
    let end = table::lock_entry(fd)?.take();
    if end.is_none() {
        // An unused end of a multiway pipe is not in the table.
        let own = raw_fd::duplicate(fd)?;
        if !sys::descriptor::is_seqpacket_socket(&own) {
            return Err(not_an_end_error(fd));
        }
    }
    drop(end);
    Ok(raw_fd::close(fd)?)
}
