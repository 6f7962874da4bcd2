//! Formats single things: names, arguments, values, rings.
//!
//! A request may contain anything, so control characters are always made visible.

use super::COLUMNS;
use crate::graph::{Boolean, Graph, Link, NodeId, Step, Use};
use crate::language::write_quoted;
use crate::plan::{Copied, Holds, Latency, Plan, Policy, Program, RingPlan};
use crate::share::Share;
use filter::sharing::Sharing;
use filter::{Parameter, Side, Type, Value};
use std::fmt::Write as _;

/// The name of every node, each once: `bpf`, `tcp#X` where the request gives a name, `bpf#1` and
/// `bpf#2` where several nodes would have the same.
#[must_use]
pub fn names(graph: &Graph) -> Vec<String> {
    let plain: Vec<String> = graph.ids().map(|(id, _)| plain(graph, id)).collect();
    let mut seen = vec![0; plain.len()];
    for at in 0..plain.len() {
        seen[at] = plain[..=at].iter().filter(|name| **name == plain[at]).count();
    }
    let several = |name: &String| plain.iter().filter(|other| *other == name).count() > 1;
    plain
        .iter()
        .zip(seen)
        .map(|(name, n)| if several(name) { format!("{name}#{n}") } else { name.clone() })
        .collect()
}

fn plain(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => used.title(),
        Step::Boolean(body) => {
            boolean(body, true, &|id| graph.node(id).filter().map_or_else(String::new, Use::title))
        }
        Step::Merge | Step::Unknown => graph.node(id).name().to_owned(),
    }
}

/// A node as the request says it: its name and what it was given beside the defaults.
#[must_use]
pub fn shown(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => given(used),
        Step::Boolean(body) => {
            boolean(body, true, &|id| graph.node(id).filter().map_or_else(String::new, given))
        }
        Step::Merge => "merge of sources".to_owned(),
        Step::Unknown => "?".to_owned(),
    }
}

/// A filter as the request says it, without the name that it gives it: what costs and shares are
/// known by.
#[must_use]
pub fn plain_text(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => with_arguments(used.description.name.to_owned(), used),
        Step::Boolean(_) | Step::Merge | Step::Unknown => shown(graph, id),
    }
}

fn given(used: &Use) -> String {
    with_arguments(used.title(), used)
}

fn with_arguments(mut text: String, used: &Use) -> String {
    for (name, value) in used.arguments.iter() {
        let Some(parameter) = used.description.parameter(name) else { continue };
        let default = parameter.default.and_then(|text| parameter.parse(text).ok());
        if default.as_ref() == Some(value) {
            continue;
        }
        let value = written(parameter, value);
        let _ = match parameter.positional {
            true => write!(text, " {value}"),
            false => write!(text, " {name}={value}"),
        };
    }
    text
}

fn written(parameter: &Parameter, value: &Value) -> String {
    match (value, parameter.kind) {
        (Value::Number(n), Type::Size { .. }) => bytes(*n).replace(' ', ""),
        (Value::Number(n), Type::Duration) => nanoseconds(*n).replace(' ', ""),
        (Value::Number(n), Type::Factor { .. }) => factor(*n),
        (Value::Number(n), _) => n.to_string(),
        (Value::Flag(flag), _) => if *flag { "yes" } else { "no" }.to_owned(),
        (Value::Text(text), _) => quoted(text.as_bytes()),
        (Value::Bytes(bytes), _) => quoted(bytes),
    }
}

/// Millionths as they are written in a request: `2`, `0.5`.
fn factor(millionths: u64) -> String {
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The text as it stands if it is one word, otherwise in quotes, as the language has them.
fn quoted(bytes: &[u8]) -> String {
    let bare = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,%@^~*".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(bare) {
        return bytes.iter().copied().map(char::from).collect();
    }
    let mut text = String::new();
    let _ = write_quoted(&mut text, bytes);
    text
}

