//! Names in an expression, which are resolved once and recorded in the request.
//!
//! The parameter `names` has the form `names="host:gw=10.0.0.1,fe80::1 port:web=8080/tcp"`: one
//! entry per name, separated by spaces, in the order of the expression. If the request has this
//! parameter, names that it does not contain are not resolved. A name that has the same meaning in
//! the built-in tables is not recorded.

use crate::contract::name_resolver::{NameAnswer, NameQuery, NameResolver};
use crate::{Arguments, Mistake};
use ebpf::classic::{NoResolver, Resolver, Transports, name_queries};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Name of the parameter that records resolved names.
pub(super) const NAMES_PARAMETER: &str = "names";

/// A name resolver that uses the recorded names if the request has any, and otherwise the machine's
/// resolver.
#[derive(Debug, Default)]
pub(super) struct RecordedNameResolver {
    written: Option<Vec<RecordedName>>,
    machine: Option<Arc<dyn NameResolver>>,
}

/// A name in an expression, the kind of value that was looked up, and the result.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordedName {
    query: NameQuery,
    name: String,
    answer: NameAnswer,
}

impl RecordedNameResolver {
    /// Returns a resolver that queries the machine's resolver for every name.
    pub(super) const fn from_machine(machine: Arc<dyn NameResolver>) -> Self {
        Self { written: None, machine: Some(machine) }
    }

    /// Creates a resolver for the names recorded in the arguments. If the arguments record no
    /// names, the resolver uses the machine's name resolver from the arguments, if there is one.
    pub(super) fn from_arguments(arguments: &Arguments) -> Result<Self, Mistake> {
        let machine = arguments.name_resolver().cloned();
        let Some(text) = arguments.text(NAMES_PARAMETER) else {
            return Ok(Self { written: None, machine });
        };
        let words = text.split_ascii_whitespace();
        let written: Result<Vec<RecordedName>, Mistake> = words
            .map(|word| {
                RecordedName::parse(word).ok_or_else(|| {
                    Mistake::new(NAMES_PARAMETER, format!("`{word}` is not a name with its value"))
                        .with_hint("write `host:NAME=ADDRESS,…` or `port:NAME=NUMBER/tcp`")
                })
            })
            .collect();
        Ok(Self { written: Some(written?), machine: None })
    }

    fn resolve(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String> {
        let named = |known: &&RecordedName| known.query == question && known.name == name;
        if let Some(known) = self.written.iter().flatten().find(named) {
            return Ok(known.answer.clone());
        }
        match &self.machine {
            Some(machine) => machine.resolve(question, name),
            None => Err("host names are not resolved here: write the address".to_owned()),
        }
    }
}

impl Resolver for RecordedNameResolver {
    fn resolve_host(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        match self.resolve(NameQuery::Host, name)? {
            NameAnswer::Addresses(addresses) => Ok(addresses),
            _ => Err("its value is not an address".to_owned()),
        }
    }

    fn resolve_network(&self, name: &str) -> Option<u32> {
        match self.resolve(NameQuery::Network, name) {
            Ok(NameAnswer::Network(number)) => Some(number),
            _ => None,
        }
    }

    fn resolve_link_address(&self, name: &str) -> Option<[u8; 6]> {
        match self.resolve(NameQuery::Ethernet, name) {
            Ok(NameAnswer::Ethernet(address)) => Some(address),
            _ => None,
        }
    }

    fn resolve_port(&self, name: &str) -> Option<(u16, Transports)> {
        match self.resolve(NameQuery::Port, name) {
            Ok(NameAnswer::Port(port, by)) => Some((port, by)),
            _ => NoResolver.resolve_port(name),
        }
    }

