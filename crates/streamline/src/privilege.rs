//! Explanations of why packet sockets or kernel programs were refused, with remedies.
//!
//! The module derives a sentence and shell commands from the privileges of this process and from
//! the result of an attempt. It distinguishes a missing capability from one that is present but
//! ineffective: because of a seccomp filter, because the capability belongs to a user namespace
//! that does not own the network namespace, or because of a security module.

use crate::report::quote_word;
use engine::doctor::{
    self, Capabilities, Privilege, ProgramFile, Refusal, RefusalKind, SeccompMode,
};
use pipeline::explain::table::wrap_text;
use std::fmt::Write as _;

/// An operation that requires a privilege.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Opening packet sockets: `rx` and `tx`.
    Packets,
    /// Loading eBPF programs.
    Programs,
    /// Entering other network namespaces: `netns=`.
    Namespaces,
}

/// The cause for which the kernel refused an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DenialCause {
    /// The process lacks the capability, which can be granted to it.
    Capability,
    /// The capability is missing, and no process started by this process can obtain it.
    Unobtainable,
    /// The process has the capability, but in a user namespace that does not own the process's
    /// network namespace.
    ForeignNamespace,
    /// A seccomp filter refuses the call. The capability may be present, and the kernel may have
    /// the feature.
    Filter,
    /// The cause is either [`ForeignNamespace`](Self::ForeignNamespace) or
    /// [`Filter`](Self::Filter). The kernel's error does not show which.
    NamespaceOrFilter,
    /// The capability is present, but a security module refuses the call.
    Module,
    /// The kernel lacks the feature; the text is the kernel's error.
    Kernel(String),
    /// Any other error.
    Other(String),
}

/// A shell command with an explanation.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Remedy {
    /// The command; empty if the remedy is only advice.
    pub command: String,
    /// The effect of the command, or the advice if there is no command.
    #[serde(rename = "says")]
    pub explanation: String,
}

impl Operation {
    /// Returns the names of the required capabilities, such as `CAP_NET_RAW`.
    const fn required_capabilities(self) -> &'static str {
        match self {
            Self::Packets => "CAP_NET_RAW",
            Self::Programs => "CAP_BPF and CAP_NET_ADMIN",
            Self::Namespaces => "CAP_SYS_ADMIN",
        }
    }

    /// Returns the required capabilities in the notation of setcap(8), such as `cap_net_raw+ep`.
    const fn setcap_notation(self) -> &'static str {
        match self {
            Self::Packets => "cap_net_raw+ep",
            Self::Programs => "cap_bpf,cap_net_admin+ep",
            Self::Namespaces => "cap_sys_admin+ep",
        }
    }

    /// Returns the operation as a verb phrase, such as `open packet sockets`.
    const fn verb_phrase(self) -> &'static str {
        match self {
            Self::Packets => "open packet sockets",
            Self::Programs => "load kernel programs",
            Self::Namespaces => "enter another namespace",
        }
    }

    const fn is_permitted_by(self, set: Capabilities) -> bool {
        match self {
            Self::Packets => set.contains(Capabilities::NET_RAW),
            Self::Programs => {
                let both = set.contains(Capabilities::BPF) && set.contains(Capabilities::NET_ADMIN);
                both || set.contains(Capabilities::SYS_ADMIN)
            }
            Self::Namespaces => set.contains(Capabilities::SYS_ADMIN),
        }
    }
}

/// Returns the cause of a refusal, or `None` if the attempt succeeded.
pub fn denial_cause(
    who: &Privilege,
    operation: Operation,
    tried: &Result<(), Refusal>,
) -> Option<DenialCause> {
    let refusal = tried.as_ref().err()?;
    let filtered = who.seccomp == Some(SeccompMode::Filter);
    let foreign = who.inner_user_namespace == Some(true);
    Some(match refusal.kind {
        RefusalKind::Other => DenialCause::Other(format!("{}: {}", refusal.call, refusal.why)),
        // A seccomp filter may return any error number, including that of a missing feature.
        RefusalKind::Absent if filtered => DenialCause::Filter,
        RefusalKind::Absent => DenialCause::Kernel(refusal.why.clone()),
        RefusalKind::Denied if !operation.is_permitted_by(who.effective) => {
            match operation.is_permitted_by(who.bounding) {
                true => DenialCause::Capability,
                false => DenialCause::Unobtainable,
            }
        }
        RefusalKind::Denied => match (foreign, filtered) {
            (true, true) => DenialCause::NamespaceOrFilter,
            (true, false) => DenialCause::ForeignNamespace,
            (false, true) => DenialCause::Filter,
            (false, false) => DenialCause::Module,
        },
    })
}

/// An operation that the kernel refuses to this process, and the cause of the refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    operation: Operation,
    cause: DenialCause,
}

