//! The findings of `doctor`: checks with results and remedies, network interfaces, and the
//! availability of each facility: capturing, sending, programs in the kernel, replay.
//!
//! The types define the `--json` format. `version` changes when a field is removed or gets a
//! different meaning.

use engine::calibrate;
use engine::doctor::{
    Capabilities, FeatureProbe, Interface, KernelFeature, LandlockSupport, LimitValue,
    MachineFacts, ProgramFile, RefusalKind, SeccompMode,
};
use member::client::{Client, ClientError};
use serde::Serialize;
use streamline::privilege::{self, Operation, Remedy};

/// Version of the output format of `doctor --json`.
pub(super) const JSON_VERSION: u32 = 1;
/// The example request in the commands that `doctor` suggests as remedies.
const EXAMPLE_REQUEST: &str = "rx | count";

/// The findings of `doctor` about this machine, and the contents of its `--json` output.
#[derive(Serialize, Debug)]
pub(super) struct DoctorFindings {
    version: u32,
    pub(super) program: &'static str,
    pub(super) release: String,
    pub(super) processors: usize,
    pub(super) memory: Option<u64>,
    pub(super) sections: Vec<FindingSection>,
    pub(super) interfaces: Vec<InterfaceFinding>,
    pub(super) doors: Vec<Verdict>,
}

/// A section of the findings: related checks under one title.
#[derive(Serialize, Debug)]
pub(super) struct FindingSection {
    pub(super) name: &'static str,
    pub(super) rows: Vec<CheckFinding>,
}

/// The result of a check, which selects the mark in front of its row.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckResult {
    /// The checked feature works.
    Good,
    /// The checked feature does not work.
    Bad,
    /// The check reports a value, or an optional feature whose absence is no fault.
    Plain,
}

/// A check that `doctor` has made, with its result and its explanation.
#[derive(Serialize, Debug)]
pub(super) struct CheckFinding {
    pub(super) name: String,
    pub(super) state: CheckResult,
    #[serde(rename = "says")]
    pub(super) explanation: String,
    /// The remedy, if the feature does not work and a remedy is known.
    pub(super) advice: Option<String>,
}

/// A network interface of the machine, with its state and its frame counters.
#[derive(Serialize, Debug)]
pub(super) struct InterfaceFinding {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) link: String,
    /// State of the interface: `up`, `down` or `no carrier`.
    pub(super) state: &'static str,
    pub(super) mtu: u32,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Number of frames that the device or its driver has dropped.
    pub(super) lost: u64,
    pub(super) errors: u64,
}

/// The availability of capturing, sending, programs in the kernel, or replay on this machine.
#[derive(Serialize, Debug)]
pub(super) struct Verdict {
    /// Name of the facility in `--json`: `rx`, `tx`, `kernel` or `replay`.
    pub(super) name: &'static str,
    /// Human-readable name of the facility, such as `capturing`.
    pub(super) what: &'static str,
    pub(super) open: bool,
    pub(super) because: String,
    pub(super) ways: Vec<Remedy>,
}

impl DoctorFindings {
    pub(super) fn new(facts: &MachineFacts) -> Self {
        Self {
            version: JSON_VERSION,
            program: env!("CARGO_PKG_VERSION"),
            release: facts.release.clone(),
            processors: facts.processors,
            memory: facts.memory,
            sections: vec![
                user_checks(facts),
                kernel_checks(facts),
                limit_checks(facts),
                helper_checks(facts),
                cost_checks(),
                daemon_checks(),
            ],
            interfaces: facts.interfaces.iter().flatten().map(InterfaceFinding::new).collect(),
            doors: vec![
                capture_verdict(facts),
                send_verdict(facts),
                program_verdict(facts),
                replay_verdict(),
            ],
        }
    }
}

impl CheckFinding {
    fn new(name: impl Into<String>, state: CheckResult, explanation: impl Into<String>) -> Self {
        Self { name: name.into(), state, explanation: explanation.into(), advice: None }
    }

    fn new_passed(name: impl Into<String>, explanation: impl Into<String>) -> Self {
        Self::new(name, CheckResult::Good, explanation)
    }

