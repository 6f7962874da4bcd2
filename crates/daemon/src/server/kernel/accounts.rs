//! Quota accounting of the kernel space: rings, bytes, descriptors, time. (RELIABILITY T12, T18)
//!
//! Rings, bytes and descriptors are checked before anything is created. Time is estimated from the
//! blocks per filter and the frames copied, with the planner's cost table; the cost of a filter
//! that several requests share is divided among them. If a request exceeds the time quota, its last
//! nodes are refused until the rest is within the quota; if it exceeds another quota, its source is
//! refused. Refused nodes run in the user's own process (CONTRACT 25). If a user exceeds the time
//! quota in two successive measurements, the user's most expensive request is removed.

use super::commands::{AttachPoint, ProgramStatus};
use engine::kernel::shared_attach_point::RequestStatus;
use member::protocol::Quota;
use pipeline::RingSharing;
use pipeline::graph::NodeId;
use pipeline::plan::Costs;
use std::collections::BTreeMap;

/// The resources that a new kernel request needs, for the check of its user's quota.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestCost<'c> {
    /// Nodes of the request.
    pub(super) nodes: &'c [NodeId],
    /// The first source among `nodes`.
    pub(super) source: NodeId,
    /// Sizes, in bytes, of the rings that the request needs: first of its pointer rings together,
    /// then of its ring for frames. Other requests may share the ring for frames.
    pub(super) bytes: (u64, u64),
    /// Rule that determines which requests may share a ring for frames. Each user with a request in
    /// the ring is charged for the entire ring.
    pub(super) share: &'c RingSharing,
    /// The client whose running request the new request will replace; `None` if it replaces none.
    /// Both requests occupy memory until the replacement, but only one of them uses time.
    pub(super) replaces: Option<u64>,
}

/// The accounts of all kernel requests, by client, and the results of the last measurement of their
/// cost.
#[derive(Debug)]
pub(super) struct Accounts {
    costs: Costs,
    lines: BTreeMap<u64, Account>,
    /// Monotonic time of the last measurement of the cost of the requests, in ns.
    measured_at: u64,
    /// Frame counts of the kernel programs at the last measurement, by attach point and user. Each
    /// value is the total number of frames of a program, and its number of frames per second. The
    /// key `None` stands for a program that several users share.
    frame_rates: BTreeMap<AttachPoint, BTreeMap<Option<u32>, (u64, f64)>>,
    /// Users who exceeded their time quota at the last measurement.
    users_over_quota: Vec<u32>,
}

#[derive(Debug)]
struct Account {
    uid: u32,
    at: AttachPoint,
    number: u32,
    bytes: (u64, u64),
    share: RingSharing,
    /// Kernel time of the request according to the last measurement: in total, in ns, and per
    /// second, in ns.
    kernel_time_ns: (f64, f64),
}

impl Account {
    /// Returns a key for the ring that holds the copied frames of the request. Requests of the same
    /// user at the same attach point share this ring if their keys are equal.
    const fn frame_ring_key(&self) -> (u64, &RingSharing) {
        (self.bytes.1, &self.share)
    }
}

/// Minimum interval between two measurements of the cost of the requests, in ns.
const COST_MEASUREMENT_INTERVAL_MIN_NS: u64 = 900_000_000;
/// Number of descriptors that the daemon holds per request.
const DESCRIPTORS_PER_REQUEST: u64 = 4;
/// Number of descriptors that the daemon holds per ring for frames.
const DESCRIPTORS_PER_RING: u64 = 1;

impl Accounts {
    pub(super) const fn new(costs: Costs) -> Self {
        Self {
            costs,
            lines: BTreeMap::new(),
            measured_at: 0,
            frame_rates: BTreeMap::new(),
            users_over_quota: Vec::new(),
        }
    }

