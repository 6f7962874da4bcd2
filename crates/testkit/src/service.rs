//! A service manager of a test's own, which does what systemd does with `FDSTORE=1` (sd_notify(3))
//! and `LISTEN_FDS` (sd_listen_fds(3)): it keeps descriptors while a service starts again.

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A service manager, as the service sees it.
#[derive(Debug)]
pub struct Manager {
    socket: PathBuf,
    store: Arc<Mutex<Vec<(String, OwnedFd)>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Above all descriptors that a service has from the beginning.
const AWAY: i32 = 500;
/// The time between two looks at the end of the manager.
const LOOKS: Duration = Duration::from_millis(50);
/// The number of descriptors that it promises to keep.
const MOST: usize = 512;

impl Manager {
    /// A manager that listens in this folder.
    ///
    /// # Panics
    /// If it cannot.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let socket = folder.join("notify");
        let notified = UnixDatagram::bind(&socket).expect("a socket");
        notified.set_nonblocking(true).expect("a socket");
        let (store, stopping) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (stored, ends) = (Arc::clone(&store), Arc::clone(&stopping));
        let listens = move || {
            let mut before = false;
            loop {
                // What was said before it was to end is heard.
                let last = ends.load(Ordering::Relaxed);
                receive(&notified, &stored);
                if last && before {
                    return;
                }
                before = last;
                let _ = sys::poll::readable(
                    &[std::os::fd::AsFd::as_fd(&notified)],
                    Some(if last { Duration::ZERO } else { LOOKS }),
                );
            }
        };
        let thread = Some(std::thread::spawn(listens));
        Self { socket, store, stopping, thread }
    }

    /// Returns the names of the descriptors that it keeps, sorted.
    #[must_use]
    pub fn stored(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Copies of what it keeps under names of which this is part, in the order of the names.
    ///
    /// # Panics
    /// If descriptors cannot be copied.
    #[must_use]
    pub fn copies(&self, part: &str) -> Vec<OwnedFd> {
        let store = self.lock();
        let mut those: Vec<_> = store.iter().filter(|(name, _)| name.contains(part)).collect();
        those.sort_unstable_by_key(|(name, _)| name.clone());
        those.iter().map(|(_, stored)| stored.try_clone().expect("a copy")).collect()
    }

    /// Keeps another one.
    pub fn keep(&self, name: &str, descriptor: OwnedFd) {
        self.lock().push((name.to_owned(), descriptor));
    }

    /// Has `shell` (bash, with what comes before it) become this service, with all that is in the
    /// store, and hands the command to `start`, which must not return before the process runs.
    ///
    /// # Panics
    /// If descriptors cannot be copied.
    pub fn service<A>(
        &self,
        mut shell: Command,
        service: &[String],
        start: impl FnOnce(&mut Command) -> A,
    ) -> A {
        let store = self.lock();
        // Out of the way of the places to which they go.
        let away = store.iter().map(|(_, descriptor)| fcntl_dupfd_cloexec(descriptor, AWAY));
        let away: Vec<OwnedFd> = away.collect::<Result<_, _>>().expect("copies");
        let mut places = String::new();
        for (place, descriptor) in (3..).zip(&away) {
            fcntl_setfd(descriptor, FdFlags::empty()).expect("a descriptor");
            // One by one: within one redirection the shell keeps copies at places of its own.
            places += &format!("exec {place}<&{0}; exec {0}<&-; ", descriptor.as_raw_fd());
        }
        let names: Vec<&str> = store.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!(
            "{places} export LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={}; exec \"$@\"",
            store.len(),
            names.join(":")
        );
        shell.args(["-c", &script, "bash"]).args(service);
        shell.env("NOTIFY_SOCKET", &self.socket).env("FDSTORE", MOST.to_string());
        start(&mut shell)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, OwnedFd)>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Hears all that was said.
fn receive(notified: &UnixDatagram, stored: &Mutex<Vec<(String, OwnedFd)>>) {
    let mut bytes = [0; 4096];
    let mut store = stored.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok(Some((length, descriptors))) = sys::descriptor::try_receive(notified, &mut bytes) {
        let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored").to_owned();
        if text.contains("FDSTOREREMOVE=1") {
            store.retain(|(known, _)| *known != name);
        } else if text.contains("FDSTORE=1") {
            store.extend(descriptors.into_iter().map(|fd| (name.clone(), fd)));
        }
    }
}
