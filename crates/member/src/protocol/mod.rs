//! Parameter and reply types of the interface files, exchanged between a client, the daemon and the
//! process of a path. Errors are in [`faults`](crate::faults).
//!
//! Field names are the keys of the interfaces.

mod control;
mod counters;
mod kernel;
mod registry;

pub use control::{Change, ChangeReply, Link, Node, PathDescription, Tap, TapReport, TapStart};
pub use counters::{
    CountReply, Counters, Edge, Ended, Filter, Follow, Loss, PathUpdate, Source, Space,
};
pub use kernel::{
    Attach, AttachReply, CarriedStep, KernelProgram, KernelPrograms, KernelRequest, KernelRing,
    KernelStep, Replacement,
};
pub use registry::{
    About, Admit, Connect, ConnectReply, DbufIds, Event, LINE_MAX, Path, PathList, PathNumber,
    Permissions, Quota, Register, RequestChange,
};
pub use runtime::latency::{Latency, PlaceLatency};
pub use runtime::ledger::Amount;

use serde::{Deserialize, Serialize};

/// The empty parameters of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}
