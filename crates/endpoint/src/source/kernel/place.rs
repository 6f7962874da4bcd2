//! The interface at which programs stand, as a request names it.

use crate::source::rx::Losses;
use crate::{Failure, Seen, interface};
use filter::{Amount, Attach, Side};
use std::sync::Arc;
use sys::bpf::{Anchor, Link, Program};
use sys::net::Links;
use wire::link::LinkType;

/// An interface.
#[derive(Clone, Debug)]
pub struct Place {
    attach: Attach,
    index: u32,
    links: Arc<Links>,
    losses: Arc<Losses>,
}

/// What could not be done.
const CALL: &str = "watch";
/// EINVAL.
const INVALID: i32 = 22;
/// What a kernel lacks that does not know the links by which programs stand there.
const NEEDS_TCX: &str = "programs stand at an interface by TCX, which needs Linux 6.6";
const CALL_TAKE: &str = "take from";
/// ENODEV.
const NO_DEVICE: i32 = 19;

/// Why a program cannot stand at an interface.
#[derive(Debug)]
pub enum Closed {
    /// Nobody can watch it.
    Nobody(Failure),
    /// A program cannot; a packet socket may.
    Program(String),
}

impl Place {
    /// Finds it, in its name space.
    pub fn find(attach: &Attach) -> Result<Self, Closed> {
        let (name, side) = (&attach.interface, attach.side);
        let call = if attach.takes { CALL_TAKE } else { CALL };
        let found = interface::within(attach.netns.as_deref(), || {
            let (found, link) = interface::named(call, name)?;
            let cannot = |error| interface::failed(call, name, &error);
            let links = Links::open().map_err(cannot)?;
            let receives = side == Side::Received;
            let losses = Losses::begin(Links::open().map_err(cannot)?, Some(found.index), receives);
            Ok((found.index, link, links, losses))
        });
        let (index, link, links, losses) = found.map_err(Closed::Nobody)?;
        if link != LinkType::ETHERNET {
            return Err(Closed::Program(format!("frames of {name} are not those of Ethernet")));
        }
        let (links, losses) = (Arc::new(links), Arc::new(losses));
        Ok(Self { attach: attach.clone(), index, links, losses })
    }

    /// Puts a program there, before all others, of which none is thrown out.
    pub fn attach(&self, program: &Program) -> Result<Link, Closed> {
        let side = match self.attach.side {
            Side::Received => sys::bpf::Side::Ingress,
            Side::Sent => sys::bpf::Side::Egress,
        };
        let attached = interface::within(self.attach.netns.as_deref(), || {
            Ok(Link::tcx(program, self.index, side, Anchor::Head, None))
        });
        let attached = attached.map_err(Closed::Nobody)?;
        attached.map_err(|error| {
            // A kernel without this kind of link calls the argument invalid.
            let old = error.errno == INVALID && sys::probe::tcx().is_err();
            let why = if old { NEEDS_TCX.to_owned() } else { error.to_string() };
            Closed::Program(why)
        })
    }

    /// What was lost before a program saw it, by place, and what it saw.
    #[must_use]
    pub fn seen(&self, ran: Amount) -> Seen {
        let dropped = self.losses.before();
        let lost = dropped.iter().map(|(_, count)| *count).sum::<Option<u64>>();
        let all = |lost| Amount { blocks: ran.blocks + lost, bytes: ran.bytes };
        Seen { seen: lost.map(all), given: ran, dropped, remark: self.remark() }
    }

    /// Whether both are the same interface, and it is still there.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.attach == other.attach && self.index == other.index && !self.is_gone()
    }

    /// Whether the interface was removed, or moved to another name space.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.links.indexed(self.index).is_err_and(|error| error.errno == NO_DEVICE)
    }

    pub(super) fn gone(&self, blocks: u64) -> Failure {
        let why = format!("the interface was removed after {blocks} frames");
        Failure::new(CALL, &self.attach.interface, why)
            .hint("all that came before was handed on; start again when the interface is back")
    }

    /// What the interface is called now, if not as in the request.
    fn remark(&self) -> Option<String> {
        let now = self.links.indexed(self.index).ok()?;
        let name = &self.attach.interface;
        let same = now.name == *name || now.alternative.contains(name);
        (!same).then(|| format!("{name} is called {} now", now.name))
    }
}
