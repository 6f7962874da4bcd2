//! The types of the interface files: messages between a client, the daemon and the process of a
//! path. The names of errors, and their texts, are in [`faults`].

use serde::{Deserialize, Serialize};

/// A path, as far as who asks may see it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Path {
    /// Its number.
    pub number: u32,
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The owner.
    pub uid: u32,
    /// The process in which it runs.
    pub process: Option<i32>,
    /// Start time, in seconds since 1970.
    pub started: Option<u64>,
    /// The line.
    pub line: Option<String>,
    /// The log file of its output.
    pub log: Option<String>,
    /// True if the caller may connect to it.
    pub yours: bool,
}

/// Limits of a user, or usage. `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Paths that run at one time.
    pub paths: Option<u64>,
    /// Connections to the daemon.
    pub connections: Option<u64>,
    /// Rings that the daemon has made.
    pub rings: Option<u64>,
    /// Bytes in them.
    pub bytes: Option<u64>,
    /// Descriptors that the daemon holds.
    pub descriptors: Option<u64>,
    /// Time in the kernel, in ns of each second.
    pub kernel_ns: Option<u64>,
}

/// `About`: who answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    /// The version.
    pub version: String,
    /// Its process.
    pub process: u32,
    /// Its user.
    pub uid: u32,
    /// Since when, in seconds since 1970.
    pub started: u64,
    /// The file of its policy; none: the one that is built in.
    pub policy: Option<String>,
}

/// `List`: all paths that one may see.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Paths {
    /// In the order of their numbers.
    pub paths: Vec<Path>,
}

/// `Watch`: what came or went.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// `present`, `came` or `went`.
    pub event: String,
    /// The path.
    pub path: Path,
}

/// `Register`: a path begins.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The line.
    pub line: String,
    /// The log file of its output.
    pub log: Option<String>,
    /// Its number with a daemon before.
    pub number: Option<u32>,
    /// Start time.
    pub started: Option<u64>,
}

/// The number of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Number {
    /// It.
    pub number: u32,
}

/// `Connect`: to which path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// Its name, its number, or `UID/NAME`.
    pub path: String,
}

/// `Connect`: what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connected {
    /// The number of the path.
    pub number: u32,
    /// The user.
    pub uid: u32,
}

/// `Allowed`: what one may have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allowed {
    /// True if there are no limits.
    pub everything: bool,
    /// The limits.
    pub quota: Quota,
    /// The usage.
    pub used: Quota,
    /// The filters that one may have in the kernel.
    pub filters: Vec<String>,
    /// The interfaces that one may watch there; `*`: all.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// The release of the kernel in which the daemon runs programs; none: it cannot.
    #[serde(default)]
    pub kernel: Option<String>,
    /// The reason, if it is closed.
    #[serde(default)]
    pub closed: Option<String>,
}

/// `Attach`: a part of a line is to run in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The line.
    pub line: String,
    /// The part, as [`engine::kernel::handout::Part::text`] writes it.
    pub part: String,
    /// The network name space of the caller, by which it is told from others.
    pub network: String,
    /// The version of the caller.
    pub version: String,
    /// In whose place it is to be, when [`Switch`](Attached::switched) is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Instead>,
}

/// In the place of which line another one is to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instead {
    /// The line, as in [`Attached::line`].
    pub line: u64,
    /// The steps of both that are the same filter.
    pub stays: Vec<Stay>,
}

/// A filter that goes on with what it has kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stay {
    /// The old step.
    pub was: u64,
    /// The new step.
    pub is: u64,
}

/// `Attach`: first how what is handed over lies in the descriptors; at last what the line leaves
/// behind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attached {
    /// As [`engine::kernel::handout::Layout::text`] says it.
    pub layout: Option<String>,
    /// The number of the line at the daemon.
    pub line: Option<u64>,
    /// True if it has replaced another line.
    pub switched: Option<bool>,
    /// As [`engine::kernel::handout::Ended::text`] says it.
    pub ended: Option<String>,
    /// The reason, if it was removed without being asked to.
    pub why: Option<String>,
}

/// `Sharing`: the programs that the daemon runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sharing {
    /// One for each interface and direction at which lines are.
    pub programs: Vec<Program>,
}

