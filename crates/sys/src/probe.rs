//! Probes of kernel features. Each probe uses a feature and discards the result.
//!
//! The kernel's version is a poor guide, because a feature may be configured out or forbidden by a
//! sandbox. A probe is invisible to other processes and leaves no object behind.

use crate::bpf;
use crate::error::{Error, ErrorContext as _, Result};
use crate::memory::{Memfd, Seals};
use crate::net::{self, RouteSocket};
use crate::packet::PacketSocket;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A kernel feature that may be missing or forbidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelFeature {
    /// Memfds with seals.
    SealedMemory,
    /// Interface queries over rtnetlink(7).
    Rtnetlink,
    /// Packet sockets.
    PacketSocket,
    /// Mapped receive rings of packet sockets.
    PacketRing,
    /// Loading of eBPF programs.
    Program,
    /// Programs in the TCX chain of an interface.
    Tcx,
    /// XDP programs attached by a link.
    XdpLink,
    /// Programs attached to cgroups.
    Cgroup,
    /// BPF ring buffers.
    RingBuffer,
    /// AF_XDP sockets.
    XdpSocket,
    /// seccomp filters.
    Seccomp,
    /// The kernel's own BTF type information.
    Btf,
}

impl KernelFeature {
    /// Returns the name by which reports call the feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SealedMemory => "sealed memory",
            Self::Rtnetlink => "rtnetlink",
            Self::PacketSocket => "packet socket",
            Self::PacketRing => "packet ring",
            Self::Program => "eBPF program",
            Self::Tcx => "TCX",
            Self::XdpLink => "XDP link",
            Self::Cgroup => "cgroup2",
            Self::RingBuffer => "BPF ring buffer",
            Self::XdpSocket => "AF_XDP socket",
            Self::Seccomp => "seccomp filters",
            Self::Btf => "BTF",
        }
    }
}

/// A feature and the result of its probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureProbeResult {
    /// The probed feature.
    pub feature: KernelFeature,
    /// The purpose for which Streamline uses the feature.
    pub purpose: &'static str,
    /// Result of the probe: an error if the feature is missing or forbidden.
    pub outcome: Result<()>,
}

/// Runs all probes of this module, beginning with the most important features.
#[must_use]
pub fn run_all_probes() -> Vec<FeatureProbeResult> {
    let probe = |facility, serves, outcome| FeatureProbeResult {
        feature: facility,
        purpose: serves,
        outcome,
    };
    vec![
        probe(KernelFeature::SealedMemory, "every request", probe_sealed_memory()),
        probe(KernelFeature::Rtnetlink, "names and counters of interfaces", probe_netlink()),
        probe(KernelFeature::PacketSocket, "rx and tx", probe_packet_socket()),
        probe(KernelFeature::Program, "filters in the kernel", probe_bpf_program()),
        probe(
            KernelFeature::Tcx,
            "observing at any interface, beside programs of others",
            probe_tcx(),
        ),
        probe(
            KernelFeature::XdpLink,
            "dropping and taking before the network stack",
            probe_xdp_link(),
        ),
        probe(
            KernelFeature::Cgroup,
            "a user's own traffic (`rx own=yes`)",
            probe_cgroup_programs(),
        ),
        probe(
            KernelFeature::RingBuffer,
            "notifications by programs in the kernel",
            probe_ring_buffer(),
        ),
        probe(
            KernelFeature::XdpSocket,
            "rings without the kernel's network stack",
            probe_xdp_socket(),
        ),
        probe(
            KernelFeature::Seccomp,
            "sandbox for untrusted filters (`untrusted=yes`)",
            probe_seccomp(),
        ),
    ]
}

/// Opens a packet socket that receives no frames.
pub fn probe_packet_socket() -> Result<()> {
    PacketSocket::open().map(drop)
}

/// Loads a socket filter program of two instructions.
pub fn probe_bpf_program() -> Result<()> {
    // mov64 r0, 0; exit
    const RETURN_ZERO_CODE: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let loaded = bpf::Program::load(bpf::ProgramKind::SocketFilter, "probe", &RETURN_ZERO_CODE);
    loaded.map(drop).map_err(|refused| refused.error)
}

