//! Tests of loading generated programs: the required capabilities, error messages, and cleanup.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use super::judge::{program_kind, with_capabilities};
use ebpf::emit::Target;
use ebpf::{Hook, MapSpec, Program, insn};
use filter::testing::twins::{TwinChain, request_text, try_emit_program, twin_chains};
use rustix::thread::CapabilitySet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{
    self, ChainPosition, Link, LoadError, Map, ObjectKind, TrafficDirection, XdpMode, object_ids,
    tcx_chain,
};
use sys::net::RouteSocket;
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE, wait_until};

const USER_CAPABILITIES: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);
const TRUSTED_CAPABILITIES: CapabilitySet = USER_CAPABILITIES.union(CapabilitySet::PERFMON);

/// A program that is not loaded yet, with its maps.
struct PreparedProgram {
    program: Program,
    maps: Vec<Map>,
    code: Vec<u8>,
}

impl PreparedProgram {
    /// Builds the program of a chain; returns `None` if the chain edits frames, which the target
    /// does not allow.
    fn new(chain: &TwinChain, target: Target) -> Option<Self> {
        let program = try_emit_program(chain, target)?;
        let array = |map: &MapSpec| Map::array(&map.name, map.value_size, 1, map.mappable).unwrap();
        let maps: Vec<Map> = program.maps.iter().map(array).collect();
        let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = insn::encode(&program.relocate(&descriptors).unwrap());
        Some(Self { program, maps, code })
    }

    fn load(&self, name: &str) -> Result<bpf::Program, LoadError> {
        bpf::Program::load(program_kind(self.program.hook), name, &self.code)
    }
}

#[test]
fn o9_load_without_perfmon_error_names_the_capability() {
    let Some(()) = need::require_bpf() else { return };
    let mut minded = 0;
    for chain in twin_chains(1) {
        for place in [Hook::Tc, Hook::Xdp, Hook::Socket] {
            let what = format!("`{}` at {place:?}", request_text(&chain));
            let Some(hardened) = PreparedProgram::new(&chain, Target::without_perfmon(place))
            else {
                continue;
            };
            for rights in [USER_CAPABILITIES, TRUSTED_CAPABILITIES] {
                let loaded = with_capabilities(rights, || hardened.load("hardened"));
                assert!(loaded.is_ok(), "{what}, {rights:?}: {loaded:?}");
            }
            let Some(trusted) = PreparedProgram::new(&chain, place.into()) else { continue };
            let loaded = with_capabilities(TRUSTED_CAPABILITIES, || trusted.load("trusted"));
            assert!(loaded.is_ok(), "{what}: {loaded:?}");
            if let Err(refused) = with_capabilities(USER_CAPABILITIES, || trusted.load("trusted")) {
                minded += 1;
                assert!(refused.to_string().ends_with("(without CAP_PERFMON)"), "{refused}");
            }
            for (rights, missing) in [
                (CapabilitySet::empty(), "(without CAP_BPF, CAP_NET_ADMIN)"),
                (CapabilitySet::NET_ADMIN, "(without CAP_BPF)"),
                (CapabilitySet::BPF, "(without CAP_NET_ADMIN)"),
            ] {
                // A socket filter has no device.
                if place == Hook::Socket && rights == CapabilitySet::BPF {
                    continue;
                }
                let refused =
                    with_capabilities(rights, || hardened.load("refused")).unwrap_err().to_string();
                assert!(refused.ends_with(missing), "{what}, {rights:?}: {refused}");
            }
        }
    }
    assert!(minded > 0, "no trusted program needs what it is trusted with");
}

/// Loads a thousand generated programs with their maps, and attaches some of them. None may be left
/// afterwards.
#[test]
fn o9_thousand_program_loads_leak_no_object() {
    const LOAD_COUNT: usize = 1_000;
    let Some(()) = need::require_bpf() else { return };
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let name = format!("left{}", std::process::id());
    let all: Vec<(TwinChain, Target)> = twin_chains(2)
        .into_iter()
        .flat_map(|chain| {
            let targets = [Hook::Tc.into(), Hook::Xdp.into(), Target::without_perfmon(Hook::Tc)];
            targets.map(|target| (chain.clone(), target))
        })
        .filter(|(chain, target)| try_emit_program(chain, *target).is_some())
        .collect();
    let mut made = Vec::new();
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
        for round in 0..LOAD_COUNT {
            let (chain, target) = &all[round % all.len()];
            let prepared = PreparedProgram::new(chain, *target).unwrap();
            let loaded = prepared.load(&name).unwrap();
            made.push((ObjectKind::Programs, loaded.info().unwrap().id));
            let maps = prepared.maps.iter().map(|map| (ObjectKind::Maps, map.info().unwrap().id));
            made.extend(maps);
            // Attaching takes 10 ms.
            let link = (round % 20 == 0).then(|| match target.hook {
                Hook::Xdp => Link::attach_xdp(&loaded, index, XdpMode::Native).unwrap(),
                _ => Link::attach_tcx(
                    &loaded,
                    index,
                    TrafficDirection::Egress,
                    ChainPosition::Head,
                    None,
                )
                .unwrap(),
            });
            made.extend(link.map(|link| (ObjectKind::Links, link.info().unwrap().id)));
        }
        assert!(tcx_chain(index, TrafficDirection::Egress).unwrap().members.is_empty());
        assert_eq!(RouteSocket::open().unwrap().interface_by_index(index).unwrap().xdp, None);
    });
    assert!(made.len() > 2 * LOAD_COUNT, "{} things were made", made.len());
    // The kernel frees them after a grace period.
    wait_until("nothing is left", || {
        let left = |of| object_ids(of).unwrap();
        let there =
            [ObjectKind::Programs, ObjectKind::Maps, ObjectKind::Links].map(|of| (of, left(of)));
        let gone = |(of, id): &(ObjectKind, u32)| {
            there.iter().all(|(kind, ids)| kind != of || ids.binary_search(id).is_err())
        };
        made.iter().all(gone)
    });
    let named = bpf::list_programs().unwrap();
    let left: Vec<_> = named.iter().filter(|(_, theirs)| name.starts_with(&**theirs)).collect();
    assert!(left.is_empty(), "{left:?}");
}
