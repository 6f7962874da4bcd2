//! The daemon as host of kernel programs, for a process that may not load programs, or that shares
//! them with other processes. [SL §8; CONTRACT 21, 25; RELIABILITY T2, T10]
//!
//! The host attaches the kernel part of a request ([`engine::kernel::KernelRequest`]) and maps its
//! rings read-only into this process. Each such part has its own connection; when the connection
//! closes, the daemon removes the part from the program.
//!
//! If the daemon exits without passing its state to a successor, the program ends too: the path
//! reads the frames already copied, and ends with a message ([`Attachment::export_failure`]). If a
//! request changes, its new version is prepared over a second connection and then replaces the old
//! one. If a service manager preserves the connections, the next daemon completes the calls of the
//! previous daemon (docs/book/decisions/0038).

use crate::client::{Caller, Client, ClientError, LONG_TIMEOUT, escape_hidden};
use crate::faults::{AGAIN_CAUSE, NOT_IN_KERNEL};
use crate::protocol::{Attach, AttachReply, CarriedStep, Permissions, Replacement};
use crate::rights::{Denial, POLICY_FILE, matches_interface};
use crate::varlink::{Call, MessageError};
use engine::build::BuildError;
use engine::kernel::delegation::{
    Attachment, DelegatedLayout, DelegatedProgram, Failure, FinalCounters, KernelPart,
};
use engine::kernel::{
    AttachmentHandle, Host, KernelAttachment, KernelRequest, PreparedSuccessor, ProgramSwitch,
    SwitchError,
};
use pipeline::graph::NodeId;
use pipeline::plan::{Kernel, KernelRefusal, Plan};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use sys::steps::Resource;

/// A daemon that runs parts of requests in the kernel.
#[derive(Clone, Debug)]
pub struct DaemonHost {
    directory: PathBuf,
    release: String,
    /// Rights of this user, or `None` if they are unlimited.
    bounds: Option<Arc<PolicyGrants>>,
}

/// The filters and interfaces that the policy grants to this user.
#[derive(Debug)]
struct PolicyGrants {
    filters: Vec<String>,
    interfaces: Vec<String>,
    /// Path of the policy file.
    file: String,
}

/// Number of descriptors in a reply to `Attach`: frames, pointers, doorbell.
const ATTACH_DESCRIPTORS: usize = 3;

impl DaemonHost {
    /// Finds a daemon. Returns `None` if it runs no programs in the kernel. Blocks for at most two
    /// call timeouts.
    pub fn find() -> Result<Option<Self>, ClientError> {
        let client = Client::find(None)?;
        let allowed = client.permissions()?;
        let Some(release) = allowed.kernel else { return Ok(None) };
        let directory = client.directory().to_owned();
        let about = client.describe_daemon()?;
        let free = allowed.everything || about.uid == sys::process::identity().0;
        let file = about.policy.unwrap_or_else(|| POLICY_FILE.to_owned());
        let Permissions { filters, interfaces, .. } = allowed;
        let bounds = (!free).then(|| Arc::new(PolicyGrants { filters, interfaces, file }));
        Ok(Some(Self { directory, release, bounds }))
    }

    /// Returns the nodes of a plan that the policy excludes from the kernel. Does not check quotas.
    #[must_use]
    pub fn policy_refusals(&self, plan: &Plan) -> Vec<KernelRefusal> {
        let Some(bounds) = &self.bounds else { return Vec::new() };
        let file = escape_hidden(&bounds.file);
        let missing = Denial { uid: sys::process::identity().0, file: &file };
        let why = |node: NodeId| {
            let used = plan.graph.node(node).filter()?;
            let name = used.description.name;
            if !bounds.filters.iter().any(|known| known == name) {
                return Some(missing.filter_denied(name));
            }
            let attach = used.attach()?.ok()?;
            let netns = attach.netns.as_deref();
            let open = attach.own_sockets
                || matches_interface(&bounds.interfaces, &attach.interface, netns);
            (!open).then(|| missing.interface_denied(&attach.interface, netns))
        };
        let steps = plan.programs.iter().flat_map(|program| {
            let steps = program.steps.iter().flat_map(|step| &step.nodes);
            program.sources.iter().chain(steps)
        });
        steps.filter_map(|node| Some(KernelRefusal { node: *node, why: why(*node)? })).collect()
    }

