//! The attach point of a kernel program: an interface, or the sockets of a user.

use crate::interface::{FrameCount, interface_removed_failure};
use crate::source::rx::FrameLossCounters;
use crate::{Failure, SourceCounters, interface};
use filter::{Amount, AttachTarget, TrafficDirection};
use std::sync::Arc;
use sys::bpf::{ChainPosition, Link, LinkTarget, Neighbor, Program};
use sys::net::{Namespace, RouteSocket, accepts_xdp_frames};
use wire::link::LinkType;

/// A place to which kernel programs can be attached: an interface, or all sockets of a network
/// namespace.
#[derive(Clone, Debug)]
pub struct AttachPoint {
    attach: AttachTarget,
    /// The observed interface, or `None` if programs are attached to sockets.
    interface: Option<ObservedInterface>,
}

#[derive(Clone, Debug)]
struct ObservedInterface {
    index: u32,
    links: Arc<RouteSocket>,
    losses: Arc<FrameLossCounters>,
}

/// Name of Streamline's kernel programs in listings such as `bpftool prog`.
pub const PROGRAM_NAME: &str = "streamline";
/// Verb for a failure to observe an interface, as in "cannot watch eth0".
const WATCH_VERB: &str = "watch";
const EINVAL: i32 = 22;
/// Failure text for a device that has no XDP transmit function, or whose peer is not ready.
const NO_XDP_TRANSMIT_MESSAGE: &str = "does not currently accept frames from XDP programs";
/// Failure text for a kernel that does not report the XDP features of devices.
const NO_XDP_FEATURES_MESSAGE: &str =
    "the kernel reports XDP transmission of an interface only from Linux 6.3 on";
/// Failure text for a kernel that does not support TCX links.
const NO_TCX_MESSAGE: &str = "programs are attached to an interface by TCX, which needs Linux 6.6";
const TAKE_VERB: &str = "take from";
const SEND_VERB: &str = "send through";
const ENODEV: i32 = 19;

/// Location of losses, as named in the ledger, for packets that the program rejected because it was
/// already processing too many packets of one user on a processor.
const BUSY_LOSS_LOCATION: &str = "busy";
/// Failure text for a network namespace that belongs to another user namespace. User ids have
/// another meaning there, so the program cannot select the sockets of one user.
const FOREIGN_USER_IDS_MESSAGE: &str =
    "its namespace belongs to another user namespace, where user ids mean other users";

/// Reason why no program can be attached at an attach point.
#[derive(Debug)]
pub enum AttachError {
    /// The interface cannot be observed at all.
    Unobservable(Failure),
    /// Programs cannot be attached, but a packet socket may still work.
    Unsupported(String),
}

impl AttachPoint {
    /// Creates an attach point from its parameters, and looks up its interface. An attach point at
    /// the user's own sockets has no interface. Fails if the interface does not exist or has no
    /// Ethernet frames.
    pub fn find(attach: &AttachTarget) -> Result<Self, AttachError> {
        if attach.own_sockets {
            return Ok(Self { attach: attach.clone(), interface: None });
        }
        let (name, side) = (&attach.interface, attach.side);
        let call =
            if attach.redirects || attach.only_matching_flows { TAKE_VERB } else { WATCH_VERB };
        let found = interface::run_in_namespace(attach.netns.as_deref(), || {
            let (found, link) = interface::find_interface_by_name(call, name)?;
            let cannot = |error| interface::socket_failure(call, name, &error);
            let links = RouteSocket::open().map_err(cannot)?;
            let receives = side == TrafficDirection::Received;
            let losses = FrameLossCounters::begin_counting(
                RouteSocket::open().map_err(cannot)?,
                Some(found.index),
                receives,
            );
            Ok((found.index, link, links, losses))
        });
        let (index, link, links, losses) = found.map_err(AttachError::Unobservable)?;
        check_link_is_ethernet(name, link)?;
        let (links, losses) = (Arc::new(links), Arc::new(losses));
        let interface = Some(ObservedInterface { index, links, losses });
        Ok(Self { attach: attach.clone(), interface })
    }

