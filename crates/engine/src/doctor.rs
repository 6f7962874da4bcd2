//! The facts behind `streamline doctor`: privileges, kernel features, limits, interfaces, helpers.
//!
//! In: the machine. Out: [`Facts`], plain data without conclusions: the command line draws those.
//! Features are probed by using them and discarding the result, because a version, a capability or
//! a file says what should work, not what does.

pub use sys::confine::Landlock;
pub use sys::machine::Capabilities;
pub use sys::net::Interface;
pub use sys::privilege::{Privilege, Seccomp};
pub use sys::probe::Facility;

use std::fs;
use std::path::{Path, PathBuf};
use sys::packet::{PacketSocket, RingShape};

/// All facts found.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kernel's release.
    pub release: String,
    /// Processors that this process may run on.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Privileges of this process.
    pub privilege: Privilege,
    /// True if unprivileged users can create user namespaces; `None`: the kernel does not tell.
    pub user_namespaces: Option<bool>,
    /// The running program.
    pub program: Binary,
    /// Probe of a packet socket with a mapped ring, which `rx` needs.
    pub packet_ring: Result<(), Refusal>,
    /// Probe of loading a BPF program.
    pub kernel_program: Result<(), Refusal>,
    /// The other probes.
    pub features: Vec<Feature>,
    /// Landlock support for a filter in a process of its own.
    pub landlock: Landlock,
    /// Figures of the kernel and of this process that bound us.
    pub limits: Vec<Limit>,
    /// The interfaces of this name space, by index.
    pub interfaces: Result<Vec<Interface>, Refusal>,
    /// Programs and libraries that help, and where they are.
    pub helpers: Vec<(&'static str, Option<String>)>,
}

/// The file of the running program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Binary {
    /// Its path.
    pub path: Option<PathBuf>,
    /// True if its file system ignores file capabilities (`nosuid`).
    pub nosuid: bool,
}

/// Something that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feature {
    /// The probed facility.
    pub facility: Facility,
    /// Its use.
    pub serves: &'static str,
    /// The result of the probe.
    pub outcome: Result<(), Refusal>,
}

/// The reason for which something does not work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind of refusal.
    pub kind: Refused,
    /// The failed call.
    pub call: &'static str,
    /// The reason in lower case.
    pub why: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Not permitted.
    Denied,
    /// Absent, or reported as such.
    Absent,
    /// Anything else: no memory, no descriptors.
    Otherwise,
}

/// A figure that bounds us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Its name: a setting of sysctl(8), or a limit of getrlimit(2).
    pub name: &'static str,
    /// Its value; `None`: it cannot be read.
    pub value: Option<Bound>,
}

/// The value of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// This value.
    At(u64),
    /// No end.
    Unlimited,
}

impl Facts {
    /// Looks at this machine and tries what it can do.
    #[must_use]
    pub fn look() -> Self {
        let machine = sys::machine::Machine::detect();
        Self {
            release: machine.release,
            processors: machine.processors,
            memory: machine.memory,
            privilege: Privilege::detect(),
            user_namespaces: sys::privilege::UserNamespaces::detect().allowed(),
            packet_ring: packet_ring(),
            kernel_program: kernel_program(),
            program: Binary::look(),
            features: features(),
            landlock: sys::confine::landlock(),
            limits: limits(),
            interfaces: refused(sys::net::interfaces()),
            helpers: helpers(),
        }
    }
}

/// Tries whether a packet socket with a mapped ring can be had, which `rx` needs.
pub fn packet_ring() -> Result<(), Refusal> {
    let shape = RingShape { segment: 1 << 16, segments: 4, retire_ms: 10, reserve: 0 };
    refused(PacketSocket::open().and_then(|socket| socket.ring(shape)).map(drop))
}

/// Tries whether the kernel takes a program.
pub fn kernel_program() -> Result<(), Refusal> {
    refused(sys::probe::bpf_program())
}

fn refused<T>(outcome: sys::Result<T>) -> Result<T, Refusal> {
    outcome.map_err(|error| Refusal::of(&error))
}

impl Refusal {
    fn of(error: &sys::Error) -> Self {
        // Numbers of errno(3) that Linux gives the same meaning on x86-64 and arm64.
        let kind = match error.errno {
            1 | 13 => Refused::Denied,
            2 | 6 | 19 | 22 | 38 | 93 | 94 | 95 | 97 => Refused::Absent,
            _ => Refused::Otherwise,
        };
        let why = std::io::Error::from_raw_os_error(error.errno).to_string();
        let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
        Self { kind, call: error.call, why }
    }
}

