//! The calls, with slices instead of pointers.

use crate::config::streamline_config;
use crate::end::{End, Kind, Reader, Region, Writer};
use crate::failure::{Failure, Outcome, wrong_end};
use crate::table::{self, Used, add, copy, not_ours};
use abi::DbufId;
use abi::access::AccessList;
use buffer::Policy;
use buffer::name::{self, Address, Error, Host, Limits, Opened};
use buffer::stream::Config;
use iolite::{mpipe, splice};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use sys::process::identity;
use sys::raw_fd;

/// Reads the configuration of a C program; null selects the defaults.
pub(crate) fn shape(config: Option<&streamline_config>) -> Outcome<(Config, bool)> {
    let Some(asked) = config else { return Ok((Config { every: 1, ..plain()? }, true)) };
    let policy = match asked.policy {
        0 => Policy::Block,
        1 => Policy::DropNew,
        2 => Policy::Overwrite,
        other => return Err(Failure::invalid(format!("there is no policy {other}"))),
    };
    let plain = plain()?.policy(policy);
    let sized = match usize::try_from(asked.capacity) {
        Ok(0) => plain,
        Ok(bytes) if bytes <= CAPACITY_MAX => plain.capacity(bytes),
        _ => return Err(Failure::invalid(format!("a ring of {} bytes", asked.capacity))),
    };
    let every = asked.every.max(1) as usize;
    Ok((Config { every, ..sized }, every == 1))
}

/// The largest ring that a C program gets.
const CAPACITY_MAX: usize = 1 << 36;

fn plain() -> Outcome<Config> {
    let id = DbufId::new(1).ok_or_else(|| Failure::invalid("no id"))?;
    Ok(Config::new(id))
}

fn access(mode: u32) -> AccessList {
    AccessList { mode: mode & 0o777, ..AccessList::private(identity()) }
}

/// The host of this process's names: made with the first name, and anew after a fork, because the
/// parent's thread does not live in the child.
static HOST: Mutex<Option<(u32, Host)>> = Mutex::new(None);

fn with_host<T>(work: impl FnOnce(&Host) -> Result<T, Error>) -> Outcome<T> {
    let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if host.as_ref().is_none_or(|(of, _)| *of != process) {
        let new = Host::open()?;
        if let Some((_, parents)) = host.replace((process, new)) {
            // Its thread is the parent's: there is nobody to wait for.
            std::mem::forget(parents);
        }
    }
    let Some((_, host)) = host.as_ref() else { return Err(Failure::invalid("no host")) };
    Ok(work(host)?)
}

pub(crate) fn create(name: &str, config: Option<&streamline_config>) -> Outcome<i32> {
    let (shape, eager) = shape(config)?;
    let mode = config.map_or(0, |config| config.mode);
    let limits = config.map_or_else(Limits::default, |config| {
        let usual = Limits::default();
        let or = |asked: u32, usual| if asked == 0 { usual } else { asked as usize };
        Limits {
            readers: or(config.readers, usual.readers),
            per_untrusted_user: or(config.readers_of_one_stranger, usual.per_untrusted_user),
        }
    });
    let mode = if mode == 0 { 0o600 } else { mode };
    let output = with_host(|host| host.create(name, access(mode), &shape, limits))?;
    add(Kind::Writer(Writer::new(output, eager)), None)
}

pub(crate) fn create_region(name: &str, bytes: usize, mode: u32) -> Outcome<i32> {
    if bytes == 0 || bytes > CAPACITY_MAX {
        return Err(Failure::invalid(format!("a region of {bytes} bytes")));
    }
    let memory = with_host(|host| host.create_region(name, access(mode), bytes))?;
    add(Kind::Region(Region { memory, at: 0 }), None)
}

pub(crate) fn create_inbox(name: &str, mode: u32) -> Outcome<i32> {
    let inbox = with_host(|host| host.create_inbox(name, access(mode)))?;
    let bell = copy(&inbox)?;
    add(Kind::Inbox(inbox), Some(bell))
}

pub(crate) fn accept(fd: i32, limit: Option<Duration>) -> Outcome<i32> {
    let mut used = table::place(fd)?;
    let nonblocking = used.end().is_some_and(|end| end.nonblocking);
    let limit = if nonblocking { Some(Duration::ZERO) } else { limit };
    let arrival = match used.end().map(|end| &end.kind) {
        Some(Kind::Inbox(inbox)) => inbox.accept(limit)?,
        Some(_) => return Err(wrong_end("an inbox")),
        None => return Err(not_ours(fd)),
    };
    match arrival {
        Some(arrival) => reader(arrival.input),
        None => Err(Failure::new(crate::failure::EAGAIN, "nobody has come")),
    }
}

