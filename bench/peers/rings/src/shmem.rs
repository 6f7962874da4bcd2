//! The ring of shmem-ipc, with elements of 64 bytes. Its safe functions write and read one block at
//! a time. Its signals are not used.

use crate::between::{ReaderProcess, error_text, serve_requests};
use crate::{CAPACITY, Transfer, wait};
use shmem_ipc::sharedring::{Receiver, Sender};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;

/// An element of the ring, of the size of a cache line. The size of a block is a multiple of the
/// element's size.
type CacheLine = [u8; 64];

/// Number of elements that the ring holds.
const LINES_IN_RING: usize = CAPACITY / size_of::<CacheLine>();

fn lines_per_block(block: usize) -> usize {
    block / size_of::<CacheLine>()
}

/// Runs the process that reads the ring in the file `path`, on 1 or 2 processors (`cores`), for
/// blocks of `block` bytes.
pub(crate) fn run_reader(cores: usize, block: usize, path: &str) -> Result<(), String> {
    let open = || File::options().read(true).write(true).open(path);
    // Replaces the two signal descriptors, which are never read.
    let nothing = || File::open("/dev/null");
    let (ring, empty, full) = (
        open().map_err(error_text)?,
        nothing().map_err(error_text)?,
        nothing().map_err(error_text)?,
    );
    let mut receiver =
        Receiver::<CacheLine>::open(LINES_IN_RING, ring, empty, full).map_err(error_text)?;
    let mut out = vec![[0; 64]; lines_per_block(block)];
    serve_requests(cores, |blocks| {
        for _ in 0..blocks {
            let mut to = out.iter_mut();
            while to.len() > 0 {
                let receiver = receiver.receiver_mut();
                if receiver.read_count().map_err(error_text)? == 0 {
                    wait(cores);
                    continue;
                }
                // The closure is called only for available elements.
                receiver.recv_foreach(to.len(), |line| {
                    if let Some(to) = to.next() {
                        *to = line;
                    }
                });
            }
            black_box(&mut out);
        }
        Ok(())
    })
}

/// Starts the reading process, and returns a function that transfers blocks to the process.
pub(crate) fn start(cores: usize, block: usize) -> Result<Transfer, String> {
    let mut sender = Sender::<CacheLine>::new(LINES_IN_RING).map_err(error_text)?;
    let descriptor = sender.memfd().as_file().as_raw_fd();
    let path = format!("/proc/{}/fd/{descriptor}", std::process::id());
    let other = ReaderProcess::start("shmem-ipc", cores, block, &path)?;
    let data = vec![[7; 64]; lines_per_block(block)];
    Ok(other.into_transfer(move |blocks| {
        for _ in 0..blocks {
            let mut from = black_box(&data).iter();
            while from.len() > 0 {
                let sender = sender.sender_mut();
                if sender.write_count().map_err(error_text)? == 0 {
                    wait(cores);
                    continue;
                }
                sender.send_foreach(from.len(), || from.next().copied().unwrap_or([0; 64]));
            }
        }
        Ok(())
    }))
}
