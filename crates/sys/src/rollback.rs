//! The rollback log of an allocation, with fault injection. [SL §7.1, allocation; RELIABILITY,
//! rollback]
//!
//! Descriptors, mappings, threads, programs and links are owned and released on drop. For anything
//! that outlives its owner (a created file, a directory, a name), the caller registers a rollback
//! action ([`RollbackLog::on_rollback`]). If a later step of the allocation fails, or the last
//! handle is dropped, the actions run in reverse order. [`RollbackLog::commit`] discards the
//! actions once the allocation is complete, because the subsequent activation cannot fail.
//!
//! Each step, such as a system call that creates a resource, is announced before it is performed
//! ([`RollbackLog::announce_creation`]). With an [`InjectedFault`], the log makes a chosen step
//! fail as the kernel would, or stops the process before that step. Without a fault an announcement
//! costs a comparison.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of resource that a step creates. The kind determines the errno of an injected fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepResource {
    /// The step creates a file descriptor.
    Descriptor,
    /// The step maps memory, or allocates memory in the kernel.
    Memory,
    /// The step loads or attaches a BPF program.
    Program,
    /// The step starts a thread or process.
    Thread,
    /// The step creates a file, a directory or a name.
    File,
    /// The step creates an entry in the registry of the daemon or of a path.
    Entry,
    /// The step creates no resource. Fault injection can stop the process before such a step, but
    /// cannot make it fail.
    Nothing,
}

impl StepResource {
    const fn injected_errno(self) -> i32 {
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

/// A fault that the rollback log injects into an allocation, for tests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum InjectedFault {
    /// No fault is injected.
    #[default]
    Nothing,
    /// The step with this number, counted from 0, fails.
    Fail(u32),
    /// The process stops (SIGSTOP) before the step with this number.
    Stop(u32),
    /// The process stops before every step with this name.
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

/// A rollback log. Clones refer to the same log.
#[derive(Clone, Debug)]
pub struct RollbackLog(Option<Arc<SharedRollbackLog>>);

/// A log that neither injects faults nor rolls back anything, for code outside an allocation.
pub static NO_ROLLBACK_LOG: RollbackLog = RollbackLog(None);

impl Default for RollbackLog {
    fn default() -> Self {
        Self::with_fault(InjectedFault::Nothing)
    }
}

#[derive(Debug, Default)]
struct SharedRollbackLog {
    fault: InjectedFault,
    state: Mutex<RollbackLogState>,
}

#[derive(Default)]
struct RollbackLogState {
    /// Kind and name of each announced step, in order; recorded only if the log injects a fault.
    announced: Vec<String>,
    undo: Vec<(String, RollbackAction)>,
}

type RollbackAction = Box<dyn FnOnce() + Send>;

/// A position in a rollback log, to which [`RollbackLog::roll_back_to`] returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(usize);

impl RollbackLog {
    /// Creates a log that injects `fault` into the steps that it announces.
    #[must_use]
    pub fn with_fault(fault: InjectedFault) -> Self {
        Self(Some(Arc::new(SharedRollbackLog { fault, state: Mutex::default() })))
    }

    /// Announces the next step, which creates a resource of kind `makes`; `target` names the step.
    /// Fails, or stops the process, if the injected fault selects this step.
    pub fn announce_creation(&self, makes: StepResource, target: &str) -> Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        if log.fault == InjectedFault::Nothing {
            return Ok(());
        }
        let mut state = log.lock_state();
        let number = u32::try_from(state.announced.len()).unwrap_or(u32::MAX);
        state.announced.push(format!("{makes:?} {target}"));
        drop(state);
        match &log.fault {
            InjectedFault::Fail(at) if number == *at && makes != StepResource::Nothing => {
                let target = format!("{target} (step {number}, failed by a test)");
                Err(Error::new("allocate", target, makes.injected_errno()))
            }
            InjectedFault::Stop(at) if number == *at => stop_process(),
            InjectedFault::StopAt(name) if name == target => stop_process(),
            _ => Ok(()),
        }
    }

    /// Announces a step that cannot fail. An injected fault may still stop the process before it.
    pub fn announce_step(&self, what: &str) {
        // A step without a resource never fails.
        let _ = self.announce_creation(StepResource::Nothing, what);
    }

    /// Registers `back` as a rollback action with the name `what`. The action removes a new object
    /// that no Rust value owns. [`NO_ROLLBACK_LOG`] discards the action.
    pub fn on_rollback(&self, what: impl Into<String>, back: impl FnOnce() + Send + 'static) {
        if let Some(log) = &self.0 {
            log.lock_state().undo.push((what.into(), Box::new(back)));
        }
    }

    /// Returns the current position in the rollback log.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.0.as_ref().map_or(0, |log| log.lock_state().undo.len()))
    }

