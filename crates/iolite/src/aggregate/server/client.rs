//! The client of a grant server.

use super::super::owner::{DbufWindow, Grant};
use super::super::refusal::GrantRefusal;
use super::super::{Aggregate, AllocationPool, Error};
use super::{
    Message, REASON_FORBIDDEN, REASON_SYSTEM, RELEASE_SLICE, REPLY_GRANTED, REPLY_GRANTED_FILE,
    REPLY_REFUSED, REQUEST_GRANT,
};
use abi::{DbufId, RichPointer};
use buffer::Fault;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::{descriptor, poll};
use zerocopy::{FromBytes, IntoBytes};

/// The client of a grant server: its mappings, and the socket for requesting more.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    window: DbufWindow,
    /// Unused grants that the owner has sent without a request.
    early: Vec<Grant>,
}

impl Client {
    /// Creates a client on the socket received from an owner.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket, window: DbufWindow::new(), early: Vec::new() }
    }

    /// Copies the bytes named by a pointer into `out`, which must have the pointer's length. If the
    /// pool is not mapped, first requests the pool from the owner, once per pool (a *buffer
    /// fault*), and waits for the reply. Fails if the owner refuses the pool or has departed, or if
    /// the pointer is invalid.
    pub fn copy(&mut self, pointer: RichPointer, out: &mut [u8]) -> Result<(), ResolveError> {
        match self.window.copy(pointer, out) {
            Err(Fault::UnknownDbuf(dbuf)) => {
                self.request_and_map(dbuf)?;
                Ok(self.window.copy(pointer, out)?)
            }
            done => Ok(done?),
        }
    }

    /// Copies the bytes named by `pointers` into a pool of this process, as one aggregate
    /// ([`DbufWindow::receive`]). Maps pools as needed. Fails if a pool cannot be mapped, a pointer
    /// is invalid, or `pool` is full.
    pub fn receive(
        &mut self,
        pointers: &[RichPointer],
        pool: &mut AllocationPool,
    ) -> Result<Aggregate, ResolveError> {
        for pointer in pointers.iter().filter(|pointer| !pointer.is_hole()) {
            if !self.window.is_mapped(pointer.dbuf()) {
                self.request_and_map(pointer.dbuf())?;
            }
        }
        Ok(self.window.receive(pointers, pool)?)
    }

    /// Reports to the owner that a slice is no longer needed. `pointer` is the pointer that was
    /// sent for the slice.
    pub fn release(&self, pointer: RichPointer) -> Result<(), GrantRefusal> {
        let message = Message::new(RELEASE_SLICE, pointer.dbuf(), pointer.words());
        descriptor::send(&self.socket, message.as_bytes(), &[]).map_err(|_| GrantRefusal::Abandoned)
    }

    /// Returns the user ID and group ID of the server's process, as reported by the kernel.
    pub(crate) fn owner_uid_and_gid(&self) -> sys::Result<(u32, u32)> {
        descriptor::peer_uid_and_gid(&self.socket)
    }

    /// Requests a dbuf like [`Client::request_grant`], but waits for at most `limit` for each
    /// message. After a timeout the client must not be used again.
    pub(crate) fn request_grant_with_timeout(
        &mut self,
        dbuf: DbufId,
        limit: Duration,
    ) -> Result<Grant, GrantRefusal> {
        if let Some(grant) = self.take_early_grant(dbuf) {
            return Ok(grant);
        }
        self.send_request(dbuf)?;
        loop {
            match poll::wait_until_readable_despite_signals(&[self.socket.as_fd()], Some(limit))
                .as_slice()
            {
                [true] => {}
                _ => return Err(GrantRefusal::Abandoned),
            }
            if let Some(grant) = self.receive_reply(dbuf)? {
                return Ok(grant);
            }
        }
    }

    /// Returns the grant of this dbuf if the owner sent it without a request, else `None`. Never
    /// blocks.
    fn take_early_grant(&mut self, dbuf: DbufId) -> Option<Grant> {
        while self.early.iter().all(|grant| grant.dbuf() != dbuf) {
            let socket = self.socket.as_fd();
            let waits = poll::wait_until_readable_despite_signals(&[socket], Some(Duration::ZERO))
                == [true];
            // A failure is reported by the request that follows.
            if !waits || self.receive_reply(DbufId::HOLE).is_err() {
                return None;
            }
        }
        let at = self.early.iter().position(|grant| grant.dbuf() == dbuf)?;
        Some(self.early.swap_remove(at))
    }

    /// Requests a dbuf and waits for the reply. Returns immediately if the owner has sent the dbuf
    /// without a request. Fails with [`GrantRefusal::Abandoned`] if the server has departed.
    pub fn request_grant(&mut self, dbuf: DbufId) -> Result<Grant, GrantRefusal> {
        if let Some(grant) = self.take_early_grant(dbuf) {
            return Ok(grant);
        }
        self.send_request(dbuf)?;
        loop {
            if let Some(grant) = self.receive_reply(dbuf)? {
                return Ok(grant);
            }
        }
    }

    fn send_request(&self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let message = Message::new(REQUEST_GRANT, dbuf, [0; 2]);
        let sent = descriptor::send(&self.socket, message.as_bytes(), &[]);
        sent.map_err(|_| GrantRefusal::Abandoned)
    }

    /// Receives a message. Returns the grant if the message is the reply to a request for this
    /// dbuf, or `None` if the message grants another dbuf. In the latter case the grant is stored
    /// for later.
    fn receive_reply(&mut self, dbuf: DbufId) -> Result<Option<Grant>, GrantRefusal> {
        let mut bytes = [0; Message::SIZE];
        let received = descriptor::receive(&self.socket, &mut bytes);
        let (length, mut fds) = received.map_err(|_| GrantRefusal::Abandoned)?;
        let answer = bytes.get(..length).and_then(|b| Message::read_from_bytes(b).ok());
        let Some(answer) = answer else { return Err(GrantRefusal::Abandoned) };
        let of = DbufId::new(answer.dbuf);
        let grant = match (answer.kind, of, fds.pop()) {
            (REPLY_GRANTED, Some(of), Some(file)) => Grant::from_descriptor(of, file),
            (REPLY_GRANTED_FILE, Some(of), Some(file)) => Grant::from_file_descriptor(of, file),
            (REPLY_REFUSED, _, None) => return Err(decode_refusal(dbuf, answer.words)),
            _ => return Err(GrantRefusal::Abandoned),
        };
        if grant.dbuf() == dbuf {
            return Ok(Some(grant));
        }
        if self.early.len() == EARLY_GRANTS_MAX {
            return Err(GrantRefusal::Abandoned);
        }
        self.early.push(grant);
        Ok(None)
    }

    /// Returns the window that contains the client's mappings of pools.
    #[must_use]
    pub const fn window(&self) -> &DbufWindow {
        &self.window
    }

    fn request_and_map(&mut self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let grant = self.request_grant(dbuf)?;
        self.window.admit(grant)
    }
}

/// Reason why the bytes named by a pointer were not copied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResolveError {
    /// The pointer is invalid.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The owner refused to grant the memory named by the pointer.
    #[error("{0}")]
    Refused(#[from] GrantRefusal),
    /// The copied range exceeds the aggregate, or the destination pool has no room for the copy.
    #[error("{0}")]
    Aggregate(#[from] Error),
}

/// Maximum number of grants that a client stores before it uses them. A client abandons an owner
/// that sends more.
const EARLY_GRANTS_MAX: usize = 64;

/// Decodes the refusal of a dbuf.
fn decode_refusal(dbuf: DbufId, words: [u64; 2]) -> GrantRefusal {
    let [why, number] = words;
    match (why, u32::try_from(number), i32::try_from(number)) {
        (REASON_FORBIDDEN, Ok(uid), _) => GrantRefusal::Forbidden { dbuf, uid },
        (REASON_SYSTEM, _, Ok(errno)) => {
            GrantRefusal::System(sys::Error::new("grant", "by its owner", errno))
        }
        _ => GrantRefusal::UnknownDbuf(dbuf),
    }
}
