//! Another graph in a space that goes on: what stays keeps its nodes with all that they know, what
//! goes is finished, what is new comes in. [Th §5.4]
//!
//! Done between two passes, when no block is under way in the space. First what goes is
//! **retired**: from the sources to the sinks, every filter that goes lets out what it holds, along
//! the old arcs, and every sink that goes is finished. Then the new graph is **grafted**: nodes,
//! arcs and inputs of the new graph, in which what stays is put with its filter, its counters and
//! what it holds. Counters of arcs that stay go on; what is gone has counted for the last time, and
//! stays in the ledger.

use super::assemble::Assembly;
use super::memory::Memory;
use super::node::{Arc as Edge, EdgeDrops, Node, NodeId, Part};
use super::replica::Births;
use super::{GENERAL, Imported, Input, Space};
use crate::ledger::{DropReason, NodeName};
use crate::process;
use buffer::pool::Pool;
use endpoint::Seen;
use filter::{Amount, Filter, Gateway, Mistake, Moved, PRIVATE};
use std::collections::HashMap;

/// Identity of a node of a space, independent of its index: by the numbers that nodes and edges
/// keep for the lifetime of the path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// A node of the request; for a process, the input half.
    Node(usize),
    /// The half of the process of a node from which blocks come.
    Given(usize),
    /// The near side of the ring of this edge.
    Export(usize),
    /// The far side of the ring of this edge.
    Import(usize),
}

/// The new graph of a space.
#[derive(Debug, Default)]
pub struct Graft {
    /// Nodes and arcs; where something stays, a place is kept for it.
    pub assembly: Assembly,
    /// Nodes that stay, with their identities.
    pub kept: Vec<(NodeId, Key)>,
    /// Filters that are made anew and get what the old ones know.
    pub renewed: Vec<(Key, Filter)>,
    /// The inputs that are new; those of nodes that stay, stay.
    pub inputs: Vec<Input>,
    /// Memory for them: the first intake of theirs is the first of these.
    pub intakes: Vec<Pool>,
    /// The processor that the space is to stay on from now on.
    pub processor: Option<usize>,
}

/// An arc, wherever it stands: from, to, and the number of its edge.
type Between = (Key, Key, usize);
/// Amounts counted on both sides of an arc.
type OnArc = (Amount, EdgeDrops, Amount);

impl Space {
    /// Returns the identity of each node.
    pub fn keys(&self) -> Vec<Key> {
        keys(&self.graph.nodes, &self.inputs)
    }

    /// Lets what goes let out what it holds, along the arcs that there are, and ends it.
    pub fn retire(&mut self, stays: &dyn Fn(Key) -> bool) {
        let keys = self.keys();
        let now = self.retires_at();
        for i in 0..self.graph.shape.order.len() {
            let at = self.graph.shape.order[i];
            if stays(keys[at]) {
                continue;
            }
            let failed = self.graph.turn.failure.is_some();
            self.finish_node(at, now, failed);
        }
        // Copies that share work go with all that the others wait for.
        self.finish_part(true);
        (self.graph.turn.step, self.graph.turn.births) = (0, Births::default());
        self.note_retired();
    }

    /// Takes what lies in rings that go, and answers whether nothing more can come over them.
    pub fn empty_rings(&mut self, goes: &dyn Fn(Key) -> bool) -> bool {
        let mut emptied = true;
        for i in 0..self.inputs.len() {
            while let Input::Ring { import, ended: false, .. } = &self.inputs[i]
                && goes(Key::Import(import.planned))
                && self.graph.turn.failure.is_none()
            {
                let mut pass = super::Pass::default();
                self.import(i, &mut pass);
                if !pass.moved {
                    break;
                }
                self.moves();
            }
            match &self.inputs[i] {
                Input::Ring { import, ended, .. } => {
                    emptied &= *ended || !goes(Key::Import(import.planned));
                }
                // Copies go in any change.
                Input::Copy { .. } | Input::Join(_) => emptied &= self.empty_copies(i),
                Input::Source { .. } => {}
            }
        }
        emptied || self.graph.turn.failure.is_some()
    }

