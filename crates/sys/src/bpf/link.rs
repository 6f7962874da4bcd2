//! Links: a program at its place, for as long as somebody holds the descriptor.
//!
//! In: a program, and an interface, name space or group of processes. Out: a [`Link`]. Dropped, or
//! gone with a process that was killed, it takes the program away from there; nothing is pinned and
//! nothing attached by netlink, which would stay (RELIABILITY T15). Nobody who was there before is
//! ever thrown out: where the kernel knows one place only (XDP) a second one is refused, where it
//! knows a chain (TCX, groups) the [`Anchor`] says where in it. The kernel asks for no capability
//! here: the descriptor of a program is the right to attach it, so no stranger is given one.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::chain;
use super::{AttachType, Attributes, Info, Program, call, command, info_of, open};
use crate::error::{Error, Result};
use crate::net::Namespace;

/// A program at its place.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    target: String,
}

/// Who runs an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The kernel, after the packet has become an skb: every device can.
    Generic = 1 << 1,
    /// The driver, before that.
    Native = 1 << 2,
    /// The device itself.
    Device = 1 << 3,
}

/// An XDP program at an interface, and how it came to be there.
#[derive(Debug)]
pub struct XdpAttached {
    /// The program's place.
    pub link: Link,
    /// Who runs it.
    pub mode: XdpMode,
    /// Why the driver does not, where it was asked first.
    pub refused: Option<Error>,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the host.
    Ingress,
    /// From the host.
    Egress,
}

/// Where in a chain of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Before all others. The only place at which a tap sees everything: somebody before it may
    /// answer for the whole chain.
    Head,
    /// Behind all others.
    Tail,
    /// Just before somebody.
    Before(Neighbor),
    /// Just behind somebody.
    After(Neighbor),
}

/// Somebody in a chain, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// A link.
    Link(u32),
    /// A program, which is there without a link or with one.
    Program(u32),
}

/// What the kernel says about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// The number of its program.
    pub program: u32,
    /// Where it is.
    pub target: LinkTarget,
}

/// Where a link is. An interface or name space that has gone has the number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// XDP on the interface with this number.
    Xdp(u32),
    /// TCX on the interface with this number.
    Tcx(u32, Side),
    /// The group of processes with this number.
    Cgroup(u64),
    /// The name space with this number.
    Namespace(u32),
    /// Something else, by the kernel's number for kinds of links.
    Other(u32),
}

impl Link {
    /// Puts an XDP program at an interface. EBUSY or EEXIST: another one is there.
    pub fn xdp(program: &Program, interface: u32, mode: XdpMode) -> Result<Self> {
        let target = format!("{mode:?} XDP on interface {interface}").to_lowercase();
        Self::create(program, AttachType::Xdp, interface, mode as u32, (0, 0), target)
    }

    /// Puts an XDP program at an interface, run by the driver if it can and by the kernel if not;
    /// the answer says which, and why.
    pub fn xdp_any(program: &Program, interface: u32) -> Result<XdpAttached> {
        let refused = match Self::xdp(program, interface, XdpMode::Native) {
            Ok(link) => return Ok(XdpAttached { link, mode: XdpMode::Native, refused: None }),
            Err(error) => error,
        };
        // What the kernel would refuse in the same way.
        if matches!(refused.errno, libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV) {
            return Err(refused);
        }
        let link = Self::xdp(program, interface, XdpMode::Generic)?;
        Ok(XdpAttached { link, mode: XdpMode::Generic, refused: Some(refused) })
    }

    /// Puts a program into the chain of an interface (Linux 6.6). With a revision that
    /// [`tcx_chain`](super::tcx_chain) told, the call fails with ESTALE if the chain has changed
    /// since.
    pub fn tcx(
        program: &Program,
        interface: u32,
        side: Side,
        anchor: Anchor,
        revision: Option<u64>,
    ) -> Result<Self> {
        let target = format!("tcx {side:?} of interface {interface}").to_lowercase();
        let (flags, beside) = anchor.flags();
        let place = (beside, revision.unwrap_or(0));
        Self::create(program, chain::tcx_type(side), interface, flags, place, target)
    }

    /// Puts a program before the packets of a group of processes (a folder of cgroup v2) and of
    /// those below it, behind programs that are there.
    pub fn cgroup(program: &Program, group: impl AsFd, side: Side) -> Result<Self> {
        let fd = group.as_fd().as_raw_fd().cast_unsigned();
        let target = format!("cgroup {side:?}").to_lowercase();
        Self::create(program, chain::cgroup_type(side), fd, 0, (0, 0), target)
    }

    /// Puts a program before the choice of a socket in a name space.
    pub fn namespace(program: &Program, namespace: &Namespace) -> Result<Self> {
        let fd = namespace.as_fd().as_raw_fd().cast_unsigned();
        let target = "the choice of sockets in a name space".to_owned();
        Self::create(program, AttachType::SocketLookup, fd, 0, (0, 0), target)
    }

