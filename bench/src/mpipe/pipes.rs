//! What Linux has: a pipe for each consumer, written to n times, or filled by tee(2) and splice(2).

use super::Mover;
use super::reader::{Kind, Reader};
use rustix::pipe::{SpliceFlags, splice, tee};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// A pipe with its consumer.
fn consumer(block: usize, processor: usize) -> Result<(OwnedFd, Reader), String> {
    let (reading, writing) = sys::descriptor::pipe().map_err(|why| why.to_string())?;
    let reader = Reader::start(Kind::Pipe, processor, block, &reading, true)?;
    Ok((writing, reader))
}

/// Every block is written to every pipe.
pub(super) struct Written {
    pipes: Vec<File>,
    readers: Vec<Reader>,
    block: Vec<u8>,
}

impl Written {
    pub(super) fn new(block: usize, consumers: usize, processor: usize) -> Result<Self, String> {
        let (mut pipes, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..consumers {
            let (pipe, reader) = consumer(block, processor)?;
            pipes.push(pipe.into());
            readers.push(reader);
        }
        Ok(Self { pipes, readers, block: vec![7; block] })
    }
}

impl Mover for Written {
    fn block(&self) -> usize {
        self.block.len()
    }

    fn go(&mut self, blocks: u64) -> Result<u64, String> {
        for reader in &mut self.readers {
            reader.expect(blocks * self.block.len() as u64)?;
        }
        let own = sys::clock::thread();
        for _ in 0..blocks {
            for pipe in &mut self.pipes {
                pipe.write_all(std::hint::black_box(&self.block)).map_err(|why| why.to_string())?;
            }
        }
        let own = sys::clock::thread() - own;
        self.readers.iter_mut().try_for_each(Reader::done)?;
        Ok(own)
    }
}

/// Blocks are written once, into a pipe of our own; from there a copy of the pages goes to each
/// consumer, pipe by pipe, and the pages themselves to the last one.
pub(super) struct Teed {
    /// Where the producer writes.
    first: File,
    /// The other end of the pipe before, the pipe of the consumer, and the way on.
    stages: Vec<Stage>,
    readers: Vec<Reader>,
    block: Vec<u8>,
}

struct Stage {
    from: OwnedFd,
    copy: Option<OwnedFd>,
    on: OwnedFd,
}

/// What is written before it is passed on: what a pipe holds.
const PIPE: usize = 64 << 10;

impl Teed {
    pub(super) fn new(block: usize, consumers: usize, processor: usize) -> Result<Self, String> {
        let own = || sys::descriptor::pipe().map_err(|why| why.to_string());
        let (mut from, first) = own()?;
        let (mut stages, mut readers) = (Vec::new(), Vec::new());
        for left in (1..=consumers).rev() {
            let (pipe, reader) = consumer(block, processor)?;
            readers.push(reader);
            if left == 1 {
                // The last one gets the pages.
                let copy = None;
                stages.push(Stage { from, copy, on: pipe });
                break;
            }
            let (next, on) = own()?;
            stages.push(Stage { from, copy: Some(pipe), on });
            from = next;
        }
        Ok(Self { first: first.into(), stages, readers, block: vec![7; block] })
    }

    /// Passes on what was written.
    fn pass(&self, length: usize) -> Result<(), String> {
        for stage in &self.stages {
            let mut left = length;
            while left > 0 {
                let flags = SpliceFlags::empty();
                let copied = match &stage.copy {
                    Some(copy) => tee(&stage.from, copy, left, flags).map_err(|e| e.to_string())?,
                    None => left,
                };
                let mut to_move = copied;
                while to_move > 0 {
                    to_move -= splice(&stage.from, None, &stage.on, None, to_move, flags)
                        .map_err(|e| e.to_string())?;
                }
                left -= copied;
            }
        }
        Ok(())
    }
}

impl Mover for Teed {
    fn block(&self) -> usize {
        self.block.len()
    }

    fn go(&mut self, blocks: u64) -> Result<u64, String> {
        for reader in &mut self.readers {
            reader.expect(blocks * self.block.len() as u64)?;
        }
        let own = sys::clock::thread();
        let mut held = 0;
        for _ in 0..blocks {
            // A page is taken for what is left of it once it was passed on: half a pipe is safe.
            if held > 0 && held + self.block.len() > PIPE / 2 {
                self.pass(held)?;
                held = 0;
            }
            self.first.write_all(std::hint::black_box(&self.block)).map_err(|e| e.to_string())?;
            held += self.block.len();
        }
        self.pass(held)?;
        let own = sys::clock::thread() - own;
        self.readers.iter_mut().try_for_each(Reader::done)?;
        Ok(own)
    }
}
