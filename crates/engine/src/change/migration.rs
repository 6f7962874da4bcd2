//! Moves of filters with their state to another process: out of a sandbox, into one, or from one to
//! another. (CONTRACT 15, FEATURES V18)
//!
//! Input: stopped spaces, and their new content. After the old filter has processed all earlier
//! blocks, its state is saved and restored in the new filter. Both precede any step that cannot be
//! undone, and saving does not consume the state. The old filter is released only when no other
//! step can fail ([`FilterMigration::commit`]). An earlier failure leaves the old filter unchanged,
//! unless the old filter itself failed; then its arc ends, as after any failure of a sandboxed
//! filter.
//!
//! docs/book/decisions/0041-untrusted-state.md

use super::outcome::{ChangeError, SwitchReport};
use super::switch::{SpaceSwitch, StoppedSpace};
use crate::sandbox::{OutputHalf, SandboxCounters, as_input_half, as_output_half};
use runtime::space::node::{Node, Operator};
use runtime::space::saved_state::SavedState;

/// The move of one filter from its current process to another, with its state.
#[derive(Debug)]
pub(super) struct FilterMigration {
    /// Node number of the filter that moves.
    number: usize,
    /// The saved state of the filter; `None` until it is saved.
    saved: Option<SavedState>,
    /// Final counters that the filter's old process reported, and the number of blocks received
    /// from this process. `None` until the state is saved, and if the filter ran in a thread.
    account: Option<(SandboxCounters, u64)>,
    /// The spaces that ran the filter before the migration.
    at: FilterOrigin,
}

/// The location of a filter before its migration. Spaces are indices into the list of stopped
/// spaces.
#[derive(Clone, Copy, Debug)]
enum FilterOrigin {
    Unknown,
    /// The filter ran in a thread of the space with this index.
    Thread(usize),
    /// The filter ran in a process of its own. Contains the index of the space that feeds the
    /// process, and of the space that receives its output.
    Process(usize, usize),
}

/// The spaces that a change has stopped, each paired with the content that it gets.
pub(super) type StoppedSpaces = [(SpaceSwitch, StoppedSpace)];

impl FilterMigration {
    pub(super) const fn new(number: usize) -> Self {
        Self { number, saved: None, account: None, at: FilterOrigin::Unknown }
    }

    /// Saves the state of the migrating filter. Does nothing if the state is saved already, or if a
    /// space that runs a part of the filter has not been stopped.
    pub(super) fn save(&mut self, taken: &mut StoppedSpaces) -> Result<(), ChangeError> {
        if self.saved.is_some() {
            return Ok(());
        }
        let mut spaces = taken.iter_mut().map(|(_, stopped)| stopped.space()).enumerate();
        let here = spaces.find_map(|(at, space)| Some((at, space.save_filter_state(self.number)?)));
        if let Some((at, saved)) = here {
            (self.at, self.saved) = (FilterOrigin::Thread(at), Some(saved));
            return Ok(());
        }
        let number = self.number;
        let mut spaces = taken.iter_mut().map(|(_, stopped)| stopped.space());
        let entrance =
            spaces.position(|space| space.program_endpoint(number, as_input_half).is_some());
        let mut spaces = taken.iter_mut().map(|(_, stopped)| stopped.space());
        let exit =
            spaces.position(|space| space.program_endpoint(number, as_output_half).is_some());
        let (Some(entrance), Some(exit)) = (entrance, exit) else { return Ok(()) };
        self.at = FilterOrigin::Process(entrance, exit);
        let (saved, account, given) =
            self.request_state(taken, (entrance, exit)).map_err(|why| {
                ChangeError::Refused(format!("its state could not be read: the filter {why}"))
            })?;
        (self.saved, self.account) = (Some(saved), Some((account, given)));
        Ok(())
    }

    /// Requests the filter's state from the process that runs the filter. The space at index
    /// `entrance` writes the input of the process, and the space at index `exit` reads its output.
    /// Blocks until the state arrives, and passes on the output that arrives earlier. Returns the
    /// state, the counters that the process reports, and the number of its output blocks.
    fn request_state(
        &self,
        taken: &mut StoppedSpaces,
        (entrance, exit): (usize, usize),
    ) -> Result<(SavedState, SandboxCounters, u64), String> {
        let number = self.number;
        let gone = || "has ended".to_owned();
        taken[exit]
            .1
            .space()
            .program_endpoint(number, as_output_half)
            .ok_or_else(gone)?
            .expect_state();
        let mut asked = false;
        loop {
            let to = taken[entrance]
                .1
                .space()
                .program_endpoint(number, as_input_half)
                .ok_or_else(gone)?;
            if !asked {
                asked = to.request_state()?;
            }
            let space = taken[exit].1.space();
            let open = space.walk_program_output(number);
            let from = space.program_endpoint(number, as_output_half).ok_or_else(gone)?;
            if let Some(known) = from.take_state()? {
                return Ok(known);
            }
            if !open {
                return Err("ends with its path".to_owned());
            }
            from.wait_for_messages(asked);
        }
    }

