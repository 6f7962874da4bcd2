//! Explains why packets or kernel programs were refused, and the remedies: the only place for these
//! words.
//!
//! In: who we are and what came of trying. Out: a sentence, and lines that can be copied into a
//! shell. A capability that is missing is told apart from one that is there and does not help:
//! then a seccomp filter stands before the kernel, or the capability counts in a user name space
//! that does not own this network name space, or a security module says no.

use engine::doctor::{self, Binary, Capabilities, Privilege, Refusal, Refused, Seccomp};
use pipeline::explain::table::wrap;
use std::fmt::Write as _;
use streamline::report::quoted;

/// Something for which a privilege is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    /// Packet sockets: `rx` and `tx`.
    Packets,
    /// eBPF programs.
    Programs,
    /// Other network name spaces: `netns=`.
    NameSpaces,
}

/// The obstacle at a door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The capability is missing and can be given.
    Capability,
    /// The capability is missing and nothing that is started from here can get it.
    Bound,
    /// The capability is there, in a user name space that does not own the network name space.
    Stranger,
    /// The capability is there, and a seccomp filter refuses.
    Filter,
    /// One of the last two.
    StrangerOrFilter,
    /// The capability is there, and somebody else refuses.
    Module,
    /// The kernel does not have it.
    Kernel(String),
    /// Anything else.
    Other(String),
}

/// A line for a shell, and what it does.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub(crate) struct Way {
    /// The line; empty where there is only something to say.
    pub(crate) command: String,
    /// The explanation.
    pub(crate) says: String,
}

impl Door {
    /// Returns the capabilities needed.
    const fn needs(self) -> &'static str {
        match self {
            Self::Packets => "CAP_NET_RAW",
            Self::Programs => "CAP_BPF and CAP_NET_ADMIN",
            Self::NameSpaces => "CAP_SYS_ADMIN",
        }
    }

    /// As setcap(8) writes it.
    const fn written(self) -> &'static str {
        match self {
            Self::Packets => "cap_net_raw+ep",
            Self::Programs => "cap_bpf,cap_net_admin+ep",
            Self::NameSpaces => "cap_sys_admin+ep",
        }
    }

    /// Returns the action that is impossible without them.
    const fn does(self) -> &'static str {
        match self {
            Self::Packets => "open packet sockets",
            Self::Programs => "load kernel programs",
            Self::NameSpaces => "enter another name space",
        }
    }

    const fn is_in(self, set: Capabilities) -> bool {
        match self {
            Self::Packets => set.has(Capabilities::NET_RAW),
            Self::Programs => {
                let both = set.has(Capabilities::BPF) && set.has(Capabilities::NET_ADMIN);
                both || set.has(Capabilities::SYS_ADMIN)
            }
            Self::NameSpaces => set.has(Capabilities::SYS_ADMIN),
        }
    }
}

/// Returns the reason why this door is shut for us, if it is.
pub(crate) fn lack(who: &Privilege, door: Door, tried: &Result<(), Refusal>) -> Option<Lack> {
    let refusal = tried.as_ref().err()?;
    let filtered = who.seccomp == Some(Seccomp::Filter);
    let stranger = who.inner_user_namespace == Some(true);
    Some(match refusal.kind {
        Refused::Otherwise => Lack::Other(format!("{}: {}", refusal.call, refusal.why)),
        // What a filter answers is for whoever wrote it to choose.
        Refused::Absent if filtered => Lack::Filter,
        Refused::Absent => Lack::Kernel(refusal.why.clone()),
        Refused::Denied if !door.is_in(who.effective) => match door.is_in(who.bounding) {
            true => Lack::Capability,
            false => Lack::Bound,
        },
        Refused::Denied => match (stranger, filtered) {
            (true, true) => Lack::StrangerOrFilter,
            (true, false) => Lack::Stranger,
            (false, true) => Lack::Filter,
            (false, false) => Lack::Module,
        },
    })
}

/// A door that is shut for us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shut {
    door: Door,
    lack: Lack,
}

