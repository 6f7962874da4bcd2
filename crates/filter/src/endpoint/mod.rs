//! Facts about sources and sinks that the planner needs and no filter has.
//!
//! In: arguments. Out: plain data. The crate `endpoint` fills in one [`EndpointFacts`] per entry of
//! its catalog; `pipeline`, which cannot import it, receives them through the registry
//! (CONTRACT 27).

mod observed;

pub use observed::{Observed, Shares};

use crate::contract::Arguments;

/// Returns the attachment point of a source, or the reason for having none.
type FindAttach = fn(&Arguments) -> Result<Attach, String>;

/// Facts about a source, sink or program beside its [`Description`](crate::Description).
#[derive(Clone, Copy, Debug)]
pub struct EndpointFacts {
    /// Returns where a program in the kernel gives what this source gives, or why none does;
    /// `None`: the source reads in a process.
    pub attaches: Option<FindAttach>,
    /// Returns the interface by which a sink sends frames, which a program in the kernel can do
    /// where it stands. The twin of such a sink does not mention it.
    pub outlet: Option<fn(&Arguments) -> Outlet>,
    /// True if a source can hand the first filter behind it to the kernel, so that what that filter
    /// refuses never comes in ([`Analysis::ahead`](crate::Analysis::ahead)).
    pub takes_filter: bool,
    /// Returns what a source observes, so that `++` gives each block of it once; `None`: no other
    /// source gives the same.
    pub observes: Option<fn(&Arguments) -> Observed>,
    /// True for a sink that writes files: by default it runs in a space of its own (CONTRACT 27).
    pub writes_files: bool,
    /// True for an ordinary program in a process of its own: a space, not a filter that a space
    /// runs (CONTRACT 27).
    pub process: bool,
}

impl EndpointFacts {
    /// The facts of a filter, and of an endpoint without any.
    pub const NONE: Self = Self {
        attaches: None,
        outlet: None,
        takes_filter: false,
        observes: None,
        writes_files: false,
        process: false,
    };
}

/// The attach point of a program that observes a source's frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attach {
    /// Interface name; empty for none.
    pub interface: String,
    /// The name space in which it is, if another than ours.
    pub netns: Option<String>,
    /// Direction of the frames.
    pub side: Side,
    /// True if accepted frames are taken from the host (CONTRACT 2); otherwise the program observes
    /// and changes nothing.
    pub takes: bool,
    /// True to attach to the sockets of the request's user, both ways, instead of an interface
    /// (CONTRACT 22): packets from layer 3 on.
    pub own: bool,
}

impl Attach {
    /// Attaches to the ingress of an interface in the own namespace.
    #[must_use]
    pub fn observing(interface: &str) -> Self {
        let (netns, side) = (None, Side::Received);
        Self { interface: interface.to_owned(), netns, side, takes: false, own: false }
    }
}

/// The direction of frames at an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Towards the host.
    Received,
    /// Away from it.
    Sent,
}

/// The interface by which a sink sends frames out, where a program in the kernel may do that.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outlet {
    /// The interface.
    pub interface: String,
    /// The name space in which it is, if another than ours.
    pub netns: Option<String>,
}
