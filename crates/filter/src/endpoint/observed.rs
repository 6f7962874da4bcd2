//! The files and traffic that sources observe. `++` compares them to detect whether two sources
//! emit the same blocks (CONTRACT 10).

/// The file or traffic that a source observes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObservedSource {
    /// A file, named by the path in the request.
    File(String),
    /// Frames on one interface or on all interfaces.
    Frames {
        /// Interface name, or `None` for all interfaces of the namespace.
        interface: Option<String>,
        /// Network namespace that the source observes, or `None` for the current one.
        netns: Option<String>,
        /// True if the source observes received frames.
        received: bool,
        /// True if the source observes sent frames.
        sent: bool,
        /// True if the source observes the packets of the user's own sockets instead of an
        /// interface.
        own_sockets: bool,
    },
}

/// The blocks that two sources have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceOverlap {
    /// No block is emitted by both sources.
    Nothing,
    /// The packets on the loopback interface. One source observes each packet as sent, the other as
    /// received.
    Loopback,
    /// Any block may be emitted by both sources.
    Blocks,
}

/// Name of the loopback interface, which receives every frame that is sent on it.
const LOOPBACK_INTERFACE: &str = "lo";

impl ObservedSource {
    /// Returns the blocks that this source and `other` have in common.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> SourceOverlap {
        match (self, other) {
            (Self::File(one), Self::File(other)) if is_same_path(one, other) => {
                SourceOverlap::Blocks
            }
            (
                Self::Frames { interface: a, netns: c, received: e, sent: g, own_sockets: i },
                Self::Frames { interface: b, netns: d, received: f, sent: h, own_sockets: j },
            ) if c == d && i == j && (a.is_none() || b.is_none() || a == b) => {
                let lo = |name: &Option<String>| {
                    name.as_deref().is_none_or(|name| name == LOOPBACK_INTERFACE)
                };
                match (*e && *f) || (*g && *h) {
                    true => SourceOverlap::Blocks,
                    false if lo(a) && lo(b) && !i => SourceOverlap::Loopback,
                    false => SourceOverlap::Nothing,
                }
            }
            _ => SourceOverlap::Nothing,
        }
    }

    /// Returns true if this source observes everything that `other` observes.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => is_same_path(one, other),
            (
                Self::Frames { interface: a, netns: c, received: e, sent: g, own_sockets: i },
                Self::Frames { interface: b, netns: d, received: f, sent: h, own_sockets: j },
            ) => c == d && i == j && (a.is_none() || a == b) && e >= f && g >= h,
            _ => false,
        }
    }
}

/// Returns true if the paths are equal, ignoring redundant separators and `.` components.
fn is_same_path(one: &str, other: &str) -> bool {
    let parts = |path: &'_ str| -> Vec<String> {
        path.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect()
    };
    one.starts_with('/') == other.starts_with('/') && parts(one) == parts(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames_source(interface: Option<&str>, received: bool, sent: bool) -> ObservedSource {
        let interface = interface.map(str::to_owned);
        ObservedSource::Frames { interface, netns: None, received, sent, own_sockets: false }
    }

    #[test]
    fn sources_overlap_in_traffic_that_both_observe() {
        let (rx, tx, both) = ((true, false), (false, true), (true, true));
        let of = |name, (received, sent)| frames_source(name, received, sent);
        for (one, other, shares) in [
            (of(None, rx), of(Some("a"), rx), SourceOverlap::Blocks),
            (of(Some("a"), rx), of(Some("b"), rx), SourceOverlap::Nothing),
            (of(Some("a"), rx), of(Some("a"), tx), SourceOverlap::Nothing),
            (of(Some("a"), both), of(Some("a"), tx), SourceOverlap::Blocks),
            (of(None, rx), of(None, tx), SourceOverlap::Loopback),
            (of(Some("lo"), rx), of(None, tx), SourceOverlap::Loopback),
            (of(Some("a"), rx), of(None, tx), SourceOverlap::Nothing),
        ] {
            assert_eq!((one.overlap(&other), other.overlap(&one)), (shares, shares), "{one:?}");
        }
        let file = |path: &str| ObservedSource::File(path.to_owned());
        assert_eq!(file("a/./b").overlap(&file("a//b")), SourceOverlap::Blocks);
        assert_eq!(file("a").overlap(&file("/a")), SourceOverlap::Nothing);
        assert!(of(None, both).covers(&of(Some("a"), tx)));
        assert!(!of(Some("a"), rx).covers(&of(None, rx)));
    }
}
