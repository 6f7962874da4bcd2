//! Programs and packet sockets of other applications at the interfaces, and the processes that own
//! them. [FEATURES V17]
//!
//! Input: a network namespace, and optionally one interface. Output: [`Neighbors`], in the order in
//! which a received frame encounters them: XDP, packet sockets, TCX, tc filters. Packet sockets at
//! all interfaces come last. Programs and sockets that only this process holds are omitted.
//! Streamline runs beside its neighbors and never removes one; `explain` reports the effect of each
//! on a request.

pub use sys::bpf::{TrafficDirection, XdpMode};
pub use sys::holders::HolderProcess;

use super::Refusal;
use sys::bpf::{program_info, tcx_chain};
use sys::holders::ObjectHolders;
use sys::net::{
    Interface, Namespace, PacketSocketInfo, RouteSocket, packet_sockets, run_in_namespace,
};

/// The programs and sockets at an interface or at all interfaces.
#[derive(Clone, Debug, Default)]
pub struct Neighbors {
    /// The programs and sockets, grouped by interface, in the order in which a received frame
    /// encounters them. Packet sockets at all interfaces come last.
    pub list: Vec<Neighbor>,
    /// Number of processes whose descriptors could not be read. Any of these processes may hold a
    /// listed program or socket.
    pub hidden: usize,
    /// Kinds of neighbors that could not be listed, with the reasons.
    pub unlisted: Vec<(&'static str, Refusal)>,
}

/// A program or socket at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Name of the interface, or `None` for a packet socket at all interfaces.
    pub interface: Option<String>,
    /// Kind of the program or socket, with details specific to the kind.
    pub kind: NeighborKind,
    /// The program; `None` for a socket, or for a filter without a program.
    pub program: Option<NeighborProgram>,
    /// User id of the process that loaded the program or opened the socket. `None` for a filter
    /// without a program, or if this process lacks CAP_SYS_ADMIN, which the query of a program
    /// requires.
    pub uid: Option<u32>,
    /// Processes that hold the program or socket open; incomplete if the descriptors of some
    /// processes could not be read. If the list is complete and empty, the program was attached by
    /// netlink or pinned, and outlives the process that attached it.
    pub holders: Vec<HolderProcess>,
}

/// A BPF program that is attached at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborProgram {
    /// Id that the kernel assigned to the program.
    pub id: u32,
    /// Name; empty if the program has no name or the name is unreadable.
    pub name: String,
}

/// The kind of a neighbor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighborKind {
    /// An XDP program with its mode; the mode is `None` (unknown) if several programs are attached.
    Xdp(Option<XdpMode>),
    /// A packet socket; the protocol is an ETH_P_* number.
    PacketSocket {
        /// Protocol number (ETH_P_*) that the socket receives: 3 for all protocols, 0 for none.
        protocol: u16,
        /// True if the socket receives packets without their link-layer header.
        cooked: bool,
    },
    /// A program in the TCX chain of the given direction, and the id of its BPF link, if it has
    /// one.
    Tcx(TrafficDirection, Option<u32>),
    /// A tc classifier (clsact) of the given direction, with its name and priority.
    Tc(TrafficDirection, String, u16),
}

/// Returns the number of classification rules (ntuple filters) in an interface's network device, or
/// the reason why it cannot be read. `netns` is the network namespace of the interface; `None`
/// means the namespace of this thread.
pub fn device_rule_count(netns: Option<&str>, interface: &str) -> Result<u32, Refusal> {
    let asked = match netns {
        None => sys::net::classification_rule_count(interface),
        Some(netns) => Namespace::open(netns)
            .and_then(|space| {
                run_in_namespace(&space, || sys::net::classification_rule_count(interface))
            })
            .and_then(|asked| asked),
    };
    asked.map_err(Refusal::from_error)
}

/// The neighbors found so far, which are programs, filters and sockets of others at an interface.
/// A socket is paired with its inode number, any other neighbor with `None`.
#[derive(Default)]
struct NeighborListing {
    found: Vec<(Neighbor, Option<u64>)>,
    unlisted: Vec<(&'static str, Refusal)>,
}

impl Neighbors {
    /// Lists the programs and sockets at `interface` (`None`: at every interface) in the network
    /// namespace `netns` (`None`: the namespace of this thread). Omits programs and sockets that
    /// only this process holds. If there are any programs or sockets, reads the descriptors of all
    /// processes to find their holders.
    #[must_use]
    pub fn find(netns: Option<&str>, interface: Option<&str>) -> Self {
        let listed = match netns {
            None => Ok(NeighborListing::list(interface)),
            Some(netns) => Namespace::open(netns)
                .and_then(|space| run_in_namespace(&space, || NeighborListing::list(interface))),
        };
        match listed {
            Ok(listing) => listing.resolve_holders(),
            Err(error) => {
                let unlisted = vec![("the contents of the namespace", Refusal::from_error(error))];
                Self { unlisted, ..Self::default() }
            }
        }
    }
}

impl NeighborListing {
    fn list(interface: Option<&str>) -> Self {
        let mut listing = Self::default();
        let links = RouteSocket::open().and_then(|links| Ok((links.list_interfaces()?, links)));
        let (all, links) = match links {
            Ok(known) => known,
            Err(error) => {
                listing.record_unlisted("interfaces", error);
                return listing;
            }
        };
        let named = |one: &&Interface| {
            interface.is_none_or(|name| {
                one.name == name || one.alternative.iter().any(|other| other == name)
            })
        };
        let sockets = packet_sockets().unwrap_or_else(|error| {
            listing.record_unlisted("packet sockets", error);
            Vec::new()
        });
        for one in all.iter().filter(named) {
            listing.found.extend(xdp_neighbor(one).map(|program| (program, None)));
            let list = sockets.iter().filter(|socket| socket.interface == one.index);
            listing.found.extend(list.map(|info| socket_neighbor(info, Some(&one.name))));
            listing.list_tcx_programs(one);
            listing.list_tc_filters(&links, one);
        }
        let everywhere = sockets.iter().filter(|socket| socket.interface == 0);
        listing.found.extend(everywhere.map(|info| socket_neighbor(info, None)));
        listing
    }

