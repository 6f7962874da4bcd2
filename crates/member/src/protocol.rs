//! What travels between a client, the daemon and the process of a path: the types of the interface
//! files. The names of the errors, and how a person reads them, are in [`faults`].

use serde::{Deserialize, Serialize};

/// A path, as far as who asks may see it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Path {
    /// Its number.
    pub number: u32,
    /// What its user calls it.
    pub name: Option<String>,
    /// Whose it is.
    pub uid: u32,
    /// The process in which it runs.
    pub process: Option<i32>,
    /// When it began, in seconds since 1970.
    pub started: Option<u64>,
    /// The line.
    pub line: Option<String>,
    /// Where what it prints is kept.
    pub log: Option<String>,
    /// Whether who asks may connect to it.
    pub yours: bool,
}

/// How much a user may have, or has. Nothing: no bound.
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
    /// Of which version.
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
    /// Which.
    pub path: Path,
}

/// `Register`: a path begins.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// What its user calls it.
    pub name: Option<String>,
    /// The line.
    pub line: String,
    /// Where what it prints is kept.
    pub log: Option<String>,
    /// Its number with a daemon before.
    pub number: Option<u32>,
    /// When it began.
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
    /// Whose it is.
    pub uid: u32,
}

/// `Allowed`: what one may have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allowed {
    /// Whether there are no bounds.
    pub everything: bool,
    /// How much one may have.
    pub quota: Quota,
    /// How much one has.
    pub used: Quota,
    /// The filters that one may have in the kernel.
    pub filters: Vec<String>,
    /// The interfaces that one may watch there; `*`: all.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// The release of the kernel in which the daemon runs programs; none: it cannot.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Why not.
    #[serde(default)]
    pub closed: Option<String>,
}

/// `Attach`: a part of a line is to run in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The line.
    pub line: String,
    /// Which part of it, as [`engine::kernel::handout::Part::text`] says it.
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
    /// That line, as [`Attached::line`] says it.
    pub line: u64,
    /// The steps of both that are the same filter.
    pub stays: Vec<Stay>,
}

/// A filter that goes on with what it has kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stay {
    /// Which step it was.
    pub was: u64,
    /// Which step it is.
    pub is: u64,
}

/// `Attach`: first how what is handed over lies in the descriptors; at last what the line leaves
/// behind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attached {
    /// As [`engine::kernel::handout::Layout::text`] says it.
    pub layout: Option<String>,
    /// By which number the daemon knows the line.
    pub line: Option<u64>,
    /// Whether it has taken the place of another line.
    pub switched: Option<bool>,
    /// As [`engine::kernel::handout::Ended::text`] says it.
    pub ended: Option<String>,
    /// Why it was taken away, where nobody has asked for that.
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
    /// How often another took its place.
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
    /// Whose it is.
    pub uid: u32,
    /// Frames that came since it is there; of one's own, as all that follows.
    pub taken: Option<u64>,
    /// Blocks that it was handed, and their bytes.
    pub given: Option<Amount>,
    /// Frames that could not be copied for it.
    pub lost: Option<u64>,
    /// What it costs in the kernel by estimate, in ns of each second.
    pub kernel_ns: Option<u64>,
}

/// A filter in a program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// How many lines use it: it runs once for all.
    pub lines: usize,
    /// Blocks that came to it.
    pub blocks: u64,
}

/// A ring of frames.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelRing {
    /// Whose it is, if one user's alone.
    pub uid: Option<u32>,
    /// Of the lines of which group it is, those that say `--share=group:NAME`. Without a user and a
    /// group: of all that say `--share=world`.
    pub group: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// How many lines lead there.
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
    /// How many.
    pub blocks: u64,
    /// How long together.
    pub bytes: u64,
}

/// What was lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// Where or why.
    pub why: String,
    /// How many; none: it cannot be known.
    pub blocks: Option<u64>,
}