    fn resolve_protocol(&self, name: &str) -> Option<u8> {
        match self.resolve(NameQuery::Protocol, name) {
            Ok(NameAnswer::Protocol(number)) => Some(number),
            _ => NoResolver.resolve_protocol(name),
        }
    }
}

/// Resolves the names in an expression and returns them in the form of the parameter `names`.
/// Returns `None` if no name needs to be recorded, if the names are recorded already, if a name
/// cannot be resolved, or if the machine has no resolver.
pub(super) fn names_to_record(arguments: &Arguments) -> Option<(&'static str, String)> {
    let machine =
        arguments.name_resolver().filter(|_| arguments.text(NAMES_PARAMETER).is_none())?;
    let mut known = Vec::new();
    for (question, name) in name_queries(arguments.text("expression").unwrap_or_default()).ok()? {
        let own = match question {
            NameQuery::Port => {
                NoResolver.resolve_port(&name).map(|(port, by)| NameAnswer::Port(port, by))
            }
            NameQuery::Protocol => NoResolver.resolve_protocol(&name).map(NameAnswer::Protocol),
            NameQuery::Host | NameQuery::Network | NameQuery::Ethernet => None,
        };
        match (machine.resolve(question, &name), own) {
            (Ok(answer), own) if own.as_ref() == Some(&answer) => {}
            (Ok(answer), _) => known.push(RecordedName { query: question, name, answer }),
            (Err(_), Some(_)) => {}
            (Err(_), None) => return None,
        }
    }
    let words: Vec<String> = known.iter().map(ToString::to_string).collect();
    (!words.is_empty()).then(|| (NAMES_PARAMETER, words.join(" ")))
}

impl fmt::Display for RecordedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}=", query_keyword(self.query), self.name)?;
        match &self.answer {
            NameAnswer::Addresses(addresses) => {
                for (index, address) in addresses.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{address}")?;
                }
                Ok(())
            }
            NameAnswer::Network(number) => write!(f, "{number}"),
            NameAnswer::Ethernet(bytes) => {
                for (index, byte) in bytes.iter().enumerate() {
                    let colon = if index == 0 { "" } else { ":" };
                    write!(f, "{colon}{byte:02x}")?;
                }
                Ok(())
            }
            NameAnswer::Port(port, Transports::Both) => write!(f, "{port}"),
            NameAnswer::Port(port, Transports::Tcp) => write!(f, "{port}/tcp"),
            NameAnswer::Port(port, Transports::Udp) => write!(f, "{port}/udp"),
            NameAnswer::Protocol(number) => f.write_str(&number.to_string()),
        }
    }
}

impl RecordedName {
    /// Parses a recorded name in the format that `Display` prints. Returns `None` if it is
    /// malformed.
    fn parse(word: &str) -> Option<Self> {
        let (kind, rest) = word.split_once(':')?;
        let question = ALL_QUERIES.into_iter().find(|question| query_keyword(*question) == kind)?;
        let (name, answer) = rest.split_once('=')?;
        let answer = match question {
            NameQuery::Host => {
                let addresses: Result<Vec<IpAddr>, _> = answer.split(',').map(str::parse).collect();
                NameAnswer::Addresses(addresses.ok()?)
            }
            NameQuery::Network => NameAnswer::Network(answer.parse().ok()?),
            NameQuery::Ethernet => NameAnswer::Ethernet(parse_ethernet_address(answer)?),
            NameQuery::Port => {
                let (port, by) = match answer.split_once('/') {
                    None => (answer, Transports::Both),
                    Some((port, "tcp")) => (port, Transports::Tcp),
                    Some((port, "udp")) => (port, Transports::Udp),
                    Some(_) => return None,
                };
                NameAnswer::Port(port.parse().ok()?, by)
            }
            NameQuery::Protocol => NameAnswer::Protocol(answer.parse().ok()?),
        };
        Some(Self { query: question, name: name.to_owned(), answer })
    }
}

const ALL_QUERIES: [NameQuery; 5] = [
    NameQuery::Host,
    NameQuery::Network,
    NameQuery::Ethernet,
    NameQuery::Port,
    NameQuery::Protocol,
];

/// Returns the keyword that stands for this kind of query in the parameter `names`.
const fn query_keyword(question: NameQuery) -> &'static str {
    match question {
        NameQuery::Host => "host",
        NameQuery::Network => "net",
        NameQuery::Ethernet => "ether",
        NameQuery::Port => "port",
        NameQuery::Protocol => "proto",
    }
}

