//! Links: programs attached for as long as a descriptor is open.
//!
//! A [`Link`] detaches its program when it is dropped or its process is killed; nothing is pinned,
//! and no program is attached by netlink, because that attachment would persist (RELIABILITY T15).
//! Programs of other processes are never displaced: a second XDP program on an interface is
//! refused, and in a chain (TCX, cgroups) the [`ChainPosition`] chooses the position. The kernel
//! checks no capability when a program is attached: the program's descriptor suffices, so untrusted
//! peers never receive one.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::chain;
use super::{
    AttachType, Attributes, KernelInfo, Program, call_bpf, command, open_object, query_object_info,
};
use crate::error::{Error, Result};
use crate::net::Namespace;

/// An attached program. Dropping the link detaches the program.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    target: String,
}

/// The place at which the kernel runs an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The network stack, after the packet has become an skb; works with every device.
    Generic = 1 << 1,
    /// The driver, before an skb is allocated.
    Native = 1 << 2,
    /// The device itself (offload).
    Device = 1 << 3,
}

/// An attached XDP program and the mode that was obtained.
#[derive(Debug)]
pub struct XdpAttachment {
    /// Link that keeps the program attached while this value exists.
    pub link: Link,
    /// Mode in which the program runs.
    pub mode: XdpMode,
    /// The error with which the driver refused native mode; `None` if native mode is in effect or
    /// was not tried.
    pub refused: Option<Error>,
}

/// A direction of traffic, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficDirection {
    /// Traffic that the host receives.
    Ingress,
    /// Traffic that the host sends.
    Egress,
}

/// A position in a chain of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPosition {
    /// The position before all other programs. Only a program at this position sees every packet,
    /// because an earlier program may return a verdict for the whole chain.
    Head,
    /// The position after all other programs.
    Tail,
    /// The position directly before a given program.
    Before(Neighbor),
    /// The position directly after a given program.
    After(Neighbor),
}

/// A program in a chain, named by id, next to which another program is to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// The program of the link with this id.
    Link(u32),
    /// The program with this id, attached with or without a link.
    Program(u32),
}

/// Information about a link, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Link id.
    pub id: u32,
    /// Program id.
    pub program: u32,
    /// The point to which the link attaches the program.
    pub target: LinkTarget,
}

/// The attachment point of a link. A deleted interface or namespace reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// An interface to which an XDP program is attached, by index.
    Xdp(u32),
    /// An interface to which a TCX program is attached, by index, and the direction.
    Tcx(u32, TrafficDirection),
    /// A cgroup to which a program is attached, by cgroup id.
    Cgroup(u64),
    /// A network namespace to which a program is attached, by inode number.
    Namespace(u32),
    /// Any other kind of attachment point, given as the type number of the link (BPF_LINK_TYPE_*).
    Other(u32),
}

impl Link {
    /// Attaches an XDP program to an interface.
    ///
    /// Fails with EBUSY or EEXIST if another program is attached.
    pub fn attach_xdp(program: &Program, interface: u32, mode: XdpMode) -> Result<Self> {
        let target = format!("{mode:?} XDP on interface {interface}").to_lowercase();
        Self::create(program, AttachType::Xdp, interface, mode as u32, (0, 0), target)
    }

    /// Attaches an XDP program in native mode or, if that fails, in generic mode. The result
    /// contains the mode in effect and, for generic mode, the driver's refusal. If generic mode
    /// would fail with the same error, returns the error without trying it.
    pub fn attach_xdp_in_any_mode(program: &Program, interface: u32) -> Result<XdpAttachment> {
        let refused = match Self::attach_xdp(program, interface, XdpMode::Native) {
            Ok(link) => return Ok(XdpAttachment { link, mode: XdpMode::Native, refused: None }),
            Err(error) => error,
        };
        // Errors that generic mode would return as well.
        if matches!(refused.errno, libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV) {
            return Err(refused);
        }
        let link = Self::attach_xdp(program, interface, XdpMode::Generic)?;
        Ok(XdpAttachment { link, mode: XdpMode::Generic, refused: Some(refused) })
    }

    /// Attaches a program to the TCX chain of an interface (Linux 6.6).
    ///
    /// If `revision` is given and is not the current revision of the chain, fails with ESTALE (see
    /// [`tcx_chain`](super::tcx_chain)).
    pub fn attach_tcx(
        program: &Program,
        interface: u32,
        side: TrafficDirection,
        anchor: ChainPosition,
        revision: Option<u64>,
    ) -> Result<Self> {
        let target = format!("tcx {side:?} of interface {interface}").to_lowercase();
        let (flags, beside) = anchor.attach_flags();
        let place = (beside, revision.unwrap_or(0));
        Self::create(program, chain::tcx_attach_type(side), interface, flags, place, target)
    }

    /// Attaches a program to a cgroup, after the programs that are already attached, for packets in
    /// the direction `side`. The program sees the traffic of the group and of its descendants.
    /// `group` is a descriptor of the group's cgroup v2 directory.
    pub fn attach_cgroup(
        program: &Program,
        group: impl AsFd,
        side: TrafficDirection,
    ) -> Result<Self> {
        let fd = group.as_fd().as_raw_fd().cast_unsigned();
        let target = format!("cgroup {side:?}").to_lowercase();
        Self::create(program, chain::cgroup_attach_type(side), fd, 0, (0, 0), target)
    }

