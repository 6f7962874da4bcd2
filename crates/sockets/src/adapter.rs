//! The adapter, a process that copies the bytes of a ring into a new pipe. A reader of a ring
//! starts an adapter before it forks, executes another program or waits for several descriptors,
//! and then reads only the pipe.
//!
//! The adapter owns the read end of the old pipe and the ring, and reads both in the same order as
//! any reader (`reading`). It writes into a new pipe, which replaces the old pipe in every
//! descriptor of the program. No process can wait for the adapter, because it has no exit signal
//! and its parent exits immediately. The adapter blocks all signals. It exits at the end of the
//! stream, or when the new pipe has no reader. In the latter case, the writer of the stream finds
//! that its reader has ended.

use crate::pointer::RingInput;
use buffer::stream::WaitResult;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;
use sys::preload;

/// The maximum size of one read, in bytes.
const READ_BYTES_MAX: usize = 64 << 10;

/// Starts an adapter, which copies the rest of a stream from its ring and old pipe into a new pipe.
/// Makes the descriptors `numbers`, read ends of the old pipe, refer to the new pipe. Returns the
/// ring if no adapter can be started.
pub(crate) fn start(input: Box<RingInput>, numbers: &[i32]) -> Result<(), Box<RingInput>> {
    let Some(old) = numbers.first().copied() else { return Ok(()) };
    let Ok((from, to)) = sys::descriptor::pipe() else { return Err(input) };
    match preload::fork_detached() {
        Ok(preload::ForkSide::Parent) => {}
        Ok(preload::ForkSide::Child) => {
            let mut keep = input.descriptors();
            keep.extend([old, to.as_raw_fd()]);
            preload::close_descriptors_except(&mut keep);
            copy_ring_to_descriptor(input, old, &to);
            preload::exit_immediately(0);
        }
        Err(_) => return Err(input),
    }
    drop(to);
    numbers.iter().for_each(|number| preload::replace_descriptor(*number, from.as_fd()));
    // The ring now belongs to the adapter. This process must neither announce that the reader left
    // nor keep the doorbell open.
    let doorbell = input.doorbell();
    std::mem::forget(input);
    preload::close(doorbell);
    Ok(())
}

/// Copies the rest of a stream to `to`: the bytes in the ring `input`, and those in the pipe with
/// the descriptor `old`. Returns at the end of the stream, or when `to` has no reader.
fn copy_ring_to_descriptor(mut input: Box<RingInput>, old: i32, to: &OwnedFd) {
    let mut room = vec![0; READ_BYTES_MAX];
    // Copies the bytes that were written into the pipe before the ring was created.
    while preload::pipe_bytes_available(old) > 0 {
        if !copy_available_bytes(old, to, &mut room) {
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
                let Some(pipe) = preload::borrow_descriptor(old) else { return };
                let waited = input.wait_beside(&[pipe, to.as_fd()]);
                if waited == Ok(WaitResult::Ready) {
                    continue;
                }
                let Some([pipe_events, reader_events]) =
                    preload::poll_pair([old, to.as_raw_fd()], false)
                else {
                    continue;
                };
                if reader_events.closed {
                    return;
                }
                // Bytes that arrive in the pipe are newer than all bytes in the ring.
                match input.wait(Some(Duration::ZERO)) {
                    Ok(WaitResult::Ready) => {}
                    _ if pipe_events.readable && !copy_available_bytes(old, to, &mut room) => {
                        return;
                    }
                    _ if pipe_events.closed && !pipe_events.readable => break,
                    _ => {}
                }
            }
        }
    }
    drop(input);
    loop {
        match preload::poll_pair([old, to.as_raw_fd()], true) {
            Some([_, reader_events]) if reader_events.closed => return,
            Some([pipe_events, _]) if pipe_events.readable || pipe_events.closed => {
                match copy_available_bytes(old, to, &mut room) {
                    true => {}
                    false => return,
                }
            }
            _ => {}
        }
    }
}

/// Reads once from the pipe with the descriptor `old`, and writes the bytes to `to`. `room` is the
/// buffer for the bytes. Returns false at the end of the pipe, after a failed read, or if `to` has
/// no reader.
fn copy_available_bytes(old: i32, to: &OwnedFd, room: &mut [u8]) -> bool {
    let count = preload::read_retrying_interrupts(old, room);
    count > 0 && preload::write_all(to, room.get(..count).unwrap_or_default())
}
