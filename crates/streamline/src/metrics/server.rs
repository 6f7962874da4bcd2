//! A small HTTP server that answers `GET /metrics`.
//!
//! One thread accepts connections, and each connection gets a thread for a single request. The
//! number of connections, the length of a request and the time for it are bounded. The server reads
//! no request body, and closes each connection after the response.

use super::format::{to_open_metrics, to_text};
use super::target::MetricsTarget;
use crate::figures::PathFigures;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::eventfd::EventFd;

/// Maximum number of connections that are served at the same time.
const CONNECTIONS_MAX: usize = 16;
/// Maximum length of a request head, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum time for reading a request, and for each write of its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example when the process has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Media type of OpenMetrics.
const OPEN_METRICS_MEDIA_TYPE: &str = "application/openmetrics-text";

/// Function that returns the current figures of all paths; the threads that serve connections call
/// it for each request.
type CollectFigures = Arc<dyn Fn() -> Vec<PathFigures> + Send + Sync>;

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct MetricsServer {
    place: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// Path of the socket that is removed when the server stops; `None` if the server listens on an
    /// address.
    socket: Option<PathBuf>,
}

/// A failure to start a server on an address or socket.
#[derive(Debug)]
pub struct ServerError {
    /// The place at which the server could not start: the URL of the address, or `unix:` and the
    /// path of the socket.
    pub place: String,
    /// The reason for the failure.
    pub error: io::Error,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.error.to_string();
        let why = text.split(" (os error").next().unwrap_or_default().to_lowercase();
        write!(f, "cannot serve metrics at {}: {why}", self.place)?;
        if self.error.kind() == io::ErrorKind::AddrInUse {
            f.write_str("; choose another port, or :0 for any free one")?;
        }
        Ok(())
    }
}

enum Listener {
    Internet(TcpListener),
    Local(UnixListener),
}

impl MetricsServer {
    /// Starts a server on an address or socket. Returns `None` if the target is a file.
    pub fn start(
        target: &MetricsTarget,
        figures: impl Fn() -> Vec<PathFigures> + Send + Sync + 'static,
    ) -> Result<Option<Self>, ServerError> {
        let failed = |place: String| |error| ServerError { place, error };
        let (listener, place, socket) = match target {
            MetricsTarget::File(_) => return Ok(None),
            MetricsTarget::Address(address) => {
                let (listener, address) =
                    listen(*address).map_err(failed(format!("http://{address}/metrics")))?;
                (Listener::Internet(listener), format!("http://{address}/metrics"), None)
            }
            MetricsTarget::Socket(path) => {
                let place = format!("unix:{}", path.display());
                let listener = listen_locally(path).map_err(failed(place.clone()))?;
                (Listener::Local(listener), place, Some(path.clone()))
            }
        };
        let stop = EventFd::new().map_err(|error| ServerError {
            place: place.clone(),
            error: io::Error::from_raw_os_error(error.errno),
        })?;
        let stop = Arc::new(stop);
        let (stopped, figures) = (Arc::clone(&stop), Arc::new(figures) as CollectFigures);
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || serve(&listener, &stopped, &figures));
        let thread = Some(thread.map_err(failed(place.clone()))?);
        Ok(Some(Self { place, stop, thread, socket }))
    }

    /// Returns the server's URL, such as `http://127.0.0.1:9464/metrics`, or `unix:` and the path
    /// of its socket.
    #[must_use]
    pub fn display_address(&self) -> &str {
        &self.place
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread cannot be reported here.
            let _ = thread.join();
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Listens on a Unix socket. Replaces an existing socket that no process listens on any more.
fn listen_locally(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path).or_else(|error| {
        let is_socket = path.metadata().is_ok_and(|about| about.file_type().is_socket());
        let is_abandoned = is_socket
            && UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if error.kind() != io::ErrorKind::AddrInUse || !is_abandoned {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        UnixListener::bind(path)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Internet(listener) => listener.as_fd(),
            Self::Local(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Internet(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Box::new(stream))
            }
            Self::Local(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A connection from a client.
trait Connection: Read + Write + Send {
    /// Limits the time of each subsequent read and write.
    fn set_timeouts(&self, time: Duration) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_timeouts(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Connection for UnixStream {
    fn set_timeouts(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// Serves connections, each in its own thread, until `stop` is notified. Beyond [`CONNECTIONS_MAX`]
/// connections, responds that the server is busy.
fn serve(listener: &Listener, stop: &EventFd, figures: &CollectFigures) {
    let active = Arc::new(AtomicUsize::new(0));
    loop {
        let ready = sys::poll::wait_until_readable(&[stop.as_fd(), listener.descriptor()], None);
        if ready.first() == Some(&true) {
            return;
        }
        let mut connection = match listener.accept() {
            Ok(connection) => connection,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {
                let _ = sys::poll::wait_until_readable(&[stop.as_fd()], Some(ACCEPT_PAUSE));
                continue;
            }
        };
        if active.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            active.fetch_sub(1, Ordering::Relaxed);
            let _ = connection.set_timeouts(ACCEPT_PAUSE);
            let _ = connection.write_all(&format_response(
                "503 Service Unavailable",
                "text/plain",
                "busy\n",
            ));
            continue;
        }
        let (figures, counted) = (Arc::clone(figures), Arc::clone(&active));
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let started = thread.spawn(move || {
            // A client that has hung up needs no response.
            let _ = serve_connection(&mut *connection, &figures);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads one request and writes its response.
fn serve_connection(connection: &mut dyn Connection, figures: &CollectFigures) -> io::Result<()> {
    let reply = match read_head(connection) {
        Ok(head) => respond(&head, figures),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => format_response(
            "431 Request Header Fields Too Large",
            "text/plain",
            "the request is too long\n",
        ),
        Err(error) => return Err(error),
    };
    connection.set_timeouts(CONNECTION_TIMEOUT)?;
    connection.write_all(&reply)
}

/// Reads the head of a request. Fails with `InvalidData` if the head is longer than
/// [`HEAD_BYTES_MAX`], with `UnexpectedEof` if the client closes the connection before the head is
/// complete, and with a timeout error if the head is incomplete after [`CONNECTION_TIMEOUT`].
fn read_head(connection: &mut dyn Connection) -> io::Result<String> {
    let deadline = Instant::now() + CONNECTION_TIMEOUT;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_timeouts(remaining)?;
        match connection.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&chunk[..n]),
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn respond(head: &str, figures: &CollectFigures) -> Vec<u8> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let accepts = head.lines().filter_map(|line| line.split_once(':'));
            let is_open_metrics = accepts
                .filter(|(name, _)| name.eq_ignore_ascii_case("accept"))
                .any(|(_, value)| value.contains(OPEN_METRICS_MEDIA_TYPE));
            let figures = figures();
            let (kind, body) = match is_open_metrics {
                true => (
                    format!("{OPEN_METRICS_MEDIA_TYPE}; version=1.0.0; charset=utf-8"),
                    to_open_metrics(&figures),
                ),
                false => ("text/plain; version=0.0.4; charset=utf-8".to_owned(), to_text(&figures)),
            };
            let mut reply = format_response("200 OK", &kind, &body);
            if method == "HEAD" {
                reply.truncate(reply.len() - body.len());
            }
            reply
        }
        ("GET" | "HEAD", _) => {
            format_response("404 Not Found", "text/plain", "the metrics are at /metrics\n")
        }
        _ => format_response("405 Method Not Allowed", "text/plain", "only GET and HEAD\n"),
    }
}

fn format_response(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET, \
         HEAD\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