/// Queries the TCX chain of the loopback device, without attaching anything (Linux 6.6).
pub fn probe_tcx() -> Result<()> {
    let loopback = RouteSocket::open()?.interface_by_name("lo")?.index;
    bpf::tcx_chain(loopback, bpf::TrafficDirection::Ingress).map(drop)
}

/// Opens the root cgroup and loads, without attaching it, a program that reads the namespace
/// cookie.
pub fn probe_cgroup_programs() -> Result<()> {
    // call bpf_get_netns_cookie; mov64 r0, 1; exit
    const NETNS_COOKIE_CODE: [u8; 24] =
        [0x85, 0, 0, 0, 122, 0, 0, 0, 0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let loaded = bpf::Program::load(bpf::ProgramKind::CgroupPacket, "probe", &NETNS_COOKIE_CODE);
    loaded.map_err(|refused| refused.error)?;
    bpf::root_cgroup().map(drop)
}

/// Attaches an XDP program to the loopback device of a new, private network namespace. Fails
/// without CAP_SYS_ADMIN, even if the kernel has the feature.
pub fn probe_xdp_link() -> Result<()> {
    // mov64 r0, 2 (XDP_PASS); exit
    const XDP_PASS_CODE: [u8; 16] = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let loaded = bpf::Program::load(bpf::ProgramKind::Xdp, "probe", &XDP_PASS_CODE);
    let program = loaded.map_err(|refused| refused.error)?;
    net::run_in_new_namespace(|| {
        let loopback = RouteSocket::open()?.interface_by_name("lo")?.index;
        bpf::Link::attach_xdp(&program, loopback, bpf::XdpMode::Generic).map(drop)
    })?
}

/// Creates a BPF ring buffer of one page.
pub fn probe_ring_buffer() -> Result<()> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    bpf::RingBuffer::create("probe", page).map(drop)
}

/// Asks the kernel, without installing a filter, whether a seccomp filter may trap a call (Linux
/// 4.14).
pub fn probe_seccomp() -> Result<()> {
    let (action, flags) = (libc::SECCOMP_RET_TRAP, 0_u32);
    // SAFETY: seccomp(2) reads the four bytes of the action, which are valid; the other arguments
    // are integers.
    let known = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            flags,
            std::ptr::from_ref(&action),
        )
    };
    if known == 0 { Ok(()) } else { Err(Error::last_os_error("seccomp", "GET_ACTION_AVAIL")) }
}

/// Creates a memfd with the seals that a reader requires.
pub fn probe_sealed_memory() -> Result<()> {
    let file = Memfd::create("probe", rustix::param::page_size())?;
    file.seal(Seals::READER)?;
    file.map_read().map(drop)
}

/// Lists the interfaces over rtnetlink(7).
pub fn probe_netlink() -> Result<()> {
    RouteSocket::open()?.list_interfaces().map(drop)
}

/// Opens an AF_XDP socket without rings.
pub fn probe_xdp_socket() -> Result<()> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .map(drop)
        .context("socket", "AF_XDP")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Capabilities;
    use crate::privilege::Privilege;

    #[test]
    fn memfd_and_rtnetlink_probes_succeed() {
        probe_sealed_memory().unwrap();
        probe_netlink().unwrap();
    }

    /// Expects the socket to open if the thread has the capability, and otherwise an error that
    /// names the capability.
    #[test]
    fn packet_socket_needs_its_capability() {
        let may = Privilege::detect().effective.contains(Capabilities::NET_RAW);
        match probe_packet_socket() {
            Ok(()) => assert!(may),
            Err(error) => assert!(!may && error.to_string().contains("CAP_NET_RAW"), "{error}"),
        }
    }

    #[test]
    fn probes_name_their_use_and_leave_no_descriptor() {
        let name = "probe::tests::probes_name_their_use_and_leave_no_descriptor";
        if !testkit::run_in_separate_process(name) {
            return;
        }
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let probes = run_all_probes();
        assert!(
            probes
                .iter()
                .all(|probe| !probe.feature.name().is_empty() && !probe.purpose.is_empty())
        );
        assert_eq!(open(), before);
    }
}
