//! The process of a user in a page for several users. It serves the connections that it receives
//! from the host, with the credentials of the user.
//!
//! Standard input is a socket to the host. The first message contains the settings. Each further
//! message contains a connection, the kind of its socket, and the bytes that the host has already
//! read from the connection. After a time without an open connection, the process sends the number
//! of connections that it has received so far. If the host has sent no further connection in the
//! meantime, it closes the socket, which ends the process.

use crate::access::Token;
use crate::captures::Captures;
use crate::commands::StreamlineProgram;
use crate::connection::{Connection, HEAD_MAX, IncomingConnections, Socket};
use crate::live::LiveFigures;
use crate::server::{Server, close_after_reply};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Command-line argument that makes the program run as the process of a user.
pub const USER_PROCESS_FLAG: &str = "--of-user";
/// Maximum length in bytes of the first message of the host, which contains the settings.
const SETTINGS_BYTES_MAX: usize = 8192;
/// Maximum number of connections that wait for the HTTP server.
const WAITING_CONNECTIONS_MAX: usize = 64;

/// The settings of a user's process. They are the first message that the process receives from the
/// host.
#[derive(Serialize, Deserialize)]
pub(super) struct Settings {
    /// The token that each request must contain; `None` if the kernel identifies the user.
    pub(super) token: Option<String>,
    /// Directory of the daemon, if it is not a standard one.
    pub(super) daemon: Option<PathBuf>,
    /// Time without a connection after which the process can end, in ms.
    pub(super) idle_ms: u64,
}

/// The number of connections that this process has received so far, and the number of those that
/// are open now.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionCounts {
    received: u64,
    open: u64,
}

/// A guard for an open connection: the process counts the connection as open until the guard is
/// dropped.
struct OpenConnection(watch::Sender<ConnectionCounts>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.send_modify(|counts| counts.open -= 1);
    }
}

/// Serves connections until the host closes the socket, or a signal arrives.
pub fn serve() -> Result<(), String> {
    let failed = |error: sys::Error| error.to_string();
    let signals = sys::signal::watch_stop_signals().map_err(failed)?;
    let control = sys::process::detach_stdin().map_err(failed)?;
    let mut message = [0; SETTINGS_BYTES_MAX];
    let (length, _) = sys::descriptor::receive(&control, &mut message).map_err(failed)?;
    let settings = message.get(..length).unwrap_or_default();
    let Settings { token, daemon, idle_ms } = serde_json::from_slice(settings)
        .map_err(|_| "only the page for all users starts this process".to_owned())?;
    if let Some(home) = std::env::var_os("HOME") {
        // Relative file names refer to the home directory. An error leaves the working directory
        // unchanged.
        let _ = std::env::set_current_dir(home);
    }
    let captures = Arc::new(Captures::default());
    let server = Server {
        program: StreamlineProgram::find(daemon.clone()),
        live: LiveFigures::new(daemon),
        token: token.map(Token::from_text),
        captures: Arc::clone(&captures),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let (connections, incoming) = mpsc::channel(WAITING_CONNECTIONS_MAX);
    let counts = watch::Sender::new(ConnectionCounts::default());
    let (ended, end) = tokio::sync::oneshot::channel();
    let control = Arc::new(control);
    let (handle, from_host, counted) =
        (runtime.handle().clone(), Arc::clone(&control), counts.clone());
    std::thread::spawn(move || {
        let _in_runtime = handle.enter();
        receive_connections(&from_host, signals, (&connections, &counted));
        ended.send(())
    });
    let idle = Duration::from_millis(idle_ms);
    let served = runtime.block_on(async {
        let routes = axum::serve(IncomingConnections(incoming), close_after_reply(server.routes()));
        tokio::select! {
            served = routes.into_future() => served,
            () = report_idle(&control, counts.subscribe(), (idle, &captures)) => Ok(()),
            _ = end => Ok(()),
        }
    });
    runtime.shutdown_background();
    captures.stop_all();
    served.map_err(|error| format!("the page ended: {error}"))
}

/// Receives connections until the host closes the socket or a signal arrives.
fn receive_connections(
    control: &OwnedFd,
    signals: &sys::eventfd::EventFd,
    (connections, counts): (&mpsc::Sender<Connection>, &watch::Sender<ConnectionCounts>),
) {
    use std::os::fd::AsFd as _;
    let mut message = vec![0; HEAD_MAX + 1];
    loop {
        let ready = sys::poll::wait_until_readable_despite_signals(
            &[control.as_fd(), signals.as_fd()],
            None,
        );
        if ready.get(1) == Some(&true) {
            return;
        }
        let (length, mut passed) = match sys::descriptor::try_receive(control, &mut message) {
            Ok(None) => continue,
            Ok(Some((0, _))) | Err(_) => return,
            Ok(Some(received)) => received,
        };
        counts.send_modify(|counts| {
            counts.received += 1;
            counts.open += 1;
        });
        let open = OpenConnection(counts.clone());
        let Some((&kind, head)) = message.get(..length).and_then(<[u8]>::split_first) else {
            continue;
        };
        let socket = passed.pop().map(|socket| Socket::from_descriptor(kind, socket));
        if let Some(Ok(socket)) = socket {
            // Sending cannot fail, because the receiver lives as long as the runtime.
            let _ = connections.blocking_send(Connection::new(socket, head.to_vec(), open));
        }
    }
}

/// Reports to the host that this process is idle. Sends a report whenever no connection has been
/// open for the time `idle`, unless a capture is running. Returns when the runtime shuts down.
async fn report_idle(
    control: &OwnedFd,
    mut counts: watch::Receiver<ConnectionCounts>,
    (idle, captures): (Duration, &Captures),
) {
    loop {
        // An error means that the runtime is shutting down, because the sender lives as long as the
        // runtime.
        let Ok(now) = counts.wait_for(|counts| counts.open == 0).await.map(|counts| *counts) else {
            return;
        };
        let quiet = tokio::time::timeout(idle, counts.changed()).await.is_err();
        if !quiet || captures.has_running_capture() {
            continue;
        }
        // An error means that the host has exited, which `receive_connections` detects.
        let _ = sys::local_socket::send_nonblocking(control, &now.received.to_le_bytes(), &[]);
        if counts.changed().await.is_err() {
            return;
        }
    }
}
