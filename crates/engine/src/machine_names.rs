//! Name lookups for filter expressions, through the C library's name service. Each name is looked
//! up once per request.

use ebpf::classic::Transports;
use filter::{NameAnswer, NameQuery, NameResolver};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use sys::name_service;

/// A cache of name lookups through the C library. A lookup blocks.
#[derive(Debug, Default)]
pub(crate) struct MachineNameCache {
    /// Results of earlier lookups, by query.
    answers: Mutex<HashMap<(NameQuery, String), Result<NameAnswer, String>>>,
}

impl NameResolver for MachineNameCache {
    fn resolve(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = answers.entry((question, name.to_owned()));
        found.or_insert_with(|| look_up_in_libc(question, name)).clone()
    }
}

fn look_up_in_libc(question: NameQuery, name: &str) -> Result<NameAnswer, String> {
    let found = match question {
        NameQuery::Host => return name_service::find_host(name).map(NameAnswer::Addresses),
        NameQuery::Network => name_service::find_network(name).map(NameAnswer::Network),
        NameQuery::Ethernet => name_service::find_ethernet_address(name).map(NameAnswer::Ethernet),
        NameQuery::Port => look_up_port_name(name).map(|(port, by)| NameAnswer::Port(port, by)),
        NameQuery::Protocol => name_service::find_protocol(name).map(NameAnswer::Protocol),
    };
    found.ok_or_else(|| {
        "it is in no name database of this machine (/etc/nsswitch.conf lists them)".to_owned()
    })
}

/// Looks up a port name with libpcap's semantics. Returns the port number and the transports for
/// which it is valid, or `None` for an unknown name. If there is a TCP port with this name, returns
/// it; it is also valid for UDP if the UDP port with this name has the same number. Otherwise
/// returns the UDP port.
fn look_up_port_name(name: &str) -> Option<(u16, Transports)> {
    match (name_service::find_port(name, c"tcp"), name_service::find_port(name, c"udp")) {
        (Some(tcp), Some(udp)) if tcp == udp => Some((tcp, Transports::Both)),
        (Some(tcp), _) => Some((tcp, Transports::Tcp)),
        (None, Some(udp)) => Some((udp, Transports::Udp)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::registry::MachineRegistry;
    use pipeline::Registry;

    /// The canonical text of a request contains the resolved names, so that the addresses are the
    /// same wherever the request runs again.
    #[test]
    fn resolved_names_are_written_into_the_request_text() {
        let text = "replay x | bpf \"host localhost\" | count + discard";
        let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
        assert_eq!(mistakes, []);
        let written = "replay x | bpf \"host localhost\" names=\"host:localhost=";
        assert!(graph.text.starts_with(written), "{}", graph.text);
        assert!(graph.text.ends_with("\" | count + discard"), "{}", graph.text);
        for registry in [
            &MachineRegistry::Local as &dyn Registry,
            &MachineRegistry::Recorded,
            &MachineRegistry::Untrusted,
        ] {
            let (again, mistakes) = pipeline::read_request(&graph.text, registry);
            assert_eq!(mistakes, []);
            assert_eq!((&again.text, again.insertions.as_slice()), (&graph.text, &[][..]));
        }
        for registry in [&MachineRegistry::Recorded as &dyn Registry, &MachineRegistry::Untrusted] {
            let (_, mistakes) = pipeline::read_request(text, registry);
            let [mistake] = mistakes.as_slice() else { panic!("{mistakes:?}") };
            assert!(mistake.what.contains("are not resolved here"), "{}", mistake.what);
        }
    }
}
