//! Child programs, each the leader of a new process group.
//!
//! The group's id is the leader's process id, which the kernel does not reuse before the leader has
//! been reaped. [`ProcessGroup`] therefore observes the leader's exit without reaping it (waitid(2)
//! with WNOWAIT), and reaps it last. Until then, a signal to the group cannot reach another
//! process. A table ([`SignalTable`]) lists the running groups for the handler of the second stop
//! signal ([`kill_all_process_groups`]).

use crate::error::{Error, ErrorContext as _, Result};
use crate::signal_table::SignalTable;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::time::Duration;

/// Maximum number of groups at one time. This is also the maximum number of filters in one request.
const GROUPS_MAX: usize = 1000;

/// Process ids of the leaders of all running groups.
static RUNNING_GROUPS: SignalTable<GROUPS_MAX> = SignalTable::new();

/// A running program and its descendants in the same process group. Dropping this value kills the
/// group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    id: Pid,
    /// Slot of this group in [`RUNNING_GROUPS`].
    slot: usize,
    reaped: Option<ProcessOutcome>,
}

/// The outcome of a program that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessOutcome {
    /// The program exited with this status.
    Status(i32),
    /// A signal with this number ended the program.
    Signal(i32),
}

impl ProcessOutcome {
    /// Returns true if the exit status is 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// Returns true if SIGPIPE ended the process, or if its status is the one that a shell reports
    /// for SIGPIPE.
    #[must_use]
    pub const fn is_broken_pipe(self) -> bool {
        const SIGPIPE_EXIT_STATUS: i32 = 128 + libc::SIGPIPE;
        matches!(self, Self::Signal(libc::SIGPIPE) | Self::Status(SIGPIPE_EXIT_STATUS))
    }
}

impl ProcessOutcome {
    /// Returns the outcome of child `id` without reaping the child. If `more` contains NOHANG,
    /// returns `None` while the child is running; otherwise blocks until the child has ended.
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

impl fmt::Display for ProcessOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(number) => match signal_name(*number) {
                Some(name) => write!(f, "was ended by signal {number} ({name})"),
                None => write!(f, "was ended by signal {number}"),
            },
        }
    }
}

const fn signal_name(signal: i32) -> Option<&'static str> {
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
    /// Starts a command as the leader of a new group, with the signal setup of a shell: no signal
    /// blocked, default action for SIGPIPE. Fails with EAGAIN if the table of running groups is
    /// full.
    pub fn start(command: &mut Command) -> Result<Self> {
        let target = command.get_program().to_string_lossy().into_owned();
        let refused = |target, errno| Error::new("execve", target, errno);
        // Reserved before the process exists, so that each running group has a slot.
        let Some(slot) = RUNNING_GROUPS.reserve() else {
            return Err(refused(target, libc::EAGAIN));
        };
        // The standard library starts the child with an empty signal mask and the default SIGPIPE
        // action.
        let started = command.process_group(0).spawn();
        let id = started.as_ref().ok().map(Pid::from_child);
        RUNNING_GROUPS.set_process(slot, id.map(|id| id.as_raw_nonzero().get()));
        match (started, id) {
            (Ok(child), Some(id)) => Ok(Self { child, id, slot, reaped: None }),
            (Ok(_), None) => Err(refused(target, 0)),
            (Err(e), _) => Err(refused(target, e.raw_os_error().unwrap_or(0))),
        }
    }

    /// Returns the leader's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns a pipe to the child's standard input. Returns `None` on later calls, or if standard
    /// input is not a pipe.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns a pipe from the child's standard output. Returns `None` on later calls, or if
    /// standard output is not a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the outcome of the leader, or `None` while the leader is running. Never blocks.
    pub fn outcome(&self) -> Result<Option<ProcessOutcome>> {
        self.observe(WaitIdOptions::NOHANG)
    }

    /// Blocks until the leader has ended, reaps it and returns its outcome.
    pub fn wait(&mut self) -> Result<ProcessOutcome> {
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

    /// Blocks until the leader has ended, for at most `limit`. Returns true if the leader has
    /// ended. If the kernel refuses to open a pidfd of the leader, sleeps for `limit`.
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        if self.outcome()?.is_some() {
            return Ok(true);
        }
        let process = rustix::process::pidfd_open(self.id, PidfdFlags::empty()).ok();
        let descriptors: Vec<BorrowedFd<'_>> = process.iter().map(AsFd::as_fd).collect();
        crate::poll::wait_until_readable(&descriptors, Some(limit));
        Ok(self.outcome()?.is_some())
    }

    /// Returns true if a process of the group is suspended (SIGSTOP, SIGTSTP, a debugger). Reads
    /// the states of all processes from /proc.
    #[must_use]
    pub fn has_suspended_process(&self) -> bool {
        let group = self.id.as_raw_nonzero().get();
        self.reaped.is_none()
            && ProcessStat::all().any(|(_, stat)| stat.group == group && stat.is_suspended)
    }

    /// Sends SIGKILL to the group, which also ends suspended processes.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends SIGTERM to all processes of the group.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Returns the leader's outcome without reaping the leader. If `more` contains NOHANG, returns
    /// `None` while the leader is running; otherwise blocks.
    fn observe(&self, more: WaitIdOptions) -> Result<Option<ProcessOutcome>> {
        if self.reaped.is_some() {
            return Ok(self.reaped);
        }
        ProcessOutcome::observe(self.id, more)
    }

    /// Removes the group from the table of running groups, then reaps the leader. Never blocks,
    /// because the leader has ended.
    fn reap(&mut self, ended: ProcessOutcome) {
        self.reaped = Some(ended);
        RUNNING_GROUPS.remove(self.slot);
        // Reaps the leader. Its status is already known, so an error is ignored.
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
    /// Kills the group and reaps the leader, unless the leader has been reaped already.
    fn drop(&mut self) {
        if self.reaped.is_none() {
            self.signal(Signal::KILL);
            let _ = self.wait();
        }
    }
}