    fn new_plain(name: impl Into<String>, explanation: impl Into<String>) -> Self {
        Self::new(name, CheckResult::Plain, explanation)
    }

    fn new_failed(
        name: impl Into<String>,
        explanation: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { advice, ..Self::new(name, CheckResult::Bad, explanation) }
    }
}

/// The capability CAP_IPC_LOCK, which `doctor` reports together with the limit of locked memory.
/// Streamline does not need this capability.
const CAP_IPC_LOCK: u32 = 14;

fn user_checks(facts: &MachineFacts) -> FindingSection {
    let who = &facts.privilege;
    let user = if who.uid == 0 { "root".to_owned() } else { format!("number {}", who.uid) };
    let mut rows = vec![CheckFinding::new_plain("user", user), program_check(&facts.program)];
    for (number, name, serves) in [
        (Capabilities::NET_RAW, "CAP_NET_RAW", "rx and tx"),
        (Capabilities::NET_ADMIN, "CAP_NET_ADMIN", "kernel programs, changes of interfaces"),
        (Capabilities::BPF, "CAP_BPF", "kernel programs"),
        (Capabilities::PERFMON, "CAP_PERFMON", "programs that read kernel memory: not needed"),
        (Capabilities::SYS_ADMIN, "CAP_SYS_ADMIN", "entering a namespace (netns=)"),
        (CAP_IPC_LOCK, "CAP_IPC_LOCK", "locked memory beyond the limit"),
    ] {
        let (state, how) = match () {
            () if who.effective.contains(number) => (CheckResult::Good, "in effect"),
            () if who.permitted.contains(number) => {
                (CheckResult::Plain, "permitted, not in effect")
            }
            () if who.bounding.contains(number) => (CheckResult::Plain, "missing, can be granted"),
            () => (CheckResult::Plain, "missing, not in the bounding set"),
        };
        rows.push(CheckFinding::new(name, state, format!("{how} ({serves})")));
    }
    let no_new = match who.no_new_privileges {
        Some(true) => "on: sudo and setcap have no effect on programs started from here",
        Some(false) => "off",
        None => "unknown",
    };
    rows.push(CheckFinding::new_plain("no_new_privs", no_new));
    let seccomp = match who.seccomp {
        Some(SeccompMode::Off) => "off",
        Some(SeccompMode::Strict) => "strict",
        Some(SeccompMode::Filter) => "a system call filter is active, which may refuse even root",
        None => "unknown",
    };
    rows.push(CheckFinding::new_plain("seccomp", seccomp));
    let space = match who.inner_user_namespace {
        Some(true) => "a child namespace: capabilities apply only to what it owns",
        Some(false) => "the first",
        None => "unknown",
    };
    rows.push(CheckFinding::new_plain("user namespace", space));
    FindingSection { name: "this process", rows }
}

/// Checks the saved cost table and its age.
fn cost_checks() -> FindingSection {
    const CALIBRATE_COMMAND: &str = "streamline doctor --calibrate";
    let folder = calibrate::state_directory();
    let found = folder.as_deref().map_or(Ok(None), calibrate::load_stored_costs);
    let place =
        folder.as_deref().map(|folder| calibrate::costs_file_path(folder).display().to_string());
    let place = place.unwrap_or_default();
    let table = match found {
        Ok(None) => {
            let explanation = format!("built in; {CALIBRATE_COMMAND} measures here");
            let rows = vec![CheckFinding::new_plain("table", explanation)];
            return FindingSection { name: "what things cost", rows };
        }
        Ok(Some(kept)) => match kept.check_machine() {
            Ok(()) if kept.costs.is_calibrated() => {
                CheckFinding::new_passed("table", format!("measured {}", kept.format_age()))
            }
            Ok(()) => {
                let explanation = format!(
                    "built in, corrected by runs {}; {CALIBRATE_COMMAND} measures here",
                    kept.format_age()
                );
                CheckFinding::new_plain("table", explanation)
            }
            Err(why) => {
                CheckFinding::new_failed("table", format!("not used: {why}"), CALIBRATE_COMMAND)
            }
        },
        Err(why) => CheckFinding::new_failed("table", why, CALIBRATE_COMMAND),
    };
    let rows = vec![table, CheckFinding::new_plain("kept in", place)];
    FindingSection { name: "what things cost", rows }
}