    /// Returns the kernel that plans must assume: hardened, because the daemon loads programs
    /// without CAP_PERFMON.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel::Open { release: self.release.clone(), hardened: true }
    }

    /// Maps the rings in the daemon's reply. An error becomes [`BuildError::Refused`] for the node
    /// that the reply names, or else for the source.
    fn map_rings(
        &self,
        asked: &KernelRequest<'_>,
        answer: Result<AttachedRings, ClientError>,
    ) -> Result<MappedRings, BuildError> {
        let refused = |node, why: String| BuildError::Refused(KernelRefusal { node, why });
        let answer = answer.map_err(|error| match error {
            ClientError::Refused(fault) if fault.name == NOT_IN_KERNEL => {
                let node = usize::try_from(fault.number("node")).map_or(asked.source, NodeId);
                // A node outside this part cannot be trusted, so the refusal applies to the source
                // instead.
                let known = asked.nodes.contains(&node);
                refused(if known { node } else { asked.source }, escape_hidden(fault.text("why")))
            }
            other => refused(asked.source, format!("the daemon does not run it: {other}")),
        })?;
        let (delegation, line, caller) = answer;
        if !delegation.matches_request(asked) {
            let why = "the daemon reads this request differently: use the same version of both \
                       programs";
            return Err(refused(asked.source, why.to_owned()));
        }
        let attach = &asked.planned.attach;
        let own = || "your own sockets".to_owned();
        let there = Arc::new(RemoteRequest {
            through: self.clone(),
            line,
            caller,
            interface: if attach.own_sockets { own() } else { attach.interface.clone() },
            ended: OnceLock::new(),
            lost: Mutex::new(None),
        });
        let held: Arc<dyn AttachmentHandle> = Arc::clone(&there) as _;
        let lent = delegation
            .into_attachment(held)
            .map_err(|error| refused(asked.source, error.to_string()))?;
        Ok((lent, there))
    }

    /// Sends `Attach` on a new connection and receives the rings. If `instead` is given, the daemon
    /// only prepares the kernel part, which starts to run on `Switch`. Blocks for at most
    /// [`LONG_TIMEOUT`] per message.
    fn request_rings(
        &self,
        asked: &KernelRequest<'_>,
        instead: Option<Replacement>,
    ) -> Result<AttachedRings, ClientError> {
        asked.steps.announce(Resource::Descriptor, "a connection to the daemon for a line")?;
        let caller = Client::connect_at(&self.directory)?.into_caller(LONG_TIMEOUT)?;
        let attach = Attach {
            line: asked.graph.text.as_ref().to_owned(),
            part: KernelPart::extract(asked).to_text(),
            network: network_namespace_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instead,
        };
        let call = Call::new("io.streamline.Attach", &attach);
        caller.send(&Call { more: true, ..call }, &[])?;
        let (reply, descriptors) = caller.reply()?;
        let AttachReply { layout, line, .. } = reply.deserialize_result()?;
        let layout = layout.as_deref().and_then(DelegatedLayout::from_text);
        let strange = |what: &str| ClientError::Malformed(MessageError::Invalid(what.to_owned()));
        let (Some(layout), Some(line)) = (layout, line) else {
            return Err(strange("no layout came"));
        };
        let descriptors = <[_; ATTACH_DESCRIPTORS]>::try_from(descriptors);
        let [records, pointers, doorbell] =
            descriptors.map_err(|_| strange("other descriptors came than were to"))?;
        Ok((DelegatedProgram { layout, records, pointers, bell: doorbell }, line, caller))
    }
}

