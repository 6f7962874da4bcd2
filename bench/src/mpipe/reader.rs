//! A consumer: this program again, told by its arguments what it is, with a socket as its standard
//! input over which it gets its descriptor and its orders.

use crate::child::{BenchChild, Parent};
use buffer::stream::Input;
use iolite::mpipe;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

/// The source of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An end of our pipe.
    End,
    /// An end of a ring that overwrites: the last block says that it is the last one.
    LossyEnd,
    /// A pipe of Linux.
    Pipe,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::End => "mpipe-end",
            Self::LossyEnd => "mpipe-lossy",
            Self::Pipe => "mpipe-pipe",
        }
    }
}

/// A consumer, as the producer sees it.
pub(super) struct Reader {
    child: BenchChild,
    reads: bool,
}

impl Reader {
    /// Starts it on a processor and hands it its end. One that does not read opens its end and does
    /// nothing.
    pub(super) fn start(
        kind: Kind,
        processor: usize,
        block: usize,
        end: &OwnedFd,
        reads: bool,
    ) -> Result<Self, String> {
        let words = [kind.word(), &processor.to_string(), &block.to_string()];
        Ok(Self { child: BenchChild::start(words, &[end.as_fd()])?, reads })
    }

    /// Announces the number of bytes that follow.
    fn expect(&self, bytes: u64) -> Result<(), String> {
        if self.reads { self.child.expect(bytes) } else { Ok(()) }
    }

    /// Waits until it has them.
    fn done(&self) -> Result<(), String> {
        if self.reads { self.child.done() } else { Ok(()) }
    }
}

/// Announces so many bytes to all consumers, writes them, and waits until all have them; returns
/// the processor time of the writing, in ns.
pub(super) fn move_to(
    readers: &[Reader],
    bytes: u64,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<u64, String> {
    readers.iter().try_for_each(|reader| reader.expect(bytes))?;
    let begin = sys::clock::thread();
    write()?;
    let own = sys::clock::thread() - begin;
    readers.iter().try_for_each(Reader::done)?;
    Ok(own)
}

/// Runs the other process: `--reader KIND PROCESSOR BLOCK`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let (kind, processor, block) = crate::child::arguments(words)?;
    let (parent, descriptors) = Parent::meet(processor)?;
    let end = descriptors.into_iter().next().ok_or("no end")?;
    let open = |end| -> Result<Box<Input>, String> {
        let input = mpipe::open_read(end).map_err(|why| why.to_string())?;
        let mut input = input.ok_or("nobody writes")?;
        // Several consumers share this processor: who finds nothing lets the others on.
        input.spin(0);
        Ok(Box::new(input))
    };
    let mut from = match kind {
        "mpipe-end" => From::End(open(end)?),
        "mpipe-lossy" => From::Lossy(open(end)?),
        _ => From::Pipe(File::from(end)),
    };
    let mut out = vec![0; block];
    parent.serve(|left| {
        let left = from.read(&mut out, left);
        std::hint::black_box(&mut out);
        left
    })
}

enum From {
    End(Box<Input>),
    Lossy(Box<Input>),
    Pipe(File),
}

impl From {
    /// Reads, and answers how many bytes are left.
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
