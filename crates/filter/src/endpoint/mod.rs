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
type AttachTargetFn = fn(&Arguments) -> Result<AttachTarget, String>;

/// The way in which a sink uses standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StandardOutput {
    /// The sink does not write to standard output.
    Unused,
    /// The sink writes lines, and other sinks may write lines to standard output too.
    Lines,
    /// The sink writes a capture, which becomes unreadable if other output is mixed in.
    Capture,
}

/// Facts about a source, sink or program in addition to its [`Description`](crate::Description).
#[derive(Clone, Copy, Debug)]
pub struct EndpointFacts {
    /// Function that returns the attach point of a kernel program that can replace the source.
    /// Fails with the reason if there is no such program. `None` if the source always runs in a
    /// process.
    pub attach_point: Option<AttachTargetFn>,
    /// Function that returns the interface to which a sink sends frames, so that a kernel program
    /// can send them in place of the sink. `None` for sinks that send no frames.
    pub outlet: Option<fn(&Arguments) -> SendingInterface>,
    /// True if the socket filter of a source can do the work of the filter after the source, so
    /// that frames that the filter rejects never reach the process
    /// ([`ArgumentAnalysis::pushdown`](crate::ArgumentAnalysis::pushdown)).
    pub accepts_pushdown: bool,
    /// Function that returns the file or traffic that a source observes, so that `++` can remove
    /// duplicates. `None` if no other source can observe the same file or traffic.
    pub observed_source: Option<fn(&Arguments) -> ObservedSource>,
    /// True for a sink that writes files, which by default runs in its own space (CONTRACT 27).
    pub writes_files: bool,
    /// Function that returns true if a sink that writes files only appends to an open file. Such a
    /// sink may run in the thread that reads a kernel ring. `None` if the sink must never run
    /// there.
    pub only_appends: Option<fn(&Arguments) -> bool>,
    /// Function that returns how a sink with these arguments uses standard output. `None` if the
    /// sink never writes to it.
    pub standard_output: Option<fn(&Arguments) -> StandardOutput>,
    /// True for an external program, which always has its own space (CONTRACT 27).
    pub is_program: bool,
}

impl EndpointFacts {
    /// No facts. Used for filters, and for endpoints without particular properties.
    pub const NONE: Self = Self {
        attach_point: None,
        outlet: None,
        accepts_pushdown: false,
        observed_source: None,
        writes_files: false,
        only_appends: None,
        standard_output: None,
        is_program: false,
    };
}

/// The attach point of a kernel program that takes the place of a source: the program observes or
/// redirects the source's frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttachTarget {
    /// Interface name; empty if the program does not attach to an interface.
    pub interface: String,
    /// Network namespace of the interface, or `None` for the current one.
    pub netns: Option<String>,
    /// Direction of the frames, relative to the host.
    pub side: TrafficDirection,
    /// True if the program redirects the frames that it accepts, so that they do not reach the
    /// host's network stack (CONTRACT 2). Otherwise the program only observes frames, except that
    /// it may withhold those of [`Self::only_matching_flows`] from the host.
    pub redirects: bool,
    /// True if the program withholds from the host the frames that match the source's expression,
    /// and only these. If `redirects` is true, these frames are redirected. Otherwise the program
    /// copies them and drops the originals.
    pub only_matching_flows: bool,
    /// True if the program attaches to the sockets of the request's user, in both directions,
    /// instead of an interface (CONTRACT 22). Packets then begin at the network header.
    pub own_sockets: bool,
}

impl AttachTarget {
    /// Creates the attach point for observing the frames that an interface in the current network
    /// namespace receives.
    #[must_use]
    pub fn observing(interface: &str) -> Self {
        let (netns, side) = (None, TrafficDirection::Received);
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
pub enum TrafficDirection {
    /// Frames that the host receives.
    Received,
    /// Frames that the host sends.
    Sent,
}

/// The interface of a sink that sends frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SendingInterface {
    /// Name of the interface that sends the frames.
    pub interface: String,
    /// Network namespace of the interface, or `None` for the current one.
    pub netns: Option<String>,
}
