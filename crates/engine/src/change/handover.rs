//! Transfer of the state of filters that move to another path, while the spaces of both paths are
//! paused.

use super::migration::StoppedSpaces;
use super::outcome::ChangeError;
use filter::Time;
use runtime::space::node::Operator;
use runtime::space::saved_state::{SavedSession, SavedState};

/// The state of a filter that moves from one path to another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TransferredState {
    /// The private sessions of the filter: the key of each session, and its state as plain bytes.
    pub sessions: Vec<(u64, Vec<u8>)>,
    /// Due time of the next timer, in ns, or `None` if no timer is set.
    pub wake: Option<Time>,
}

/// A function that passes the state of each filter to the receiving path, and returns once the
/// receiving path has changed. Fails with the reason if the receiving path does not change.
pub(super) type SendStatesFn<'a> = &'a mut dyn FnMut(&[TransferredState]) -> Result<(), String>;

/// A function that obtains the state of each filter from the giving path, once the giving path is
/// paused. Fails with the reason if the giving path keeps its filters.
pub(super) type ReceiveStatesFn<'a> = &'a mut dyn FnMut() -> Result<Vec<TransferredState>, String>;

/// One path's side of a move of filters between two paths. The path either gives filters away or
/// receives them.
pub(super) enum Handover<'a> {
    Give {
        /// Node number and name of each filter; the number is `None` if the filter has no private
        /// state to hand over.
        filters: Vec<(Option<usize>, &'static str)>,
        agree: SendStatesFn<'a>,
    },
    Take {
        /// Node numbers of the filters whose state the path receives.
        filters: Vec<usize>,
        agree: ReceiveStatesFn<'a>,
    },
}

impl Handover<'_> {
    /// Passes the state of the moving filters to the other path, or loads their state from the
    /// other path. Blocks until the other path has changed (after giving) or paused (before
    /// taking).
    pub(super) fn exchange_states(&mut self, taken: &mut StoppedSpaces) -> Result<(), ChangeError> {
        match self {
            Self::Give { filters, agree } => {
                let states = filters.iter().map(|filter| save_transferred_state(taken, *filter));
                let states = states.collect::<Result<Vec<TransferredState>, _>>()?;
                agree(&states).map_err(ChangeError::Refused)
            }
            Self::Take { filters, agree } => {
                let states = agree().map_err(ChangeError::Refused)?;
                if filters.len() != states.len() {
                    let why = "the other path has another version of streamline, which reads these \
                               filters differently";
                    return Err(ChangeError::Refused(why.to_owned()));
                }
                filters
                    .iter()
                    .zip(&states)
                    .try_for_each(|(number, state)| load_transferred_state(taken, *number, state))
            }
        }
    }

    /// Completes the handover. The path that gives filters away removes their state from its old
    /// graph. Does nothing on the path that receives the filters.
    pub(super) fn commit(&self, taken: &mut StoppedSpaces) {
        let Self::Give { filters, .. } = self else { return };
        for number in filters.iter().filter_map(|(number, _)| *number) {
            taken.iter_mut().for_each(|(_, stopped)| stopped.space().remove_filter_state(number));
        }
    }
}

fn save_transferred_state(
    taken: &mut StoppedSpaces,
    (number, name): (Option<usize>, &str),
) -> Result<TransferredState, ChangeError> {
    let Some(number) = number else { return Ok(TransferredState::default()) };
    let refused =
        |why: &str| Err(ChangeError::Refused(format!("`{name}` stays in its path: {why}")));
    let mut spaces = taken.iter_mut().map(|(_, stopped)| stopped.space());
    let Some(saved) = spaces.find_map(|space| space.save_filter_state(number)) else {
        return refused("its thread would be left without nodes: `move NODE process` first");
    };
    if saved.held_amount().blocks > 0 {
        return refused("it holds blocks");
    }
    let sessions = saved.sessions.into_iter().map(|one| (one.key, one.bytes)).collect();
    Ok(TransferredState { sessions, wake: saved.wake })
}

fn load_transferred_state(
    taken: &mut StoppedSpaces,
    number: usize,
    state: &TransferredState,
) -> Result<(), ChangeError> {
    if state.sessions.is_empty() {
        return Ok(());
    }
    let session = |(key, bytes): &(u64, Vec<u8>)| SavedSession {
        key: *key,
        bytes: bytes.clone(),
        lists: Vec::new(),
    };
    let saved =
        SavedState { sessions: state.sessions.iter().map(session).collect(), wake: state.wake };
    for (target, stopped) in taken {
        let mut nodes = target.new_nodes().iter_mut();
        let filter = nodes
            .find(|node| node.number == number && matches!(node.operator, Operator::Filter(_)));
        if let Some(node) = filter {
            let loaded = stopped.space().load_node_state(node, &saved);
            return loaded.map_err(|why| ChangeError::Refused(format!("its state: {why}")));
        }
    }
    Err(ChangeError::Refused("the filter with this state runs nowhere".to_owned()))
}
