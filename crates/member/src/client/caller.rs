//! Calls over one connection, with timeouts.

use super::error::{ClientError, ECONNRESET, EPIPE};
use crate::receive_buffer::with_receive_buffer;
use crate::varlink::{Call, Fault, REPLY_BYTES_MAX, Reply};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use sys::local_socket;

/// Timeout of a call; [`EXPENSIVE_CALL_TIMEOUT`] applies to expensive calls.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an expensive call. Such a call may take long because spaces reply only between two
/// batches, because the kernel verifies programs, or because earlier calls are queued.
pub const EXPENSIVE_CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection for calls, one at a time.
///
/// After a timeout, the connection is unusable, because a late reply would be taken for the reply
/// to the next call. All further calls fail with [`ClientError::Timeout`].
#[derive(Debug)]
pub(crate) struct Caller {
    socket: OwnedFd,
    overdue: AtomicBool,
    /// Timeout for the next send or receive, in ms; 0 leaves the initial timeout of the socket.
    timeout_ms: AtomicU64,
    /// Timeout that was last set on the socket, in ms. 0 means that the socket has its initial
    /// timeout.
    socket_timeout_ms: AtomicU64,
}

impl Caller {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let (timeout_ms, socket_timeout_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { socket, overdue: AtomicBool::new(false), timeout_ms, socket_timeout_ms }
    }

