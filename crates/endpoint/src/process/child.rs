//! The handle to a child process, shared by the input half, the output half and the path.

use crate::stop_limit::{STALL_MAX, StallTimer, StopFlag};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::process_group::{ProcessGroup, ProcessOutcome};

/// Interval at which a stopped path checks whether a program is suspended, for example by SIGSTOP.
pub(super) const SUSPENSION_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The position of a program in its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessRole {
    /// First node of the request: the program has no input from the path.
    Head,
    /// Node with neighbors on both sides: the program has input and output.
    Middle,
    /// Last node of the request: the program inherits standard output.
    End,
}

/// A child process. Dropping the last reference kills it, unless [`Process::finish`] has returned.
#[derive(Debug)]
pub struct Process {
    pub(super) command: String,
    /// The program's process group, or `None` if this process has not started the program, as in
    /// the replay of a recorded run.
    group: Option<Mutex<ProcessGroup>>,
    role: ProcessRole,
    /// True once the program has closed its standard input.
    input_closed: AtomicBool,
    /// True once the path no longer needs the output of the program. Any exit status of the program
    /// is then accepted.
    released: AtomicBool,
    /// Control of a process that is not an ordinary program, such as a sandbox, or `None` for an
    /// ordinary program.
    control: Option<Arc<dyn ProcessControl>>,
    /// Stop flag of the path. Once the flag is set, waits for the program are limited in time.
    limit: StopFlag,
    /// Time for which the program has been suspended since the path was stopped.
    suspension: Mutex<StallTimer>,
    /// True if the program was killed because it was suspended.
    was_suspended: AtomicBool,
}

/// Interface through which a path controls a child process that is not an ordinary program, such as
/// a sandboxed filter.
pub trait ProcessControl: fmt::Debug + Send + Sync {
    /// Returns true if the process accepts no more input, not even input that the path has already
    /// read.
    fn has_closed_input(&self) -> bool;

    /// Blocks until the process has exited. Returns a message if the process failed, or `None` if
    /// it succeeded.
    fn finish(&self) -> Option<String>;

    /// Returns the process id, or `None` after the process has exited.
    fn process_id(&self) -> Option<u32>;
}

/// A report of a program's unsuccessful exit, for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFailure {
    /// The shell command of the program, or the name of a process that is not an ordinary program.
    pub command: String,
    /// Exit status of the program, or the signal that terminated it.
    pub ended: ProcessOutcome,
    /// True if no message is printed, because the failure is expected: the program inherited
    /// standard output, and SIGPIPE terminated it after the reader had exited.
    pub quiet: bool,
    /// Message that replaces the command and the status in the output, for a process that is not an
    /// ordinary program; otherwise `None`.
    pub message: Option<String>,
}

