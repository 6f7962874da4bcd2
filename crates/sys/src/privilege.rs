//! What this process may do, and what keeps it from doing more: capabilities, seccomp, user name
//! spaces.
//!
//! In: `/proc/self/status` and `/proc/sys`. A refusal has several possible authors, and what one
//! can do about it depends on which it is: a capability can be given, a seccomp filter cannot be
//! taken off, and root of a user name space is root of that alone.

use crate::machine::Capabilities;
use std::fs;

/// What this process may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Privilege {
    /// The effective user.
    pub uid: u32,
    /// What it may do now.
    pub effective: Capabilities,
    /// What it may take back into the effective set.
    pub permitted: Capabilities,
    /// What may pass to a program with the same in its file.
    pub inheritable: Capabilities,
    /// What it and its children can ever have.
    pub bounding: Capabilities,
    /// What passes to any program that it starts.
    pub ambient: Capabilities,
    /// Which filter of system calls it is under; none where the kernel does not tell.
    pub seccomp: Option<Seccomp>,
    /// Whether starting a program never gives more than there is, whatever its file says.
    pub no_new_privileges: Option<bool>,
    /// Whether it is in a user name space other than the first, where root is root of that name
    /// space alone. None where the kernel does not tell.
    pub inner_user_namespace: Option<bool>,
}

/// Which filter of system calls a process is under (seccomp(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seccomp {
    /// None.
    Off,
    /// All but four calls end the process.
    Strict,
    /// A program decides: a container's runtime, a sandbox, a service manager.
    Filter,
}

impl Privilege {
    /// Looks at this process.
    #[must_use]
    pub fn detect() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut found = Self::parse(&status);
        found.uid = rustix::process::geteuid().as_raw();
        let map = fs::read_to_string("/proc/self/uid_map");
        found.inner_user_namespace = map.ok().map(|map| !is_identity(&map));
        found
    }

    fn parse(status: &str) -> Self {
        let set = |title| Capabilities::parse(status, title).unwrap_or_default();
        let word =
            |title: &str| status.lines().find_map(|line| line.strip_prefix(title)).map(str::trim);
        Self {
            uid: 0,
            effective: set("CapEff:"),
            permitted: set("CapPrm:"),
            inheritable: set("CapInh:"),
            bounding: set("CapBnd:"),
            ambient: set("CapAmb:"),
            seccomp: match word("Seccomp:") {
                Some("0") => Some(Seccomp::Off),
                Some("1") => Some(Seccomp::Strict),
                Some("2") => Some(Seccomp::Filter),
                _ => None,
            },
            no_new_privileges: word("NoNewPrivs:").map(|word| word != "0"),
            inner_user_namespace: None,
        }
    }
}

/// Whether every user is mapped to itself, as in the first user name space.
fn is_identity(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether users without privilege can make user name spaces, in which they are root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserNamespaces {
    /// `kernel.unprivileged_userns_clone`, which only some distributions have.
    pub unprivileged_clone: Option<bool>,
    /// `user.max_user_namespaces`.
    pub most: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`: they can be made, but give no capability.
    pub apparmor_restricted: Option<bool>,
}

impl UserNamespaces {
    /// Looks at the settings of this machine.
    #[must_use]
    pub fn detect() -> Self {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
        };
        let restricted = number("kernel/apparmor_restrict_unprivileged_userns");
        Self {
            unprivileged_clone: number("kernel/unprivileged_userns_clone").map(|value| value != 0),
            most: number("user/max_user_namespaces"),
            apparmor_restricted: restricted.map(|value| value != 0),
        }
    }

    /// Whether the settings let them be of use. None: this kernel has no user name spaces, or does
    /// not tell.
    #[must_use]
    pub fn allowed(&self) -> Option<bool> {
        let most = self.most?;
        let cloned = self.unprivileged_clone.unwrap_or(true);
        Some(most > 0 && cloned && !self.apparmor_restricted.unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_understood() {
        let told = Privilege::parse(
            "Name:\tx\nCapInh:\t0000000000000001\nCapPrm:\t0000000000003000\n\
             CapEff:\t0000000000002000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n\
             NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n",
        );
        assert!(told.effective.has(Capabilities::NET_RAW));
        assert!(!told.effective.has(Capabilities::NET_ADMIN));
        assert!(told.permitted.has(Capabilities::NET_ADMIN));
        assert!(told.bounding.has(Capabilities::BPF) && told.inheritable.has(0));
        assert_eq!(told.ambient, Capabilities(0));
        assert_eq!((told.seccomp, told.no_new_privileges), (Some(Seccomp::Filter), Some(true)));
        assert_eq!(Privilege::parse(""), Privilege::default());
        assert!(is_identity("         0          0 4294967295\n"));
        assert!(!is_identity("         0       1000          1\n"));
    }

    #[test]
    fn one_setting_is_enough_to_forbid() {
        let free = UserNamespaces { most: Some(1000), ..UserNamespaces::default() };
        assert_eq!(free.allowed(), Some(true));
        assert_eq!(UserNamespaces { most: Some(0), ..free }.allowed(), Some(false));
        let clone = UserNamespaces { unprivileged_clone: Some(false), ..free };
        assert_eq!(clone.allowed(), Some(false));
        let apparmor = UserNamespaces { apparmor_restricted: Some(true), ..free };
        assert_eq!(apparmor.allowed(), Some(false));
        assert_eq!(UserNamespaces::default().allowed(), None);
    }

    #[test]
    fn this_process_has_no_more_than_it_can_have() {
        let here = Privilege::detect();
        assert_eq!(here.effective.0 & !here.permitted.0, 0);
        assert_eq!(here.permitted.0 & !here.bounding.0, 0);
        assert!(here.seccomp.is_some() && here.inner_user_namespace.is_some());
    }
}
