//! Which names an expression asks for: whoever answers them can do so before it is compiled, once
//! for all link types.

use super::ast::{Id, Kind, Primitive, Protocol, Qualifiers, Tree};
use super::{ExpressionError, parse};

/// What is asked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// The addresses of a host.
    Host,
    /// The number of an IPv4 network.
    Network,
    /// The link address of a host.
    Ethernet,
    /// The port of a service.
    Port,
    /// The number of an IP protocol.
    Protocol,
}

/// The names in `text`, each with what is asked of it; each once, in the order of the text.
pub fn questions(text: &str) -> Result<Vec<(Question, String)>, ExpressionError> {
    let mut found = Vec::new();
    if let Some(tree) = parse::parse(text)? {
        walk(&tree, &mut found);
    }
    Ok(found)
}

fn walk(tree: &Tree, found: &mut Vec<(Question, String)>) {
    match tree {
        Tree::All(trees) | Tree::Any(trees) => trees.iter().for_each(|tree| walk(tree, found)),
        Tree::Not(inner) => walk(inner, found),
        Tree::Leaf(Primitive::Id(qualifiers, Id::Name(name)), _) => {
            for (question, name) in of(*qualifiers, name) {
                let asked = (question, name.to_owned());
                if !found.contains(&asked) {
                    found.push(asked);
                }
            }
        }
        Tree::Leaf(..) => {}
    }
}

/// What a name with these qualifiers is asked for.
fn of(q: Qualifiers, name: &str) -> Vec<(Question, &str)> {
    let within = |protocols: &[Protocol]| q.protocol.is_none_or(|own| protocols.contains(&own));
    match q.kind {
        _ if q.protocol == Some(Protocol::Decnet) => Vec::new(),
        Some(Kind::Net) => vec![(Question::Network, name)],
        None | Some(Kind::Host) if q.protocol == Some(Protocol::Link) => {
            vec![(Question::Ethernet, name)]
        }
        None | Some(Kind::Host) => vec![(Question::Host, name)],
        Some(Kind::Port) => vec![(Question::Port, name)],
        Some(Kind::PortRange) => {
            let numeric = |word: &&str| !word.starts_with(|c: char| c.is_ascii_digit());
            name.split('-').filter(numeric).map(|word| (Question::Port, word)).collect()
        }
        Some(Kind::Gateway) => vec![(Question::Ethernet, name), (Question::Host, name)],
        Some(Kind::Protocol | Kind::ProtocolChain) if within(&[Protocol::Ip, Protocol::Ip6]) => {
            vec![(Question::Protocol, name)]
        }
        Some(Kind::Protocol | Kind::ProtocolChain) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_asked_once_for_what_it_is() {
        use Question::{Ethernet, Host, Network, Port, Protocol};
        let found = |text: &str| questions(text).unwrap();
        let names = |asked: &[(Question, &str)]| -> Vec<(Question, String)> {
            asked.iter().map(|(question, name)| (*question, (*name).to_owned())).collect()
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
        assert!(questions("host").is_err());
    }
}
