//! The thread that loads and removes kernel programs. It executes one command at a time, in order.

use super::accounts::{Accounts, RequestCost};
use super::commands::{
    AdoptedRequest, AdoptedRequests, AttachPoint, Command, Completion, ProgramStatus,
};
use crate::policy::Policy;
use crate::server::store::ServiceManagerStore;
use abi::access::Credentials;
use engine::build::BuildError;
use engine::kernel::delegation::{
    AdmissionPolicy, AttachTarget as Watched, DelegatedProgram, DelegatedRequest,
    DelegatedSuccessor, KernelPart, RequestOwner, ResourceNeeds, TrafficDirection,
};
use engine::kernel::shared_attach_point::{
    self, AdoptedStatus, AttachPoints, PersistedRequest, PointStatus,
};
use engine::registry::MachineRegistry;
use member::faults;
use member::host::network_namespace_id;
use member::protocol::{AttachParameters, CarriedStep, Quota, Replacement, SetTapsParameters};
use member::rights::Denial;
use member::varlink::Fault;
use pipeline::RingSharing;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{KernelRefusal, Machine, complete_with_sinks};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::rollback::RollbackLog;

/// State of the thread that manages kernel programs: attach points, requests, prepared replacements
/// and quotas.
#[derive(Debug)]
pub(super) struct KernelThread {
    points: AttachPoints,
    machine: Machine,
    policy: Policy,
    lines: BTreeMap<u64, ClientRequest>,
    /// Requests that are prepared to replace a running request, by client number.
    successors: BTreeMap<u64, PreparedReplacement>,
    accounts: Accounts,
    usage_by_user: Arc<Mutex<BTreeMap<u32, Quota>>>,
}

/// A client's request that runs in the kernel.
#[derive(Debug)]
struct ClientRequest {
    running: DelegatedRequest,
    owner: u32,
    at: AttachPoint,
    number: u32,
    process: i32,
}

/// The description of a client's request that the daemon stores with the request, so that the next
/// daemon can adopt it.
#[derive(Debug, Serialize, Deserialize)]
struct StoredRequestDescription {
    client: u64,
    process: i32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    line: String,
    part: String,
}

/// A request that a new request will replace: the number of its client, the request itself, and the
/// filters that keep their state. Each filter is given as its index in the old and its index in the
/// new kernel program.
type ReplacedRequest<'l> = (u64, &'l DelegatedRequest, Vec<(usize, usize)>);

/// A prepared replacement of a running request.
#[derive(Debug)]
struct PreparedReplacement {
    waiting: DelegatedSuccessor,
    /// Number of the client whose running request this one will replace.
    replaced_client: u64,
    process: i32,
}

/// Interval between two measurements of the cost of requests.
const COST_MEASUREMENT_INTERVAL: Duration = Duration::from_secs(1);

impl KernelThread {
    pub(super) fn new(
        machine: Machine,
        policy: Policy,
        (usage_by_user, steps): (Arc<Mutex<BTreeMap<u32, Quota>>>, RollbackLog),
    ) -> Self {
        let accounts = Accounts::new(machine.costs.clone());
        // Without a descriptor store, notifying the service manager of each change would be wasted
        // work.
        let points = match sys::service::can_store_descriptors() {
            true => AttachPoints::with_keeper(Arc::new(ServiceManagerStore), steps),
            false => AttachPoints::with_log(steps),
        };
        let (lines, successors) = (BTreeMap::new(), BTreeMap::new());
        Self { points, machine, policy, lines, successors, accounts, usage_by_user }
    }

