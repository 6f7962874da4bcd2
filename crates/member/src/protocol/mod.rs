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
    Change, ChangeReply, CommitSubtree, FreezeHistory, Link, Node, PathDescription, TakeSubtree,
    Tap, TapReport, TapStart, WriteParameters,
};
pub use counters::{
    Count, CountReply, Counters, Edge, Ended, Filter, Follow, Loss, PathUpdate, Source, Space,
    Totals, UpdateForm, sum_lost_blocks,
};
pub use kernel::{
    Attach, AttachReply, CarriedStep, CountParameters, KernelProgram, KernelPrograms,
    KernelRequest, KernelRing, KernelStep, Replacement, SetTaps,
};
pub use nodes::{Argument, ChangedNodes, NodeArc, NodeDetails, NodePatch, Nodes, NodesReply};
pub use registry::{
    About, Admit, Connect, ConnectReply, DbufIds, Event, PathEvent, PathList, PathNumber,
    PathReport, Permissions, Quota, REQUEST_BYTES_MAX, Register, RegisteredPath, RequestChange,
};
pub use runtime::latency::{GaugeLatency, Latency};
pub use runtime::ledger::Amount;

use serde::{Deserialize, Serialize};

/// The empty parameters of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}
