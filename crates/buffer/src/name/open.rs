//! Opening what somebody else has named.

use super::answer::{Answer, Granted};
use super::holder::{self, SocketOwner};
use super::{Address, Error, SharedRegion};
use crate::share;
use crate::stream::{self, Config, Input, Offer, Output};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The object behind a name.
#[derive(Debug)]
pub enum Opened {
    /// A stream, from now on.
    Stream(Box<Input>),
    /// A region, which can be written if this user may.
    Region(SharedRegion),
    /// A place for what we write: opened by [`open_write`].
    Inbox(OwnedFd),
}

/// Opens a stream or a region: `NAME`, or `UID/NAME`.
pub fn open(name: &str) -> Result<Opened, Error> {
    opened(&name.parse()?)
}

/// Opens a stream to read it from now on.
pub fn open_stream(name: &str) -> Result<Input, Error> {
    let address = name.parse()?;
    match opened(&address)? {
        Opened::Stream(input) => Ok(*input),
        other => Err(other.is_not("a stream to be read", address)),
    }
}

/// Opens a region.
pub fn open_region(name: &str) -> Result<SharedRegion, Error> {
    let address = name.parse()?;
    match opened(&address)? {
        Opened::Region(region) => Ok(region),
        other => Err(other.is_not("a region", address)),
    }
}

/// Opens an inbox to write to it, in a ring of this shape that we make.
pub fn open_write(name: &str, config: &Config) -> Result<Output, Error> {
    let address: Address = name.parse()?;
    match opened(&address)? {
        Opened::Inbox(socket) => {
            let (output, mut sent) = stream::send_to(config, vec![socket])?;
            match sent.pop() {
                Some(Ok(())) => Ok(output),
                _ => Err(Error::Ended(address)),
            }
        }
        other => Err(other.is_not("an inbox that others write to", address)),
    }
}

/// Opens whatever has this name.
pub fn opened(address: &Address) -> Result<Opened, Error> {
    match Visit::begin(address) {
        // As many wait there as may.
        Err(Error::Silent(_)) => wait_in_queue(address)?,
        visit => visit?,
    }
    .answered()
}

/// A process that has a name, and has been asked what it is.
#[derive(Debug)]
pub struct Visit {
    address: Address,
    socket: OwnedFd,
}

impl Visit {
    /// Goes to the process that has this name, if it is one of the user to whom the name belongs;
    /// waits for nothing.
    pub fn begin(address: &Address) -> Result<Self, Error> {
        let visit = |socket| Self { address: address.clone(), socket };
        let found = holder::look(&address.socket(), address.uid(), LIMIT)?;
        if let SocketOwner::Owner(socket) = found {
            return Ok(visit(socket));
        }
        let spare = holder::at_spare(address, None, LIMIT).map(visit);
        spare.ok_or_else(|| refusal(address, &found))
    }

    /// The same, where the names of all sockets that may be those of the name are known.
    pub(crate) fn among(address: &Address, sockets: &[String]) -> Result<Self, Error> {
        let mut why = Error::Unknown(address.clone());
        for socket in sockets {
            match holder::look(socket.as_bytes(), address.uid(), LIMIT)? {
                SocketOwner::Owner(socket) => return Ok(Self { address: address.clone(), socket }),
                SocketOwner::Nobody => {}
                found => why = refusal(address, &found),
            }
        }
        Err(why)
    }

    /// Waits for the answer and returns the object; returns at once if the descriptor is readable.
    pub fn answered(self) -> Result<Opened, Error> {
        let Self { address, socket } = self;
        granted(&address, socket)
    }
}

impl AsFd for Visit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the error for a name whose owner does not hold its socket.
fn refusal(address: &Address, found: &SocketOwner) -> Error {
    match found {
        SocketOwner::Other(holder) => Error::Squatted { address: address.clone(), holder: *holder },
        SocketOwner::Full => Error::Silent(address.clone()),
        SocketOwner::Owner(_) | SocketOwner::Nobody => Error::Unknown(address.clone()),
    }
}

/// Waits for a place in the queue of a name.
fn wait_in_queue(address: &Address) -> Result<Visit, Error> {
    let socket =
        sys::abstract_socket::connect_to(&address.socket(), LIMIT).map_err(|error| match error
            .errno
        {
            CONNECTION_REFUSED => Error::Unknown(address.clone()),
            AGAIN => Error::Silent(address.clone()),
            _ => Error::System(error),
        })?;
    let holder = sys::abstract_socket::peer(&socket)?.uid;
    if holder != address.uid() {
        return Err(Error::Squatted { address: address.clone(), holder });
    }
    Ok(Visit { address: address.clone(), socket })
}

fn granted(address: &Address, socket: OwnedFd) -> Result<Opened, Error> {
    match Answer::receive(&socket, address)? {
        Granted::Stream(descriptors) => {
            let ring = share::Offer::from_descriptors(descriptors)?;
            Ok(Opened::Stream(Box::new(Offer::rung_by(ring, socket).open()?)))
        }
        Granted::Inbox => Ok(Opened::Inbox(socket)),
        Granted::Region { file, bytes, writable } => {
            Ok(Opened::Region(SharedRegion::open(file, bytes, writable, socket)?))
        }
    }
}

impl Opened {
    fn is_not(&self, wanted: &'static str, address: Address) -> Error {
        let is = match self {
            Self::Stream(_) => "a stream that its creator writes",
            Self::Region(_) => "a region",
            Self::Inbox(_) => "an inbox, which its creator reads",
        };
        Error::Kind { address, is, wanted }
    }
}

/// Time that a host may take to answer: it does nothing else, on a machine that may do much.
const LIMIT: Duration = Duration::from_secs(20);
/// ECONNREFUSED: nobody listens.
const CONNECTION_REFUSED: i32 = 111;
/// EAGAIN: the queue was full for so long.
const AGAIN: i32 = 11;
