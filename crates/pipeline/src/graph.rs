//! The graph of a request: what the checks make of the tree, and what the planner places.
//!
//! - A **node** is a filter with its checked arguments, a **composite** of filters that a Boolean
//!   section runs by sequence, or a **merge**, the `++` of different sources. Nodes stand in the
//!   order of the text; the filters of a composite are nodes too (they can be pinned and count for
//!   themselves), with `inside` set and without edges. What `check` puts before an operand that
//!   needs streams comes last.
//! - An **edge** is an arc between two nodes, with the set of classes that it lets through, names
//!   resolved. A plain pipe is `ClassSet::plain()`. The label before a group has been intersected
//!   with the labels of its branches. A **back edge** closes a cycle (CONTRACT 17): without the
//!   back edges the graph has no cycle.
//! - A **join** says in which order a node takes what comes over several edges (CONTRACT 16): by
//!   the block at the fork from which the branches come, and for one such block in the order of the
//!   branches.
//! - Two uses of one mark are one node. Filters with several outgoing edges give a copy to each.
//!
//! Heads are sources, sources are heads, nothing follows a sink. An end need not be a sink; the
//! caller decides what becomes of an open end. A graph is only meant to be placed if there was no
//! error: with errors it still is whole, with `Step::Unknown` where a filter is not known.
//! [SL §4.2, §7]

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use filter::{
    Arguments, Attach, Description, Effect, EndpointFacts, Form, Kind, Outlet, STATE, UNTRUSTED,
};

use crate::classes::ClassSet;
use crate::language::Span;

/// A checked request.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The text that was read, as whoever reads it again needs it: with what was asked of the
    /// machine while it was read. Empty, if none was.
    pub text: Arc<str>,
    /// Answers of the machine, each with the byte of the text after which it belongs.
    pub settled: Vec<(usize, String)>,
    /// The nodes, in the order of the text.
    pub nodes: Vec<Node>,
    /// The edges; those that come to one node are in the order of the text.
    pub edges: Vec<Edge>,
    /// Nodes where branches meet.
    pub joins: Vec<Join>,
    /// The request's options, as given and checked, without defaults.
    pub options: Arguments,
}

/// The place of a node in `Graph::nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// The place of an edge in `Graph::edges`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(pub usize);

/// One step of a request.
#[derive(Debug, Clone)]
pub struct Node {
    /// The work of the node.
    pub step: Step,
    /// The place in the request; of a marked node, the first one.
    pub span: Span,
    /// The composite that runs this node.
    pub inside: Option<NodeId>,
    /// The forms that may come in.
    pub comes: Vec<Form>,
    /// The nodes that gave the class with which a block comes in: the nearest upstream that have
    /// classes. Empty if only sources are upstream.
    pub classifiers: Vec<NodeId>,
}

/// The work of a node.
#[derive(Debug, Clone)]
pub enum Step {
    /// Runs a filter, source or sink.
    Filter(Box<Use>),
    /// Runs filters by sequence (CONTRACT 10) and passes the block on as it came, with the class of
    /// the last operand that answered.
    Boolean(Boolean),
    /// Merges streams of sources that have no block in common. Branches that begin at one source
    /// are a composite behind it.
    Merge,
    /// A filter that is missing or not known; only beside an error.
    Unknown,
}

/// A filter as a request uses it.
#[derive(Debug, Clone)]
pub struct Use {
    /// The filter, source or sink.
    pub description: &'static Description,
    /// The facts about it as a source, sink or program.
    pub endpoint: &'static EndpointFacts,
    /// Its arguments, checked, defaults included.
    pub arguments: Arguments,
    /// The space that the request wants.
    pub pin: Option<String>,
    /// The obstacle that keeps it in that space, unless the request does.
    pub only: Option<&'static str>,
    /// The name that the request gives it.
    pub mark: Option<String>,
    /// True if the request says so in several places: of a mark, and of a source of which `++`
    /// unites branches.
    pub again: bool,
}