/// A Boolean section in the words of the language.
fn boolean(body: &Boolean, outer: bool, name: &dyn Fn(NodeId) -> String) -> String {
    let list = |links: &[Link], symbol: &str| {
        let part = |link: &Link| {
            let label = match link.classes.is_all() {
                true => String::new(),
                false => format!("|{} ", link.classes),
            };
            format!("{label}{}", boolean(&link.body, false, name))
        };
        let all: Vec<String> = links.iter().map(part).collect();
        let text = all.join(&format!(" {symbol} "));
        if outer { text } else { format!("({text})") }
    };
    match body {
        Boolean::Filter(id) => name(*id),
        Boolean::Not(inner) => format!("!{}", boolean(inner, false, name)),
        Boolean::Any(links) => list(links, "++"),
        Boolean::All(links) if links.is_empty() => "all".to_owned(),
        Boolean::All(links) => list(links, "+*"),
        Boolean::Chain { first, rest } => {
            let mut text = boolean(first, false, name);
            for link in rest {
                let pipe = match link.classes.is_plain() {
                    true => "|".to_owned(),
                    false => format!("|{}", link.classes),
                };
                let _ = write!(text, " {pipe} {}", boolean(&link.body, false, name));
            }
            format!("({text})")
        }
    }
}

/// Describes a ring in a sentence.
pub(super) fn ring(ring: &RingPlan) -> String {
    let RingPlan { entries, stride, signal_blocks, signal_ns, .. } = ring;
    let because = ring.because();
    format!(
        "ring of {entries} entries of {stride} bytes, signal after {signal_blocks} blocks or {} \
         ({because})",
        nanoseconds(*signal_ns)
    )
}

/// A bound on the latency and its shares, in a sentence.
pub(super) fn latency(latency: &Latency, plan: &Plan, names: &[String]) -> String {
    let parts: Vec<String> = latency
        .holds
        .iter()
        .map(|holds| match holds {
            Holds::Source(id, ns) => {
                format!("ring of the kernel of {} {}", names[id.0], nanoseconds(*ns))
            }
            Holds::Edge(edge, ns) => {
                let edge = &plan.graph.edges[*edge];
                format!("{} → {} {}", names[edge.from.0], names[edge.to.0], nanoseconds(*ns))
            }
            Holds::Copies(copied, ns) => {
                let copied = &plan.copied[*copied];
                let filters = copied.nodes.iter().map(|id| names[id.0].as_str());
                let filters: Vec<&str> = filters.collect();
                format!("to and from copies of {} {}", filters.join(", "), nanoseconds(*ns))
            }
        })
        .collect();
    let asked = nanoseconds(latency.asked_ns);
    match parts.is_empty() {
        true => format!("{asked}: nothing on the way keeps blocks waiting"),
        false => format!("{asked} at most: {}", parts.join(", ")),
    }
}

/// The names of the spaces of copies.
pub(super) fn spaces(plan: &Plan, copied: &Copied) -> Vec<String> {
    copied.spaces.iter().map(|space| plan.spaces[*space].name.clone()).collect()
}

/// Describes an edge to or from replicas.
pub(super) fn border(border: Option<(&Copied, bool)>) -> String {
    match border {
        Some((copied, true)) => format!("shared out among {} copies", copied.spaces.len()),
        Some((copied, false)) => {
            format!("call from where {} copies are joined", copied.spaces.len())
        }
        None => String::new(),
    }
}

/// Describes replicas and the reason for them in a sentence.
pub(super) fn copied(copied: &Copied, plan: &Plan, names: &[String]) -> String {
    let filters: Vec<&str> = copied.nodes.iter().map(|id| names[id.0].as_str()).collect();
    let first = spaces(plan, copied).into_iter().next().unwrap_or_default();
    let stays = match copied.sharing {
        None => "a batch goes to the copy with least to do",
        Some(Sharing::Flow) => "a connection stays with its copy, both ways",
        Some(Sharing::Addresses) => "what two addresses exchange stays with one copy",
        Some(Sharing::Session) => "a session stays with its copy",
    };
    format!(
        "{}: {}; shared out in {first}: {stays}; joined in {} in the order in which it came; {} to \
         and from each",
        filters.join(" → "),
        copied.because,
        plan.spaces[copied.join].name,
        ring(&copied.ring),
    )
}

