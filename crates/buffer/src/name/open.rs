//! Opening of streams, regions and inboxes by the names that other processes have created.

use super::reply::{Grant, Reply};
use super::socket_owner::{self, SocketOwner};
use super::{Address, Error, SharedRegion};
use crate::share;
use crate::stream::{self, Config, Input, Offer, Output};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// An object opened by name.
#[derive(Debug)]
pub enum OpenedObject {
    /// A stream, to be read from the next published block on.
    Stream(Box<Input>),
    /// A region, writable if this user has permission.
    Region(SharedRegion),
    /// A connection to an inbox, for use by [`open_inbox_writer`].
    Inbox(OwnedFd),
}

/// Opens the stream, region or inbox named `NAME` or `UID/NAME`. Blocks until its host replies.
/// Fails with [`Error::Silent`] if the host accepts no connection, or sends no reply, for 20 s.
pub fn open(name: &str) -> Result<OpenedObject, Error> {
    open_address(&name.parse()?)
}

/// Opens a stream, to be read from its current position. Fails with [`Error::Kind`] if the name
/// refers to another kind of object. Blocks and fails like [`open`] otherwise.
pub fn open_stream(name: &str) -> Result<Input, Error> {
    let address = name.parse()?;
    match open_address(&address)? {
        OpenedObject::Stream(input) => Ok(*input),
        other => Err(other.wrong_kind_error("a stream to read", address)),
    }
}

/// Opens a region, writable if this user has permission. Fails with [`Error::Kind`] if the name
/// refers to another kind of object. Blocks and fails like [`open`] otherwise.
pub fn open_region(name: &str) -> Result<SharedRegion, Error> {
    let address = name.parse()?;
    match open_address(&address)? {
        OpenedObject::Region(region) => Ok(region),
        other => Err(other.wrong_kind_error("a region", address)),
    }
}

/// Connects to an inbox, and creates a ring with this configuration, through which the returned
/// writer sends its blocks. Fails with [`Error::Kind`] if the name refers to another kind of
/// object. Blocks and fails like [`open`] otherwise.
pub fn open_inbox_writer(name: &str, config: &Config) -> Result<Output, Error> {
    let address: Address = name.parse()?;
    match open_address(&address)? {
        OpenedObject::Inbox(socket) => {
            let (output, mut sent) = stream::stream_to_sockets(config, vec![socket])?;
            match sent.pop() {
                Some(Ok(())) => Ok(output),
                _ => Err(Error::Ended(address)),
            }
        }
        other => Err(other.wrong_kind_error("an inbox that others write to", address)),
    }
}

/// Opens the object at an address, whatever its kind. Blocks and fails like [`open`].
pub fn open_address(address: &Address) -> Result<OpenedObject, Error> {
    match OpenRequest::begin(address) {
        // The host's connection queue is full.
        Err(Error::Silent(_)) => connect_with_timeout(address)?,
        request => request?,
    }
    .finish()
}

/// A request to open a name, whose reply is pending.
#[derive(Debug)]
pub struct OpenRequest {
    address: Address,
    socket: OwnedFd,
}

impl OpenRequest {
    /// Connects to the process that holds this name. Does not wait for that process. Fails if the
    /// process runs under a user other than the name's owner, and with [`Error::Silent`] if its
    /// queue of connections is full.
    pub fn begin(address: &Address) -> Result<Self, Error> {
        let request = |socket| Self { address: address.clone(), socket };
        let found = socket_owner::probe(&address.socket_name(), address.uid(), REPLY_TIMEOUT)?;
        if let SocketOwner::Owner(socket) = found {
            return Ok(request(socket));
        }
        let spare = socket_owner::connect_to_spare(address, None, REPLY_TIMEOUT).map(request);
        spare.ok_or_else(|| refusal_error(address, &found))
    }

    /// Connects like [`OpenRequest::begin`]. `sockets` contains the names of the sockets on which
    /// the owner may listen.
    pub(crate) fn begin_at(address: &Address, sockets: &[String]) -> Result<Self, Error> {
        let mut why = Error::Unknown(address.clone());
        for socket in sockets {
            match socket_owner::probe(socket.as_bytes(), address.uid(), REPLY_TIMEOUT)? {
                SocketOwner::Owner(socket) => return Ok(Self { address: address.clone(), socket }),
                SocketOwner::NoListener => {}
                found => why = refusal_error(address, &found),
            }
        }
        Err(why)
    }

    /// Returns the granted object. Blocks until the reply arrives, and fails with [`Error::Silent`]
    /// if none arrives for 20 s. The request's descriptor becomes readable when the reply arrives.
    pub fn finish(self) -> Result<OpenedObject, Error> {
        let Self { address, socket } = self;
        open_granted_object(&address, socket)
    }
}

impl AsFd for OpenRequest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the error for a name, given the reason why the process of the name's owner could not be
/// reached.
fn refusal_error(address: &Address, found: &SocketOwner) -> Error {
    match found {
        SocketOwner::Other(holder) => Error::Squatted { address: address.clone(), holder: *holder },
        SocketOwner::Full => Error::Silent(address.clone()),
        SocketOwner::Owner(_) | SocketOwner::NoListener => Error::Unknown(address.clone()),
    }
}

/// Connects to a name whose connection queue is full. Blocks for at most [`REPLY_TIMEOUT`] until
/// the queue has room.
fn connect_with_timeout(address: &Address) -> Result<OpenRequest, Error> {
    let socket = sys::abstract_socket::connect_to(&address.socket_name(), REPLY_TIMEOUT).map_err(
        |error| match error.errno {
            ECONNREFUSED => Error::Unknown(address.clone()),
            EAGAIN => Error::Silent(address.clone()),
            _ => Error::System(error),
        },
    )?;
    let holder = sys::abstract_socket::peer_credentials(&socket)?.uid;
    if holder != address.uid() {
        return Err(Error::Squatted { address: address.clone(), holder });
    }
    Ok(OpenRequest { address: address.clone(), socket })
}

fn open_granted_object(address: &Address, socket: OwnedFd) -> Result<OpenedObject, Error> {
    match Reply::receive(&socket, address)? {
        Grant::Stream(descriptors) => {
            let ring = share::RingOffer::from_descriptors(descriptors)?;
            Ok(OpenedObject::Stream(Box::new(Offer::with_doorbell(ring, socket).open()?)))
        }
        Grant::Inbox => Ok(OpenedObject::Inbox(socket)),
        Grant::Region { file, bytes, writable } => {
            Ok(OpenedObject::Region(SharedRegion::open(file, bytes, writable, socket)?))
        }
    }
}

impl OpenedObject {
    fn wrong_kind_error(&self, wanted: &'static str, address: Address) -> Error {
        let is = match self {
            Self::Stream(_) => "a stream that its creator writes",
            Self::Region(_) => "a region",
            Self::Inbox(_) => "an inbox, which its creator reads",
        };
        Error::Kind { address, is, wanted }
    }
}

/// Maximum time to wait for a host's reply; long, because the machine may be busy.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// ECONNREFUSED: no process listens.
const ECONNREFUSED: i32 = 111;
/// EAGAIN: the queue stayed full until the time limit.
const EAGAIN: i32 = 11;
