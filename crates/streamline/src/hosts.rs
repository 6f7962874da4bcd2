//! Selection of the host that runs a request's filters in the kernel: the daemon, in programs
//! shared by all users, or this process.
//!
//! If the daemon refuses a filter, this process loads the filter if its privileges suffice;
//! otherwise the filter is placed in a thread. A user who may not open packet sockets can use live
//! sources only through the daemon; these sources are pinned to the kernel, so that no later plan
//! moves them.

use crate::notice::Notices;
use engine::build::BuildError;
use engine::kernel::shared_attach_point::AttachPoints;
use engine::kernel::{KernelAttachment, KernelHost, KernelRequest};
use engine::{doctor, machine};
use member::client::ClientError;
use member::host::DaemonHost;
use pipeline::Graph;
use pipeline::graph::Step;
use pipeline::plan::{Machine, Plan, Unplaceable};

/// The hosts that can run parts of a request in the kernel.
#[derive(Debug, Default)]
pub(crate) struct KernelHosts {
    daemon: Option<DaemonHost>,
    own: AttachPoints,
    /// True if this process may load kernel programs.
    privileged: bool,
}

impl KernelHosts {
    /// Returns the hosts for a run that uses only this process, and no daemon.
    pub(crate) fn local_only() -> Self {
        Self { privileged: true, ..Self::default() }
    }

    /// Selects the hosts of a request. Returns the hosts, and the description of the machine for
    /// which to plan. If a daemon serves the request, the description contains the kernel
    /// capabilities that the daemon reports. If `alone` is true, the daemon is not used.
    ///
    /// May pin sources in `graph` to the kernel.
    pub(crate) fn find(graph: &mut Graph, alone: bool, notices: &Notices) -> (Self, Machine) {
        let mut machine = machine::inspect_machine();
        if alone || !replaceable_sources(graph).any(|live| live) {
            return (Self::local_only(), machine);
        }
        let daemon = DaemonHost::find().unwrap_or_else(|error| {
            if !matches!(error, ClientError::NoDaemon(_)) {
                notices
                    .raise_note(&format!("the daemon runs nothing of it in the kernel: {error}"));
            }
            None
        });
        let Some(daemon) = daemon else { return (Self::local_only(), machine) };
        let privileged = machine.kernel.can_load_programs();
        machine.kernel = daemon.kernel();
        if !privileged && doctor::probe_packet_ring().is_err() {
            pin_to_kernel(graph);
        }
        (Self { daemon: Some(daemon), own: AttachPoints::default(), privileged }, machine)
    }
}

impl KernelHosts {
    /// Moves the filters that the daemon's policy would refuse to other spaces, by planning again.
    /// Returns the plan unchanged if there is no daemon, or if this process can load programs
    /// itself. Fails if a refused filter can run in no other space.
    pub(crate) fn plan_within_policy(
        &self,
        plan: Plan,
        machine: &Machine,
    ) -> Result<Plan, Unplaceable> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| !self.privileged) else {
            return Ok(plan);
        };
        let mut plan = plan;
        // Each round can expose another filter that the policy refuses.
        while let Some(again) = plan.replan_after_refusals(machine, &daemon.policy_refusals(&plan))
        {
            plan = again?;
        }
        Ok(plan)
    }
}

impl KernelHost for KernelHosts {
    fn attach(&self, request: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        let Some(daemon) = &self.daemon else { return self.own.attach(request) };
        match daemon.attach(request) {
            Err(BuildError::Refused(refused)) if self.privileged => {
                // The daemon's reason is useful only if this process is refused too.
                self.own.attach(request).map_err(|_| BuildError::Refused(refused))
            }
            other => other,
        }
    }
}

/// Returns, for each source that has a kernel implementation, true if a kernel program that only
/// observes frames can replace the source.
fn replaceable_sources(graph: &Graph) -> impl Iterator<Item = bool> {
    graph.nodes_with_ids().filter_map(|(_, node)| {
        Some(node.filter()?.attachment()?.is_ok_and(|attach| !attach.redirects))
    })
}

/// Reason, printed by `explain`, for a source that [`pin_to_kernel`] pins.
const NO_SOCKET_REASON: &str = "you may not open a packet socket: only a kernel program of the \
                         daemon can observe frames";

/// Pins each source to the kernel that a kernel program can replace without taking frames from the
/// host. Leaves sources that the request already pins unchanged.
fn pin_to_kernel(graph: &mut Graph) {
    for node in &mut graph.nodes {
        let Step::Filter(used) = &mut node.step else { continue };
        let Some(attach) = used.attachment() else { continue };
        if used.pin.is_none() && attach.is_ok_and(|attach| !attach.redirects) {
            used.pin = Some("kernel".to_owned());
            used.pin_reason = Some(NO_SOCKET_REASON);
        }
    }
}