    /// Attaches a program at this point. On an interface, the program runs before all programs that
    /// are already attached. As an exception, a program that takes only some flows runs after the
    /// programs of Streamline. On sockets, the program is attached for both directions, and runs
    /// after all other programs.
    pub fn attach(&self, program: &Program) -> Result<Vec<Link>, AttachError> {
        let Some(interface) = &self.interface else {
            let unsupported = |error: sys::Error| AttachError::Unsupported(error.to_string());
            let group = sys::bpf::root_cgroup().map_err(unsupported)?;
            let sides = [sys::bpf::TrafficDirection::Ingress, sys::bpf::TrafficDirection::Egress];
            return sides
                .map(|side| Link::attach_cgroup(program, &group, side).map_err(unsupported))
                .into_iter()
                .collect();
        };
        let side = self.attach_side();
        let attached = interface::run_in_namespace(self.attach.netns.as_deref(), || {
            let anchor = if self.attach.only_matching_flows {
                anchor_after_own_programs(interface.index)
            } else {
                ChainPosition::Head
            };
            Ok(Link::attach_tcx(program, interface.index, side, anchor, None))
        });
        let attached = attached.map_err(AttachError::Unobservable)?;
        attached.map(|link| vec![link]).map_err(|error| {
            // A kernel without TCX links returns EINVAL.
            let old = error.errno == EINVAL && sys::probe::probe_tcx().is_err();
            let why = if old { NO_TCX_MESSAGE.to_owned() } else { error.to_string() };
            AttachError::Unsupported(why)
        })
    }

    /// Returns the index of the interface `name`, through which an attached program sends frames.
    /// The interface must be in the same namespace as this attach point. Fails if it has no
    /// Ethernet frames, or if the program redirects frames and the interface does not accept frames
    /// from XDP.
    pub fn output_interface_index(&self, name: &str) -> Result<u32, AttachError> {
        let takes = self.attach.redirects;
        let found = interface::run_in_namespace(self.attach.netns.as_deref(), || {
            let (found, link) = interface::find_interface_by_name(SEND_VERB, name)?;
            Ok((found.index, link, takes.then(|| accepts_xdp_frames(found.index))))
        });
        let (index, link, takes) = found.map_err(AttachError::Unobservable)?;
        check_link_is_ethernet(name, link)?;
        match takes {
            None | Some(Ok(true)) => Ok(index),
            Some(Ok(false)) => {
                Err(AttachError::Unsupported(format!("{name} {NO_XDP_TRANSMIT_MESSAGE}")))
            }
            Some(Err(_)) => Err(AttachError::Unsupported(NO_XDP_FEATURES_MESSAGE.to_owned())),
        }
    }

    /// Returns the cookie of the namespace whose sockets are observed. Fails if user ids have
    /// another meaning in that namespace.
    pub fn socket_namespace_cookie(&self) -> Result<u64, AttachError> {
        let result = interface::run_in_namespace(self.attach.netns.as_deref(), || {
            let result = Namespace::current().and_then(|space| space.is_in_our_user_namespace());
            Ok(result.and_then(|ours| Ok((ours, sys::net::namespace_cookie()?))))
        });
        match result.map_err(AttachError::Unobservable)? {
            Ok((true, number)) => Ok(number),
            Ok((false, _)) => Err(AttachError::Unsupported(FOREIGN_USER_IDS_MESSAGE.to_owned())),
            Err(error) => Err(AttachError::Unsupported(error.to_string())),
        }
    }

    /// Returns the link type of the frames at this attach point.
    #[must_use]
    pub const fn link_type(&self) -> LinkType {
        if self.attach.own_sockets { LinkType::RAW } else { LinkType::ETHERNET }
    }