impl Host for DaemonHost {
    fn attach(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        self.map_rings(asked, self.request_rings(asked, None)).map(|(lent, _)| lent)
    }
}

/// The daemon's reply: the rings, the number of the request, and the connection that keeps the
/// request attached.
type AttachedRings = (DelegatedProgram, u64, Caller);

/// The mapped rings, and the handle to the request.
type MappedRings = (KernelAttachment, Arc<RemoteRequest>);

/// A request that the daemon runs in the kernel.
#[derive(Debug)]
struct RemoteRequest {
    through: DaemonHost,
    /// Number that the daemon assigned to the request.
    line: u64,
    /// Connection that keeps the request attached.
    caller: Caller,
    interface: String,
    ended: OnceLock<FinalCounters>,
    lost: Mutex<Option<Failure>>,
}

/// The cause of the end of a request in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndCause {
    /// This process has detached the request.
    Detached,
    /// Another request has replaced this one.
    Replaced,
    /// The daemon has removed the request.
    Ended,
}

impl RemoteRequest {
    /// Detaches the request if needed, and receives its final counters. Blocks for at most
    /// [`LONG_TIMEOUT`] per message.
    fn receive_final_counts(&self, why: EndCause) -> FinalCounters {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Detach", &nothing);
        if why == EndCause::Detached
            && let Err(error) = self.caller.send(&Call { oneway: true, ..call }, &[])
        {
            return self.lost_counters(&error.to_string());
        }
        let told = loop {
            match self.receive_message() {
                // A restarted daemon repeats the replies to earlier switches.
                Ok(AttachReply { switched: Some(_), .. }) => {}
                told => break told,
            }
        };
        self.final_counters_from(why, told)
    }

    /// Receives the daemon's next message.
    fn receive_message(&self) -> Result<AttachReply, ClientError> {
        Ok(self.caller.reply()?.0.deserialize_result()?)
    }

    /// Waits for a message for at most [`RETRY_INTERVAL`]. Returns true if the request is still
    /// attached.
    fn is_attached(&self) -> bool {
        sys::poll::readable_within(&[self.caller.as_fd()], Some(RETRY_INTERVAL));
        Attachment::export_failure(self).is_none() && self.ended.get().is_none()
    }

    /// Interprets the final message, and records the cause if the request did not end on purpose.
    fn final_counters_from(
        &self,
        why: EndCause,
        told: Result<AttachReply, ClientError>,
    ) -> FinalCounters {
        let AttachReply { ended, why: reason, .. } = match told {
            Ok(told) => told,
            Err(ClientError::Disconnected) => return self.lost_counters("the daemon has ended"),
            Err(other) => return self.lost_counters(&other.to_string()),
        };
        // This process did not detach the request, so a path without frames must report the reason.
        let unasked = (why == EndCause::Ended).then(|| "the daemon has taken it away".to_owned());
        if let Some(why) = reason.or(unasked) {
            let failure = Failure::new("watch", &self.interface, escape_hidden(&why));
            let hint = "all frames before that were processed; `--embedded` runs it without the \
                        daemon, with your own rights";
            self.set_failure(failure.hint(hint));
        }
        let ended = ended.as_deref().and_then(FinalCounters::from_text);
        ended.unwrap_or_else(|| self.lost_counters("the daemon does not report the counts"))
    }

    /// Records the reason why the final counters are unknown, and returns empty counters.
    fn lost_counters(&self, why: &str) -> FinalCounters {
        let why = format!("{why}, and with it the program that delivered frames");
        let hint = "all frames that arrived before were processed; the kernel counts are lost, so \
                    the report counts only these frames; start again when the daemon is back";
        self.set_failure(Failure::new("watch", &self.interface, why).hint(hint));
        FinalCounters::lost_counters()
    }

    fn set_failure(&self, failure: Failure) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

impl Attachment for RemoteRequest {
    fn detach(&self) {
        let _ = self.final_counters();
    }