impl Denial {
    /// Explains a failure for which a missing capability may be the cause. `number` is the number
    /// of the capability (capabilities(7)). Returns `None` if this process may perform the
    /// operation that needs the capability, or if no operation of a request needs it.
    pub fn for_capability(number: u32) -> Option<Self> {
        let operation = match number {
            Capabilities::SYS_ADMIN => Operation::Namespaces,
            Capabilities::BPF => Operation::Programs,
            Capabilities::NET_RAW => Operation::Packets,
            _ => return None,
        };
        let tried = match operation {
            Operation::Namespaces => Err(Refusal {
                kind: RefusalKind::Denied,
                call: "setns",
                why: "operation not permitted".to_owned(),
            }),
            Operation::Programs => Err(Refusal {
                kind: RefusalKind::Denied,
                call: "bpf",
                why: "operation not permitted".to_owned(),
            }),
            Operation::Packets => doctor::probe_packet_ring(),
        };
        Self::for_attempt(operation, &tried)
    }

    /// Explains why the kernel refuses to load programs. Returns `None` if it accepts them.
    pub fn for_programs() -> Option<Self> {
        Self::for_attempt(Operation::Programs, &doctor::probe_kernel_program())
    }

    fn for_attempt(operation: Operation, tried: &Result<(), Refusal>) -> Option<Self> {
        denial_cause(&Privilege::detect(), operation, tried).map(|cause| Self { operation, cause })
    }

    /// Returns the reason for the refusal as a sentence.
    pub fn sentence(&self) -> String {
        self.cause.sentence(self.operation)
    }

    /// Formats the remedies that would allow this request to run.
    pub fn remedies(&self, line: &str) -> String {
        let remedies =
            self.cause.remedies(self.operation, &Privilege::detect(), &ProgramFile::locate(), line);
        let mut text = format_remedies(&remedies, 2);
        text.push_str("  streamline doctor\n      reports what else works here\n");
        text
    }
}

impl DenialCause {
    /// Returns the cause of the refusal as a sentence.
    pub fn sentence(&self, operation: Operation) -> String {
        let (needs, does) = (operation.required_capabilities(), operation.verb_phrase());
        let (is, it, does_not) = match operation {
            Operation::Packets | Operation::Namespaces => ("is", "it", "does"),
            Operation::Programs => ("are", "them", "do"),
        };
        let there = format!("{needs} {is} there and {does_not} not help");
        match self {
            Self::Capability => {
                format!("{needs} {is} missing, without which no process may {does}")
            }
            Self::Unobtainable => format!(
                "{needs} {is} missing, and not in the bounding set: nothing that is started from \
                 here can get {it}"
            ),
            Self::ForeignNamespace => match operation {
                Operation::Packets => format!(
                    "{there}: this is a user namespace, and the network namespace belongs to \
                     another"
                ),
                Operation::Programs => format!("{there}: only the first user namespace counts"),
                Operation::Namespaces => {
                    format!("{there}: this is a user namespace, which does not own the other one")
                }
            },
            Self::Filter => {
                format!(
                    "{there}: a seccomp filter refuses to {does}, before the call reaches the \
                     kernel"
                )
            }
            Self::NamespaceOrFilter => format!(
                "{there}: a seccomp filter refuses to {does}, or this user namespace is not the \
                 right one"
            ),
            Self::Module => format!(
                "{there}: a security module (SELinux, AppArmor, lockdown) refuses to {does}"
            ),
            Self::Kernel(why) => format!("this kernel cannot {does}: {why}"),
            Self::Other(why) => format!("cannot {does}: {why}"),
        }
    }

