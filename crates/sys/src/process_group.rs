//! Child programs, each leading a process group of its own.
//!
//! The group's id is the leader's process id, which the kernel does not reuse before the leader has
//! been reaped. [`ProcessGroup`] therefore observes the leader's end without reaping (waitid(2)
//! with WNOWAIT) and reaps it last; until then a signal to the group cannot reach another process.
//! Running groups are listed in a table that the handler of the second stop signal reads
//! ([`kill_all`]).

use crate::error::{Error, ErrorContext as _, Result};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::atomic::{AtomicI32, Ordering};

/// Maximum number of groups at one time: the filters of one request.
const GROUPS_MAX: usize = 1000;

/// Running groups by leader id; 0 marks a free slot, -1 a reserved one.
static RUNNING: [AtomicI32; GROUPS_MAX] = [const { AtomicI32::new(0) }; GROUPS_MAX];

/// A running program and its descendants in the group. Dropping it kills them.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    id: Pid,
    /// Index in [`RUNNING`].
    place: usize,
    reaped: Option<ProcessEnd>,
}

/// Outcome of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEnd {
    /// Exit status.
    Status(i32),
    /// Number of the terminating signal.
    Signal(i32),
}

impl ProcessEnd {
    /// Returns true for exit status 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// Returns true if the process ended by SIGPIPE, or with the status that a shell reports for
    /// it.
    #[must_use]
    pub const fn is_broken_pipe(self) -> bool {
        const SHELL_STATUS: i32 = 128 + libc::SIGPIPE;
        matches!(self, Self::Signal(libc::SIGPIPE) | Self::Status(SHELL_STATUS))
    }
}

impl ProcessEnd {
    /// Returns the outcome of a child without reaping it, or `None` while it runs and `more` does
    /// not let this block.
    pub(crate) fn observe(id: Pid, more: WaitIdOptions) -> Result<Option<Self>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | more;
        let found = retry_on_intr(|| rustix::process::waitid(WaitId::Pid(id), options));
        let found = found.context("waitid", format!("process {id}"))?;
        Ok(found.map(|status| match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Status(status.exit_status().unwrap_or(0)),
        }))
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(number) => match name(*number) {
                Some(name) => write!(f, "was ended by signal {number} ({name})"),
                None => write!(f, "was ended by signal {number}"),
            },
        }
    }
}

const fn name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