    /// Takes a link that somebody kept.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        let target = "a link that was kept".to_owned();
        info_of::<KernelLinkInfo>(fd.as_raw_fd(), &target)?;
        Ok(Self { fd, target })
    }

    /// Puts another program at the same place, between two packets. If the program that is thought
    /// to be there is named and is not, nothing changes (EPERM).
    pub fn update(&self, program: &Program, expected: Option<&Program>) -> Result<()> {
        /// BPF_F_REPLACE
        const REPLACE: u32 = 1 << 2;
        let number = |program: &Program| program.as_fd().as_raw_fd().cast_unsigned();
        let mut attr = UpdateAttributes {
            link: self.fd.as_raw_fd().cast_unsigned(),
            program: number(program),
            flags: if expected.is_some() { REPLACE } else { 0 },
            expected: expected.map_or(0, number),
        };
        call(command::LINK_UPDATE, "LINK_UPDATE", &self.target, &mut attr).map(drop)
    }

    /// Takes the program away now, whoever else holds the link.
    pub fn detach(&self) -> Result<()> {
        let mut attr = DetachAttributes { link: self.fd.as_raw_fd().cast_unsigned() };
        call(command::LINK_DETACH, "LINK_DETACH", &self.target, &mut attr).map(drop)
    }

    /// What the kernel says about it.
    pub fn info(&self) -> Result<LinkInfo> {
        let info: KernelLinkInfo = info_of(self.fd.as_raw_fd(), &self.target)?;
        Ok(LinkInfo { id: info.id, program: info.program, target: info.target() })
    }

    fn create(
        program: &Program,
        at: AttachType,
        place: u32,
        flags: u32,
        (beside, revision): (u32, u64),
        target: String,
    ) -> Result<Self> {
        let mut attr = CreateAttributes {
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            place,
            attach_type: at as u32,
            flags,
            beside,
            pad: 0,
            revision,
        };
        let what = format!("{:?} at {target}", program.name);
        let fd = open(command::LINK_CREATE, "LINK_CREATE", &what, &mut attr)?;
        Ok(Self { fd, target })
    }
}

impl Anchor {
    /// The flags of the kernel, and the number of whom it is beside.
    const fn flags(self) -> (u32, u32) {
        /// BPF_F_BEFORE, BPF_F_AFTER
        const BEFORE: u32 = 1 << 3;
        const AFTER: u32 = 1 << 4;
        match self {
            Self::Head => (BEFORE, 0),
            Self::Tail => (AFTER, 0),
            Self::Before(beside) => (BEFORE | beside.flags(), beside.number()),
            Self::After(beside) => (AFTER | beside.flags(), beside.number()),
        }
    }
}

impl Neighbor {
    const fn flags(self) -> u32 {
        /// BPF_F_ID, BPF_F_LINK
        const ID: u32 = 1 << 5;
        const LINK: u32 = 1 << 13;
        match self {
            Self::Link(_) => ID | LINK,
            Self::Program(_) => ID,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Link(id) | Self::Program(id) => id,
        }
    }
}

impl Drop for Link {
    /// Takes the program away by hand: a child that is being started has a copy of the descriptor
    /// until it runs, and as long as there is one the program would stay at its place.
    fn drop(&mut self) {
        // What is gone already, or came to its place by another way, goes with the descriptor.
        let _ = self.detach();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[repr(C)]
struct CreateAttributes {
    program: u32,
    place: u32,
    attach_type: u32,
    flags: u32,
    beside: u32,
    pad: u32,
    revision: u64,
}

// SAFETY: the fields of LINK_CREATE with its `tcx` (and `cgroup`) part, padding spelled out (1), no
// address (2).
unsafe impl Attributes for CreateAttributes {}

#[repr(C)]
struct UpdateAttributes {
    link: u32,
    program: u32,
    flags: u32,
    expected: u32,
}

// SAFETY: four fields in the kernel's order (1), no address (2).
unsafe impl Attributes for UpdateAttributes {}

#[repr(C)]
struct DetachAttributes {
    link: u32,
}

// SAFETY: one field (1), no address (2).
unsafe impl Attributes for DetachAttributes {}

/// `struct bpf_link_info` with the first words of what depends on its kind.
#[derive(Default)]
#[repr(C)]
struct KernelLinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    rest: [u32; 4],
}

// SAFETY: a prefix of `struct bpf_link_info`, integers only, no padding; no address in it is asked
// for, since all of it is zero.
unsafe impl Info for KernelLinkInfo {}

impl KernelLinkInfo {
    fn target(&self) -> LinkTarget {
        const CGROUP: u32 = 3;
        const NAMESPACE: u32 = 5;
        const XDP: u32 = 6;
        const TCX: u32 = 11;
        let [first, second, ..] = self.rest;
        let side = |at| {
            if at == AttachType::TcxEgress as u32 { Side::Egress } else { Side::Ingress }
        };
        match self.kind {
            XDP => LinkTarget::Xdp(first),
            TCX => LinkTarget::Tcx(first, side(second)),
            CGROUP => LinkTarget::Cgroup(u64::from(second) << 32 | u64::from(first)),
            NAMESPACE => LinkTarget::Namespace(first),
            other => LinkTarget::Other(other),
        }
    }
}
