//! Tests of links on real devices: an attached program runs, can be replaced, and is detached even
//! if its owner is killed, while programs that were already present stay.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod attach;

use attach::{
    counter_value, kill_at_step, load_constant_program, load_counter_program, send_frames,
};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsFd as _, OwnedFd};
use streamline_sys as sys;
use sys::bpf::{
    AttachType, ChainPosition, Link, LinkTarget, LoadParameters, Map, Neighbor, ObjectKind,
    ProgramKind, RunStatisticsGuard, TrafficDirection, XdpMode, cgroup_chain, object_ids,
    tcx_chain,
};
use sys::net::{Namespace, RouteSocket};
use sys::packet::PacketSocket;
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE, wait_until};

const SILENT_PAIR: DevicePairSettings =
    DevicePairSettings { addresses: false, mtu: 1500, queues: 1 };

fn open_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(SILENT_PAIR)
}

fn server_interface_index(pair: &NamespacePair) -> u32 {
    pair.server.run_in_network_namespace(|| {
        RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index
    })
}

#[test]
fn tcx_program_runs_first_is_replaced_and_ends_with_its_link() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let (one, other) =
        (Map::array("one", 8, 1, true).unwrap(), Map::array("other", 8, 1, true).unwrap());
    // -1: TCX_NEXT.
    let (first, second) = (
        load_counter_program(ProgramKind::Tc, "first", &one, -1),
        load_counter_program(ProgramKind::Tc, "second", &other, -1),
    );
    pair.server.run_in_network_namespace(|| {
        let link =
            Link::attach_tcx(&first, index, TrafficDirection::Ingress, ChainPosition::Head, None)
                .unwrap();
        assert_eq!(link.info().unwrap().target, LinkTarget::Tcx(index, TrafficDirection::Ingress));
        assert_eq!(link.info().unwrap().program, first.info().unwrap().id);
        send_frames(&pair, 100);
        assert_eq!(counter_value(&one), 100);
        let wrong = link.replace_program(&second, Some(&second)).unwrap_err();
        assert_eq!(wrong.errno, Errno::PERM.raw_os_error(), "{wrong}");
        link.replace_program(&second, Some(&first)).unwrap();
        send_frames(&pair, 50);
        assert_eq!((counter_value(&one), counter_value(&other)), (100, 50));
        let chain = tcx_chain(index, TrafficDirection::Ingress).unwrap();
        assert_eq!(chain.members.len(), 1);
        assert_eq!(chain.members[0].link, Some(link.info().unwrap().id));
        assert_eq!(chain.members[0].name, "second");
        drop(link);
        send_frames(&pair, 50);
        assert_eq!((counter_value(&one), counter_value(&other)), (100, 50), "gone with its link");
        assert!(tcx_chain(index, TrafficDirection::Ingress).unwrap().members.is_empty());
    });
}

/// Expects a program that returns a verdict for the whole chain to hide packets only from later
/// programs. Also chooses a position next to a program, and expects an outdated chain revision to
/// be refused.
#[test]
fn v17_chain_keeps_its_members_and_the_head_sees_all() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let maps =
        ["there", "behind", "head", "between"].map(|name| Map::array(name, 8, 1, true).unwrap());
    // 0: TCX_PASS ends the chain.
    let there = load_counter_program(ProgramKind::Tc, "there", &maps[0], 0);
    let [behind, head, between] = [(1, "behind"), (2, "head"), (3, "between")]
        .map(|(n, name)| load_counter_program(ProgramKind::Tc, name, &maps[n], -1));
    pair.server.run_in_network_namespace(|| {
        let tcx = |program, anchor| {
            Link::attach_tcx(program, index, TrafficDirection::Ingress, anchor, None).unwrap()
        };
        let foreign = tcx(&there, ChainPosition::Head);
        let _behind = tcx(&behind, ChainPosition::Tail);
        let before = tcx_chain(index, TrafficDirection::Ingress).unwrap();
        let _head = tcx(&head, ChainPosition::Head);
        let stale = Link::attach_tcx(
            &between,
            index,
            TrafficDirection::Ingress,
            ChainPosition::Head,
            Some(before.revision),
        );
        assert_eq!(stale.unwrap_err().errno, Errno::STALE.raw_os_error());
        let id = foreign.info().unwrap();
        let _between = tcx(&between, ChainPosition::Before(Neighbor::Link(id.id)));
        let names = |side| {
            let chain = tcx_chain(index, side).unwrap();
            chain.members.into_iter().map(|member| member.name).collect::<Vec<_>>()
        };
        assert_eq!(names(TrafficDirection::Ingress), ["head", "between", "there", "behind"]);
        assert!(names(TrafficDirection::Egress).is_empty());
        send_frames(&pair, 40);
        assert_eq!(maps.each_ref().map(counter_value), [40, 0, 40, 40]);
        foreign.detach().unwrap();
        send_frames(&pair, 2);
        assert_eq!(maps.each_ref().map(counter_value), [40, 2, 42, 42]);
        let after = Link::attach_tcx(
            &there,
            index,
            TrafficDirection::Ingress,
            ChainPosition::After(Neighbor::Program(id.program)),
            None,
        );
        assert_eq!(after.unwrap_err().errno, Errno::NOENT.raw_os_error());
    });
}

