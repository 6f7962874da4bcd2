//! The native protocol of journald: one datagram per entry, with a field per line
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).
//!
//! A log entry has at most about 20 KB, far less than the maximum size of a datagram, so entries
//! need not be passed in memfds.

use super::record::Record;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The socket that sends entries to journald.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    /// Address of journald. It is used for every datagram, so a restart of journald causes no
    /// failure.
    address: PathBuf,
}

impl Journal {
    /// Opens a socket. Fails if no socket at the address accepts datagrams.
    pub(super) fn open(address: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // Connects another socket only to test that the address accepts datagrams.
        UnixDatagram::unbound()?.connect(address)?;
        Ok(Self { socket, address: address.to_owned() })
    }

    /// Sends a line as one entry. Never blocks; fails if the queue of journald is full or journald
    /// is not running.
    pub(super) fn send(&self, record: &Record) -> io::Result<()> {
        self.socket.send_to(&record.to_journal(), &self.address).map(|_| ())
    }
}
