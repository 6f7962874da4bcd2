//! Calls over one connection, with timeouts.

use super::error::{ClientError, ECONNRESET, EPIPE};
use crate::receive_buffer::with_receive_buffer;
use crate::varlink::{Call, Fault, REPLY_MAX, Reply};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::local_socket;

/// Timeout of a call; [`LONG_TIMEOUT`] applies to expensive calls.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an expensive call. Spaces reply only between two batches, the kernel takes time to
/// verify programs, and earlier calls may be queued.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection for calls, one at a time.
///
/// After a timeout, the connection is unusable, because a late reply would be taken for the reply
/// to the next call. All further calls fail with [`ClientError::Timeout`].
#[derive(Debug)]
pub(crate) struct Caller {
    socket: OwnedFd,
    overdue: AtomicBool,
}

impl Caller {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, overdue: AtomicBool::new(false) }
    }

    /// Limits the time for which each send and each receive may block. A limit below 1 ms counts as
    /// 1 ms.
    pub(super) fn set_timeout(&self, limit: Duration) -> Result<(), ClientError> {
        Ok(local_socket::set_timeouts(&self.socket, limit.max(Duration::from_millis(1)))?)
    }

    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(&Call::new(method, parameters), &[])?;
        self.result()
    }

    /// Receives the result of the last call. Blocks and fails as
    /// [`receive_reply`](Self::receive_reply) does.
    pub(crate) fn result<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        self.receive_with(|bytes, _| read_result(bytes))
            .inspect_err(|error| self.note_timeout(error))
    }

    /// Receives the next result of a call that may have several, and true if more follow. Blocks
    /// and fails as [`receive_reply`](Self::receive_reply) does.
    pub(super) fn receive_next_result<T: DeserializeOwned>(
        &self,
    ) -> Result<(T, bool), ClientError> {
        let (reply, _) = self.receive_reply()?;
        let continues = reply.continues;
        Ok((reply.deserialize_result()?, continues))
    }

    /// Calls a method with the timeout [`LONG_TIMEOUT`].
    pub(super) fn call_long<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.set_timeout(LONG_TIMEOUT)?;
        let answer = self.call(method, parameters);
        self.set_timeout(CALL_TIMEOUT)?;
        answer
    }

    pub(crate) fn send(
        &self,
        call: &Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        if self.overdue.load(Ordering::Relaxed) {
            return Err(ClientError::Timeout);
        }
        match sys::descriptor::send(&self.socket, &call.to_bytes(), descriptors) {
            // A peer that closed the connection may have sent the reason first, which can still be
            // received.
            Err(error) if error.errno == EPIPE => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Receives the reply to the last call, with its descriptors. Blocks for at most the socket's
    /// timeout. Fails if the reply is an error.
    pub(crate) fn receive_reply(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.receive().inspect_err(|error| self.note_timeout(error))
    }

    fn note_timeout(&self, error: &ClientError) {
        if matches!(error, ClientError::Timeout) {
            self.overdue.store(true, Ordering::Relaxed);
        }
    }

    /// Receives the next update of a subscription. A timeout leaves the connection usable, unlike
    /// in [`receive_reply`](Self::receive_reply), because an update may take a long time to arrive.
    pub(super) fn receive(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.receive_with(|bytes, descriptors| Ok((read_reply(bytes)?, descriptors)))
    }

    /// Receives a message, and passes it to `read` with its descriptors.
    fn receive_with<T>(
        &self,
        read: impl FnOnce(&[u8], Vec<OwnedFd>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        with_receive_buffer(|bytes| {
            let received = match sys::descriptor::receive(&self.socket, bytes) {
                // If the peer closes its end with unread data, the next call returns ECONNRESET
                // once, before any queued data (unix(7)).
                Err(error) if error.errno == ECONNRESET => {
                    sys::descriptor::receive(&self.socket, bytes)
                }
                received => received,
            };
            let (length, descriptors) = received?;
            if length == 0 {
                return Err(ClientError::Disconnected);
            }
            read(bytes.get(..length).unwrap_or_default(), descriptors)
        })
    }
}

/// A reply whose parameters are parsed directly as the result of the call.
#[derive(Deserialize)]
struct DirectReply<T> {
    parameters: T,
    error: Option<String>,
}

/// Beginning of the replies that this library sends.
const REPLY_START: &[u8] = b"{\"parameters\":{";

/// Parses the result of a call from the bytes of its reply: in one pass if the reply has the form
/// in which this library writes a result. Fails if the reply is an error.
fn read_result<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ClientError> {
    if bytes.len() <= REPLY_MAX
        && bytes.starts_with(REPLY_START)
        && let Ok(DirectReply { parameters, error: None }) = serde_json::from_slice(bytes)
    {
        return Ok(parameters);
    }
    let reply = read_reply(bytes)?;
    Ok(reply.deserialize_result()?)
}

/// Reads a reply. Fails if it is an error.
fn read_reply(bytes: &[u8]) -> Result<Reply, ClientError> {
    let reply = Reply::read(bytes)?;
    match Fault::from_reply(&reply) {
        Some(fault) => Err(ClientError::Refused(fault)),
        None => Ok(reply),
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NoParameters, PathNumber};

    #[test]
    fn result_is_read_in_one_pass_or_as_any_other_reply() {
        let read = |text: &str| read_result::<PathNumber>(text.as_bytes());
        let seven = PathNumber { number: 7 };
        for text in [
            r#"{"parameters":{"number":7}}"#,
            r#"{"parameters":{"number":7},"error":null,"continues":false}"#,
            r#"{ "continues": false, "parameters" : { "number": 7 } }"#,
        ] {
            assert_eq!(read(text).unwrap(), seven, "{text}");
        }
        for text in [
            r#"{"parameters":{"number":7},"error":"a.b.C"}"#,
            r#"{"error":"a.b.C","parameters":{"number":7}}"#,
        ] {
            let error = read(text).unwrap_err();
            assert!(matches!(&error, ClientError::Refused(fault) if fault.name == "a.b.C"));
        }
        for text in [
            r#"{"parameters":[7]}"#,
            r#"{"parameters":{"number":"x"}}"#,
            r#"{"parameters":{"number":7}"#,
            "{}",
        ] {
            assert!(matches!(read(text), Err(ClientError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn late_reply_is_not_taken_for_the_reply_to_the_next_call() {
        let (own_end, peer_end) = sys::descriptor::pair().unwrap();
        let caller = Caller::new(own_end);
        caller.set_timeout(Duration::ZERO).unwrap();
        let call = || caller.call::<PathNumber>("a.b.C", &NoParameters {});
        assert_eq!(call().unwrap_err(), ClientError::Timeout);
        sys::descriptor::send(&peer_end, br#"{"parameters":{"number":1}}"#, &[]).unwrap();
        assert_eq!(call().unwrap_err(), ClientError::Timeout);
    }
}
