//! Readers and writers of named endpoints, for use by other programs.

use abi::DbufId;
use buffer::Fault;
use buffer::name::{self, Error};
use buffer::stream::{Config, Input, Output};
use buffer::wait::BlockReadResult;
use std::io;

/// The reading end of a `user` or `socket` sink.
#[derive(Debug)]
pub struct NamedReader {
    input: Input,
    block: Vec<u8>,
}

impl NamedReader {
    /// Opens the named endpoint `NAME` or `UID/NAME` for reading. The first block read is the next
    /// one that the path writes. Blocks until the path's process replies.
    ///
    /// # Errors
    ///
    /// Fails if no path has the name, if this user may not read the endpoint, or if the name
    /// belongs to another kind of object.
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self { input: name::open_stream(name)?, block: vec![0; 1 << 16] })
    }

    /// Returns the next block, or `None` at the end of the stream. Blocks until a block or the end
    /// arrives.
    ///
    /// # Errors
    ///
    /// Fails if the path was killed or breaks the protocol.
    pub fn next_block(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match self.input.read_block(&mut self.block) {
                Ok(BlockReadResult::Block(length)) => {
                    return Ok(Some(self.block.get(..length).unwrap_or_default()));
                }
                Ok(BlockReadResult::End) => return Ok(None),
                Ok(BlockReadResult::Nothing) => {
                    self.input.wait(None).map_err(io::Error::other)?;
                }
                Err(Fault::TooLong { length, .. }) => self.block.resize(length, 0),
                Err(fault) => return Err(io::Error::other(fault)),
            }
        }
    }

    /// Returns true if [`NamedReader::next_block`] would not block. Never blocks.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`NamedReader::next_block`].
    pub fn is_ready(&mut self) -> io::Result<bool> {
        self.input.is_readable().map_err(io::Error::other)
    }

    /// Returns the number of blocks that were overwritten before this reader read them.
    #[must_use]
    pub fn lost_block_count(&self) -> u64 {
        self.input.counts().lost
    }
}

/// The writing end of a `buffer` source.
#[derive(Debug)]
pub struct NamedWriter(Output);

impl NamedWriter {
    /// Opens the buffer with this name, `NAME` or `UID/NAME`, with a ring that grows from 1 MB.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`NamedReader::open`], and if this user may not write to the
    /// buffer.
    pub fn open(name: &str) -> Result<Self, Error> {
        let id = buffer::ids::allocate_id().unwrap_or(DbufId::HOLE);
        Ok(Self(name::open_inbox_writer(
            name,
            &Config { every: 1, ..Config::new(id).self_growing() },
        )?))
    }

    /// Writes a block. Blocks while the ring is full.
    ///
    /// # Errors
    ///
    /// Fails with `BrokenPipe` if the path has ended, and with another error if the block is longer
    /// than [`NamedWriter::block_length_max`].
    pub fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let written = self.0.write(block);
        self.0.flush();
        match written {
            Ok(_) => Ok(()),
            Err(Fault::Abandoned) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(fault) => Err(io::Error::other(fault)),
        }
    }

    /// Returns the maximum length of a block, in bytes.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.0.block_length_max()
    }
}

/// Yields the packets of a pcap or pcapng capture, in order.
///
/// # Errors
///
/// If the capture is damaged, the iterator yields an error at the damaged position.
pub fn capture_packets(capture: &[u8]) -> impl Iterator<Item = Result<&[u8], String>> {
    let packets = wire::capture::packets(capture);
    packets.map(|packet| packet.map(|(_, bytes)| bytes).map_err(|error| error.to_string()))
}