    /// Takes what copies that share work have to do or have done, and answers whether nothing more
    /// can come.
    fn empty_copies(&mut self, i: usize) -> bool {
        while self.graph.turn.failure.is_none() {
            let mut pass = super::Pass::default();
            match &self.inputs[i] {
                Input::Copy { ended: false, .. } => self.take_part(i, &mut pass),
                Input::Join(gather) if !gather.ended => self.gather(i, &mut pass),
                _ => return true,
            }
            if !pass.moved {
                break;
            }
        }
        match &self.inputs[i] {
            Input::Copy { ended, .. } => *ended,
            Input::Join(gather) => gather.ended,
            _ => true,
        }
    }

    /// Returns true if the rings to be removed have been drained. Their writers must be paused.
    pub fn has_taken(&mut self, goes: &dyn Fn(Key) -> bool) -> bool {
        self.inputs.iter_mut().all(|input| match input {
            Input::Ring { import, ended: false, .. } if goes(Key::Import(import.planned)) => {
                // What is wrong with a ring is told where it is read.
                import.waiting().is_ok_and(|waiting| waiting == 0)
            }
            _ => true,
        })
    }

    /// A half of the process of this number, if it stands here.
    pub fn half<H>(
        &mut self,
        number: usize,
        of: fn(&mut Node) -> Option<&mut H>,
    ) -> Option<&mut H> {
        self.graph.nodes.iter_mut().filter(|node| node.planned == number).find_map(of)
    }

    /// The source of this number that is asked here, and the memory that it fills.
    fn input_of(&self, number: usize) -> Option<(NodeId, usize)> {
        self.inputs.iter().find_map(|input| match input {
            Input::Source { node, intake } if self.graph.nodes[*node].planned == number => {
                Some((*node, *intake))
            }
            _ => None,
        })
    }

    /// Takes what has come from the process of this number, along the arcs that there are; answers
    /// whether more may come.
    pub fn pull_half(&mut self, number: usize) -> bool {
        let Some((at, intake)) = self.input_of(number) else { return false };
        loop {
            let mut pass = super::Pass::default();
            self.pull((at, intake), &mut pass);
            if !pass.moved || self.graph.turn.failure.is_some() {
                self.settle();
                return self.graph.turn.failure.is_none();
            }
        }
    }

    /// Returns the counts of the program output that stands for the source of this number, if it
    /// comes up here.
    pub fn taken_of(&mut self, first: usize) -> Option<Seen> {
        self.graph.nodes.iter().find_map(|node| match &node.part {
            Part::Source(part) if node.planned == first && part.properties.chooses_arc => {
                Some(part.source.seen())
            }
            _ => None,
        })
    }

    /// Takes what a program has handed over that runs no more, and answers whether that was all.
    pub fn pour_out(&mut self, first: usize) -> bool {
        let Some((at, intake)) = self.input_of(first) else { return true };
        loop {
            match &mut self.graph.nodes[at].part {
                Part::Source(part) if !part.ended => drop(part.source.stop()),
                _ => return true,
            }
            let mut pass = super::Pass::default();
            self.pull((at, intake), &mut pass);
            if self.graph.turn.failure.is_some() {
                return true;
            }
            if !pass.moved {
                // Who reads behind a ring may have memory to give back.
                self.settle();
                return !pass.open;
            }
        }
    }

    /// Takes what lies in rings, once.
    pub fn take_rings(&mut self) {
        for i in 0..self.inputs.len() {
            while matches!(&self.inputs[i], Input::Ring { ended: false, .. })
                && self.graph.turn.failure.is_none()
            {
                let mut pass = super::Pass::default();
                self.import(i, &mut pass);
                if !pass.moved {
                    break;
                }
            }
        }
        self.settle();
    }