/// A program at an interface, which runs lines of all users there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    /// The interface.
    pub interface: String,
    /// The name space in which it is, if another than the daemon's.
    pub netns: Option<String>,
    /// `received` or `sent`.
    pub side: String,
    /// Its number in the kernel.
    pub program: u32,
    /// Number of replacements.
    pub replaced: u64,
    /// Frames that came while lines were here: each of them ran one program once.
    pub frames: u64,
    /// The lines that one may know of.
    pub lines: Vec<InKernel>,
    /// The filters that lines of the caller use, or all, for root.
    pub steps: Vec<Step>,
    /// The rings of frames, one for each user and size, and of those who share one.
    pub rings: Vec<KernelRing>,
}

/// A line that runs in a program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InKernel {
    /// The path of which it is part.
    pub path: Option<u32>,
    /// The owner.
    pub uid: u32,
    /// Frames that came since it is there; of one's own, as all that follows.
    pub taken: Option<u64>,
    /// Blocks that it was handed, and their bytes.
    pub given: Option<Amount>,
    /// Frames that could not be copied for it.
    pub lost: Option<u64>,
    /// Estimated cost in the kernel, in ns of each second.
    pub kernel_ns: Option<u64>,
}

/// A filter in a program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Number of lines that use it: it runs once for all.
    pub lines: usize,
    /// Blocks that came to it.
    pub blocks: u64,
}

/// A ring of frames.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelRing {
    /// The owner, if it belongs to one user.
    pub uid: Option<u32>,
    /// The group whose lines share it with `--share=group:NAME`. Without user and group: all that
    /// say `--share=world`.
    pub group: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// Number of lines that lead there.
    pub lines: usize,
}

/// `Admit`: for whom a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admit {
    /// The user.
    pub uid: u32,
}

/// Blocks and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Number of blocks.
    pub blocks: u64,
    /// Their length together.
    pub bytes: u64,
}

/// A loss.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// The place or reason.
    pub why: String,
    /// Number of blocks; `None` if it cannot be known.
    pub blocks: Option<u64>,
}

/// The counters of a source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Blocks that the device or file had.
    pub seen: Option<Amount>,
    /// Blocks put into the path.
    pub given: Amount,
    /// Losses by place.
    pub lost: Vec<Lost>,
}

/// The counters of a filter, source or sink.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Filter {
    /// The node of the plan.
    pub node: usize,
    /// Its name.
    pub name: String,
    /// Came in.
    pub taken: Amount,
    /// Came out without having come in.
    pub made: Amount,
    /// Left.
    pub passed: Amount,
    /// No arc wanted it.
    pub unselected: Amount,
    /// Was used up.
    pub consumed: Amount,
    /// Is held.
    pub held: Amount,
    /// Losses by reason.
    pub lost: Vec<Lost>,
    /// Number of calls.
    pub calls: u64,
    /// Time in it, in ns, where it is measured.
    pub busy_ns: u64,
}

/// An edge between two of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// The edge of the plan.
    pub edge: usize,
    /// From which node.
    pub from: String,
    /// To which.
    pub to: String,
    /// The kind.
    pub kind: String,
    /// Counted by the near side.
    pub put: Amount,
    /// Counted by the far side.
    pub taken: Amount,
    /// Lies there.
    pub resident: Amount,
    /// Losses by reason.
    pub lost: Vec<Lost>,
}

/// A space of a path.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// Its name in the plan.
    pub name: String,
    /// `thread`, `process` or `engine`.
    pub kind: String,
    /// The process in which it runs.
    pub process: Option<u32>,
    /// Its thread there, if it is one.
    pub thread: Option<u32>,
    /// The processors on which it may run.
    pub processors: Vec<usize>,
    /// `runs`, `sleeps`, `waits`, `stopped`, `ended`: at the moment before it was asked.
    pub state: String,
    /// For what it waits.
    pub waits: Option<String>,
    /// Processor time of its threads, in ns.
    pub processor_ns: u64,
    /// Bytes: of a thread those of its own pools, of a process all that it has.
    pub memory: Option<u64>,
    /// The reason for a late answer; its counters are older then.
    pub late: Option<String>,
}

