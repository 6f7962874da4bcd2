//! Ordinary programs that we start, each at the head of a process group of its own.
//!
//! A group is named by the id of its leader. An id is never used for another process as long as the
//! leader was not reaped, so [`ProcessGroup`] looks at the leader without reaping it (waitid(2) with
//! WNOWAIT) and reaps it only at the end: until then a signal to the group reaches nobody else.
//! Groups that run are listed where the handler of the second signal finds them ([`kill_all`]).

use crate::error::{Error, Named as _, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::atomic::{AtomicI32, Ordering};

/// How many groups may run at one time: as many as a request may have filters.
const GROUPS_MAX: usize = 1000;

/// The groups that run, by the id of their leader; 0: a free place.
static RUNNING: [AtomicI32; GROUPS_MAX] = [const { AtomicI32::new(0) }; GROUPS_MAX];

/// A running program and what it starts in turn. Dropping it kills them.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    id: Pid,
    /// Its place in [`RUNNING`].
    place: usize,
    reaped: Option<ProcessEnd>,
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEnd {
    /// By itself, with this status.
    Status(i32),
    /// By a signal of this number.
    Signal(i32),
}

impl ProcessEnd {
    /// Whether it says that all went well.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// Whether it ended because nobody read on: by SIGPIPE itself, or as the shell around it says
    /// so.
    #[must_use]
    pub const fn is_broken_pipe(self) -> bool {
        const BY_SHELL: i32 = 128 + libc::SIGPIPE;
        matches!(self, Self::Signal(libc::SIGPIPE) | Self::Status(BY_SHELL))
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
    /// Starts a command at the head of a group of its own, with the signals that it would have
    /// under a shell: nothing blocked, SIGPIPE ends it.
    pub fn start(command: &mut Command) -> Result<Self> {
        let target = command.get_program().to_string_lossy().into_owned();
        let refused = |target, errno| Error::new("execve", target, errno);
        // Taken before there is a process, so that one that runs is always listed.
        let free = |place: &AtomicI32| {
            place.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = RUNNING.iter().position(free) else {
            return Err(refused(target, libc::EAGAIN));
        };
        // The standard library gives the child an empty mask and SIGPIPE as it was meant to be.
        let started = command.process_group(0).spawn();
        let id = started.as_ref().ok().map(Pid::from_child);
        RUNNING[place].store(id.map_or(0, |id| id.as_raw_nonzero().get()), Ordering::Release);
        match (started, id) {
            (Ok(child), Some(id)) => Ok(Self { child, id, place, reaped: None }),
            (Ok(_), None) => Err(refused(target, 0)),
            (Err(e), _) => Err(refused(target, e.raw_os_error().unwrap_or(0))),
        }
    }

    /// The number of its leader.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Its standard input, if that is a pipe and was not taken before.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its standard output, if that is a pipe and was not taken before.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How its leader ended; nothing if it still runs.
    pub fn ended(&self) -> Result<Option<ProcessEnd>> {
        self.look(WaitIdOptions::NOHANG)
    }

    /// Waits until its leader has ended, and lets go of the group.
    pub fn wait(&mut self) -> Result<ProcessEnd> {
        if let Some(ended) = self.reaped {
            return Ok(ended);
        }
        let ended = loop {
            if let Some(ended) = self.look(WaitIdOptions::empty())? {
                break ended;
            }
        };
        self.reap(ended);
        Ok(ended)
    }

    /// Asks all of the group to end (SIGTERM).
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Looks without reaping.
    fn look(&self, more: WaitIdOptions) -> Result<Option<ProcessEnd>> {
        if self.reaped.is_some() {
            return Ok(self.reaped);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | more;
        let found = loop {
            match rustix::process::waitid(WaitId::Pid(self.id), options) {
                Err(rustix::io::Errno::INTR) => {}
                found => break found.named("waitid", format!("process {}", self.id))?,
            }
        };
        Ok(found.map(|status| match status.terminating_signal() {
            Some(signal) => ProcessEnd::Signal(signal),
            None => ProcessEnd::Status(status.exit_status().unwrap_or(0)),
        }))
    }

    /// Takes the group off the list, then lets its id go. Nothing blocks: the leader has ended.
    fn reap(&mut self, ended: ProcessEnd) {
        self.reaped = Some(ended);
        RUNNING[self.place].store(0, Ordering::Release);
        // What can fail is being told again what is known already.
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        if self.reaped.is_none() {
            // A group that has gone meanwhile needs no signal.
            let _ = rustix::process::kill_process_group(self.id, signal);
        }
    }
}

impl Drop for ProcessGroup {
    /// Whoever needs its end has waited for it.
    fn drop(&mut self) {
        if self.reaped.is_none() {
            self.signal(Signal::KILL);
            let _ = self.wait();
        }
    }
}

/// Kills every group that runs. For the handler of a signal: only atomics and kill(2), which
/// signal-safety(7) allows.
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
    fn an_end_is_seen_before_it_is_taken() {
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
    fn a_group_has_its_own_number_and_the_signals_of_a_shell() {
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
    fn asking_and_dropping_reach_whatever_it_started() {
        let mut group = start("sleep 1000 & sleep 1000");
        group.ask_to_end();
        assert_eq!(group.wait().unwrap(), ProcessEnd::Signal(libc::SIGTERM));
        let mut group = start("trap '' TERM; sleep 1000 & echo here; sleep 1000");
        let mut output = group.take_output().unwrap();
        let mut here = [0; 5];
        output.read_exact(&mut here).unwrap();
        group.ask_to_end();
        drop(group);
        assert_eq!(output.read(&mut here).unwrap(), 0, "nobody has the pipe any more");
    }

    #[test]
    fn input_closes_when_it_is_dropped() {
        let mut group = start("cat; exit 5");
        let mut input = group.take_input().unwrap();
        input.write_all(b"some words").unwrap();
        drop(input);
        assert_eq!(output(&mut group), "some words");
        assert_eq!(group.wait().unwrap().to_string(), "ended with status 5");
        assert!(ProcessGroup::start(&mut Command::new("/no/such/program")).is_err());
    }
}