    /// Returns the counters of the source whose program is attached here. `ran` is the amount that
    /// the program has processed. `busy` is the number of packets that it rejected because it was
    /// processing too many. The result also contains the losses before the program, by location.
    #[must_use]
    pub fn counters(&self, ran: Amount, busy: u64) -> SourceCounters {
        let dropped = match &self.interface {
            Some(interface) => interface.losses.losses_before_socket(),
            None => vec![(BUSY_LOSS_LOCATION.into(), Some(busy))],
        };
        let lost = dropped.iter().map(|(_, count)| *count).sum::<Option<u64>>();
        let all = |lost| Amount { blocks: ran.blocks + lost, bytes: ran.bytes };
        let (observed, remark) = (lost.map(all), self.renaming_note());
        SourceCounters { observed, given: ran, dropped, remark, ..SourceCounters::default() }
    }

    /// Returns true if both attach points have the same parameters and refer to the same interface,
    /// which must still exist, or both have none.
    #[must_use]
    pub fn is_same_interface(&self, other: &Self) -> bool {
        let index = |place: &Self| place.interface.as_ref().map(|interface| interface.index);
        self.attach == other.attach && index(self) == index(other) && !self.is_gone()
    }

    /// Returns the number of links that attaching a program at this attach point creates.
    #[must_use]
    pub const fn link_count(&self) -> usize {
        if self.interface.is_some() { 1 } else { 2 }
    }

    /// Returns true if this attach point is the target of a link, as reported by the kernel.
    #[must_use]
    pub fn is_target_of(&self, target: &LinkTarget) -> bool {
        let side = self.attach_side();
        match (target, &self.interface) {
            (LinkTarget::Tcx(at, way), Some(interface)) => *at == interface.index && *way == side,
            // The program itself checks the owner of the sockets.
            (LinkTarget::Cgroup(_), None) => true,
            _ => false,
        }
    }

    /// Returns true if the interface has been removed or moved to another namespace.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.interface.as_ref().is_some_and(|interface| {
            let found = interface.links.interface_by_index(interface.index);
            found.is_err_and(|error| error.errno == ENODEV)
        })
    }

    const fn attach_side(&self) -> sys::bpf::TrafficDirection {
        match self.attach.side {
            TrafficDirection::Received => sys::bpf::TrafficDirection::Ingress,
            TrafficDirection::Sent => sys::bpf::TrafficDirection::Egress,
        }
    }

    /// Creates the failure of a source whose interface has been removed. `frames` is the number of
    /// frames received until then, or `None` if unknown.
    #[must_use]
    pub fn failure_for_removed_interface(&self, frames: Option<u64>) -> Failure {
        interface_removed_failure(
            WATCH_VERB,
            &self.attach.interface,
            frames.map_or(FrameCount::Unknown, FrameCount::All),
        )
    }

    /// Returns a note if the interface has been renamed since the request was started. Returns
    /// `None` otherwise.
    fn renaming_note(&self) -> Option<String> {
        let interface = self.interface.as_ref()?;
        interface::renaming_note(&interface.links, interface.index, &self.attach.interface)
    }
}

/// Returns the position in an interface's chain of TCX programs at which a program that drops
/// frames must run: after the programs of Streamline at the head of the chain, and before the
/// programs of others. The programs of Streamline observe every frame, or take frames before all
/// other programs. Without CAP_SYS_ADMIN the kernel reveals no program names; the result is then
/// the head of the chain.
fn anchor_after_own_programs(index: u32) -> ChainPosition {
    let chain = sys::bpf::tcx_chain(index, sys::bpf::TrafficDirection::Ingress).unwrap_or_default();
    let ours = chain.members.iter().take_while(|member| member.name == PROGRAM_NAME);
    let last = ours.filter_map(|member| member.link).last();
    last.map_or(ChainPosition::Head, |link| ChainPosition::After(Neighbor::Link(link)))
}

/// Fails unless the frames of the interface have Ethernet headers.
fn check_link_is_ethernet(name: &str, link: LinkType) -> Result<(), AttachError> {
    let unsupported = || AttachError::Unsupported(format!("{name} does not carry Ethernet frames"));
    (link == LinkType::ETHERNET).then_some(()).ok_or_else(unsupported)
}