    /// Returns the losses of sources so far: name, place, blocks.
    pub fn lost_by_sources(&self) -> Vec<(String, DropReason, u64)> {
        let mut all = Vec::new();
        for node in &self.graph.nodes {
            let Part::Source(part) = &node.part else { continue };
            let lost = part.source.seen().dropped.into_iter();
            let lost = lost.filter_map(|(place, blocks)| Some((place, blocks?)));
            all.extend(lost.map(|(place, blocks)| (node.name.to_string(), place, blocks)));
        }
        all
    }

    /// Gives a filter what its twin has kept in the kernel.
    pub fn learn(&mut self, number: usize, bytes: &[u8]) {
        let mut nodes = self.graph.nodes.iter_mut();
        let node = nodes.find(|node| node.planned == number && !node.away);
        if let Some(Node { part: Part::Filter(filter), holds, .. }) = node
            && let Some(state) = filter.state()
        {
            let moved = Moved { key: PRIVATE, bytes: bytes.to_vec(), held: Vec::new() };
            // Another layout: the twin exam would have found it.
            let put = state.put(moved, holds);
            debug_assert!(put.is_ok(), "{put:?}");
        }
    }

    /// Gives the filters that are made anew what the old ones know. Where one does not take it,
    /// everything is as before.
    pub fn renew(&mut self, renewed: &mut [(Key, Filter)]) -> Result<(), Mistake> {
        let keys = self.keys();
        for done in 0..renewed.len() {
            let (key, filter) = &mut renewed[done];
            let Some(at) = keys.iter().position(|other| other == key) else { continue };
            let Err(mistake) = exchange(&mut self.graph.nodes[at], filter) else { continue };
            for (key, filter) in &mut renewed[..done] {
                if let Some(at) = keys.iter().position(|other| other == key) {
                    // What was taken from it fits it.
                    let _ = exchange(&mut self.graph.nodes[at], filter);
                }
            }
            return Err(mistake);
        }
        Ok(())
    }

    /// Goes on with another graph. `arrived` has what stays and comes from other spaces.
    pub fn graft(&mut self, graft: Graft, arrived: &mut HashMap<Key, Node>) {
        let Graft { mut assembly, kept, mut inputs, intakes, processor, .. } = graft;
        self.processor = processor;
        let before = self.counted();
        let (old_keys, mut between) = (self.keys(), self.between());
        let key_of = |at: NodeId, arc: &Edge| (old_keys[at], old_keys[arc.to], arc.planned);
        let nodes = self.graph.nodes.iter().enumerate();
        let arcs: Vec<Vec<Between>> =
            nodes.map(|(at, node)| node.arcs.iter().map(|arc| key_of(at, arc)).collect()).collect();
        let old_names: Vec<NodeName> =
            self.graph.nodes.iter().map(|node| node.name.clone()).collect();
        let told: Vec<Key> = self
            .programs
            .inputs
            .iter()
            .filter(|(_, told)| *told)
            .map(|(at, _)| old_keys[*at])
            .collect();
        let mut old: Vec<Option<Node>> =
            std::mem::take(&mut self.graph.nodes).into_iter().map(Some).collect();
        let mut places: HashMap<Key, NodeId> = HashMap::new();
        for (local, key) in &kept {
            let here = |node: &Option<Node>| node.as_ref().is_some_and(|node| !node.away);
            let from = (0..old.len()).find(|at| old_keys[*at] == *key && here(&old[*at]));
            let comes = || {
                let node = arrived.remove(key)?;
                if matches!(node.part, Part::Source(_)) {
                    inputs.push(Input::Source { node: *local, intake: GENERAL });
                }
                Some(node)
            };
            if let Some(node) = from.and_then(|at| old[at].take()).or_else(comes) {
                places.insert(*key, *local);
                stay(&mut assembly.nodes_mut()[*local], node);
            }
        }
        let names: HashMap<NodeId, Key> =
            places.iter().map(|(key, local)| (*local, *key)).collect();
        carry(assembly.nodes_mut(), &names, &mut between);
        let gone = |at: NodeId, arc: usize| {
            arcs.get(at).and_then(|arcs| arcs.get(arc)).is_some_and(|arc| between.contains_key(arc))
        };
        let ended = |at: NodeId| old.get(at).and_then(Option::as_ref).is_some_and(|n| !n.away);
        self.retired.add(before, &ended, &gone);
        self.programs.gone.extend(old.into_iter().flatten().filter(|n| process::of(n).is_some()));
        (self.graph.nodes, self.graph.shape) = assembly.done();
        self.grafts += 1;
        self.take_inputs((&old_keys, &old_names), &places, inputs);
        self.graph.intakes.extend(intakes);
        let programs =
            (0..self.graph.nodes.len()).filter(|at| process::is_input(&self.graph.nodes[*at]));
        self.programs.inputs =
            programs.map(|at| (at, names.get(&at).is_some_and(|key| told.contains(key)))).collect();
        self.keep_taps();
        self.shows = self.shows();
        let (queue, post) = (self.queue(), self.post());
        for node in &mut self.graph.nodes {
            if let Part::Export(export) = &mut node.part {
                export.tells(std::sync::Arc::clone(&queue), post.clone());
            }
        }
    }

