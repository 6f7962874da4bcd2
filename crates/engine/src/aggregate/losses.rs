//! Computation of a source's losses before its blocks are divided among worker processes.
//!
//! Input: the input and the losses that each worker process reports. Output: the known losses of
//! the request, by location.
//!
//! - **driver** and **backlog** come before the division, so all workers count the same loss. If
//!   their counts are equal, this is the loss; otherwise the loss is unknown.
//! - Every other location (a socket, a ring) belongs to one worker and holds blocks of all shares.
//!   A block lost there is missing only if it belonged to that worker's share, so the sum over the
//!   workers is not the loss of the request; only the input is known. If all workers started before
//!   the first block and received equally many, they received the same blocks, and the loss is
//!   exactly the number of blocks that no worker counted as its own. If they received different
//!   numbers (they do not end at the same moment), the smallest and the largest number bound the
//!   loss. If they started during traffic, only the sum is a bound.

use super::worker_share::WorkerCounters;
use endpoint::{DropReason, SourceCounters};
use filter::Amount;

/// The drop reason for blocks lost at the workers' own sockets and rings, if only a lower bound of
/// their number is known.
pub(super) const LOSS_LOWER_BOUND_REASON: DropReason =
    DropReason::Named("own sockets and rings, at least");

/// Known losses of a source, by location, with a remark for users.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SourceLosses {
    pub(super) dropped: Vec<(DropReason, Option<u64>)>,
    pub(super) remark: Option<String>,
}

/// Computes the losses of a source from the counters of all workers that were not killed. `quiet`
/// is true if all workers started before the first block. `alone` is true if there is only one
/// worker.
pub(super) fn aggregate_losses(
    views: &[&WorkerCounters],
    (quiet, alone): (bool, bool),
) -> SourceLosses {
    let is_common = |place| matches!(place, DropReason::Driver | DropReason::Backlog);
    let mut own: Vec<WorkerCounters> = Vec::new();
    let mut common: Vec<(DropReason, Vec<Option<u64>>)> = Vec::new();
    for view in views {
        let mut kept = WorkerCounters { lost: Vec::new(), ..(*view).clone() };
        for (place, blocks) in &view.lost {
            match common.iter_mut().find(|(known, _)| known == place) {
                Some((_, all)) => all.push(*blocks),
                None if is_common(*place) => common.push((*place, vec![*blocks])),
                None => kept.lost.push((*place, *blocks)),
            }
        }
        own.push(kept);
    }
    let mut losses = SourceLosses::default();
    for (place, all) in common {
        let agreed = all.iter().all(|blocks| *blocks == all[0]) && all.len() == views.len();
        losses.dropped.push((place, if agreed { all[0] } else { None }));
        let known: Option<Vec<u64>> = all.into_iter().collect();
        if let (false, Some(known)) = (agreed, known) {
            let (least, most) = (known.iter().min(), known.iter().max());
            let (least, most) = (least.unwrap_or(&0), most.unwrap_or(&0));
            let what =
                format!("its processes counted from {least} to {most} blocks lost in {place}");
            losses.append_remark(what);
        }
    }
    losses.add_worker_losses(&own, (quiet, alone));
    losses
}

impl SourceLosses {
    fn append_remark(&mut self, what: String) {
        match &mut self.remark {
            Some(remark) => *remark = format!("{remark}; {what}"),
            None => self.remark = Some(what),
        }
    }