/// Checks if the daemon replies, and reports its policy and the number of this user's paths beside
/// the quota.
fn daemon_checks() -> FindingSection {
    let found = Client::find(None).and_then(|client| {
        let (about, allowed) = (client.describe_daemon()?, client.permissions()?);
        Ok((client.directory().display().to_string(), about, allowed))
    });
    let rows = match found {
        Ok((place, about, allowed)) => {
            let policy = about.policy.unwrap_or_else(|| "built in".to_owned());
            let used = allowed.used.paths.unwrap_or(0);
            let most = allowed.quota.paths.map_or_else(String::new, |most| format!(" of {most}"));
            vec![
                CheckFinding::new_passed("place", format!("{place} (process {})", about.process)),
                CheckFinding::new_plain("policy", policy),
                CheckFinding::new_plain("your paths", format!("{used}{most}")),
            ]
        }
        Err(ClientError::NoDaemon(_)) => {
            let explanation = "none; `streamline daemon --user &` starts one for you";
            vec![CheckFinding::new_plain("place", explanation)]
        }
        Err(error) => {
            let advice = "start it again, or set STREAMLINE_DAEMON to the directory of another";
            vec![CheckFinding::new_failed("place", error.to_string(), advice)]
        }
    };
    FindingSection { name: "the daemon", rows }
}

fn program_check(program: &ProgramFile) -> CheckFinding {
    let place = program.path.as_ref().map(|path| path.display().to_string());
    let place = place.unwrap_or_else(|| "unknown".to_owned());
    match program.nosuid {
        true => {
            let advice = "capabilities of files have no effect there: install it elsewhere";
            CheckFinding::new_failed("program", format!("{place} (on a mount with nosuid)"), advice)
        }
        false => CheckFinding::new_plain("program", place),
    }
}

fn kernel_checks(facts: &MachineFacts) -> FindingSection {
    let ring = FeatureProbe {
        facility: KernelFeature::PacketRing,
        serves: "rx: a packet socket with its memory mapped",
        outcome: facts.packet_ring.clone(),
    };
    let mut features: Vec<&FeatureProbe> = facts.features.iter().collect();
    // Mapping the ring is the last step of opening a packet socket, so the row of the ring follows
    // the row of the socket.
    let socket =
        features.iter().position(|feature| feature.facility == KernelFeature::PacketSocket);
    features.insert(socket.map_or(0, |at| at + 1), &ring);
    let mut rows = Vec::new();
    for feature in features {
        rows.push(probe_check(facts, feature));
        if feature.facility == KernelFeature::Seccomp {
            rows.push(landlock_check(facts.landlock));
        }
    }
    rows.push(match facts.user_namespaces {
        Some(true) => {
            CheckFinding::new_passed("user namespaces", "for all users, according to the settings")
        }
        Some(false) => {
            let advice = "see the sysctls user.max_user_namespaces, \
                          kernel.unprivileged_userns_clone and \
                          kernel.apparmor_restrict_unprivileged_userns";
            CheckFinding::new_failed(
                "user namespaces",
                "only for root, according to the settings",
                advice,
            )
        }
        None => CheckFinding::new_plain("user namespaces", "unknown"),
    });
    FindingSection { name: "what the kernel permits (tried, unless noted)", rows }
}

/// Checks Landlock, which a sandbox uses in addition to seccomp.
fn landlock_check(landlock: LandlockSupport) -> CheckFinding {
    const NAME: &str = "Landlock";
    match landlock {
        LandlockSupport::Full => {
            CheckFinding::new_passed(NAME, "second barrier of the sandbox, after seccomp")
        }
        LandlockSupport::Partial => {
            let explanation =
                "some of its rules, as a second barrier after seccomp; Linux 6.12 has all";
            CheckFinding::new_plain(NAME, explanation)
        }
        LandlockSupport::Missing => {
            let explanation = "missing: `untrusted=yes` uses seccomp alone, which forbids the same";
            let advice = "put landlock into lsm= on the kernel's command line; it needs Linux 5.13 \
                          built with it, and no container whose seccomp filter refuses it";
            CheckFinding::new_failed(NAME, explanation, advice)
        }
    }
}

