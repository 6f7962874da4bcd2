//! The mount of `streamline daemon --mount`: a process that shows the paths of the daemon as files,
//! and ends with the daemon.

use super::helper::{Helper, Reports};
use daemon::log::{EventKind, Log};
use std::io;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use sys::eventfd::EventFd;

/// The process, and the thread that waits for the process. Dropping this value ends both.
#[derive(Debug)]
pub(super) struct MountHost {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl MountHost {
    /// Starts the process.
    pub(super) fn start(command: &mut Command, log: &Log) -> io::Result<Self> {
        let stop = EventFd::new().map_err(|error| io::Error::other(error.to_string()))?;
        let stop = Arc::new(stop);
        let reports = Reports { event: EventKind::MountReported, subject: "the mount" };
        let mut process = Helper::spawn(command, reports)?;
        let (log, stopped) = (log.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("mount".to_owned()).spawn(move || {
            process.wait(Some(stopped.as_fd()), &log);
            // After a failure, the process has already reported the reason.
            let _ = process.end(&log);
        });
        Ok(Self { stop, thread: Some(thread?) })
    }
}

impl Drop for MountHost {
    fn drop(&mut self) {
        self.stop.notify();
        // The thread has already reported its panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