/// Describes a ring out of the kernel in a sentence.
pub(super) fn kernel_ring(ring: &RingPlan, plan: &Plan, edge: usize) -> String {
    let RingPlan { entries, signal_blocks, signal_ns, .. } = ring;
    let because = ring.because();
    let program = plan.programs.iter().find(|program| program.leaves(edge));
    if program.is_some_and(|program| program.attach.takes) {
        return "the rings of sockets of AF_XDP, one for each queue: frames stay where the driver \
                put them"
            .to_owned();
    }
    let apart = program.map_or(0, |program| program.ring.apart_ns);
    let frames = match Share::asked(&plan.graph) {
        Share::User => "the frames".to_owned(),
        Share::Group(name) => format!("frames that all of group {name} who say so can read"),
        Share::World => "frames that all who say so can read".to_owned(),
    };
    format!(
        "ring of {entries} pointers per processor, beside {frames}; bell after {signal_blocks} \
         blocks, {} apart, or {} ({because})",
        nanoseconds(apart),
        nanoseconds(*signal_ns)
    )
}

/// Describes a program's attachment and output in a sentence.
pub(super) fn program(program: &Program, plan: &Plan) -> String {
    let attach = &program.attach;
    let way = match (attach.own, attach.side) {
        (true, _) => "exchanged by the user's own sockets",
        (false, Side::Received) => "received by",
        (false, Side::Sent) => "sent by",
    };
    let what = if attach.takes { "takes" } else { "observes" };
    let interface = match attach.own {
        true => String::new(),
        false => format!(" {}", quoted(attach.interface.as_bytes())),
    };
    let netns = attach.netns.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
    let steps = counted(program.steps.len() as u64, "filter");
    let mut readers: Vec<&str> = Vec::new();
    for source in &program.sources {
        let reader = plan.spaces[plan.placed[source.0].leaves].name.as_str();
        readers.extend((!readers.contains(&reader)).then_some(reader));
    }
    let outlets = program.steps.iter().flat_map(|step| step.nodes.first()).filter_map(|node| {
        let used = plan.graph.node(*node).filter()?;
        Some(quoted(used.outlet()?.interface.as_bytes()))
    });
    let outlets: Vec<String> = outlets.collect();
    let frames = if attach.takes { "frames leave" } else { "copies leave" };
    let sent = match outlets.as_slice() {
        [] => String::new(),
        all => format!("; {frames} by {}", all.join(" and ")),
    };
    let how = if attach.takes { "led to a socket" } else { "copied once" };
    let copied = match program.leaves.len() {
        0 => "nothing leaves it".to_owned(),
        1 => format!("what leaves it is {how}, over one edge"),
        n => format!("what leaves it is {how}, over {n} edges"),
    };
    format!(
        "program in the kernel: {what} what is {way}{interface}{netns}, {steps}{sent}; {copied}; \
         what it is unsure of is decided in {}",
        readers.join(", ")
    )
}

/// Says in a sentence that a filter is asked ahead.
pub(super) fn asked(filter: &str, sources: &[&str], except: Option<&str>) -> String {
    let filters = if sources.len() == 1 { "filter" } else { "filters" };
    let mut text = format!(
        "{filter}: runs in the kernel too, as the socket {filters} of {}: what it refuses never \
         enters the ring",
        sources.join(" and ")
    );
    if let Some(except) = except {
        let _ = write!(text, "; {except}");
    }
    text
}

/// Says in a sentence that a source asks nothing ahead, and why.
pub(super) fn not_asked(source: &str, why: &str) -> String {
    format!("{source}: takes every frame from the kernel: {why}")
}