fn probe_check(facts: &MachineFacts, feature: &FeatureProbe) -> CheckFinding {
    match &feature.outcome {
        Ok(()) => CheckFinding::new_passed(feature.facility.name(), feature.serves),
        Err(refusal) => {
            let explanation = format!("{} ({})", refusal.why, feature.serves);
            let advice = remedy(facts, feature, refusal.kind);
            CheckFinding::new_failed(feature.facility.name(), explanation, advice)
        }
    }
}

/// Returns the remedy for a feature that does not work, given the kind of the refusal.
fn remedy(facts: &MachineFacts, feature: &FeatureProbe, kind: RefusalKind) -> String {
    let who = &facts.privilege;
    match feature.facility {
        KernelFeature::PacketSocket | KernelFeature::PacketRing | KernelFeature::XdpSocket => {
            return format!("see the end: {}", capture_verdict(facts).title());
        }
        KernelFeature::Program => {
            return format!("see the end: {}", program_verdict(facts).title());
        }
        KernelFeature::Tcx
        | KernelFeature::XdpLink
        | KernelFeature::RingBuffer
        | KernelFeature::Cgroup
            if kind == RefusalKind::Denied =>
        {
            return format!("see the end: {}", program_verdict(facts).title());
        }
        _ => {}
    }
    let filtered = who.seccomp == Some(SeccompMode::Filter);
    let text = match (feature.facility, kind) {
        (KernelFeature::Seccomp, RefusalKind::Denied | RefusalKind::Absent) if filtered => {
            "the seccomp filter refuses it: ask the administrator of this container or service"
        }
        (KernelFeature::Seccomp, _) => {
            "only a kernel built with it; without it, `untrusted=yes` is refused"
        }
        (KernelFeature::Cgroup, RefusalKind::Absent) => {
            "sudo mount -t cgroup2 none /sys/fs/cgroup, or boot with it"
        }
        (KernelFeature::Cgroup, _) => "only a newer kernel; it works on Linux 6.18",
        (_, RefusalKind::Absent) => "only a kernel built with it",
        (_, RefusalKind::Denied) => "run as root",
        (_, RefusalKind::Other) => "free memory or descriptors, and try again",
    };
    text.to_owned()
}

fn limit_checks(facts: &MachineFacts) -> FindingSection {
    let rows = facts.limits.iter().map(|limit| {
        let value = match limit.value {
            // The limit cannot be read: some limits are visible only in the initial network
            // namespace.
            None => "unknown here".to_owned(),
            Some(LimitValue::Unlimited) => "unlimited".to_owned(),
            Some(LimitValue::Finite(n)) => n.to_string(),
        };
        let (least, serves) = match limit.name {
            "net.core.netdev_max_backlog" => (1000, "length of the queue of packets per processor"),
            "net.core.bpf_jit_enable" => (1, "not 0: eBPF programs are compiled to machine code"),
            "net.core.rmem_max" => (0, "bytes; does not limit the ring of rx"),
            "net.core.optmem_max" => (20_480, "bytes; limits the filter of a packet socket"),
            "Max locked memory" => (0, "bytes; does not limit the ring of rx"),
            _ => (1024, "files, sockets and pipes at once"),
        };
        let explanation = format!("{value} ({serves})");
        match limit.value {
            Some(LimitValue::Finite(n)) if n < least => {
                let advice = match limit.name.contains('.') {
                    true => format!("sudo sysctl -w {}={least}", limit.name),
                    false => format!("ulimit -n {least}"),
                };
                CheckFinding::new_failed(limit.name, explanation, advice)
            }
            _ => CheckFinding::new_plain(limit.name, explanation),
        }
    });
    FindingSection { name: "limits", rows: rows.collect() }
}

