//! A stream that is poured into a pipe again, by a process of its own: for readers who fork,
//! replace themselves or wait for several descriptors while they have a ring.
//!
//! The process that pours has the reading end of the old pipe and the ring, takes from them in the
//! order in which any reader does (`reading`), and writes into a new pipe, which takes the place of
//! the old one in every descriptor of the program. It is nobody's child that could be waited for
//! (no exit signal, and its parent is gone at once), blocks all signals, and ends when the stream
//! has ended or nobody reads the new pipe any more; then the writer of the stream sees that nobody
//! reads.

use buffer::stream::{Input, Ready};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;
use sys::preload;

/// Bytes that are moved at once.
const CHUNK: usize = 64 << 10;

/// Has the rest of the stream come out of the descriptors `numbers`, which are ends of the pipe
/// that belongs to it. Gives the ring back where that cannot be done.
pub(crate) fn pour(input: Box<Input>, numbers: &[i32]) -> Result<(), Box<Input>> {
    let Some(old) = numbers.first().copied() else { return Ok(()) };
    let Ok((from, to)) = sys::descriptor::pipe() else { return Err(input) };
    match preload::fork_detached() {
        Ok(preload::ForkSide::Parent) => {}
        Ok(preload::ForkSide::Child) => {
            let keep = [old, to.as_raw_fd(), input.as_fd().as_raw_fd()];
            preload::close_others(keep);
            run(input, old, &to);
            preload::exit(0);
        }
        Err(_) => return Err(input),
    }
    drop(to);
    numbers.iter().for_each(|number| preload::replace(*number, from.as_fd()));
    // The ring belongs to the other process now: here nobody says that its reader has left, and
    // nobody holds its bell.
    let bell = input.as_fd().as_raw_fd();
    std::mem::forget(input);
    preload::close(bell);
    Ok(())
}

/// Pours until the end.
fn run(mut input: Box<Input>, old: i32, to: &OwnedFd) {
    let mut room = vec![0; CHUNK];
    // What was in the pipe before the ring came to be.
    while preload::bytes_waiting(old) > 0 {
        if !move_some(old, to, &mut room) {
            return;
        }
    }
    loop {
        match input.try_read(&mut room) {
            Ok(Some(0)) | Err(_) => break,
            Ok(Some(count)) => {
                if !preload::write_all(to, room.get(..count).unwrap_or_default()) {
                    return;
                }
            }
            Ok(None) => {
                let Some(pipe) = preload::borrow(old) else { return };
                let waited = input.wait_beside(&[pipe, to.as_fd()], None);
                if waited == Ok(Ready::Something) {
                    continue;
                }
                let Some([seen, there]) = preload::poll_pair([old, to.as_raw_fd()], false) else {
                    continue;
                };
                if there.over {
                    return;
                }
                // What came into the pipe is newer than all that was in the ring.
                match input.wait(Some(Duration::ZERO)) {
                    Ok(Ready::Something) => {}
                    _ if seen.readable && !move_some(old, to, &mut room) => return,
                    _ if seen.over && !seen.readable => break,
                    _ => {}
                }
            }
        }
    }
    drop(input);
    loop {
        match preload::poll_pair([old, to.as_raw_fd()], true) {
            Some([_, there]) if there.over => return,
            Some([seen, _]) if seen.readable || seen.over => match move_some(old, to, &mut room) {
                true => {}
                false => return,
            },
            _ => {}
        }
    }
}

/// Moves what the pipe gives; false at its end, or where nobody reads.
fn move_some(old: i32, to: &OwnedFd, room: &mut [u8]) -> bool {
    let count = preload::read_some(old, room);
    count > 0 && preload::write_all(to, room.get(..count).unwrap_or_default())
}
