//! Parameter and reply types of the Varlink interfaces, exchanged between clients, the daemon and
//! the processes of paths. Errors are in [`faults`](crate::faults).
//!
//! The field names are the keys in the interface files.

mod control;
mod counters;
mod kernel;
mod nodes;
mod registry;

pub use control::{
    ChangeParameters, ChangeReply, CommitSubtreeParameters, FreezeHistoryParameters, Link, Node,
    PathDescription, TakeSubtreeParameters, TapParameters, TapReport, TapStart, WriteParameters,
};
pub use counters::{
    CountReply, Counters, Edge, Filter, FollowParameters, Loss, PathCountParameters, PathEnd,
    PathUpdate, Source, Space, Totals, UpdateForm, sum_lost_blocks,
};
pub use kernel::{
    AttachParameters, AttachReply, CarriedStep, CountParameters, KernelProgram, KernelPrograms,
    KernelRequest, KernelRing, KernelStep, Replacement, SetTapsParameters,
};
pub use nodes::{
    Argument, ChangedNodes, NodeArc, NodeDetails, NodePatch, NodesParameters, NodesReply,
};
pub use registry::{
    AdmitParameters, ConnectParameters, ConnectReply, DaemonDescription, DbufIds, PathEvent,
    PathList, PathListEvent, PathNumber, PathReport, Permissions, Quota, REQUEST_BYTES_MAX,
    RegisterParameters, RegisteredPath, RequestChange,
};
pub use runtime::latency::{GaugeLatency, LatencyReport};
pub use runtime::ledger::Amount;

use serde::{Deserialize, Serialize};

/// The empty parameters of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}
