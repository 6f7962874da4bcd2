//! The message in which a host replies to a client.

use super::{Address, Error};
use abi::access::AccessList;
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A host's reply: a granted object, or a refusal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Reply {
    magic: u64,
    kind: u32,
    /// User ID of the owner, if access is refused. The group ID and the permission bits of the
    /// access list follow. All three are 0 in other replies.
    uid: u32,
    gid: u32,
    mode: u32,
    /// A number whose meaning depends on the kind of reply: the size of a granted region in bytes,
    /// the number of reader slots if all are in use, or the errno of a failed call. 0 in other
    /// replies.
    number: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"SL name1");
const KIND_STREAM: u32 = 1;
const KIND_INBOX: u32 = 2;
const KIND_READ_REGION: u32 = 3;
const KIND_WRITE_REGION: u32 = 4;
const KIND_FORBIDDEN: u32 = 5;
const KIND_FULL: u32 = 6;
const KIND_FULL_FOR_USER: u32 = 7;
const KIND_ENDED: u32 = 8;
const KIND_FAILED: u32 = 9;

impl Reply {
    const SIZE: usize = size_of::<Self>();

    const fn new(kind: u32) -> Self {
        Self { magic: MAGIC, kind, uid: 0, gid: 0, mode: 0, number: 0 }
    }

    pub(super) const fn stream() -> Self {
        Self::new(KIND_STREAM)
    }

    pub(super) const fn inbox() -> Self {
        Self::new(KIND_INBOX)
    }

    pub(super) const fn region(bytes: u64, writable: bool) -> Self {
        Self {
            number: bytes,
            ..Self::new(if writable { KIND_WRITE_REGION } else { KIND_READ_REGION })
        }
    }

    pub(super) const fn forbidden(access: &AccessList) -> Self {
        let (uid, gid, mode) = (access.owner, access.group, access.mode);
        Self { uid, gid, mode, ..Self::new(KIND_FORBIDDEN) }
    }

    pub(super) const fn full(limit: usize, of_user: bool) -> Self {
        Self {
            number: limit as u64,
            ..Self::new(if of_user { KIND_FULL_FOR_USER } else { KIND_FULL })
        }
    }

    pub(super) const fn ended() -> Self {
        Self::new(KIND_ENDED)
    }

    pub(super) const fn failed(error: &sys::Error) -> Self {
        Self { number: error.errno.unsigned_abs() as u64, ..Self::new(KIND_FAILED) }
    }

    /// Sends the reply. Does not block: the reply is the first message, and fits into an empty
    /// socket.
    pub(super) fn send(&self, to: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> sys::Result<()> {
        sys::descriptor::send(to, self.as_bytes(), descriptors)
    }

    /// Receives a host's reply, with its descriptors. Blocks for at most the socket's time limit,
    /// and then fails with [`Error::Silent`].
    pub(super) fn receive(from: &OwnedFd, address: &Address) -> Result<Grant, Error> {
        let mut bytes = [0; Self::SIZE];
        let received = sys::descriptor::receive(from, &mut bytes);
        let (length, descriptors) = match received {
            Err(error) if error.errno == EAGAIN => return Err(Error::Silent(address.clone())),
            Err(error) if error.errno == ECONNRESET => return Err(Error::Ended(address.clone())),
            Ok((0, _)) => return Err(Error::Ended(address.clone())),
            other => other?,
        };
        let reply = bytes.get(..length).and_then(|bytes| Self::read_from_bytes(bytes).ok());
        let Some(reply) = reply.filter(|reply| reply.magic == MAGIC) else {
            return Err(Error::InvalidReply(address.clone()));
        };
        let address = address.clone();
        let limit = reply.number;
        match reply.kind {
            KIND_STREAM => Ok(Grant::Stream(descriptors)),
            KIND_INBOX => Ok(Grant::Inbox),
            KIND_READ_REGION | KIND_WRITE_REGION => {
                let file = descriptors.into_iter().next().ok_or(Error::InvalidReply(address))?;
                let writable = reply.kind == KIND_WRITE_REGION;
                Ok(Grant::Region { file, bytes: reply.number, writable })
            }
            KIND_FORBIDDEN => {
                let Self { uid: owner, gid: group, mode, .. } = reply;
                Err(Error::Forbidden { address, owner, group, mode })
            }
            KIND_FULL => Err(Error::Full { address, limit, is_per_user: false }),
            KIND_FULL_FOR_USER => Err(Error::Full { address, limit, is_per_user: true }),
            KIND_ENDED => Err(Error::Ended(address)),
            KIND_FAILED => {
                let errno = i32::try_from(limit).unwrap_or(0);
                Err(Error::System(sys::Error::new(
                    "open",
                    format!("{address}, at its host"),
                    errno,
                )))
            }
            _ => Err(Error::InvalidReply(address)),
        }
    }
}

/// An object to which a host has granted this process access.
#[derive(Debug)]
pub(super) enum Grant {
    Stream(Vec<OwnedFd>),
    Inbox,
    Region { file: OwnedFd, bytes: u64, writable: bool },
}

/// EAGAIN: the time limit of the socket has passed.
const EAGAIN: i32 = 11;
/// ECONNRESET: the name was released before the reply.
const ECONNRESET: i32 = 104;
