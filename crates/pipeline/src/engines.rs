//! Engines: a whole request once for each of several processors, each in a process of its own,
//! which takes its share of the sessions. [Par §V-B]
//!
//! In: a request with `--engines=`. Out: why it cannot be run so, and else the request of each
//! engine. That is an ordinary line: each source is followed by `shard 1 of=2 by=flow`, and what
//! writes into a folder has one of its own: `out.engine1`. So whatever runs, explains or changes a
//! line does it to that of an engine, and nothing but whoever starts them knows that there are
//! several.
//!
//! Sessions are what the filters of the request tell apart. All blocks of one go to one engine,
//! both ways: by addresses and ports, or by the addresses alone where a filter joins fragments,
//! which have no ports (as copies do: `plan/copies.rs`).

use crate::edit::{Misfit, chain, each, fragment, tree, walk};
use crate::explain::is_path;
use crate::graph::{Graph, Node, NodeId, Step, Use};
use crate::language::tree::{Pipeline, Term};
use crate::language::{Diagnostic, Span};
use filter::sharing::Sharing;
use filter::{Form, Gives, Keeps, Kind, STATE, Several};

/// The name of the option.
pub(crate) const OPTION: &str = "engines";
/// The most engines.
pub const ENGINES_MAX: u64 = 64;

/// Returns the number of worker processes that a request asks for on a machine with this many
/// processors; `None` if it asks for none.
#[must_use]
pub fn wanted(graph: &Graph, processors: usize) -> Option<u32> {
    let most = u32::try_from(ENGINES_MAX).unwrap_or(1);
    match graph.options.text(OPTION)? {
        "auto" => Some(u32::try_from(processors).unwrap_or(most).clamp(1, most)),
        number => number.parse().ok(),
    }
}

/// Returns true if the text is a value of `--engines=`.
pub(crate) fn is_wish(text: &str) -> bool {
    text == "auto" || text.parse().is_ok_and(|number: u64| (1..=ENGINES_MAX).contains(&number))
}

/// Returns the reasons why a request cannot run in worker processes.
pub(crate) fn mistakes(graph: &Graph) -> Vec<Diagnostic> {
    if graph.options.get(OPTION).is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    if !matches!(graph.options.text("parallel"), None | Some("no")) {
        let first = graph.nodes.first().map_or_else(Span::default, |node| node.span);
        let what = "`--engines` already runs everything once per processor: no copies beside it";
        found.push(Diagnostic::error(first, what).hint("leave `--parallel` out"));
    }
    for (id, node) in graph.ids() {
        let Step::Filter(used) = &node.step else { continue };
        if let Err(why) = fits(graph, id, node, used) {
            let name = used.description.name;
            let what = format!("several engines cannot run `{name}`: {}", why.0);
            found.push(Diagnostic::error(node.span, what).hint(why.1));
        }
    }
    found
}

/// A reason, and a remedy.
struct Why(String, String);

/// Checks that several worker processes can each run this node.
fn fits(graph: &Graph, id: NodeId, node: &Node, used: &Use) -> Result<(), Why> {
    let instead = |why: String| Why(why, Several::LEAVE.to_owned());
    let description = used.description;
    if let Several::Not(why, hint) = description.several_of(&used.arguments) {
        return Err(Why(why.to_owned(), hint.to_owned()));
    }
    if used.arguments.get(STATE.name).is_some() {
        let why = "what it knows would be in several places under one name";
        let hint = format!("leave `{}` out, or `--engines`", STATE.name);
        return Err(Why(why.to_owned(), hint));
    }
    let is_input = || {
        let mut paths = description.parameters.iter().filter(|parameter| is_path(parameter));
        paths.any(|parameter| used.arguments.text(parameter.name) == Some("-"))
    };
    match description.kind {
        Kind::Source => source(graph, id, used, is_input()),
        Kind::Sink => sink(used),
        _ if description.several_of(&used.arguments) == Several::Sums => Ok(()),
        _ => match description.state.keeps {
            Keeps::Nothing => Ok(()),
            Keeps::Private => {
                Err(instead("what it keeps is of all blocks, whichever session".into()))
            }
            Keeps::Pinned(why) => Err(instead(why.to_owned())),
            Keeps::Sessions => session(graph, id, node).map_err(instead),
        },
    }
}

fn source(graph: &Graph, id: NodeId, used: &Use, is_input: bool) -> Result<(), Why> {
    let framed = matches!(used.effect().gives, Gives::Form(Form::Frame | Form::Packet));
    let takes = used.attach().and_then(Result::ok);
    if is_input {
        let hint = "write it into a file first, and name that".to_owned();
        return Err(Why("standard input can be read by one process".to_owned(), hint));
    }
    if !framed {
        let why = "what it gives has no addresses by which sessions are told apart";
        return Err(Why(why.to_owned(), Several::LEAVE.to_owned()));
    }
    if takes.is_some_and(|attach| attach.takes) {
        let why = "the first one that takes a packet from the host has taken it from the others";
        let hint = "observe them (leave `take` out), or leave `--engines` out";
        return Err(Why(why.to_owned(), hint.to_owned()));
    }
    if used.mark.is_some() {
        let why = "it has a mark, so it may stand in several places";
        return Err(Why(why.to_owned(), "leave `--name=` out".to_owned()));
    }
    if used.again {
        let why =
            "`++` begins with it several times, and it is followed once by what shares it out";
        let hint = format!("write it once: `{} … | (… ++ …)`", used.description.name);
        return Err(Why(why.to_owned(), hint));
    }
    match graph.outputs(id).all(|edge| edge.classes.is_plain()) {
        true => Ok(()),
        false => {
            let why = "its blocks are shared out before a class is asked for, and have none";
            Err(Why(why.to_owned(), "write a plain `|` behind it".to_owned()))
        }
    }
}