    fn export_failure(&self) -> Option<Failure> {
        let told = || sys::poll::readable(&[self.caller.as_fd()], Some(Duration::ZERO)) == [true];
        while self.ended.get().is_none() && told() {
            match self.receive_message() {
                Ok(AttachReply { switched: Some(_), .. }) => {}
                message => {
                    self.ended.get_or_init(|| self.final_counters_from(EndCause::Ended, message));
                }
            }
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AttachmentHandle for RemoteRequest {
    fn final_counters(&self) -> &FinalCounters {
        self.ended.get_or_init(|| self.receive_final_counts(EndCause::Detached))
    }

    fn successor(
        self: Arc<Self>,
        asked: &KernelRequest<'_>,
        stays: &[(usize, usize)],
        _about: &str,
    ) -> Result<PreparedSuccessor, BuildError> {
        let step = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let stays = stays.iter().map(|(was, is)| CarriedStep { was: step(*was), is: step(*is) });
        let instead = Replacement { line: self.line, stays: stays.collect() };
        let mut answer = self.through.request_rings(asked, Some(instead.clone()));
        let until = sys::clock::monotonic().saturating_add(LONG_TIMEOUT_NS);
        // If the daemon dies before it replies, the next daemon takes over the running request.
        while let Err(ClientError::Disconnected | ClientError::NoDaemon(_)) = answer
            && sys::clock::monotonic() < until
            && self.is_attached()
        {
            answer = self.through.request_rings(asked, Some(instead.clone()));
        }
        let (lent, new) = self.through.map_rings(asked, answer)?;
        Ok(PreparedSuccessor { lent, switch: Box::new(Switch { old: self, new }) })
    }
}

/// A prepared request that can replace a running one.
#[derive(Debug)]
struct Switch {
    old: Arc<RemoteRequest>,
    new: Arc<RemoteRequest>,
}

impl ProgramSwitch for Switch {
    fn switch(&mut self) -> Result<(), SwitchError> {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Switch", &nothing);
        let sent = self.new.caller.send(&Call { oneway: true, ..call }, &[]);
        let told = sent.and_then(|()| self.new.caller.reply());
        match told.and_then(|(reply, _)| Ok(reply.deserialize_result()?)) {
            Ok(AttachReply { switched: Some(true), .. }) => {
                // The daemon has already sent the final counters of the old request.
                self.old.ended.get_or_init(|| self.old.receive_final_counts(EndCause::Replaced));
                Ok(())
            }
            Ok(AttachReply { why, .. }) => Err(SwitchError::Refused(escape_hidden(
                &why.unwrap_or_else(|| MISSING_REASON.to_owned()),
            ))),
            Err(ClientError::Refused(fault)) if fault.name == NOT_IN_KERNEL => {
                let why = escape_hidden(fault.text("why"));
                Err(match fault.text("by") == AGAIN_CAUSE {
                    true => SwitchError::Again(why),
                    false => SwitchError::Refused(why),
                })
            }
            Err(other) => {
                let why = format!("the daemon does not change it: {other}");
                // If the next daemon did not inherit the connection, the switch certainly did not
                // take place.
                Err(match other {
                    ClientError::Disconnected => SwitchError::Again(why),
                    _ => SwitchError::Refused(why),
                })
            }
        }
    }
}

/// Returns the identity of this thread's network namespace; empty if it cannot be read.
#[must_use]
pub fn network_namespace_id() -> String {
    let about = std::fs::metadata("/proc/thread-self/ns/net");
    about.map_or_else(|_| String::new(), |about| format!("{}:{}", about.dev(), about.ino()))
}

/// Maximum wait for the next daemon, in ns.
const LONG_TIMEOUT_NS: u64 = 120_000_000_000;
/// Interval between two attempts to reach the next daemon.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Message for a refusal without a reason.
const MISSING_REASON: &str = "the daemon gives no reason for the refusal";