impl fmt::Display for ProcessFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = &self.message {
            return f.write_str(message);
        }
        write!(f, "the program {:?} {}", self.command, self.ended)?;
        match self.ended {
            ProcessOutcome::Status(126) => f.write_str(": the shell cannot execute it"),
            ProcessOutcome::Status(127) => f.write_str(": the shell did not find the command"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ProcessFailure {}

impl Process {
    /// Creates the handle to a program that this process has started.
    pub(super) fn new_started(
        command: &str,
        group: ProcessGroup,
        role: ProcessRole,
        limit: StopFlag,
    ) -> Self {
        Self { group: Some(Mutex::new(group)), limit, ..Self::new_recorded(command, role) }
    }

    /// Creates the handle to a program that is never started, for the replay of a recorded run.
    #[must_use]
    pub fn new_recorded(command: &str, role: ProcessRole) -> Self {
        let (input_closed, released) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            command: command.to_owned(),
            group: None,
            role,
            input_closed,
            released,
            control: None,
            limit: StopFlag::default(),
            suspension: Mutex::default(),
            was_suspended: AtomicBool::new(false),
        }
    }

    /// Creates a handle for a process that is not an ordinary program, in the middle of a request.
    #[must_use]
    pub fn new_controlled(name: &str, control: Arc<dyn ProcessControl>) -> Self {
        Self { control: Some(control), ..Self::new_recorded(name, ProcessRole::Middle) }
    }

    /// Returns true if the program accepts no more input, not even input that the path has already
    /// read.
    #[must_use]
    pub fn has_closed_input(&self) -> bool {
        match &self.control {
            Some(control) => control.has_closed_input(),
            None => self.input_closed.load(Ordering::Relaxed),
        }
    }

    /// Returns the process id, or `None` for a program that this process has not started and for a
    /// controlled process that has exited.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        match &self.control {
            Some(control) => control.process_id(),
            None => self.group().map(|group| group.pid()),
        }
    }

    /// Returns true if the program is at the head of its request.
    #[must_use]
    pub fn is_first_in_request(&self) -> bool {
        self.role == ProcessRole::Head
    }

    /// Returns the result of the program, or `None` while it is running. Never blocks. Always
    /// returns `Ok` for a program that this process has not started, and for a process that is not
    /// an ordinary program. The path then continues until [`Process::finish`].
    #[must_use]
    pub fn try_wait(&self) -> Option<Result<(), ProcessFailure>> {
        // A failed query is reported by `finish`.
        let Some(group) = self.group() else { return Some(Ok(())) };
        let ended = group.outcome().ok().flatten()?;
        drop(group);
        Some(self.check_outcome(ended))
    }

    /// Blocks until the program has exited. Returns the failure if its exit was unsuccessful. The
    /// caller must have closed the input half and the output half.
    pub fn finish(&self) -> sys::Result<Result<(), ProcessFailure>> {
        if let Some(message) = self.control.as_ref().and_then(|control| control.finish()) {
            let (command, ended) = (self.command.clone(), ProcessOutcome::Status(1));
            return Ok(Err(ProcessFailure {
                command,
                ended,
                quiet: false,
                message: Some(message),
            }));
        }
        let Some(mut group) = self.group() else { return Ok(Ok(())) };
        while !group.wait_for(SUSPENSION_CHECK_INTERVAL)? {
            self.kill_if_suspended(&group);
        }
        let ended = group.wait()?;
        drop(group);
        Ok(self.check_outcome(ended))
    }

    /// Returns the path's stop flag. Once the flag is set, waits for the program are limited in
    /// time.
    pub(super) const fn stop_flag(&self) -> &StopFlag {
        &self.limit
    }

    /// Kills the program if the path has been stopped and one of the program's processes has been
    /// suspended for [`STALL_MAX`] since then. Returns true if the path has been stopped. While it
    /// returns false, the caller need not call again before the stop.
    pub(super) fn kill_if_stalled(&self) -> bool {
        let stopped = self.limit.is_stopped();
        if stopped && let Some(group) = self.group() {
            self.kill_if_suspended(&group);
        }
        stopped
    }

    fn kill_if_suspended(&self, group: &ProcessGroup) {
        // After the spaces have ended, the path cannot be marked as stopped any more, so stop
        // signals are checked as well.
        let stopped = self.limit.is_stopped() || sys::signal::stop_signal_count() > 0;
        let suspended = stopped && group.has_suspended_process();
        let mut stall = self.suspension.lock().unwrap_or_else(PoisonError::into_inner);
        if stall.record_stall_check(suspended) {
            self.was_suspended.store(true, Ordering::Relaxed);
            group.kill();
        }
    }

    /// Kills the program. After this call, the path accepts any exit status of the program.
    pub(super) fn kill(&self) {
        self.released.store(true, Ordering::Relaxed);
        if let Some(group) = self.group() {
            group.kill();
        }
    }

    /// Records that the program has closed its standard input.
    pub(super) fn record_closed_input(&self) {
        self.input_closed.store(true, Ordering::Relaxed);
    }

    /// Sends SIGTERM to request the program's exit. After this call, the path accepts any exit
    /// status of the program.
    pub(super) fn request_exit(&self) {
        if !self.released.swap(true, Ordering::Relaxed)
            && let Some(group) = self.group()
        {
            group.terminate();
        }
    }

    fn check_outcome(&self, ended: ProcessOutcome) -> Result<(), ProcessFailure> {
        if ended.is_success() || self.released.load(Ordering::Relaxed) {
            return Ok(());
        }
        let quiet = self.role == ProcessRole::End && ended.is_broken_pipe();
        let message = self.was_suspended.load(Ordering::Relaxed).then(|| {
            let limit = STALL_MAX.as_secs();
            let command = &self.command;
            format!("the program {command:?} was suspended, and killed {limit} s after the stop")
        });
        Err(ProcessFailure { command: self.command.clone(), ended, quiet, message })
    }

    fn group(&self) -> Option<MutexGuard<'_, ProcessGroup>> {
        let group = self.group.as_ref()?;
        Some(group.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
