//! The network interface from which a shared prefix reads. A *prefix* is the sequence of filters
//! with which several requests begin.
//!
//! The text of a prefix contains only the name of the interface. The name can be given to another
//! interface while a process still runs the prefix. The name of a prefix's ring is therefore also
//! derived from the index and the network namespace of the interface.

use crate::interface::run_in_namespace;
use sys::net::{Namespace, RouteSocket};

/// The interface that a shared prefix observes, identified by its network namespace and its index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PrefixInterface {
    /// Inode number of the interface's network namespace, or 0 for the namespace of this thread.
    namespace: u64,
    index: u32,
}

impl PrefixInterface {
    /// Looks up the interface that the first filter of a shared prefix names. Returns `None` if the
    /// filter names no interface, or if the lookup fails.
    pub(super) fn find(prefix: &str) -> Option<Self> {
        let (name, netns) = parse_interface_and_namespace(prefix);
        let (name, namespace) = (name?, netns.map(Namespace::open).transpose().ok()?);
        let namespace = namespace.map_or(Ok(0), |namespace| namespace.inode()).ok()?;
        let find = || Ok(RouteSocket::open().and_then(|links| links.interface_by_name(name)));
        let found = run_in_namespace(netns, find).ok()?.ok()?;
        Some(Self { namespace, index: found.index })
    }
}

/// Returns the names of the interface and the network namespace that the first filter of a shared
/// prefix has as arguments; each is `None` if missing.
fn parse_interface_and_namespace(prefix: &str) -> (Option<&str>, Option<&str>) {
    let source = prefix.split('|').next().unwrap_or_default();
    let (mut name, mut netns) = (None, None);
    for word in source.split_whitespace().skip(1) {
        let (key, value) = word.split_once('=').unwrap_or(("interface", word));
        let value = value.trim_matches(['"', '\'']);
        match key {
            // The first word without a key is the interface.
            "interface" => name = name.or(Some(value)),
            "netns" => netns = Some(value),
            _ => {}
        }
    }
    (name, netns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_source_name_the_interface() {
        assert_eq!(
            parse_interface_and_namespace("rx eth0 watch both=yes | tcp"),
            (Some("eth0"), None)
        );
        assert_eq!(
            parse_interface_and_namespace("rx both=yes | bpf \"net=eth1\" | tcp"),
            (None, None)
        );
        assert_eq!(
            parse_interface_and_namespace("tx \"eth+0\" netns='a b'"),
            (Some("eth+0"), Some("a"))
        );
        assert_eq!(
            parse_interface_and_namespace("rx netns=blue interface=e1|tcp"),
            (Some("e1"), Some("blue"))
        );
        assert_eq!(parse_interface_and_namespace(""), (None, None));
    }

    #[test]
    fn only_an_existing_interface_is_found() {
        let found = PrefixInterface::find("rx lo | tcp");
        assert!(found.is_some_and(|found| found.index > 0 && found.namespace == 0));
        assert_eq!(PrefixInterface::find("rx none0 | tcp"), None);
        assert_eq!(PrefixInterface::find("rx | tcp"), None);
    }
}
