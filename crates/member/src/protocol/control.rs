//! Descriptions, changes and taps of a path.

use serde::{Deserialize, Serialize};

/// Reply to `Describe`: a path and its plan.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathDescription {
    /// Number of the path in the daemon's registry.
    pub number: u32,
    /// Name that the user chose for the path.
    pub name: Option<String>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Process that runs the path.
    pub process: u32,
    /// Start time in seconds since 1970.
    pub started: u64,
    /// Log file with the output of the path.
    pub log: Option<String>,
    /// Nodes of the path's plan.
    pub nodes: Vec<Node>,
    /// Edges of the path's plan.
    pub links: Vec<Link>,
}

/// A node of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Name of the node, unique in the plan.
    pub name: String,
    /// Name of the space that runs the node.
    pub space: String,
    /// Spaces of all replicas of the node, including its own; empty if there are no replicas.
    #[serde(default)]
    pub copies: Vec<String>,
}

/// An edge of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Index of the upstream node.
    pub from: usize,
    /// Index of the downstream node.
    pub to: usize,
    /// Classes that the edge carries, as written in the request; empty for a plain pipe.
    pub classes: String,
    /// Kind of the edge: `call`, `ring`, `kernel`, `back` or `pipe`.
    pub transport: String,
    /// Capacity of the ring in blocks, or `None` if the edge is not a ring.
    pub room: Option<u64>,
}

/// Parameters of `Change`, which edits the running request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The edit, as the arguments of `streamline set`.
    pub words: Vec<String>,
    /// Request that the path must run; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    /// Request that the other path of a move must run; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
}

/// Reply to `Change`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeReply {
    /// Sentence with the ledger of the change.
    pub said: String,
    /// Text of the request that runs now.
    pub line: String,
}

/// Parameters of `Take`: a subtree of another path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeSubtree {
    /// Version of the other process, on which the encoding of states depends.
    pub version: String,
    /// Text of the subtree.
    pub filter: String,
    /// Output that the subtree is attached to: `NODE` or `NODE/CLASS`.
    pub below: String,
    /// Request that the path must run; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
}

/// Parameters of `Commit`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSubtree {
    /// State of each filter of the subtree, in the order of the text.
    pub states: Vec<String>,
}

/// Parameters of `Tap`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// Node whose output is tapped, or `None` for the source.
    pub node: Option<String>,
    /// Start of the tap: `-5s`, `block:100` or `oldest`. `None` starts at the current position.
    pub from: Option<String>,
    /// True if the tap ends, instead of skipping blocks, when its reader is too slow.
    pub all: Option<bool>,
    /// Time without progress of the reader after which the tap ends, in ms.
    pub patience_ms: Option<u64>,
    /// Number of the node, which stays the same through changes; takes precedence over `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Classes of the blocks, as after `|` in a request, empty for a plain pipe, or `None` for the
    /// blocks that at least one arc accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<String>,
    /// Form in which blocks are written: `capture`, which is the default, `bytes` or `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

/// Parameters of `Write`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteTo {
    /// Node at whose output the blocks are written; `None` for the source.
    pub node: Option<String>,
    /// Number of the node, which stays the same through changes; takes precedence over `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Class of the blocks, as after `|` in a request; `None` for the class of a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Form of the written data: `bytes`, which is the default, or `capture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

/// Parameters of `Freeze`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreezeHistory {
    /// Source whose retained output is kept; `None` for the first source.
    pub node: Option<String>,
    /// Number of the node, which stays the same through changes; takes precedence over `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Duration of the freeze from now, in ms; 0 ends an earlier freeze.
    pub ms: u64,
}

/// Reply to `Tap`: the start of the tap. The blocks arrive in the requested form through the pipe
/// that the reply transfers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TapStart {
    /// Sequence number of the first block of the tap among all blocks that left the node.
    pub block: u64,
    /// Number of retained frames with which the tap starts.
    pub past: u64,
    /// Age of the first retained frame, in ns; 0 if the tap starts with none.
    pub ago_ns: u64,
    /// True if the path retains the output of this node.
    pub remembers: bool,
}

/// Reply to `Tapped`: the state of the connection's tap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TapReport {
    /// Frames written to the pipe.
    pub frames: u64,
    /// Frames skipped because the reader was too slow.
    pub skipped: u64,
    /// Sequence numbers of the skipped frames, such as `4211 to 4260, 5000`, or `None` if no frame
    /// was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Blocks without a frame, or with a link type other than that of the first frame.
    pub no_frame: u64,
    /// Messages that were truncated because they were too long, or because too many were open at
    /// once.
    #[serde(default)]
    pub cut: u64,
    /// Reason for the end of the tap, or `None` while it runs.
    pub over: Option<String>,
}
