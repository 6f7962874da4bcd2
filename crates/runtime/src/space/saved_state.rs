//! Serializable state of a filter: sessions as plain data, and held blocks with their frames.
//! (CONTRACT 15)
//!
//! Saving does not change the filter, which continues to run until its successor has started
//! elsewhere ([`Space::remove_filter_state`]). State from another process may come from an
//! untrusted peer, so it is validated on receipt (`sandbox::state`).

use super::Space;
use super::memory::Memory;
use super::node::{Node, Operator};
use abi::Entry;
use filter::{Amount, Gateway as _, MovedSession, PinId, Time};

/// The saved state of one filter: its sessions with their held blocks, and its timer.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// Sessions, in ascending order of their keys.
    pub sessions: Vec<SavedSession>,
    /// Time at which the filter's next timer expires, in nanoseconds; `None` if no timer is set.
    pub wake: Option<Time>,
}

/// A saved session: its key, plain data and held blocks.
#[derive(Clone, Debug, Default)]
pub struct SavedSession {
    /// Key that identifies the session within its filter.
    pub key: u64,
    /// Plain data of the session.
    pub bytes: Vec<u8>,
    /// Copies of the blocks that the session holds. A session may hold several lists of blocks;
    /// each element is one list, in order.
    pub lists: Vec<Vec<SavedBlock>>,
}

/// A saved copy of a held block.
#[derive(Clone, Debug)]
pub struct SavedBlock {
    /// Key by which the block is sorted in its list of held blocks.
    pub key: u32,
    /// Pointer, metadata and marks of the block. The location in the pointer is valid only in the
    /// memory from which the block was saved.
    pub entry: Entry,
    /// Bytes of the frame.
    pub frame: Vec<u8>,
}

impl SavedState {
    /// Returns the number of held blocks, and the number of bytes in their views.
    pub fn held_amount(&self) -> Amount {
        let mut held = Amount::default();
        let lists = self.sessions.iter().flat_map(|session| &session.lists);
        lists.flatten().for_each(|block| held.add_block(block.entry.pointer.length()));
        held
    }
}

impl Space {
    /// Copies the state of the filter with node number `number`, which keeps running. Returns
    /// `None` if the filter does not run in this space.
    pub fn save_filter_state(&mut self, number: usize) -> Option<SavedState> {
        let mut sessions = Vec::new();
        let wake = self.save_sessions(number, &mut |session| {
            sessions.push(session);
            Some(())
        })?;
        Some(SavedState { sessions, wake })
    }

    /// Saves the sessions of the filter with node number `number`: calls `put` for each of them.
    /// Returns `Some(due)`, where `due` is the due time of the filter's next timer, if any. Returns
    /// `None` if the filter runs in another space, or if `put` returns `None`.
    pub fn save_sessions(
        &mut self,
        number: usize,
        put: &mut dyn FnMut(SavedSession) -> Option<()>,
    ) -> Option<Option<Time>> {
        let at = self.find_filter_node(number)?;
        self.save_node_sessions(at, &mut |_, _| true, put)
    }

    /// Saves sessions as [`Space::save_sessions`] does, but only those sessions of the filter at
    /// node `at` for which `wanted` returns true. The arguments of `wanted` are the key and the
    /// number of a session.
    pub(super) fn save_node_sessions(
        &mut self,
        at: usize,
        wanted: &mut dyn FnMut(u64, u64) -> bool,
        put: &mut dyn FnMut(SavedSession) -> Option<()>,
    ) -> Option<Option<Time>> {
        let memory = Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let node = &mut self.graph.nodes[at];
        let Operator::Filter(filter) = &mut node.operator else { return None };
        let Some(state) = filter.state() else { return Some(node.wake) };
        for key in state.session_keys() {
            if !wanted(key, state.session_number(key)) {
                continue;
            }
            let Some(moved) = state.take_session(key, &mut node.holds) else { continue };
            let block = |(key, entry, _): &(u32, Entry, PinId)| SavedBlock {
                key: *key,
                entry: *entry,
                frame: memory.frame(entry).to_vec(),
            };
            let lists = moved.held.iter().map(|list| list.iter().map(block).collect()).collect();
            let session = SavedSession { key, bytes: moved.bytes.clone(), lists };
            // A session taken from a filter can always be put back into it.
            let back = state.put_session(moved, &mut node.holds);
            debug_assert!(back.is_ok(), "{back:?}");
            put(session)?;
        }
        Some(node.wake)
    }

