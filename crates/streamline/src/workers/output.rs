//! Merging of the workers' output into one standard output, without splitting blocks.
//!
//! The standard output of each worker is a socket that preserves message boundaries; a thread
//! copies all messages to this process's standard output. A sink flushes at the end of a block, and
//! the last message of each flush is marked (`endpoint::sink::out`). The order of blocks from
//! different workers is undefined; the blocks of one session are printed by one worker and keep
//! their order. If a worker is killed, its incomplete block is discarded.

use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use sys::descriptor;

/// Maximum length of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The thread that merges the workers' output.
#[derive(Debug)]
pub(crate) struct WorkerOutput(JoinHandle<Option<ErrorKind>>);

impl WorkerOutput {
    /// Starts the thread that merges the output of the workers, given their output sockets. The
    /// thread ends once all sockets have reached end of file.
    pub(super) fn start(engines: Vec<OwnedFd>) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new().name("output".to_owned());
        thread.spawn(move || merge_worker_outputs(engines)).map(Self)
    }

    /// Blocks until the output of all workers has been written. Returns the kind of the error if a
    /// write failed; otherwise returns `None`.
    pub(super) fn wait(self) -> Option<ErrorKind> {
        self.0.join().unwrap_or(None)
    }
}

fn merge_worker_outputs(engines: Vec<OwnedFd>) -> Option<ErrorKind> {
    let mut engines: Vec<(OwnedFd, Vec<u8>)> =
        engines.into_iter().map(|socket| (socket, Vec::new())).collect();
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut stdout = std::io::stdout().lock();
    while !engines.is_empty() {
        let sockets: Vec<_> = engines.iter().map(|(socket, _)| socket.as_fd()).collect();
        let ready = sys::poll::wait_until_readable_despite_signals(&sockets, None);
        for at in (0..engines.len()).rev().filter(|at| ready.get(*at) == Some(&true)) {
            let (socket, pending) = &mut engines[at];
            let got = descriptor::receive(&*socket, &mut message).map(|(length, _)| length);
            let Some((last, bytes)) = got.ok().and_then(|n| message.get(..n)?.split_first()) else {
                drop(engines.remove(at));
                continue;
            };
            pending.extend_from_slice(bytes);
            if *last == 0 {
                continue;
            }
            let written = stdout.write_all(pending).and_then(|()| stdout.flush());
            pending.clear();
            if let Err(error) = written {
                // Returning closes the sockets, so the workers' sinks see a broken pipe.
                return Some(error.kind());
            }
        }
    }
    None
}
