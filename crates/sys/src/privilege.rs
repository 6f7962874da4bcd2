//! The privileges of this process and their limits: capabilities, seccomp, user namespaces.
//!
//! The values come from `/proc/self/status` and `/proc/sys`. The remedy for a refusal depends on
//! its cause: a capability can be granted, a seccomp filter cannot be removed, and root of a user
//! namespace has no privileges outside it.

use crate::machine::Capabilities;
use std::fs;

/// Privileges of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Privilege {
    /// Effective user id.
    pub uid: u32,
    /// Effective capability set.
    pub effective: Capabilities,
    /// Permitted capability set.
    pub permitted: Capabilities,
    /// Inheritable capability set.
    pub inheritable: Capabilities,
    /// Capability bounding set.
    pub bounding: Capabilities,
    /// Ambient capability set.
    pub ambient: Capabilities,
    /// seccomp mode; `None` if the kernel does not report it.
    pub seccomp: Option<SeccompMode>,
    /// The `no_new_privs` flag, under which exec grants no privileges; `None` if the kernel does
    /// not report it.
    pub no_new_privileges: Option<bool>,
    /// True if this process is in a user namespace other than the initial one; root of such a
    /// namespace has no privileges outside it. `None` if the kernel does not report user
    /// namespaces.
    pub inner_user_namespace: Option<bool>,
}

/// The seccomp mode of a process (seccomp(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeccompMode {
    /// No seccomp restriction.
    Off,
    /// Any system call except four kills the process.
    Strict,
    /// A filter program, set by a container runtime, sandbox or service manager, decides on each
    /// system call.
    Filter,
}

impl Privilege {
    /// Queries the privileges of this process.
    #[must_use]
    pub fn detect() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut found = Self::parse(&status);
        found.uid = rustix::process::geteuid().as_raw();
        let map = fs::read_to_string("/proc/self/uid_map");
        found.inner_user_namespace = map.ok().map(|map| !is_identity_mapping(&map));
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
                Some("0") => Some(SeccompMode::Off),
                Some("1") => Some(SeccompMode::Strict),
                Some("2") => Some(SeccompMode::Filter),
                _ => None,
            },
            no_new_privileges: word("NoNewPrivs:").map(|word| word != "0"),
            inner_user_namespace: None,
        }
    }
}

/// Returns true if `map`, the text of a uid map, is the identity mapping of the initial user
/// namespace.
fn is_identity_mapping(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// System settings that restrict user namespaces of unprivileged users.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserNamespaceSettings {
    /// Value of `kernel.unprivileged_userns_clone`; `None` on distributions without this setting.
    pub unprivileged_clone: Option<bool>,
    /// Value of `user.max_user_namespaces`; `None` if the kernel lacks user namespaces.
    pub max: Option<u64>,
    /// Value of `kernel.apparmor_restrict_unprivileged_userns`; `None` on kernels without this
    /// setting. If true, user namespaces can be created but grant no capabilities.
    pub apparmor_restricted: Option<bool>,
}

impl UserNamespaceSettings {
    /// Reads the settings that restrict user namespaces from `/proc/sys`.
    #[must_use]
    pub fn detect() -> Self {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
        };
        let restricted = number("kernel/apparmor_restrict_unprivileged_userns");
        Self {
            unprivileged_clone: number("kernel/unprivileged_userns_clone").map(|value| value != 0),
            max: number("user/max_user_namespaces"),
            apparmor_restricted: restricted.map(|value| value != 0),
        }
    }

    /// Returns true if an unprivileged user can create a user namespace with capabilities. Returns
    /// `None` if the kernel lacks user namespaces or does not report them.
    #[must_use]
    pub fn are_unprivileged_allowed(&self) -> Option<bool> {
        let most = self.max?;
        let cloned = self.unprivileged_clone.unwrap_or(true);
        Some(most > 0 && cloned && !self.apparmor_restricted.unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_parsed_from_process_status() {
        let privilege = Privilege::parse(
            "Name:\tx\nCapInh:\t0000000000000001\nCapPrm:\t0000000000003000\n\
             CapEff:\t0000000000002000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n\
             NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n",
        );
        assert!(privilege.effective.contains(Capabilities::NET_RAW));
        assert!(!privilege.effective.contains(Capabilities::NET_ADMIN));
        assert!(privilege.permitted.contains(Capabilities::NET_ADMIN));
        assert!(
            privilege.bounding.contains(Capabilities::BPF) && privilege.inheritable.contains(0)
        );
        assert_eq!(privilege.ambient, Capabilities(0));
        assert_eq!(
            (privilege.seccomp, privilege.no_new_privileges),
            (Some(SeccompMode::Filter), Some(true))
        );
        assert_eq!(Privilege::parse(""), Privilege::default());
        assert!(is_identity_mapping("         0          0 4294967295\n"));
        assert!(!is_identity_mapping("         0       1000          1\n"));
    }

    #[test]
    fn each_setting_alone_forbids_user_namespaces() {
        let free = UserNamespaceSettings { max: Some(1000), ..UserNamespaceSettings::default() };
        assert_eq!(free.are_unprivileged_allowed(), Some(true));
        assert_eq!(
            UserNamespaceSettings { max: Some(0), ..free }.are_unprivileged_allowed(),
            Some(false)
        );
        let clone = UserNamespaceSettings { unprivileged_clone: Some(false), ..free };
        assert_eq!(clone.are_unprivileged_allowed(), Some(false));
        let apparmor = UserNamespaceSettings { apparmor_restricted: Some(true), ..free };
        assert_eq!(apparmor.are_unprivileged_allowed(), Some(false));
        assert_eq!(UserNamespaceSettings::default().are_unprivileged_allowed(), None);
    }

    #[test]
    fn capability_sets_of_this_process_are_nested() {
        let here = Privilege::detect();
        assert_eq!(here.effective.0 & !here.permitted.0, 0);
        assert_eq!(here.permitted.0 & !here.bounding.0, 0);
        assert!(here.seccomp.is_some() && here.inner_user_namespace.is_some());
    }
}