    fn list_tcx_programs(&mut self, one: &Interface) {
        for side in [TrafficDirection::Ingress, TrafficDirection::Egress] {
            match tcx_chain(one.index, side) {
                Ok(chain) => self.found.extend(chain.members.into_iter().map(|member| {
                    let kind = NeighborKind::Tcx(side, member.link);
                    (describe_program(one, kind, member.program, member.name), None)
                })),
                Err(error) => self.record_unlisted("TCX programs", error),
            }
        }
    }

    fn list_tc_filters(&mut self, links: &RouteSocket, one: &Interface) {
        let filters = links.list_tc_filters(one.index).unwrap_or_else(|error| {
            self.record_unlisted("filters of traffic control", error);
            Vec::new()
        });
        self.found.extend(filters.into_iter().map(|filter| {
            let kind = NeighborKind::Tc(filter.side, filter.kind, filter.preference);
            let name = filter.name.unwrap_or_default();
            let found = match filter.program {
                Some(id) => describe_program(one, kind, id, name),
                None => neighbor(Some(&one.name), kind),
            };
            (found, None)
        }));
    }

    /// Records that a kind of neighbor cannot be listed; a repeated call for the same kind has no
    /// effect.
    fn record_unlisted(&mut self, what: &'static str, error: sys::Error) {
        if self.unlisted.iter().all(|(known, _)| *known != what) {
            self.unlisted.push((what, Refusal::from_error(error)));
        }
    }

    /// Finds the processes that hold the listed programs and sockets. Removes the entries that only
    /// this process holds.
    fn resolve_holders(self) -> Neighbors {
        let Self { found, unlisted } = self;
        let id = |one: &Neighbor| one.program.as_ref().map(|program| program.id);
        let programs = found.iter().filter_map(|(one, _)| id(one)).collect();
        let sockets = found.iter().filter_map(|(_, inode)| *inode).collect();
        let holders = ObjectHolders::find(&sockets, &programs);
        let own = |holder: &HolderProcess| holder.process == std::process::id();
        let list = found.into_iter().filter_map(|(one, inode)| {
            let of_program = id(&one).map(|id| holders.holders_of_program(id));
            let of_socket = inode.map(|inode| holders.holders_of_socket(inode));
            let held = of_program.or(of_socket).unwrap_or_default().to_vec();
            let ours = !held.is_empty() && held.iter().all(own);
            (!ours).then_some(Neighbor { holders: held, ..one })
        });
        Neighbors { list: list.collect(), hidden: holders.hidden, unlisted }
    }
}

/// The socket type SOCK_RAW, whose packets include the link-layer header.
const SOCK_RAW: u32 = 3;

fn neighbor(interface: Option<&str>, kind: NeighborKind) -> Neighbor {
    let interface = interface.map(str::to_owned);
    Neighbor { interface, kind, program: None, uid: None, holders: Vec::new() }
}

fn xdp_neighbor(one: &Interface) -> Option<Neighbor> {
    let attached = one.xdp?;
    Some(describe_program(one, NeighborKind::Xdp(attached.mode), attached.program, String::new()))
}

fn socket_neighbor(info: &PacketSocketInfo, interface: Option<&str>) -> (Neighbor, Option<u64>) {
    let cooked = info.kind != SOCK_RAW;
    let kind = NeighborKind::PacketSocket { protocol: info.protocol, cooked };
    (Neighbor { uid: Some(info.uid), ..neighbor(interface, kind) }, Some(info.inode))
}

/// Describes a program at an interface; `name` is the name from the attachment, or empty.
fn describe_program(one: &Interface, kind: NeighborKind, id: u32, name: String) -> Neighbor {
    let info = program_info(id).ok();
    let own = info.as_ref().map(|info| info.name.clone()).filter(|own| !own.is_empty());
    let program = Some(NeighborProgram { id, name: own.unwrap_or(name) });
    let uid = info.map(|info| info.loader_uid);
    Neighbor { program, uid, ..neighbor(Some(&one.name), kind) }
}
