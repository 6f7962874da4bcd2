//! A consumer process of `bench mpipe`: another instance of this program, which receives a
//! descriptor and requests over a socket on its standard input.

use crate::child::{BenchChild, ParentConnection};
use buffer::stream::Input;
use iolite::mpipe;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

/// The kind of pipe or ring that a consumer reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeKind {
    /// A reading end of our multiway pipe.
    MpipeEnd,
    /// A reading end of an overwriting ring, which may lose blocks. A transfer therefore ends with
    /// a block that is marked in its first byte, and not after a number of bytes.
    LossyMpipeEnd,
    /// The reading end of a Linux pipe.
    Pipe,
}

impl PipeKind {
    const fn argument(self) -> &'static str {
        match self {
            Self::MpipeEnd => "mpipe-end",
            Self::LossyMpipeEnd => "mpipe-lossy",
            Self::Pipe => "mpipe-pipe",
        }
    }
}

/// The producer's handle to a consumer process.
pub(super) struct ConsumerProcess {
    child: BenchChild,
    reads: bool,
}

impl ConsumerProcess {
    /// Starts a consumer on a processor, and sends it an end of the pipe. If `reads` is false, the
    /// consumer opens the end but never reads.
    pub(super) fn start(
        kind: PipeKind,
        processor: usize,
        block: usize,
        end: &OwnedFd,
        reads: bool,
    ) -> Result<Self, String> {
        let words = [kind.argument(), &processor.to_string(), &block.to_string()];
        Ok(Self { child: BenchChild::start(words, &[end.as_fd()])?, reads })
    }

    /// Sends the number of bytes that the consumer must receive next. Does nothing for a consumer
    /// that does not read.
    fn announce_bytes(&self, bytes: u64) -> Result<(), String> {
        if self.reads { self.child.announce_bytes(bytes) } else { Ok(()) }
    }

    /// Blocks until the consumer has received the number of bytes that [`Self::announce_bytes`] has
    /// sent. Returns at once for a consumer that does not read.
    fn wait_until_received(&self) -> Result<(), String> {
        if self.reads { self.child.wait_until_received() } else { Ok(()) }
    }
}

/// Announces `bytes` to all consumers, calls `write`, and waits until the consumers that read have
/// received all bytes. Returns the processor time of `write` in ns.
pub(super) fn transfer_to_readers(
    readers: &[ConsumerProcess],
    bytes: u64,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<u64, String> {
    readers.iter().try_for_each(|reader| reader.announce_bytes(bytes))?;
    let begin = sys::clock::thread_cpu_ns();
    write()?;
    let own = sys::clock::thread_cpu_ns() - begin;
    readers.iter().try_for_each(ConsumerProcess::wait_until_received)?;
    Ok(own)
}

/// Runs the consumer process, which the bench starts with the arguments
/// `--reader KIND PROCESSOR BLOCK`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let (kind, processor, block) = crate::child::parse_arguments(words)?;
    let (parent, descriptors) = ParentConnection::receive_descriptors(processor)?;
    let end = descriptors.into_iter().next().ok_or("no end")?;
    let open = |end| -> Result<Box<Input>, String> {
        let input = mpipe::open_read_end(end).map_err(|why| why.to_string())?;
        let mut input = input.ok_or("the writing end was closed unopened")?;
        // Consumers share this processor, so an idle one must yield.
        input.set_spin_limit(0);
        Ok(Box::new(input))
    };
    let mut from = match kind {
        "mpipe-end" => PipeInput::End(open(end)?),
        "mpipe-lossy" => PipeInput::Lossy(open(end)?),
        _ => PipeInput::Pipe(File::from(end)),
    };
    let mut out = vec![0; block];
    parent.serve_requests(|left| {
        let left = from.read(&mut out, left);
        std::hint::black_box(&mut out);
        left
    })
}

enum PipeInput {
    End(Box<Input>),
    Lossy(Box<Input>),
    Pipe(File),
}

impl PipeInput {
    /// Calls `read` of the reading end once. `left` is the number of bytes still to receive.
    /// Returns the number that then remains. For an overwriting ring, returns `left` until the
    /// marked block arrives, and then 0.
    #[inline]
    fn read(&mut self, out: &mut [u8], left: u64) -> Result<u64, String> {
        let count = match self {
            Self::End(input) => input.read(out).map_err(|why| why.to_string())?,
            Self::Lossy(input) => {
                let count = input.read(out).map_err(|why| why.to_string())?;
                if out.first() == Some(&1) {
                    return Ok(0);
                }
                if count == 0 {
                    return Err("the stream has ended".to_owned());
                }
                return Ok(left);
            }
            Self::Pipe(pipe) => pipe.read(out).map_err(|why| why.to_string())?,
        };
        if count == 0 {
            return Err("the stream has ended".to_owned());
        }
        Ok(left.saturating_sub(count as u64))
    }
}