    /// Restores the saved state in the new filter.
    pub(super) fn restore(&self, taken: &mut StoppedSpaces) -> Result<(), ChangeError> {
        let refused = |why: &str| ChangeError::Refused(format!("the new filter {why}"));
        let Some(saved) = &self.saved else {
            return Err(ChangeError::Refused("its space has ended".to_owned()));
        };
        for (target, stopped) in taken.iter_mut() {
            let is = |node: &&mut Node| {
                node.number == self.number && matches!(node.operator, Operator::Filter(_))
            };
            if let Some(node) = target.new_nodes().iter_mut().find(is) {
                let taught = stopped.space().load_node_state(node, saved);
                return taught.map_err(|why| refused(&format!("cannot restore its state: {why}")));
            }
        }
        let number = self.number;
        let entrance =
            taken.iter_mut().find_map(|(target, _)| target.process_half(number, as_input_half));
        entrance.map_or(Ok(()), |to| to.send_saved_state(saved)).map_err(|why| refused(&why))?;
        let exit =
            taken.iter_mut().find_map(|(target, _)| target.process_half(number, as_output_half));
        exit.map_or(Ok(()), OutputHalf::wait_until_restored).map_err(|why| refused(&why))
    }

    /// Undoes the migration: the old filter resumes, and the new filter loses the restored state.
    pub(super) fn undo(&self, taken: &mut StoppedSpaces) {
        for (target, stopped) in taken.iter_mut() {
            // Held blocks are stored outside the filter, so only nodes that hold blocks need to be
            // cleared.
            let is = |node: &&mut Node| node.number == self.number && !node.holds.is_empty();
            for node in target.new_nodes().iter_mut().filter(is) {
                stopped.space().clear_node_state(node);
            }
        }
        let FilterOrigin::Process(entrance, exit) = self.at else { return };
        if let Some(from) = taken[exit].1.space().program_endpoint(self.number, as_output_half) {
            from.cancel_state();
        }
        if let Some(to) = taken[entrance].1.space().program_endpoint(self.number, as_input_half) {
            to.cancel_state_request();
        }
    }

    /// Completes the migration after the switch. For a filter that ran in a process, compares the
    /// counters that the process reports with the blocks that were sent to it and received from it.
    pub(super) fn commit(&self, taken: &mut StoppedSpaces, switched: &mut SwitchReport) {
        let number = self.number;
        let (entrance, exit) = match self.at {
            FilterOrigin::Unknown => return,
            FilterOrigin::Thread(at) => return taken[at].1.space().remove_filter_state(number),
            FilterOrigin::Process(entrance, exit) => (entrance, exit),
        };
        if let Some(from) = taken[exit].1.space().program_endpoint(number, as_output_half) {
            from.end_stream();
        }
        let handed_over =
            taken[entrance].1.space().program_endpoint(number, as_input_half).map_or(0, |to| {
                to.end_stream();
                to.blocks_sent()
            });
        if let Some((account, given)) = &self.account {
            let pairs = [
                (handed_over, account.taken),
                (account.received_or_made, account.accounted_for),
                (account.given, *given),
            ];
            for (before, after) in pairs {
                switched.lost += before.saturating_sub(after);
                switched.duplicated += after.saturating_sub(before);
            }
        }
    }

    /// Returns the number of held blocks that come back with the filter's state from a sandbox
    /// process; 0 if the filter moves into a process. These blocks were counted as consumed when
    /// they were sent there.
    pub(super) fn returning_block_count(&self, taken: &mut StoppedSpaces) -> u64 {
        let is = |node: &&mut Node| {
            node.number == self.number && matches!(node.operator, Operator::Filter(_))
        };
        let home =
            taken.iter_mut().any(|(target, _)| target.new_nodes().iter_mut().find(is).is_some());
        let held = self.saved.as_ref().map_or(0, |saved| saved.held_amount().blocks);
        if home { held } else { 0 }
    }
}