fn parse_ethernet_address(text: &str) -> Option<[u8; 6]> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::super::{BPF, make_filter};
    use super::*;
    use crate::testing::parse_arguments;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A fake resolver that knows a host with two addresses, a link-layer address, a network, two
    /// services and a protocol, and counts the queries.
    #[derive(Debug, Default)]
    struct FakeResolver(AtomicUsize);

    impl NameResolver for FakeResolver {
        fn resolve(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let address = |text: &str| text.parse::<IpAddr>().map_err(|error| error.to_string());
            match (question, name) {
                (NameQuery::Host, "gw") => {
                    Ok(NameAnswer::Addresses(vec![address("10.0.0.1")?, address("fe80::1")?]))
                }
                (NameQuery::Ethernet, "gw") => Ok(NameAnswer::Ethernet([2, 0, 0, 0, 0, 0x1f])),
                (NameQuery::Network, "lab") => Ok(NameAnswer::Network(10)),
                (NameQuery::Port, "web") => Ok(NameAnswer::Port(8080, Transports::Tcp)),
                (NameQuery::Port, "ssh") => Ok(NameAnswer::Port(22, Transports::Tcp)),
                (NameQuery::Protocol, "own") => Ok(NameAnswer::Protocol(253)),
                _ => Err("nobody here knows it".to_owned()),
            }
        }
    }

    fn with_resolver(text: &str) -> (Arguments, Arc<FakeResolver>) {
        let machine = Arc::new(FakeResolver::default());
        let names: Arc<dyn NameResolver> = machine.clone();
        (parse_arguments(&BPF, &[text]).unwrap().with_name_resolver(Some(names)), machine)
    }

    #[test]
    fn recorded_names_are_not_resolved_again() {
        let (given, machine) = with_resolver(
            "gateway gw or net lab or port web or port ssh or ip proto own or host 10.0.0.9",
        );
        let (parameter, text) = names_to_record(&given).unwrap();
        assert_eq!(parameter, NAMES_PARAMETER);
        assert_eq!(
            text,
            "ether:gw=02:00:00:00:00:1f host:gw=10.0.0.1,fe80::1 net:lab=10 port:web=8080/tcp \
             proto:own=253"
        );
        let before = machine.0.load(Ordering::Relaxed);
        let mut again = given;
        again.set(NAMES_PARAMETER, crate::Value::Text(text));
        assert!(make_filter(&again).is_ok());
        assert_eq!(names_to_record(&again), None);
        assert_eq!(machine.0.load(Ordering::Relaxed), before, "nothing is asked again");
        // No resolver is needed for recorded names.
        assert!(make_filter(&again.with_name_resolver(None)).is_ok());
    }

    #[test]
    fn unknown_names_are_mistakes_with_the_reason() {
        let (given, _) = with_resolver("tcp and host nowhere");
        assert_eq!(names_to_record(&given), None);
        let mistake = make_filter(&given).map(drop).unwrap_err();
        assert_eq!(mistake.message, "unknown host `nowhere`: nobody here knows it");
        assert_eq!(mistake.range, Some(13..20));
        let (mut given, _) = with_resolver("host gw");
        given.set(NAMES_PARAMETER, crate::Value::Text("port:gw=1".to_owned()));
        let mistake = make_filter(&given).map(drop).unwrap_err();
        assert!(mistake.message.starts_with("unknown host `gw`"), "{mistake}");
        given.set(NAMES_PARAMETER, crate::Value::Text("host:gw=10.0.0.300".to_owned()));
        let mistake = make_filter(&given).map(drop).unwrap_err();
        assert_eq!(mistake.parameter, Some(NAMES_PARAMETER), "{mistake}");
    }

    #[test]
    fn expression_without_names_records_none() {
        let (given, machine) = with_resolver("tcp port 80 and host 10.0.0.1 or port ssh");
        assert_eq!(names_to_record(&given), None, "the own table says the same of ssh");
        assert_eq!(machine.0.load(Ordering::Relaxed), 1);
    }
}
