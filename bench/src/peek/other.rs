//! Two processes: the one that writes, and the one that reads, which is this program again.

use super::{id, shared, words};
use crate::child::BenchChild;
use abi::access::Credentials;
use buffer::stream;
use iolite::aggregate::owner::Creator;
use iolite::aggregate::server::GrantServer;
use iolite::indirect::{self, Config, indirect};
use iolite::interface::StreamWriter;
use iolite::view::Space;
use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use sys::process::identity;

/// Copied out, or looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stream,
    Place,
    Indirect,
}

/// The bytes that the reader reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    First,
    All,
}

impl Look {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::First => "first word read",
            Self::All => "all read",
        }
    }

    /// Returns the names of the plain ring in C for it: for a copy, and in place.
    pub(super) const fn words(self) -> [&'static str; 2] {
        match self {
            Self::First => ["copy", "first"],
            Self::All => ["copy-all", "all"],
        }
    }
}

/// Bytes of the ring, as in `bench pipe`.
const RING: usize = 4 << 20;
/// The shortest measurement, in ns.
const LEAST_NS: u64 = 30_000_000;

/// Both ends, as the writer sees them.
pub(super) struct Ends {
    output: Box<dyn StreamWriter>,
    block: Vec<u8>,
    blocks: u64,
    child: BenchChild,
    _desk: Option<GrantServer>,
}

impl Ends {
    pub(super) fn start(
        kind: Kind,
        reader: usize,
        look: Look,
        block: usize,
    ) -> Result<Self, String> {
        let (output, desk, descriptors) = match kind {
            Kind::Stream | Kind::Place => {
                let made = stream::stream(&stream::Config::new(id(1)).capacity(RING));
                let (mut output, mut offers) = made.map_err(words)?;
                if reader == 0 {
                    output.spin(0);
                }
                let offer = offers.pop().ok_or("no reader")?;
                let output: Box<dyn StreamWriter> = Box::new(output);
                (output, None, copies(&offer.descriptors())?)
            }
            Kind::Indirect => {
                let desk = GrantServer::open(Creator::new(8)).map_err(words)?;
                let backing = shared(&desk, id(1), 64 << 10, RING >> 16)?;
                let made = indirect(&Config::new(id(2)), backing);
                let (mut output, mut offers) = made.map_err(words)?;
                if reader == 0 {
                    output.spin(0);
                }
                let offer = offers.pop().ok_or("no reader")?;
                let mut all = copies(&offer.descriptors())?;
                all.push(desk.introduce(Credentials::from(identity())).map_err(words)?.1);
                let output: Box<dyn StreamWriter> = Box::new(output);
                (output, Some(desk), all)
            }
        };
        let word = match kind {
            Kind::Stream => "peek-stream",
            Kind::Place => "peek-place",
            Kind::Indirect => "peek-indirect",
        };
        let size = if look == Look::All { block } else { 8 };
        let all: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let child = BenchChild::start([word, &reader.to_string(), &size.to_string()], &all)?;
        Ok(Self { output, block: vec![7; block], blocks: 1024, child, _desk: desk })
    }

    /// GB/s, over as many blocks as take long enough.
    pub(super) fn measure(&mut self) -> Result<f64, String> {
        loop {
            let bytes = self.blocks * self.block.len() as u64;
            let begin = sys::clock::monotonic();
            let order = [bytes, self.block.len() as u64].map(u64::to_le_bytes);
            self.child.send(order.as_flattened(), &[])?;
            for _ in 0..self.blocks {
                self.output.write(black_box(&self.block)).map_err(words)?;
            }
            self.output.flush();
            self.child.done()?;
            let ns = sys::clock::monotonic() - begin;
            if ns >= LEAST_NS {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(bytes as f64 / ns as f64);
            }
            self.blocks *= (LEAST_NS * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }
}

fn copies(descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<Vec<OwnedFd>, String> {
    descriptors.iter().map(|fd| fd.try_clone_to_owned().map_err(words)).collect()
}

/// The life of the other process: `--reader peek-KIND PROCESSOR BYTES`.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    let (kind, processor, look) = crate::child::arguments(arguments)?;
    sys::process::pin_to(processor).map_err(words)?;
    let orders = std::io::stdin();
    let (_, mut fds) = sys::descriptor::receive(&orders, &mut [0; 8]).map_err(words)?;
    let mut input = match kind {
        "peek-stream" => {
            let offer = stream::Offer::from_descriptors(fds).map_err(words)?;
            From::Stream(Box::new(offer.open().map_err(words)?))
        }
        "peek-place" => {
            let offer = stream::Offer::from_descriptors(fds).map_err(words)?;
            From::Place(Box::new(offer.open_trusting().map_err(words)?))
        }
        _ => {
            let space = Space::trusting();
            space.introduce(fds.pop().ok_or("no socket")?);
            let offer = indirect::Offer::from_descriptors(fds).map_err(words)?;
            From::Indirect(Box::new(indirect::Input::open(offer, &space).map_err(words)?))
        }
    };
    if processor == 0 {
        input.spin(0);
    }
    let mut order = [0; 16];
    loop {
        if sys::descriptor::receive(&orders, &mut order).map_err(words)?.0 == 0 {
            return Ok(());
        }
        let [bytes, block] = [0, 8].map(|at| {
            u64::from_le_bytes(std::array::from_fn(|i| order.get(at + i).copied().unwrap_or(0)))
        });
        let mut out = vec![0; usize::try_from(block).map_err(words)?];
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(input.block(&mut out, look)?);
        }
        sys::descriptor::send(&orders, b"done", &[]).map_err(words)?;
    }
}

enum From {
    Stream(Box<stream::Input>),
    Place(Box<stream::Input>),
    Indirect(Box<indirect::Input>),
}

impl From {
    fn spin(&mut self, spins: u32) {
        match self {
            Self::Stream(input) | Self::Place(input) => input.spin(spins),
            Self::Indirect(input) => input.spin(spins),
        }
    }

    /// Reads a block and looks at so many of its bytes.
    #[inline]
    fn block(&mut self, out: &mut [u8], look: usize) -> Result<u64, String> {
        match self {
            Self::Stream(input) => {
                let count = input.read(out).map_err(words)?;
                black_box(sum(out.get(..look.min(count)).unwrap_or_default()));
                Ok(count as u64)
            }
            Self::Place(input) => loop {
                if let Some(block) = input.peek().map_err(words)? {
                    let count = block.len();
                    black_box(sum(block.get(..look.min(count)).unwrap_or_default()));
                    input.take(count);
                    return Ok(count as u64);
                }
                input.wait(None).map_err(words)?;
            },
            Self::Indirect(input) => loop {
                if let Some(block) = input.peek().map_err(words)? {
                    let count = block.len();
                    black_box(sum(block.get(..look.min(count)).unwrap_or_default()));
                    input.take(count);
                    return Ok(count as u64);
                }
                input.wait(None).map_err(words)?;
            },
        }
    }
}

/// Looks at all bytes.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<8>();
    let whole = whole.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(whole, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}