    /// Returns the remedies, simplest first. `line` is the request to be run.
    pub fn remedies(
        &self,
        operation: Operation,
        who: &Privilege,
        program: &ProgramFile,
        line: &str,
    ) -> Vec<Remedy> {
        let path = program.path.as_ref().map(|path| path.display().to_string());
        let path = quote_shell_word_if_needed(path.as_deref().unwrap_or("streamline"));
        let remedy = |command: String, explanation: &str| Remedy {
            command,
            explanation: explanation.to_owned(),
        };
        let own = (operation == Operation::Packets)
            .then(|| remedy("unshare -Urn".to_owned(), OWN_NETWORK_ADVICE));
        let advise = |explanation: &str| remedy(String::new(), explanation);
        let mut remedies = Vec::new();
        match self {
            Self::Capability if who.inner_user_namespace == Some(true) => {}
            Self::Capability if who.no_new_privileges == Some(true) => {
                remedies.push(advise(NO_NEW_PRIVS_NOTE))
            }
            Self::Capability => {
                remedies.push(remedy(format!("sudo {path} {}", quote_word(line)), "this once"));
                let setcap = format!("sudo setcap {} {path}", operation.setcap_notation());
                match program.nosuid {
                    // CAP_SYS_ADMIN is as good as root, so it is not granted to a file permanently.
                    _ if operation == Operation::Namespaces => {}
                    true => remedies.push(remedy(
                        format!("sudo install -m 755 {path} {INSTALLED_PATH}"),
                        NOSUID_ADVICE,
                    )),
                    false => remedies.push(remedy(setcap, SETCAP_ADVICE)),
                }
                if operation == Operation::Packets {
                    let unit = format!("{path} doctor unit {}", quote_word(line));
                    remedies.push(remedy(
                        unit,
                        "prints a systemd service with this right and no other",
                    ));
                }
            }
            Self::Unobtainable => remedies.push(advise(CONTAINER_ADVICE)),
            Self::ForeignNamespace => remedies.push(advise(NAMESPACE_ADVICE)),
            Self::Filter => return vec![advise(SECCOMP_ADVICE)],
            Self::NamespaceOrFilter => remedies.push(advise(SECCOMP_ADVICE)),
            Self::Module => {
                let command = "sudo dmesg | grep -iE 'denied|lockdown' | tail";
                return vec![remedy(command.to_owned(), "usually shows which")];
            }
            Self::Kernel(_) => return vec![advise(KERNEL_ADVICE)],
            Self::Other(_) => return remedies,
        }
        remedies.extend(own);
        remedies
    }
}

/// Path of the installed program, which every user may execute.
pub const INSTALLED_PATH: &str = "/usr/local/bin/streamline";

const OWN_NETWORK_ADVICE: &str =
    "for trials: a shell in a separate network namespace, with only lo, where you are root";
const SETCAP_ADVICE: &str = "permanently: for all users who may execute this file, until it is \
                             replaced";
const NO_NEW_PRIVS_NOTE: &str = "no_new_privs is set: neither sudo nor setcap has an effect on \
                                 programs started from here; begin in another session";
const CONTAINER_ADVICE: &str = "the configuration of this container or service must grant it: \
                                docker run --cap-add=NET_RAW, or CapabilityBoundingSet= of the \
                                unit";
const NOSUID_ADVICE: &str =
    "first: this file is on a mount with nosuid, where setcap has no effect";
const NAMESPACE_ADVICE: &str = "run it outside of this user namespace";
const SECCOMP_ADVICE: &str = "the configuration of this container or service must permit it: \
                      docker run --security-opt seccomp=FILE, or RestrictAddressFamilies= and \
                      SystemCallFilter= of the unit";
const KERNEL_ADVICE: &str = "use a kernel that is built with it";

/// Width of formatted remedies in columns.
pub const REMEDY_COLUMNS: usize = 80;

/// Formats commands, each above its explanation. An arrow marks an explanation without a command.
pub fn format_remedies(remedies: &[Remedy], indent: usize) -> String {
    let mut out = String::new();
    for Remedy { command, explanation } in remedies {
        let (indent, mut arrow) = match command.is_empty() {
            true => (indent, "→ "),
            false => {
                // Commands are never wrapped, so that they can be copied.
                let _ = writeln!(out, "{:indent$}{command}", "");
                (indent + 4, "")
            }
        };
        for line in wrap_text(explanation, REMEDY_COLUMNS - indent - 2) {
            let _ = writeln!(out, "{:indent$}{arrow}{line}", "");
            arrow = if arrow.is_empty() { "" } else { "  " };
        }
    }
    out
}