    /// Adopts stored requests of the previous daemon, if the current policy permits them.
    pub(super) fn adopt_requests(&mut self, stored: Vec<(String, OwnedFd)>) -> AdoptedRequests {
        let read = |about: &str| {
            let about: StoredRequestDescription = serde_json::from_str(about)
                .map_err(|_| "the owner of the stored request is unknown".to_owned())?;
            let graph = self
                .parse_request(&about.line)
                .map_err(|fault| fault.text_parameter("why").to_owned())?;
            let part = KernelPart::from_text(&about.part)
                .ok_or("the stored part of the request is malformed")?;
            let who = Credentials { uid: about.uid, gid: about.gid, groups: about.groups };
            let programs = part.nodes.iter().find_map(|node| {
                let filter = graph.node(*node).filter()?;
                Some((*node, filter.attachment()?.ok()?))
            });
            let (source, attach) = programs.ok_or("it names no attachment point")?;
            let needs = ResourceNeeds {
                attach: &attach,
                source,
                bytes: (0, 0),
                share: RingSharing::from_graph(&graph),
                exits_per_frame: 0,
            };
            self.check_grants(&who, (&graph, &part), &needs).map_err(|(_, why)| why)?;
            Ok(PersistedRequest { graph, part, owner: about.uid })
        };
        let (adopted, refused) = self.points.adopt_persisted_points(stored, &self.machine, &read);
        let mut adoption = AdoptedRequests::default();
        for shared_attach_point::AdoptedRequest { about, status } in adopted {
            let Ok(StoredRequestDescription { client, process, uid, .. }) =
                serde_json::from_str(&about)
            else {
                continue;
            };
            let ended = match status {
                AdoptedStatus::Ended(ended) => Some(ended),
                AdoptedStatus::Runs(running) => {
                    let (at, number) = self.charge_request(client, uid, &running);
                    self.lines
                        .insert(client, ClientRequest { running, owner: uid, at, number, process });
                    None
                }
            };
            adoption.lines.push(AdoptedRequest { client, uid, ended });
        }
        let note = |why: String| {
            format!("requests that ran in the kernel for the previous daemon have ended: {why}")
        };
        adoption.notes = refused.into_iter().map(note).collect();
        adoption
    }

    /// Executes commands until the queue closes. Also ends on [`Command::LeaveRunning`], which
    /// leaves the requests in the kernel. After each command, measures the cost of the requests if
    /// a measurement is due. Without commands, does so every [`COST_MEASUREMENT_INTERVAL`] while
    /// there are requests.
    pub(super) fn run(
        mut self,
        commands: &Receiver<Command>,
        completions: &Sender<Completion>,
        doorbell: &EventFd,
    ) {
        // The server may already be gone.
        let complete = |what: Completion| drop(completions.send(what));
        loop {
            let command = match self.lines.is_empty() {
                true => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => commands.recv_timeout(COST_MEASUREMENT_INTERVAL),
            };
            match command {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.measure_costs(&complete),
                Ok(Command::LeaveRunning) => {
                    complete(Completion::Ended);
                    doorbell.notify();
                    // Dropping `self` would remove the requests.
                    std::mem::forget(self);
                    return;
                }
                Ok(command) => {
                    self.execute(command, &complete);
                    self.measure_costs(&complete);
                    complete(Completion::Ready);
                }
            }
            *self.usage_by_user.lock().unwrap_or_else(PoisonError::into_inner) =
                self.accounts.usage_by_user();
            doorbell.notify();
        }
    }

    fn execute(&mut self, command: Command, complete: &dyn Fn(Completion)) {
        match command {
            Command::Attach { client, who, process, asked } => {
                if let Some(Replacement { line, .. }) = asked.instead {
                    self.drop_pending_replacement(who.uid, line, complete);
                }
                let result = self.attach(client, (&who, process), &asked);
                complete(Completion::AttachReply { client, result });
            }
            Command::Switch { client } => {
                let result = self.switch(client, complete);
                complete(Completion::Switched { client, result });
            }
            Command::Detach { client, why } => self.detach(client, why, complete),
            Command::Count { client, number } => {
                let line = self.lines.get(&client);
                let counters = line.map(|line| Box::new(line.running.current_counters()));
                complete(Completion::Counted { client, number, counters });
            }
            Command::SetTaps { client, open } => {
                if let Some(line) = self.lines.get(&client) {
                    // An error is ignored, because the counters show the client whether the taps
                    // are open.
                    let _ = line.running.set_taps(&open);
                }
            }
            Command::ReportPrograms { client } => {
                complete(Completion::Status { client, status: self.program_status() })
            }
            Command::End { why } => {
                let all: Vec<u64> =
                    self.lines.keys().chain(self.successors.keys()).copied().collect();
                all.into_iter().for_each(|client| self.detach(client, Some(why.clone()), complete));
                complete(Completion::Ended);
            }
            // This command is handled in `run`, which ends the thread.
            Command::LeaveRunning => {}
        }
    }

