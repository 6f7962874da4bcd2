//! The writer and the reader of `bench peek`: two processes of this program that trust each other.

use super::{dbuf_id, error_text, share_dbuf};
use crate::child::BenchChild;
use abi::access::Credentials;
use buffer::stream;
use iolite::aggregate::owner::PoolOwner;
use iolite::aggregate::server::GrantServer;
use iolite::indirect::{self, Config, indirect_stream};
use iolite::interface::StreamReader as _;
use iolite::interface::StreamWriter;
use iolite::view::Space;
use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use sys::process::effective_ids;

/// The method by which the reader receives a block: by a copy, or by reading in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PeekMethod {
    Stream,
    InPlace,
    Indirect,
}

/// The part of a block that the reader reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadExtent {
    First,
    All,
}

impl ReadExtent {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::First => "first word read",
            Self::All => "all read",
        }
    }

    /// Returns two arguments for the plain ring's program: first for reading by copy, then for
    /// reading in place.
    pub(super) const fn ring_arguments(self) -> [&'static str; 2] {
        match self {
            Self::First => ["copy", "first"],
            Self::All => ["copy-all", "all"],
        }
    }

    /// Returns two arguments for the program that uses the C library: first for reading by copy,
    /// then for reading in place.
    pub(super) const fn stream_arguments(self) -> [&'static str; 2] {
        match self {
            Self::First => ["read", "peek"],
            Self::All => ["read-all", "peek-all"],
        }
    }
}

/// Ring size in bytes, as in `bench pipe`.
const RING_SIZE: usize = 4 << 20;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 30_000_000;

/// The writer's handles to the stream and to the reading process.
pub(super) struct PeekTransport {
    output: Box<dyn StreamWriter>,
    block: Vec<u8>,
    blocks: u64,
    child: BenchChild,
    _grants: Option<GrantServer>,
}

impl PeekTransport {
    pub(super) fn start(
        kind: PeekMethod,
        reader: usize,
        extent: ReadExtent,
        block: usize,
    ) -> Result<Self, String> {
        let (output, grants, descriptors) = match kind {
            PeekMethod::Stream | PeekMethod::InPlace => {
                let made = stream::stream(&stream::Config::new(dbuf_id(1)).capacity(RING_SIZE));
                let (mut output, mut offers) = made.map_err(error_text)?;
                if reader == 0 {
                    output.set_spin_limit(0);
                }
                let offer = offers.pop().ok_or("no reader")?;
                let output: Box<dyn StreamWriter> = Box::new(output);
                (output, None, duplicate_descriptors(&offer.descriptors())?)
            }
            PeekMethod::Indirect => {
                let grants = GrantServer::start(PoolOwner::new(8)).map_err(error_text)?;
                let backing = share_dbuf(&grants, dbuf_id(1), 64 << 10, RING_SIZE >> 16)?;
                let made = indirect_stream(&Config::new(dbuf_id(2)), backing);
                let (mut output, mut offers) = made.map_err(error_text)?;
                if reader == 0 {
                    output.set_spin_limit(0);
                }
                let offer = offers.pop().ok_or("no reader")?;
                let mut all = duplicate_descriptors(&offer.descriptors())?;
                all.push(
                    grants.add_client(Credentials::from(effective_ids())).map_err(error_text)?.1,
                );
                let output: Box<dyn StreamWriter> = Box::new(output);
                (output, Some(grants), all)
            }
        };
        let word = match kind {
            PeekMethod::Stream => "peek-stream",
            PeekMethod::InPlace => "peek-place",
            PeekMethod::Indirect => "peek-indirect",
        };
        let size = if extent == ReadExtent::All { block } else { 8 };
        let all: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let child = BenchChild::start([word, &reader.to_string(), &size.to_string()], &all)?;
        Ok(Self { output, block: vec![7; block], blocks: 1024, child, _grants: grants })
    }