    /// Checks that a user's quota admits a new request. Fails with the node that must not run in
    /// the kernel, and the reason.
    pub(super) fn check_quota(
        &self,
        uid: u32,
        at: &AttachPoint,
        cost: &RequestCost<'_>,
        quota: Quota,
    ) -> Result<(), (NodeId, String)> {
        let used = self.user_usage(uid);
        let new = u64::from(!self.has_frame_ring(uid, at, (cost.bytes.1, cost.share)));
        let wanted = [
            ("rings", used.rings, 1 + new, quota.rings),
            ("bytes of rings", used.bytes, cost.bytes.0 + new * cost.bytes.1, quota.bytes),
            (
                "descriptors",
                used.descriptors,
                DESCRIPTORS_PER_REQUEST + new * DESCRIPTORS_PER_RING,
                quota.descriptors,
            ),
        ];
        for (what, used, more, limit) in wanted {
            let used = used.unwrap_or(0);
            if let Some(limit) = limit.filter(|limit| used.saturating_add(more) > *limit) {
                let why = format!(
                    "you have {used} {what} in the kernel, this request needs {more} more, and the \
                     policy of this machine permits {limit}: stop some of your requests, use a \
                     smaller ring (`ring=`), or ask the administrator"
                );
                return Err((cost.source, why));
            }
        }
        let Some(limit) = quota.kernel_ns else { return Ok(()) };
        let rate = self.frame_rate(at);
        let steps = cost.nodes.len().saturating_sub(1) as f64;
        let frame = self.costs.tap + steps * self.costs.twin + self.costs.record;
        let replaces = cost.replaces.map_or(0, |client| self.kernel_ns_per_second(client));
        let used = used.kernel_ns.unwrap_or(0).saturating_sub(replaces);
        let more = (rate * frame) as u64;
        if used.saturating_add(more) <= limit {
            return Ok(());
        }
        let last = cost.nodes.iter().rev().find(|node| **node != cost.source);
        let why = format!(
            "your requests use {used} ns per second in the kernel, this one would use {more} at \
             {rate:.0} frames/s, and the policy of this machine permits {limit}"
        );
        Err((last.copied().unwrap_or(cost.source), why))
    }

    /// Returns the number of frames per second that all programs at an attach point process
    /// together.
    fn frame_rate(&self, at: &AttachPoint) -> f64 {
        self.frame_rates
            .get(at)
            .map_or(0.0, |programs| programs.values().map(|(_, rate)| rate).sum())
    }

    fn has_frame_ring(&self, uid: u32, at: &AttachPoint, frames: (u64, &RingSharing)) -> bool {
        self.lines.values().any(|e| e.uid == uid && e.at == *at && e.frame_ring_key() == frames)
    }

    /// Adds a client's request to the accounts.
    pub(super) fn add_request(
        &mut self,
        client: u64,
        uid: u32,
        (at, number): (&AttachPoint, u32),
        (bytes, share): ((u64, u64), RingSharing),
    ) {
        if self.lines.is_empty() {
            self.measured_at = sys::clock::monotonic_ns();
        }
        let entry =
            Account { uid, at: at.clone(), number, bytes, share, kernel_time_ns: (0.0, 0.0) };
        self.lines.insert(client, entry);
    }

    /// Removes a client's request from the accounts.
    pub(super) fn remove_request(&mut self, client: u64) {
        self.lines.remove(&client);
    }

    /// Returns the kernel time of a client's request, in ns per second; 0 if the client has no
    /// request.
    pub(super) fn kernel_ns_per_second(&self, client: u64) -> u64 {
        self.lines.get(&client).map_or(0, |entry| entry.kernel_time_ns.1 as u64)
    }

    /// Returns the resources that the kernel requests of each user occupy, by user ID.
    pub(super) fn usage_by_user(&self) -> BTreeMap<u32, Quota> {
        self.lines.values().map(|entry| (entry.uid, self.user_usage(entry.uid))).collect()
    }