    fn attach(
        &mut self,
        client: u64,
        (who, process): (&Credentials, i32),
        asked: &AttachParameters,
    ) -> Result<DelegatedProgram, Fault> {
        let own = env!("CARGO_PKG_VERSION");
        if asked.version != own {
            let version: String = asked.version.chars().take(40).collect();
            let why =
                format!("the daemon has version {own}, but this program has version {version}");
            return Err(faults::not_in_kernel(0, "version", &why));
        }
        let part =
            KernelPart::from_text(&asked.part).ok_or_else(|| Fault::invalid_parameter("part"))?;
        let graph = self.parse_request(&asked.line)?;
        let instead =
            asked.instead.as_ref().map(|instead| self.find_replaced_request(who, instead));
        let instead = instead.transpose()?;
        let by = RefCell::new("kernel");
        let refused = |name: &'static str, node: NodeId, why: String| {
            by.replace(name);
            KernelRefusal { node, why }
        };
        let allows = |needs: &ResourceNeeds<'_>| {
            let attach = needs.attach;
            let source = needs.source;
            if attach.netns.is_none() && asked.network != network_namespace_id() {
                return Err(refused("place", source, FOREIGN_NAMESPACE_MESSAGE.to_owned()));
            }
            self.check_grants(who, (&graph, &part), needs)
                .map_err(|(node, why)| refused("policy", node, why))?;
            let quota = self.policy.quota(who.uid);
            let at = attach_point(attach, who.uid);
            let replaces = asked.instead.as_ref().map(|instead| instead.line);
            let (nodes, bytes, share) = (&part.nodes, needs.bytes, &needs.share);
            let cost = RequestCost { nodes, source, bytes, share, replaces };
            let allowed = self.accounts.check_quota(who.uid, &at, &cost, quota);
            allowed.map_err(|(node, why)| refused("quota", node, why))
        };
        let about = StoredRequestDescription {
            client,
            process,
            uid: who.uid,
            gid: who.gid,
            groups: who.groups.clone(),
            line: asked.line.clone(),
            part: asked.part.clone(),
        };
        let about = serde_json::to_string(&about).unwrap_or_default();
        let request = (&graph, &part);
        let (owner, about) = (who.uid, RequestOwner { uid: who.uid, about: &about });
        let to_fault = |error: BuildError| match error {
            BuildError::Refused(KernelRefusal { node, why }) => {
                faults::not_in_kernel(node.0, by.take(), &why)
            }
            BuildError::Outside { node, failure } => {
                faults::not_in_kernel(node.0, "kernel", &failure.to_string())
            }
            other => faults::not_in_kernel(0, "kernel", &other.to_string()),
        };
        if let Some((instead, running, stays)) = instead {
            let by = (about, &allows as AdmissionPolicy<'_>);
            let taps = asked.instead.as_ref().and_then(|instead| instead.taps.as_deref());
            let how = (
                stays.as_slice(),
                SetTapsParameters::open_taps_from_indices(taps.unwrap_or_default()),
            );
            let made =
                self.points.prepare_delegated_successor(running, request, &self.machine, how, by);
            let (delegation, waiting) = made.map_err(to_fault)?;
            self.charge_request(client, owner, waiting.prepared_request());
            self.successors
                .insert(client, PreparedReplacement { waiting, replaced_client: instead, process });
            return Ok(delegation);
        }
        let attached = self.points.attach_delegated(request, &self.machine, about, &allows);
        let (delegation, running) = attached.map_err(to_fault)?;
        let (at, number) = self.charge_request(client, owner, &running);
        self.lines.insert(client, ClientRequest { running, owner, at, number, process });
        Ok(delegation)
    }

    /// Adds a running request of a client to the accounts. Returns the request's attach point and
    /// number.
    fn charge_request(
        &mut self,
        client: u64,
        owner: u32,
        running: &DelegatedRequest,
    ) -> (AttachPoint, u32) {
        let at = attach_point(&running.attach, owner);
        let number = running.request_number().unwrap_or_default();
        self.accounts.add_request(
            client,
            owner,
            (&at, number),
            (running.bytes, running.share.clone()),
        );
        (at, number)
    }

    /// Discards an earlier replacement that was prepared for a user's request and is still waiting,
    /// because the user prepares another one. The client of the earlier replacement has usually
    /// disconnected, but its hangup has not been processed yet.
    fn drop_pending_replacement(&mut self, uid: u32, line: u64, complete: &dyn Fn(Completion)) {
        let ours = self.lines.get(&line).is_some_and(|line| line.owner == uid);
        let waits = self.successors.iter().find(|(_, one)| ours && one.replaced_client == line);
        if let Some(client) = waits.map(|(client, _)| *client) {
            let why =
                "another request has replaced the one that it was prepared to replace".to_owned();
            self.detach(client, Some(why), complete);
        }
    }

    /// Finds the request that `instead` replaces. Fails if it does not exist or does not belong to
    /// this user.
    fn find_replaced_request(
        &self,
        who: &Credentials,
        instead: &Replacement,
    ) -> Result<ReplacedRequest<'_>, Fault> {
        let refused = |why: &str| Err(faults::not_in_kernel(0, "line", why));
        let line = self.lines.get(&instead.line);
        let Some(line) = line.filter(|line| line.owner == who.uid) else {
            return refused("you have no such request to replace");
        };
        let step = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let stays = instead.stays.iter().map(|CarriedStep { was, is }| (step(*was), step(*is)));
        Ok((instead.line, &line.running, stays.collect()))
    }

    /// Parses a request, and adds default sources and sinks.
    fn parse_request(&self, line: &str) -> Result<Graph, Fault> {
        let (graph, mistakes) = pipeline::read_request(line, &MachineRegistry::Untrusted);
        match mistakes.iter().find(|mistake| mistake.is_error()) {
            None => Ok(complete_with_sinks(graph, &MachineRegistry::Untrusted).0),
            Some(mistake) => {
                let why = format!("the daemon cannot read this request: {}", mistake.what);
                Err(faults::not_in_kernel(0, "line", &why))
            }
        }
    }

    /// Checks that the policy grants a user everything that the kernel part of a request needs.
    /// Fails with the node and the reason.
    fn check_grants(
        &self,
        who: &Credentials,
        (graph, part): (&Graph, &KernelPart),
        needs: &ResourceNeeds<'_>,
    ) -> Result<(), (NodeId, String)> {
        let words = Denial { uid: who.uid, file: &self.policy.file_path() };
        let attach = needs.attach;
        // A user's own sockets need no grant. But a network namespace must be given by a name,
        // which root has assigned, because a path is not trusted.
        let is_named = attach.netns.as_ref().is_none_or(|name| !name.contains('/'));
        if attach.own_sockets && !is_named {
            let why = "the daemon accepts a namespace by name only, as in `ip netns list`";
            return Err((needs.source, why.to_owned()));
        }
        if !attach.own_sockets
            && !self.policy.may_observe(who, &attach.interface, attach.netns.as_deref())
        {
            return Err((
                needs.source,
                words.interface_denied_text(&attach.interface, attach.netns.as_deref()),
            ));
        }
        if attach.only_matching_flows
            && !self.policy.may_take_flows(who, &attach.interface, attach.netns.as_deref())
        {
            let why = words.diversion_denied_text(&attach.interface, attach.netns.as_deref());
            return Err((needs.source, why));
        }
        if let RingSharing::Group(name) = &needs.share {
            match self.policy.has_group_rights(who, name) {
                Some(true) => {}
                Some(false) => return Err((needs.source, words.missing_membership_text(name))),
                None => return Err((needs.source, words.unknown_group_text(name))),
            }
        }
        for node in &part.nodes {
            let name = graph.node(*node).name();
            if !self.policy.may_run_filter(who.uid, name) {
                return Err((*node, words.filter_denied_text(name)));
            }
        }
        Ok(())
    }

    /// Switches to a prepared request and detaches the request that it replaces. A failure discards
    /// the prepared request.
    fn switch(&mut self, client: u64, complete: &dyn Fn(Completion)) -> Result<(), Fault> {
        let refused = |why: &str| faults::not_in_kernel(0, "kernel", why);
        let gone = || refused("the request that it would replace has ended");
        let PreparedReplacement { waiting, replaced_client: instead, process } =
            self.successors.remove(&client).ok_or_else(gone)?;
        let switched = match self.lines.contains_key(&instead) {
            true => waiting.switch().map_err(|why| refused(&why.to_string())),
            false => Err(gone()),
        };
        let running = switched.inspect_err(|_| self.accounts.remove_request(client))?;
        let owner = self.lines.get(&instead).map_or(0, |line| line.owner);
        let (at, number) =
            (attach_point(&running.attach, owner), running.request_number().unwrap_or_default());
        self.lines.insert(client, ClientRequest { running, owner, at, number, process });
        self.detach(instead, None, complete);
        Ok(())
    }

    fn detach(&mut self, client: u64, why: Option<String>, complete: &dyn Fn(Completion)) {
        if self.successors.remove(&client).is_some() {
            self.accounts.remove_request(client);
            return complete(Completion::Detached { client, ended: Box::default(), why });
        }
        let Some(line) = self.lines.remove(&client) else { return };
        let ended = line.running.detach();
        self.accounts.remove_request(client);
        let ended = Box::new(ended);
        complete(Completion::Detached { client, ended, why });
    }

    /// Measures how much kernel time requests use. Removes the costliest request of each user who
    /// exceeded the quota in this and in the previous measurement. Does nothing until a measurement
    /// is due.
    fn measure_costs(&mut self, complete: &dyn Fn(Completion)) {
        if !self.accounts.is_measurement_due() {
            return;
        }
        let status = self.program_status();
        let quota = |uid: u32| self.policy.quota(uid).kernel_ns;
        for (client, why) in self.accounts.measure_costs(&status, quota) {
            self.detach(client, Some(why), complete);
        }
    }

    fn program_status(&self) -> Vec<ProgramStatus> {
        let program_status = |(attach, status): (Watched, PointStatus)| {
            // A socket program is displayed under its user.
            let at = attach_point(&attach, status.user.unwrap_or_default());
            // One attach point may have several programs.
            let runs = |number| status.requests.iter().any(|line| line.number == number);
            let here = self.lines.iter();
            let here = here.filter(|(_, line)| line.at == at && runs(line.number));
            let lines = here.map(|(client, line)| {
                (line.number, (line.process, self.accounts.kernel_ns_per_second(*client)))
            });
            ProgramStatus { requests: lines.collect(), at, status }
        };
        self.points.status().into_iter().map(program_status).collect()
    }
}

/// Message to a caller whose network namespace is not the daemon's.
const FOREIGN_NAMESPACE_MESSAGE: &str = "the daemon is in another network namespace, with other \
                         interfaces: start one there, or name the namespace in the request \
                         (`rx IF netns=NAME`)";

/// Formats an attach point for display. Programs on sockets are identified by their user.
fn attach_point(attach: &Watched, user: u32) -> AttachPoint {
    if attach.own_sockets {
        return (format!("sockets of {user}"), attach.netns.clone(), "both");
    }
    let side = match attach.side {
        TrafficDirection::Received => "received",
        TrafficDirection::Sent => "sent",
    };
    (attach.interface.clone(), attach.netns.clone(), side)
}