/// Facts about a process from /proc/PID/stat (proc(5)).
#[derive(Clone, Copy, Debug)]
struct ProcessStat {
    /// True if the process is suspended by a signal or a debugger.
    is_suspended: bool,
    /// True if the process has ended but has not been reaped.
    is_zombie: bool,
    parent: i32,
    group: i32,
    session: i32,
}

impl ProcessStat {
    /// Reads the state of a process; `None` if there is no such process.
    fn read(process: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in parentheses, may contain any character.
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self {
            is_suspended: matches!(state, "T" | "t"),
            is_zombie: matches!(state, "Z" | "X"),
            parent: number()?,
            group: number()?,
            session: number()?,
        })
    }

    /// Returns the state of every process, with its process id.
    fn all() -> impl Iterator<Item = (i32, Self)> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.filter_map(number).filter_map(|id| Some((id, Self::read(id)?)))
    }
}

/// Maximum time for which [`kill_process_with_programs`] waits until the process is suspended.
const SUSPENSION_WAIT_MAX: Duration = Duration::from_secs(1);

/// Kills another process of Streamline and the groups of its programs. Blocks for at most a second.
///
/// Suspends the process first. A suspended process reaps no child, so the kernel cannot reuse the
/// ids of its groups before these are killed.
pub fn kill_process_with_programs(process: impl AsFd) -> Result<()> {
    let send = |signal| {
        rustix::process::pidfd_send_signal(&process, signal)
            .context("pidfd_send_signal", "a process")
    };
    let Some(id) = pidfd_process_id(process.as_fd()) else { return send(Signal::KILL) };
    send(Signal::STOP)?;
    let until = std::time::Instant::now() + SUSPENSION_WAIT_MAX;
    let own = loop {
        let Some(stat) = ProcessStat::read(id) else { return send(Signal::KILL) };
        if stat.is_suspended || stat.is_zombie || std::time::Instant::now() > until {
            break stat;
        }
        // An ended process makes the descriptor readable.
        crate::poll::wait_until_readable(&[process.as_fd()], Some(Duration::from_millis(1)));
    };
    // A child that has left the session, such as the process of a shared prefix, is not killed,
    // because it serves other requests too.
    let is_program = |(child, stat): &(i32, ProcessStat)| {
        stat.parent == id && stat.group == *child && stat.session == own.session
    };
    for (leader, _) in ProcessStat::all().filter(is_program) {
        if let Some(group) = Pid::from_raw(leader) {
            // An error means that the group has no process left.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
    send(Signal::KILL)
}

/// Returns the process id that a pidfd names, or `None` after the process has ended.
fn pidfd_process_id(process: BorrowedFd<'_>) -> Option<i32> {
    let number = process.as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (id > 0).then_some(id)
}

/// Kills all running groups. Async-signal-safe: uses only atomics and kill(2) (signal-safety(7)).
pub(crate) fn kill_all_process_groups() {
    RUNNING_GROUPS.for_each(|id| {
        // SAFETY: kill(2) accepts any numbers; a negative one names a process group, and a listed
        // group is ours, since its leader is reaped only after it was taken off the list.
        unsafe { libc::kill(-id, libc::SIGKILL) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::Stdio;

    fn start_shell(script: &str) -> ProcessGroup {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        ProcessGroup::start(&mut command).unwrap()
    }

    fn read_output(group: &mut ProcessGroup) -> String {
        let mut text = String::new();
        group.take_stdout().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn leader_outcome_is_observed_without_reaping() {
        let mut group = start_shell("exit 3");
        assert_eq!(read_output(&mut group), "");
        testkit::wait_until("it ends", || group.outcome().unwrap().is_some());
        assert_eq!(
            group.outcome().unwrap(),
            Some(ProcessOutcome::Status(3)),
            "looking takes nothing"
        );
        assert_eq!(group.wait().unwrap(), ProcessOutcome::Status(3));
        assert_eq!(group.wait().unwrap(), ProcessOutcome::Status(3), "nor does asking again");
        let id = group.id.as_raw_nonzero().get();
        assert_eq!(RUNNING_GROUPS.find(id), None, "off the list");
    }

    #[test]
    fn group_starts_with_the_signal_setup_of_a_shell() {
        let mut group = start_shell("ps -o pgid= -p $$; grep -E 'SigIgn|SigBlk' /proc/self/status");
        let text = read_output(&mut group);
        assert!(group.wait().unwrap().is_success(), "{text}");
        let mut words = text.split_whitespace();
        assert_eq!(words.next().unwrap(), group.id.to_string());
        let masks: Vec<u64> = words.filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let pipe = 1 << (libc::SIGPIPE - 1);
        assert!(masks.len() == 2 && masks.iter().all(|mask| mask & pipe == 0), "{text}");
    }

    #[test]
    fn signals_and_drop_reach_every_process_of_the_group() {
        let mut group = start_shell("sleep 1000 & sleep 1000");
        group.terminate();
        assert_eq!(group.wait().unwrap(), ProcessOutcome::Signal(libc::SIGTERM));
        let mut group = start_shell("trap '' TERM; sleep 1000 & echo here; sleep 1000");
        let mut output = group.take_stdout().unwrap();
        let mut here = [0; 5];
        output.read_exact(&mut here).unwrap();
        group.terminate();
        drop(group);
        assert_eq!(output.read(&mut here).unwrap(), 0, "no process has the pipe");
    }

    #[test]
    fn suspended_process_of_a_group_is_found() {
        let mut group = start_shell("sleep 1000 & kill -STOP $!; echo here; wait");
        let mut here = [0; 5];
        group.take_stdout().unwrap().read_exact(&mut here).unwrap();
        testkit::wait_until("it is suspended", || group.has_suspended_process());
        assert!(!group.wait_for(Duration::from_millis(1)).unwrap());
        group.kill();
        testkit::wait_until("it ends", || group.wait_for(testkit::wait::WAIT_TIMEOUT).unwrap());
        assert!(!group.has_suspended_process());
    }

    #[test]
    fn killed_process_and_its_programs_end_together() {
        // The child of this test plays the role of a path. It has a process group of its own in the
        // same session, and a process that has left the session.
        let script = "set -m; sleep 1000 & echo $!; set +m; setsid sleep 1000 & echo $!; wait";
        let mut path = Command::new("bash");
        let path = path.args(["-c", script]).stdout(Stdio::piped()).process_group(0).spawn();
        let mut path = path.unwrap();
        let mut output = std::io::BufReader::new(path.stdout.take().unwrap());
        let mut read_id = || {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut output, &mut line).unwrap();
            line.trim().parse::<i32>().unwrap()
        };
        let (program, other) = (read_id(), read_id());
        let session = || ProcessStat::read(other).map(|stat| stat.session);
        testkit::wait_until("it has left", || session() == Some(other));
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&path), PidfdFlags::empty());
        kill_process_with_programs(pidfd.unwrap()).unwrap();
        assert_eq!(path.wait().unwrap().code(), None, "a signal has ended it");
        let lives = |id| ProcessStat::read(id).is_some_and(|stat| !stat.is_zombie);
        testkit::wait_until("its program ends", || !lives(program));
        assert!(lives(other), "a process that has left the session serves others");
        rustix::process::kill_process(Pid::from_raw(other).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn dropping_standard_input_ends_the_childs_input() {
        let mut group = start_shell("cat; exit 5");
        let mut input = group.take_stdin().unwrap();
        input.write_all(b"some words").unwrap();
        drop(input);
        assert_eq!(read_output(&mut group), "some words");
        assert_eq!(group.wait().unwrap().to_string(), "ended with status 5");
        assert!(ProcessGroup::start(&mut Command::new("/no/such/program")).is_err());
    }
}
