//! The ring of ipmpsc, with byte messages that bincode serializes. The reader borrows a message in
//! place and then copies it. If there is no space, the writer sleeps until the reader wakes it.

use crate::between::{ReaderProcess, error_text, serve_requests};
use crate::{CAPACITY, Transfer, wait};
use ipmpsc::{Receiver, Sender, SharedRingBuffer};
use serde_bytes::Bytes;
use std::hint::black_box;

/// Runs the process that reads the ring in the file `path`, on 1 or 2 processors (`cores`), for
/// blocks of `block` bytes.
pub(crate) fn run_reader(cores: usize, block: usize, path: &str) -> Result<(), String> {
    let mut receiver = Receiver::new(SharedRingBuffer::open(path).map_err(error_text)?);
    let mut out = vec![0; block];
    serve_requests(cores, |blocks| {
        for _ in 0..blocks {
            loop {
                let mut context = receiver.zero_copy_context();
                if let Some(bytes) = context.try_recv::<&[u8]>().map_err(error_text)? {
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

/// Starts the reading process, and returns a function that transfers blocks to the process.
pub(crate) fn start(cores: usize, block: usize) -> Result<Transfer, String> {
    let size = u32::try_from(CAPACITY).map_err(error_text)?;
    let (path, ring) = SharedRingBuffer::create_temp(size).map_err(error_text)?;
    let sender = Sender::new(ring);
    let other = ReaderProcess::start("ipmpsc", cores, block, &path)?;
    // Both processes have the file open. If this process were killed, it could not remove the file
    // later.
    std::fs::remove_file(path).map_err(error_text)?;
    let data = vec![7; block];
    Ok(other.into_transfer(move |blocks| {
        for _ in 0..blocks {
            sender.send(&Bytes::new(black_box(&data))).map_err(error_text)?;
        }
        Ok(())
    }))
}
