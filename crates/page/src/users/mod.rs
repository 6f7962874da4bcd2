//! The page for all users of a machine: one listening process, the host, and a process for each
//! user who opens the page.
//!
//! ```text
//!  browser ── request with a token ──► host ── the connection ──► process of the user
//!  `streamline page` ── Open ──► socket ─┘ (kernel: user id)        acts as this user alone
//! ```
//!
//! - [`socket`]: sends each user the URL with the user's token; [`accounts`]: the users with their
//!   tokens;
//! - [`process`]: the host's side of a user's process; [`own_process`]: the code that runs in the
//!   user's process;
//! - `places`: a limit on the connections that have not yet been handed to a user's process;
//! - `starts`: limits on how often a user makes the host start a process or write to its log.
//!
//! The host runs as root; otherwise, it serves only its own user. It replies only with the files of
//! the page. It reads the head of each request, and hands the connection with the head to the
//! process of the user whose token the head contains. The process has the credentials of the user
//! from its first instruction on, checks the token again, and performs all actions of the page. The
//! first request starts the process, which ends after a time without connections. Each connection
//! carries only one request, so that two users of one browser never share a connection.
//!
//! docs/book/decisions/0116-page-for-all-users.md

pub mod accounts;
pub mod own_process;
mod pending_connections;
pub mod process;
pub mod socket;
mod start_limits;

use crate::connection::{Connection, IncomingConnections, Socket, find_authorization};
use crate::listener::{Address, AllowedUsers, Listener};
use crate::server::{close_after_reply, static_routes};
use accounts::{Accounts, peer_ids};
use pending_connections::{PendingConnection, PendingConnections, Stage};
use process::{UserProcess, log_line, log_warning};
use socket::{ACCEPT_PAUSE, PageSocket};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of connections that have not yet been handed to a user's process.
const CONNECTIONS_MAX: usize = 512;
/// Time within which the head of a request must arrive.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a browser must receive a file of the page.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a page for several users.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The address of the page.
    pub listen: Address,
    /// Directory of the daemon, if it is not a standard one.
    pub daemon: Option<PathBuf>,
    /// Time without a connection after which the process of a user ends.
    pub idle: Duration,
    /// True if the daemon started this process. The process then ends when its standard input,
    /// which the daemon holds open, is closed.
    pub of_daemon: bool,
}

/// Serves the page until a signal arrives or, with [`HostOptions::of_daemon`], until standard input
/// is closed. Serves all users if the process runs as root, otherwise only its own user.
pub fn serve(options: HostOptions) -> Result<(), String> {
    let signals = sys::signal::watch_stop_signals().map_err(|error| error.to_string())?;
    // The host needs three descriptors for the process of each user, and one for each connection.
    let _ = sys::process::raise_descriptor_limit();
    let serves_all = sys::process::effective_ids().0 == 0;
    let admission = if serves_all { AllowedUsers::AllUsers } else { AllowedUsers::OwnUser };
    let listener = Listener::bind(&options.listen, admission)
        .map_err(|error| options.listen.describe_failure(&error))?;
    let page_socket = PageSocket::open(options.daemon.as_deref(), admission)?;
    let address = listener.describe().map_err(|error| error.to_string())?;
    let accounts = Accounts::new(address.clone(), options.daemon.clone(), options.idle);
    page_socket.serve(&accounts).map_err(|error| format!("cannot start: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let stdin = io::stdin();
        let mut ends: Vec<BorrowedFd<'_>> = vec![signals.as_fd()];
        ends.extend(options.of_daemon.then(|| stdin.as_fd()));
        while !sys::poll::wait_until_readable_despite_signals(&ends, None).contains(&true) {}
        ended.send(())
    });
    log_line(&match serves_all {
        true => format!("the page of all users is at {address}"),
        false => format!("the page of user {} is at {address}", sys::process::effective_ids().0),
    });
    let ready = sys::service::notify(&format!("READY=1\nSTATUS=at {address}"), &[]);
    let _ = ready.inspect_err(|error| log_warning(&format!("the service manager: {error}")));
    let served = runtime.block_on(async {
        let (files, incoming) = mpsc::channel(1);
        let host = Arc::new(Host { accounts, files });
        let files = axum::serve(IncomingConnections(incoming), close_after_reply(static_routes()));
        tokio::select! {
            served = Arc::clone(&host).accept(&listener) => served,
            served = files.into_future() => served,
            _ = end => Ok(()),
        }
    });
    runtime.shutdown_background();
    served.map_err(|error| format!("the page ended: {error}"))
}

