//! Ownership of names: finding and verifying the process that holds a name, despite squatters.
//! (RELIABILITY T13)
//!
//! In the abstract socket namespace, the kernel assigns a name to the first process that binds it,
//! whichever user ID the name contains. The holder of a name is therefore never assumed to be the
//! owner: SO_PEERCRED reports the user whose process bound the name. If a process of another user
//! holds a name, a process of the owner listens on a spare socket `NAME/NUMBER`, whose random
//! number prevents a squatter from occupying all spare sockets. A client that does not find the
//! owner under the name searches the kernel's list for spare sockets, and verifies the owner of
//! each.

use super::{Address, Error};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::abstract_socket::AcceptedContent;

/// The result of a probe: the user of the process that listens on a socket.
pub(super) enum SocketOwner {
    /// A process of the user that owns the name. Contains the connection to that process.
    Owner(OwnedFd),
    /// A process of another user. Contains the user's ID.
    Other(u32),
    /// The connection queue is full, so the user cannot be determined.
    Full,
    /// The socket has no listener.
    NoListener,
}

/// Connects to a socket without blocking, and determines the user whose process listens on it. If
/// that user is `owner`, later receives on the connection time out after `limit`.
pub(super) fn probe(socket: &[u8], owner: u32, limit: Duration) -> Result<SocketOwner, Error> {
    let connection = match sys::abstract_socket::try_connect(socket, limit) {
        Ok(Some(connection)) => connection,
        Ok(None) => return Ok(SocketOwner::Full),
        Err(error) if error.errno == ECONNREFUSED => return Ok(SocketOwner::NoListener),
        Err(error) => return Err(error.into()),
    };
    let holder = sys::abstract_socket::peer_credentials(&connection)?.uid;
    Ok(if holder == owner { SocketOwner::Owner(connection) } else { SocketOwner::Other(holder) })
}

/// Connects to the owner of a name through one of its spare sockets other than `own`. Returns
/// `None` if no such socket is found within [`SPARE_PROBES_TIMEOUT`].
pub(super) fn connect_to_spare(
    address: &Address,
    own: Option<&[u8]>,
    limit: Duration,
) -> Option<OwnedFd> {
    // If the list cannot be read, no spare socket is found.
    let sockets = listening_sockets().unwrap_or_default();
    let spare = |name: &&String| {
        Address::parse_socket_name(name).is_some_and(|(of, is_spare)| is_spare && of == *address)
    };
    let candidates = sockets.iter().filter(spare).filter(|name| Some(name.as_bytes()) != own);
    probe_candidates(Instant::now() + SPARE_PROBES_TIMEOUT, candidates, |name| {
        match probe(name.as_bytes(), address.uid(), limit) {
            Ok(SocketOwner::Owner(connection)) => Some(connection),
            _ => None,
        }
    })
}

/// Calls `probe` for each candidate socket in order, until `probe` returns a result or the deadline
/// has passed. Returns the result, or `None` if there is none.
fn probe_candidates<C, T>(
    deadline: Instant,
    candidates: impl Iterator<Item = C>,
    probe: impl FnMut(C) -> Option<T>,
) -> Option<T> {
    candidates.take_while(|_| Instant::now() < deadline).find_map(probe)
}

/// Returns the names of all listening abstract sockets in this network namespace, without the
/// leading zero byte.
pub(crate) fn listening_sockets() -> std::io::Result<Vec<String>> {
    let listed = std::fs::read("/proc/net/unix")?;
    let listed = String::from_utf8_lossy(&listed);
    let name = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (flags, name) = (words.nth(3)?, words.next_back()?);
        let listens = u32::from_str_radix(flags, 16).ok()? & LISTENING_FLAG != 0;
        name.strip_prefix('@').filter(|_| listens).map(str::to_owned)
    };
    Ok(listed.lines().filter_map(name).collect())
}

/// Claims a name for this process, which must run as the user in the name. If the name is occupied
/// by another user, or by a process that accepts no connections, listens on a spare socket. Fails
/// with [`Error::Taken`] if another process of this user holds the name.
pub(super) fn claim(
    address: &Address,
    backlog: i32,
    accepts: AcceptedContent,
) -> Result<OwnedFd, Error> {
    let socket = address.socket_name();
    let mut taken = sys::abstract_socket::listen(&socket, backlog, accepts);
    if is_address_in_use(&taken) {
        match probe_with_timeout(&socket, address.uid())? {
            SocketOwner::Owner(_) => return Err(Error::Taken(address.clone())),
            SocketOwner::NoListener => {
                taken = sys::abstract_socket::listen(&socket, backlog, accepts)
            }
            SocketOwner::Other(_) | SocketOwner::Full => {}
        }
    }
    if !is_address_in_use(&taken) {
        return verify_unique(address, &socket, taken?);
    }
    let number = RandomState::new().hash_one(std::process::id());
    let socket = address.spare_socket_name(number);
    verify_unique(address, &socket, sys::abstract_socket::listen(&socket, backlog, accepts)?)
}

/// Returns the listener if the name has no other holder. Fails with [`Error::Taken`] if another
/// process of this user holds the name through a spare socket.
fn verify_unique(address: &Address, socket: &[u8], listener: OwnedFd) -> Result<OwnedFd, Error> {
    match connect_to_spare(address, Some(socket), REPLY_TIMEOUT) {
        None => Ok(listener),
        Some(_) => Err(Error::Taken(address.clone())),
    }
}

/// Probes a socket ([`probe`]). If its connection queue is full, tries again for up to
/// [`REPLY_TIMEOUT`], because a host that runs as this user would empty the queue within that time.
fn probe_with_timeout(socket: &[u8], owner: u32) -> Result<SocketOwner, Error> {
    match probe(socket, owner, REPLY_TIMEOUT)? {
        SocketOwner::Full => {}
        found => return Ok(found),
    }
    match sys::abstract_socket::connect_to(socket, REPLY_TIMEOUT) {
        Ok(connection) => {
            let holder = sys::abstract_socket::peer_credentials(&connection)?.uid;
            Ok(if holder == owner {
                SocketOwner::Owner(connection)
            } else {
                SocketOwner::Other(holder)
            })
        }
        Err(error) if error.errno == ECONNREFUSED => Ok(SocketOwner::NoListener),
        Err(_) => Ok(SocketOwner::Full),
    }
}

fn is_address_in_use(taken: &sys::Result<OwnedFd>) -> bool {
    taken.as_ref().is_err_and(|error| error.errno == EADDRINUSE)
}

/// Maximum time spent on probing the spare sockets of a name, of which a squatter may create many.
const SPARE_PROBES_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a host needs to empty its connection queue, if the host runs as the user of
/// this process.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Flag of a listening socket in `/proc/net/unix`.
const LISTENING_FLAG: u32 = 0x0001_0000;
/// ECONNREFUSED: no process listens.
const ECONNREFUSED: i32 = 111;
/// EADDRINUSE: the name is already bound.
const EADDRINUSE: i32 = 98;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spare_socket_is_probed_after_the_deadline() {
        let mut probed = Vec::new();
        let mut probe = |number: u32| {
            probed.push(number);
            (number == 2).then_some(number)
        };
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(probe_candidates(later, 0..9, &mut probe), Some(2));
        assert_eq!(probe_candidates(Instant::now(), 0..9, &mut probe), None);
        assert_eq!(probed, [0, 1, 2]);
    }
}