    /// Takes a node out that goes on elsewhere. What came to it here and went from it has been
    /// counted: it stays in the ledger of this space.
    pub fn take_out(&mut self, key: Key) -> Option<Node> {
        let at = self.keys().iter().position(|other| *other == key)?;
        let place = Node::new("", usize::MAX, Part::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        let place = &mut self.graph.nodes[at];
        // The arcs stay until the graft, which keeps what they counted.
        (place.name, place.planned) = (node.name.clone(), node.planned);
        place.arcs = std::mem::take(&mut node.arcs);
        place.taken = node.taken.clone();
        place.away = true;
        Some(node)
    }

    /// Copies what a node holds from the memory of the space from which it comes; answers how many
    /// blocks there was no room for.
    pub fn take_in(&mut self, node: &mut Node, from: &mut Self) -> u64 {
        let mut theirs =
            Memory { intakes: &from.graph.intakes, work: &from.graph.work, imported: &[] };
        let ours = Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let mut lost = 0;
        node.holds.relocate(|entry, pin| {
            let moved = ours.adopt(entry, theirs.frame(entry));
            theirs.unpin(pin);
            moved.unwrap_or_else(|| {
                lost += 1;
                (*entry, pin)
            })
        });
        lost
    }

    /// The inputs of what stays, and the new ones.
    fn take_inputs(
        &mut self,
        (old_keys, old_names): (&[Key], &[NodeName]),
        places: &HashMap<Key, NodeId>,
        new: Vec<Input>,
    ) {
        let old = std::mem::take(&mut self.inputs);
        for mut input in old {
            let over = |node: NodeId, import: &crate::ring::Import| Imported {
                planned: import.planned,
                node: usize::MAX,
                name: old_names[node].clone(),
                taken: import.taken(),
            };
            let node = match &mut input {
                Input::Source { node, .. } | Input::Ring { node, .. } => node,
                // Copies go in any change.
                Input::Copy { node, import, .. } => {
                    self.retired.over(over(*node, import));
                    continue;
                }
                Input::Join(gather) => {
                    let all = gather.imports().map(|(node, import)| over(node, import));
                    all.for_each(|imported| self.retired.over(imported));
                    continue;
                }
            };
            match places.get(&old_keys[*node]) {
                Some(local) => {
                    *node = *local;
                    self.inputs.push(input);
                }
                None => {
                    if let Input::Ring { node, import, .. } = &input {
                        self.retired.over(over(*node, import));
                    }
                }
            }
        }
        let first = self.graph.intakes.len();
        self.inputs.extend(new.into_iter().map(|input| match input {
            Input::Source { node, intake } if intake != GENERAL => {
                Input::Source { node, intake: first + intake - 1 }
            }
            other => other,
        }));
    }

    /// Returns the counters of every arc.
    fn between(&self) -> HashMap<Between, OnArc> {
        let keys = self.keys();
        let mut all = HashMap::new();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            for Edge { to, branch, planned, put, dropped, .. } in &node.arcs {
                let taken = self.graph.nodes[*to].taken[*branch];
                all.insert((keys[at], keys[*to], *planned), (*put, *dropped, taken));
            }
        }
        all
    }
}

