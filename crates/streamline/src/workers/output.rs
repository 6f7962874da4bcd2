//! Output of all workers on the one standard output: whole blocks, never torn.
//!
//! In: the standard output of each worker, a socket that keeps messages. Out: ours. A sink writes
//! when its buffer is full, at the end of a block; so what it writes at once are whole blocks, and
//! the last message of them says so (`endpoint::sink::out`). Blocks of two workers have no order
//! among each other, but those of a session, which come from one of them, keep theirs. Of a worker
//! that was killed in the middle of a block that block is left out.

use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use sys::descriptor;

/// Bytes of the longest message.
const MESSAGE: usize = 64 << 10;

/// The thread that joins what workers print.
#[derive(Debug)]
pub(crate) struct Output(JoinHandle<Option<ErrorKind>>);

impl Output {
    /// Begins; ends when all of these sockets have.
    pub(super) fn begin(engines: Vec<OwnedFd>) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new().name("output".to_owned());
        thread.spawn(move || join(engines)).map(Self)
    }

    /// Waits until everything printed is written; returns the error if that failed.
    pub(super) fn end(self) -> Option<ErrorKind> {
        self.0.join().unwrap_or(None)
    }
}

fn join(engines: Vec<OwnedFd>) -> Option<ErrorKind> {
    let mut engines: Vec<(OwnedFd, Vec<u8>)> =
        engines.into_iter().map(|socket| (socket, Vec::new())).collect();
    let mut message = vec![0; MESSAGE];
    let mut stdout = std::io::stdout().lock();
    while !engines.is_empty() {
        let sockets: Vec<_> = engines.iter().map(|(socket, _)| socket.as_fd()).collect();
        let ready = sys::poll::readable_within(&sockets, None);
        for at in (0..engines.len()).rev().filter(|at| ready.get(*at) == Some(&true)) {
            let (socket, under_way) = &mut engines[at];
            let got = descriptor::receive(&*socket, &mut message).map(|(length, _)| length);
            let Some((last, bytes)) = got.ok().and_then(|n| message.get(..n)?.split_first()) else {
                drop(engines.remove(at));
                continue;
            };
            under_way.extend_from_slice(bytes);
            if *last == 0 {
                continue;
            }
            let written = stdout.write_all(under_way).and_then(|()| stdout.flush());
            under_way.clear();
            if let Err(error) = written {
                // The sockets go: sinks see that nobody reads any more.
                return Some(error.kind());
            }
        }
    }
    None
}