#[test]
fn v17_xdp_reports_its_mode_and_displaces_nothing() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let map = Map::array("seen", 8, 1, true).unwrap();
    let (pass, drop_all) = (
        load_counter_program(ProgramKind::Xdp, "pass", &map, 2),
        load_constant_program(ProgramKind::Xdp, "drop", 1),
    );
    pair.server.run_in_network_namespace(|| {
        let ours = Link::attach_xdp_in_any_mode(&pass, index).unwrap();
        assert_eq!((ours.mode, ours.refused), (XdpMode::Native, None));
        assert_eq!(ours.link.info().unwrap().target, LinkTarget::Xdp(index));
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let busy = Link::attach_xdp(&drop_all, index, mode).unwrap_err();
            assert!(
                busy.to_string().contains("another program is already attached there"),
                "{busy}"
            );
        }
        assert!(Link::attach_xdp_in_any_mode(&drop_all, index).is_err());
        send_frames(&pair, 30);
        assert_eq!(counter_value(&map), 30);
        ours.link.replace_program(&drop_all, Some(&pass)).unwrap();
        send_frames(&pair, 30);
        ours.link.replace_program(&pass, None).unwrap();
        send_frames(&pair, 5);
        wait_until("no more than those of the first and the last", || counter_value(&map) == 35);
        let other = load_counter_program(ProgramKind::Tc, "tc", &map, 0);
        assert!(ours.link.replace_program(&other, None).is_err(), "of another kind");
        let lo = RouteSocket::open().unwrap().interface_by_name("lo").unwrap().index;
        let generic = Link::attach_xdp_in_any_mode(&drop_all, lo).unwrap();
        assert_eq!(generic.mode, XdpMode::Generic);
        let why = generic.refused.expect("the driver was asked first");
        assert!(why.to_string().contains(&format!("native xdp on interface {lo}")), "{why}");
        let error = Link::attach_xdp(&pass, 0x7fff_fff0, XdpMode::Generic).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL.raw_os_error(), "{error}");
    });
}

/// Expects XDP programs and tc filters that others attached by netlink to be listed and to remain
/// attached.
#[test]
fn v17_foreign_programs_are_listed_and_kept() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let map = Map::array("seen", 8, 1, true).unwrap();
    let ours = load_counter_program(ProgramKind::Tc, "ours", &map, -1);
    pair.server.run_program("tc", &format!("qdisc add dev {SERVER_DEVICE} clsact"));
    // A classic program of one instruction.
    let mut tc = pair.server.command("tc");
    tc.args(["filter", "add", "dev", SERVER_DEVICE, "ingress", "pref", "7", "protocol", "all"]);
    assert!(
        tc.args(["bpf", "bytecode", "1,6 0 0 0,", "classid", "1:1"]).status().unwrap().success()
    );
    pair.server.run_in_network_namespace(|| {
        let links = RouteSocket::open().unwrap();
        let filters = || links.list_tc_filters(index).unwrap();
        let found = filters();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].kind.as_str(), found[0].side, found[0].preference),
            ("bpf", TrafficDirection::Ingress, 7)
        );
        let link =
            Link::attach_tcx(&ours, index, TrafficDirection::Ingress, ChainPosition::Head, None)
                .unwrap();
        send_frames(&pair, 20);
        assert_eq!(counter_value(&map), 20);
        drop(link);
        assert_eq!(filters(), found);
        assert_eq!(links.interface_by_index(index).unwrap().xdp, None);
        let xdp = Link::attach_xdp(
            &load_constant_program(ProgramKind::Xdp, "xdp", 2),
            index,
            XdpMode::Native,
        )
        .unwrap();
        let attached = links.interface_by_index(index).unwrap().xdp.expect("it is there");
        assert_eq!(
            (attached.program, attached.mode),
            (xdp.info().unwrap().program, Some(XdpMode::Native))
        );
    });
}