impl Binary {
    /// Looks at the file of the running program.
    #[must_use]
    pub fn look() -> Self {
        let path = std::env::current_exe().ok();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let nosuid = path.as_deref().is_some_and(|path| is_nosuid(path, &mounts));
        Self { path, nosuid }
    }
}

/// Returns true if the mount of a path ignores file capabilities. The mount is the longest one
/// above it, the last one where several stand in one place.
fn is_nosuid(path: &Path, mounts: &str) -> bool {
    let mut found = (0, false);
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else { continue };
        // Spaces and what else would break a line are written in octal (proc_pid_mountinfo(5)).
        let point = point.replace("\\040", " ");
        if point.len() >= found.0 && path.starts_with(&point) {
            found = (point.len(), options.split(',').any(|option| option == "nosuid"));
        }
    }
    found.1
}

fn features() -> Vec<Feature> {
    let tried = sys::probe::all().into_iter().map(|probe| Feature {
        facility: probe.facility,
        serves: probe.serves,
        outcome: refused(probe.outcome),
    });
    let absent = || Refusal { kind: Refused::Absent, call: "open", why: "not there".to_owned() };
    let types = Feature {
        facility: Facility::Btf,
        serves: "kernel programs that know the kernel's types",
        outcome: has_types().then_some(()).ok_or_else(absent),
    };
    tried.chain([types]).collect()
}

fn has_types() -> bool {
    Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// Limits by their names: those with a point are settings of the kernel, some of which are told in
/// the first network name space alone.
const LIMITS: &[&str] = &[
    "net.core.netdev_max_backlog",
    "net.core.bpf_jit_enable",
    "net.core.rmem_max",
    "net.core.optmem_max",
    "Max locked memory",
    "Max open files",
];

fn limits() -> Vec<Limit> {
    let own = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let of = |name: &'static str| {
        let value = match name.contains('.') {
            true => fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/")))
                .ok()
                .and_then(|text| bound(text.trim())),
            false => {
                let rest = own.lines().find_map(|line| line.strip_prefix(name));
                rest.and_then(|rest| bound(rest.split_whitespace().next()?))
            }
        };
        Limit { name, value }
    };
    LIMITS.iter().map(|name| of(name)).collect()
}

fn bound(text: &str) -> Option<Bound> {
    match text {
        "unlimited" => Some(Bound::Unlimited),
        _ => text.parse().ok().map(Bound::At),
    }
}

/// Programs and libraries that help.
fn helpers() -> Vec<(&'static str, Option<String>)> {
    let library = sys::libpcap::Libpcap::load().is_ok();
    let programs = ["tcpdump", "tshark", "setcap"].map(|name| (name, found(name)));
    let libpcap = ("libpcap", library.then(|| "found by dlopen".to_owned()));
    programs.into_iter().chain([libpcap]).collect()
}

/// Finds a program in `PATH`, then in the administrator's directories.
fn found(name: &str) -> Option<String> {
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
    fn the_mount_of_a_file_is_the_longest_above_it() {
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
    fn this_machine_can_be_looked_at() {
        let facts = Facts::look();
        assert!(!facts.release.is_empty() && facts.processors > 0);
        assert!(facts.program.path.is_some_and(|path| path.is_absolute()));
        assert!(facts.features.len() > 3);
        let own = facts.limits.iter().filter(|limit| !limit.name.contains('.'));
        assert!(own.clone().count() == 2 && own.clone().all(|limit| limit.value.is_some()));
        let interfaces = facts.interfaces.expect("every process may ask for interfaces");
        assert!(interfaces.iter().any(|interface| interface.flags.loopback()));
    }

    #[test]
    fn refusals_are_taken_by_their_number() {
        for (errno, kind) in [
            (1, Refused::Denied),
            (13, Refused::Denied),
            (38, Refused::Absent),
            (97, Refused::Absent),
            (12, Refused::Otherwise),
        ] {
            let refusal = Refusal::of(&sys::Error::new("socket", "", errno));
            assert_eq!((refusal.kind, refusal.call), (kind, "socket"));
            assert!(!refusal.why.contains("os error"), "{}", refusal.why);
        }
    }
}
