//! A filter goes on in another process with what it knows: out of its sandbox, into one, or from
//! one into the next. (CONTRACT 15, FEATURES V18)
//!
//! In: spaces that stand still, and what is to be put into them. What the filter knows is saved
//! where all that came before has met it, and taught where it is to run, before anything is
//! changed that cannot be changed back: saving takes nothing away. Only when everything else is
//! certain, too, the old one lets go ([`Crossing::commit`]). So whatever fails until then leaves
//! the old filter as it is, unless it is what failed: then its arc ends, as it always does.
//! docs/book/decisions/0041-untrusted-state.md

use super::switch::{Desk, Standing};
use super::switched::{Switched, Unchanged};
use crate::sandbox::{Account, Exit, entrance_of, exit_of};
use runtime::space::node::{Node, Part};
use runtime::space::saved::Saved;

/// One filter on its way.
#[derive(Debug)]
pub(super) struct Crossing {
    /// The number of its node.
    number: usize,
    /// Its saved state, once received here.
    saved: Option<Saved>,
    /// Counters of its process, if it had one, and the number of blocks that came from it.
    account: Option<(Account, u64)>,
    /// The place at which it ran.
    at: From,
}

/// The place at which a filter runs, as indices of spaces.
#[derive(Clone, Copy, Debug)]
enum From {
    Unknown,
    /// In a thread, by the index of its space.
    Here(usize),
    /// In a process: the space that feeds it, and the space that takes its output.
    Apart(usize, usize),
}

type Taken = [(Desk, Standing)];

impl Crossing {
    pub(super) const fn new(number: usize) -> Self {
        Self { number, saved: None, account: None, at: From::Unknown }
    }

    /// Saves what the filter knows, if the spaces that know it stand still by now.
    pub(super) fn save(&mut self, taken: &mut Taken) -> Result<(), Unchanged> {
        if self.saved.is_some() {
            return Ok(());
        }
        let mut spaces = taken.iter_mut().map(|(_, standing)| standing.space()).enumerate();
        let here = spaces.find_map(|(at, space)| Some((at, space.save(self.number)?)));
        if let Some((at, saved)) = here {
            (self.at, self.saved) = (From::Here(at), Some(saved));
            return Ok(());
        }
        let number = self.number;
        let mut spaces = taken.iter_mut().map(|(_, standing)| standing.space());
        let entrance = spaces.position(|space| space.half(number, entrance_of).is_some());
        let mut spaces = taken.iter_mut().map(|(_, standing)| standing.space());
        let exit = spaces.position(|space| space.half(number, exit_of).is_some());
        let (Some(entrance), Some(exit)) = (entrance, exit) else { return Ok(()) };
        self.at = From::Apart(entrance, exit);
        let (saved, account, given) = self.ask(taken, (entrance, exit)).map_err(|why| {
            Unchanged::Refused(format!("what it knows was not told: the filter {why}"))
        })?;
        (self.saved, self.account) = (Some(saved), Some((account, given)));
        Ok(())
    }

    /// Requests the state of a process, and takes its output up to then along the old arcs.
    fn ask(
        &self,
        taken: &mut Taken,
        (entrance, exit): (usize, usize),
    ) -> Result<(Saved, Account, u64), String> {
        let number = self.number;
        let gone = || "has ended".to_owned();
        taken[exit].1.space().half(number, exit_of).ok_or_else(gone)?.expect();
        let mut asked = false;
        loop {
            let to = taken[entrance].1.space().half(number, entrance_of).ok_or_else(gone)?;
            if !asked {
                asked = to.ask()?;
            }
            let space = taken[exit].1.space();
            let open = space.pull_half(number);
            let from = space.half(number, exit_of).ok_or_else(gone)?;
            if let Some(known) = from.known()? {
                return Ok(known);
            }
            if !open {
                return Err("ends with its path".to_owned());
            }
            from.rest(asked);
        }
    }

    /// Teaches the new filter what the old one knows.
    pub(super) fn teach(&self, taken: &mut Taken) -> Result<(), Unchanged> {
        let refused = |why: &str| Unchanged::Refused(format!("the new filter {why}"));
        let Some(saved) = &self.saved else {
            return Err(Unchanged::Refused("it runs nowhere any more".to_owned()));
        };
        for (desk, standing) in taken.iter_mut() {
            let is = |node: &&mut Node| {
                node.planned == self.number && matches!(node.part, Part::Filter(_))
            };
            if let Some(node) = desk.new_nodes().iter_mut().find(is) {
                let taught = standing.space().teach(node, saved);
                return taught.map_err(|why| refused(&format!("is not given it: {why}")));
            }
        }
        let number = self.number;
        let entrance = taken.iter_mut().find_map(|(desk, _)| desk.half(number, entrance_of));
        entrance.map_or(Ok(()), |to| to.teach(saved)).map_err(|why| refused(&why))?;
        let exit = taken.iter_mut().find_map(|(desk, _)| desk.half(number, exit_of));
        exit.map_or(Ok(()), Exit::wait_taught).map_err(|why| refused(&why))
    }

    /// Nothing has happened: the old filter goes on.
    pub(super) fn undo(&self, taken: &mut Taken) {
        for (desk, standing) in taken.iter_mut() {
            // Only held blocks lie anywhere else than in the filter.
            let is = |node: &&mut Node| node.planned == self.number && !node.holds.is_empty();
            for node in desk.new_nodes().iter_mut().filter(is) {
                standing.space().empty(node);
            }
        }
        let From::Apart(entrance, exit) = self.at else { return };
        if let Some(from) = taken[exit].1.space().half(self.number, exit_of) {
            from.forget();
        }
        if let Some(to) = taken[entrance].1.space().half(self.number, entrance_of) {
            to.go_on();
        }
    }

    /// Completes the move to the new place; compares the counters that the process reports with the
    /// blocks that went there and came from there.
    pub(super) fn commit(&self, taken: &mut Taken, switched: &mut Switched) {
        let number = self.number;
        let (entrance, exit) = match self.at {
            From::Unknown => return,
            From::Here(at) => return taken[at].1.space().forget(number),
            From::Apart(entrance, exit) => (entrance, exit),
        };
        if let Some(from) = taken[exit].1.space().half(number, exit_of) {
            from.leave();
        }
        let handed_over = taken[entrance].1.space().half(number, entrance_of).map_or(0, |to| {
            to.leave();
            to.handed_over()
        });
        if let Some((account, given)) = &self.account {
            let pairs = [
                (handed_over, account.taken),
                (account.came, account.became),
                (account.given, *given),
            ];
            for (before, after) in pairs {
                switched.lost += before.saturating_sub(after);
                switched.duplicated += after.saturating_sub(before);
            }
        }
    }

    /// Returns the number of held blocks that the filter brings back from its process, where they
    /// were counted as consumed.
    pub(super) fn brings_home(&self, taken: &mut Taken) -> u64 {
        let is =
            |node: &&mut Node| node.planned == self.number && matches!(node.part, Part::Filter(_));
        let home = taken.iter_mut().any(|(desk, _)| desk.new_nodes().iter_mut().find(is).is_some());
        let held = self.saved.as_ref().map_or(0, |saved| saved.held().blocks);
        if home { held } else { 0 }
    }
}