impl Use {
    /// Returns the reason why it is bound to one space, if it is.
    #[must_use]
    pub fn bound(&self) -> Option<String> {
        let pin = self.pin.as_ref()?;
        Some(self.only.map_or_else(|| format!("pinned to {pin}"), str::to_owned))
    }

    /// The name as people read it: `tcp`, `tcp#X`.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.mark {
            Some(mark) => format!("{}#{mark}", self.description.name),
            None => self.description.name.to_owned(),
        }
    }

    /// Returns true if it is a sink.
    #[must_use]
    pub fn is_sink(&self) -> bool {
        self.description.kind == Kind::Sink
    }

    /// Returns its effect with these arguments: kind, forms given, depth read.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.description.effect_of(&self.arguments)
    }

    /// Returns where a program in the kernel gives what this source gives, or why none does.
    #[must_use]
    pub fn attach(&self) -> Option<Result<Attach, String>> {
        self.endpoint.attaches.map(|attaches| attaches(&self.arguments))
    }

    /// Returns the interface by which this sink sends frames, where a program can do that.
    #[must_use]
    pub fn outlet(&self) -> Option<Outlet> {
        self.endpoint.outlet.map(|outlet| outlet(&self.arguments))
    }

    /// Returns true if it is to run in a sandbox (`untrusted=yes`).
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        self.description.user.is_some() && self.arguments.flag(UNTRUSTED.name)
    }

    /// Returns true if the other one is the same filter with the same arguments, in a sandbox or
    /// not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        fn said(used: &Use) -> Vec<(&'static str, &filter::Value)> {
            used.arguments.iter().filter(|(name, _)| *name != UNTRUSTED.name).collect()
        }
        match self.is_untrusted() == other.is_untrusted() {
            true => self.arguments == other.arguments,
            false => said(self) == said(other),
        }
    }

    /// Returns the name under which it publishes its state (`state=NAME`).
    #[must_use]
    pub fn published_as(&self) -> Option<&str> {
        self.description.user.and_then(|_| self.arguments.text(STATE.name))
    }

    /// Returns true if it runs in a process of its own: a program, or an untrusted filter.
    #[must_use]
    pub fn is_process(&self) -> bool {
        self.endpoint.process || self.is_untrusted()
    }
}

/// The inside of a composite. `L` is what stands on its arcs: in a graph, sets of classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boolean<L = ClassSet> {
    /// A filter, which is `inside` the composite.
    Filter(NodeId),
    /// `a | b`: what the last answers on what the ones before let through.
    Chain {
        /// The first operand.
        first: Box<Self>,
        /// The next ones, each with the classes of the one before that lead to it.
        rest: Vec<Link<L>>,
    },
    /// `a ++ b`: a, and b on what a answered 0.
    Any(Vec<Link<L>>),
    /// `a +* b`: a, then b on what a answered. Of nothing: every block is answered.
    All(Vec<Link<L>>),
    /// `!a`: what a answered 0.
    Not(Box<Self>),
}

impl<L> Boolean<L> {
    /// Returns true if an operand is part of this; adds to `before` the operands of chains that
    /// blocks meet first.
    pub(crate) fn chained_before(&self, operand: NodeId, before: &mut Vec<NodeId>) -> bool {
        match self {
            Self::Filter(id) => *id == operand,
            Self::Not(inner) => inner.chained_before(operand, before),
            Self::Any(links) | Self::All(links) => {
                links.iter().any(|link| link.body.chained_before(operand, before))
            }
            Self::Chain { first, rest } => {
                let mut parts = std::iter::once(&**first).chain(rest.iter().map(|link| &link.body));
                let mut passed = Vec::new();
                let found = parts.any(|part| {
                    let here = part.chained_before(operand, before);
                    if !here {
                        part.operands(&mut passed);
                    }
                    here
                });
                before.extend(passed.into_iter().filter(|_| found));
                found
            }
        }
    }

    /// Adds all operands.
    fn operands(&self, found: &mut Vec<NodeId>) {
        match self {
            Self::Filter(id) => found.push(*id),
            Self::Not(inner) => inner.operands(found),
            Self::Any(links) | Self::All(links) => {
                links.iter().for_each(|link| link.body.operands(found));
            }
            Self::Chain { first, rest } => {
                first.operands(found);
                rest.iter().for_each(|link| link.body.operands(found));
            }
        }
    }
}