impl Shut {
    /// The door at which a source or sink of this name was turned away in a call that says which
    /// capability it needs; none, if it was for another reason.
    pub(crate) fn at(name: &str, call: &str, needs: Option<u32>) -> Option<Self> {
        let door = match needs {
            Some(Capabilities::SYS_ADMIN) => Door::NameSpaces,
            Some(Capabilities::BPF) => Door::Programs,
            // Some refusals do not look like one. `give`: no packet socket could give it.
            _ if ["rx", "tx", "redirect"].contains(&name) && !["enter", "give"].contains(&call) => {
                Door::Packets
            }
            _ => return None,
        };
        let tried = match door {
            Door::NameSpaces => Err(Refusal {
                kind: Refused::Denied,
                call: "setns",
                why: "operation not permitted".to_owned(),
            }),
            Door::Programs => Err(Refusal {
                kind: Refused::Denied,
                call: "bpf",
                why: "operation not permitted".to_owned(),
            }),
            Door::Packets => doctor::packet_ring(),
        };
        Self::of(door, &tried)
    }

    /// The door of programs, if the kernel takes none of ours.
    pub(crate) fn programs() -> Option<Self> {
        Self::of(Door::Programs, &doctor::kernel_program())
    }

    fn of(door: Door, tried: &Result<(), Refusal>) -> Option<Self> {
        lack(&Privilege::detect(), door, tried).map(|lack| Self { door, lack })
    }

    /// Returns the reason as a sentence.
    pub(crate) fn sentence(&self) -> String {
        self.lack.sentence(self.door)
    }

    /// Returns the remedies with which this line would run.
    pub(crate) fn ways(&self, line: &str) -> String {
        let ways = self.lack.ways(self.door, &Privilege::detect(), &Binary::look(), line);
        let mut told = written(&ways, 2);
        told.push_str("  streamline doctor\n      says what else works here\n");
        told
    }
}

impl Lack {
    /// Returns the reason as a sentence.
    pub(crate) fn sentence(&self, door: Door) -> String {
        let (needs, does) = (door.needs(), door.does());
        let (is, it, does_not) = match door {
            Door::Packets | Door::NameSpaces => ("is", "it", "does"),
            Door::Programs => ("are", "them", "do"),
        };
        let there = format!("{needs} {is} there and {does_not} not help");
        match self {
            Self::Capability => {
                format!("{needs} {is} missing, without which nobody may {does}")
            }
            Self::Bound => format!(
                "{needs} {is} missing, and not in the bounding set: nothing that is started from \
                 here can get {it}"
            ),
            Self::Stranger => match door {
                Door::Packets => format!(
                    "{there}: this is a user name space, and the network name space belongs to \
                     another"
                ),
                Door::Programs => format!("{there}: only the first user name space counts"),
                Door::NameSpaces => {
                    format!("{there}: this is a user name space, which does not own the other one")
                }
            },
            Self::Filter => {
                format!("{there}: a seccomp filter refuses to {does}, before the kernel is asked")
            }
            Self::StrangerOrFilter => format!(
                "{there}: a seccomp filter refuses to {does}, or this user name space is not the \
                 right one"
            ),
            Self::Module => format!(
                "{there}: a security module (SELinux, AppArmor, lockdown) refuses to {does}"
            ),
            Self::Kernel(why) => format!("this kernel cannot {does}: {why}"),
            Self::Other(why) => format!("cannot {does}: {why}"),
        }
    }

