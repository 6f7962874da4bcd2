//! The facts that `streamline doctor` reports: privileges, kernel features, limits, interfaces,
//! helpers.
//!
//! Output: [`MachineFacts`], plain data. The command line draws the conclusions. A feature is
//! probed by using it and discarding the result, because a version, a capability or a file shows
//! only that the feature should work.

pub mod neighbors;

pub use sys::confine::LandlockSupport;
pub use sys::machine::Capabilities;
pub use sys::net::Interface;
pub use sys::privilege::{Privilege, SeccompMode};
pub use sys::probe::KernelFeature;

use crate::error::reason_text;
use std::fs;
use std::path::{Path, PathBuf};
use sys::packet::{PacketRingParameters, PacketSocket};

/// The facts about the machine that `streamline doctor` reports.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// Release of the running kernel, as printed by `uname -r`.
    pub release: String,
    /// Number of processors that this process may run on.
    pub processors: usize,
    /// Memory of the machine in bytes, or `None` if unknown.
    pub memory: Option<u64>,
    /// Privileges of this process.
    pub privilege: Privilege,
    /// True if unprivileged users can create user namespaces, or `None` if the kernel does not
    /// report it.
    pub user_namespaces: Option<bool>,
    /// The file of the running program.
    pub program: ProgramFile,
    /// Result of a probe for a packet socket with a mapped ring, which `rx` needs.
    pub packet_ring: Result<(), Refusal>,
    /// Result of a probe that loads a BPF program.
    pub kernel_program: Result<(), Refusal>,
    /// Results of probes for other facilities.
    pub features: Vec<FeatureProbe>,
    /// Extent of Landlock support, which sandboxed filters use.
    pub landlock: LandlockSupport,
    /// Kernel and process limits that affect Streamline.
    pub limits: Vec<SystemLimit>,
    /// The network interfaces, or the reason why they could not be listed.
    pub interfaces: Result<Vec<Interface>, Refusal>,
    /// BPF programs and packet sockets at the network interfaces, including those of other
    /// applications.
    pub neighbors: neighbors::Neighbors,
    /// Helper programs, each with its path, and libraries, each with a note on how it was found.
    /// `None` stands for a helper that is not installed.
    pub helpers: Vec<(&'static str, Option<String>)>,
}

/// The file of the running program, for the check of its file capabilities.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgramFile {
    /// Path of the file, or `None` if it cannot be determined.
    pub path: Option<PathBuf>,
    /// True if the file is on a file system that ignores file capabilities (`nosuid`).
    pub nosuid: bool,
}

/// A facility of the kernel, with the result of a probe that used the facility.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureProbe {
    /// The facility that was probed.
    pub facility: KernelFeature,
    /// The Streamline features that use the facility.
    pub serves: &'static str,
    /// Result of the probe: success, or the reason why the facility is unavailable.
    pub outcome: Result<(), Refusal>,
}

/// A failed probe of a facility: the system call and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// The system call that failed.
    pub call: &'static str,
    /// The error text, in lower case.
    pub why: String,
}

/// A reason why a probe failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The process lacks permission.
    Denied,
    /// The facility is absent, or the kernel reports it as absent.
    Absent,
    /// The call failed for any other reason, such as a lack of memory or descriptors.
    Other,
}

/// A limit of the kernel or of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemLimit {
    /// Name of the limit: a sysctl(8) setting if the name contains a dot, else a limit as named in
    /// proc_pid_limits(5).
    pub name: &'static str,
    /// Value of the limit, or `None` if it cannot be read.
    pub value: Option<LimitValue>,
}

/// The value of a limit: a number, or unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitValue {
    /// The limit is this number.
    Finite(u64),
    /// There is no limit.
    Unlimited,
}

impl MachineFacts {
    /// Collects all facts about the machine, and probes facilities by using them.
    #[must_use]
    pub fn collect() -> Self {
        let machine = sys::machine::Machine::detect();
        Self {
            release: machine.release,
            processors: machine.processor_count,
            memory: machine.memory_bytes,
            privilege: Privilege::detect(),
            user_namespaces: sys::privilege::UserNamespaceSettings::detect()
                .are_unprivileged_allowed(),
            packet_ring: probe_packet_ring(),
            kernel_program: probe_kernel_program(),
            program: ProgramFile::locate(),
            features: probe_features(),
            landlock: sys::confine::landlock_support(),
            limits: read_limits(),
            interfaces: to_refusal(sys::net::interfaces()),
            neighbors: neighbors::Neighbors::find(None, None),
            helpers: find_helper_programs(),
        }
    }
}

/// Probes a packet socket with a mapped ring, which `rx` needs.
pub fn probe_packet_ring() -> Result<(), Refusal> {
    let shape = PacketRingParameters { segment: 1 << 16, segments: 4, retire_ms: 10, reserve: 0 };
    to_refusal(PacketSocket::open().and_then(|socket| socket.into_ring(shape)).map(drop))
}

/// Probes the loading of a BPF program.
pub fn probe_kernel_program() -> Result<(), Refusal> {
    to_refusal(sys::probe::probe_bpf_program())
}

fn to_refusal<T>(outcome: sys::Result<T>) -> Result<T, Refusal> {
    outcome.map_err(Refusal::from_error)
}

impl Refusal {
    fn from_error(error: sys::Error) -> Self {
        // These are values of errno(3) with the same meaning on x86-64 and arm64.
        let kind = match error.errno {
            1 | 13 => RefusalKind::Denied,
            2 | 6 | 19 | 22 | 38 | 93 | 94 | 95 | 97 => RefusalKind::Absent,
            _ => RefusalKind::Other,
        };
        Self { kind, call: error.call, why: reason_text(&error.into()) }
    }
}