    /// Adds the losses at locations that belong to a single worker each, such as the worker's
    /// socket. If the counters of the workers determine the number of lost blocks, the count is
    /// exact. Otherwise, the count is unknown, and a lower bound and a note are added. `quiet` and
    /// `alone` are the flags of [`aggregate_losses`].
    fn add_worker_losses(&mut self, all: &[WorkerCounters], (quiet, alone): (bool, bool)) {
        let mut places: Vec<(DropReason, Option<u64>)> = Vec::new();
        for (place, blocks) in all.iter().flat_map(|view| &view.lost) {
            match places.iter_mut().find(|(known, _)| known == place) {
                Some((_, sum)) => *sum = sum.zip(*blocks).map(|(one, other)| one + other),
                None => places.push((*place, *blocks)),
            }
        }
        let some: Vec<(DropReason, Option<u64>)> =
            places.iter().copied().filter(|(_, blocks)| *blocks != Some(0)).collect();
        let bounds = loss_bounds(all, quiet);
        match (bounds, some.as_slice()) {
            // A single worker processes every share.
            _ if alone => self.dropped.extend(places),
            (Some((0, 0)), _) => {
                self.dropped.extend(places.into_iter().map(|(place, _)| (place, Some(0))));
            }
            (Some((least, most)), [(place, _)]) if least == most => {
                let is = |known: DropReason| if known == *place { least } else { 0 };
                self.dropped.extend(places.iter().map(|(known, _)| (*known, Some(is(*known)))));
            }
            (bounds, _) => {
                let zero = |blocks: Option<u64>| blocks.filter(|blocks| *blocks == 0);
                self.dropped.extend(places.iter().map(|(place, blocks)| (*place, zero(*blocks))));
                let (Some((least, most)), names) = (bounds, format_location_names(&some)) else {
                    return;
                };
                let unread = some.iter().filter(|(place, _)| *place == DropReason::Unread);
                let unread: u64 = unread.filter_map(|(_, blocks)| *blocks).sum();
                let lost = least.saturating_sub(unread);
                self.dropped.extend((lost > 0).then_some((LOSS_LOWER_BOUND_REASON, Some(lost))));
                let many = match least == most {
                    true => format!("{least}"),
                    false => format!("from {least} to {most}"),
                };
                self.append_remark(format!(
                    "{many} blocks are missing by {names}; the processes count the blocks of all \
                     shares, so the numbers cannot be added"
                ));
            }
        }
    }
}

/// Returns the minimum and the maximum number of blocks that no worker processed, because they were
/// lost at a location of a single worker, such as its socket. Returns `None` if a counter could not
/// be read. `quiet` is true if all workers started before the first block.
fn loss_bounds(all: &[WorkerCounters], quiet: bool) -> Option<(u64, u64)> {
    let sum: u64 = all.iter().map(WorkerCounters::total_lost).sum::<Option<u64>>()?;
    if sum == 0 {
        return Some((0, 0));
    }
    if !quiet {
        return Some((0, sum));
    }
    let saw = all.iter().map(WorkerCounters::total_arrived).collect::<Option<Vec<u64>>>()?;
    let own: u64 = all.iter().map(|view| view.own.blocks).sum();
    let missing = |saw: Option<&u64>| saw.map_or(0, |saw| saw.saturating_sub(own)).min(sum);
    Some((missing(saw.iter().min()), missing(saw.iter().max())))
}

/// Formats names of loss locations, such as `socket and ring`.
fn format_location_names(places: &[(DropReason, Option<u64>)]) -> String {
    let names: Vec<&str> = places.iter().map(|(place, _)| place.text()).collect();
    names.join(" and ")
}

/// Stores the losses of a source in its counters. The input of the source becomes the sum of its
/// output and its losses; it is unknown if a loss is unknown. Clears the positions of lost blocks.
/// Appends the remark of `losses` to that of the source.
pub(super) fn set_source_losses(source: &mut SourceCounters, losses: SourceLosses) {
    let lost: Option<u64> = losses.dropped.iter().map(|(_, blocks)| *blocks).sum();
    source.observed =
        lost.map(|lost| Amount { blocks: source.given.blocks + lost, ..source.given });
    source.dropped = losses.dropped;
    // Positions refer to the socket of a single worker.
    source.missing.clear();
    source.remark = match (source.remark.take(), losses.remark) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    };
}