/// Expects a socket to keep its attached program and to receive only what the program passes.
#[test]
fn socket_filter_runs_before_the_socket() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let map = Map::array("seen", 8, 1, true).unwrap();
    let rings = pair.server.run_in_network_namespace(|| {
        let tc = load_counter_program(ProgramKind::Tc, "tc", &map, 1);
        assert!(PacketSocket::open().unwrap().attach_program(&tc).is_err(), "of another kind");
        [0xffff, 0].map(|answer| {
            let socket = PacketSocket::open().unwrap();
            let program = load_counter_program(ProgramKind::SocketFilter, "before", &map, answer);
            socket.attach_program(&program).unwrap();
            let shape = sys::packet::PacketRingParameters {
                segment: 4096,
                segments: 2,
                retire_ms: 1,
                reserve: 0,
            };
            let ring = socket.into_ring(shape).unwrap();
            ring.bind(index).unwrap();
            ring
        })
    });
    send_frames(&pair, 25);
    wait_until("both were asked", || counter_value(&map) == 50);
    // A packet is counted after the program has passed it.
    let [all, none] = rings.map(|ring| move || ring.statistics().unwrap().packets);
    wait_until("one has counted all", || all() == 25);
    assert_eq!(none(), 0);
}

/// Expects runs to be counted while statistics are enabled.
#[test]
fn run_statistics_count_runs_and_time() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let map = Map::array("seen", 8, 1, true).unwrap();
    let program = load_counter_program(ProgramKind::Tc, "timed", &map, -1);
    pair.server.run_in_network_namespace(|| {
        let _link =
            Link::attach_tcx(&program, index, TrafficDirection::Ingress, ChainPosition::Head, None)
                .unwrap();
        let counting = RunStatisticsGuard::enable().unwrap();
        send_frames(&pair, 200);
        // A run is counted when it ends.
        wait_until("all runs are counted", || program.info().unwrap().runs == 200);
        let info = program.info().unwrap();
        assert!(info.run_time_ns > 0 && info.ns_per_run().is_some(), "{info:?}");
        drop(counting);
        assert_eq!(program.info().unwrap().maps, 1);
    });
}

/// Loads and unloads programs 1,000 times, attaching and replacing every fifth, and expects every
/// program, map and link to be gone afterwards.
#[test]
fn thousand_attachments_leave_no_bpf_objects() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    let mut made = Vec::new();
    pair.server.run_in_network_namespace(|| {
        for round in 0..1_000 {
            let map = Map::array("life", 8, 1, true).unwrap();
            let [one, two] =
                ["one", "two"].map(|name| load_counter_program(ProgramKind::Tc, name, &map, -1));
            let mut new = vec![
                (ObjectKind::Programs, one.info().unwrap().id),
                (ObjectKind::Programs, two.info().unwrap().id),
                (ObjectKind::Maps, map.info().unwrap().id),
            ];
            // Attaching takes 10 ms, and so does detaching, so only every fifth program is
            // attached.
            let link = (round % 5 == 0).then(|| {
                let link = Link::attach_tcx(
                    &one,
                    index,
                    TrafficDirection::Ingress,
                    ChainPosition::Head,
                    None,
                )
                .unwrap();
                link.replace_program(&two, Some(&one)).unwrap();
                new.push((ObjectKind::Links, link.info().unwrap().id));
                link
            });
            if round % 250 == 0 {
                assert!(new.iter().all(|(of, id)| object_ids(*of).unwrap().contains(id)));
            }
            drop(link);
            made.extend(new);
        }
        assert!(tcx_chain(index, TrafficDirection::Ingress).unwrap().members.is_empty());
    });
    wait_until_objects_freed(&made);
}