/// A sink that writes one file in order cannot have several writers.
fn sink(used: &Use) -> Result<(), Why> {
    if let Several::Folder(_) = used.description.several_of(&used.arguments) {
        return Ok(());
    }
    let file = used.description.parameters.iter().filter(|parameter| is_path(parameter));
    let mut file = file.filter_map(|parameter| used.arguments.text(parameter.name));
    match file.find(|name| *name != "-") {
        None => Ok(()),
        Some(_) => {
            let why = "engines have no order among each other in which one file could be written";
            let hint = "let each session have its own (`files DIR`), write to standard output, or \
                        leave `--engines` out: `--parallel=N` keeps the order of all";
            Err(Why(why.to_owned(), hint.to_owned()))
        }
    }
}

/// Checks that the sessions of a filter are those by which blocks are distributed.
fn session(graph: &Graph, id: NodeId, node: &Node) -> Result<(), String> {
    let sessions_of =
        |id: &NodeId| graph.node(*id).filter().and_then(|used| used.description.state.sharing);
    let before = before(graph, id);
    let Some(description) = node.filter().map(|used| used.description) else { return Ok(()) };
    if description.state.sharing.is_none() {
        let alone = description.state.keeps_alone == Keeps::Nothing;
        return match alone || before.iter().any(|id| sessions_of(id).is_some()) {
            true => Ok(()),
            false => Err("nothing before it tells sessions apart".to_owned()),
        };
    }
    let changes =
        |id: &&NodeId| sessions_of(id).is_none() && graph.node(**id).kind() == Some(Kind::Editing);
    match before.iter().find(changes) {
        None => Ok(()),
        Some(other) => {
            let other = graph.node(*other).name();
            Err(format!("`{other}` changes blocks before it has told their sessions apart"))
        }
    }
}

/// All nodes before one; of an operand those before its section, and those before it in a chain.
fn before(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut found = vec![id];
    if let Some(owner) = graph.node(id).inside {
        if let Step::Boolean(body) = &graph.node(owner).step {
            body.chained_before(id, &mut found);
        }
        found.push(owner);
    }
    let mut at = 0;
    while let Some(here) = found.get(at).copied() {
        for edge in graph.inputs(here) {
            if !found.contains(&edge.from) {
                found.push(edge.from);
            }
        }
        at += 1;
    }
    found.remove(0);
    found
}

/// Returns the key by which blocks are distributed among worker processes.
#[must_use]
pub fn shared_by(graph: &Graph) -> Sharing {
    let told = graph.ids().filter_map(|(_, node)| node.filter()?.description.state.sharing);
    match told.into_iter().any(|by| by == Sharing::Addresses) {
        true => Sharing::Addresses,
        false => Sharing::Flow,
    }
}

/// The line of one engine of so many, from 1 on.
pub fn line(graph: &Graph, number: u32, of: u32) -> Result<String, Misfit> {
    let mut request = tree(&graph.text, "the request")?;
    request.options.retain(|option| option.key.text != OPTION);
    let by = match shared_by(graph) {
        Sharing::Addresses => "addresses",
        Sharing::Flow | Sharing::Session => "flow",
    };
    let share = fragment(&format!("shard {number} of={of} by={by}"))?;
    for head in graph.heads() {
        let at = graph.node(head).span;
        let mut behind = |term| Some(chain(term, share.clone()));
        let pipelines = std::mem::take(&mut request.pipelines).into_iter();
        request.pipelines =
            pipelines.filter_map(|term| walk(term, at, &mut behind)).map(flat).collect();
    }
    for (_, node) in graph.ids() {
        let Some(used) = node.filter() else { continue };
        let Several::Folder(name) = used.description.several_of(&used.arguments) else { continue };
        let Some(folder) = used.arguments.text(name) else { continue };
        let own = format!("{}.engine{number}", folder.trim_end_matches('/'));
        let says = |text: &[u8]| text == folder.as_bytes();
        for term in &mut request.pipelines {
            each(term, &mut |written| {
                let arguments = written.arguments.iter_mut().filter(|_| written.span == node.span);
                let values = arguments.map(|argument| &mut argument.value);
                for value in values.filter(|value| says(&value.bytes)) {
                    value.bytes.clone_from(&own.clone().into_bytes());
                }
            });
        }
    }
    Ok(request.to_string())
}

/// A pipeline that begins with one is one.
fn flat(term: Term) -> Term {
    match term {
        Term::Pipeline(Pipeline { first, rest, span }) => match *first {
            Term::Pipeline(mut inner) => {
                inner.rest.extend(rest);
                Term::Pipeline(Pipeline { span, ..inner })
            }
            first => Term::Pipeline(Pipeline { first: Box::new(first), rest, span }),
        },
        other => other,
    }
}