impl Boolean {
    /// Puts a filter before an operand: what it answers comes to it.
    pub(crate) fn put_before(&mut self, operand: NodeId, first: NodeId) {
        match self {
            Self::Filter(id) if *id == operand => {
                let rest = vec![Link { classes: ClassSet::plain(), body: Self::Filter(operand) }];
                *self = Self::Chain { first: Box::new(Self::Filter(first)), rest };
            }
            Self::Filter(_) => {}
            Self::Not(inner) => inner.put_before(operand, first),
            Self::Any(links) | Self::All(links) => {
                links.iter_mut().for_each(|link| link.body.put_before(operand, first));
            }
            Self::Chain { first: body, rest } => {
                body.put_before(operand, first);
                rest.iter_mut().for_each(|link| link.body.put_before(operand, first));
            }
        }
    }
}

/// A part of a composite, and the classes for which it is asked.
///
/// In a chain they are those that the part before answered; in `Any` and `All` those with which the
/// block came into the composite (everything, if there is no label), and for other classes the part
/// answers 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link<L = ClassSet> {
    /// The classes.
    pub classes: L,
    /// The part.
    pub body: Boolean<L>,
}

/// An arc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The node that gives the blocks.
    pub from: NodeId,
    /// The node that takes them.
    pub to: NodeId,
    /// The classes that pass.
    pub classes: ClassSet,
    /// The pipe in the request.
    pub span: Span,
    /// It closes a cycle.
    pub back: bool,
}

/// A node at which branches meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The node.
    pub node: NodeId,
    /// The order in which it takes what comes.
    pub order: Order,
}

/// The order of what comes over several edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// As it comes over one edge.
    Edge(EdgeId),
    /// In the order at the forks; blocks made of one block at a fork, in the order of the branches.
    Split {
        /// The nodes whose blocks all branches get; none if the branches begin with sources, whose
        /// blocks have no order but that of time.
        forks: Vec<NodeId>,
        /// The branches, in the order of the text.
        branches: Vec<Self>,
    },
}

impl Graph {
    /// The node of this id.
    ///
    /// # Panics
    /// If the id is of another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// All ids with their nodes.
    pub fn ids(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index), node))
    }

    /// The edges that come to a node, in the order of the text.
    pub fn inputs(&self, to: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.to == to)
    }

    /// The edges that leave a node, in the order of the text.
    pub fn outputs(&self, from: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == from)
    }

    /// The nodes at which the graph begins: the sources.
    pub fn heads(&self) -> Vec<NodeId> {
        self.outer(|id| !self.inputs(id).any(|edge| !edge.back))
    }

    /// The nodes that nothing follows: sinks, and filters whose result nobody takes.
    pub fn ends(&self) -> Vec<NodeId> {
        self.outer(|id| self.outputs(id).next().is_none())
    }

    fn outer(&self, wanted: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.ids()
            .filter(|(id, node)| node.inside.is_none() && wanted(*id))
            .map(|(id, _)| id)
            .collect()
    }
}

impl Node {
    /// The filter that the node runs; none for a composite, a merge or an unknown one.
    pub fn filter(&self) -> Option<&Use> {
        match &self.step {
            Step::Filter(filter) => Some(filter),
            Step::Boolean(_) | Step::Merge | Step::Unknown => None,
        }
    }

    /// The name by which messages call the node.
    pub fn name(&self) -> &str {
        match &self.step {
            Step::Filter(filter) => filter.description.name,
            Step::Boolean(_) => "boolean",
            Step::Merge => "merge",
            Step::Unknown => "?",
        }
    }

    /// Returns true if the node runs in a process of its own: a program, or an untrusted filter.
    pub fn is_process(&self) -> bool {
        self.filter().is_some_and(Use::is_process)
    }

