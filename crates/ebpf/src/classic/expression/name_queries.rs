//! List of the names in an expression that need a lookup. A caller resolves the names before
//! compiling, once for all link types.

use super::ast::{Identifier, Primitive, Protocol, Qualifiers, Tree, TypeQualifier};
use super::error::ExpressionError;
use super::parse;

/// The kind of lookup that a name needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameQuery {
    /// The lookup of a host name, which yields its addresses.
    Host,
    /// The lookup of a network name, which yields the number of an IPv4 network.
    Network,
    /// The lookup of a host name, which yields its link address.
    Ethernet,
    /// The lookup of a service name, which yields its port.
    Port,
    /// The lookup of a protocol name, which yields the number of an IP protocol.
    Protocol,
}

/// Returns the names in `text`, each with the lookup that it needs, without duplicates, in the
/// order in which they occur.
pub fn name_queries(text: &str) -> Result<Vec<(NameQuery, String)>, ExpressionError> {
    let mut found = Vec::new();
    if let Some(tree) = parse::parse(text)? {
        collect_names(&tree, &mut found);
    }
    Ok(found)
}

fn collect_names(tree: &Tree, found: &mut Vec<(NameQuery, String)>) {
    match tree {
        Tree::All(trees) | Tree::Any(trees) => {
            trees.iter().for_each(|tree| collect_names(tree, found))
        }
        Tree::Not(inner) => collect_names(inner, found),
        Tree::Leaf(Primitive::Id(qualifiers, Identifier::Name(name)), _) => {
            for (kind, name) in name_lookups(*qualifiers, name) {
                let query = (kind, name.to_owned());
                if !found.contains(&query) {
                    found.push(query);
                }
            }
        }
        Tree::Leaf(..) => {}
    }
}

/// Returns the lookups that are needed to resolve a name with these qualifiers.
fn name_lookups(q: Qualifiers, name: &str) -> Vec<(NameQuery, &str)> {
    let within = |protocols: &[Protocol]| q.protocol.is_none_or(|own| protocols.contains(&own));
    match q.kind {
        Some(TypeQualifier::Net) => vec![(NameQuery::Network, name)],
        None | Some(TypeQualifier::Host) if q.protocol == Some(Protocol::Link) => {
            vec![(NameQuery::Ethernet, name)]
        }
        None | Some(TypeQualifier::Host) => vec![(NameQuery::Host, name)],
        Some(TypeQualifier::Port) => vec![(NameQuery::Port, name)],
        Some(TypeQualifier::PortRange) => {
            let is_name = |word: &&str| !word.starts_with(|c: char| c.is_ascii_digit());
            name.split('-').filter(is_name).map(|word| (NameQuery::Port, word)).collect()
        }
        Some(TypeQualifier::Gateway) => vec![(NameQuery::Ethernet, name), (NameQuery::Host, name)],
        Some(TypeQualifier::Protocol | TypeQualifier::ProtocolChain)
            if within(&[Protocol::Ip, Protocol::Ip6]) =>
        {
            vec![(NameQuery::Protocol, name)]
        }
        Some(TypeQualifier::Protocol | TypeQualifier::ProtocolChain) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_queried_once_per_lookup() {
        use NameQuery::{Ethernet, Host, Network, Port, Protocol};
        let found = |text: &str| name_queries(text).unwrap();
        let names = |queries: &[(NameQuery, &str)]| -> Vec<(NameQuery, String)> {
            queries.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect()
        };
        assert_eq!(found("tcp port 80 and host 10.0.0.1 and ip6 net fe80::/10"), []);
        assert_eq!(
            found("host a.example or b.example and not src host a.example and port http"),
            names(&[(Host, "a.example"), (Host, "b.example"), (Port, "http")])
        );
        assert_eq!(
            found("ether host pc or net lab or gateway gw or ip proto gre"),
            names(&[
                (Ethernet, "pc"),
                (Network, "lab"),
                (Ethernet, "gw"),
                (Host, "gw"),
                (Protocol, "gre")
            ])
        );
        assert_eq!(found("portrange ftp-ssh"), names(&[(Port, "ftp"), (Port, "ssh")]));
        assert_eq!(found("portrange 20-ssh"), names(&[(Port, "ssh")]));
        assert!(name_queries("host").is_err());
    }
}
