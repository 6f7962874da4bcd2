//! The log of an allocation: each step that may fail is told here before it is taken, and what
//! ownership does not take back is noted behind it. [SL §7.1, allocation; RELIABILITY, rollback]
//!
//! Descriptors, mappings, threads, programs and links are owned: they go when their owner does.
//! What outlives its owner (a file that a sink has made, a directory, a name) is noted with what
//! takes it back ([`Steps::on_rollback`]). When a later step fails, or the last who knows the log lets go
//! of it, that is done in the order backwards; from [`Steps::commit`] on nothing is taken back any
//! more: all has been made, and what follows is activation, which cannot fail.
//!
//! The same log shows that it is so: who hands one down that has a [`InjectedFault`] has the step of that
//! number refused, as a machine refuses it that has no more of what the step makes, or has the
//! process stand still in front of it. The log of everybody else has none, and asks one word.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a step makes. It says how the machine refuses more of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// A descriptor of whatever kind.
    Descriptor,
    /// Memory that is mapped, in the kernel or here.
    Memory,
    /// A program in the kernel, or the place where it runs.
    Program,
    /// A thread, or a process.
    Thread,
    /// A file, a directory, a name.
    File,
    /// What somebody else remembers: an entry in a register.
    Entry,
    /// Nothing that could be refused: a moment at which a process may be stopped.
    Nothing,
}

impl Resource {
    const fn refusal(self) -> i32 {
        match self {
            Self::Descriptor => libc::EMFILE,
            Self::Memory => libc::ENOMEM,
            Self::Program => libc::EPERM,
            Self::Thread => libc::EAGAIN,
            Self::File => libc::ENOSPC,
            Self::Entry => libc::ECONNREFUSED,
            Self::Nothing => 0,
        }
    }
}

/// What happens at a step, for tests: nothing, unless somebody says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum InjectedFault {
    /// All steps are taken.
    #[default]
    Nothing,
    /// The step of this number is refused; the first is 0.
    Fail(u32),
    /// The process stands still in front of the step of this number, until it is let go on.
    Stop(u32),
    /// The same in front of each step of this name.
    StopAt(String),
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("`{text}` is neither fail=N, nor stop=N, nor stop=STEP");
        let (what, step) = text.split_once('=').ok_or_else(wrong)?;
        match (what, step.parse()) {
            ("fail", Ok(number)) => Ok(Self::Fail(number)),
            ("stop", Ok(number)) => Ok(Self::Stop(number)),
            ("stop", Err(_)) if !step.is_empty() => Ok(Self::StopAt(step.to_owned())),
            _ => Err(wrong()),
        }
    }
}

/// A log. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Steps(Option<Arc<Log>>);

/// No log: all steps are taken, and nothing is taken back. For what is no part of an allocation.
pub static UNLOGGED: Steps = Steps(None);

impl Default for Steps {
    fn default() -> Self {
        Self::with(InjectedFault::Nothing)
    }
}

#[derive(Debug, Default)]
struct Log {
    fault: InjectedFault,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// The steps so far, where there is a fault: who tests wants to know which one it was.
    taken: Vec<String>,
    undo: Vec<(String, Undo)>,
}

type Undo = Box<dyn FnOnce() + Send>;

/// A place in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(usize);

impl Steps {
    /// A log with this fault.
    #[must_use]
    pub fn with(fault: InjectedFault) -> Self {
        Self(Some(Arc::new(Log { fault, state: Mutex::default() })))
    }

