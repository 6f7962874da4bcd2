//! The attachment point of programs, as a request names it: at an interface, or before the sockets
//! of a user.

use crate::interface::{Counts, removed};
use crate::source::rx::Losses;
use crate::{Failure, Seen, interface};
use filter::{Amount, Attach, Side};
use std::sync::Arc;
use sys::bpf::{Anchor, Link, LinkTarget, Program};
use sys::net::{Namespace, RouteSocket, accepts_xdp_frames};
use wire::link::LinkType;

/// An interface, or all sockets of a name space.
#[derive(Clone, Debug)]
pub struct Place {
    attach: Attach,
    /// None: sockets.
    interface: Option<Interface>,
}

#[derive(Clone, Debug)]
struct Interface {
    index: u32,
    links: Arc<RouteSocket>,
    losses: Arc<Losses>,
}

/// The call, for failures.
const CALL: &str = "watch";
/// EINVAL.
const INVALID: i32 = 22;
/// The reason for a device without the function, or whose other end is not ready.
const TAKES_NONE: &str = "takes no frames from programs of XDP now";
/// The reason for a kernel that does not report the abilities of devices.
const NEEDS_FEATURES: &str = "whether an interface takes frames of XDP is told from Linux 6.3 on";
/// The reason for a kernel without the links by which programs attach there.
const NEEDS_TCX: &str = "programs stand at an interface by TCX, which needs Linux 6.6";
const CALL_TAKE: &str = "take from";
const CALL_SEND: &str = "send through";
/// ENODEV.
const NO_DEVICE: i32 = 19;

/// Too many packets of one user were under way on a processor.
const BUSY: &str = "busy";
/// The reason for namespaces in which user ids do not identify users.
const OTHER_USERS: &str = "its name space belongs to another user name space, where numbers of \
                           users mean other users";

/// An interface to which no program can attach, with the cause.
#[derive(Debug)]
pub enum Closed {
    /// No line can observe it.
    Nobody(Failure),
    /// A program cannot; a packet socket may.
    Program(String),
}

impl Place {
    /// Finds it, in its name space.
    pub fn find(attach: &Attach) -> Result<Self, Closed> {
        if attach.own {
            return Ok(Self { attach: attach.clone(), interface: None });
        }
        let (name, side) = (&attach.interface, attach.side);
        let call = if attach.takes { CALL_TAKE } else { CALL };
        let found = interface::within(attach.netns.as_deref(), || {
            let (found, link) = interface::named(call, name)?;
            let cannot = |error| interface::failed(call, name, &error);
            let links = RouteSocket::open().map_err(cannot)?;
            let receives = side == Side::Received;
            let losses =
                Losses::begin(RouteSocket::open().map_err(cannot)?, Some(found.index), receives);
            Ok((found.index, link, links, losses))
        });
        let (index, link, links, losses) = found.map_err(Closed::Nobody)?;
        if link != LinkType::ETHERNET {
            return Err(Closed::Program(format!("frames of {name} are not those of Ethernet")));
        }
        let (links, losses) = (Arc::new(links), Arc::new(losses));
        let interface = Some(Interface { index, links, losses });
        Ok(Self { attach: attach.clone(), interface })
    }

    /// Puts a program there, before all others, of which none is thrown out; before sockets both
    /// ways, behind the others that are there.
    pub fn attach(&self, program: &Program) -> Result<Vec<Link>, Closed> {
        let Some(interface) = &self.interface else {
            let told = |error: sys::Error| Closed::Program(error.to_string());
            let group = sys::bpf::root_cgroup().map_err(told)?;
            let sides = [sys::bpf::Side::Ingress, sys::bpf::Side::Egress];
            return sides
                .map(|side| Link::cgroup(program, &group, side).map_err(told))
                .into_iter()
                .collect();
        };
        let side = match self.attach.side {
            Side::Received => sys::bpf::Side::Ingress,
            Side::Sent => sys::bpf::Side::Egress,
        };
        let attached = interface::within(self.attach.netns.as_deref(), || {
            Ok(Link::tcx(program, interface.index, side, Anchor::Head, None))
        });
        let attached = attached.map_err(Closed::Nobody)?;
        attached.map(|link| vec![link]).map_err(|error| {
            // A kernel without this kind of link calls the argument invalid.
            let old = error.errno == INVALID && sys::probe::tcx().is_err();
            let why = if old { NEEDS_TCX.to_owned() } else { error.to_string() };
            Closed::Program(why)
        })
    }

