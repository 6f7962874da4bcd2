//! What travels between a client, the daemon and the process of a path: the types of the interface
//! files, and the errors as a person reads them.

use crate::varlink::Fault;
use serde::{Deserialize, Serialize};
use serde_json::json;

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
    /// Spaces that did not answer in time, and why.
    pub late: Vec<String>,
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

/// A node of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub space: String,
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

/// The errors of `io.streamline`.
pub mod faults {
    use super::{Fault, json};

    /// There is no such path.
    #[must_use]
    pub fn no_such_path(path: &str) -> Fault {
        let path: String = path.chars().take(80).collect();
        Fault::new("io.streamline.NoSuchPath", &json!({ "path": path }))
    }

    /// Several users have a path of this name.
    #[must_use]
    pub fn which_path(path: &str, numbers: &[u32]) -> Fault {
        Fault::new("io.streamline.WhichPath", &json!({ "path": path, "numbers": numbers }))
    }

    /// The path is another user's.
    #[must_use]
    pub fn not_yours(path: &str, uid: u32) -> Fault {
        Fault::new("io.streamline.NotYours", &json!({ "path": path, "uid": uid }))
    }

    /// The name is taken.
    #[must_use]
    pub fn name_taken(name: &str, number: u32) -> Fault {
        Fault::new("io.streamline.NameTaken", &json!({ "name": name, "number": number }))
    }

    /// This is no name, or no line.
    #[must_use]
    pub fn refused(parameter: &str, why: &str) -> Fault {
        Fault::new("io.streamline.Refused", &json!({ "parameter": parameter, "why": why }))
    }

    /// The user has as much as it may have.
    #[must_use]
    pub fn quota(what: &str, limit: u64) -> Fault {
        Fault::new("io.streamline.QuotaExceeded", &json!({ "what": what, "limit": limit }))
    }

    /// The process of the path does not take what is sent to it.
    #[must_use]
    pub fn busy(path: &str) -> Fault {
        Fault::new("io.streamline.Busy", &json!({ "path": path }))
    }

    /// The method takes or gives descriptors.
    #[must_use]
    pub fn needs_descriptors(socket: &str) -> Fault {
        Fault::new("io.streamline.NeedsDescriptors", &json!({ "socket": socket }))
    }
}

/// An error as a person reads it: what, where, why, what to do.
#[must_use]
pub fn sentence(fault: &Fault) -> String {
    let text = |parameter| fault.text(parameter);
    let number = |parameter| fault.number(parameter);
    match fault.name.as_str() {
        "io.streamline.NoSuchPath" => {
            format!("no path is called `{}`: `streamline ps` lists those that run", text("path"))
        }
        "io.streamline.WhichPath" => {
            let numbers = fault.parameters.get("numbers").map(ToString::to_string);
            let numbers = numbers.unwrap_or_default();
            let path = text("path");
            format!("several users have a path called `{path}`: say which by its number {numbers}")
        }
        "io.streamline.NotYours" => format!(
            "path `{}` belongs to user {}: only that user and root control it",
            text("path"),
            number("uid")
        ),
        "io.streamline.NameTaken" => format!(
            "the name `{}` is that of your path {}: choose another, or `streamline stop {}`",
            text("name"),
            number("number"),
            text("name"),
        ),
        "io.streamline.Refused" => format!("the {} is refused: {}", text("parameter"), text("why")),
        "io.streamline.QuotaExceeded" => format!(
            "you have as many {} as the policy of this machine lets you have ({}): end some, or ask \
             its administrator",
            text("what"),
            number("limit")
        ),
        "io.streamline.Busy" => format!(
            "the process of path `{}` takes nothing: it is stopped, or just ending",
            text("path")
        ),
        "io.streamline.NeedsDescriptors" => {
            format!("descriptors travel on `{}` alone", text("socket"))
        }
        "org.varlink.service.InvalidParameter" => {
            format!("the daemon does not understand `{}`: it is of another version", text("parameter"))
        }
        "org.varlink.service.MethodNotFound" | "org.varlink.service.InterfaceNotFound" => {
            format!("the other side does not know `{}{}`: it is of another version",
                text("method"), text("interface"))
        }
        "org.varlink.service.PermissionDenied" => "the daemon does not let you".to_owned(),
        _ => fault.to_string(),
    }
}
