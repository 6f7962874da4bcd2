//! Accepted connections, in a form that the HTTP server can serve.

use std::fmt;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

/// Maximum length of the head of an HTTP request, in bytes.
pub const HEAD_MAX: usize = 16 << 10;

/// The socket of a connection.
#[derive(Debug)]
pub enum Socket {
    /// A connection to a TCP port.
    Tcp(TcpStream),
    /// A connection to a Unix socket.
    Unix(UnixStream),
}

/// Byte that identifies a TCP socket in a message.
const TCP_SOCKET_BYTE: u8 = b't';
/// Byte that identifies a Unix socket in a message.
const UNIX_SOCKET_BYTE: u8 = b'u';

impl Socket {
    /// Takes ownership of a socket that another process has sent, together with the byte `kind`
    /// that identifies the kind of socket. Fails if `kind` or the descriptor is invalid. Must be
    /// called within a Tokio runtime.
    pub fn from_descriptor(kind: u8, descriptor: OwnedFd) -> io::Result<Self> {
        match kind {
            TCP_SOCKET_BYTE => {
                let socket = StdTcpStream::from(descriptor);
                socket.set_nonblocking(true)?;
                TcpStream::from_std(socket).map(Self::Tcp)
            }
            UNIX_SOCKET_BYTE => {
                let socket = StdUnixStream::from(descriptor);
                socket.set_nonblocking(true)?;
                UnixStream::from_std(socket).map(Self::Unix)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns the byte that identifies the kind of the socket.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Tcp(_) => TCP_SOCKET_BYTE,
            Self::Unix(_) => UNIX_SOCKET_BYTE,
        }
    }

    /// Receives the head of the first request, and any bytes that have arrived after the head.
    /// Fails if the head is longer than [`HEAD_MAX`], or if the peer closes the connection before
    /// the end of the head.
    pub async fn read_head(&self) -> io::Result<Vec<u8>> {
        let mut head = Vec::with_capacity(2048);
        let mut part = [0; 2048];
        while !head.windows(4).any(|window| window == b"\r\n\r\n") {
            let room = part.len().min(HEAD_MAX.saturating_sub(head.len()));
            let length = match room {
                0 => return Err(io::ErrorKind::InvalidData.into()),
                room => self.receive(&mut part[..room]).await?,
            };
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            head.extend_from_slice(part.get(..length).unwrap_or_default());
        }
        Ok(head)
    }

    async fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let received = match self {
                Self::Tcp(socket) => socket.readable().await.and_then(|()| socket.try_read(to)),
                Self::Unix(socket) => socket.readable().await.and_then(|()| socket.try_read(to)),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A connection to a browser for the HTTP server. Its first bytes may already have been received,
/// to determine the user.
pub struct Connection {
    socket: Socket,
    /// Received bytes that the HTTP server has not yet read.
    received: Vec<u8>,
    /// Future whose completion closes the connection; `None` if no future closes it.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// True once the future `end` has completed, so that the connection closes.
    has_ended: bool,
    /// A value that the owner of the connection has attached to it; it is dropped with the
    /// connection.
    _guard: Box<dyn Send>,
}

impl Connection {
    /// Creates a connection on a socket. `received` contains the bytes that have already been read
    /// from the socket. `guard` is dropped when the connection is dropped.
    pub fn new(socket: Socket, received: Vec<u8>, guard: impl Send + 'static) -> Self {
        Self { socket, received, end: None, has_ended: false, _guard: Box::new(guard) }
    }

    /// Makes the connection end when the future `end` completes.
    #[must_use]
    pub fn lasting_until(self, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { end: Some(Box::pin(end)), ..self }
    }

    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(end) = &mut self.end else { return Ok(()) };
        // A future must not be polled again after its completion.
        self.has_ended = self.has_ended || end.as_mut().poll(context).is_ready();
        match self.has_ended {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The received bytes contain the token, which must not be printed.
        out.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, to),
            Self::Unix(socket) => Pin::new(socket).poll_read(context, to),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.check_end(context)?;
        if connection.received.is_empty() {
            return Pin::new(&mut connection.socket).poll_read(context, to);
        }
        let length = to.remaining().min(connection.received.len());
        to.put_slice(connection.received.get(..length).unwrap_or_default());
        connection.received.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.check_end(context)?;
        let written = match &mut connection.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        };
        Poll::Ready(ready!(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Socket::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}

/// A listener for connections that another task or thread has accepted.
#[derive(Debug)]
pub struct IncomingConnections(pub mpsc::Receiver<Connection>);

impl axum::serve::Listener for IncomingConnections {
    type Io = Connection;
    type Addr = ();

    async fn accept(&mut self) -> (Connection, ()) {
        match self.0.recv().await {
            Some(connection) => (connection, ()),
            // The channel is closed. The server is stopped by other means.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the value of the first `Authorization` header in the head of a request, or `None` if
/// there is no such header.
#[must_use]
pub fn find_authorization(head: &[u8]) -> Option<&str> {
    let end = head.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(head.len());
    let lines = head.get(..end)?.split(|byte| *byte == b'\n').skip(1);
    let headers = lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'));
    let mut headers = headers.map(|(name, value)| (name, value.trim()));
    headers.find(|(name, _)| name.eq_ignore_ascii_case("authorization")).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_is_found_in_the_head_only() {
        let head = |text: &str| find_authorization(text.as_bytes()).map(str::to_owned);
        let found = Some("Bearer x:1".to_owned());
        assert_eq!(head("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x:1\r\n\r\n"), found);
        assert_eq!(head("GET / HTTP/1.1\r\naUTHORIZATION:Bearer x:1 \r\n\r\n"), found);
        assert_eq!(head("GET / HTTP/1.1\r\n\r\nAuthorization: Bearer x:1\r\n\r\n"), None);
        assert_eq!(head("Authorization: Bearer x:1\r\n\r\n"), None, "the first line");
        assert_eq!(head("GET / HTTP/1.1\r\n\u{fffd}\r\n\r\n"), None);
    }
}
