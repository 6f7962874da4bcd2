//! Aggregated losses of a source before its blocks were shared out among the processes of a
//! request.
//!
//! In: what each of them saw and lost. Out: what is known of the request's loss, by place.
//!
//! - **driver** and **backlog** lie before all of them: each counts the same loss. If they agree
//!   it is that number, else it is unknown.
//! - Every other place is a process's own (its socket, its ring), and holds blocks of all shares: a
//!   block that one process lost is missing only if it was of its share. So their sum says nothing.
//!   All that is known is what came: where all processes began before the first block and saw
//!   equally many, they saw the same blocks, and what came of no share is what is missing, exactly.
//!   Where they saw different numbers (they do not end at the same moment), the least and the most
//!   bound it. Where they began in the middle of traffic nothing but their sum bounds it.

use super::share::Before;
use endpoint::{DropReason, Seen};
use filter::Amount;

/// The place of a loss of which only a lower bound is known; how much more it is stands beside it
/// as unknown.
pub(super) const AT_LEAST: DropReason = DropReason::Other("own sockets and rings, at least");

/// Known losses of a source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Losses {
    pub(super) dropped: Vec<(DropReason, Option<u64>)>,
    pub(super) remark: Option<String>,
}

/// The loss of all processes that were not killed. `quiet`: nothing had come when all of them had
/// begun; `alone`: there never was another one.
pub(super) fn losses(befores: &[&Before], (quiet, alone): (bool, bool)) -> Losses {
    let is_common = |place| matches!(place, DropReason::Driver | DropReason::Backlog);
    let mut own: Vec<Before> = Vec::new();
    let mut common: Vec<(DropReason, Vec<Option<u64>>)> = Vec::new();
    for before in befores {
        let mut kept = Before { lost: Vec::new(), ..(*before).clone() };
        for (place, blocks) in &before.lost {
            match common.iter_mut().find(|(known, _)| known == place) {
                Some((_, all)) => all.push(*blocks),
                None if is_common(*place) => common.push((*place, vec![*blocks])),
                None => kept.lost.push((*place, *blocks)),
            }
        }
        own.push(kept);
    }
    let mut losses = Losses::default();
    for (place, all) in common {
        let agreed = all.iter().all(|blocks| *blocks == all[0]) && all.len() == befores.len();
        losses.dropped.push((place, if agreed { all[0] } else { None }));
        let told: Option<Vec<u64>> = all.into_iter().collect();
        if let (false, Some(told)) = (agreed, told) {
            let (least, most) = (told.iter().min(), told.iter().max());
            let (least, most) = (least.unwrap_or(&0), most.unwrap_or(&0));
            let what =
                format!("its processes counted from {least} to {most} blocks lost in {place}");
            losses.note(what);
        }
    }
    losses.own(&own, (quiet, alone));
    losses
}

impl Losses {
    fn note(&mut self, what: String) {
        match &mut self.remark {
            Some(remark) => *remark = format!("{remark}; {what}"),
            None => self.remark = Some(what),
        }
    }

    /// Adds what was lost at places of the processes' own.
    fn own(&mut self, all: &[Before], (quiet, alone): (bool, bool)) {
        let mut places: Vec<(DropReason, Option<u64>)> = Vec::new();
        for (place, blocks) in all.iter().flat_map(|before| &before.lost) {
            match places.iter_mut().find(|(known, _)| known == place) {
                Some((_, sum)) => *sum = sum.zip(*blocks).map(|(one, other)| one + other),
                None => places.push((*place, *blocks)),
            }
        }
        let some: Vec<(DropReason, Option<u64>)> =
            places.iter().copied().filter(|(_, blocks)| *blocks != Some(0)).collect();
        let bounds = bounds(all, quiet);
        match (bounds, some.as_slice()) {
            // Each counts what is nobody else's.
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
                let (Some((least, most)), names) = (bounds, names(&some)) else { return };
                let unread = some.iter().filter(|(place, _)| *place == DropReason::Unread);
                let unread: u64 = unread.filter_map(|(_, blocks)| *blocks).sum();
                let lost = least.saturating_sub(unread);
                self.dropped.extend((lost > 0).then_some((AT_LEAST, Some(lost))));
                let many = match least == most {
                    true => format!("{least}"),
                    false => format!("from {least} to {most}"),
                };
                self.note(format!(
                    "{many} blocks are missing by {names}, where each process counts blocks of \
                     all shares"
                ));
            }
        }
    }
}

/// The least and the most that can be missing by places of the processes' own; none: a counter
/// could not be read.
fn bounds(all: &[Before], quiet: bool) -> Option<(u64, u64)> {
    let sum: u64 = all.iter().map(Before::lost).sum::<Option<u64>>()?;
    if sum == 0 {
        return Some((0, 0));
    }
    if !quiet {
        return Some((0, sum));
    }
    let saw = all.iter().map(Before::saw).collect::<Option<Vec<u64>>>()?;
    let own: u64 = all.iter().map(|before| before.own.blocks).sum();
    let missing = |saw: Option<&u64>| saw.map_or(0, |saw| saw.saturating_sub(own)).min(sum);
    Some((missing(saw.iter().min()), missing(saw.iter().max())))
}

/// `socket and ring`.
fn names(places: &[(DropReason, Option<u64>)]) -> String {
    let names: Vec<&str> = places.iter().map(|(place, _)| place.text()).collect();
    names.join(" and ")
}

/// Tells a source of its share and of what is known of the loss.
pub(super) fn tell(seen: &mut Seen, losses: Losses) {
    let lost: Option<u64> = losses.dropped.iter().map(|(_, blocks)| *blocks).sum();
    seen.seen = lost.map(|lost| Amount { blocks: seen.given.blocks + lost, ..seen.given });
    seen.dropped = losses.dropped;
    // Positions are those of one process's socket.
    seen.missing.clear();
    seen.remark = match (seen.remark.take(), losses.remark) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    };
}
