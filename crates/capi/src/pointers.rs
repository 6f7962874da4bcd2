//! The ends of pipes that carry pointers, files in memory, and the grant server. Readers in other
//! processes obtain the memory of this process from the grant server. [SL §5.3]

use crate::end::no_input_error;
use crate::failure::{ENOSPC, Failure, Outcome};
use abi::DbufId;
use abi::access::AccessList;
use buffer::Fault;
use buffer::stream::WaitResult;
use iolite::aggregate::FrozenData;
use iolite::aggregate::owner::PoolOwner;
use iolite::aggregate::server::GrantServer;
use iolite::indirect;
use iolite::interface::{FrozenReader, StreamReader as _, StreamWriter as _};
use iolite::mpipe;
use iolite::view::Space;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::process::effective_ids;

/// Maximum number of memory segments that another process may hold because it has asked the grant
/// server for them. Readers of streams do not ask, and hold no segments in this way.
const HELD_SEGMENTS_MAX: usize = 8;

/// The server that grants the memory of this process, with the id of the process that started it: a
/// child of fork(2) does not inherit the server's thread.
static GRANT_SERVER: Mutex<Option<(u32, Arc<GrantServer>)>> = Mutex::new(None);

/// Returns the grant server of this process; creates the server on first use, and again in a forked
/// child.
pub(crate) fn grant_server() -> Outcome<Arc<GrantServer>> {
    let mut grants = GRANT_SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((of, server)) = grants.as_ref()
        && *of == process
    {
        return Ok(server.clone());
    }
    let server = Arc::new(GrantServer::start(PoolOwner::new(HELD_SEGMENTS_MAX))?);
    if let Some((_, parents)) = grants.replace((process, server.clone())) {
        // The server's thread exists only in the parent, so joining it here would hang.
        std::mem::forget(parents);
    }
    Ok(server)
}

/// Returns an id for a new dbuf, which was never the id of another dbuf. Fails with `ENOSPC` if all
/// ids are used.
pub(crate) fn new_dbuf_id() -> Outcome<DbufId> {
    streamline::use_daemon_dbuf_ids();
    let used_up = || {
        Failure::new(
            ENOSPC,
            "the ids of dbufs in this process tree are used up: start the program again",
        )
    };
    buffer::ids::allocate_id().ok_or_else(used_up)
}

/// The reading end of a pipe that carries pointers.
#[derive(Debug)]
pub(crate) struct PointerReader {
    pub(crate) input: indirect::Input,
    pub(crate) space: Space,
    /// True if this end has asked the writer for a notification of new bytes through the
    /// descriptor.
    watching: bool,
}

impl PointerReader {
    /// Opens a reading end. Returns `None` if the writing end was closed before its first use.
    pub(crate) fn open(end: OwnedFd) -> Outcome<Option<Self>> {
        let space = Space::trusting();
        let input = mpipe::open_pointer_read(end, &space)?;
        Ok(input.map(|input| Self { input, space, watching: false }))
    }

    /// Returns the stream for reading. Withdraws the request of [`watch`](Self::watch), if there is
    /// one.
    #[inline]
    pub(crate) fn stream(&mut self) -> &mut indirect::Input {
        if std::mem::take(&mut self.watching) {
            self.input.withdraw_sleep();
        }
        &mut self.input
    }

    /// Asks the writer to notify this end through its descriptor when new bytes arrive, and returns
    /// false. If there are unread bytes, makes no request and returns true.
    fn watch(&mut self) -> Outcome<bool> {
        let something = self.input.announce_sleep()? == WaitResult::Ready;
        if something {
            self.input.withdraw_sleep();
        }
        self.watching = !something;
        Ok(something)
    }

    pub(crate) fn read(&mut self, out: &mut [u8], nonblocking: bool) -> Outcome<usize> {
        loop {
            if let Some(count) = self.stream().try_read(out)? {
                return Ok(count);
            }
            self.wait_for_input(nonblocking)?;
        }
    }

    /// Returns the address and the length of the next readable bytes, as `Reader::locate` does. The
    /// address is in the shared memory if this memory is frozen or its writer is trusted.
    /// Otherwise, it is in a copy.
    pub(crate) fn locate(&mut self, nonblocking: bool) -> Outcome<(*const u8, usize)> {
        loop {
            if let Some(found) = self.stream().peek()? {
                return Ok((found.as_ptr(), found.len()));
            }
            self.wait_for_input(nonblocking)?;
        }
    }

    /// Waits for input. If `nonblocking` is true, does not wait, and fails with `EAGAIN` if no
    /// input has arrived.
    pub(crate) fn wait_for_input(&mut self, nonblocking: bool) -> Outcome<()> {
        if !nonblocking {
            self.stream().wait(None)?;
        } else if !self.watch()? {
            return Err(no_input_error());
        }
        Ok(())
    }