/// The server process that all users share.
#[derive(Debug)]
struct Host {
    accounts: Arc<Accounts>,
    /// Channel for the connections to which the host itself replies, with static files of the page.
    files: mpsc::Sender<Connection>,
}

impl Host {
    /// Accepts connections in an endless loop. After an error, pauses and continues. Fails only if
    /// the listener cannot be used asynchronously.
    async fn accept(self: Arc<Self>, listener: &Listener) -> io::Result<()> {
        let places = PendingConnections::new(CONNECTIONS_MAX);
        let accepts = AsyncListener::new(listener)?;
        loop {
            match accepts.accept().await {
                Ok(socket) => {
                    // If all places are taken by connections in handover, the new connection is
                    // closed.
                    if let Some((place, end)) = places.take() {
                        tokio::spawn(Arc::clone(&self).route_connection(socket, place, end));
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Finds the user of a connection, and hands the connection to the user's process. The host
    /// itself replies to a request for a file of the page, and to a request without a valid token.
    async fn route_connection(
        self: Arc<Self>,
        socket: Socket,
        place: PendingConnection,
        mut end: oneshot::Receiver<()>,
    ) {
        let head = match &socket {
            Socket::Tcp(_) => tokio::select! {
                head = tokio::time::timeout(REQUEST_HEAD_TIMEOUT, socket.read_head()) => head,
                _ = &mut end => return,
            },
            // The kernel reports the user of the peer, so the head is not needed.
            Socket::Unix(_) => Ok(Ok(Vec::new())),
        };
        let Ok(Ok(head)) = head else { return };
        let account = match &socket {
            Socket::Tcp(_) => find_authorization(&head).and_then(|given| self.accounts.find(given)),
            Socket::Unix(socket) => {
                match peer_ids(socket).map(|who| self.accounts.open(&who, false)) {
                    Some(Ok(account)) => Some(account),
                    _ => return,
                }
            }
        };
        match account {
            Some(account) => {
                place.set_stage(Stage::Handover);
                hand_over(&account.process, socket, head).await;
            }
            None => {
                place.set_stage(Stage::File);
                let limit = async {
                    let _ = tokio::time::timeout(FILE_TIMEOUT, end).await;
                };
                let connection = Connection::new(socket, head, place).lasting_until(limit);
                // Sending cannot fail, because the receiver lives as long as the runtime.
                let _ = self.files.send(connection).await;
            }
        }
    }
}

/// Hands a connection to the process of a user. If that fails, replies with the reason.
async fn hand_over(process: &Arc<UserProcess>, socket: Socket, head: Vec<u8>) {
    let process = Arc::clone(process);
    let sent = tokio::task::spawn_blocking(move || {
        let message = [&[socket.kind()], head.as_slice()].concat();
        let sent = process.hand_over(&message, socket.as_fd());
        let sent = sent.inspect_err(|why| process.report_refusal(why));
        sent.map_err(|why| (socket, why))
    });
    let Ok(Err((socket, why))) = sent.await else { return };
    let body = serde_json::json!({ "error": why }).to_string();
    let reply = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: \
         close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A new connection has room in its send buffer, and a disconnected peer needs no reply.
    let _ = match &socket {
        Socket::Tcp(socket) => socket.try_write(reply.as_bytes()),
        Socket::Unix(socket) => socket.try_write(reply.as_bytes()),
    };
}

/// The listener of the page, registered with the async runtime.
enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl AsyncListener {
    fn new(listener: &Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(socket) => {
                tokio::net::TcpListener::from_std(socket.try_clone()?).map(Self::Tcp)
            }
            Listener::Unix(socket, ..) => {
                tokio::net::UnixListener::from_std(socket.try_clone()?).map(Self::Unix)
            }
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}
