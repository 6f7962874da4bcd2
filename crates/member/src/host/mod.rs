//! The daemon as a host of kernel programs: it runs programs for processes that may not load any,
//! and programs that several processes share. [SL §8; CONTRACT 21, 25; RELIABILITY T2, T10]
//!
//! The host attaches the kernel part of a request ([`engine::kernel::KernelRequest`]) and maps its
//! rings read-only into this process. Each kernel part has its own connection; when the connection
//! closes, the daemon removes the part from the program.
//!
//! If the daemon exits without passing its state to a successor, the program ends too: the path
//! processes the frames that were already copied, and ends with a message
//! (`Attachment::export_failure`). When a request changes, the new version is prepared over a
//! second connection, and then replaces the old version. If a service manager preserves the
//! connections, the next daemon completes the calls of the previous one (docs/book/decisions/0038).

mod request;

use self::request::RemoteRequest;
use crate::client::{Caller, Client, ClientError, EXPENSIVE_CALL_TIMEOUT, mask_hidden_characters};
use crate::faults::NOT_IN_KERNEL_ERROR;
use crate::protocol::{AttachParameters, AttachReply, Permissions, Replacement};
use crate::rights::{Denial, POLICY_FILE, matches_interface};
use crate::varlink::{Call, MessageError};
use engine::build::BuildError;
use engine::kernel::delegation::{DelegatedLayout, DelegatedProgram, KernelPart};
use engine::kernel::{AttachmentHandle, KernelAttachment, KernelHost, KernelRequest};
use pipeline::graph::NodeId;
use pipeline::plan::{Kernel, KernelRefusal, Plan};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use sys::rollback::StepResource;

/// A daemon that runs parts of requests in the kernel.
#[derive(Clone, Debug)]
pub struct DaemonHost {
    directory: PathBuf,
    release: String,
    /// Filters and interfaces that the policy grants to this user; `None` if the user is
    /// unrestricted.
    grants: Option<Arc<PolicyGrants>>,
}

/// The filters and interfaces that the policy grants to this user.
#[derive(Debug)]
struct PolicyGrants {
    filters: Vec<String>,
    interfaces: Vec<String>,
    /// Path of the policy file.
    file: String,
}

/// Number of descriptors in a reply to `Attach`: those of the frames, the pointers and the
/// doorbell.
const ATTACH_DESCRIPTOR_COUNT: usize = 3;

impl DaemonHost {
    /// Finds a daemon. Returns `None` if the daemon runs no kernel programs; fails if there is no
    /// daemon. Connects and makes two calls, each of which blocks for at most the timeout of a
    /// call.
    pub fn find() -> Result<Option<Self>, ClientError> {
        let client = Client::find(None)?;
        let allowed = client.permissions()?;
        let Some(release) = allowed.kernel else { return Ok(None) };
        let directory = client.directory().to_owned();
        let about = client.describe_daemon()?;
        let free = allowed.everything || about.uid == sys::process::effective_ids().0;
        let file = about.policy.unwrap_or_else(|| POLICY_FILE.to_owned());
        let Permissions { filters, interfaces, .. } = allowed;
        let bounds = (!free).then(|| Arc::new(PolicyGrants { filters, interfaces, file }));
        Ok(Some(Self { directory, release, grants: bounds }))
    }

    /// Returns the nodes of a plan that the policy does not permit in the kernel although the plan
    /// places them there, each with the reason. Does not check quotas.
    #[must_use]
    pub fn policy_refusals(&self, plan: &Plan) -> Vec<KernelRefusal> {
        let Some(bounds) = &self.grants else { return Vec::new() };
        let file = mask_hidden_characters(&bounds.file);
        let missing = Denial { uid: sys::process::effective_ids().0, file: &file };
        let why = |node: NodeId| {
            let used = plan.graph.node(node).filter()?;
            let name = used.description.name;
            if !bounds.filters.iter().any(|known| known == name) {
                return Some(missing.filter_denied_text(name));
            }
            let attach = used.attachment()?.ok()?;
            let netns = attach.netns.as_deref();
            let open = attach.own_sockets
                || matches_interface(&bounds.interfaces, &attach.interface, netns);
            (!open).then(|| missing.interface_denied_text(&attach.interface, netns))
        };
        let steps = plan.programs.iter().flat_map(|program| {
            let steps = program.steps.iter().flat_map(|step| &step.nodes);
            program.sources.iter().chain(steps)
        });
        steps.filter_map(|node| Some(KernelRefusal { node: *node, why: why(*node)? })).collect()
    }

