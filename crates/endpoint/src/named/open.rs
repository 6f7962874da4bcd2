//! Opening of named ends by programs.

use abi::DbufId;
use buffer::Fault;
use buffer::name::{self, Error};
use buffer::stream::{Config, Input, Output};
use buffer::wait::BlockRead;
use std::io;

/// The reading end of a `user` or `socket`.
#[derive(Debug)]
pub struct NamedReader {
    input: Input,
    block: Vec<u8>,
}

impl NamedReader {
    /// Opens the end with this name, `NAME` or `UID/NAME`, at its current position.
    ///
    /// # Errors
    ///
    /// Fails if no path has the name, if this user may not read it, and if the name belongs to
    /// another kind of object. Blocks until the path's process replies.
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self { input: name::open_stream(name)?, block: vec![0; 1 << 16] })
    }

    /// Returns the next block; `None` at the end of the stream. Blocks until there is one.
    ///
    /// # Errors
    ///
    /// Fails if the path was killed, or breaks the protocol.
    pub fn next_block(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match self.input.read_block(&mut self.block) {
                Ok(BlockRead::Block(length)) => {
                    return Ok(Some(self.block.get(..length).unwrap_or_default()));
                }
                Ok(BlockRead::End) => return Ok(None),
                Ok(BlockRead::Nothing) => {
                    self.input.wait(None).map_err(io::Error::other)?;
                }
                Err(Fault::TooLong { length, .. }) => self.block.resize(length, 0),
                Err(fault) => return Err(io::Error::other(fault)),
            }
        }
    }

    /// Returns true if there is a block, or the end, without waiting.
    ///
    /// # Errors
    ///
    /// As [`NamedReader::next_block`].
    pub fn is_ready(&mut self) -> io::Result<bool> {
        self.input.is_readable().map_err(io::Error::other)
    }

    /// Returns the number of blocks that were overwritten before they were read.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.input.count().lost
    }
}

/// The writing end of a `buffer`.
#[derive(Debug)]
pub struct NamedWriter(Output);

impl NamedWriter {
    /// Opens the buffer with this name, `NAME` or `UID/NAME`, with a ring of 1 MB.
    ///
    /// # Errors
    ///
    /// As [`NamedReader::open`], if this user may not write to it.
    pub fn open(name: &str) -> Result<Self, Error> {
        let id = DbufId::new(1).unwrap_or(DbufId::HOLE);
        Ok(Self(name::open_write(name, &Config { every: 1, ..Config::new(id) })?))
    }

    /// Writes a block; blocks while the ring is full.
    ///
    /// # Errors
    ///
    /// Fails with `BrokenPipe` if the path has ended, and if the block is longer than half of the
    /// ring.
    pub fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let written = self.0.write(block);
        self.0.flush();
        match written {
            Ok(_) => Ok(()),
            Err(Fault::Abandoned) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(fault) => Err(io::Error::other(fault)),
        }
    }

    /// Returns the maximum length of a block in bytes.
    #[must_use]
    pub fn block_max(&self) -> usize {
        self.0.block_max()
    }
}

/// Returns the packets of a capture, pcap or pcapng, in order.
///
/// # Errors
///
/// Each item fails if the capture is damaged there.
pub fn packets(capture: &[u8]) -> impl Iterator<Item = Result<&[u8], String>> {
    let packets = wire::capture::packets(capture);
    packets.map(|packet| packet.map(|(_, bytes)| bytes).map_err(|error| error.to_string()))
}