    /// Loads saved state into a new filter. If this fails, the filter keeps the sessions loaded so
    /// far; [`Space::clear_node_state`] removes them.
    pub fn load_node_state(&self, node: &mut Node, saved: &SavedState) -> Result<(), String> {
        self.load_sessions(node, saved)?;
        let held = saved.held_amount();
        // The blocks come from another process, so they count as made in this space.
        node.counts.made = add_amounts(node.counts.made, held);
        node.counts.held = held;
        node.wake = saved.wake;
        Ok(())
    }

    /// Adds saved sessions to a filter. The ledger does not count their held blocks again. If a
    /// session cannot be added, its held blocks are released, and the sessions added before it
    /// stay.
    pub(super) fn load_sessions(&self, node: &mut Node, saved: &SavedState) -> Result<(), String> {
        let mut memory =
            Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let Operator::Filter(filter) = &mut node.operator else {
            return Err("it is not a filter".to_owned());
        };
        for session in &saved.sessions {
            let state = filter.state().ok_or("it has no state")?;
            let mut pins = Vec::new();
            let mut adopt = |block: &SavedBlock| {
                let (entry, pin) = memory.copy_foreign_block(&block.entry, &block.frame)?;
                pins.push(pin);
                Some((block.key, entry, pin))
            };
            let lists = session.lists.iter();
            let held: Option<Vec<Vec<_>>> =
                lists.map(|list| list.iter().map(&mut adopt).collect()).collect();
            let loaded = match held {
                Some(held) => {
                    let bytes = session.bytes.clone();
                    let moved = MovedSession { key: session.key, bytes, held };
                    // On failure the filter has inserted none of the blocks.
                    let put = state.put_session(moved, &mut node.holds);
                    put.map_err(|mistake| mistake.to_string())
                }
                None => Err("there is no memory for the blocks that it holds".to_owned()),
            };
            if loaded.is_err() {
                pins.into_iter().for_each(|pin| memory.unpin(pin));
                return loaded;
            }
        }
        Ok(())
    }

    /// Loads saved state into the filter with node number `number`, which must run in this space.
    pub fn load_filter_state(&mut self, number: usize, saved: &SavedState) -> Result<(), String> {
        let at = self.find_filter_node(number).ok_or("there is no such filter")?;
        let place = Node::new("", usize::MAX, Operator::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        let learned = self.load_node_state(&mut node, saved);
        self.graph.nodes[at] = node;
        learned
    }

    /// Removes the state of the filter with node number `number`, whose successor runs elsewhere.
    pub fn remove_filter_state(&mut self, number: usize) {
        let Some(at) = self.find_filter_node(number) else { return };
        let place = Node::new("", usize::MAX, Operator::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        self.clear_node_state(&mut node);
        // Held blocks count as consumed in this space, and as made in the successor's.
        let held = std::mem::take(&mut node.counts.held);
        node.counts.consumed = add_amounts(node.counts.consumed, held);
        self.graph.nodes[at] = node;
    }

    /// Removes all sessions from a filter and releases its held blocks.
    pub fn clear_node_state(&self, node: &mut Node) {
        node.wake = None;
        let Operator::Filter(filter) = &mut node.operator else { return };
        let Some(state) = filter.state() else { return };
        let keys = state.session_keys();
        self.remove_sessions(node, &keys);
    }

    /// Removes the sessions with these keys from a filter and releases their held blocks, without
    /// counting these blocks.
    pub(super) fn remove_sessions(&self, node: &mut Node, keys: &[u64]) {
        let mut memory =
            Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let Operator::Filter(filter) = &mut node.operator else { return };
        let Some(state) = filter.state() else { return };
        for key in keys {
            let moved = state.take_session(*key, &mut node.holds);
            let held = moved.into_iter().flat_map(|moved| moved.held).flatten();
            held.for_each(|(_, _, pin)| memory.unpin(pin));
        }
    }

    /// Returns the filter with node number `number`; `None` if the filter runs in another space.
    pub fn node(&self, number: usize) -> Option<&Node> {
        self.find_filter_node(number).map(|at| &self.graph.nodes[at])
    }

    /// Returns the index in this space of the filter with node number `number`; `None` if the
    /// filter runs in another space.
    fn find_filter_node(&self, number: usize) -> Option<usize> {
        let is = |node: &Node| {
            node.number == number && !node.has_moved && matches!(node.operator, Operator::Filter(_))
        };
        self.graph.nodes.iter().position(is)
    }
}

/// Returns the sum of two amounts.
#[must_use]
pub const fn add_amounts(one: Amount, other: Amount) -> Amount {
    Amount { blocks: one.blocks + other.blocks, bytes: one.bytes + other.bytes }
}
