//! ipmpsc: byte messages, serialized by bincode, borrowed in place and then copied out. A writer
//! without space sleeps until its reader wakes it, as the library provides.

use crate::between::{ReaderProcess, read, text};
use crate::{CAPACITY, Mover, wait};
use ipmpsc::{Receiver, Sender, SharedRingBuffer};
use serde_bytes::Bytes;
use std::hint::black_box;

/// Runs the reading process.
pub(crate) fn reader(cores: usize, block: usize, path: &str) -> Result<(), String> {
    let mut receiver = Receiver::new(SharedRingBuffer::open(path).map_err(text)?);
    let mut out = vec![0; block];
    read(cores, |blocks| {
        for _ in 0..blocks {
            loop {
                let mut context = receiver.zero_copy_context();
                if let Some(bytes) = context.try_recv::<&[u8]>().map_err(text)? {
                    out.copy_from_slice(bytes);
                    black_box(&mut out);
                    break;
                }
                wait(cores);
            }
        }
        Ok(())
    })
}

/// Starts the reader and returns the mover of the writing process.
pub(crate) fn writer(cores: usize, block: usize) -> Result<Mover, String> {
    let size = u32::try_from(CAPACITY).map_err(text)?;
    let (path, ring) = SharedRingBuffer::create_temp(size).map_err(text)?;
    let sender = Sender::new(ring);
    let other = ReaderProcess::start("ipmpsc", cores, block, &path)?;
    // Both processes have the file open. A killed process could not remove it later.
    std::fs::remove_file(path).map_err(text)?;
    let data = vec![7; block];
    Ok(other.mover(move |blocks| {
        for _ in 0..blocks {
            sender.send(&Bytes::new(black_box(&data))).map_err(text)?;
        }
        Ok(())
    }))
}
