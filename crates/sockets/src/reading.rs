//! The reading end of an edge: a pipe, then perhaps a ring, then a pipe for ever.
//!
//! A reader that has read much in large pieces says so at the meeting place and then looks at both,
//! the pipe and the place. When it was offered a ring it reads what is left in the pipe (the writer
//! puts nothing more there), then the ring until it is closed, then the pipe again. While the ring
//! is empty it looks at both, so that somebody else who writes into the pipe is heard, too: what it
//! writes there is newer than all that was in the ring when it wrote.

use crate::ends;
use crate::writing::{BULK, answer};
use abi::edge::Edge;
use buffer::Fault;
use buffer::stream::{Input, Offer, Ready};
use sys::doorbell::Peer;
use sys::preload::{self, Handover};

/// Smallest read that gets a ring.
const LARGE: usize = 4096;

/// The progress of a reading end.
#[derive(Debug)]
pub(crate) enum Reading {
    /// In the pipe, after so many bytes.
    Pipe { read: u64 },
    /// In the pipe, after a ring was asked for.
    Asked,
    /// In the pipe, which will be empty soon; then in the ring.
    Offered(Box<Input>),
    /// In the ring.
    Ring(Box<Input>),
    /// In the pipe, for ever.
    Plain,
}

impl Default for Reading {
    fn default() -> Self {
        Self::Pipe { read: 0 }
    }
}

/// The next action after a step.
enum Step {
    /// Tell the program.
    Answer(isize),
    /// Ask the pipe, and tell the program what it says.
    Pipe,
    /// Look again.
    Again,
}

impl Reading {
    /// Reads as read(2) does. `real` is that call.
    pub(crate) fn read(
        &mut self,
        edge: &Edge,
        number: i32,
        out: &mut [u8],
        real: impl Fn(&mut [u8]) -> isize,
    ) -> isize {
        loop {
            let step = match self {
                _ if out.is_empty() => Step::Pipe,
                Self::Plain => Step::Pipe,
                Self::Pipe { read } => {
                    let count = real(out);
                    *read += u64::try_from(count).unwrap_or(0);
                    if *read >= BULK && out.len() >= LARGE {
                        self.ask(edge);
                    }
                    Step::Answer(count)
                }
                Self::Asked => self.look(edge, number),
                Self::Offered(_) if preload::bytes_waiting(number) > 0 => Step::Pipe,
                Self::Offered(_) => {
                    if let Self::Offered(input) = std::mem::replace(self, Self::Plain) {
                        *self = Self::Ring(input);
                    }
                    Step::Again
                }
                Self::Ring(input) => match take(input, number, out) {
                    Ok(step) => step,
                    Err(Fault::Abandoned) => self.leave(),
                    Err(_) => Step::Answer(answer(0, preload::EIO)),
                },
            };
            match step {
                Step::Answer(count) => return count,
                Step::Pipe => return real(out),
                Step::Again => {}
            }
        }
    }

    fn leave(&mut self) -> Step {
        *self = Self::Plain;
        Step::Again
    }

    fn ask(&mut self, edge: &Edge) {
        let meets = ends::meets(edge);
        *self = match meets.then(|| preload::send_byte(edge.socket)) {
            Some(Peer::Here) => Self::Asked,
            _ => Self::Plain,
        };
    }

    /// Is a pipe for ever; answers the ring whose rest comes before what is in it. The meeting
    /// place is shut already.
    pub(crate) fn retire(&mut self, edge: &Edge) -> Option<Box<Input>> {
        match std::mem::replace(self, Self::Plain) {
            Self::Pipe { .. } | Self::Plain => None,
            Self::Offered(input) | Self::Ring(input) => Some(input),
            Self::Asked => match ends::meets(edge).then(|| preload::receive(edge.socket))? {
                Handover::Message(fds) => {
                    Some(Box::new(Offer::from_descriptors(fds).ok()?.open().ok()?))
                }
                Handover::Nothing | Handover::Over => None,
            },
        }
    }

    /// Waits for the pipe and for an offer.
    fn look(&mut self, edge: &Edge, number: i32) -> Step {
        let patient = !preload::is_nonblocking(number);
        let Some([_, place]) = preload::poll_pair([number, edge.socket], patient) else {
            let errno = preload::EINTR;
            return if preload::is_restarted() {
                Step::Again
            } else {
                Step::Answer(answer(0, errno))
            };
        };
        if !place.readable && !place.over {
            return Step::Pipe;
        }
        match preload::receive(edge.socket) {
            Handover::Nothing => Step::Pipe,
            Handover::Over => self.leave(),
            Handover::Message(descriptors) => {
                match Offer::from_descriptors(descriptors).map(Offer::open) {
                    Ok(Ok(input)) => {
                        *self = Self::Offered(Box::new(input));
                        Step::Again
                    }
                    _ => {
                        *self = Self::Plain;
                        Step::Answer(answer(0, preload::EIO))
                    }
                }
            }
        }
    }
}

/// Takes what is in the ring, or waits for it.
fn take(input: &mut Input, number: i32, out: &mut [u8]) -> Result<Step, Fault> {
    let mut turns = ends::turns();
    loop {
        match input.try_read(out)? {
            // Closed, and all of it read.
            Some(0) => return Err(Fault::Abandoned),
            Some(count) => return Ok(Step::Answer(answer(count, 0))),
            None => {}
        }
        if turns > 0 {
            turns -= 1;
            std::thread::yield_now();
            continue;
        }
        let Some(pipe) = preload::borrow(number) else { return Ok(Step::Pipe) };
        let impatient = preload::is_nonblocking(number);
        if !impatient && input.wait_beside(&[pipe], None)? == Ready::Something {
            continue;
        }
        let Some([seen, _]) = preload::poll_pair([number, -1], false) else { continue };
        if seen.readable || seen.over {
            // Who wrote there, or went away, did so after all that it had put into the ring.
            return match input.try_read(out)? {
                Some(0) => Err(Fault::Abandoned),
                Some(count) => Ok(Step::Answer(answer(count, 0))),
                None if seen.readable => Ok(Step::Pipe),
                None => Err(Fault::Abandoned),
            };
        }
        if impatient {
            return Ok(Step::Answer(answer(0, preload::EAGAIN)));
        }
        if !preload::is_restarted() {
            return Ok(Step::Answer(answer(0, preload::EINTR)));
        }
    }
}
