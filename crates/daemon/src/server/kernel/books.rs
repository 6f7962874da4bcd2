//! Accounts for the users' share of the kernel: rings, bytes, descriptors, time. (RELIABILITY T12,
//! T18) (RELIABILITY T12, T18)
//!
//! Rings and bytes are counted before anything is made. Time is estimated, by the table by which
//! lines are planned, from what came to each filter and what was copied: a filter that runs once
//! for several lines is a part of each. What would exceed what a user has is refused node by node,
//! from the end of the line on, so that it runs in the user's own process (CONTRACT 25). A line
//! that runs and whose user spends more, for two looks one after the other, is ended; the dearest
//! first.

use super::thread::{Seen, Where};
use engine::kernel::point::ShownLine;
use member::protocol::Quota;
use pipeline::Share;
use pipeline::graph::NodeId;
use pipeline::plan::Costs;
use std::collections::BTreeMap;

/// The cost of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost<'c> {
    /// Its nodes.
    pub(super) nodes: &'c [NodeId],
    /// The first source of them.
    pub(super) source: NodeId,
    /// Bytes of its pointers, and of the frames of its user.
    pub(super) bytes: (u64, u64),
    /// With whom those frames share a ring: each of them pays for it.
    pub(super) share: &'c Share,
    /// In whose place it is to be. Both have memory until then, and one of them spends time.
    pub(super) goes: Option<u64>,
}

/// The books.
#[derive(Debug)]
pub(super) struct Books {
    costs: Costs,
    lines: BTreeMap<u64, Entry>,
    /// Time of the last measurement.
    looked: u64,
    /// Frames that came to each place until then, and how many each second.
    rates: BTreeMap<Where, (u64, f64)>,
    /// Users who spent too much at the last look.
    over: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    uid: u32,
    at: Where,
    number: u32,
    bytes: (u64, u64),
    share: Share,
    /// The time spent until the last measurement, and in the last second, in ns.
    spent: (f64, f64),
}

impl Entry {
    /// Returns the key that separates its ring of frames from others of its user at one place.
    const fn frames(&self) -> (u64, &Share) {
        (self.bytes.1, &self.share)
    }
}

/// The least time between two looks, in ns.
const BETWEEN: u64 = 900_000_000;
/// Descriptors that the daemon holds for a line, and for the frames of a user.
const OF_LINE: u64 = 4;
const OF_FRAMES: u64 = 1;

impl Books {
    pub(super) const fn new(costs: Costs) -> Self {
        Self { costs, lines: BTreeMap::new(), looked: 0, rates: BTreeMap::new(), over: Vec::new() }
    }

    /// Checks that the user may have this too; the error names the node that does not run in the
    /// kernel, and the reason.
    pub(super) fn allow(
        &self,
        uid: u32,
        at: &Where,
        cost: &Cost<'_>,
        quota: Quota,
    ) -> Result<(), (NodeId, String)> {
        let used = self.of_user(uid);
        let new = u64::from(!self.has_frames(uid, at, (cost.bytes.1, cost.share)));
        let wanted = [
            ("rings", used.rings, 1 + new, quota.rings),
            ("bytes of rings", used.bytes, cost.bytes.0 + new * cost.bytes.1, quota.bytes),
            ("descriptors", used.descriptors, OF_LINE + new * OF_FRAMES, quota.descriptors),
        ];
        for (what, used, more, limit) in wanted {
            let used = used.unwrap_or(0);
            if let Some(limit) = limit.filter(|limit| used.saturating_add(more) > *limit) {
                let why = format!(
                    "you have {used} {what} in the kernel, this takes {more} more, and the policy \
                     of this machine lets you have {limit}: end some of your lines, ask for a \
                     smaller ring (`ring=`), or ask its administrator"
                );
                return Err((cost.source, why));
            }
        }
        let Some(limit) = quota.kernel_ns else { return Ok(()) };
        let rate = self.rates.get(at).map_or(0.0, |(_, rate)| *rate);
        let steps = cost.nodes.len().saturating_sub(1) as f64;
        let frame = self.costs.tap + steps * self.costs.twin + self.costs.record;
        let goes = cost.goes.map_or(0, |guest| self.costs(guest));
        let used = used.kernel_ns.unwrap_or(0).saturating_sub(goes);
        let more = (rate * frame) as u64;
        if used.saturating_add(more) <= limit {
            return Ok(());
        }
        let last = cost.nodes.iter().rev().find(|node| **node != cost.source);
        let why = format!(
            "your lines take {used} ns of each second in the kernel, this one would take {more} at \
             {rate:.0} frames/s, and the policy of this machine lets you have {limit}"
        );
        Err((last.copied().unwrap_or(cost.source), why))
    }