/// Describes a pipe of a process: out of it, into it, or both.
pub(super) fn pipe(out: bool, into: bool, thread: &str) -> String {
    match (out, into) {
        (true, true) => format!("two pipes, with {thread} between them"),
        (true, false) => {
            "pipe: bytes in blocks of up to 64 KB, each as soon as anything is there".to_owned()
        }
        (false, _) => "pipe: the bytes in view, one block behind the other".to_owned(),
    }
}

/// Describes the rings of a sandbox: out of it, into it, or both.
pub(super) fn apart(out: bool, into: bool, both: bool) -> String {
    let what = match (out, into) {
        (true, false) => "ring that its process writes: every block is copied out and checked",
        (false, true) => "ring that its process can only read: blocks are copied in, with frames",
        _ => "two rings between strangers: every block is copied out, checked, and copied in",
    };
    if both { format!("{what}, by way of a thread") } else { what.to_owned() }
}

pub(super) const fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Cost => "cost",
        Policy::Deepest => "deepest",
    }
}

/// A number with a decimal only where it says something.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// A time that was measured or expected, in the unit in which it has up to four digits.
#[must_use]
pub fn spent(ns: f64) -> String {
    let units = [(1e7, 1e6, "ms"), (1e4, 1e3, "µs")];
    let (per, name) =
        units.iter().find(|(from, ..)| ns >= *from).map_or((1.0, "ns"), |unit| (unit.1, unit.2));
    format!("{} {name}", number(ns / per))
}

/// `1 block`, `2 blocks`.
pub(super) fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A number of bytes in the largest unit of 1,024 that divides it.
#[must_use]
pub fn bytes(n: u64) -> String {
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    let unit = units.into_iter().find(|(shift, _)| n >> shift > 0 && n.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{n} B"), |(shift, name)| format!("{} {name}", n >> shift))
}

/// A time in the largest unit that divides it.
#[must_use]
pub fn nanoseconds(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = units.into_iter().find(|(unit, _)| ns >= *unit && ns.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ns} ns"), |(unit, name)| format!("{} {name}", ns / unit))
}

/// A time that was measured, with three figures: `5.31 ms`.
#[must_use]
pub fn about(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| ns >= *unit) else {
        return format!("{ns} ns");
    };
    let (whole, rest) = (ns / unit, ns % unit * 1000 / unit);
    match whole {
        0..10 => format!("{whole}.{:02} {name}", rest / 10),
        10..100 => format!("{whole}.{} {name}", rest / 100),
        _ => format!("{whole} {name}"),
    }
}

/// The ns that a text like `250ms` means, as everywhere in a request.
pub fn time(text: &str) -> Result<u64, String> {
    match Parameter::needed("time", Type::Duration, "").parse(text) {
        Ok(Value::Number(ns)) => Ok(ns),
        Ok(_) => Err(format!("`{text}` is not a time")),
        Err(mistake) => Err(mistake.to_string()),
    }
}

/// The bytes that a text like `64M` means, as everywhere in a request.
pub fn size(text: &str) -> Result<u64, String> {
    match Parameter::needed("size", Type::SIZE, "").parse(text) {
        Ok(Value::Number(bytes)) => Ok(bytes),
        Ok(_) => Err(format!("`{text}` is not a size")),
        Err(mistake) => Err(mistake.to_string()),
    }
}

/// Returns true if a parameter is a file name.
#[must_use]
pub fn is_path(parameter: &Parameter) -> bool {
    parameter.kind == Type::Path
}

/// Writes a paragraph, indented by one column, broken between words.
pub(super) fn wrapped(out: &mut String, text: &str, columns: usize) {
    for (number, line) in super::table::wrap(text, columns.min(COLUMNS) - 3).iter().enumerate() {
        let indent = if number == 0 { " " } else { "   " };
        let _ = writeln!(out, "{indent}{line}");
    }
}
