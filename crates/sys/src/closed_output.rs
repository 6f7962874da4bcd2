//! A standard output that was closed when the program started (`>&-` in a shell).
//!
//! Before `main`, the standard library opens `/dev/null` in place of a closed standard stream, so
//! that no file of the program takes its number. What the program then prints would be lost without
//! an error.

use crate::error::{ErrorContext as _, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Registers [`record_closed_output`] with the loader, which calls the functions of this section
/// before the standard library is initialized.
// The attribute is safe: the section holds pointers to functions of this type, which the loader
// calls once, in one thread. The function needs nothing that is initialized later: it makes one
// system call.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_CLOSED_OUTPUT: extern "C" fn() = record_closed_output;

extern "C" fn record_closed_output() {
    let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Makes writes to standard output fail if it was closed when the program started: replaces it with
/// a pipe that has no reader. Call this at the beginning of `main`.
pub fn fail_if_closed() -> Result<()> {
    std::hint::black_box(&RECORD_CLOSED_OUTPUT);
    if WAS_CLOSED.load(Ordering::Relaxed) {
        let (_, write_end) = rustix::pipe::pipe().context("pipe", "standard output")?;
        rustix::stdio::dup2_stdout(write_end).context("dup2", "standard output")?;
    }
    Ok(())
}