    /// Returns the remedies, the simplest first. `line` is the line to run.
    pub(crate) fn ways(
        &self,
        door: Door,
        who: &Privilege,
        program: &Binary,
        line: &str,
    ) -> Vec<Way> {
        let path = program.path.as_ref().map(|path| path.display().to_string());
        let path = word(path.as_deref().unwrap_or("streamline"));
        let way = |command: String, says: &str| Way { command, says: says.to_owned() };
        let own = (door == Door::Packets).then(|| way("unshare -Urn".to_owned(), OWN_SPACE));
        let say = |says: &str| way(String::new(), says);
        let mut ways = Vec::new();
        match self {
            Self::Capability if who.inner_user_namespace == Some(true) => {}
            Self::Capability if who.no_new_privileges == Some(true) => ways.push(say(NO_NEW)),
            Self::Capability => {
                ways.push(way(format!("sudo {path} {}", quoted(line)), "this once"));
                let setcap = format!("sudo setcap {} {path}", door.written());
                match program.nosuid {
                    // As good as root: nothing to give away for good.
                    _ if door == Door::NameSpaces => {}
                    true => {
                        ways.push(way(format!("sudo install -m 755 {path} {INSTALLED}"), NOSUID))
                    }
                    false => ways.push(way(setcap, FOR_GOOD)),
                }
                if door == Door::Packets {
                    let unit = format!("{path} doctor unit {}", quoted(line));
                    ways.push(way(unit, "prints a service for systemd that has this and no more"));
                }
            }
            Self::Bound => ways.push(say(BOUND)),
            Self::Stranger => ways.push(say(OUTSIDE)),
            Self::Filter => return vec![say(FILTER)],
            Self::StrangerOrFilter => ways.push(say(FILTER)),
            Self::Module => {
                let command = "sudo dmesg | grep -iE 'denied|lockdown' | tail";
                return vec![way(command.to_owned(), "says which, as a rule")];
            }
            Self::Kernel(_) => return vec![say(KERNEL)],
            Self::Other(_) => return ways,
        }
        ways.extend(own);
        ways
    }
}

/// The path of a program that all may start.
pub(crate) const INSTALLED: &str = "/usr/local/bin/streamline";

const OWN_SPACE: &str = "to try things: a shell in a network of its own, with nothing in it but \
                         lo, where you are root";
const FOR_GOOD: &str = "for good: for everybody who may start this file, until it is replaced";
const NO_NEW: &str = "no_new_privs is set: neither sudo nor setcap works in what is started from \
                      here; begin in another session";
const BOUND: &str = "whoever started this container or service must leave it in: docker run \
                     --cap-add=NET_RAW, or CapabilityBoundingSet= of the unit";
const NOSUID: &str = "first: this file lies on a mount with nosuid, where setcap has no effect";
const OUTSIDE: &str = "run it outside of this user name space";
const FILTER: &str = "whoever started this container or service must let it through: docker run \
                      --security-opt seccomp=FILE, or RestrictAddressFamilies= and \
                      SystemCallFilter= of the unit";
const KERNEL: &str = "take a kernel that is built with it";

/// The width of what is said here.
pub(crate) const COLUMNS: usize = 80;

/// Lines to copy, each with what it does under it.
pub(crate) fn written(ways: &[Way], indent: usize) -> String {
    let mut out = String::new();
    for Way { command, says } in ways {
        let (indent, mut arrow) = match command.is_empty() {
            true => (indent, "→ "),
            false => {
                // Never broken: it is to be copied.
                let _ = writeln!(out, "{:indent$}{command}", "");
                (indent + 4, "")
            }
        };
        for line in wrap(says, COLUMNS - indent - 2) {
            let _ = writeln!(out, "{:indent$}{arrow}{line}", "");
            arrow = if arrow.is_empty() { "" } else { "  " };
        }
    }
    out
}