/// Waits until the kernel has freed these objects, which it does after a grace period. Their ids
/// are not reused.
fn wait_until_objects_freed(all: &[(ObjectKind, u32)]) {
    wait_until("they are gone", || {
        [ObjectKind::Programs, ObjectKind::Maps, ObjectKind::Links].iter().all(|of| {
            let present = object_ids(*of).unwrap();
            !all.iter().any(|(kind, id)| kind == of && present.contains(id))
        })
    });
}

/// Kills a process at each step of attaching, and expects the interface to be unchanged.
#[test]
fn killed_process_leaves_no_program_on_interface() {
    let Some(pair) = open_pair() else { return };
    let index = server_interface_index(&pair);
    for step in 0..attach::ATTACH_STEP_COUNT {
        let made = kill_at_step(&pair.server, index, step);
        assert_eq!(made.is_empty(), step == 0, "step {step}: {made:?}");
        wait_until_objects_freed(&made);
        pair.server.run_in_network_namespace(|| {
            for side in [TrafficDirection::Ingress, TrafficDirection::Egress] {
                assert!(tcx_chain(index, side).unwrap().members.is_empty(), "step {step}");
            }
            assert_eq!(
                RouteSocket::open().unwrap().interface_by_index(index).unwrap().xdp,
                None,
                "step {step}"
            );
        });
        println!("killed at step {step}: {} things gone", made.len());
    }
}

/// Attaches programs step by step in a separate process, which `attach::kill_at_step` starts and
/// kills.
#[test]
#[ignore = "is killed"]
fn child_process_attaches_step_by_step() {
    attach::attach_step_by_step();
}

#[test]
fn socket_lookup_program_runs_in_its_namespace() {
    let Some(pair) = open_pair() else { return };
    let code = attach::constant_return_code(1);
    let load = LoadParameters::new(ProgramKind::SocketLookup, "choose", &code);
    assert!(load.load().is_err(), "the kernel wants to know where");
    let program = LoadParameters { attach: Some(AttachType::SocketLookup), ..load }.load().unwrap();
    let space = Namespace::open(pair.server.path().to_str().unwrap()).unwrap();
    let link = Link::attach_namespace(&program, &space).unwrap();
    let identity = u32::try_from(space.inode().unwrap()).unwrap();
    assert_eq!(link.info().unwrap().target, LinkTarget::Namespace(identity));
}

/// Attaches the program to a cgroup in a mount that only this test sees.
#[test]
fn cgroup_program_sees_the_packets_of_its_group() {
    let Some(_) = need::require_bpf() else { return };
    let Some(root) = open_cgroup_root() else { return };
    let name = format!("sl-{}", std::process::id());
    mkdirat(&root, &name, Mode::RWXU).unwrap();
    let group = openat(&root, &name, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    let map = Map::array("seen", 8, 1, true).unwrap();
    let code = attach::constant_return_code(1);
    let load = LoadParameters::new(ProgramKind::CgroupPacket, "group", &code);
    let program = LoadParameters { attach: Some(AttachType::CgroupEgress), ..load }.load().unwrap();
    let link = Link::attach_cgroup(&program, &group, TrafficDirection::Egress).unwrap();
    assert!(matches!(link.info().unwrap().target, LinkTarget::Cgroup(id) if id > 0));
    let chain = |side| cgroup_chain(&group, side).unwrap().members;
    assert_eq!(chain(TrafficDirection::Egress)[0].name, "group");
    assert!(chain(TrafficDirection::Ingress).is_empty());
    let other = load_counter_program(ProgramKind::CgroupPacket, "other", &map, 1);
    let _ingress = Link::attach_cgroup(&other, &group, TrafficDirection::Ingress).unwrap();
    assert_eq!(chain(TrafficDirection::Ingress).len(), 1);
    drop(link);
    assert!(chain(TrafficDirection::Egress).is_empty());
    drop(group);
    unlinkat(&root, &name, AtFlags::REMOVEDIR).unwrap();
}

fn open_cgroup_root() -> Option<OwnedFd> {
    need::require_root()?;
    let mounted = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|fs| {
        fsconfig_create(fs.as_fd())?;
        fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    });
    mounted.or_else(|why| need::report_skip(&format!("needs cgroup2: {why}")).ok_or(why)).ok()
}
