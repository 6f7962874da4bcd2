//! The interface that frames leave through.

use crate::Failure;
use crate::fail::reason;
use sys::machine::Capabilities;
use sys::net::{Interface, Links, Namespace};
use sys::packet::{Qdisc, Sender};
use wire::link::LinkType;

/// An interface with the way into it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) sender: Sender,
    /// What the request calls it.
    pub(super) name: String,
    /// What its frames begin with.
    pub(super) link: LinkType,
}

impl Device {
    /// Opens the way into the interface of this name.
    pub(super) fn open(name: &str, netns: Option<&str>, qdisc: Qdisc) -> Result<Self, Failure> {
        let Some(netns) = netns else { return Self::here(name, qdisc) };
        let enter = |error| {
            let failure = failed("enter", &format!("name space {netns}"), &error);
            Failure { needs: failure.needs.map(|_| Capabilities::SYS_ADMIN), ..failure }
        };
        let space = Namespace::open(netns).map_err(enter)?;
        sys::net::within(&space, || Self::here(name, qdisc)).map_err(enter)?
    }

    /// Whether frames of this link type can leave through it.
    pub(super) fn takes(&self, link: LinkType) -> bool {
        let raw = [LinkType::RAW, LinkType::IPV4, LinkType::IPV6];
        link == self.link || self.link == LinkType::RAW && raw.contains(&link)
    }

    /// Opens it in the name space of this thread.
    fn here(name: &str, qdisc: Qdisc) -> Result<Self, Failure> {
        let cannot = |error| failed("send through", name, &error);
        let all = Links::open().and_then(|links| links.all()).map_err(cannot)?;
        let found = find(&all, name)?;
        let Some(link) = filter::general::bpf::link_type(found.hatype) else {
            let why = format!("frames of its kind (ARPHRD {}) are not known here", found.hatype);
            return Err(Failure::new("send through", name, why));
        };
        let sender = Sender::open(found.index, qdisc).map_err(cannot)?;
        Ok(Self { sender, name: name.to_owned(), link })
    }
}

fn find<'i>(all: &'i [Interface], name: &str) -> Result<&'i Interface, Failure> {
    let called = |interface: &&Interface| {
        interface.name == name || interface.alternative.iter().any(|other| other == name)
    };
    all.iter().find(called).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        let why = "there is no such interface in this name space";
        Failure::new("send through", name, why).hint(format!("there are {}", names.join(", ")))
    })
}

/// What the machine refused. Which right is missing is told by whoever knows the program's door.
fn failed(call: &'static str, target: &str, error: &sys::Error) -> Failure {
    let why = std::io::Error::from_raw_os_error(error.errno);
    let refused = why.kind() == std::io::ErrorKind::PermissionDenied;
    let failure = Failure::new(call, target, format!("{}: {}", error.call, reason(&why)));
    Failure { needs: refused.then_some(Capabilities::NET_RAW), ..failure }
}