    /// Returns true if the node is an untrusted filter.
    pub fn is_untrusted(&self) -> bool {
        self.filter().is_some_and(Use::is_untrusted)
    }

    /// The kind of the filter that the node runs.
    pub fn kind(&self) -> Option<Kind> {
        self.filter().map(|filter| filter.effect().kind)
    }
}

impl Display for Graph {
    /// One line per node, edge and join, for tests and for people who look for a mistake of ours:
    /// `2 dport @kernel`, `1 > 2`, `2 >{22} 3`, `3 <{22} 1` (back), `4 takes (2, 3) by 1`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (id, node) in self.ids() {
            write!(f, "{} {}", id.0, Named(node))?;
            if let Some(owner) = node.inside {
                write!(f, " inside {}", owner.0)?;
            }
            writeln!(f)?;
        }
        for edge in &self.edges {
            let (from, to, arrow) = (edge.from.0, edge.to.0, if edge.back { "<" } else { ">" });
            match edge.classes.is_plain() {
                true => writeln!(f, "{from} {arrow} {to}")?,
                false => writeln!(f, "{from} {arrow}{{{}}} {to}", edge.classes)?,
            }
        }
        for join in &self.joins {
            write!(f, "{} takes ", join.node.0)?;
            write_order(f, &join.order, self)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

struct Named<'g>(&'g Node);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0.step {
            Step::Boolean(body) => write_boolean(f, body),
            Step::Filter(filter) => {
                f.write_str(filter.description.name)?;
                for (name, value) in filter.arguments.iter() {
                    match value {
                        filter::Value::Number(number) => write!(f, " {name}={number}")?,
                        filter::Value::Flag(flag) => write!(f, " {name}={flag}")?,
                        filter::Value::Text(text) => write!(f, " {name}={text:?}")?,
                        filter::Value::Bytes(bytes) => {
                            write!(f, " {name}=\"{}\"", bytes.escape_ascii())?;
                        }
                    }
                }
                filter.mark.iter().try_for_each(|mark| write!(f, " #{mark}"))?;
                filter.pin.iter().try_for_each(|pin| write!(f, " @{pin}"))
            }
            Step::Merge | Step::Unknown => f.write_str(self.0.name()),
        }
    }
}

fn write_boolean(f: &mut Formatter<'_>, body: &Boolean) -> fmt::Result {
    let list = |f: &mut Formatter<'_>, links: &[Link], symbol: &str| {
        f.write_str("(")?;
        for (index, link) in links.iter().enumerate() {
            if index > 0 {
                write!(f, " {symbol} ")?;
            }
            if !link.classes.is_all() {
                write!(f, "{{{}}}", link.classes)?;
            }
            write_boolean(f, &link.body)?;
        }
        f.write_str(")")
    };
    match body {
        Boolean::Filter(id) => write!(f, "{}", id.0),
        Boolean::Any(links) => list(f, links, "++"),
        Boolean::All(links) => list(f, links, "+*"),
        Boolean::Not(inner) => {
            f.write_str("!")?;
            write_boolean(f, inner)
        }
        Boolean::Chain { first, rest } => {
            f.write_str("[")?;
            write_boolean(f, first)?;
            for link in rest {
                match link.classes.is_plain() {
                    true => f.write_str(" > ")?,
                    false => write!(f, " >{{{}}} ", link.classes)?,
                }
                write_boolean(f, &link.body)?;
            }
            f.write_str("]")
        }
    }
}

fn write_order(f: &mut Formatter<'_>, order: &Order, graph: &Graph) -> fmt::Result {
    match order {
        Order::Edge(edge) => write!(f, "{}", graph.edges.get(edge.0).map_or(0, |edge| edge.from.0)),
        Order::Split { forks, branches } => {
            f.write_str("(")?;
            for (index, branch) in branches.iter().enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                write_order(f, branch, graph)?;
            }
            f.write_str(")")?;
            let forks: Vec<String> = forks.iter().map(|fork| fork.0.to_string()).collect();
            match forks.is_empty() {
                true => f.write_str(" by time"),
                false => write!(f, " by {}", forks.join(",")),
            }
        }
    }
}
