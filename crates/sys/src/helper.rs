//! A helper process: this executable or another command, killed when this process ends for any
//! reason.
//!
//! The kernel sends the parent-death signal when the *thread* that started the child ends
//! (prctl(2), PR_SET_PDEATHSIG), so a dedicated thread starts the child and waits for it. The child
//! is identified by a pidfd, so a signal never reaches another process.

use crate::error::{Error, ErrorContext as _, Result};
use crate::process_group::ProcessOutcome;
use rustix::process::{Pid, PidfdFlags, Signal, WaitIdOptions};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// A helper process, running or ended. Dropping this value kills the process.
#[derive(Debug)]
pub struct HelperProcess {
    handle: OwnedFd,
    id: Pid,
    end: Arc<HelperOutcome>,
}

/// The outcome of the helper process, recorded once it has ended. Until then, the kernel does not
/// reuse the process id.
#[derive(Debug, Default)]
struct HelperOutcome {
    known: Mutex<Option<ProcessOutcome>>,
    ended: Condvar,
}

impl HelperProcess {
    /// Starts `program`, or this executable if `program` is `None`, as a process group of its own.
    /// The process gets `words` as arguments, an empty environment, and `/` as working directory.
    /// Its standard input is `socket`, and its standard output and error are `/dev/null`.
    pub fn start(program: Option<&Path>, words: &[&str], socket: OwnedFd) -> Result<Self> {
        // The running image, even if the file has been replaced.
        let mut command = Command::new(program.unwrap_or_else(|| Path::new("/proc/self/exe")));
        command.args(words).env_clear().process_group(0).current_dir("/");
        command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
        Self::spawn_command(command)
    }

    /// Starts a command. The command must arrange to be killed when its parent thread ends
    /// ([`crate::confine::set_parent_death_signal`]).
    pub fn spawn_command(mut command: Command) -> Result<Self> {
        let end = Arc::new(HelperOutcome::default());
        let (sender, receiver) = mpsc::channel();
        let ends = Arc::clone(&end);
        let body = move || {
            match spawn(&mut command) {
                Ok((child, handle, id)) => {
                    drop(command);
                    // `spawn_command` is still waiting for this message.
                    let _ = sender.send(Ok((handle, id)));
                    ends.wait_for(child, id);
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        };
        let named = std::thread::Builder::new().name("child monitor".to_owned());
        named.spawn(body).context("clone", "a thread")?;
        let gone = || Error::new("clone", "a thread that ended", libc::ECHILD);
        let (handle, id) = receiver.recv().map_err(|_| gone())??;
        Ok(Self { handle, id, end })
    }

    /// Returns the process id, which the kernel may reuse once the process has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the outcome of the process; `None` while it is running.
    #[must_use]
    pub fn outcome(&self) -> Option<ProcessOutcome> {
        *self.end.lock_outcome()
    }

    /// Waits up to `limit` for the outcome; returns `None` if the process is still running then.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<ProcessOutcome> {
        let known = self.end.lock_outcome();
        let waits = self.end.ended.wait_timeout_while(known, limit, |known| known.is_none());
        *waits.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills the helper process.
    pub fn kill(&self) {
        // An error means that the process has ended.
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// Returns the CPU time that the process has used, in ns; `None` once the process has ended.
    #[must_use]
    pub fn cpu_time_ns(&self) -> Option<u64> {
        let known = self.end.lock_outcome();
        if known.is_some() {
            return None;
        }
        let mut clock = 0;
        // SAFETY: clock_getcpuclockid(3) writes a clock id to `clock`, which is valid; the process
        // has not been reaped yet (`lock_outcome`), so the process id is its own.
        if unsafe { libc::clock_getcpuclockid(self.id.as_raw_nonzero().get(), &raw mut clock) } != 0
        {
            return None;
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: clock_gettime(2) writes the structure, which is valid.
        if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
            return None;
        }
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        Some(part(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec)))
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        if self.outcome().is_none() {
            self.kill();
        }
    }
}

impl HelperOutcome {
    fn lock_outcome(&self) -> MutexGuard<'_, Option<ProcessOutcome>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the process has ended, records its outcome, then reaps it.
    fn wait_for(&self, mut child: Child, id: Pid) {
        let ended = ProcessOutcome::observe(id, WaitIdOptions::empty()).ok().flatten();
        let mut known = self.lock_outcome();
        *known = Some(ended.unwrap_or(ProcessOutcome::Status(0)));
        // Reaps the child. Its status is already known, so an error is ignored.
        let _ = child.wait();
        drop(known);
        self.ended.notify_all();
    }
}

fn spawn(command: &mut Command) -> Result<(Child, OwnedFd, Pid)> {
    let mut child = crate::process::spawn(command)?;
    let id = Pid::from_child(&child);
    match rustix::process::pidfd_open(id, PidfdFlags::empty()).context("pidfd_open", "a process") {
        Ok(handle) => Ok((child, handle, id)),
        Err(error) => {
            // The child belongs to this process and has not been reaped yet, so its id is valid.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor;

    /// Starts this test program with `--list`, so that it exits at once.
    #[test]
    fn helper_process_reports_its_outcome() {
        let (_local, peer) = descriptor::socket_pair().unwrap();
        let kept = HelperProcess::start(None, &["--list"], peer).unwrap();
        assert_eq!(kept.wait(Duration::from_secs(60)), Some(ProcessOutcome::Status(0)));
        assert_eq!((kept.outcome(), kept.cpu_time_ns()), (Some(ProcessOutcome::Status(0)), None));
    }
}