    /// Says that a step is about to be taken. Refuses it if it is to fail.
    pub fn take(&self, makes: Resource, target: &str) -> Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        if log.fault == InjectedFault::Nothing {
            return Ok(());
        }
        let mut state = log.state();
        let number = u32::try_from(state.taken.len()).unwrap_or(u32::MAX);
        state.taken.push(format!("{makes:?} {target}"));
        drop(state);
        match &log.fault {
            InjectedFault::Fail(at) if number == *at && makes != Resource::Nothing => {
                let target = format!("{target} (step {number}, which a test has fail)");
                Err(Error::new("allocate", target, makes.refusal()))
            }
            InjectedFault::Stop(at) if number == *at => stand_still(),
            InjectedFault::StopAt(name) if name == target => stand_still(),
            _ => Ok(()),
        }
    }

    /// Says that something is about to happen that cannot be refused.
    pub fn checkpoint(&self, what: &str) {
        // Such a step refuses nothing.
        let _ = self.take(Resource::Nothing, what);
    }

    /// Notes how something is taken back that has just been made and is nobody's own.
    pub fn on_rollback(&self, what: impl Into<String>, back: impl FnOnce() + Send + 'static) {
        if let Some(log) = &self.0 {
            log.state().undo.push((what.into(), Box::new(back)));
        }
    }

    /// Where the log is now.
    #[must_use]
    pub fn mark(&self) -> Savepoint {
        Savepoint(self.0.as_ref().map_or(0, |log| log.state().undo.len()))
    }

    /// Takes back what was noted since, the last first.
    pub fn roll_back_to(&self, mark: Savepoint) {
        let Some(log) = &self.0 else { return };
        loop {
            let mut state = log.state();
            let last = if state.undo.len() > mark.0 { state.undo.pop() } else { None };
            drop(state);
            let Some((_, back)) = last else { return };
            back();
        }
    }

    /// Takes back all that was noted, the last first.
    pub fn roll_back(&self) {
        self.roll_back_to(Savepoint(0));
    }

    /// All is made: nothing of it is taken back any more.
    pub fn commit(&self) {
        if let Some(log) = &self.0 {
            log.state().undo.clear();
        }
    }

    /// How many steps were taken, and what they were; only a log with a fault remembers.
    #[must_use]
    pub fn taken(&self) -> Vec<String> {
        self.0.as_ref().map(|log| log.state().taken.clone()).unwrap_or_default()
    }

    /// What would be taken back, the first first.
    #[must_use]
    pub fn noted(&self) -> Vec<String> {
        let names =
            |log: &Arc<Log>| log.state().undo.iter().map(|(what, _)| what.clone()).collect();
        self.0.as_ref().map(names).unwrap_or_default()
    }
}

impl Log {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, back)) = state.undo.pop() {
            back();
        }
    }
}

impl fmt::Debug for LogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let undo: Vec<&str> = self.undo.iter().map(|(what, _)| what.as_str()).collect();
        f.debug_struct("LogState").field("taken", &self.taken).field("undo", &undo).finish()
    }
}

/// Stops this process, until somebody has it continue.
fn stand_still() -> Result<()> {
    // SAFETY: raise(3) takes any number; this one stops the process before the call returns, since
    // the signal goes to the thread that calls.
    match unsafe { libc::raise(libc::SIGSTOP) } {
        0 => Ok(()),
        _ => Err(Error::last("raise", "SIGSTOP")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noting(steps: &Steps, to: &Arc<Mutex<Vec<u8>>>, number: u8) {
        let to = Arc::clone(to);
        steps.on_rollback(format!("number {number}"), move || to.lock().unwrap().push(number));
    }

    #[test]
    fn what_is_noted_is_taken_back_backwards_and_once() {
        let back = Arc::new(Mutex::new(Vec::new()));
        let steps = Steps::default();
        noting(&steps, &back, 1);
        let mark = steps.mark();
        noting(&steps, &back, 2);
        noting(&steps, &back, 3);
        assert_eq!(steps.noted(), ["number 1", "number 2", "number 3"]);
        steps.roll_back_to(mark);
        assert_eq!(*back.lock().unwrap(), [3, 2]);
        let other = steps.clone();
        drop(steps);
        assert_eq!(*back.lock().unwrap(), [3, 2], "somebody still knows the log");
        drop(other);
        assert_eq!(*back.lock().unwrap(), [3, 2, 1]);
    }

    #[test]
    fn what_is_kept_is_not_taken_back() {
        let back = Arc::new(Mutex::new(Vec::new()));
        let steps = Steps::default();
        noting(&steps, &back, 1);
        steps.commit();
        noting(&steps, &back, 2);
        drop(steps);
        assert_eq!(*back.lock().unwrap(), [2]);
    }

    #[test]
    fn the_step_of_a_number_fails_as_the_machine_would_let_it_fail() {
        let steps = Steps::with(InjectedFault::Fail(2));
        steps.take(Resource::Descriptor, "a bell").unwrap();
        steps.checkpoint("a moment");
        let refused = steps.take(Resource::Memory, "a pool").unwrap_err();
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.to_string().contains("a pool") && refused.advice().is_some());
        steps.take(Resource::Memory, "another").unwrap();
        assert_eq!(steps.taken().len(), 4);
        assert_eq!(Steps::default().taken().len(), 0);
        assert!(Steps::with(InjectedFault::Fail(0)).take(Resource::Nothing, "a moment").is_ok());
    }

    #[test]
    fn faults_are_words() {
        assert_eq!("fail=3".parse(), Ok(InjectedFault::Fail(3)));
        assert_eq!("stop=0".parse(), Ok(InjectedFault::Stop(0)));
        assert_eq!("stop=a step".parse(), Ok(InjectedFault::StopAt("a step".to_owned())));
        for wrong in ["", "fail", "fail=x", "go=1", "fail=-1", "stop="] {
            assert!(wrong.parse::<InjectedFault>().is_err(), "{wrong}");
        }
    }
}
