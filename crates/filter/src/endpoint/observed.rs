//! The observed data of a source, by which `++` detects sources of the same blocks (CONTRACT 10).

/// The data from which a source takes its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observed {
    /// The bytes of a file, by the path that the request gives.
    File(String),
    /// The frames of interfaces.
    Frames {
        /// Interface name; `None` for all of the namespace.
        interface: Option<String>,
        /// Network namespace, if not the own one.
        netns: Option<String>,
        /// True for received frames.
        received: bool,
        /// True for sent frames.
        sent: bool,
        /// True for packets of the user's own sockets, instead of an interface.
        own: bool,
    },
}

/// The overlap of two sources' blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shares {
    /// No block.
    Nothing,
    /// The packets on the loopback interface, which one gives as sent and one as received.
    Loopback,
    /// Any block.
    Blocks,
}

/// The interface that receives its own sent frames.
const LOOPBACK: &str = "lo";

impl Observed {
    /// Returns the overlap with another source.
    #[must_use]
    pub fn shares(&self, other: &Self) -> Shares {
        match (self, other) {
            (Self::File(one), Self::File(other)) if same_path(one, other) => Shares::Blocks,
            (
                Self::Frames { interface: a, netns: c, received: e, sent: g, own: i },
                Self::Frames { interface: b, netns: d, received: f, sent: h, own: j },
            ) if c == d && i == j && (a.is_none() || b.is_none() || a == b) => {
                let lo =
                    |name: &Option<String>| name.as_deref().is_none_or(|name| name == LOOPBACK);
                match (*e && *f) || (*g && *h) {
                    true => Shares::Blocks,
                    false if lo(a) && lo(b) && !i => Shares::Loopback,
                    false => Shares::Nothing,
                }
            }
            _ => Shares::Nothing,
        }
    }

    /// Returns true if this gives all that another gives.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => same_path(one, other),
            (
                Self::Frames { interface: a, netns: c, received: e, sent: g, own: i },
                Self::Frames { interface: b, netns: d, received: f, sent: h, own: j },
            ) => c == d && i == j && (a.is_none() || a == b) && e >= f && g >= h,
            _ => false,
        }
    }
}

/// Returns true if two paths are the same as far as their text says.
fn same_path(one: &str, other: &str) -> bool {
    let parts = |path: &'_ str| -> Vec<String> {
        path.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect()
    };
    one.starts_with('/') == other.starts_with('/') && parts(one) == parts(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(interface: Option<&str>, received: bool, sent: bool) -> Observed {
        let interface = interface.map(str::to_owned);
        Observed::Frames { interface, netns: None, received, sent, own: false }
    }

    #[test]
    fn sources_share_what_both_observe() {
        let (rx, tx, both) = ((true, false), (false, true), (true, true));
        let of = |name, (received, sent)| frames(name, received, sent);
        for (one, other, shares) in [
            (of(None, rx), of(Some("a"), rx), Shares::Blocks),
            (of(Some("a"), rx), of(Some("b"), rx), Shares::Nothing),
            (of(Some("a"), rx), of(Some("a"), tx), Shares::Nothing),
            (of(Some("a"), both), of(Some("a"), tx), Shares::Blocks),
            (of(None, rx), of(None, tx), Shares::Loopback),
            (of(Some("lo"), rx), of(None, tx), Shares::Loopback),
            (of(Some("a"), rx), of(None, tx), Shares::Nothing),
        ] {
            assert_eq!((one.shares(&other), other.shares(&one)), (shares, shares), "{one:?}");
        }
        let file = |path: &str| Observed::File(path.to_owned());
        assert_eq!(file("a/./b").shares(&file("a//b")), Shares::Blocks);
        assert_eq!(file("a").shares(&file("/a")), Shares::Nothing);
        assert!(of(None, both).covers(&of(Some("a"), tx)));
        assert!(!of(Some("a"), rx).covers(&of(None, rx)));
    }
}
