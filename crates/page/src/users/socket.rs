//! The Unix socket over which each user obtains the URL of the page with the user's token. The
//! kernel identifies the user.

use super::accounts::{Accounts, peer_ids};
use crate::listener::{AllowedUsers, remove_stale_socket};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use streamline::paths::page_socket::{self, PAGE_SOCKET, page_socket_directory};
use sys::abstract_socket::AcceptedContent;
use sys::descriptor_closer::ForeignDescriptor;
use sys::local_socket::{self, Framing};
use sys::process::UserIds;

/// Pause after accept(2) has failed, for lack of descriptors or memory.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for the arrival of a call on a new connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a call in bytes.
const CALL_BYTES_MAX: usize = 4096;
/// Maximum number of simultaneous connections of a user.
const CALLERS_PER_USER_MAX: usize = 16;
/// Maximum number of simultaneous connections of all users together.
const CALLERS_MAX: usize = 1024;
/// Maximum length of the queue of pending connections (listen(2)).
const BACKLOG_MAX: i32 = 64;

/// The socket of the page, in a directory of its own. Dropping this value removes the socket, and
/// also the directory if it is empty.
#[derive(Debug)]
pub struct PageSocket {
    directory: PathBuf,
    listener: OwnedFd,
}

impl PageSocket {
    /// Creates the socket of the page in a directory beside the daemon's directory `daemon`, or
    /// beside the machine-wide directory if `daemon` is `None`. Fails with a message for the user.
    pub fn open(daemon: Option<&Path>, admission: AllowedUsers) -> Result<Self, String> {
        let directory = page_socket_directory(daemon);
        let (mode, socket_mode) = match admission {
            AllowedUsers::OwnUser => (0o700, 0o600),
            AllowedUsers::AllUsers => (0o755, 0o666),
        };
        let failed = |error: io::Error| format!("cannot use {}: {error}", directory.display());
        match DirBuilder::new().mode(mode).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let held = local_socket::open_directory(&directory).map_err(|error| error.to_string())?;
        // A user with write permission to the directory could replace the socket.
        let about = fs::symlink_metadata(&directory).map_err(failed)?;
        if about.uid() != sys::process::effective_ids().0 || about.mode() & 0o022 != 0 {
            return Err(format!(
                "{} can be written by another user: remove it, or choose another place with \
                 --socket",
                directory.display()
            ));
        }
        let path = directory.join(PAGE_SOCKET);
        remove_stale_socket(&path).map_err(failed)?;
        let form = (Framing::Packets, AcceptedContent::Bytes);
        let listener =
            local_socket::listen_in_directory(&held, PAGE_SOCKET, socket_mode, form, BACKLOG_MAX);
        let listener = listener.map_err(|error| match path.exists() {
            true => format!("another page serves {}: {error}", directory.display()),
            false => error.to_string(),
        })?;
        Ok(Self { directory, listener })
    }

    /// Starts a thread that replies to callers until this process exits.
    pub(super) fn serve(&self, accounts: &Arc<Accounts>) -> io::Result<()> {
        let (listener, accounts) = (self.listener.try_clone()?, Arc::clone(accounts));
        let thread = std::thread::Builder::new().name("page socket".to_owned());
        thread.spawn(move || serve_callers(&listener, &accounts)).map(drop)
    }
}

impl Drop for PageSocket {
    fn drop(&mut self) {
        // If the removal fails, the next page replaces the socket.
        let _ = fs::remove_file(self.directory.join(PAGE_SOCKET));
        let _ = fs::remove_dir(&self.directory);
    }
}

/// A connection on which no call has arrived yet.
struct Caller {
    socket: ForeignDescriptor,
    who: UserIds,
    /// Time at which the connection is closed if no call has arrived.
    deadline: Instant,
}

