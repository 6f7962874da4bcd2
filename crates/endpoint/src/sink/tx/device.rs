//! The interface that frames leave through.

use crate::{Failure, interface};
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
        interface::within(netns, || {
            let (found, link) = interface::named(CALL, name)?;
            let sender = Sender::open(found.index, qdisc);
            let sender = sender.map_err(|error| interface::failed(CALL, name, &error))?;
            Ok(Self { sender, name: name.to_owned(), link })
        })
    }

    /// Whether frames of this link type can leave through it.
    pub(super) fn takes(&self, link: LinkType) -> bool {
        let raw = [LinkType::RAW, LinkType::IPV4, LinkType::IPV6];
        link == self.link || self.link == LinkType::RAW && raw.contains(&link)
    }
}

/// What could not be done.
const CALL: &str = "send through";
