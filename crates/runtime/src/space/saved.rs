//! Saved state of a filter, as a value that can leave the process: its sessions as plain data, and
//! the blocks that it holds, each with its frame. (CONTRACT 15)
//!
//! Saving takes nothing away: the filter goes on unchanged until the holder of the saved state
//! reports that it runs elsewhere now ([`Space::forget`]). State that comes back may be from an
//! untrusted peer; what is believed of it was checked where it arrived (`sandbox::state`).

use super::Space;
use super::memory::Memory;
use super::node::{Node, Part};
use abi::Entry;
use filter::{Amount, Gateway as _, Moved, Pin, Time};

/// Saved state of one filter.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// Its sessions, by key from the lowest to the highest.
    pub sessions: Vec<SavedSession>,
    /// Time of its next timer.
    pub wake: Option<Time>,
}

/// One session.
#[derive(Clone, Debug, Default)]
pub struct SavedSession {
    /// Its key.
    pub key: u64,
    /// Its plain data.
    pub bytes: Vec<u8>,
    /// The blocks that it holds, list by list, in order.
    pub lists: Vec<Vec<SavedBlock>>,
}

/// A block that is held.
#[derive(Clone, Debug)]
pub struct SavedBlock {
    /// Key by which its list is ordered.
    pub key: u32,
    /// Everything but where it lies.
    pub entry: Entry,
    /// The frame in which it lies.
    pub frame: Vec<u8>,
}

impl Saved {
    /// Returns the amount held.
    pub fn held(&self) -> Amount {
        let mut held = Amount::default();
        let lists = self.sessions.iter().flat_map(|session| &session.lists);
        lists.flatten().for_each(|block| held.add(block.entry.pointer.length()));
        held
    }
}

impl Space {
    /// Returns the state of the filter of this number, if one runs here.
    pub fn save(&mut self, number: usize) -> Option<Saved> {
        let mut sessions = Vec::new();
        let wake = self.save_each(number, &mut |session| {
            sessions.push(session);
            Some(())
        })?;
        Some(Saved { sessions, wake })
    }

    /// The same, session by session, until `put` does not take one; answers when the filter wants
    /// to be called.
    pub fn save_each(
        &mut self,
        number: usize,
        put: &mut dyn FnMut(SavedSession) -> Option<()>,
    ) -> Option<Option<Time>> {
        let at = self.filter_at(number)?;
        let memory = Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let node = &mut self.graph.nodes[at];
        let Part::Filter(filter) = &mut node.part else { return None };
        let Some(state) = filter.state() else { return Some(node.wake) };
        for key in state.sessions() {
            let Some(moved) = state.take(key, &mut node.holds) else { continue };
            let block = |(key, entry, _): &(u32, Entry, Pin)| SavedBlock {
                key: *key,
                entry: *entry,
                frame: memory.frame(entry).to_vec(),
            };
            let lists = moved.held.iter().map(|list| list.iter().map(block).collect()).collect();
            let session = SavedSession { key, bytes: moved.bytes.clone(), lists };
            // What was taken from it fits it.
            let back = state.put(moved, &mut node.holds);
            debug_assert!(back.is_ok(), "{back:?}");
            put(session)?;
        }
        Some(node.wake)
    }

    /// Has a new filter, which is to run here, know this. Where it does not take it, what it was
    /// given until then is with it; see [`Space::empty`].
    pub fn teach(&self, node: &mut Node, saved: &Saved) -> Result<(), String> {
        let memory = Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let Part::Filter(filter) = &mut node.part else {
            return Err("it is no filter".to_owned());
        };
        for session in &saved.sessions {
            let state = filter.state().ok_or("it keeps nothing")?;
            let mut held = Vec::new();
            for list in &session.lists {
                let mut blocks = Vec::new();
                for block in list {
                    let adopted = memory.adopt(&block.entry, &block.frame);
                    let (entry, pin) =
                        adopted.ok_or("there is no memory for the blocks that it holds")?;
                    blocks.push((block.key, entry, pin));
                }
                held.push(blocks);
            }
            let moved = Moved { key: session.key, bytes: session.bytes.clone(), held };
            state.put(moved, &mut node.holds).map_err(|mistake| mistake.to_string())?;
        }
        let held = saved.held();
        // They come from elsewhere, and stay.
        node.counts.made = sum(node.counts.made, held);
        node.counts.held = held;
        node.wake = saved.wake;
        Ok(())
    }

    /// The same for a filter that runs here already.
    pub fn learn_all(&mut self, number: usize, saved: &Saved) -> Result<(), String> {
        let at = self.filter_at(number).ok_or("there is no such filter")?;
        let place = Node::new("", usize::MAX, Part::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        let learned = self.teach(&mut node, saved);
        self.graph.nodes[at] = node;
        learned
    }

    /// The filter of this number runs elsewhere from now on, with all that it knows.
    pub fn forget(&mut self, number: usize) {
        let Some(at) = self.filter_at(number) else { return };
        let place = Node::new("", usize::MAX, Part::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        self.empty(&mut node);
        // Here what it held is used up; there it is made.
        let held = std::mem::take(&mut node.counts.held);
        node.counts.consumed = sum(node.counts.consumed, held);
        self.graph.nodes[at] = node;
    }

    /// Takes all sessions from a filter, and lets go of what it holds.
    pub fn empty(&self, node: &mut Node) {
        let mut memory =
            Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        node.wake = None;
        let Part::Filter(filter) = &mut node.part else { return };
        let Some(state) = filter.state() else { return };
        for key in state.sessions() {
            let moved = state.take(key, &mut node.holds);
            let held = moved.into_iter().flat_map(|moved| moved.held).flatten();
            held.for_each(|(_, _, pin)| memory.unpin(pin));
        }
    }

    /// The node in which the filter of this number runs here.
    pub fn node(&self, number: usize) -> Option<&Node> {
        self.filter_at(number).map(|at| &self.graph.nodes[at])
    }

    /// Returns the index of the node that runs the filter of this number.
    fn filter_at(&self, number: usize) -> Option<usize> {
        let is = |node: &Node| {
            node.planned == number && !node.away && matches!(node.part, Part::Filter(_))
        };
        self.graph.nodes.iter().position(is)
    }
}

/// Adds two amounts.
#[must_use]
pub const fn sum(one: Amount, other: Amount) -> Amount {
    Amount { blocks: one.blocks + other.blocks, bytes: one.bytes + other.bytes }
}
