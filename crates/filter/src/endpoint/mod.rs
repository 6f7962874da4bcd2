//! Facts for the planner that only sources, sinks and programs have.
//!
//! Input: arguments. Output: plain data. The crate `endpoint` fills in one [`EndpointFacts`] per
//! entry of its catalog. `pipeline`, which cannot import that crate, receives the facts through the
//! registry (CONTRACT 27).

mod observed;

pub use observed::{ObservedSource, SourceOverlap};

use crate::contract::Arguments;

/// Function that returns the attach point of a source. Fails with the reason if the source has
/// none.
type FindAttach = fn(&Arguments) -> Result<Attach, String>;

/// The use of standard output by a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StandardOutput {
    /// The sink does not write to standard output.
    Unused,
    /// The sink writes lines, which other sinks may write there too.
    Lines,
    /// The sink writes a capture, which is no longer readable if anything else is written there.
    Capture,
}

/// Facts about a source, sink or program in addition to its [`Description`](crate::Description).
#[derive(Clone, Copy, Debug)]
pub struct EndpointFacts {
    /// Returns the attach point of a kernel program that can replace the source. Fails with the
    /// reason if there is none. `None` if the source always reads in a process.
    pub attach_point: Option<FindAttach>,
    /// Returns the interface to which a sink sends frames, so that a kernel program can send them
    /// in place of the sink. `None` for sinks that send no frames.
    pub outlet: Option<fn(&Arguments) -> Outlet>,
    /// True if a source can apply the test of the first filter after it in its socket filter, so
    /// that rejected frames never reach the process
    /// ([`Analysis::pushdown`](crate::Analysis::pushdown)).
    pub takes_filter: bool,
    /// Returns the file or traffic that a source observes, so that `++` can remove duplicates.
    /// `None` if no other source can observe the same file or traffic.
    pub observed_source: Option<fn(&Arguments) -> ObservedSource>,
    /// True for a sink that writes files, which by default runs in its own space (CONTRACT 27).
    pub writes_files: bool,
    /// Returns true if a sink that writes files only appends to an open file, and may therefore run
    /// in the thread that reads a kernel ring. `None` if the sink must never run there.
    pub only_appends: Option<fn(&Arguments) -> bool>,
    /// Returns the use of standard output by a sink with these arguments. `None` if it never writes
    /// there.
    pub standard_output: Option<fn(&Arguments) -> StandardOutput>,
    /// True for an external program, which always has its own space (CONTRACT 27).
    pub is_program: bool,
}

impl EndpointFacts {
    /// No facts. Used for filters, and for endpoints without particular properties.
    pub const NONE: Self = Self {
        attach_point: None,
        outlet: None,
        takes_filter: false,
        observed_source: None,
        writes_files: false,
        only_appends: None,
        standard_output: None,
        is_program: false,
    };
}

/// The attach point of a program that observes a source's frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attach {
    /// Interface name; empty if the program does not attach to an interface.
    pub interface: String,
    /// Network namespace, or `None` for the current one.
    pub netns: Option<String>,
    /// Direction of the observed frames.
    pub side: Side,
    /// True if accepted frames are redirected and do not reach the host's network stack (CONTRACT
    /// 2). Otherwise the program only observes.
    pub redirects: bool,
    /// True if only frames that match the source's expression are withheld from the host. If
    /// `redirects` is true, these frames are redirected. Otherwise they are copied and the
    /// originals are dropped.
    pub only_matching_flows: bool,
    /// True if the program attaches to the sockets of the request's user, in both directions,
    /// instead of an interface (CONTRACT 22). Packets then begin at the network header.
    pub own_sockets: bool,
}

impl Attach {
    /// Creates the attach point for observing the frames that an interface in the current network
    /// namespace receives.
    #[must_use]
    pub fn observing(interface: &str) -> Self {
        let (netns, side) = (None, Side::Received);
        let interface = interface.to_owned();
        Self {
            interface,
            netns,
            side,
            redirects: false,
            only_matching_flows: false,
            own_sockets: false,
        }
    }
}

/// Direction of frames relative to the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Towards the host.
    Received,
    /// Away from the host.
    Sent,
}

/// The interface of a sink that sends frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outlet {
    /// Interface name.
    pub interface: String,
    /// Network namespace, or `None` for the current one.
    pub netns: Option<String>,
}
