//! The party that runs the beginning of a request in the kernel: the daemon, where one is that may,
//! in the program that all users share; else this process.
//!
//! What the daemon refuses this process runs itself, if it may; else it runs in a thread, as the
//! plan that is made again says. A user who may not even open a packet socket has sources nowhere
//! but in the kernel, by the daemon: then that is written into the request, so that no plan puts
//! them elsewhere.

use crate::options::Notices;
use engine::build::BuildError;
use engine::kernel::point::Points;
use engine::kernel::{Asked, Host, Lent};
use engine::{doctor, machine};
use member::client::ClientError;
use member::host::Through;
use pipeline::Graph;
use pipeline::graph::Step;
use pipeline::plan::{Machine, Plan, Unplaceable};

/// The parties that can run parts of a request in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    daemon: Option<Through>,
    own: Points,
    /// True if this process may do it.
    may: bool,
}

impl Hosts {
    /// This process alone.
    pub(crate) fn alone() -> Self {
        Self { may: true, ..Self::default() }
    }

    /// The parties for this request, and the machine as it is planned for then; `alone`: without
    /// the daemon.
    pub(crate) fn find(graph: &mut Graph, alone: bool, notices: &Notices) -> (Self, Machine) {
        let mut machine = machine::look();
        if alone || !sources(graph).any(|live| live) {
            return (Self::alone(), machine);
        }
        let found = Through::find().unwrap_or_else(|error| {
            if !matches!(error, ClientError::Nobody(_)) {
                notices.note(&format!("the daemon runs nothing of it in the kernel: {error}"));
            }
            None
        });
        let Some(daemon) = found else { return (Self::alone(), machine) };
        let may = machine.kernel.is_open();
        machine.kernel = daemon.kernel();
        if !may && doctor::packet_ring().is_err() {
            pin(graph);
        }
        (Self { daemon: Some(daemon), own: Points::default(), may }, machine)
    }
}

impl Hosts {
    /// The plan as it will be when the daemon is asked: without what its policy will refuse.
    pub(crate) fn foresee(&self, plan: Plan, machine: &Machine) -> Result<Plan, Unplaceable> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| !self.may) else { return Ok(plan) };
        let mut plan = plan;
        // What was behind something that is refused may be refused itself.
        while let Some(again) = plan.again(machine, &daemon.foreseen(&plan)) {
            plan = again?;
        }
        Ok(plan)
    }
}

impl Host for Hosts {
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError> {
        let Some(daemon) = &self.daemon else { return self.own.add(asked) };
        match daemon.add(asked) {
            Err(BuildError::Refused(refused)) if self.may => {
                // Why the daemon does not is of use only where we cannot either.
                self.own.add(asked).map_err(|_| BuildError::Refused(refused))
            }
            other => other,
        }
    }
}

/// One item for each source: true if a program can stand for it.
fn sources(graph: &Graph) -> impl Iterator<Item = bool> {
    graph
        .ids()
        .filter_map(|(_, node)| Some(node.filter()?.attach()?.is_ok_and(|attach| !attach.takes)))
}

/// The reason of a pin that the request does not have.
const NO_SOCKET: &str = "you may open no packet socket: only the kernel can give it, by the daemon";

/// Pins sources for which a program can stand to the kernel.
fn pin(graph: &mut Graph) {
    for node in &mut graph.nodes {
        let Step::Filter(used) = &mut node.step else { continue };
        let Some(attach) = used.attach() else { continue };
        if used.pin.is_none() && attach.is_ok_and(|attach| !attach.takes) {
            used.pin = Some("kernel".to_owned());
            used.only = Some(NO_SOCKET);
        }
    }
}