    /// Returns the description of the daemon's kernel, for the planner. The kernel is described as
    /// hardened, because the daemon loads programs without CAP_PERFMON.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel::Open { release: self.release.clone(), hardened: true }
    }

    /// Maps the rings that the daemon has sent in its reply to `Attach`. If the reply is an error,
    /// returns [`BuildError::Refused`] for the node that the error names, or for the source if it
    /// names none.
    fn map_rings(
        &self,
        asked: &KernelRequest<'_>,
        answer: Result<AttachedRings, ClientError>,
    ) -> Result<MappedRings, BuildError> {
        let refused = |node, why: String| BuildError::Refused(KernelRefusal { node, why });
        let answer = answer.map_err(|error| match error {
            ClientError::Refused(fault) if fault.name == NOT_IN_KERNEL_ERROR => {
                let node =
                    usize::try_from(fault.number_parameter("node")).map_or(asked.source, NodeId);
                // The daemon is not trusted to name a node of this part; for any other node, the
                // refusal applies to the source.
                let known = asked.nodes.contains(&node);
                refused(
                    if known { node } else { asked.source },
                    mask_hidden_characters(fault.text_parameter("why")),
                )
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
        let interface = if attach.own_sockets { own() } else { attach.interface.clone() };
        let there = Arc::new(RemoteRequest::new(self, (line, caller), interface));
        let held: Arc<dyn AttachmentHandle> = Arc::clone(&there) as _;
        let lent = delegation
            .into_attachment(held)
            .map_err(|error| refused(asked.source, error.to_string()))?;
        Ok((lent, there))
    }

    /// Asks the daemon over a new connection to run the kernel part of a request (`Attach`), and
    /// receives the rings. If `instead` is given, the daemon only prepares the part, and a later
    /// call of `Switch` starts it. Blocks for at most [`EXPENSIVE_CALL_TIMEOUT`] per message.
    fn request_rings(
        &self,
        asked: &KernelRequest<'_>,
        instead: Option<Replacement>,
    ) -> Result<AttachedRings, ClientError> {
        asked
            .steps
            .announce_creation(StepResource::Descriptor, "a connection to the daemon for a line")?;
        let caller = Client::connect_at(&self.directory)?.into_caller(EXPENSIVE_CALL_TIMEOUT)?;
        let attach = AttachParameters {
            line: asked.graph.text.as_ref().to_owned(),
            part: KernelPart::extract(asked).to_text(),
            network: network_namespace_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instead,
        };
        let call = Call::new("io.streamline.Attach", &attach);
        caller.send(&Call { more: true, ..call }, &[])?;
        let (reply, descriptors) = caller.receive_reply()?;
        let AttachReply { layout, line, .. } = reply.deserialize_result()?;
        let layout = layout.as_deref().and_then(DelegatedLayout::from_text);
        let strange = |what: &str| ClientError::Malformed(MessageError::Invalid(what.to_owned()));
        let (Some(layout), Some(line)) = (layout, line) else {
            return Err(strange("the reply contains no layout"));
        };
        let descriptors = <[_; ATTACH_DESCRIPTOR_COUNT]>::try_from(descriptors);
        let [records, pointers, doorbell] = descriptors
            .map_err(|_| strange("the reply contains other descriptors than expected"))?;
        Ok((DelegatedProgram { layout, records, pointers, doorbell }, line, caller))
    }
}

impl KernelHost for DaemonHost {
    fn attach(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        self.map_rings(asked, self.request_rings(asked, None)).map(|(lent, _)| lent)
    }
}

/// The daemon's reply: the rings, the request's number, and the connection that keeps the request
/// attached.
type AttachedRings = (DelegatedProgram, u64, Caller);

/// The mapped rings of a kernel request, and the handle to this request in the daemon.
type MappedRings = (KernelAttachment, Arc<RemoteRequest>);

/// Returns text that identifies this thread's network namespace: the device and inode numbers of
/// the namespace file. Empty if they cannot be read.
#[must_use]
pub fn network_namespace_id() -> String {
    let about = std::fs::metadata("/proc/thread-self/ns/net");
    about.map_or_else(|_| String::new(), |about| format!("{}:{}", about.dev(), about.ino()))
}