    /// Limits the time for which each later send and receive may block. A limit is rounded up to
    /// whole milliseconds, and one below 1 ms counts as 1 ms.
    pub(super) fn set_timeout(&self, limit: Duration) {
        let ms = limit.as_nanos().div_ceil(1_000_000).max(1);
        self.timeout_ms.store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Applies the limit of [`set_timeout`](Self::set_timeout) to the socket. Makes no system call
    /// if the socket already has this timeout.
    fn apply_timeout(&self) -> Result<(), ClientError> {
        let ms = self.timeout_ms.load(Ordering::Relaxed);
        if ms != self.socket_timeout_ms.load(Ordering::Relaxed) {
            local_socket::set_timeouts(&self.socket, Duration::from_millis(ms))?;
            self.socket_timeout_ms.store(ms, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_text(&Call::serialize_call(method, parameters, false), &[])?;
        self.receive_result()
    }

    /// Receives the reply to the last call and returns its result. Blocks and fails as
    /// [`receive_reply`](Self::receive_reply) does.
    pub(crate) fn receive_result<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        self.receive_and_parse(|bytes, _| parse_result(bytes))
            .inspect_err(|error| self.record_timeout(error))
    }

    /// Receives and returns the next result of a call that may have several results. The second
    /// returned value is true if more results follow. Blocks and fails as
    /// [`receive_reply`](Self::receive_reply) does.
    pub(super) fn receive_next_result<T: DeserializeOwned>(
        &self,
    ) -> Result<(T, bool), ClientError> {
        let (reply, _) = self.receive_reply()?;
        let continues = reply.continues;
        Ok((reply.deserialize_result()?, continues))
    }

    /// Calls a method with the timeout [`EXPENSIVE_CALL_TIMEOUT`].
    pub(super) fn call_with_long_timeout<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.set_timeout(EXPENSIVE_CALL_TIMEOUT);
        let answer = self.call(method, parameters);
        self.set_timeout(CALL_TIMEOUT);
        answer
    }

    pub(crate) fn send(
        &self,
        call: &Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        self.send_text(&call.to_bytes(), descriptors)
    }

    fn send_text(&self, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        if self.overdue.load(Ordering::Relaxed) {
            return Err(ClientError::Timeout);
        }
        self.apply_timeout()?;
        match sys::descriptor::send(&self.socket, text, descriptors) {
            // A peer that closed the connection may have sent the reason first, which can still be
            // received.
            Err(error) if error.errno == EPIPE => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Sends the texts of calls that expect no reply, in one system call if the socket has room for
    /// them.
    pub(super) fn send_all(&self, calls: &[Vec<u8>]) -> Result<(), ClientError> {
        if self.overdue.load(Ordering::Relaxed) {
            return Err(ClientError::Timeout);
        }
        self.apply_timeout()?;
        let texts: Vec<&[u8]> = calls.iter().map(Vec::as_slice).collect();
        match sys::descriptor::send_all(&self.socket, &texts) {
            // As in `send_text`, the peer may have sent the reason first.
            Err(error) if error.errno == EPIPE => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Receives the reply to the last call, with its descriptors. Blocks for at most the timeout of
    /// the socket. Fails if the peer has replied with an error.
    pub(crate) fn receive_reply(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.receive_subscription_update().inspect_err(|error| self.record_timeout(error))
    }

    fn record_timeout(&self, error: &ClientError) {
        if matches!(error, ClientError::Timeout) {
            self.overdue.store(true, Ordering::Relaxed);
        }
    }

    /// Receives the next update of a subscription. A timeout leaves the connection usable, unlike
    /// in [`receive_reply`](Self::receive_reply), because an update may take a long time to arrive.
    pub(super) fn receive_subscription_update(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.receive_and_parse(|bytes, descriptors| Ok((read_reply(bytes)?, descriptors)))
    }

    /// Receives a message, and passes it to `read` with its descriptors.
    fn receive_and_parse<T>(
        &self,
        read: impl FnOnce(&[u8], Vec<OwnedFd>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.apply_timeout()?;
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

/// A successful reply whose parameters have the type of the call's result. The reply and the result
/// are parsed together, in one pass.
#[derive(Deserialize)]
struct TypedReply<T> {
    parameters: T,
    error: Option<String>,
}

/// The first bytes of each successful reply that this library writes.
const REPLY_START: &[u8] = b"{\"parameters\":{";

/// Parses the result of a call from the bytes of its reply. A reply that this library has written
/// is parsed in one pass. Fails if the reply is an error.
fn parse_result<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ClientError> {
    if bytes.len() <= REPLY_BYTES_MAX
        && bytes.starts_with(REPLY_START)
        && let Ok(TypedReply { parameters, error: None }) = serde_json::from_slice(bytes)
    {
        return Ok(parameters);
    }
    let reply = read_reply(bytes)?;
    Ok(reply.deserialize_result()?)
}

/// Parses the bytes of a reply. Fails if the reply is malformed or is an error.
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
        let read = |text: &str| parse_result::<PathNumber>(text.as_bytes());
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
    fn calls_that_are_sent_at_once_arrive_one_by_one() {
        let (own_end, peer_end) = sys::descriptor::socket_pair().unwrap();
        let caller = Caller::new(own_end);
        let calls =
            ["a.b.C", "a.b.D"].map(|method| Call::serialize_call(method, &NoParameters {}, true));
        caller.send_all(&calls).unwrap();
        for method in ["a.b.C", "a.b.D"] {
            let mut bytes = [0; 100];
            let (length, _) = sys::descriptor::receive(&peer_end, &mut bytes).unwrap();
            let call = Call { oneway: true, ..Call::new(method, &NoParameters {}) };
            assert_eq!(Call::read(&bytes[..length]), Ok(call));
        }
        drop(peer_end);
        assert!(caller.send_all(&calls).is_ok(), "the next receive reports the end");
        assert_eq!(caller.receive_reply().unwrap_err(), ClientError::Disconnected);
    }

    #[test]
    fn late_reply_is_not_taken_for_the_reply_to_the_next_call() {
        let (own_end, peer_end) = sys::descriptor::socket_pair().unwrap();
        let caller = Caller::new(own_end);
        caller.set_timeout(Duration::ZERO);
        let call = || caller.call::<PathNumber>("a.b.C", &NoParameters {});
        assert_eq!(call().unwrap_err(), ClientError::Timeout);
        sys::descriptor::send(&peer_end, br#"{"parameters":{"number":1}}"#, &[]).unwrap();
        assert_eq!(call().unwrap_err(), ClientError::Timeout);
    }
}
