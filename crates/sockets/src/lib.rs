//! `libstreamline_sockets.so`: loaded before a program (`LD_PRELOAD`), it lets the program use
//! Streamline buffers through the calls that it makes anyway. [SL §5.1, §5.3.3, §9.2.4]
//!
//! What a program sees is what it would see without: an edge of a pipeline is a kernel pipe, and
//! stays one. Beside the pipe there may be a *ring*: two programs of which one has written, and the
//! other read, enough in large pieces meet at a socket that the launcher has given to both (`abi`,
//! `edge`), and go on in memory that they share. The pipe still says who is there: its end, its
//! `SIGPIPE`, its answer to `fstat`, `lseek` and `kill -9` are the kernel's.
//!
//! ```text
//!         write(1) ──► [ pipe, as long as it is a little ] ──► read(0)
//!                 └──► [ ring, behind what is in the pipe ] ──┘
//! ```
//!
//! Order. A writer that has a ring writes nothing into the pipe; before each write it looks whether
//! somebody else has (its own stdio, which no library sees), and if so closes the ring for ever and
//! goes on in the pipe. A reader that was offered a ring reads the pipe until it is empty, then the
//! ring until that is closed, then the pipe again. So nothing overtakes anything (`reading`,
//! `writing`).
//!
//! Whoever does what this library does not follow (forks, replaces itself, waits for several
//! descriptors, splices) has a pipe from then on: it shuts the meeting place, after which no ring
//! can come to be, and a ring that is there is closed, or, on the reading side, poured into a new
//! pipe by a process of its own (`adapter`).
//!
//! Invariants. Calls on other descriptors go to the C library as they came; so does everything when
//! something here fails. `errno` is what the call that was made says. A signal handler may call any
//! function here: one that interrupts this library in the same thread gets the kernel's pipe.
#![deny(unsafe_code)]

mod adapter;
mod ends;
#[expect(unsafe_code, reason = "functions that C programs call, and those behind them")]
pub mod export;
mod lazy;
mod reading;
mod retire;
mod writing;
