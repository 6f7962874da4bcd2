//! The process that has a name: found, proved by the kernel, and kept apart from squatters.
//! (RELIABILITY T13)
//!
//! A name of the abstract socket space belongs to whoever binds it first, whatever user is in it.
//! So nobody is believed: SO_PEERCRED tells under which user the process that listens took the
//! name. Where another user keeps a name, its owner listens at a spare one, `NAME/NUMBER` with a
//! number of its choice: a squatter cannot keep them all. A reader that does not find the owner
//! under the name looks for spare ones in the kernel's list, and asks each who it is.

use super::{Address, Error};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::abstract_socket::Accepts;

/// The finding at a socket.
pub(super) enum SocketOwner {
    /// A process of the user to whom the name belongs.
    Owner(OwnedFd),
    /// A process of another user.
    Other(u32),
    /// There is no place in the queue: nobody can tell whose it is.
    Full,
    /// The socket has no listener.
    Nobody,
}

/// Looks who has the name of a socket, without waiting. Receiving from an owner waits no longer
/// than `limit`.
pub(super) fn look(socket: &[u8], owner: u32, limit: Duration) -> Result<SocketOwner, Error> {
    let there = match sys::abstract_socket::try_connect(socket, limit) {
        Ok(Some(there)) => there,
        Ok(None) => return Ok(SocketOwner::Full),
        Err(error) if error.errno == CONNECTION_REFUSED => return Ok(SocketOwner::Nobody),
        Err(error) => return Err(error.into()),
    };
    let holder = sys::abstract_socket::peer(&there)?.uid;
    Ok(if holder == owner { SocketOwner::Owner(there) } else { SocketOwner::Other(holder) })
}

/// The owner of a name at one of its spare sockets other than `own`.
pub(super) fn at_spare(address: &Address, own: Option<&[u8]>, limit: Duration) -> Option<OwnedFd> {
    let deadline = Instant::now() + SPARES;
    // Where the list cannot be read there is nothing to be found.
    let sockets = sockets().unwrap_or_default();
    let spare = |name: &&String| {
        Address::of_socket(name).is_some_and(|(of, is_spare)| is_spare && of == *address)
    };
    let mut candidates = sockets.iter().filter(spare).filter(|name| Some(name.as_bytes()) != own);
    candidates.find_map(|name| match look(name.as_bytes(), address.uid(), limit) {
        Ok(SocketOwner::Owner(there)) if Instant::now() < deadline => Some(there),
        _ => None,
    })
}

/// The names of the sockets that listen in this network namespace, without the byte 0.
pub(crate) fn sockets() -> std::io::Result<Vec<String>> {
    let listed = std::fs::read("/proc/net/unix")?;
    let listed = String::from_utf8_lossy(&listed);
    let name = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (flags, name) = (words.nth(3)?, words.next_back()?);
        let listens = u32::from_str_radix(flags, 16).ok()? & LISTENS != 0;
        name.strip_prefix('@').filter(|_| listens).map(str::to_owned)
    };
    Ok(listed.lines().filter_map(name).collect())
}

/// Accepts a name for this process, which runs under its user: a spare one where another user keeps
/// it. Two processes never have one name.
pub(super) fn take(address: &Address, backlog: i32, takes: Accepts) -> Result<OwnedFd, Error> {
    let socket = address.socket();
    let mut taken = sys::abstract_socket::claim(&socket, backlog, takes);
    if is_taken(&taken) {
        match look_again(&socket, address.uid())? {
            SocketOwner::Owner(_) => return Err(Error::Taken(address.clone())),
            SocketOwner::Nobody => taken = sys::abstract_socket::claim(&socket, backlog, takes),
            SocketOwner::Other(_) | SocketOwner::Full => {}
        }
    }
    if !is_taken(&taken) {
        return alone(address, &socket, taken?);
    }
    let number = RandomState::new().hash_one(std::process::id());
    let socket = address.spare(number);
    alone(address, &socket, sys::abstract_socket::claim(&socket, backlog, takes)?)
}

/// The listener, if no other process of this user has the name at a spare socket.
fn alone(address: &Address, socket: &[u8], listener: OwnedFd) -> Result<OwnedFd, Error> {
    match at_spare(address, Some(socket), ANSWER) {
        None => Ok(listener),
        Some(_) => Err(Error::Taken(address.clone())),
    }
}

/// Looks who has it; a full queue is waited for a moment: that of one of ours is soon empty.
fn look_again(socket: &[u8], owner: u32) -> Result<SocketOwner, Error> {
    match look(socket, owner, ANSWER)? {
        SocketOwner::Full => {}
        found => return Ok(found),
    }
    match sys::abstract_socket::connect_to(socket, ANSWER) {
        Ok(there) => {
            let holder = sys::abstract_socket::peer(&there)?.uid;
            Ok(if holder == owner { SocketOwner::Owner(there) } else { SocketOwner::Other(holder) })
        }
        Err(error) if error.errno == CONNECTION_REFUSED => Ok(SocketOwner::Nobody),
        Err(_) => Ok(SocketOwner::Full),
    }
}

fn is_taken(taken: &sys::Result<OwnedFd>) -> bool {
    taken.as_ref().is_err_and(|error| error.errno == TAKEN)
}

/// Time spent on the spare sockets of a name, of which a squatter may make many.
const SPARES: Duration = Duration::from_secs(2);
/// Time that a process of ours may take to look at its queue.
const ANSWER: Duration = Duration::from_secs(1);
/// In the flags of a socket: it listens.
const LISTENS: u32 = 0x0001_0000;
/// ECONNREFUSED: nobody listens.
const CONNECTION_REFUSED: i32 = 111;
/// EADDRINUSE.
const TAKEN: i32 = 98;
