//! shmem-ipc: a ring of lines of 64 bytes, filled and emptied by its safe calls, a whole block each
//! time. Nobody asks for its signals.

use crate::between::{Other, read, text};
use crate::{CAPACITY, Mover, wait};
use shmem_ipc::sharedring::{Receiver, Sender};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;

/// One element of the ring; every block is a whole number of them.
type Line = [u8; 64];

const LINES: usize = CAPACITY / size_of::<Line>();

fn lines(block: usize) -> usize {
    block / size_of::<Line>()
}

/// The process that reads.
pub(crate) fn reader(cores: usize, block: usize, path: &str) -> Result<(), String> {
    let open = || File::options().read(true).write(true).open(path);
    // In the place of the two signals, which are never looked at.
    let nothing = || File::open("/dev/null");
    let (ring, empty, full) =
        (open().map_err(text)?, nothing().map_err(text)?, nothing().map_err(text)?);
    let mut receiver = Receiver::<Line>::open(LINES, ring, empty, full).map_err(text)?;
    let mut out = vec![[0; 64]; lines(block)];
    read(cores, |blocks| {
        for _ in 0..blocks {
            let mut to = out.iter_mut();
            while to.len() > 0 {
                let receiver = receiver.receiver_mut();
                if receiver.read_count().map_err(text)? == 0 {
                    wait(cores);
                    continue;
                }
                // It calls for no more lines than there are.
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

/// The process that writes.
pub(crate) fn writer(cores: usize, block: usize) -> Result<Mover, String> {
    let mut sender = Sender::<Line>::new(LINES).map_err(text)?;
    let descriptor = sender.memfd().as_file().as_raw_fd();
    let path = format!("/proc/{}/fd/{descriptor}", std::process::id());
    let other = Other::start("shmem-ipc", cores, block, &path)?;
    let data = vec![[7; 64]; lines(block)];
    Ok(other.mover(move |blocks| {
        for _ in 0..blocks {
            let mut from = black_box(&data).iter();
            while from.len() > 0 {
                let sender = sender.sender_mut();
                if sender.write_count().map_err(text)? == 0 {
                    wait(cores);
                    continue;
                }
                sender.send_foreach(from.len(), || from.next().copied().unwrap_or([0; 64]));
            }
        }
        Ok(())
    }))
}
