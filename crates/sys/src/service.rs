//! The service manager's protocols: socket activation (`LISTEN_FDS`, sd_listen_fds(3)),
//! notifications with descriptors that the manager stores across a restart (`NOTIFY_SOCKET`,
//! sd_notify(3), `FDSTORE`), and the watchdog (`WATCHDOG_USEC`, sd_watchdog_enabled(3)).

use crate::descriptor::{DESCRIPTORS_MAX, send};
use crate::error::{Error, ErrorContext as _, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of the first descriptor that a service manager passes.
const FIRST_DESCRIPTOR: RawFd = 3;
/// Maximum number of passed descriptors that this process accepts.
const PASSED_DESCRIPTORS_MAX: RawFd = 1024;

/// Returns the descriptors passed to this process by the service manager, with their names. Only
/// the first call returns any.
pub fn take_descriptors() -> Vec<(String, OwnedFd)> {
    static HAS_TAKEN_DESCRIPTORS: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<i64>().ok();
    let ours = number("LISTEN_PID") == Some(i64::from(std::process::id()));
    let count = number("LISTEN_FDS").and_then(|count| RawFd::try_from(count).ok()).unwrap_or(0);
    if !ours || HAS_TAKEN_DESCRIPTORS.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let taken = (FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + count.clamp(0, PASSED_DESCRIPTORS_MAX))
        .filter_map(|raw| {
            let name = names.next().unwrap_or_default();
            // SAFETY: fcntl(2) accepts any number, and returns an error for a descriptor that is
            // not open.
            let flags = unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) };
            // SAFETY: it is open, was open before this process began (the variables name this
            // process), and is given out once: no other value owns it (sd_listen_fds(3)).
            (flags == 0).then(|| (name, unsafe { OwnedFd::from_raw_fd(raw) }))
        });
    taken.collect()
}

/// Sends assignments such as `READY=1`, one per line, to the service manager, with duplicates of
/// `descriptors`. Returns false if there is no service manager.
pub fn notify(lines: &str, descriptors: &[BorrowedFd<'_>]) -> Result<bool> {
    send_lines(lines, descriptors, SocketFlags::CLOEXEC)
}

/// Sends like [`notify`], but never blocks. Fails if the manager does not read.
pub fn try_notify(lines: &str, descriptors: &[BorrowedFd<'_>]) -> Result<bool> {
    send_lines(lines, descriptors, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Sends like [`notify`], but blocks for at most `limit`. Fails if the manager does not read in
/// time.
pub fn notify_within(lines: &str, descriptors: &[BorrowedFd<'_>], limit: Duration) -> Result<bool> {
    let Some(socket) = connect_to_service_manager(SocketFlags::CLOEXEC)? else { return Ok(false) };
    set_socket_timeout(&socket, Timeout::Send, Some(limit))
        .context("setsockopt", "NOTIFY_SOCKET")?;
    send(&socket, lines.as_bytes(), descriptors)?;
    Ok(true)
}

/// Returns true if a service manager receives notifications of this process.
#[must_use]
pub fn has_service_manager() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

/// Returns true if the service manager offers to store descriptors across a restart.
#[must_use]
pub fn can_store_descriptors() -> bool {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let most = named("FDSTORE").and_then(|most| most.into_string().ok()?.parse::<u64>().ok());
    named("NOTIFY_SOCKET").is_some() && most.is_some_and(|most| most > 0)
}

/// Returns the interval within which the service manager expects `WATCHDOG=1` from this process,
/// or `None` if it expects none.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_other = |pid: u64| pid != u64::from(std::process::id());
    if std::env::var_os("WATCHDOG_PID").is_some() && number("WATCHDOG_PID").is_none_or(is_other) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|limit| *limit > 0).map(Duration::from_micros)
}

/// Creates a memfd that contains these bytes, for the service manager to store.
pub fn memfd_from_bytes(bytes: &[u8]) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    let note = memfd_create("streamline-note", flags).context("memfd_create", "a note")?;
    File::from(note.try_clone().map_err(|e| Error::new("dup", "a note", error_number(&e)))?)
        .write_all(bytes)
        .map_err(|e| Error::new("write", "a note", error_number(&e)))?;
    Ok(note)
}

fn error_number(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn send_lines(lines: &str, descriptors: &[BorrowedFd<'_>], flags: SocketFlags) -> Result<bool> {
    let Some(socket) = connect_to_service_manager(flags)? else { return Ok(false) };
    debug_assert!(descriptors.len() <= DESCRIPTORS_MAX);
    send(&socket, lines.as_bytes(), descriptors)?;
    Ok(true)
}

/// Connects to the service manager; returns `None` if there is none.
fn connect_to_service_manager(flags: SocketFlags) -> Result<Option<OwnedFd>> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let address = service_manager_address(&path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
        .context("socket", "AF_UNIX")?;
    connect(&socket, &address).context("connect", "NOTIFY_SOCKET")?;
    Ok(Some(socket))
}

fn service_manager_address(path: &OsStr) -> Result<SocketAddrUnix> {
    match path.as_bytes() {
        [b'@', name @ ..] => {
            SocketAddrUnix::new_abstract_name(name).context("connect", "NOTIFY_SOCKET")
        }
        [b'/', ..] => SocketAddrUnix::new(path).context("connect", "NOTIFY_SOCKET"),
        _ => Err(Error::new("connect", "NOTIFY_SOCKET", libc::EAFNOSUPPORT)),
    }
}