pub(crate) fn open(name: &str, write: bool, config: Option<&streamline_config>) -> Outcome<i32> {
    let (shape, eager) = shape(config)?;
    let address: Address = name.parse().map_err(Failure::from)?;
    match (name::opened(&address)?, write) {
        (Opened::Stream(input), false) => reader(*input),
        (Opened::Region(memory), write) if !write || memory.is_writable() => {
            add(Kind::Region(Region { memory, at: 0 }), None)
        }
        (Opened::Region(_), _) => Err(Error::ReadOnly.into()),
        // What was opened is let go, and opened for writing.
        (Opened::Inbox(_), true) => {
            let output = name::open_write(name, &shape)?;
            add(Kind::Writer(Writer::new(output, eager)), None)
        }
        (Opened::Inbox(_), false) => Err(wrong_end("to be read: it is an inbox")),
        (Opened::Stream(_), true) => Err(wrong_end("to be written: its creator does that")),
    }
}

fn reader(input: buffer::stream::Input) -> Outcome<i32> {
    let bell = copy(&input)?;
    add(Kind::Reader(Reader::new(input)), Some(bell))
}

pub(crate) fn pipe(fds: &mut [i32], config: Option<&streamline_config>) -> Outcome<()> {
    let (shape, _) = shape(config)?;
    let ends = mpipe::mpipe(fds.len(), &shape)?;
    for (fd, end) in fds.iter_mut().zip(ends) {
        *fd = raw_fd::give(end);
        raw_fd::inherit(*fd)?;
    }
    Ok(())
}

/// An end that may be that of a multiway pipe which nobody has used yet: then it is opened now.
fn used(fd: i32, write: bool) -> Outcome<Used> {
    let mut used = table::place(fd)?;
    if used.end().is_none() {
        used.put(End::new(adopted(fd, write)?));
    }
    Ok(used)
}

#[cold]
fn adopted(fd: i32, write: bool) -> Outcome<Kind> {
    let own = raw_fd::copy(fd)?;
    if !sys::descriptor::is_packet_socket(&own) {
        return Err(not_ours(fd));
    }
    if write {
        let (output, every) = mpipe::open_write(own)?;
        return Ok(Kind::Writer(Writer::new(output, every == 1)));
    }
    match mpipe::open_read(own)? {
        Some(input) => Ok(Kind::Reader(Reader::new(input))),
        None => Ok(Kind::Closed),
    }
}

#[inline]
pub(crate) fn read(fd: i32, out: &mut [u8]) -> Outcome<usize> {
    let mut used = used(fd, false)?;
    let Some(End { kind, nonblocking }) = used.end() else { return Err(not_ours(fd)) };
    match kind {
        Kind::Reader(reader) => reader.read(out, *nonblocking),
        Kind::Region(region) => {
            let count = region.read(region.at, out)?;
            region.at += count as u64;
            Ok(count)
        }
        Kind::Closed => Ok(0),
        Kind::Writer(_) | Kind::Inbox(_) | Kind::State(_) | Kind::Run(_) => {
            Err(wrong_end("one to read from"))
        }
    }
}

#[inline]
pub(crate) fn write(fd: i32, bytes: &[u8]) -> Outcome<usize> {
    let mut used = used(fd, true)?;
    let Some(End { kind, nonblocking }) = used.end() else { return Err(not_ours(fd)) };
    match kind {
        Kind::Writer(writer) => writer.write(bytes, *nonblocking),
        Kind::Region(region) => {
            let count = region.write(region.at, bytes)?;
            region.at += count as u64;
            Ok(count)
        }
        Kind::Reader(_) | Kind::Inbox(_) | Kind::State(_) | Kind::Run(_) | Kind::Closed => {
            Err(wrong_end("one to write to"))
        }
    }
}