fn serve_callers(listener: &OwnedFd, accounts: &Accounts) {
    let mut callers: Vec<Caller> = Vec::new();
    let mut pause = None;
    loop {
        let now = Instant::now();
        callers.retain(|caller| caller.deadline > now);
        let next = callers.iter().map(|caller| caller.deadline - now).min();
        let sockets = callers.iter().map(|caller| caller.socket.as_fd());
        let listens = pause.is_none().then(|| listener.as_fd());
        let all: Vec<BorrowedFd<'_>> = listens.into_iter().chain(sockets).collect();
        let ready = sys::poll::wait_until_readable_despite_signals(
            &all,
            next.into_iter().chain(pause).min(),
        );
        let (of_listener, of_callers) = ready.split_at(usize::from(pause.is_none()));
        let mut of_callers = of_callers.iter();
        callers.retain(|caller| {
            !(of_callers.next() == Some(&true) && reply(&caller.socket, &caller.who, accounts))
        });
        pause = match of_listener.first() == Some(&true) {
            true => accept(listener, &mut callers).is_err().then_some(ACCEPT_PAUSE),
            false => None,
        };
    }
}

/// Accepts a connection. Closes the connection at once if its user, or all users together, have too
/// many connections.
fn accept(listener: &OwnedFd, callers: &mut Vec<Caller>) -> sys::Result<()> {
    let Some(socket) = local_socket::accept(listener)? else { return Ok(()) };
    let Some(who) = peer_ids(&socket) else { return Ok(()) };
    let socket = ForeignDescriptor::new(socket, who.uid);
    let own = callers.iter().filter(|caller| caller.who.uid == who.uid).count();
    if own < CALLERS_PER_USER_MAX && callers.len() < CALLERS_MAX {
        callers.push(Caller { socket, who, deadline: Instant::now() + CALL_TIMEOUT });
    }
    Ok(())
}

/// Replies to a call. Returns true if the connection is no longer needed.
fn reply(caller: &ForeignDescriptor, who: &UserIds, accounts: &Accounts) -> bool {
    let mut call = [0; CALL_BYTES_MAX];
    let length = match sys::descriptor::try_receive(caller, &mut call) {
        Ok(None) => return false,
        Ok(Some((length, descriptors))) => {
            drop(ForeignDescriptor::wrap_all(descriptors, who.uid));
            length
        }
        Err(_) => 0,
    };
    let reply = page_socket::reply_to_call(call.get(..length).unwrap_or_default(), |given| {
        let account = accounts.open(who, given.renew == Some(true))?;
        Ok(accounts.url(&account))
    });
    // An error means that the caller has disconnected and needs no reply.
    let _ = local_socket::send_nonblocking(caller, &reply, &[]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_that_lingers_does_not_delay_the_socket() {
        const LINGER: Duration = Duration::from_secs(600);
        const CONNECTION_RESET: i32 = 104;
        let (caller, here) = sys::descriptor::socket_pair().unwrap();
        local_socket::set_timeouts(&caller, testkit::wait::WAIT_TIMEOUT).unwrap();
        let (slow, peer) = testkit::lingering_socket(LINGER);
        let call = br#"{"method":"io.streamline.page.Open"}"#;
        for _ in 0..2 {
            sys::descriptor::send(&caller, call, &[slow.as_fd()]).unwrap();
        }
        drop(slow);
        let accounts = Accounts::new("unix:/run/page".to_owned(), None, Duration::ZERO);
        let (uid, gid) = sys::process::effective_ids();
        let who = UserIds { uid, gid, groups: Vec::new() };
        // The second call is still in the queue when the socket is closed.
        std::thread::spawn(move || {
            assert!(reply(&ForeignDescriptor::from_peer_socket(here), &who, &accounts))
        });
        let mut bytes = [0; CALL_BYTES_MAX];
        // A socket that is closed with a call in its queue may reset the connection before its
        // reply is read. If the thread waited, the caller's timeout would pass.
        match sys::descriptor::receive(&caller, &mut bytes) {
            Ok((length, _)) => assert!(length > 0),
            Err(error) => assert_eq!(error.errno, CONNECTION_RESET, "{error}"),
        }
        drop(peer);
    }
}
