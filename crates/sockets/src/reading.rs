//! The reading end of an edge: a pipe, then possibly a ring, then only the pipe.
//!
//! After many bytes in large reads the reader requests a ring over the rendezvous socket, and from
//! then on waits for both the pipe and the socket. After an offer it drains the pipe (the writer
//! adds nothing to it), reads the ring until it is closed, and then reads the pipe again. While the
//! ring is empty, the reader waits for both the ring and the pipe, so that it misses no bytes that
//! other code writes into the pipe; they are newer than all bytes in the ring.

use crate::counts;
use crate::edge_ends;
use crate::forward;
use crate::lazy;
use crate::pointer::RingInput;
use crate::rendezvous;
use crate::writing::{PIPE_BYTES_BEFORE_OFFER, call_result};
use abi::edge::{Edge, EdgeCount};
use buffer::Fault;
use buffer::stream::{Offer, WaitResult};
use sys::doorbell::PeerState;
use sys::preload::{self, RendezvousResult};

/// Minimum size of a read, in bytes, for a reader to request a ring. Smaller reads cause no
/// request.
const REQUEST_READ_SIZE_MIN: usize = 4096;

/// The state of the reading end of an edge.
#[derive(Debug)]
pub(crate) enum ReadingEnd {
    /// The program reads from the pipe, and has read this many bytes so far.
    Pipe { read: u64 },
    /// The program reads from the pipe, and a ring has been requested from the writer.
    Requested,
    /// The writer has offered a ring. The program reads from it once the pipe is drained.
    Offered(Box<RingInput>),
    /// The program reads from the ring.
    Ring(Box<RingInput>),
    /// The program reads only from the pipe from now on, and no ring is requested.
    PipeOnly,
}

impl Default for ReadingEnd {
    fn default() -> Self {
        Self::Pipe { read: 0 }
    }
}

/// The next step of a read call of the program, chosen by the state of the edge.
enum ReadStep {
    /// The call ends, and returns this result to the program.
    Return(isize),
    /// The call reads from the pipe and returns the result of this read to the program.
    Pipe,
    /// The state of the edge has changed, and the call tries again.
    Again,
}

impl ReadingEnd {
    /// Reads with the semantics of read(2); `real` calls the C library's read(2).
    pub(crate) fn read(
        &mut self,
        edge: &Edge,
        number: i32,
        out: &mut [u8],
        real: impl Fn(&mut [u8]) -> isize,
    ) -> isize {
        loop {
            let step = match self {
                _ if out.is_empty() => ReadStep::Pipe,
                Self::PipeOnly => ReadStep::Pipe,
                Self::Pipe { read } => {
                    let count = real(out);
                    counts::add_result(edge, EdgeCount::ReadFromPipe, count);
                    *read += u64::try_from(count).unwrap_or(0);
                    if *read >= PIPE_BYTES_BEFORE_OFFER && out.len() >= REQUEST_READ_SIZE_MIN {
                        self.request_ring(edge);
                    }
                    ReadStep::Return(count)
                }
                Self::Requested => self.check_ring_offer(edge, number),
                Self::Offered(_) if preload::pipe_bytes_available(number) > 0 => ReadStep::Pipe,
                Self::Offered(_) => {
                    if let Self::Offered(input) = std::mem::replace(self, Self::PipeOnly) {
                        *self = Self::Ring(input);
                    }
                    ReadStep::Again
                }
                Self::Ring(input) => match read_ring(input, number, out) {
                    Ok(step) => step,
                    Err(Fault::Abandoned) => self.return_to_pipe(),
                    Err(_) => ReadStep::Return(call_result(0, preload::EIO)),
                },
            };
            match step {
                ReadStep::Return(count) => return count,
                ReadStep::Pipe => {
                    let count = real(out);
                    counts::add_result(edge, EdgeCount::ReadFromPipe, count);
                    return count;
                }
                ReadStep::Again => {}
            }
        }
    }

    /// Reads a file range without copying its bytes; the buffer at the address `to` then represents
    /// the range. This is possible only if the next bytes are a file range and the program only
    /// forwards what it reads. Returns the number of bytes, or `None` if they must be copied.
    pub(crate) fn lend_range(&mut self, edge: &Edge, to: usize, count: usize) -> Option<usize> {
        let Self::Ring(input) = self else { return None };
        let range = input.next_range().ok().flatten()?;
        let length = lazy::lend_from_edge(range, to, count)?;
        input.advance(length);
        counts::add(edge, EdgeCount::PassedOut, length);
        Some(length)
    }

