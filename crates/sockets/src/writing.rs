//! The writing end of an edge: a pipe, then possibly a ring, then only the pipe.
//!
//! After many bytes, and if a reader has requested a ring ([`ReadingEnd`]), the writer creates one,
//! offers it over the rendezvous socket and stops using the pipe. It returns to the pipe if other
//! code has written into the pipe, if the reader has closed the ring (the pipe then raises
//! `SIGPIPE` or serves other readers), and before a call that this library does not emulate. The
//! return is permanent and closes the ring. The reader drains the ring before the pipe, so order is
//! preserved.
//!
//! [`ReadingEnd`]: crate::reading::ReadingEnd

use crate::counts;
use crate::edge_ends;
use crate::forward;
use crate::lazy::FileRange;
use crate::pointer::{POINTER_ROOM_BYTES, SentFiles};
use crate::rendezvous;
use abi::edge::{Edge, EdgeCount};
use buffer::Fault;
use buffer::stream::{Config, Output, WaitResult, stream};
use std::sync::atomic::{AtomicBool, Ordering};
use sys::preload::{self, RendezvousResult};

/// The number of bytes written to the pipe before a ring is offered; shorter streams would gain
/// nothing from a ring.
pub(crate) const PIPE_BYTES_BEFORE_OFFER: u64 = 64 << 10;
/// Number of bytes after which the writer no longer checks for a request for a ring, if there was
/// none while these bytes were written to the pipe.
const PIPE_BYTES_WITHOUT_REQUEST_MAX: u64 = 2 << 20;
/// The initial and maximum capacity of a ring, in bytes. Larger rings are slower on one processor,
/// and equally fast on two. A ring is resized only within its initial memory, because the program
/// may later give up the right to allocate more.
const RING_BYTES: usize = 2 << 20;
/// The maximum size of a block in bytes.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// True once the program has restricted its own system calls, or may have done so.
static IS_SYSCALL_RESTRICTED: AtomicBool = AtomicBool::new(false);

/// Records that the program restricts its system calls: rings keep their size from now on.
pub(crate) fn record_syscall_restriction() {
    IS_SYSCALL_RESTRICTED.store(true, Ordering::Relaxed);
}

/// The bytes that the program passes to a write call.
#[derive(Debug)]
pub(crate) enum BytesToWrite<'a> {
    /// Memory of the program, with the file range of which it is known to be an unchanged copy, if
    /// any.
    Memory(&'a [u8], Option<&'a FileRange>),
    /// A file range that the program has read lazily, so that its buffer holds no bytes.
    File(&'a FileRange),
}

impl BytesToWrite<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Memory(bytes, _) => bytes.len(),
            Self::File(range) => range.len,
        }
    }

    /// Returns the file range from which these bytes come, so that a ring can carry a pointer to
    /// the range instead of the bytes. Returns `None` if they come from no file range.
    const fn file_range(&self) -> Option<&FileRange> {
        match self {
            Self::Memory(_, range) => *range,
            Self::File(range) => Some(range),
        }
    }

    /// Writes `length` of the bytes, from offset `from` on, into a ring that has room for them.
    /// Returns the number of bytes written, which is smaller than `length` if a file ends earlier.
    fn write(&self, output: &mut Output, from: usize, length: usize) -> Result<usize, Fault> {
        let mut got = length;
        match self {
            Self::Memory(bytes, _) => {
                output.write(bytes.get(from..from + length).unwrap_or_default())?;
            }
            Self::File(range) => {
                output.write_with(length, |room| {
                    got = range.file.read_at(range.at + from as u64, room).unwrap_or(0);
                    got
                })?;
            }
        }
        Ok(got)
    }
}

/// The state of the writing end of an edge.
#[derive(Debug)]
pub(crate) enum WritingEnd {
    /// The program writes to the pipe, and has written `written` bytes so far. When this number
    /// reaches `next_check_at`, the writer checks for a request for a ring.
    Pipe { written: u64, next_check_at: u64 },
    /// The program writes to the ring.
    Ring {
        /// Writing end of the ring.
        output: Box<Output>,
        /// True while the pipe may contain bytes that were written before the ring was created.
        pipe_may_hold_bytes: bool,
        /// Files into which pointers have been written to the ring, and whose descriptors have been
        /// sent to the reader.
        files: SentFiles,
    },
    /// The program writes only to the pipe from now on, and no ring is offered.
    PipeOnly,
}

