//! Complete writes to a descriptor: plain bytes, or messages to a socket that preserves message
//! boundaries.

use crate::stop_limit::StopFlag;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;

/// Maximum payload, in bytes, of one message to a socket that preserves message boundaries.
pub(super) const MESSAGE_PAYLOAD_MAX: usize = 32 * 1024;

/// Writes all bytes, and blocks until they have been written. If the descriptor is nonblocking,
/// `limit` bounds the wait. Returns the number of bytes written, and the error that stopped the
/// write, if any.
pub(super) fn write_all(
    file: &mut File,
    bytes: &[u8],
    limit: &StopFlag,
) -> (usize, io::Result<()>) {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let problem = match file.write(rest) {
            Ok(0) => ErrorKind::WriteZero.into(),
            Ok(count) => {
                done += count;
                continue;
            }
            Err(error) => error,
        };
        match problem.kind() {
            ErrorKind::Interrupted => {}
            ErrorKind::WouldBlock => match limit.wait_until_writable(file.as_fd()) {
                Ok(()) => {}
                Err(error) => return (done, Err(error)),
            },
            _ => return (done, Err(problem)),
        }
    }
    (done, Ok(()))
}

/// Writes all bytes as messages, the last of which is marked as the end of a block. Returns the
/// number of bytes written, and the error that stopped the write, if any.
pub(super) fn write_messages(
    file: &mut File,
    bytes: &[u8],
    limit: &StopFlag,
) -> (usize, io::Result<()>) {
    let mut message = Vec::with_capacity(MESSAGE_PAYLOAD_MAX + 1);
    let mut done = 0;
    for piece in bytes.chunks(MESSAGE_PAYLOAD_MAX) {
        message.clear();
        message.push(u8::from(done + piece.len() == bytes.len()));
        message.extend_from_slice(piece);
        if let (_, Err(error)) = write_all(file, &message, limit) {
            return (done, Err(error));
        }
        done += piece.len();
    }
    (done, Ok(()))
}