    fn user_usage(&self, uid: u32) -> Quota {
        let mut frames: Vec<(&AttachPoint, (u64, &RingSharing))> = Vec::new();
        let (mut rings, mut bytes, mut descriptors, mut kernel_ns) = (0, 0, 0, 0.0);
        for entry in self.lines.values().filter(|entry| entry.uid == uid) {
            rings += 1;
            bytes += entry.bytes.0;
            descriptors += DESCRIPTORS_PER_REQUEST;
            kernel_ns += entry.kernel_time_ns.1;
            if !frames.contains(&(&entry.at, entry.frame_ring_key())) {
                frames.push((&entry.at, entry.frame_ring_key()));
                rings += 1;
                bytes += entry.bytes.1;
                descriptors += DESCRIPTORS_PER_RING;
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

    /// Returns true if it is time for the next measurement of the requests' cost.
    pub(super) fn is_measurement_due(&self) -> bool {
        sys::clock::monotonic_ns().saturating_sub(self.measured_at)
            >= COST_MEASUREMENT_INTERVAL_MIN_NS
    }

    /// Measures the cost of all requests from the counters of the kernel programs. Returns the
    /// clients whose requests must be removed, with the reasons. These are the costliest requests
    /// of users who have exceeded their quota both in this measurement and in the previous one.
    pub(super) fn measure_costs(
        &mut self,
        status: &[ProgramStatus],
        quota: impl Fn(u32) -> Option<u64>,
    ) -> Vec<(u64, String)> {
        let now = sys::clock::monotonic_ns();
        let seconds =
            now.saturating_sub(std::mem::replace(&mut self.measured_at, now)) as f64 / 1e9;
        self.update_kernel_time_rates(status, seconds);
        let mut users_over_quota = Vec::new();
        let mut ends = Vec::new();
        for (uid, used) in self.usage_by_user() {
            let (spends, limit) = (used.kernel_ns.unwrap_or(0), quota(uid));
            let Some(limit) = limit.filter(|limit| spends > *limit) else { continue };
            users_over_quota.push(uid);
            let ours = self.lines.iter().filter(|(_, entry)| entry.uid == uid);
            let costliest =
                ours.max_by(|(_, a), (_, b)| a.kernel_time_ns.1.total_cmp(&b.kernel_time_ns.1));
            if let Some((client, _)) = costliest.filter(|_| self.users_over_quota.contains(&uid)) {
                let why = format!(
                    "your requests use {spends} ns per second in the kernel, and the policy of \
                     this machine permits {limit}: filter earlier, or ask the administrator"
                );
                ends.push((*client, why));
            }
        }
        self.users_over_quota = users_over_quota;
        ends
    }

    fn update_kernel_time_rates(&mut self, status: &[ProgramStatus], seconds: f64) {
        let each = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let before = std::mem::take(&mut self.frame_rates);
        for ProgramStatus { at, status, .. } in status {
            let programs = self.frame_rates.entry(at.clone()).or_default();
            programs.entry(status.user).or_default().0 += status.frames;
        }
        for (at, programs) in &mut self.frame_rates {
            for (user, (frames, rate)) in programs {
                let known = before.get(at).and_then(|programs| programs.get(user));
                let more = frames.saturating_sub(known.map_or(0, |(frames, _)| *frames));
                *rate = each(more as f64);
            }
        }
        for ProgramStatus { at, status, .. } in status {
            for entry in self.lines.values_mut().filter(|entry| entry.at == *at) {
                let Some(line) = status.requests.iter().find(|line| line.number == entry.number)
                else {
                    continue;
                };
                let kernel_time_ns =
                    estimate_kernel_time_ns(&self.costs, line, status.request_count);
                entry.kernel_time_ns =
                    (kernel_time_ns, each((kernel_time_ns - entry.kernel_time_ns.0).max(0.0)));
            }
        }
    }
}

/// Estimates the kernel time that a request has used so far, in ns. `lines` is the number of
/// requests in the program; they share the cost of receiving a frame equally. Requests that share a
/// filter also share its cost equally.
fn estimate_kernel_time_ns(costs: &Costs, line: &RequestStatus, lines: usize) -> f64 {
    let steps = line.steps.iter();
    let steps = steps.map(|(_, lines, blocks)| *blocks as f64 / (*lines).max(1) as f64);
    let copied = line.delivered.bytes as f64 / 1024.0 * costs.copy;
    line.processed.blocks as f64 * costs.tap / lines.max(1) as f64
        + steps.sum::<f64>() * costs.twin
        + line.delivered.blocks as f64 * costs.record
        + copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::kernel::shared_attach_point::PointStatus;

    fn program_status(user: Option<u32>, frames: u64) -> ProgramStatus {
        let status = PointStatus {
            user,
            program: 1,
            runs: 0,
            request_count: 0,
            frame_rings: 0,
            replaced: 0,
            steps: Vec::new(),
            frames,
            requests: Vec::new(),
            rings: Vec::new(),
        };
        ProgramStatus { at: attach_point(), status, requests: BTreeMap::new() }
    }

    fn attach_point() -> AttachPoint {
        ("eth0".to_owned(), None, "tc")
    }

    #[test]
    fn rates_of_programs_at_one_attach_point_are_added() {
        let mut accounts = Accounts::new(Costs::default());
        let programs = |frames: [u64; 2]| {
            [program_status(Some(1), frames[0]), program_status(Some(2), frames[1])]
        };
        accounts.update_kernel_time_rates(&programs([1_000, 10]), 1.0);
        accounts.update_kernel_time_rates(&programs([4_000, 30]), 2.0);
        assert_eq!(accounts.frame_rate(&attach_point()) as u64, 1_510);
        // A program that ended leaves no rate, and does not reduce that of another.
        accounts.update_kernel_time_rates(&[program_status(Some(2), 50)], 1.0);
        assert_eq!(accounts.frame_rate(&attach_point()) as u64, 20);
    }
}