    /// Attaches a socket lookup program to a network namespace.
    pub fn attach_namespace(program: &Program, namespace: &Namespace) -> Result<Self> {
        let fd = namespace.as_fd().as_raw_fd().cast_unsigned();
        let target = "the choice of sockets in a namespace".to_owned();
        Self::create(program, AttachType::SocketLookup, fd, 0, (0, 0), target)
    }

    /// Adopts a link from a received descriptor. Fails if the descriptor is not a link.
    pub fn from_received(fd: OwnedFd) -> Result<Self> {
        let target = "a link that was kept".to_owned();
        query_object_info::<KernelLinkInfo>(fd.as_raw_fd(), &target)?;
        Ok(Self { fd, target })
    }

    /// Replaces the attached program atomically: each packet is processed by either the old program
    /// or the new one.
    ///
    /// Fails with EPERM, and changes nothing, if `expected` is given and is not the attached
    /// program.
    pub fn replace_program(&self, program: &Program, expected: Option<&Program>) -> Result<()> {
        /// BPF_F_REPLACE: fail unless the expected program is attached.
        const BPF_F_REPLACE: u32 = 1 << 2;
        let number = |program: &Program| program.as_fd().as_raw_fd().cast_unsigned();
        let flags = if expected.is_some() { BPF_F_REPLACE } else { 0 };
        let link = self.fd.as_raw_fd().cast_unsigned();
        let mut attr = [link, number(program), flags, expected.map_or(0, number)];
        call_bpf(command::LINK_UPDATE, "LINK_UPDATE", &self.target, &mut attr).map(drop)
    }

    /// Detaches the program now, even if other descriptors of the link are open.
    pub fn detach(&self) -> Result<()> {
        let mut attr = [self.fd.as_raw_fd().cast_unsigned()];
        call_bpf(command::LINK_DETACH, "LINK_DETACH", &self.target, &mut attr).map(drop)
    }

    /// Queries the kernel for the ids of the link and its program, and for the attachment point.
    pub fn info(&self) -> Result<LinkInfo> {
        let info: KernelLinkInfo = query_object_info(self.fd.as_raw_fd(), &self.target)?;
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
        let mut attr = LinkCreateAttributes {
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            place,
            attach_type: at as u32,
            flags,
            beside,
            pad: 0,
            revision,
        };
        let what = format!("{:?} at {target}", program.name);
        let fd = open_object(command::LINK_CREATE, "LINK_CREATE", &what, &mut attr)?;
        Ok(Self { fd, target })
    }
}

impl ChainPosition {
    /// Returns the attach flags for the kernel, and the id of the neighbor (0 for the head and the
    /// tail).
    const fn attach_flags(self) -> (u32, u32) {
        /// BPF_F_BEFORE: attach before the neighbor.
        const BPF_F_BEFORE: u32 = 1 << 3;
        /// BPF_F_AFTER: attach after the neighbor.
        const BPF_F_AFTER: u32 = 1 << 4;
        match self {
            Self::Head => (BPF_F_BEFORE, 0),
            Self::Tail => (BPF_F_AFTER, 0),
            Self::Before(beside) => (BPF_F_BEFORE | beside.attach_flags(), beside.id()),
            Self::After(beside) => (BPF_F_AFTER | beside.attach_flags(), beside.id()),
        }
    }
}

impl Neighbor {
    const fn attach_flags(self) -> u32 {
        /// BPF_F_ID: the neighbor is given by its id instead of a descriptor.
        const BPF_F_ID: u32 = 1 << 5;
        /// BPF_F_LINK: the neighbor is a link instead of a program.
        const BPF_F_LINK: u32 = 1 << 13;
        match self {
            Self::Link(_) => BPF_F_ID | BPF_F_LINK,
            Self::Program(_) => BPF_F_ID,
        }
    }

    const fn id(self) -> u32 {
        match self {
            Self::Link(id) | Self::Program(id) => id,
        }
    }
}

impl Drop for Link {
    /// Detaches the program explicitly, because a child between fork and exec may have a copy of
    /// the descriptor, which would keep the program attached.
    fn drop(&mut self) {
        // An error means that it is detached already, or that this kind of link cannot be detached;
        // closing the descriptor detaches it.
        let _ = self.detach();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[repr(C)]
struct LinkCreateAttributes {
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
unsafe impl Attributes for LinkCreateAttributes {}

/// `struct bpf_link_info` with the first 16 bytes of its union.
#[derive(Default)]
#[repr(C)]
struct KernelLinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    rest: [u32; 4],
}

// SAFETY: a prefix of `struct bpf_link_info`, integers only, no padding. All of it is zero at the
// call, so the kernel writes through no address in it.
unsafe impl KernelInfo for KernelLinkInfo {}

impl KernelLinkInfo {
    fn target(&self) -> LinkTarget {
        const CGROUP: u32 = 3;
        const NAMESPACE: u32 = 5;
        const XDP: u32 = 6;
        const TCX: u32 = 11;
        let [first, second, ..] = self.rest;
        let side = |at| {
            if at == AttachType::TcxEgress as u32 {
                TrafficDirection::Egress
            } else {
                TrafficDirection::Ingress
            }
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