/// Returns the identity of each of these nodes.
pub fn keys(nodes: &[Node], inputs: &[Input]) -> Vec<Key> {
    let import = |at: NodeId| {
        inputs.iter().find_map(|input| match input {
            Input::Ring { node, import, .. } if *node == at => Some(Key::Import(import.planned)),
            _ => None,
        })
    };
    let key = |(at, node): (NodeId, &Node)| match &node.part {
        Part::Source(_) if process::of(node).is_some_and(|program| !program.is_head()) => {
            Key::Given(node.planned)
        }
        Part::Export(export) => Key::Export(export.planned),
        _ => import(at).unwrap_or(Key::Node(node.planned)),
    };
    nodes.iter().enumerate().map(key).collect()
}

/// Puts what stays into the place that was kept for it.
fn stay(place: &mut Node, old: Node) {
    let taken = old.taken_in_all();
    // A section is the way in which its operands are called: those stay.
    match (&mut place.part, old.part) {
        (Part::Asks(section), Part::Asks(old)) => section.take_over(*old),
        (Part::Section(_) | Part::Asks(_), _) => {}
        (part, old) => *part = old,
    }
    if matches!(place.part, Part::Export(_)) {
        // What leads to it may be new; what it counted is not.
        place.planned = old.planned;
    }
    place.flow = old.flow;
    place.counts = old.counts;
    place.holds = old.holds;
    place.wake = old.wake;
    place.reasons = old.reasons;
    place.counters = old.counters;
    place.shown = old.shown;
    place.taken_before = taken;
}

/// Has the arcs that stay go on counting where they were.
fn carry(nodes: &mut [Node], names: &HashMap<NodeId, Key>, between: &mut HashMap<Between, OnArc>) {
    for at in 0..nodes.len() {
        let Some(from) = names.get(&at) else { continue };
        for arc in 0..nodes[at].arcs.len() {
            let Edge { to, branch, planned, .. } = nodes[at].arcs[arc];
            let Some(target) = names.get(&to) else { continue };
            let Some((put, dropped, taken)) = between.remove(&(*from, *target, planned)) else {
                continue;
            };
            let arc = &mut nodes[at].arcs[arc];
            (arc.put, arc.dropped) = (put, dropped);
            nodes[to].taken[branch] = taken;
            let before = &mut nodes[to].taken_before;
            before.blocks -= taken.blocks;
            before.bytes -= taken.bytes;
        }
    }
}

/// Puts a new filter in the place of the old one, with all sessions of it; the old one is what
/// `filter` then is. Where a session does not fit, all are where they were.
fn exchange(node: &mut Node, filter: &mut Filter) -> Result<(), Mistake> {
    let Part::Filter(old) = &mut node.part else { return Ok(()) };
    let holds = &mut node.holds;
    let sessions = old.state().map(|state| state.sessions()).unwrap_or_default();
    for (done, key) in sessions.iter().enumerate() {
        let Some(moved) = old.state().and_then(|state| state.take(*key, holds)) else { continue };
        let copy = moved.clone();
        let put = match filter.state() {
            Some(state) => state.put(moved, holds),
            None => Err(Mistake {
                parameter: None,
                which: 0,
                at: None,
                what: "the new filter keeps no state".to_owned(),
                hint: None,
            }),
        };
        let Err(mistake) = put else { continue };
        if let Some(state) = old.state() {
            let _ = state.put(copy, holds);
            for key in &sessions[..done] {
                let back = filter.state().and_then(|new| new.take(*key, holds));
                back.into_iter().for_each(|back| drop(state.put(back, holds)));
            }
        }
        return Err(mistake);
    }
    std::mem::swap(old, filter);
    if let Some(shown) = &mut node.shown {
        shown.is_renewed();
    }
    Ok(())
}