impl ProcessGroup {
    /// Starts a command as leader of a new group, with a shell's signal setup: none blocked,
    /// default SIGPIPE.
    pub fn start(command: &mut Command) -> Result<Self> {
        let target = command.get_program().to_string_lossy().into_owned();
        let refused = |target, errno| Error::new("execve", target, errno);
        // Reserved before the process exists, so that a running group is always listed.
        let free = |place: &AtomicI32| {
            place.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = RUNNING.iter().position(free) else {
            return Err(refused(target, libc::EAGAIN));
        };
        // The standard library gives the child an empty mask and the default SIGPIPE action.
        let started = command.process_group(0).spawn();
        let id = started.as_ref().ok().map(Pid::from_child);
        RUNNING[place].store(id.map_or(0, |id| id.as_raw_nonzero().get()), Ordering::Release);
        match (started, id) {
            (Ok(child), Some(id)) => Ok(Self { child, id, place, reaped: None }),
            (Ok(_), None) => Err(refused(target, 0)),
            (Err(e), _) => Err(refused(target, e.raw_os_error().unwrap_or(0))),
        }
    }

    /// Returns the leader's process id.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Takes the child's standard input, if it is a pipe and was not taken before.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the child's standard output, if it is a pipe and was not taken before.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the leader's outcome, or `None` while it runs. Does not block.
    pub fn ended(&self) -> Result<Option<ProcessEnd>> {
        self.observe(WaitIdOptions::NOHANG)
    }

    /// Blocks until the leader has ended, then reaps it.
    pub fn wait(&mut self) -> Result<ProcessEnd> {
        if let Some(ended) = self.reaped {
            return Ok(ended);
        }
        let ended = loop {
            if let Some(ended) = self.observe(WaitIdOptions::empty())? {
                break ended;
            }
        };
        self.reap(ended);
        Ok(ended)
    }

    /// Sends SIGTERM to the group.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Observes the leader without reaping it.
    fn observe(&self, more: WaitIdOptions) -> Result<Option<ProcessEnd>> {
        if self.reaped.is_some() {
            return Ok(self.reaped);
        }
        ProcessEnd::observe(self.id, more)
    }

    /// Unlists the group, then reaps the leader. Never blocks: the leader has ended.
    fn reap(&mut self, ended: ProcessEnd) {
        self.reaped = Some(ended);
        RUNNING[self.place].store(0, Ordering::Release);
        // The status is known already; an error would concern that alone.
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        if self.reaped.is_none() {
            // The group may have ended concurrently; an error means that no signal is needed.
            let _ = rustix::process::kill_process_group(self.id, signal);
        }
    }
}

impl Drop for ProcessGroup {
    /// Kills and reaps a leader that has not been waited for.
    fn drop(&mut self) {
        if self.reaped.is_none() {
            self.signal(Signal::KILL);
            let _ = self.wait();
        }
    }
}

/// Kills all running groups. Async-signal-safe: atomics and kill(2) only (signal-safety(7)).
pub(crate) fn kill_all() {
    for place in &RUNNING {
        let id = place.load(Ordering::Acquire);
        if id > 0 {
            // SAFETY: kill(2) takes any numbers; a negative one names a process group, and a listed
            // group is ours, since its leader is reaped only after it was taken off the list.
            unsafe { libc::kill(-id, libc::SIGKILL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::Stdio;

    fn start(script: &str) -> ProcessGroup {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        ProcessGroup::start(&mut command).unwrap()
    }

    fn output(group: &mut ProcessGroup) -> String {
        let mut text = String::new();
        group.take_output().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn end_is_observed_without_reaping() {
        let mut group = start("exit 3");
        assert_eq!(output(&mut group), "");
        testkit::until("it ends", || group.ended().unwrap().is_some());
        assert_eq!(group.ended().unwrap(), Some(ProcessEnd::Status(3)), "looking takes nothing");
        assert_eq!(group.wait().unwrap(), ProcessEnd::Status(3));
        assert_eq!(group.wait().unwrap(), ProcessEnd::Status(3), "nor does asking again");
        let id = group.id.as_raw_nonzero().get();
        assert!(RUNNING.iter().all(|place| place.load(Ordering::Relaxed) != id), "off the list");
    }

    #[test]
    fn group_leads_itself_with_a_shells_signal_setup() {
        let mut group = start("ps -o pgid= -p $$; grep -E 'SigIgn|SigBlk' /proc/self/status");
        let text = output(&mut group);
        assert!(group.wait().unwrap().is_success(), "{text}");
        let mut words = text.split_whitespace();
        assert_eq!(words.next().unwrap(), group.id.to_string());
        let masks: Vec<u64> = words.filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let pipe = 1 << (libc::SIGPIPE - 1);
        assert!(masks.len() == 2 && masks.iter().all(|mask| mask & pipe == 0), "{text}");
    }

    #[test]
    fn signals_and_drop_reach_the_whole_group() {
        let mut group = start("sleep 1000 & sleep 1000");
        group.ask_to_end();
        assert_eq!(group.wait().unwrap(), ProcessEnd::Signal(libc::SIGTERM));
        let mut group = start("trap '' TERM; sleep 1000 & echo here; sleep 1000");
        let mut output = group.take_output().unwrap();
        let mut here = [0; 5];
        output.read_exact(&mut here).unwrap();
        group.ask_to_end();
        drop(group);
        assert_eq!(output.read(&mut here).unwrap(), 0, "no process has the pipe");
    }

    #[test]
    fn dropping_the_input_closes_it() {
        let mut group = start("cat; exit 5");
        let mut input = group.take_input().unwrap();
        input.write_all(b"some words").unwrap();
        drop(input);
        assert_eq!(output(&mut group), "some words");
        assert_eq!(group.wait().unwrap().to_string(), "ended with status 5");
        assert!(ProcessGroup::start(&mut Command::new("/no/such/program")).is_err());
    }
}