    /// Returns the throughput in GB/s, measured over at least [`MEASUREMENT_NS_MIN`].
    pub(super) fn measure(&mut self) -> Result<f64, String> {
        loop {
            let bytes = self.blocks * self.block.len() as u64;
            let begin = sys::clock::monotonic_ns();
            let order = [bytes, self.block.len() as u64].map(u64::to_le_bytes);
            self.child.send(order.as_flattened(), &[])?;
            for _ in 0..self.blocks {
                self.output.write(black_box(&self.block)).map_err(error_text)?;
            }
            self.output.flush();
            self.child.wait_until_received()?;
            let ns = sys::clock::monotonic_ns() - begin;
            if ns >= MEASUREMENT_NS_MIN {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(bytes as f64 / ns as f64);
            }
            self.blocks *= (MEASUREMENT_NS_MIN * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }
}

fn duplicate_descriptors(
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<Vec<OwnedFd>, String> {
    descriptors.iter().map(|fd| fd.try_clone_to_owned().map_err(error_text)).collect()
}

/// Runs the reading process, which the bench starts with the arguments
/// `--reader peek-KIND PROCESSOR BYTES`.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    let (kind, processor, read_length) = crate::child::parse_arguments(arguments)?;
    sys::process::pin_to_processor(processor).map_err(error_text)?;
    let orders = std::io::stdin();
    let (_, mut fds) = sys::descriptor::receive(&orders, &mut [0; 8]).map_err(error_text)?;
    let mut input = match kind {
        "peek-stream" => {
            let offer = stream::Offer::from_descriptors(fds).map_err(error_text)?;
            PeekInput::Stream(Box::new(offer.open().map_err(error_text)?))
        }
        "peek-place" => {
            let offer = stream::Offer::from_descriptors(fds).map_err(error_text)?;
            PeekInput::InPlace(Box::new(offer.open_trusting().map_err(error_text)?))
        }
        _ => {
            let space = Space::trusting();
            space.add_owner(fds.pop().ok_or("no socket")?);
            let offer = indirect::Offer::from_descriptors(fds).map_err(error_text)?;
            PeekInput::Indirect(Box::new(indirect::Input::open(offer, &space).map_err(error_text)?))
        }
    };
    if processor == 0 {
        input.set_spin_limit(0);
    }
    let mut order = [0; 16];
    loop {
        if sys::descriptor::receive(&orders, &mut order).map_err(error_text)?.0 == 0 {
            return Ok(());
        }
        let [bytes, block] = [0, 8].map(|at| {
            u64::from_le_bytes(std::array::from_fn(|i| order.get(at + i).copied().unwrap_or(0)))
        });
        let mut out = vec![0; usize::try_from(block).map_err(error_text)?];
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(input.receive_block(&mut out, read_length)?);
        }
        sys::descriptor::send(&orders, b"done", &[]).map_err(error_text)?;
    }
}

enum PeekInput {
    Stream(Box<stream::Input>),
    InPlace(Box<stream::Input>),
    Indirect(Box<indirect::Input>),
}

impl PeekInput {
    fn set_spin_limit(&mut self, spins: u32) {
        match self {
            Self::Stream(input) | Self::InPlace(input) => input.set_spin_limit(spins),
            Self::Indirect(input) => input.set_spin_limit(spins),
        }
    }

    /// Receives a block, reads its first `read_length` bytes, and returns its length.
    #[inline]
    fn receive_block(&mut self, out: &mut [u8], read_length: usize) -> Result<u64, String> {
        match self {
            Self::Stream(input) => {
                let count = input.read(out).map_err(error_text)?;
                black_box(sum_bytes(out.get(..read_length.min(count)).unwrap_or_default()));
                Ok(count as u64)
            }
            Self::InPlace(input) => loop {
                if let Some(block) = input.peek().map_err(error_text)? {
                    let count = block.len();
                    black_box(sum_bytes(block.get(..read_length.min(count)).unwrap_or_default()));
                    input.take(count);
                    return Ok(count as u64);
                }
                input.wait(None).map_err(error_text)?;
            },
            Self::Indirect(input) => loop {
                if let Some(block) = input.peek().map_err(error_text)? {
                    let count = block.len();
                    black_box(sum_bytes(block.get(..read_length.min(count)).unwrap_or_default()));
                    input.take(count);
                    return Ok(count as u64);
                }
                input.wait(None).map_err(error_text)?;
            },
        }
    }
}

/// Reads all bytes; returns their sum.
#[inline]
fn sum_bytes(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<8>();
    let whole = whole.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(whole, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}