    fn has_frames(&self, uid: u32, at: &Where, frames: (u64, &Share)) -> bool {
        self.lines.values().any(|e| e.uid == uid && e.at == *at && e.frames() == frames)
    }

    /// A line came.
    pub(super) fn enter(
        &mut self,
        guest: u64,
        uid: u32,
        (at, number): (&Where, u32),
        (bytes, share): ((u64, u64), Share),
    ) {
        if self.lines.is_empty() {
            self.looked = sys::clock::monotonic();
        }
        let entry = Entry { uid, at: at.clone(), number, bytes, share, spent: (0.0, 0.0) };
        self.lines.insert(guest, entry);
    }

    /// A line went.
    pub(super) fn leave(&mut self, guest: u64) {
        self.lines.remove(&guest);
    }

    /// Returns the time that a line spends per second, in ns.
    pub(super) fn costs(&self, guest: u64) -> u64 {
        self.lines.get(&guest).map_or(0, |entry| entry.spent.1 as u64)
    }

    /// Returns the usage of all users.
    pub(super) fn used(&self) -> BTreeMap<u32, Quota> {
        self.lines.values().map(|entry| (entry.uid, self.of_user(entry.uid))).collect()
    }

    fn of_user(&self, uid: u32) -> Quota {
        let mut frames: Vec<(&Where, (u64, &Share))> = Vec::new();
        let (mut rings, mut bytes, mut descriptors, mut kernel_ns) = (0, 0, 0, 0.0);
        for entry in self.lines.values().filter(|entry| entry.uid == uid) {
            rings += 1;
            bytes += entry.bytes.0;
            descriptors += OF_LINE;
            kernel_ns += entry.spent.1;
            if !frames.contains(&(&entry.at, entry.frames())) {
                frames.push((&entry.at, entry.frames()));
                rings += 1;
                bytes += entry.bytes.1;
                descriptors += OF_FRAMES;
            }
        }
        Quota {
            rings: Some(rings),
            bytes: Some(bytes),
            descriptors: Some(descriptors),
            kernel_ns: Some(kernel_ns as u64),
            ..Quota::default()
        }
    }

    /// Returns true if the next measurement is due.
    pub(super) fn is_due(&self) -> bool {
        sys::clock::monotonic().saturating_sub(self.looked) >= BETWEEN
    }

    /// Takes in what lines have cost. Answers those that are to end, and why.
    pub(super) fn look(
        &mut self,
        shown: &[Seen],
        quota: impl Fn(u32) -> Option<u64>,
    ) -> Vec<(u64, String)> {
        let now = sys::clock::monotonic();
        let seconds = now.saturating_sub(std::mem::replace(&mut self.looked, now)) as f64 / 1e9;
        self.take_in(shown, seconds);
        let mut over = Vec::new();
        let mut ends = Vec::new();
        for (uid, used) in self.used() {
            let (spends, limit) = (used.kernel_ns.unwrap_or(0), quota(uid));
            let Some(limit) = limit.filter(|limit| spends > *limit) else { continue };
            over.push(uid);
            let ours = self.lines.iter().filter(|(_, entry)| entry.uid == uid);
            let dearest = ours.max_by(|(_, a), (_, b)| a.spent.1.total_cmp(&b.spent.1));
            if let Some((guest, _)) = dearest.filter(|_| self.over.contains(&uid)) {
                let why = format!(
                    "your lines take {spends} ns of each second in the kernel, and the policy of \
                     this machine lets you have {limit}: filter earlier, or ask its administrator"
                );
                ends.push((*guest, why));
            }
        }
        self.over = over;
        ends
    }

    fn take_in(&mut self, shown: &[Seen], seconds: f64) {
        let each = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        for Seen { at, shown, .. } in shown {
            let before = self.rates.get(at).map_or(0, |(frames, _)| *frames);
            let rate = each(shown.frames.saturating_sub(before) as f64);
            self.rates.insert(at.clone(), (shown.frames, rate));
            for entry in self.lines.values_mut().filter(|entry| entry.at == *at) {
                let Some(line) = shown.each.iter().find(|line| line.number == entry.number) else {
                    continue;
                };
                let spent = spent(&self.costs, line, shown.lines);
                entry.spent = (spent, each((spent - entry.spent.0).max(0.0)));
            }
        }
    }
}

/// Returns the time spent by a line so far, in ns, its shared filters divided among the lines.
fn spent(costs: &Costs, line: &ShownLine, lines: usize) -> f64 {
    let steps = line.steps.iter();
    let steps = steps.map(|(_, lines, blocks)| *blocks as f64 / (*lines).max(1) as f64);
    let copied = line.given.bytes as f64 / 1024.0 * costs.copy;
    line.taken.blocks as f64 * costs.tap / lines.max(1) as f64
        + steps.sum::<f64>() * costs.twin
        + line.given.blocks as f64 * costs.record
        + copied
}