pub(crate) fn read_at(fd: i32, at: u64, out: &mut [u8]) -> Outcome<usize> {
    match table::place(fd)?.end().map(|end| &end.kind) {
        Some(Kind::Region(region)) => region.read(at, out),
        Some(_) => Err(wrong_end("a region")),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn write_at(fd: i32, at: u64, bytes: &[u8]) -> Outcome<usize> {
    match table::place(fd)?.end().map(|end| &end.kind) {
        Some(Kind::Region(region)) => region.write(at, bytes),
        Some(_) => Err(wrong_end("a region")),
        None => Err(not_ours(fd)),
    }
}

/// Answers where what can be looked at begins, and how long it is.
pub(crate) fn peek(fd: i32, longest: usize) -> Outcome<(*const u8, usize)> {
    let mut used = used(fd, false)?;
    match used.end() {
        Some(End { kind: Kind::Reader(reader), nonblocking }) => {
            let seen = reader.peek(*nonblocking)?;
            Ok((seen.as_ptr(), seen.len().min(longest)))
        }
        Some(End { kind: Kind::Closed, .. }) => Ok((std::ptr::null(), 0)),
        Some(_) => Err(wrong_end("one to read from")),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn release(fd: i32, count: usize) -> Outcome<()> {
    match table::place(fd)?.end().map(|end| &mut end.kind) {
        Some(Kind::Reader(reader)) => {
            reader.release(count);
            Ok(())
        }
        Some(_) => Err(wrong_end("one to read from")),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn reserve(fd: i32, length: usize) -> Outcome<*mut u8> {
    let mut used = used(fd, true)?;
    match used.end() {
        Some(End { kind: Kind::Writer(writer), nonblocking }) => {
            writer.reserve(length, !*nonblocking)
        }
        Some(_) => Err(wrong_end("one to write to")),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn commit(fd: i32, count: usize) -> Outcome<()> {
    match table::place(fd)?.end().map(|end| &mut end.kind) {
        Some(Kind::Writer(writer)) => writer.commit(count),
        Some(_) => Err(wrong_end("one to write to")),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn flush(fd: i32) -> Outcome<()> {
    let mut used = used(fd, true)?;
    match used.end().map(|end| &mut end.kind) {
        Some(Kind::Writer(writer)) => {
            writer.output.flush();
            Ok(())
        }
        Some(_) => Err(wrong_end("one to write to")),
        None => Err(not_ours(fd)),
    }
}

/// Returns the number of readers that were evicted from a stream written here.
pub(crate) fn evicted(fd: i32) -> Outcome<usize> {
    match table::place(fd)?.end().map(|end| &end.kind) {
        Some(Kind::Writer(writer)) => {
            Ok(usize::try_from(writer.output.evicted()).unwrap_or(usize::MAX))
        }
        Some(_) => Err(wrong_end("one to write to")),
        None => Err(not_ours(fd)),
    }
}

/// Waits until there is something to read, or room for a block of one byte.
pub(crate) fn wait(fd: i32, limit: Option<Duration>) -> Outcome<bool> {
    let mut used = table::place(fd)?;
    match used.end().map(|end| &mut end.kind) {
        Some(Kind::Reader(reader)) => reader.wait(limit),
        Some(Kind::Writer(writer)) => writer.wait(),
        Some(Kind::Inbox(inbox)) => {
            Ok(sys::poll::readable(&[inbox.as_fd()], limit).contains(&true))
        }
        Some(Kind::State(state)) => Ok(state.wait(limit)),
        Some(Kind::Run(run)) => Ok(run.wait(limit)),
        Some(Kind::Region(_) | Kind::Closed) => Ok(true),
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn nonblocking(fd: i32, nonblocking: bool) -> Outcome<()> {
    match table::place(fd)?.end() {
        Some(end) => {
            end.nonblocking = nonblocking;
            Ok(())
        }
        None => Err(not_ours(fd)),
    }
}

pub(crate) fn splice(from: i32, to: i32, most: usize) -> Outcome<usize> {
    if from == to {
        return Err(Failure::invalid("from an end to itself nothing can be moved"));
    }
    let (mut source, mut sink) = (used(from, false)?, used(to, true)?);
    let from_end = source.end().map(|end| &mut end.kind);
    let to_end = sink.end().map(|end| &mut end.kind);
    match (from_end, to_end) {
        (Some(Kind::Reader(reader)), Some(Kind::Writer(writer))) => {
            let moved = splice::splice(reader.stream(), &mut writer.output, most)?;
            if writer.eager {
                writer.output.flush();
            }
            Ok(moved.bytes)
        }
        (Some(Kind::Closed), _) => Ok(0),
        (Some(_), Some(Kind::Writer(_))) => Err(wrong_end("one to read from")),
        (Some(_), Some(_)) => Err(wrong_end("one to write to")),
        _ => Err(not_ours(from)),
    }
}

pub(crate) fn close(fd: i32) -> Outcome<()> {
    let mut used = table::place(fd)?;
    let end = used.take();
    if end.is_none() {
        // It may be an end of a pipe that nobody has used, and nothing else.
        let own = raw_fd::copy(fd)?;
        if !sys::descriptor::is_packet_socket(&own) {
            return Err(not_ours(fd));
        }
    }
    drop(end);
    Ok(raw_fd::close(fd)?)
}
