//! The writing end of an edge: a pipe, then perhaps a ring, then a pipe for ever.
//!
//! A writer that has written much, and that a reader has asked ([`Reading`]), makes a ring of its
//! own, offers it at the meeting place, and writes into the pipe no more. It goes back to the pipe
//! when somebody else has written into it meanwhile, when the reader is gone (the pipe then says
//! what that means: `SIGPIPE`, or that others read), and before the program does what this library
//! does not follow. Going back is for ever, and closes the ring: the reader takes the rest of it
//! before it looks into the pipe again, so the order is kept.
//!
//! [`Reading`]: crate::reading::Reading

use crate::ends;
use crate::lazy::Range;
use abi::DbufId;
use abi::edge::Edge;
use buffer::Fault;
use buffer::stream::{Config, Output, Ready, stream};
use sys::preload::{self, Handover};

/// So much goes through the pipe before there is a ring: who writes less has nothing to gain.
pub(crate) const BULK: u64 = 64 << 10;
/// Bytes of a ring. On two processors more goes through than through half of it, on one as much.
const RING: usize = 2 << 20;
/// Bytes of the longest block in it.
const PIECE: usize = 64 << 10;

/// The bytes of a write.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    /// Memory of the program.
    Memory(&'a [u8]),
    /// A range of a file, which memory of the program stands for.
    File(&'a Range),
}

impl Bytes<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(range) => range.len,
        }
    }

    /// Puts a piece into a ring that has room for it, and answers how much of it was there.
    fn write(&self, output: &mut Output, from: usize, length: usize) -> Result<usize, Fault> {
        let mut got = length;
        match self {
            Self::Memory(bytes) => {
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

/// The progress of a writing end.
#[derive(Debug)]
pub(crate) enum Writing {
    /// In the pipe, after so many bytes; it is looked for a reader when there are as many as that.
    Pipe { written: u64, look_at: u64 },
    /// In the ring.
    Ring {
        /// The ring.
        output: Box<Output>,
        /// True while earlier bytes may still be in the pipe.
        fresh: bool,
    },
    /// In the pipe, for ever.
    Plain,
}

impl Default for Writing {
    fn default() -> Self {
        Self::Pipe { written: 0, look_at: BULK }
    }
}

impl Writing {
    /// Writes as write(2) does. `real` is that call.
    pub(crate) fn write(
        &mut self,
        edge: &Edge,
        number: i32,
        bytes: &Bytes<'_>,
        real: impl Fn() -> isize,
    ) -> isize {
        if bytes.len() == 0 {
            return real();
        }
        loop {
            match self {
                Self::Plain => return real(),
                Self::Pipe { written, look_at } => {
                    if *written < *look_at {
                        let count = real();
                        *written += u64::try_from(count).unwrap_or(0);
                        return count;
                    }
                    *look_at = *written + BULK / 4;
                    self.rise(edge, number);
                    if let Self::Pipe { written, .. } = self {
                        let count = real();
                        *written += u64::try_from(count).unwrap_or(0);
                        return count;
                    }
                }
                Self::Ring { output, fresh } => {
                    let pending = preload::bytes_waiting(number) > 0;
                    *fresh &= pending;
                    if (pending && !*fresh) || preload::has_no_reader(number) {
                        *self = Self::Plain;
                        continue;
                    }
                    match put(output, number, bytes) {
                        Ok(count) => return count,
                        Err(_) => *self = Self::Plain,
                    }
                }
            }
        }
    }

    /// Goes back to the pipe, for ever.
    pub(crate) fn retire(&mut self) {
        *self = Self::Plain;
    }

    /// Makes a ring and offers it, if a reader has asked for one.
    fn rise(&mut self, edge: &Edge, number: i32) {
        let heard = if ends::meets(edge) { preload::receive(edge.socket) } else { Handover::Over };
        match heard {
            Handover::Nothing => return,
            Handover::Over => {
                *self = Self::Plain;
                return;
            }
            Handover::Message(_) => {}
        }
        // What the C library writes by itself goes into the pipe. Later it is noticed there; now it
        // could not be told from what was written before.
        let alone = !preload::is_used_by_stdio(number);
        *self = match alone.then(|| offered(edge)).flatten() {
            Some(output) => Self::Ring { output: Box::new(output), fresh: true },
            None => Self::Plain,
        };
    }
}

fn offered(edge: &Edge) -> Option<Output> {
    let id = DbufId::new(1)?;
    let (output, offers) = stream(&Config::new(id).capacity(RING)).ok()?;
    let socket = preload::borrow(edge.socket)?;
    let offer = offers.first()?;
    sys::descriptor::send(socket, b"ring", &offer.descriptors()).ok()?;
    Some(output)
}

/// Writes all of it into the ring, or as much as the program's flags and signals allow.
fn put(output: &mut Output, number: i32, bytes: &Bytes<'_>) -> Result<isize, Fault> {
    let mut done = 0;
    while done < bytes.len() {
        let length = (bytes.len() - done).min(PIECE);
        let mut turns = ends::turns();
        while !output.is_ready(length)? {
            if turns > 0 {
                turns -= 1;
                output.flush();
                std::thread::yield_now();
                continue;
            }
            let stop = if preload::is_nonblocking(number) {
                Some(preload::EAGAIN)
            } else if output.wait(length)? == Ready::Something {
                None
            } else if preload::has_no_reader(number) {
                return Err(Fault::Abandoned);
            } else {
                (!preload::is_restarted()).then_some(preload::EINTR)
            };
            if let Some(errno) = stop {
                output.flush();
                return Ok(answer(done, errno));
            }
        }
        let wrote = bytes.write(output, done, length)?;
        done += wrote;
        if wrote < length {
            output.flush();
            return Ok(answer(done, preload::EIO));
        }
    }
    output.flush();
    Ok(answer(done, 0))
}

/// Returns the result of the call: the bytes done, or the error.
pub(crate) fn answer(done: usize, errno: i32) -> isize {
    if done == 0 && errno != 0 {
        preload::set_errno(errno);
        return -1;
    }
    isize::try_from(done).unwrap_or(isize::MAX)
}