/// What a source saw and gave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// What the device or file had.
    pub seen: Option<Amount>,
    /// What was put into the path.
    pub given: Amount,
    /// By place.
    pub lost: Vec<Lost>,
}

/// What came to a filter, source or sink, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Filter {
    /// Which node of the plan.
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
    /// By reason.
    pub lost: Vec<Lost>,
    /// How often it was called.
    pub calls: u64,
    /// Time in it, in ns, where it is measured.
    pub busy_ns: u64,
}

/// What joins two of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// Which edge of the plan.
    pub edge: usize,
    /// From which node.
    pub from: String,
    /// To which.
    pub to: String,
    /// Which kind.
    pub kind: String,
    /// Counted by the near side.
    pub put: Amount,
    /// Counted by the far side.
    pub taken: Amount,
    /// Lies there.
    pub resident: Amount,
    /// By reason.
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
    /// Why it did not answer in time: what it counted is older.
    pub late: Option<String>,
}

/// What a path has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// How long it runs.
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
    /// What the path did by itself, and why; nothing where its program does not say so.
    #[serde(default)]
    pub adapted: Vec<String>,
    /// How long blocks were on their way, where the line bounds that.
    #[serde(default)]
    pub latency: Option<Latency>,
}

/// How long blocks were on their way.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// What the line asks for.
    pub asked_ns: u64,
    /// How often an alarm was given.
    pub alarms: u64,
    /// The whole way, by sink.
    pub ways: Vec<Measured>,
    /// Where blocks wait.
    pub waits: Vec<Measured>,
}

/// How long blocks were under way to a place, or waited there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The sink, or the ends of the edge.
    pub name: String,
    /// How long it may take.
    pub share_ns: u64,
    /// Blocks that were looked at.
    pub blocks: u64,
    /// Those of them that took longer.
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
    /// What was counted.
    pub counters: Option<Counters>,
    /// How it ended.
    pub ended: Option<Ended>,
}

/// How a path ended.
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
    /// What the ledger says of the switch.
    pub said: String,
    /// The line that runs now.
    pub line: String,
}

/// `Tap`: what somebody wants to look at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// What leaves this node; none: the source.
    pub node: Option<String>,
    /// From where on: `-5s`, `block:100`, `oldest`; none: from now on.
    pub from: Option<String>,
    /// Whether it ends where it would skip something.
    pub all: Option<bool>,
    /// After how long it ends if nothing is taken, in ms.
    pub patience_ms: Option<u64>,
}

/// `Tap`: where it began. A pipe comes along, in which the frames come as a capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tapping {
    /// The number of its first block, of those that left the node.
    pub block: u64,
    /// How many of them are of the past.
    pub past: u64,
    /// How long before now the first of those came, in ns.
    pub ago_ns: u64,
    /// Whether the path remembers what left this node.
    pub remembers: bool,
}

/// `Tapped`: what the tap of this connection has told.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tapped {
    /// Frames that it was given.
    pub frames: u64,
    /// Frames that came while it was too far behind.
    pub skipped: u64,
    /// Which those were, of the blocks that left the node, in words: `4211 to 4260, 5000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Blocks that lie in no frame, or in one of another kind than the first.
    pub no_frame: u64,
    /// Why it is over, if it is.
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
    /// Where it runs.
    pub space: String,
    /// Where copies of it run, itself among them, if there are any.
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
    /// How.
    pub transport: String,
    /// How many blocks fit; of rings alone.
    pub room: Option<u64>,
}

/// `Describe`: what a path is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Described {
    /// Its number.
    pub number: u32,
    /// What its user calls it.
    pub name: Option<String>,
    /// The line.
    pub line: String,
    /// The process in which it runs.
    pub process: u32,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// Where what it prints is kept.
    pub log: Option<String>,
    /// The nodes of the plan.
    pub nodes: Vec<Node>,
    /// Its edges.
    pub links: Vec<Link>,
}

/// The longest line that is registered.
pub const LINE_MAX: usize = 16 << 10;