/// A text as a word of a shell: quoted where it must be.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const RAW: Capabilities = Capabilities(1 << Capabilities::NET_RAW);
    const ALL: Capabilities = Capabilities(u64::MAX);

    /// Returns a user with these capabilities and no restrictions.
    fn who(effective: Capabilities) -> Privilege {
        Privilege {
            uid: 1000,
            effective,
            bounding: ALL,
            seccomp: Some(Seccomp::Off),
            no_new_privileges: Some(false),
            inner_user_namespace: Some(false),
            ..Privilege::default()
        }
    }

    /// A refusal of this kind.
    fn refusal(kind: Refused) -> Result<(), Refusal> {
        Err(Refusal { kind, call: "socket", why: "operation not permitted".to_owned() })
    }

    fn binary() -> Binary {
        Binary { path: Some(PathBuf::from("/usr/bin/streamline")), nosuid: false }
    }

    #[test]
    fn a_capability_that_is_missing_is_told_from_one_that_does_not_help() {
        let denied = refusal(Refused::Denied);
        let lack = |who: &Privilege| lack(who, Door::Packets, &denied).unwrap();
        let nobody = who(Capabilities(0));
        let filter = Some(Seccomp::Filter);
        assert_eq!(lack(&nobody), Lack::Capability);
        // Whether there is a filter too makes no difference as long as the capability is missing.
        assert_eq!(lack(&Privilege { seccomp: filter, ..nobody }), Lack::Capability);
        assert_eq!(lack(&Privilege { bounding: Capabilities(0), ..nobody }), Lack::Bound);
        let raw = who(RAW);
        assert_eq!(lack(&raw), Lack::Module);
        assert_eq!(lack(&Privilege { seccomp: filter, ..raw }), Lack::Filter);
        let inner = Privilege { inner_user_namespace: Some(true), ..raw };
        assert_eq!(lack(&inner), Lack::Stranger);
        assert_eq!(lack(&Privilege { seccomp: filter, ..inner }), Lack::StrangerOrFilter);
        assert_eq!(super::lack(&nobody, Door::Packets, &Ok(())), None);
    }

    #[test]
    fn what_is_not_there_may_be_what_a_filter_says() {
        let absent = refusal(Refused::Absent);
        let raw = who(RAW);
        let of = |who: &Privilege| lack(who, Door::Packets, &absent).unwrap();
        assert_eq!(of(&raw), Lack::Kernel("operation not permitted".to_owned()));
        let filtered = Privilege { seccomp: Some(Seccomp::Filter), ..raw };
        assert_eq!(of(&filtered), Lack::Filter, "as RestrictAddressFamilies= of systemd does");
    }

    #[test]
    fn programs_need_two_or_the_one_that_is_all() {
        let denied = refusal(Refused::Denied);
        let of = |set: u64| lack(&who(Capabilities(set)), Door::Programs, &denied).unwrap();
        let (bpf, admin) = (1 << Capabilities::BPF, 1 << Capabilities::NET_ADMIN);
        assert_eq!(of(bpf), Lack::Capability);
        assert_eq!(of(bpf | admin), Lack::Module);
        assert_eq!(of(1 << Capabilities::SYS_ADMIN), Lack::Module);
    }

    #[test]
    fn ways_are_lines_to_copy_and_none_that_cannot_work() {
        let nobody = who(Capabilities(0));
        let lines = |who: &Privilege, program: &Binary| -> Vec<String> {
            let ways = Lack::Capability.ways(Door::Packets, who, program, "rx | print");
            ways.into_iter().map(|way| way.command).filter(|line| !line.is_empty()).collect()
        };
        let all = [
            "sudo /usr/bin/streamline 'rx | print'",
            "sudo setcap cap_net_raw+ep /usr/bin/streamline",
            "/usr/bin/streamline doctor unit 'rx | print'",
            "unshare -Urn",
        ];
        assert_eq!(lines(&nobody, &binary()), all);
        let nosuid = Binary { nosuid: true, ..binary() };
        assert!(!lines(&nobody, &nosuid).iter().any(|line| line.contains("setcap")));
        let fettered = Privilege { no_new_privileges: Some(true), ..nobody };
        assert_eq!(lines(&fettered, &binary()), ["unshare -Urn"]);
        let inner = Privilege { inner_user_namespace: Some(true), ..nobody };
        assert_eq!(lines(&inner, &binary()), ["unshare -Urn"]);
        let odd = Binary { path: Some(PathBuf::from("/a b/it's")), nosuid: false };
        assert_eq!(lines(&nobody, &odd)[1], "sudo setcap cap_net_raw+ep '/a b/it'\\''s'");
    }

    #[test]
    fn every_lack_has_a_sentence() {
        for door in [Door::Packets, Door::Programs, Door::NameSpaces] {
            for lack in [
                Lack::Capability,
                Lack::Bound,
                Lack::Stranger,
                Lack::Filter,
                Lack::StrangerOrFilter,
                Lack::Module,
                Lack::Kernel("no".to_owned()),
                Lack::Other("no".to_owned()),
            ] {
                let told = lack.sentence(door);
                assert!(!told.ends_with('.') && !told.contains("  "), "{told}");
                let ways = lack.ways(door, &who(RAW), &binary(), "rx");
                assert!(ways.iter().all(|way| !way.says.is_empty()));
            }
        }
    }
}
