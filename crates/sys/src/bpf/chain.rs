//! Queries of chains: the programs attached to one hook, both our own and those of other processes,
//! in execution order.
//!
//! Used to report a chain, to adopt a link, and to choose a
//! [`ChainPosition`](super::ChainPosition). Programs attached by netlink (XDP, clsact) are listed
//! by [`net`](crate::net).

use std::os::fd::{AsFd, AsRawFd as _};

use super::ids::{ObjectKind, object_ids};
use super::program_info::program_info;
use super::{AttachType, Attributes, TrafficDirection, call_bpf, command};
use crate::error::{Error, Result};

/// Capacity of a query's buffer in members. Exceeds the kernel's limit of 64.
const CHAIN_MEMBERS_MAX: usize = 128;

/// The programs attached to one hook of an interface or cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramChain {
    /// The kernel's change counter for this chain; 0 if the kernel does not report one.
    pub revision: u64,
    /// Programs attached to the hook, in execution order.
    pub members: Vec<ChainMember>,
}

/// A program in the chain of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainMember {
    /// Program id.
    pub program: u32,
    /// Program name; empty without CAP_SYS_ADMIN.
    pub name: String,
    /// Link id. `None` if the program was attached without a link and therefore outlives the
    /// attaching process. Always `None` in the chain of a cgroup, for which the kernel reports no
    /// links.
    pub link: Option<u32>,
}

/// Returns the TCX chain of an interface.
///
/// Fails with ENOSYS or EINVAL before Linux 6.6.
pub fn tcx_chain(interface: u32, side: TrafficDirection) -> Result<ProgramChain> {
    let target = format!("tcx {side:?} of interface {interface}").to_lowercase();
    query_chain_members(interface, tcx_attach_type(side), &target)
}

/// Returns the chain of programs of a cgroup for one direction. `group` is a descriptor of the
/// cgroup's v2 directory.
pub fn cgroup_chain(group: impl AsFd, side: TrafficDirection) -> Result<ProgramChain> {
    let target = format!("cgroup {side:?}").to_lowercase();
    query_chain_members(
        group.as_fd().as_raw_fd().cast_unsigned(),
        cgroup_attach_type(side),
        &target,
    )
}

pub(super) const fn tcx_attach_type(side: TrafficDirection) -> AttachType {
    match side {
        TrafficDirection::Ingress => AttachType::TcxIngress,
        TrafficDirection::Egress => AttachType::TcxEgress,
    }
}

pub(super) const fn cgroup_attach_type(side: TrafficDirection) -> AttachType {
    match side {
        TrafficDirection::Ingress => AttachType::CgroupIngress,
        TrafficDirection::Egress => AttachType::CgroupEgress,
    }
}

fn query_chain_members(place: u32, at: AttachType, target: &str) -> Result<ProgramChain> {
    let mut programs = [0_u32; CHAIN_MEMBERS_MAX];
    let mut links = [0_u32; CHAIN_MEMBERS_MAX];
    // PROG_QUERY on a control group returns no link ids and rejects a request for them.
    let tcx = matches!(at, AttachType::TcxIngress | AttachType::TcxEgress);
    let links_at = if tcx { links.as_mut_ptr().expose_provenance() as u64 } else { 0 };
    let mut attr = QueryAttributes {
        place,
        attach_type: at as u32,
        programs: programs.as_mut_ptr().expose_provenance() as u64,
        count: CHAIN_MEMBERS_MAX as u32,
        links: links_at,
        ..QueryAttributes::default()
    };
    match call_bpf(command::PROG_QUERY, "PROG_QUERY", target, &mut attr) {
        Ok(_) => {}
        // No program was ever attached to this hook.
        Err(Error { errno: libc::ENOENT, .. }) => return Ok(ProgramChain::default()),
        Err(error) => return Err(error),
    }
    let both = programs.iter().zip(&links).take(attr.count as usize);
    let member = |(&program, &link): (&u32, &u32)| {
        let name = program_name(program).unwrap_or_default();
        ChainMember { program, name, link: (link != 0).then_some(link) }
    };
    Ok(ProgramChain { revision: attr.revision, members: both.map(member).collect() })
}

/// Lists the id and name of every program on the machine. May omit programs that are unloaded
/// during the listing.
///
/// Needs CAP_SYS_ADMIN.
pub fn list_programs() -> Result<Vec<(u32, String)>> {
    let all = object_ids(ObjectKind::Programs)?.into_iter();
    Ok(all.filter_map(|id| Some((id, program_name(id).ok()?))).collect())
}

/// Returns the name of the program with this id.
fn program_name(id: u32) -> Result<String> {
    program_info(id).map(|info| info.name)
}

#[derive(Default)]
#[repr(C)]
struct QueryAttributes {
    place: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

// SAFETY: the fields of PROG_QUERY with its padding spelled out (1); the two addresses are set by
// `query_chain_members` alone, to arrays of `count` words, which outlive the call (2).
unsafe impl Attributes for QueryAttributes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_attributes_match_the_kernels_layout() {
        assert_eq!(std::mem::offset_of!(QueryAttributes, revision), 56);
        assert_eq!(std::mem::offset_of!(QueryAttributes, links), 40);
        assert_eq!(size_of::<QueryAttributes>(), 64);
    }
}