    /// Calls `read` with the buffer `out`. If `read` has filled the buffer with bytes of a file
    /// range, records that the buffer holds a copy of that range.
    pub(crate) fn read_and_record(
        &mut self,
        out: &mut [u8],
        read: impl FnOnce(&mut Self, &mut [u8]) -> isize,
    ) -> isize {
        forward::forget_copy();
        let to = out.as_ptr().addr();
        let before = match self {
            Self::Ring(input) if forward::is_enabled() => {
                input.next_range().ok().flatten().cloned()
            }
            _ => None,
        };
        let count = read(self, out);
        if let (Some(range), Ok(count)) = (before, usize::try_from(count)) {
            let len = count.min(range.len);
            forward::record_copy(to, lazy::FileRange { len, ..range });
        }
        count
    }

    fn return_to_pipe(&mut self) -> ReadStep {
        *self = Self::PipeOnly;
        ReadStep::Again
    }

    fn request_ring(&mut self, edge: &Edge) {
        let connected = rendezvous::is_open(edge);
        *self = match connected.then(|| preload::send_rendezvous_byte(edge.socket)) {
            Some(PeerState::Present) => Self::Requested,
            _ => Self::PipeOnly,
        };
    }

    /// Turns the reading end of the edge into a plain pipe permanently. Returns the ring, which
    /// must be drained before the pipe, or `None` if there is no ring. The rendezvous socket must
    /// have been shut down.
    pub(crate) fn retire(&mut self, edge: &Edge) -> Option<Box<RingInput>> {
        match std::mem::replace(self, Self::PipeOnly) {
            Self::Pipe { .. } | Self::PipeOnly => None,
            Self::Offered(input) | Self::Ring(input) => Some(input),
            Self::Requested => {
                match rendezvous::is_open(edge)
                    .then(|| preload::receive_from_rendezvous(edge.socket))?
                {
                    RendezvousResult::Message(fds) => {
                        let input = Offer::from_descriptors(fds).ok()?.open_trusting().ok()?;
                        Some(Box::new(RingInput::new(input, *edge)))
                    }
                    RendezvousResult::Nothing | RendezvousResult::Closed => None,
                }
            }
        }
    }

    /// Checks for an offer of a ring, and returns the next step of the read. If the descriptor is
    /// blocking, first blocks until there are bytes in the pipe or an offer.
    fn check_ring_offer(&mut self, edge: &Edge, number: i32) -> ReadStep {
        let patient = !preload::is_nonblocking(number);
        let Some([_, place]) = preload::poll_pair([number, edge.socket], patient) else {
            let errno = preload::EINTR;
            return if preload::should_restart_call() {
                ReadStep::Again
            } else {
                ReadStep::Return(call_result(0, errno))
            };
        };
        if !place.readable && !place.closed {
            return ReadStep::Pipe;
        }
        match preload::receive_from_rendezvous(edge.socket) {
            RendezvousResult::Nothing => ReadStep::Pipe,
            RendezvousResult::Closed => self.return_to_pipe(),
            RendezvousResult::Message(descriptors) => {
                match Offer::from_descriptors(descriptors).map(Offer::open_trusting) {
                    Ok(Ok(input)) => {
                        *self = Self::Offered(Box::new(RingInput::new(input, *edge)));
                        ReadStep::Again
                    }
                    _ => {
                        *self = Self::PipeOnly;
                        ReadStep::Return(call_result(0, preload::EIO))
                    }
                }
            }
        }
    }
}

/// Reads from the ring; blocks while it is empty if the descriptor is blocking. Fails with
/// `Fault::Abandoned` once the ring is closed and drained.
fn read_ring(input: &mut RingInput, number: i32, out: &mut [u8]) -> Result<ReadStep, Fault> {
    let mut yields = edge_ends::yields_before_sleep();
    loop {
        match input.try_read(out)? {
            // The ring is closed and drained.
            Some(0) => return Err(Fault::Abandoned),
            Some(count) => return Ok(ReadStep::Return(call_result(count, 0))),
            None => {}
        }
        if yields > 0 {
            yields -= 1;
            std::thread::yield_now();
            continue;
        }
        let Some(pipe) = preload::borrow_descriptor(number) else { return Ok(ReadStep::Pipe) };
        let impatient = preload::is_nonblocking(number);
        let waited = if impatient { WaitResult::NotReady } else { input.wait_beside(&[pipe])? };
        if waited == WaitResult::Ready {
            continue;
        }
        let Some([pipe_events, _]) = preload::poll_pair([number, -1], false) else { continue };
        if pipe_events.readable || pipe_events.closed {
            // The write into the pipe, or its end, is newer than everything in the ring.
            return match input.try_read(out)? {
                Some(0) => Err(Fault::Abandoned),
                Some(count) => Ok(ReadStep::Return(call_result(count, 0))),
                None if pipe_events.readable => Ok(ReadStep::Pipe),
                None => Err(Fault::Abandoned),
            };
        }
        if impatient {
            return Ok(ReadStep::Return(call_result(0, preload::EAGAIN)));
        }
        // A stale notification also ends a wait, but read(2) may fail only after a signal.
        if waited == WaitResult::Interrupted && !preload::should_restart_call() {
            return Ok(ReadStep::Return(call_result(0, preload::EINTR)));
        }
    }
}
