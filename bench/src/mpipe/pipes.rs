//! Linux pipes: one per consumer, written n times, or filled by tee(2) and splice(2).

use super::FanOut;
use super::reader::{ConsumerProcess, PipeKind, transfer_to_readers};
use rustix::pipe::{SpliceFlags, splice, tee};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// Creates a Linux pipe, and starts the consumer that reads it.
fn start_consumer(block: usize, processor: usize) -> Result<(OwnedFd, ConsumerProcess), String> {
    let (reading, writing) = sys::descriptor::pipe().map_err(|why| why.to_string())?;
    let reader = ConsumerProcess::start(PipeKind::Pipe, processor, block, &reading, true)?;
    Ok((writing, reader))
}

/// Linux pipes, one per consumer. The producer writes each block into all of them.
pub(super) struct SeparatePipes {
    pipes: Vec<File>,
    readers: Vec<ConsumerProcess>,
    block: Vec<u8>,
}

impl SeparatePipes {
    pub(super) fn new(block: usize, consumers: usize, processor: usize) -> Result<Self, String> {
        let (mut pipes, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..consumers {
            let (pipe, reader) = start_consumer(block, processor)?;
            pipes.push(pipe.into());
            readers.push(reader);
        }
        Ok(Self { pipes, readers, block: vec![7; block] })
    }
}

impl FanOut for SeparatePipes {
    fn block_size(&self) -> usize {
        self.block.len()
    }

    fn transfer(&mut self, blocks: u64) -> Result<u64, String> {
        transfer_to_readers(&self.readers, blocks * self.block.len() as u64, || {
            for _ in 0..blocks {
                for mut pipe in &self.pipes {
                    pipe.write_all(std::hint::black_box(&self.block)).map_err(|e| e.to_string())?;
                }
            }
            Ok(())
        })
    }
}

/// Linux pipes connected by a chain of stages, one for each consumer. The producer writes each
/// block once, into its own pipe. Each stage duplicates the pages for its consumer with tee(2), and
/// moves them to the next stage with splice(2). The last consumer receives the pages themselves.
pub(super) struct TeePipes {
    /// The pipe into which the producer writes, and from which the first stage takes the bytes.
    producer_pipe: File,
    /// The stages of the chain, one for each consumer.
    stages: Vec<TeeStage>,
    readers: Vec<ConsumerProcess>,
    block: Vec<u8>,
}

struct TeeStage {
    from: OwnedFd,
    copy: Option<OwnedFd>,
    on: OwnedFd,
}

/// Size of a Linux pipe in bytes. The producer writes at most half of this size before it passes
/// the bytes on.
const PIPE_SIZE: usize = 64 << 10;

impl TeePipes {
    pub(super) fn new(block: usize, consumers: usize, processor: usize) -> Result<Self, String> {
        let own = || sys::descriptor::pipe().map_err(|why| why.to_string());
        let (mut from, first) = own()?;
        let (mut stages, mut readers) = (Vec::new(), Vec::new());
        for left in (1..=consumers).rev() {
            let (pipe, reader) = start_consumer(block, processor)?;
            readers.push(reader);
            if left == 1 {
                // The last consumer receives the pages themselves.
                let copy = None;
                stages.push(TeeStage { from, copy, on: pipe });
                break;
            }
            let (next, on) = own()?;
            stages.push(TeeStage { from, copy: Some(pipe), on });
            from = next;
        }
        Ok(Self { producer_pipe: first.into(), stages, readers, block: vec![7; block] })
    }

    /// Passes the `length` bytes in the producer's pipe through all stages to the consumers.
    fn forward(&self, length: usize) -> Result<(), String> {
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

impl FanOut for TeePipes {
    fn block_size(&self) -> usize {
        self.block.len()
    }

    fn transfer(&mut self, blocks: u64) -> Result<u64, String> {
        transfer_to_readers(&self.readers, blocks * self.block.len() as u64, || {
            let mut held = 0;
            for _ in 0..blocks {
                // A page that was passed on accepts no more bytes, so only half of the pipe's size
                // is used.
                if held > 0 && held + self.block.len() > PIPE_SIZE / 2 {
                    self.forward(held)?;
                    held = 0;
                }
                let block = std::hint::black_box(&self.block);
                (&self.producer_pipe).write_all(block).map_err(|e| e.to_string())?;
                held += self.block.len();
            }
            self.forward(held)
        })
    }
}