    /// Runs the rollback actions registered since the position `mark`, in reverse order, and
    /// removes them.
    pub fn roll_back_to(&self, mark: Savepoint) {
        let Some(log) = &self.0 else { return };
        loop {
            let mut state = log.lock_state();
            let last = if state.undo.len() > mark.0 { state.undo.pop() } else { None };
            drop(state);
            let Some((_, back)) = last else { return };
            back();
        }
    }

    /// Runs all rollback actions, in reverse order, and removes them.
    pub fn roll_back(&self) {
        self.roll_back_to(Savepoint(0));
    }

    /// Discards all rollback actions, because the allocation is complete.
    pub fn commit(&self) {
        if let Some(log) = &self.0 {
            log.lock_state().undo.clear();
        }
    }

    /// Returns the kind and name of each announced step; empty if no fault is set.
    #[must_use]
    pub fn announced_steps(&self) -> Vec<String> {
        self.0.as_ref().map(|log| log.lock_state().announced.clone()).unwrap_or_default()
    }

    /// Returns the names of the registered rollback actions, in the order of registration.
    #[must_use]
    pub fn registered_actions(&self) -> Vec<String> {
        let names = |log: &Arc<SharedRollbackLog>| {
            log.lock_state().undo.iter().map(|(what, _)| what.clone()).collect()
        };
        self.0.as_ref().map(names).unwrap_or_default()
    }
}

impl SharedRollbackLog {
    fn lock_state(&self) -> MutexGuard<'_, RollbackLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedRollbackLog {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, back)) = state.undo.pop() {
            back();
        }
    }
}

impl fmt::Debug for RollbackLogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let undo: Vec<&str> = self.undo.iter().map(|(what, _)| what.as_str()).collect();
        f.debug_struct("RollbackLogState")
            .field("taken", &self.announced)
            .field("undo", &undo)
            .finish()
    }
}

/// Stops this process with SIGSTOP until it is continued.
fn stop_process() -> Result<()> {
    // SAFETY: raise(3) accepts any number; this one stops the process before the call returns,
    // since the signal goes to the thread that calls.
    match unsafe { libc::raise(libc::SIGSTOP) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error("raise", "SIGSTOP")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register_numbered_action(steps: &RollbackLog, to: &Arc<Mutex<Vec<u8>>>, number: u8) {
        let to = Arc::clone(to);
        steps.on_rollback(format!("number {number}"), move || to.lock().unwrap().push(number));
    }

    #[test]
    fn rollback_runs_in_reverse_order_once() {
        let back = Arc::new(Mutex::new(Vec::new()));
        let steps = RollbackLog::default();
        register_numbered_action(&steps, &back, 1);
        let mark = steps.savepoint();
        register_numbered_action(&steps, &back, 2);
        register_numbered_action(&steps, &back, 3);
        assert_eq!(steps.registered_actions(), ["number 1", "number 2", "number 3"]);
        steps.roll_back_to(mark);
        assert_eq!(*back.lock().unwrap(), [3, 2]);
        let other = steps.clone();
        drop(steps);
        assert_eq!(*back.lock().unwrap(), [3, 2], "another handle of the log is alive");
        drop(other);
        assert_eq!(*back.lock().unwrap(), [3, 2, 1]);
    }

    #[test]
    fn committed_log_discards_rollback_actions() {
        let back = Arc::new(Mutex::new(Vec::new()));
        let steps = RollbackLog::default();
        register_numbered_action(&steps, &back, 1);
        steps.commit();
        register_numbered_action(&steps, &back, 2);
        drop(steps);
        assert_eq!(*back.lock().unwrap(), [2]);
    }

    #[test]
    fn injected_fault_fails_the_numbered_step() {
        let steps = RollbackLog::with_fault(InjectedFault::Fail(2));
        steps.announce_creation(StepResource::Descriptor, "a doorbell").unwrap();
        steps.announce_step("a moment");
        let refused = steps.announce_creation(StepResource::Memory, "a pool").unwrap_err();
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.to_string().contains("a pool") && refused.advice().is_some());
        steps.announce_creation(StepResource::Memory, "another").unwrap();
        assert_eq!(steps.announced_steps().len(), 4);
        assert_eq!(RollbackLog::default().announced_steps().len(), 0);
        assert!(
            RollbackLog::with_fault(InjectedFault::Fail(0))
                .announce_creation(StepResource::Nothing, "a moment")
                .is_ok()
        );
    }

    #[test]
    fn injected_faults_parse_from_text() {
        assert_eq!("fail=3".parse(), Ok(InjectedFault::Fail(3)));
        assert_eq!("stop=0".parse(), Ok(InjectedFault::Stop(0)));
        assert_eq!("stop=a step".parse(), Ok(InjectedFault::StopAt("a step".to_owned())));
        for wrong in ["", "fail", "fail=x", "go=1", "fail=-1", "stop="] {
            assert!(wrong.parse::<InjectedFault>().is_err(), "{wrong}");
        }
    }
}