impl Default for WritingEnd {
    fn default() -> Self {
        Self::Pipe { written: 0, next_check_at: PIPE_BYTES_BEFORE_OFFER }
    }
}

impl WritingEnd {
    /// Writes with the semantics of write(2); `real` writes the same bytes through the kernel.
    pub(crate) fn write(
        &mut self,
        edge: &Edge,
        number: i32,
        bytes: &BytesToWrite<'_>,
        real: impl Fn() -> isize,
    ) -> isize {
        if bytes.len() == 0 {
            return real();
        }
        loop {
            match self {
                Self::PipeOnly => return count_pipe_bytes(edge, real()),
                Self::Pipe { written, next_check_at } => {
                    if *written < *next_check_at {
                        let count = count_pipe_bytes(edge, real());
                        *written += u64::try_from(count).unwrap_or(0);
                        return count;
                    }
                    *next_check_at = *written + PIPE_BYTES_BEFORE_OFFER / 4;
                    self.offer_ring_if_requested(edge, number);
                    if let Self::Pipe { written, .. } = self {
                        let count = count_pipe_bytes(edge, real());
                        *written += u64::try_from(count).unwrap_or(0);
                        return count;
                    }
                }
                Self::Ring { output, pipe_may_hold_bytes, files } => {
                    let pending = preload::pipe_bytes_available(number) > 0;
                    *pipe_may_hold_bytes &= pending;
                    if (pending && !*pipe_may_hold_bytes) || preload::has_no_reader(number) {
                        *self = Self::PipeOnly;
                        continue;
                    }
                    if IS_SYSCALL_RESTRICTED.load(Ordering::Relaxed) {
                        output.fix_size();
                    }
                    let before = output.capacity();
                    match write_ring((output, files), edge, number, bytes) {
                        Ok(count) => {
                            if output.capacity() != before {
                                store_ring_size(edge, output);
                            }
                            return count;
                        }
                        Err(_) => *self = Self::PipeOnly,
                    }
                }
            }
        }
    }

    /// Returns true if pointers can be written to the edge: it has a ring, or may still get one.
    pub(crate) const fn may_pass_pointers(&self) -> bool {
        match self {
            Self::Pipe { written, .. } => *written < PIPE_BYTES_WITHOUT_REQUEST_MAX,
            Self::Ring { .. } => true,
            Self::PipeOnly => false,
        }
    }

    /// Turns the writing end of the edge into a plain pipe permanently, and closes its ring.
    pub(crate) fn retire(&mut self) {
        *self = Self::PipeOnly;
    }

    /// Creates a ring and offers it, if a reader has requested one. Turns the end into a plain pipe
    /// permanently if the rendezvous has ended or no ring can be offered.
    fn offer_ring_if_requested(&mut self, edge: &Edge, number: i32) {
        let request = if rendezvous::is_open(edge) {
            preload::receive_from_rendezvous(edge.socket)
        } else {
            RendezvousResult::Closed
        };
        match request {
            RendezvousResult::Nothing => return,
            RendezvousResult::Closed => {
                *self = Self::PipeOnly;
                return;
            }
            RendezvousResult::Message(_) => {}
        }
        // If stdio of the C library uses the pipe as well, its writes could not be distinguished
        // from the writes before the ring.
        let alone = forward::is_enabled() || !preload::is_used_by_stdio(number);
        *self = match alone.then(|| offer_ring(edge)).flatten() {
            Some(output) => {
                let (output, files) = (Box::new(output), SentFiles::default());
                Self::Ring { output, pipe_may_hold_bytes: true, files }
            }
            None => Self::PipeOnly,
        };
    }
}