    /// The number of another interface in the same name space, by which frames that a program saw
    /// here can leave.
    pub fn outlet(&self, name: &str) -> Result<u32, Closed> {
        let takes = self.attach.takes;
        let found = interface::within(self.attach.netns.as_deref(), || {
            let (found, link) = interface::named(CALL_SEND, name)?;
            Ok((found.index, link, takes.then(|| accepts_xdp_frames(found.index))))
        });
        let (index, link, takes) = found.map_err(Closed::Nobody)?;
        if link != LinkType::ETHERNET {
            return Err(Closed::Program(format!("frames of {name} are not those of Ethernet")));
        }
        match takes {
            None | Some(Ok(true)) => Ok(index),
            Some(Ok(false)) => Err(Closed::Program(format!("{name} {TAKES_NONE}"))),
            Some(Err(_)) => Err(Closed::Program(NEEDS_FEATURES.to_owned())),
        }
    }

    /// The number of the name space whose sockets these are, if users have the same numbers there.
    pub fn sockets(&self) -> Result<u64, Closed> {
        let asked = interface::within(self.attach.netns.as_deref(), || {
            let asked = Namespace::current().and_then(|space| space.has_our_users());
            Ok(asked.and_then(|ours| Ok((ours, sys::net::namespace_cookie()?))))
        });
        match asked.map_err(Closed::Nobody)? {
            Ok((true, number)) => Ok(number),
            Ok((false, _)) => Err(Closed::Program(OTHER_USERS.to_owned())),
            Err(error) => Err(Closed::Program(error.to_string())),
        }
    }

    /// Returns the link type of its frames.
    #[must_use]
    pub const fn link(&self) -> LinkType {
        if self.attach.own { LinkType::RAW } else { LinkType::ETHERNET }
    }

    /// Returns the losses before a program, by place, and the frames it got; `busy` are those that
    /// came while it had too much under way.
    #[must_use]
    pub fn seen(&self, ran: Amount, busy: u64) -> Seen {
        let dropped = match &self.interface {
            Some(interface) => interface.losses.before(),
            None => vec![(BUSY.into(), Some(busy))],
        };
        let lost = dropped.iter().map(|(_, count)| *count).sum::<Option<u64>>();
        let all = |lost| Amount { blocks: ran.blocks + lost, bytes: ran.bytes };
        let (seen, remark) = (lost.map(all), self.remark());
        Seen { seen, given: ran, dropped, remark, ..Seen::default() }
    }

    /// Returns true if both are the same interface, and it still exists.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let index = |place: &Self| place.interface.as_ref().map(|interface| interface.index);
        self.attach == other.attach && index(self) == index(other) && !self.is_gone()
    }

    /// Returns the number of links by which a program attaches here.
    #[must_use]
    pub const fn links(&self) -> usize {
        if self.interface.is_some() { 1 } else { 2 }
    }

    /// Returns true if a link is here, by the kernel's information about it.
    #[must_use]
    pub fn holds(&self, target: &LinkTarget) -> bool {
        let side = match self.attach.side {
            Side::Received => sys::bpf::Side::Ingress,
            Side::Sent => sys::bpf::Side::Egress,
        };
        match (target, &self.interface) {
            (LinkTarget::Tcx(at, way), Some(interface)) => *at == interface.index && *way == side,
            // Whose sockets they are the program itself asks.
            (LinkTarget::Cgroup(_), None) => true,
            _ => false,
        }
    }

    /// Returns true if the interface was removed, or moved to another namespace.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.interface.as_ref().is_some_and(|interface| {
            let found = interface.links.indexed(interface.index);
            found.is_err_and(|error| error.errno == NO_DEVICE)
        })
    }

    pub(super) fn gone(&self, frames: Option<u64>) -> Failure {
        removed(CALL, &self.attach.interface, frames.map_or(Counts::Unknown, Counts::All))
    }

    /// Returns the current name of the interface, if it differs from the request's.
    fn remark(&self) -> Option<String> {
        let interface = self.interface.as_ref()?;
        let now = interface.links.indexed(interface.index).ok()?;
        let name = &self.attach.interface;
        let same = now.name == *name || now.alternative.contains(name);
        (!same).then(|| format!("{name} is called {} now", now.name))
    }
}
