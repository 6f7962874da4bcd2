//! Resource usage of an ended child: CPU time of all its threads, and peak memory.

use crate::error::{Error, Result};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

/// The resources that a process has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResourceUsage {
    /// User and system CPU time, in ns.
    pub processor_ns: u64,
    /// Peak resident memory, in bytes.
    pub resident_bytes: u64,
}

/// Blocks until a child has ended. Returns the child's exit status, and the resource usage of the
/// child and of its reaped descendants.
#[expect(clippy::needless_pass_by_value, reason = "the child must not be waited for again")]
pub fn wait(child: Child) -> Result<(ExitStatus, ResourceUsage)> {
    let number = libc::pid_t::try_from(child.id()).unwrap_or(libc::pid_t::MAX);
    let mut status = 0;
    loop {
        // SAFETY: a struct of integers, for which zero is a valid value (getrusage(2)).
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers refer to valid variables of the right type, and the call writes
        // nothing else (wait4(2)).
        let answer = unsafe { libc::wait4(number, &raw mut status, 0, &raw mut usage) };
        if answer == number {
            return Ok((ExitStatus::from_raw(status), ResourceUsage::from_rusage(&usage)));
        }
        let error = Error::last_os_error("wait4", format!("process {number}"));
        if error.errno != libc::EINTR {
            return Err(error);
        }
    }
}

impl ResourceUsage {
    fn from_rusage(usage: &libc::rusage) -> Self {
        let ns = |time: libc::timeval| {
            let micros = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec);
            u64::try_from(micros).unwrap_or(0).saturating_mul(1_000)
        };
        let kilobytes = u64::try_from(usage.ru_maxrss).unwrap_or(0);
        Self {
            processor_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
            resident_bytes: kilobytes.saturating_mul(1024),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn busy_process_uses_more_than_an_idle_one() {
        let cost = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            wait(child).unwrap()
        };
        let (ended, idle) = cost("exit 3");
        assert_eq!(ended.code(), Some(3));
        let (ended, busy) = cost("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
        assert!(ended.success());
        assert!(busy.processor_ns > idle.processor_ns + 1_000_000, "{busy:?} {idle:?}");
        assert!(idle.resident_bytes > 100_000, "{idle:?}");
    }
}