/// The counters of a path.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Running time.
    pub elapsed_ns: u64,
    /// All sources.
    pub sources: Vec<Source>,
    /// All nodes.
    pub filters: Vec<Filter>,
    /// All edges.
    pub edges: Vec<Edge>,
    /// The spaces in which it runs.
    #[serde(default)]
    pub spaces: Vec<Space>,
    /// Changes the path made by itself, with reasons; empty if its program does not report them.
    #[serde(default)]
    pub adapted: Vec<String>,
    /// Latency, if the line bounds it.
    #[serde(default)]
    pub latency: Option<Latency>,
}

/// The latency of blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// The bound of the line.
    pub asked_ns: u64,
    /// Number of alarms.
    pub alarms: u64,
    /// The whole way, by sink.
    pub ways: Vec<Measured>,
    /// Latencies by place.
    pub waits: Vec<Measured>,
}

/// The latency of blocks up to a place, or their wait there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The sink, or the ends of the edge.
    pub name: String,
    /// The share of the bound.
    pub share_ns: u64,
    /// Blocks that were looked at.
    pub blocks: u64,
    /// Blocks that took longer.
    pub late: u64,
    /// The longest.
    pub worst_ns: u64,
}

/// `Count`: what was counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Until now.
    pub counters: Counters,
}

/// `Follow`: how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// The time between two replies, in ms.
    pub every_ms: Option<u64>,
}

/// `Follow`: how far it is, or how it ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Followed {
    /// The counters.
    pub counters: Option<Counters>,
    /// The end, once it has ended.
    pub ended: Option<Ended>,
}

/// The end of a path.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ended {
    /// The status of its process.
    pub status: u8,
    /// Its report in words.
    pub report: String,
}

/// `Change`: the words of the edit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// As `streamline set` takes them.
    pub words: Vec<String>,
}

/// `Change`: what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The ledger's verdict on the switch.
    pub said: String,
    /// The line that runs now.
    pub line: String,
}

/// `Tap`: what somebody wants to look at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// The tapped node; `None` for the source.
    pub node: Option<String>,
    /// From where on: `-5s`, `block:100`, `oldest`; none: from now on.
    pub from: Option<String>,
    /// True if the tap ends where it would skip blocks.
    pub all: Option<bool>,
    /// After how long it ends if nothing is taken, in ms.
    pub patience_ms: Option<u64>,
}

/// `Tap`: where it began. A pipe comes along, in which the frames come as a capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tapping {
    /// The number of its first block, of those that left the node.
    pub block: u64,
    /// Number of frames from the past.
    pub past: u64,
    /// The age of the first of those, in ns.
    pub ago_ns: u64,
    /// True if the path remembers the frames that left this node.
    pub remembers: bool,
}

/// `Tapped`: what the tap of this connection has told.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tapped {
    /// Frames that it was given.
    pub frames: u64,
    /// Frames that came while it was too far behind.
    pub skipped: u64,
    /// Their positions among the blocks that left the node: `4211 to 4260, 5000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Blocks that lie in no frame, or in one of another kind than the first.
    pub no_frame: u64,
    /// The reason of the end, once it is over.
    pub over: Option<String>,
}

/// `Changed`: the line that runs now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewLine {
    /// It.
    pub line: String,
}

/// A node of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The space.
    pub space: String,
    /// The spaces of its replicas, itself included, if there are any.
    #[serde(default)]
    pub copies: Vec<String>,
}

/// An edge of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// From which node.
    pub from: usize,
    /// To which.
    pub to: usize,
    /// The classes that go there, as the line says them.
    pub classes: String,
    /// The transport.
    pub transport: String,
    /// Capacity in blocks; rings only.
    pub room: Option<u64>,
}

/// `Describe`: what a path is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Described {
    /// Its number.
    pub number: u32,
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The line.
    pub line: String,
    /// The process in which it runs.
    pub process: u32,
    /// Start time, in seconds since 1970.
    pub started: u64,
    /// The log file of its output.
    pub log: Option<String>,
    /// The nodes of the plan.
    pub nodes: Vec<Node>,
    /// Its edges.
    pub links: Vec<Link>,
}

/// The longest line that is registered.
pub const LINE_MAX: usize = 16 << 10;
