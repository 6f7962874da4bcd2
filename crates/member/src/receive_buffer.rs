//! The buffer into which a thread receives messages. It is reused, because clearing a new buffer
//! for the longest message takes longer than most calls.

use crate::varlink::REPLY_BYTES_MAX;
use std::cell::RefCell;

thread_local! {
    static RECEIVE_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `receive` with the buffer of this thread, which has room for the longest message and may
/// contain bytes of earlier messages.
pub(crate) fn with_receive_buffer<T>(receive: impl FnOnce(&mut [u8]) -> T) -> T {
    RECEIVE_BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.resize(REPLY_BYTES_MAX, 0);
            receive(&mut buffer)
        }
        // The buffer is in use, because a message is received while another one is read.
        Err(_) => receive(&mut vec![0; REPLY_BYTES_MAX]),
    })
}
