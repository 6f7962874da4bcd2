//! `libstreamline_sockets.so`, preloaded into a program (`LD_PRELOAD`): the program uses Streamline
//! buffers through its ordinary calls. [SL §5.1, §5.3.3, §9.2.4]
//!
//! The program observes no difference: an edge of a pipeline is a kernel pipe and stays a kernel
//! pipe. In addition to the pipe, there may be a *ring*. Once one program has written and the other
//! has read enough in large pieces, they exchange a ring over a socket that the launcher
//! (`streamline sh`) has passed to both (`abi::edge`) and continue in shared memory. The pipe still
//! represents the peer: end of file, `SIGPIPE` and the effects of `fstat`, `lseek` and `kill -9`
//! are those of the kernel.
//!
//! ```text
//!         write(1) ─┬─► [ pipe: the first bytes ] ─┬─► read(0)
//!                   └─► [ ring: all later bytes ] ─┘
//! ```
//!
//! Order is preserved. A writer with a ring writes nothing into the pipe. Before each write it
//! checks for bytes written into the pipe by other code (the program's stdio, which bypasses this
//! library); if there are any, it closes the ring permanently and returns to the pipe. A reader
//! that accepted a ring first drains the pipe, then reads the ring until it is closed, then the
//! pipe again (`reading`, `writing`).
//!
//! Before a call that this library does not emulate (fork, exec, waiting for several descriptors,
//! splice) the edge becomes a plain pipe permanently. The rendezvous socket is shut down, so that
//! no more rings can be offered. A writer closes its ring; the ring of a reader is drained into a
//! new pipe by a separate process (`adapter`).
//!
//! Invariants. Calls on other descriptors go to the C library unchanged, and so does every call
//! after a failure inside this library. `errno` is as the program's own call would leave it. A
//! signal handler may call any function of this library; if it interrupts a call in the same
//! thread, it uses the kernel pipe.
#![deny(unsafe_code)]

mod adapter;
mod counts;
mod edge_ends;
#[expect(unsafe_code, reason = "functions that C programs call, and those behind them")]
pub mod export;
mod forward;
mod lazy;
mod pointer;
mod reading;
mod rendezvous;
mod retire;
mod writing;