fn helper_checks(facts: &MachineFacts) -> FindingSection {
    let rows = facts.helpers.iter().map(|(name, place)| {
        let (serves, package) = match *name {
            "tcpdump" => ("shows the same packets", "tcpdump"),
            "tshark" => ("decodes them", "tshark"),
            "setcap" => ("sets the capabilities of a file", "libcap2-bin"),
            _ => ("compiles filter expressions that Streamline does not support", "libpcap0.8"),
        };
        match place {
            Some(place) => CheckFinding::new_passed(*name, format!("{place} ({serves})")),
            None => {
                let advice = format!("install it (on Debian the package {package})");
                CheckFinding::new_failed(*name, format!("not found ({serves})"), advice)
            }
        }
    });
    FindingSection { name: "helpful programs", rows: rows.collect() }
}

impl InterfaceFinding {
    fn new(interface: &Interface) -> Self {
        let flags = interface.flags;
        let link = match interface.hatype {
            1 => "Ethernet".to_owned(),
            772 => "loopback".to_owned(),
            512 => "PPP".to_owned(),
            801..=805 => "WLAN".to_owned(),
            // Link types without a link-layer header: tun and tunnels.
            65534 | 519 | 768 | 769 | 776 | 778 | 823 => "raw IP".to_owned(),
            other => format!("type {other}"),
        };
        let counters = &interface.counters;
        Self {
            index: interface.index,
            name: interface.name.clone(),
            kind: interface.kind.clone().unwrap_or_else(|| "device".to_owned()),
            link,
            state: match (flags.is_up(), flags.is_running()) {
                (true, true) => "up",
                (true, false) => "no carrier",
                (false, _) => "down",
            },
            mtu: interface.mtu,
            received: counters.rx_packets,
            sent: counters.tx_packets,
            lost: counters.lost_rx_frames(),
            errors: counters.rx_errors,
        }
    }
}

/// Determines if `rx` can capture, with remedies if it cannot.
pub(super) fn capture_verdict(facts: &MachineFacts) -> Verdict {
    let mut verdict = operation_verdict("rx", "capturing", facts, Operation::Packets);
    if verdict.open {
        verdict.because = match &facts.interfaces {
            Err(refusal) => format!("the interfaces cannot be listed: {}", refusal.why),
            Ok(all) => {
                let up = all.iter().filter(|i| i.flags.is_running() && !i.flags.is_loopback());
                let names: Vec<&str> = up.map(|interface| interface.name.as_str()).collect();
                match names.len() {
                    0 => "but only lo is up: no packet will arrive until another interface is up"
                        .to_owned(),
                    1..=4 => format!("on {}", names.join(", ")),
                    n => format!("on {} and {} more", names[..3].join(", "), n - 3),
                }
            }
        };
    }
    verdict
}

/// Determines if `tx` can send, with remedies if it cannot.
pub(super) fn send_verdict(facts: &MachineFacts) -> Verdict {
    operation_verdict("tx", "sending", facts, Operation::Packets)
}

/// Determines if eBPF programs can be loaded into the kernel, with remedies if they cannot.
pub(super) fn program_verdict(facts: &MachineFacts) -> Verdict {
    let mut verdict = operation_verdict("kernel", "programs", facts, Operation::Programs);
    if !verdict.open {
        verdict.because.push_str("; everything works without it, in this process");
    }
    verdict
}

fn replay_verdict() -> Verdict {
    Verdict {
        name: "replay",
        what: "captures",
        open: true,
        because: "always".to_owned(),
        ways: Vec::new(),
    }
}

fn operation_verdict(
    name: &'static str,
    what: &'static str,
    facts: &MachineFacts,
    operation: Operation,
) -> Verdict {
    let attempt = match operation {
        Operation::Packets => &facts.packet_ring,
        Operation::Programs => &facts.kernel_program,
        Operation::Namespaces => &Ok(()),
    };
    let who = &facts.privilege;
    match privilege::denial_cause(who, operation, attempt) {
        None => Verdict { name, what, open: true, because: String::new(), ways: Vec::new() },
        Some(cause) => Verdict {
            name,
            what,
            open: false,
            because: cause.sentence(operation),
            ways: cause.remedies(operation, who, &facts.program, EXAMPLE_REQUEST),
        },
    }
}
