//! Commands to the kernel thread, completions of these commands, and the state of requests.

use abi::access::Credentials;
use engine::kernel::delegation::{DelegatedProgram, FinalCounters, OpenTaps};
use engine::kernel::shared_attach_point::{FrameRingStatus, PointStatus, SharingDomain};
use member::protocol::{AttachParameters, KernelRing};
use member::varlink::Fault;
use std::collections::BTreeMap;

/// An attach point in displayable form: interface, network namespace and direction.
pub(in crate::server) type AttachPoint = (String, Option<String>, &'static str);

/// The status of the program at an attach point, with the clients whose requests it runs.
#[derive(Debug)]
pub(in crate::server) struct ProgramStatus {
    pub(in crate::server) at: AttachPoint,
    pub(in crate::server) status: PointStatus,
    /// The requests that the program runs, by request number. Each value is the id of the process
    /// that made the request, and the cost of the request in ns per second.
    pub(in crate::server) requests: BTreeMap<u32, (i32, u64)>,
}

/// A command to the kernel thread.
#[derive(Debug)]
pub(in crate::server) enum Command {
    /// Runs part of a client's request in the kernel.
    Attach { client: u64, who: Credentials, process: i32, asked: AttachParameters },
    /// Replaces a client's running request with the request that the client has prepared.
    Switch { client: u64 },
    /// Removes a client's request. `why` is the reason if the client did not request the removal.
    Detach { client: u64, why: Option<String> },
    /// Requests a report of the counters of a client's running request. `number` identifies the
    /// call to which the report replies.
    Count { client: u64, number: Option<u64> },
    /// Opens and closes the taps of a client's running request.
    SetTaps { client: u64, open: OpenTaps },
    /// Requests a report of the running kernel programs.
    ReportPrograms { client: u64 },
    /// Removes all requests from the kernel.
    End { why: String },
    /// Leaves all requests running for the next daemon and ends the thread.
    LeaveRunning,
}

/// A message from the kernel thread to the server, mostly to report that a command is complete.
#[derive(Debug)]
pub(in crate::server) enum Completion {
    AttachReply {
        client: u64,
        result: Result<DelegatedProgram, Fault>,
    },
    /// The switch of a client to its prepared request is complete. After an error, the prepared
    /// request is discarded.
    Switched {
        client: u64,
        result: Result<(), Fault>,
    },
    Detached {
        client: u64,
        ended: Box<FinalCounters>,
        why: Option<String>,
    },
    /// The counters of a client's request so far, or `None` if the request has ended.
    Counted {
        client: u64,
        number: Option<u64>,
        counters: Option<Box<FinalCounters>>,
    },
    Status {
        client: u64,
        status: Vec<ProgramStatus>,
    },
    /// All requests have been removed or left to the next daemon.
    Ended,
    /// The kernel thread has completed the last command and is ready for the next one.
    Ready,
}

/// The state of a client's request in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::server) enum RequestState {
    #[default]
    None,
    /// The client has asked to attach the request, which is not attached yet.
    Requested,
    /// The client has asked to prepare the request as a replacement of another one; the request is
    /// not prepared yet.
    ReplacementRequested,
    /// The request is prepared to replace another one, and waits for the client's call of `Switch`.
    Prepared,
    /// The client has asked to switch to the request, which is about to replace another one.
    Switching,
    /// The request is running.
    Running,
    /// The request is being removed from the kernel.
    Detaching,
}

/// The requests adopted from the previous daemon, and a note with the reason for each request that
/// could not be adopted.
#[derive(Debug, Default)]
pub(in crate::server) struct AdoptedRequests {
    pub(in crate::server) lines: Vec<AdoptedRequest>,
    pub(in crate::server) notes: Vec<String>,
}

/// An adopted request of a client of the previous daemon.
#[derive(Debug)]
pub(in crate::server) struct AdoptedRequest {
    pub(in crate::server) client: u64,
    pub(in crate::server) uid: u32,
    /// Final counters that the client has not received, because the request was replaced or removed
    /// in the meantime, or `None` if the request is still running.
    pub(in crate::server) ended: Option<Box<FinalCounters>>,
}

/// Describes a ring for frames, which belongs to the requests of one user, of a group, or of all
/// users.
pub(in crate::server) fn describe_ring((whose, bytes, lines): &FrameRingStatus) -> KernelRing {
    let (uid, group) = match whose {
        SharingDomain::User(uid) => (Some(*uid), None),
        SharingDomain::Group(name) => (None, Some(name.to_string())),
        SharingDomain::World => (None, None),
    };
    KernelRing { uid, group, bytes: *bytes, lines: *lines }
}
