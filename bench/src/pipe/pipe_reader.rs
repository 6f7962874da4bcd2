//! The reading process of `bench pipe`: another instance of this program, which receives
//! descriptors and requests over a socket on its standard input.

use crate::child::{BenchChild, ParentConnection};
use buffer::dbuf::fixed_size;
use buffer::stream::{Input, Offer};
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

/// The kind of pipe or stream that the reading process reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputKind {
    Stream,
    Slots,
    Pipe,
}

impl InputKind {
    const fn argument(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Slots => "slots",
            Self::Pipe => "pipe",
        }
    }
}

/// Starts the reader on a processor, and sends it an end of the pipe or stream.
pub(super) fn start(
    kind: InputKind,
    processor: usize,
    block: usize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<BenchChild, String> {
    BenchChild::start([kind.argument(), &processor.to_string(), &block.to_string()], descriptors)
}

/// Runs the reading process, which the bench starts with the arguments
/// `--reader KIND PROCESSOR BLOCK`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let (kind, processor, block) = crate::child::parse_arguments(words)?;
    let (parent, descriptors) = ParentConnection::receive_descriptors(processor)?;
    let mut from = match kind {
        "stream" => {
            let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
            let mut input = offer.open().map_err(|why| why.to_string())?;
            if processor == 0 {
                input.set_spin_limit(0);
            }
            StreamInput::Stream(Box::new(input))
        }
        "slots" => {
            let offer = fixed_size::stream::SlotOffer::from_descriptors(descriptors);
            let opened =
                offer.map(fixed_size::stream::SlotOffer::open).map_err(|why| why.to_string())?;
            let mut input = opened.map_err(|why| why.to_string())?;
            if processor == 0 {
                input.set_spin_limit(0);
            }
            StreamInput::Slots(Box::new(input))
        }
        _ => StreamInput::Pipe(File::from(descriptors.into_iter().next().ok_or("no pipe")?)),
    };
    let mut out = vec![0; block];
    parent.serve_requests(|left| {
        let count = from.read(&mut out)?;
        std::hint::black_box(&mut out);
        Ok(left.saturating_sub(count as u64))
    })
}

enum StreamInput {
    Stream(Box<Input>),
    Slots(Box<fixed_size::stream::SlotInput>),
    Pipe(File),
}

impl StreamInput {
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let count = match self {
            Self::Stream(input) => input.read(out).map_err(|why| why.to_string())?,
            Self::Slots(input) => {
                input.read(out).map_err(|why| why.to_string())?.unwrap_or_default()
            }
            Self::Pipe(pipe) => pipe.read(out).map_err(|why| why.to_string())?,
        };
        if count == 0 { Err("the stream has ended".to_owned()) } else { Ok(count) }
    }
}
