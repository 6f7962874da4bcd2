//! Pipes of Linux: one for each consumer, written to n times, or filled by tee(2) and splice(2).

use super::Mover;
use super::reader::{Kind, Reader, move_to};
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
        move_to(&self.readers, blocks * self.block.len() as u64, || {
            for _ in 0..blocks {
                for mut pipe in &self.pipes {
                    pipe.write_all(std::hint::black_box(&self.block)).map_err(|e| e.to_string())?;
                }
            }
            Ok(())
        })
    }
}

/// Blocks are written once, into a pipe of our own; from there a copy of the pages goes to each
/// consumer, pipe by pipe, and the pages themselves to the last one.
pub(super) struct Teed {
    /// The pipe of the producer.
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

/// The bytes written before they are passed on: the size of a pipe.
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
        move_to(&self.readers, blocks * self.block.len() as u64, || {
            let mut held = 0;
            for _ in 0..blocks {
                // A page that was passed on takes no more bytes: half a pipe is safe.
                if held > 0 && held + self.block.len() > PIPE / 2 {
                    self.pass(held)?;
                    held = 0;
                }
                let block = std::hint::black_box(&self.block);
                (&self.first).write_all(block).map_err(|e| e.to_string())?;
                held += self.block.len();
            }
            self.pass(held)
        })
    }
}
