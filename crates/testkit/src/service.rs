//! A service manager for tests. Like systemd, it stores descriptors while a service restarts: it
//! implements `FDSTORE=1` (sd_notify(3)) and `LISTEN_FDS` (sd_listen_fds(3)).

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A service manager with a notification socket and a descriptor store.
#[derive(Debug)]
pub struct ServiceManager {
    socket: PathBuf,
    store: Arc<Mutex<Vec<(String, OwnedFd)>>>,
    /// Number of keep-alive pings (`WATCHDOG=1`) that the service has sent.
    watchdog_pings: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Lowest descriptor number for the duplicates that a starting service inherits. The duplicates are
/// then redirected to the numbers that the service expects, all of which are lower.
const DUPLICATE_DESCRIPTOR_MIN: i32 = 600;
/// Interval at which the thread that receives notifications checks whether the manager has been
/// dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of stored descriptors, announced to the service in `FDSTORE`.
const STORED_DESCRIPTORS_MAX: usize = 512;

impl ServiceManager {
    /// Starts a manager that listens on the socket `notify` in the directory `folder`.
    ///
    /// # Panics
    /// If the socket cannot be created.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let socket = folder.join("notify");
        let notified = UnixDatagram::bind(&socket).expect("a socket");
        notified.set_nonblocking(true).expect("a socket");
        let (store, stopping) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let reports = Arc::new(AtomicUsize::new(0));
        let (stored, ends) = (Arc::clone(&store), Arc::clone(&stopping));
        let counted = Arc::clone(&reports);
        let listens = move || {
            let mut before = false;
            loop {
                // Messages sent before the manager was dropped are still received.
                let last = ends.load(Ordering::Relaxed);
                receive_notifications(&notified, &stored, &counted);
                if last && before {
                    return;
                }
                before = last;
                let _ = sys::poll::wait_until_readable(
                    &[std::os::fd::AsFd::as_fd(&notified)],
                    Some(if last { Duration::ZERO } else { POLL_INTERVAL }),
                );
            }
        };
        let thread = Some(std::thread::spawn(listens));
        Self { socket, store, watchdog_pings: reports, stopping, thread }
    }

    /// Returns the names of the stored descriptors, sorted.
    #[must_use]
    pub fn stored_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the number of keep-alive pings to the watchdog (`WATCHDOG=1`) so far.
    #[must_use]
    pub fn watchdog_ping_count(&self) -> usize {
        self.watchdog_pings.load(Ordering::Relaxed)
    }

    /// Returns duplicates of the stored descriptors whose names contain `part`, sorted by name.
    ///
    /// # Panics
    /// If a descriptor cannot be duplicated.
    #[must_use]
    pub fn duplicate_stored_descriptors(&self, part: &str) -> Vec<OwnedFd> {
        let store = self.lock();
        let mut those: Vec<_> = store.iter().filter(|(name, _)| name.contains(part)).collect();
        those.sort_unstable_by_key(|(name, _)| name.clone());
        those.iter().map(|(_, stored)| stored.try_clone().expect("a copy")).collect()
    }

    /// Stores a descriptor under a name.
    pub fn store(&self, name: &str, descriptor: OwnedFd) {
        self.lock().push((name.to_owned(), descriptor));
    }

    /// Runs the command line `service`, which inherits all stored descriptors. `shell` must start
    /// bash, directly or through a wrapper; this function adds the descriptors and the command line
    /// to its arguments. `start` starts the resulting command, and must not return before the
    /// process is running. Returns the result of `start`.
    ///
    /// # Panics
    ///
    /// If a descriptor cannot be duplicated.
    pub fn run_service<A>(
        &self,
        mut shell: Command,
        service: &[String],
        start: impl FnOnce(&mut Command) -> A,
    ) -> A {
        let store = self.lock();
        // The duplicates have higher numbers than all targets, so no redirection overwrites a
        // source.
        let away = store
            .iter()
            .map(|(_, descriptor)| fcntl_dupfd_cloexec(descriptor, DUPLICATE_DESCRIPTOR_MIN));
        let away: Vec<OwnedFd> = away.collect::<Result<_, _>>().expect("copies");
        let mut places = String::new();
        for (place, descriptor) in (3..).zip(&away) {
            fcntl_setfd(descriptor, FdFlags::empty()).expect("a descriptor");
            // Each descriptor has a separate `exec` command, because within a single one the shell
            // keeps duplicates at numbers of its choice.
            places += &format!("exec {place}<&{0}; exec {0}<&-; ", descriptor.as_raw_fd());
        }
        let names: Vec<&str> = store.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!(
            "{places} export LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={}; exec \"$@\"",
            store.len(),
            names.join(":")
        );
        shell.args(["-c", &script, "bash"]).args(service);
        shell.env("NOTIFY_SOCKET", &self.socket).env("FDSTORE", STORED_DESCRIPTORS_MAX.to_string());
        start(&mut shell)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, OwnedFd)>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Handles all pending notifications of the service, without blocking.
fn receive_notifications(
    notified: &UnixDatagram,
    stored: &Mutex<Vec<(String, OwnedFd)>>,
    reports: &AtomicUsize,
) {
    let mut bytes = [0; 4096];
    let mut store = stored.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok(Some((length, descriptors))) = sys::descriptor::try_receive(notified, &mut bytes) {
        let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored").to_owned();
        if text.lines().any(|line| line == "WATCHDOG=1") {
            reports.fetch_add(1, Ordering::Relaxed);
        } else if text.contains("FDSTOREREMOVE=1") {
            store.retain(|(known, _)| *known != name);
        } else if text.contains("FDSTORE=1") {
            store.extend(descriptors.into_iter().map(|fd| (name.clone(), fd)));
        }
    }
}
