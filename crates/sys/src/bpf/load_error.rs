//! The error of a rejected program load: errno, verifier log, and missing capabilities.

use std::fmt;

use crate::error::Error;
use crate::machine::Capabilities;

/// The kernel's refusal to load a program.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// Error of the bpf(2) call that failed.
    pub error: Error,
    /// The verifier's log; empty if verification did not start, or if the program is too complex
    /// (E2BIG).
    pub log: String,
    /// Capabilities that the loading thread lacked, of those needed to load network programs.
    /// CAP_PERFMON is not always needed, but without it the verifier is stricter.
    pub missing: Vec<&'static str>,
}

impl LoadError {
    pub(super) fn new(error: Error, log: &[u8]) -> Self {
        let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
        let log = String::from_utf8_lossy(text).into_owned();
        Self { error, log, missing: missing_capabilities() }
    }

    /// Returns those missing capabilities that may have caused the kernel's refusal.
    fn missing_capability_causes(&self) -> impl Iterator<Item = &'static str> {
        let refused = matches!(self.error.errno, libc::EPERM | libc::EACCES);
        let verified = !self.log.is_empty();
        let all = self.missing.iter().copied().filter(move |_| refused);
        all.filter(move |name| verified || *name != CAP_PERFMON)
    }
}

const CAP_PERFMON: &str = "CAP_PERFMON";

/// Lists the capabilities that loading network programs needs and the calling thread lacks. A
/// thread with CAP_SYS_ADMIN needs none of them.
#[must_use]
pub fn missing_capabilities() -> Vec<&'static str> {
    // Capabilities are per thread, so the status of this thread is read, not the status of the
    // process.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let have = Capabilities::parse(&status, "CapEff:").unwrap_or_default();
    let admin = have.contains(Capabilities::SYS_ADMIN);
    let wanted = [
        ("CAP_BPF", admin || have.contains(Capabilities::BPF)),
        ("CAP_NET_ADMIN", admin || have.contains(Capabilities::NET_ADMIN)),
        (CAP_PERFMON, admin || have.contains(Capabilities::PERFMON)),
    ];
    wanted.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect()
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complaint = self.log.lines().rev().find(|line| {
            !line.trim().is_empty()
                && !line.starts_with("processed ")
                && !line.contains("stack depth")
        });
        match complaint {
            // The verifier reports "not proven" as EACCES, so the errno's text would mislead.
            Some(line) => {
                let Error { call, target, .. } = &self.error;
                write!(f, "{call} on {target}: the verifier says: {line}")?;
            }
            None => write!(f, "{}", self.error)?,
        }
        let missing_capability_causes: Vec<_> = self.missing_capability_causes().collect();
        if missing_capability_causes.is_empty() {
            Ok(())
        } else {
            write!(f, " (without {})", missing_capability_causes.join(", "))
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_quotes_the_verifier() {
        let log = "0: (b7) r0 = 1\nR2 !read_ok\nprocessed 1 insns (limit 1000000)\n".to_owned();
        let error = Error::new("bpf", "PROG_LOAD of \"dport\"", libc::EACCES);
        let refused = LoadError { error, log, missing: Vec::new() };
        let text = refused.to_string();
        assert!(text.starts_with("bpf on PROG_LOAD of \"dport\": "), "{text}");
        assert!(text.ends_with("the verifier says: R2 !read_ok"), "{text}");
        let text = LoadError { missing: vec![CAP_PERFMON], ..refused }.to_string();
        assert!(text.ends_with("R2 !read_ok (without CAP_PERFMON)"), "{text}");
    }

    #[test]
    fn missing_capability_is_named_only_if_it_can_be_the_cause() {
        let error = Error::new("bpf", "PROG_LOAD of \"dport\"", libc::EPERM);
        let missing = vec!["CAP_BPF", CAP_PERFMON];
        let text = LoadError { error, log: String::new(), missing }.to_string();
        assert!(text.ends_with("(without CAP_BPF)"), "{text}");
        let error = Error::new("bpf", "PROG_LOAD of \"dport\"", libc::E2BIG);
        let text = LoadError { error, log: String::new(), missing: vec!["CAP_BPF"] }.to_string();
        assert!(!text.contains("without"), "{text}");
    }
}