/// Quotes a text as a shell word if necessary.
fn quote_shell_word_if_needed(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { quote_word(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const NET_RAW_ONLY: Capabilities = Capabilities(1 << Capabilities::NET_RAW);
    const ALL_CAPABILITIES: Capabilities = Capabilities(u64::MAX);

    /// Returns the privileges of a user with these effective capabilities, without any other
    /// restriction.
    fn user_with_capabilities(effective: Capabilities) -> Privilege {
        Privilege {
            uid: 1000,
            effective,
            bounding: ALL_CAPABILITIES,
            seccomp: Some(SeccompMode::Off),
            no_new_privileges: Some(false),
            inner_user_namespace: Some(false),
            ..Privilege::default()
        }
    }

    /// Returns the result of a call that the kernel has refused, for a refusal of this kind.
    fn refuse(kind: RefusalKind) -> Result<(), Refusal> {
        Err(Refusal { kind, call: "socket", why: "operation not permitted".to_owned() })
    }

    fn binary() -> ProgramFile {
        ProgramFile { path: Some(PathBuf::from("/usr/bin/streamline")), nosuid: false }
    }

    #[test]
    fn missing_capability_differs_from_an_ineffective_one() {
        let denied = refuse(RefusalKind::Denied);
        let cause = |who: &Privilege| denial_cause(who, Operation::Packets, &denied).unwrap();
        let unprivileged = user_with_capabilities(Capabilities(0));
        let filter = Some(SeccompMode::Filter);
        assert_eq!(cause(&unprivileged), DenialCause::Capability);
        // If the capability is missing, a seccomp filter makes no difference.
        assert_eq!(cause(&Privilege { seccomp: filter, ..unprivileged }), DenialCause::Capability);
        assert_eq!(
            cause(&Privilege { bounding: Capabilities(0), ..unprivileged }),
            DenialCause::Unobtainable
        );
        let raw = user_with_capabilities(NET_RAW_ONLY);
        assert_eq!(cause(&raw), DenialCause::Module);
        assert_eq!(cause(&Privilege { seccomp: filter, ..raw }), DenialCause::Filter);
        let inner = Privilege { inner_user_namespace: Some(true), ..raw };
        assert_eq!(cause(&inner), DenialCause::ForeignNamespace);
        assert_eq!(cause(&Privilege { seccomp: filter, ..inner }), DenialCause::NamespaceOrFilter);
        assert_eq!(denial_cause(&unprivileged, Operation::Packets, &Ok(())), None);
    }

    #[test]
    fn missing_feature_is_attributed_to_an_active_seccomp_filter() {
        let absent = refuse(RefusalKind::Absent);
        let raw = user_with_capabilities(NET_RAW_ONLY);
        let of = |who: &Privilege| denial_cause(who, Operation::Packets, &absent).unwrap();
        assert_eq!(of(&raw), DenialCause::Kernel("operation not permitted".to_owned()));
        let filtered = Privilege { seccomp: Some(SeccompMode::Filter), ..raw };
        assert_eq!(
            of(&filtered),
            DenialCause::Filter,
            "as RestrictAddressFamilies= of systemd does"
        );
    }

    #[test]
    fn programs_need_two_capabilities_or_sys_admin() {
        let denied = refuse(RefusalKind::Denied);
        let of = |set: u64| {
            denial_cause(&user_with_capabilities(Capabilities(set)), Operation::Programs, &denied)
                .unwrap()
        };
        let (bpf, admin) = (1 << Capabilities::BPF, 1 << Capabilities::NET_ADMIN);
        assert_eq!(of(bpf), DenialCause::Capability);
        assert_eq!(of(bpf | admin), DenialCause::Module);
        assert_eq!(of(1 << Capabilities::SYS_ADMIN), DenialCause::Module);
    }

    #[test]
    fn remedies_fit_the_user_and_the_program_file() {
        let unprivileged = user_with_capabilities(Capabilities(0));
        let lines = |who: &Privilege, program: &ProgramFile| -> Vec<String> {
            let remedies =
                DenialCause::Capability.remedies(Operation::Packets, who, program, "rx | print");
            remedies
                .into_iter()
                .map(|remedy| remedy.command)
                .filter(|line| !line.is_empty())
                .collect()
        };
        let all = [
            "sudo /usr/bin/streamline 'rx | print'",
            "sudo setcap cap_net_raw+ep /usr/bin/streamline",
            "/usr/bin/streamline doctor unit 'rx | print'",
            "unshare -Urn",
        ];
        assert_eq!(lines(&unprivileged, &binary()), all);
        let nosuid = ProgramFile { nosuid: true, ..binary() };
        assert!(!lines(&unprivileged, &nosuid).iter().any(|line| line.contains("setcap")));
        let no_new_privileges = Privilege { no_new_privileges: Some(true), ..unprivileged };
        assert_eq!(lines(&no_new_privileges, &binary()), ["unshare -Urn"]);
        let inner = Privilege { inner_user_namespace: Some(true), ..unprivileged };
        assert_eq!(lines(&inner, &binary()), ["unshare -Urn"]);
        let odd = ProgramFile { path: Some(PathBuf::from("/a b/it's")), nosuid: false };
        assert_eq!(lines(&unprivileged, &odd)[1], "sudo setcap cap_net_raw+ep '/a b/it'\\''s'");
    }

    #[test]
    fn every_denial_cause_has_a_sentence_and_remedies() {
        for operation in [Operation::Packets, Operation::Programs, Operation::Namespaces] {
            for cause in [
                DenialCause::Capability,
                DenialCause::Unobtainable,
                DenialCause::ForeignNamespace,
                DenialCause::Filter,
                DenialCause::NamespaceOrFilter,
                DenialCause::Module,
                DenialCause::Kernel("no".to_owned()),
                DenialCause::Other("no".to_owned()),
            ] {
                let sentence = cause.sentence(operation);
                assert!(!sentence.ends_with('.') && !sentence.contains("  "), "{sentence}");
                let remedies = cause.remedies(
                    operation,
                    &user_with_capabilities(NET_RAW_ONLY),
                    &binary(),
                    "rx",
                );
                assert!(remedies.iter().all(|remedy| !remedy.explanation.is_empty()));
            }
        }
    }
}
