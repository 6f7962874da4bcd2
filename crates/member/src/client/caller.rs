//! Calls over one connection, with timeouts.

use super::error::{ClientError, ECONNRESET, EPIPE};
use crate::varlink::{Call, Fault, REPLY_MAX, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use sys::local_socket;

/// Timeout of a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an expensive call: spaces reply only between two batches, the kernel verifies
/// programs, and earlier calls may be queued.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection over which calls are made.
#[derive(Debug)]
pub(crate) struct Caller(pub(super) OwnedFd);

impl Caller {
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(&Call::new(method, parameters), &[])?;
        Ok(self.reply()?.0.take()?)
    }

    /// Calls a method with the timeout [`LONG_TIMEOUT`].
    pub(super) fn call_long<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        local_socket::set_timeouts(&self.0, LONG_TIMEOUT)?;
        let answer = self.call(method, parameters);
        local_socket::set_timeouts(&self.0, CALL_TIMEOUT)?;
        answer
    }

    pub(crate) fn send(
        &self,
        call: &Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        match sys::descriptor::send(&self.0, &call.text(), descriptors) {
            // A peer that hung up may have sent the reason, which is still readable.
            Err(error) if error.errno == EPIPE => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Receives the next reply and its descriptors. Blocks up to the timeout of the socket. Fails
    /// if the reply is an error.
    pub(crate) fn reply(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let mut bytes = vec![0; REPLY_MAX];
        let received = match sys::descriptor::receive(&self.0, &mut bytes) {
            // A peer that closes with unread data causes one ECONNRESET, returned before any queued
            // data (unix(7)).
            Err(error) if error.errno == ECONNRESET => {
                sys::descriptor::receive(&self.0, &mut bytes)
            }
            received => received,
        };
        let (length, descriptors) = received?;
        if length == 0 {
            return Err(ClientError::Disconnected);
        }
        let reply = Reply::read(bytes.get(..length).unwrap_or_default())?;
        match Fault::from_reply(&reply) {
            Some(fault) => Err(ClientError::Refused(fault)),
            None => Ok((reply, descriptors)),
        }
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