fn offer_ring(edge: &Edge) -> Option<Output> {
    let id = buffer::ids::allocate_id()?;
    let config = Config::new(id).capacity(RING_BYTES);
    let is_fixed = IS_SYSCALL_RESTRICTED.load(Ordering::Relaxed);
    let config = if is_fixed { config } else { config.self_sizing_in_place() };
    let (output, offers) = stream(&config).ok()?;
    counts::set(edge, EdgeCount::RingSizeMax, config.extent.max(output.capacity()) as u64);
    store_ring_size(edge, &output);
    let socket = preload::borrow_descriptor(edge.socket)?;
    let offer = offers.first()?;
    sys::descriptor::send(socket, b"ring", &offer.descriptors()).ok()?;
    Some(output)
}

/// Stores the size of the ring, and the number of size changes, in the counters of the edge.
fn store_ring_size(edge: &Edge, output: &Output) {
    counts::set(edge, EdgeCount::RingSize, output.capacity() as u64);
    if let Some(scale) = output.sizing_state() {
        counts::set(edge, EdgeCount::RingGrown, scale.grown);
        counts::set(edge, EdgeCount::RingShrunk, scale.shrunk);
    }
}

fn count_pipe_bytes(edge: &Edge, written: isize) -> isize {
    counts::add_result(edge, EdgeCount::WrittenToPipe, written);
    written
}

/// Writes all bytes, or a pointer to them, into the ring. Blocks while there is no room; if the
/// descriptor is nonblocking or a signal arrives, stops early. Returns the value that write(2)
/// would return.
fn write_ring(
    (output, files): (&mut Output, &mut SentFiles),
    edge: &Edge,
    number: i32,
    bytes: &BytesToWrite<'_>,
) -> Result<isize, Fault> {
    if let Some(range) = bytes.file_range() {
        if let Some(errno) = wait_for_room(output, number, POINTER_ROOM_BYTES)? {
            return Ok(call_result(0, errno));
        }
        if files.write_pointer(edge, output, range)? {
            output.flush();
            counts::add(edge, EdgeCount::PassedIn, range.len);
            return Ok(call_result(range.len, 0));
        }
    }
    let (mut done, mut errno) = (0, 0);
    while done < bytes.len() {
        let length = (bytes.len() - done).min(BLOCK_BYTES_MAX);
        if let Some(stop) = wait_for_room(output, number, length)? {
            errno = stop;
            break;
        }
        let wrote = bytes.write(output, done, length)?;
        done += wrote;
        if wrote < length {
            errno = preload::EIO;
            break;
        }
    }
    output.flush();
    counts::add(edge, EdgeCount::CopiedIn, done);
    Ok(call_result(done, errno))
}

/// Blocks until a block of this length fits into the ring, and then returns `None`. Returns an
/// error number if the descriptor is nonblocking or a signal ends the wait. Fails if the reader has
/// closed the ring.
fn wait_for_room(output: &mut Output, number: i32, length: usize) -> Result<Option<i32>, Fault> {
    let mut yields = edge_ends::yields_before_sleep();
    while !output.is_ready(length)? {
        if yields > 0 {
            yields -= 1;
            output.record_full_ring();
            output.flush();
            std::thread::yield_now();
            continue;
        }
        if preload::is_nonblocking(number) {
            return Ok(Some(preload::EAGAIN));
        }
        let waited = output.wait(length)?;
        if waited == WaitResult::Ready {
            continue;
        }
        if preload::has_no_reader(number) {
            return Err(Fault::Abandoned);
        }
        // A stale notification also ends a wait, but write(2) may fail only after a signal.
        if waited == WaitResult::Interrupted && !preload::should_restart_call() {
            return Ok(Some(preload::EINTR));
        }
    }
    Ok(None)
}

/// Converts the outcome of a call to its return value: the number of bytes, or -1 with `errno` set.
pub(crate) fn call_result(done: usize, errno: i32) -> isize {
    if done == 0 && errno != 0 {
        preload::set_errno(errno);
        return -1;
    }
    isize::try_from(done).unwrap_or(isize::MAX)
}