impl ProgramFile {
    /// Returns the path of the running program's file, and the mount option that affects it.
    #[must_use]
    pub fn locate() -> Self {
        let path = std::env::current_exe().ok();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let nosuid = path.as_deref().is_some_and(|path| is_nosuid(path, &mounts));
        Self { path, nosuid }
    }
}

/// Returns true if the mount that contains `path` ignores file capabilities. The containing mount
/// is the one with the longest mount point that is a prefix of the path; of several mounts at the
/// same mount point, it is the last.
fn is_nosuid(path: &Path, mounts: &str) -> bool {
    let mut found = (0, false);
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else { continue };
        // Mount points escape spaces and other separators in octal (proc_pid_mountinfo(5)).
        let point = point.replace("\\040", " ");
        if point.len() >= found.0 && path.starts_with(&point) {
            found = (point.len(), options.split(',').any(|option| option == "nosuid"));
        }
    }
    found.1
}

fn probe_features() -> Vec<FeatureProbe> {
    let tried = sys::probe::run_all_probes().into_iter().map(|probe| FeatureProbe {
        facility: probe.feature,
        serves: probe.purpose,
        outcome: to_refusal(probe.outcome),
    });
    let absent =
        || Refusal { kind: RefusalKind::Absent, call: "open", why: "not there".to_owned() };
    let types = FeatureProbe {
        facility: KernelFeature::Btf,
        serves: "kernel programs that use the kernel's types",
        outcome: has_kernel_btf().then_some(()).ok_or_else(absent),
    };
    tried.chain([types]).collect()
}

fn has_kernel_btf() -> bool {
    Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// Names of the limits that `streamline doctor` reports. A name with a dot is a sysctl setting.
/// Some sysctl settings are visible only in the initial network namespace.
const REPORTED_LIMIT_NAMES: &[&str] = &[
    "net.core.netdev_max_backlog",
    "net.core.bpf_jit_enable",
    "net.core.rmem_max",
    "net.core.optmem_max",
    "Max locked memory",
    "Max open files",
];

fn read_limits() -> Vec<SystemLimit> {
    let own = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let of = |name: &'static str| {
        let value = match name.contains('.') {
            true => fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/")))
                .ok()
                .and_then(|text| parse_limit_value(text.trim())),
            false => {
                let rest = own.lines().find_map(|line| line.strip_prefix(name));
                rest.and_then(|rest| parse_limit_value(rest.split_whitespace().next()?))
            }
        };
        SystemLimit { name, value }
    };
    REPORTED_LIMIT_NAMES.iter().map(|name| of(name)).collect()
}

fn parse_limit_value(text: &str) -> Option<LimitValue> {
    match text {
        "unlimited" => Some(LimitValue::Unlimited),
        _ => text.parse().ok().map(LimitValue::Finite),
    }
}

/// Looks up helper programs and libraries.
fn find_helper_programs() -> Vec<(&'static str, Option<String>)> {
    let library = sys::libpcap::Libpcap::load().is_ok();
    let programs = ["tcpdump", "tshark", "setcap"].map(|name| (name, find_program(name)));
    let libpcap = ("libpcap", library.then(|| "found by dlopen".to_owned()));
    programs.into_iter().chain([libpcap]).collect()
}

/// Finds a program in `PATH`, or else in the directories of system administration commands. Returns
/// the path of the program, or `None` if no directory contains it.
fn find_program(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(usual);
    let files = folders.map(|folder| folder.join(name));
    let mut files = files.filter(|file| file.is_absolute() && file.is_file());
    files.next().map(|file| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_a_file_has_the_longest_matching_mount_point() {
        let mounts = "22 1 0:1 / / rw,relatime - ext4 /dev/a rw\n\
                      23 22 0:2 / /home rw,nosuid,nodev - ext4 /dev/b rw\n\
                      24 23 0:3 / /home/a\\040b rw - ext4 /dev/c rw\n\
                      25 22 0:4 / /tmp rw - tmpfs a rw\n\
                      26 22 0:5 / /tmp rw,nosuid - tmpfs b rw\n";
        let cases = [
            ("/usr/bin/streamline", false),
            ("/home/x/streamline", true),
            ("/home/a b/streamline", false),
            ("/homes/streamline", false),
            ("/tmp/streamline", true),
        ];
        for (path, expected) in cases {
            assert_eq!(is_nosuid(Path::new(path), mounts), expected, "{path}");
        }
        assert!(!is_nosuid(Path::new("/usr"), "nonsense\n\n1 2 3"));
    }

    #[test]
    fn facts_of_this_machine_are_complete() {
        let facts = MachineFacts::collect();
        assert!(!facts.release.is_empty() && facts.processors > 0);
        assert!(facts.program.path.is_some_and(|path| path.is_absolute()));
        assert!(facts.features.len() > 3);
        let own = facts.limits.iter().filter(|limit| !limit.name.contains('.'));
        assert!(own.clone().count() == 2 && own.clone().all(|limit| limit.value.is_some()));
        let interfaces = facts.interfaces.expect("every process may ask for interfaces");
        assert!(interfaces.iter().any(|interface| interface.flags.is_loopback()));
    }

    #[test]
    fn refusals_are_classified_by_errno() {
        for (errno, kind) in [
            (1, RefusalKind::Denied),
            (13, RefusalKind::Denied),
            (38, RefusalKind::Absent),
            (97, RefusalKind::Absent),
            (12, RefusalKind::Other),
        ] {
            let refusal = Refusal::from_error(sys::Error::new("socket", "", errno));
            assert_eq!((refusal.kind, refusal.call), (kind, "socket"));
            assert!(!refusal.why.contains("os error"), "{}", refusal.why);
        }
    }
}
