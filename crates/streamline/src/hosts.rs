//! Selection of the party that runs filters of a request in the kernel: the daemon, in the program
//! shared by all users, or this process.
//!
//! If the daemon refuses a filter, this process loads it itself where its rights allow; otherwise
//! the filter is planned into a thread. A user without the right to open a packet socket can have
//! live sources only through the daemon; the request is then pinned to the kernel, so that no later
//! plan moves its sources.

use crate::notice::Notices;
use engine::build::BuildError;
use engine::kernel::point::Points;
use engine::kernel::{Host, KernelAttachment, KernelRequest};
use engine::{doctor, machine};
use member::client::ClientError;
use member::host::DaemonHost;
use pipeline::Graph;
use pipeline::graph::Step;
use pipeline::plan::{Machine, Plan, Unplaceable};

/// The parties that can run parts of a request in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    daemon: Option<DaemonHost>,
    own: Points,
    /// True if this process may load kernel programs itself.
    privileged: bool,
}

impl Hosts {
    /// Returns a selection without the daemon.
    pub(crate) fn alone() -> Self {
        Self { privileged: true, ..Self::default() }
    }

    /// Selects the hosts of a request. Returns them with the description of the machine to plan
    /// for: the daemon's kernel space if a daemon serves it. `alone` excludes the daemon.
    ///
    /// May pin sources in `graph` to the kernel.
    pub(crate) fn find(graph: &mut Graph, alone: bool, notices: &Notices) -> (Self, Machine) {
        let mut machine = machine::look();
        if alone || !sources(graph).any(|live| live) {
            return (Self::alone(), machine);
        }
        let found = DaemonHost::find().unwrap_or_else(|error| {
            if !matches!(error, ClientError::NoDaemon(_)) {
                notices.note(&format!("the daemon runs nothing of it in the kernel: {error}"));
            }
            None
        });
        let Some(daemon) = found else { return (Self::alone(), machine) };
        let privileged = machine.kernel.is_open();
        machine.kernel = daemon.kernel();
        if !privileged && doctor::packet_ring().is_err() {
            pin(graph);
        }
        (Self { daemon: Some(daemon), own: Points::default(), privileged }, machine)
    }
}

impl Hosts {
    /// Replans without the filters that the daemon's policy will refuse.
    pub(crate) fn foresee(&self, plan: Plan, machine: &Machine) -> Result<Plan, Unplaceable> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| !self.privileged) else {
            return Ok(plan);
        };
        let mut plan = plan;
        // Each round can expose another filter that the policy refuses.
        while let Some(again) = plan.without(machine, &daemon.foreseen(&plan)) {
            plan = again?;
        }
        Ok(plan)
    }
}

impl Host for Hosts {
    fn add(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        let Some(daemon) = &self.daemon else { return self.own.add(asked) };
        match daemon.add(asked) {
            Err(BuildError::Refused(refused)) if self.privileged => {
                // The daemon's reason is the useful one only if this process is refused as well.
                self.own.add(asked).map_err(|_| BuildError::Refused(refused))
            }
            other => other,
        }
    }
}

/// Returns, for each source of a graph, true if a kernel program can replace it.
fn sources(graph: &Graph) -> impl Iterator<Item = bool> {
    graph
        .ids()
        .filter_map(|(_, node)| Some(node.filter()?.attach()?.is_ok_and(|attach| !attach.takes)))
}

/// The displayed reason for a pin that [`pin`] adds.
const NO_SOCKET: &str = "you may open no packet socket: only the kernel can give it, by the daemon";

/// Pins to the kernel each source that a kernel program can replace.
fn pin(graph: &mut Graph) {
    for node in &mut graph.nodes {
        let Step::Filter(used) = &mut node.step else { continue };
        let Some(attach) = used.attach() else { continue };
        if used.pin.is_none() && attach.is_ok_and(|attach| !attach.takes) {
            used.pin = Some("kernel".to_owned());
            used.pin_reason = Some(NO_SOCKET);
        }
    }
}
