//! Types of the methods that describe a path, change it, and tap or write to its nodes.

use super::ChangedNodes;
use serde::{Deserialize, Serialize};

/// Reply to `Describe`: a path and its plan.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathDescription {
    /// Number of the path in the daemon's registry.
    pub number: u32,
    /// Name that the user chose for the path, or `None` for an unnamed path.
    pub name: Option<String>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Id of the process that runs the path.
    pub process: u32,
    /// Start time in seconds since 1970.
    pub started: u64,
    /// Name of the log file that contains the path's output, or `None` if there is none.
    pub log: Option<String>,
    /// Nodes of the path's plan.
    pub nodes: Vec<Node>,
    /// Edges of the path's plan.
    pub links: Vec<Link>,
}

/// A node of a plan, with the space that runs it.
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

/// An edge of a plan, with its classes and its kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Index of the node from which the edge leads.
    pub from: usize,
    /// Index of the node to which the edge leads.
    pub to: usize,
    /// Classes that pass over the edge, as written in the request; empty for a plain pipe.
    pub classes: String,
    /// Kind of the edge: `call`, `ring`, `kernel`, `back` or `pipe`.
    pub transport: String,
    /// Capacity of the ring in blocks, or `None` if the edge is not a ring.
    pub room: Option<u64>,
}

/// Parameters of `Change`, which edits the running request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeParameters {
    /// The edit, as the arguments of `streamline set`.
    pub words: Vec<String>,
    /// Request that the path must be running; `None` for any request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    /// Request that the other path must be running if the edit moves nodes to another path. `None`
    /// accepts any request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// True to return the nodes of the new plan, too; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<bool>,
    /// Version of the nodes that the caller already has; `None` if it has none. If the path had
    /// this version before the change, the reply omits the nodes that the change does not affect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
    /// True to return only the new name and the new arcs of a node if the change affects nothing
    /// else in the node; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<bool>,
}

/// Reply to `Change`: the block counts of the change, and the new request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChangeReply {
    /// Sentence that summarizes the change, with its block counts.
    #[serde(rename = "said")]
    pub message: String,
    /// Text of the request that is now running.
    pub line: String,
    /// The nodes after the change, if the caller has asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<ChangedNodes>,
}

/// Parameters of `Take`, which passes a subtree of another path to this path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeSubtreeParameters {
    /// Version of Streamline in the process that gives up the subtree. Filter states are exchanged
    /// only between equal versions.
    pub version: String,
    /// The subtree, in the syntax of a request.
    pub filter: String,
    /// Output below which the subtree is attached: `NODE`, or `NODE/CLASS` for one class of the
    /// output.
    pub below: String,
    /// Request that the path must be running; `None` for any request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
}

/// Parameters of `Commit`, which completes the move of a subtree that `Take` has prepared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSubtreeParameters {
    /// Encoded state of each filter in the subtree, in the order of the subtree's text.
    pub states: Vec<String>,
}

/// Parameters of `Tap`, which copies the output of a node to the caller.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapParameters {
    /// Node whose output is tapped, or `None` for the source.
    pub node: Option<String>,
    /// Start of the tap: `-5s`, `block:100` or `oldest`; `None` for the current position.
    pub from: Option<String>,
    /// True to end the tap if its reader is too slow; otherwise, blocks are skipped.
    pub all: Option<bool>,
    /// Time in ms after which the tap ends if its reader does not read from the pipe.
    pub patience_ms: Option<u64>,
    /// Number of the node, which does not change when the request is changed; takes precedence over
    /// `node`. `None` to identify the node by `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Classes of the blocks, in the syntax after `|` in a request; empty for a plain pipe; `None`
    /// for the blocks that at least one arc accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<String>,
    /// Form in which blocks are written: `capture`, which is the default, `bytes` or `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// Ignored: readers of an older version used it to request another method of sharing memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lend: Option<bool>,
    /// True if the reader of the tap accepts a ring of shared memory in place of bytes in the pipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<bool>,
}

/// Parameters of `Write`, which adds blocks from the caller to the output of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteParameters {
    /// Node to whose output the blocks are added; `None` for the source.
    pub node: Option<String>,
    /// Number of the node, which does not change when the request is changed; takes precedence over
    /// `node`. `None` to identify the node by `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Class of the blocks, in the syntax after `|` in a request; `None` for the class of a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Form of the written data: `bytes`, which is the default, or `capture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

/// Parameters of `Freeze`, which keeps the retained output of a source for some time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreezeHistoryParameters {
    /// Source whose retained output is frozen; `None` for the first source.
    pub node: Option<String>,
    /// Number of the node, which does not change when the request is changed; takes precedence over
    /// `node`. `None` to identify the node by `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Duration of the freeze, starting now, in ms; 0 ends an earlier freeze.
    pub ms: u64,
}

/// Reply to `Tap`: the start of the tap. The reply transfers a descriptor of the pipe through which
/// the blocks arrive.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TapStart {
    /// Sequence number of the tap's first block among all blocks that have left the node.
    pub block: u64,
    /// Number of retained frames that the tap delivers before new ones.
    pub past: u64,
    /// Age of the first retained frame that the tap delivers, in ns; 0 if the tap delivers no
    /// retained frames.
    pub ago_ns: u64,
    /// True if the path retains past output of the tapped node.
    pub remembers: bool,
}

/// Reply to `Tapped`: the state of the connection's tap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TapReport {
    /// Number of frames written to the pipe.
    pub frames: u64,
    /// Number of frames skipped because the reader was too slow.
    pub skipped: u64,
    /// Sequence numbers of the skipped frames, such as `4211 to 4260, 5000`, or `None` if no frame
    /// was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Number of blocks that the tap did not write, because they have no frame or because their
    /// link type differs from that of the first frame.
    pub no_frame: u64,
    /// Number of messages that the tap truncated or dropped, because they were too long or because
    /// too many of them were incomplete at the same time.
    #[serde(default)]
    pub cut: u64,
    /// Reason why the tap has ended, or `None` while it is running.
    pub over: Option<String>,
}
