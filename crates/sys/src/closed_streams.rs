//! Standard streams that were closed when the program started (`>&-` or `<&-` in a shell).
//!
//! Before `main`, the standard library opens `/dev/null` in place of a closed standard stream, so
//! that no other file gets its descriptor number. Without further measures, output would then be
//! lost without an error, and input would seem to be empty.

use crate::error::{ErrorContext as _, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static INPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);
static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Registers [`note_closed_streams`] with the loader, which calls all functions in this linker
/// section before the standard library is initialized.
// The attribute is sound: the section contains pointers to functions of this type, which the loader
// calls once, in one thread. At that time the standard library is not initialized, but the function
// only makes two system calls.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED_STREAMS: extern "C" fn() = note_closed_streams;

extern "C" fn note_closed_streams() {
    let is_closed = |fd| rustix::io::fcntl_getfd(fd).is_err();
    INPUT_WAS_CLOSED.store(is_closed(rustix::stdio::stdin()), Ordering::Relaxed);
    OUTPUT_WAS_CLOSED.store(is_closed(rustix::stdio::stdout()), Ordering::Relaxed);
}

/// Makes reads from standard input and writes to standard output fail if the stream was closed when
/// the program started. Replaces the closed stream with the write end of a pipe that has no reader.
/// Called at the beginning of `main`.
pub fn replace_closed_standard_streams() -> Result<()> {
    std::hint::black_box(&NOTE_CLOSED_STREAMS);
    if INPUT_WAS_CLOSED.load(Ordering::Relaxed) {
        let (_, write_end) = rustix::pipe::pipe().context("pipe", "standard input")?;
        rustix::stdio::dup2_stdin(write_end).context("dup2", "standard input")?;
    }
    if OUTPUT_WAS_CLOSED.load(Ordering::Relaxed) {
        let (_, write_end) = rustix::pipe::pipe().context("pipe", "standard output")?;
        rustix::stdio::dup2_stdout(write_end).context("dup2", "standard output")?;
    }
    Ok(())
}