    /// Returns true if a block is available or the stream has ended. Does not access the bytes to
    /// which the block points.
    pub(crate) fn is_ready(&mut self) -> Outcome<bool> {
        let ready = self.watch()?;
        self.stream();
        Ok(ready)
    }

    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Outcome<bool> {
        Ok(self.stream().wait(limit)? == WaitResult::Ready)
    }
}

/// The writing end of a pipe that carries pointers.
#[derive(Debug)]
pub(crate) struct PointerWriter {
    pub(crate) pipe: mpipe::PointerWriter,
    /// True if every write is published immediately and wakes readers.
    publishes_at_once: bool,
}

impl PointerWriter {
    pub(crate) fn open(end: OwnedFd) -> Outcome<Self> {
        let (pipe, every) =
            mpipe::open_pointer_write(end, new_dbuf_id()?, grant_server()?.as_ref())?;
        Ok(Self { pipe, publishes_at_once: every == 1 })
    }

    /// Copies bytes into the memory of the pipe, as one block, or as several blocks if they exceed
    /// the maximum block size. Returns the number of bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Outcome<usize> {
        let output = self.pipe.output();
        let longest = output.block_length_max().max(1);
        bytes.chunks(longest).try_for_each(|block| output.write(block).map(|_| ()))?;
        self.flush_if_requested();
        Ok(bytes.len())
    }

    pub(crate) fn flush(&mut self) {
        self.pipe.output().flush();
    }

    fn flush_if_requested(&mut self) {
        if self.publishes_at_once {
            self.flush();
        }
    }

    /// Moves up to `most` bytes from another pipe, as pointers. Returns the number of bytes moved,
    /// 0 at the end of that pipe.
    pub(crate) fn splice_pipe(&mut self, from: &mut PointerReader, most: usize) -> Outcome<usize> {
        let grants = grant_server()?;
        let space = from.space.clone();
        let moved = self.pipe.splice_from(from.stream(), Some(&space), most, &grants)?;
        self.flush_if_requested();
        Ok(moved.bytes)
    }

    /// Releases the blocks that were moved from another pipe and that all readers have read. Does
    /// not block.
    pub(crate) fn release_spliced(&mut self, from: &mut PointerReader) -> Outcome<()> {
        Ok(iolite::splice::release_forwarded_blocks(from.stream(), self.pipe.output())?)
    }

    /// Moves up to `most` bytes from a file, as pointers. Returns the number of bytes moved, 0 at
    /// the end of the file.
    pub(crate) fn splice_file(&mut self, from: &mut FileEnd, most: usize) -> Outcome<usize> {
        let moved = self.pipe.splice_from(&mut from.reader, None, most, &from.grants)?;
        self.flush_if_requested();
        Ok(moved.bytes)
    }

    /// Moves up to `most` bytes from a byte stream, copying them once. Returns the number of bytes
    /// moved, 0 at the end of the stream.
    pub(crate) fn splice_bytes(
        &mut self,
        from: &mut iolite::interface::ByteReader,
        most: usize,
    ) -> Outcome<usize> {
        let moved = iolite::splice::splice(from, self.pipe.output(), most)?;
        self.flush_if_requested();
        Ok(moved.bytes)
    }
}

/// A file in memory, which no process can change, with the position of the next read.
#[derive(Debug)]
pub(crate) struct FileEnd {
    pub(crate) reader: FrozenReader,
    grants: Arc<GrantServer>,
    id: DbufId,
}

impl FileEnd {
    /// Copies the file at `path` into memory that is sealed afterwards. The end reads it in blocks
    /// of at most `block` bytes, or of any length if `block` is 0. Fails with the error of open(2)
    /// or read(2).
    pub(crate) fn open(path: &str, block: usize) -> Outcome<Self> {
        let failed = |call, error: &std::io::Error| {
            sys::Error::new(call, path.to_owned(), error.raw_os_error().unwrap_or(0))
        };
        let file = File::open(path).map_err(|error| failed("open", &error))?;
        let id = new_dbuf_id()?;
        let frozen = FrozenData::from_reader(id, file, usize::MAX)
            .map_err(|error| failed("read", &error))?;
        let grants = grant_server()?;
        let access = AccessList::private(effective_ids());
        let shared = grants.with_owner(|owner| owner.share_frozen(&frozen, access));
        shared.map_err(Failure::invalid)?;
        let block = if block == 0 { usize::MAX } else { block };
        let reader = FrozenReader::new(&frozen, block).map_err(Failure::invalid)?;
        Ok(Self { reader, grants, id })
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        Ok(self.reader.try_read(out)?.unwrap_or(0))
    }

    pub(crate) fn locate(&mut self) -> Result<(*const u8, usize), Fault> {
        Ok(self.reader.peek()?.map_or((std::ptr::null(), 0), |block| (block.as_ptr(), block.len())))
    }
}

impl Drop for FileEnd {
    fn drop(&mut self) {
        // Readers already have the dbuf, and no further pointers into it can be written.
        self.grants.with_owner(|owner| owner.withdraw(self.id));
    }
}
