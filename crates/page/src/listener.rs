//! The sockets of the server: TCP on a loopback address, or a Unix socket.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address on which the server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A loopback address and a port; port 0 selects any free port.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("`unix:` needs the path of a socket".to_owned()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let address = match text.parse::<u16>() {
            Ok(port) => SocketAddr::from(([127, 0, 0, 1], port)),
            Err(_) => text.replace("localhost:", "127.0.0.1:").parse().map_err(|_| {
                "an address is PORT, 127.0.0.1:PORT, [::1]:PORT or unix:PATH".to_owned()
            })?,
        };
        match address.ip().is_loopback() {
            true => Ok(Self::Tcp(address)),
            false => Err(format!(
                "{} can be reached from other machines, to which the page would be sent \
                 unencrypted: listen at 127.0.0.1, and reach it by `ssh -L`",
                address.ip()
            )),
        }
    }
}

impl Address {
    /// The default address of the page.
    pub const DEFAULT: Self = Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7575));

    /// Returns a message that explains why the server cannot listen on this address.
    #[must_use]
    pub fn describe_failure(&self, error: &io::Error) -> String {
        let (place, used) = match self {
            Self::Tcp(address) => (address.to_string(), "`--listen 0` selects a free port"),
            Self::Unix(path) => (path.display().to_string(), "another page listens there"),
        };
        match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::AlreadyExists => {
                format!("cannot listen at {place}: it is in use; {used}")
            }
            _ => format!("cannot listen at {place}: {error}"),
        }
    }
}

/// The set of users who can connect to a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowedUsers {
    /// Only the user who runs this process, and root.
    OwnUser,
    /// All users of the machine.
    AllUsers,
}

/// A listening socket. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket, with its path and the inode number of its file.
    Unix(UnixListener, PathBuf, u64),
}

impl Listener {
    /// Listens on an address. Replaces a Unix socket file on which no process listens.
    pub fn bind(address: &Address, admission: AllowedUsers) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = bind_private_socket(path, admission)?;
                listener.set_nonblocking(true)?;
                let inode = std::fs::symlink_metadata(path)?.ino();
                Ok(Self::Unix(listener, path.clone(), inode))
            }
        }
    }

    /// Returns the address of the socket for users: the URL without the token, or `unix:PATH`.
    pub fn describe(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(format!("http://{}/", listener.local_addr()?)),
            Self::Unix(_, path, _) => Ok(format!("unix:{}", path.display())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path, inode) = self
            && std::fs::symlink_metadata(&*path).is_ok_and(|found| found.ino() == *inode)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates a Unix socket whose file has its final permissions from the moment it appears at `path`:
/// the file is created in a private directory, and then moved.
fn bind_private_socket(path: &Path, admission: AllowedUsers) -> io::Result<UnixListener> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let mode = match admission {
        AllowedUsers::OwnUser => 0o600,
        AllowedUsers::AllUsers => 0o666,
    };
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let private = parent.join(format!(".streamline-page-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let bound = (|| {
        let inside = private.join(name);
        let listener = UnixListener::bind(&inside)?;
        // Requests carry no descriptors, so received descriptors are refused: closing one could
        // block.
        let refused = sys::abstract_socket::refuse_descriptors(&listener);
        refused.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
        std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(mode))?;
        // A link, unlike a rename, never replaces a file.
        std::fs::hard_link(&inside, path)?;
        std::fs::remove_file(&inside)?;
        Ok(listener)
    })();
    let _ = std::fs::remove_dir_all(&private);
    bound
}

/// Removes the file of a Unix socket if no process listens on the socket.
pub(crate) fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    match is_socket && UnixStream::connect(path).is_err_and(refused) {
        true => std::fs::remove_file(path),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_loopback_address_or_a_socket() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        assert_eq!("7575".parse(), Ok(tcp("127.0.0.1:7575")));
        assert_eq!("localhost:0".parse(), Ok(tcp("127.0.0.1:0")));
        assert_eq!("[::1]:80".parse(), Ok(tcp("[::1]:80")));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        for wrong in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "unix:", "here", ""] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
