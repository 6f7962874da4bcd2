//! Tests of our programs alongside other programs on one device: an XDP program attached by `ip`, a
//! tc filter, and TCX links before and after ours. All programs are listed and see every packet,
//! none is moved, and each can be removed first.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[expect(dead_code, reason = "only programs that count and frames to be counted are needed here")]
mod attach;

use attach::{counter_value, load_constant_program, load_counter_program, send_frames};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use streamline_sys as sys;
use sys::bpf::{
    ChainPosition, Link, Map, Neighbor, ProgramKind, TrafficDirection, XdpMode, tcx_chain,
};
use sys::net::RouteSocket;
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};

const SILENT_PAIR: DevicePairSettings =
    DevicePairSettings { addresses: false, mtu: 1500, queues: 1 };

/// C source of a program that stands for those of other users and is attached with their tools.
const FOREIGN_PROGRAM_SOURCE: &str = r#"
__attribute__((section("xdp"), used)) int foreign(void *ctx) { return 2; }
__attribute__((section("license"), used)) char _license[] = "GPL";
"#;

/// The object file compiled from [`FOREIGN_PROGRAM_SOURCE`], deleted on drop.
struct CompiledObject(PathBuf);

impl CompiledObject {
    fn compile() -> Option<Self> {
        let clang = need::require_command("clang")?;
        static NEXT_OBJECT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_OBJECT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("foreign-{}-{number}.o", std::process::id());
        let path = std::env::temp_dir().join(name);
        let source = path.with_extension("c");
        std::fs::write(&source, FOREIGN_PROGRAM_SOURCE).unwrap();
        let mut compile = Command::new(clang);
        compile.args(["-O2", "-target", "bpf", "-c", "-o"]).args([&path, &source]);
        let done = compile.output().unwrap();
        std::fs::remove_file(source).unwrap();
        if !done.status.success() {
            return need::report_skip("needs a clang that compiles for bpf");
        }
        Some(Self(path))
    }
}

impl Drop for CompiledObject {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn v17_own_and_foreign_programs_all_see_every_packet() {
    let Some(()) = need::require_bpf() else { return };
    let Some(object) = CompiledObject::compile() else { return };
    let Some(pair) = NamespacePair::new(SILENT_PAIR) else { return };
    let space = &pair.server;
    space.run_program(
        "ip",
        &format!("link set dev {SERVER_DEVICE} xdp obj {} sec xdp", object.0.display()),
    );
    space.run_program("tc", &format!("qdisc add dev {SERVER_DEVICE} clsact"));
    let mut tc = space.command("tc");
    tc.args(["filter", "add", "dev", SERVER_DEVICE, "ingress", "pref", "7", "protocol", "all"]);
    tc.args(["bpf", "bytecode", "1,6 0 0 0,", "classid", "1:1"]);
    assert!(tc.status().unwrap().success());
    let maps = ["first", "ours", "last"].map(|name| Map::array(name, 8, 1, true).unwrap());
    let [first, ours, last] = [("first", 0), ("ours", 1), ("last", 2)]
        .map(|(name, number)| load_counter_program(ProgramKind::Tc, name, &maps[number], -1));
    space.run_in_network_namespace(|| {
        let links = RouteSocket::open().unwrap();
        let index = links.interface_by_name(SERVER_DEVICE).unwrap().index;
        let (xdp, filters) = (
            || links.interface_by_index(index).unwrap().xdp,
            || links.list_tc_filters(index).unwrap(),
        );
        let (foreign, classic) = (xdp().expect("theirs is there"), filters());
        assert_eq!((foreign.mode, classic.len()), (Some(XdpMode::Native), 1));
        let tcx = |program, anchor| {
            Link::attach_tcx(program, index, TrafficDirection::Ingress, anchor, None).unwrap()
        };
        let last = tcx(&last, ChainPosition::Head);
        let ours = tcx(&ours, ChainPosition::Head);
        let before = ChainPosition::Before(Neighbor::Link(ours.info().unwrap().id));
        let first = tcx(&first, before);
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let refused =
                Link::attach_xdp(&load_constant_program(ProgramKind::Xdp, "taker", 1), index, mode)
                    .unwrap_err();
            assert!(refused.to_string().contains("is kept"), "{refused}");
        }
        let names = || {
            let members = tcx_chain(index, TrafficDirection::Ingress).unwrap().members;
            members.into_iter().map(|member| member.name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["first", "ours", "last"]);
        send_frames(&pair, 60);
        assert_eq!(maps.each_ref().map(counter_value), [60, 60, 60]);
        drop(first);
        assert_eq!(names(), ["ours", "last"]);
        send_frames(&pair, 5);
        drop(ours);
        assert_eq!(names(), ["last"]);
        send_frames(&pair, 5);
        assert_eq!(maps.each_ref().map(counter_value), [60, 65, 70]);
        assert_eq!((xdp(), filters()), (Some(foreign), classic), "as before");
        drop(last);
    });
}

/// Expects `ip` to fail to attach a second program to the interface, and our program to keep
/// running.
#[test]
fn v17_ip_cannot_replace_our_xdp_program() {
    let Some(()) = need::require_bpf() else { return };
    let Some(object) = CompiledObject::compile() else { return };
    let Some(pair) = NamespacePair::new(SILENT_PAIR) else { return };
    let map = Map::array("seen", 8, 1, true).unwrap();
    let program = load_counter_program(ProgramKind::Xdp, "ours", &map, 2);
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
        let link = Link::attach_xdp(&program, index, XdpMode::Native).unwrap();
        for words in [&["xdp", "obj"][..], &["-force", "xdp", "obj"]] {
            let mut ip = pair.server.command("ip");
            let (options, verb) = words.split_at(words.len() - 2);
            ip.args(options).args(["link", "set", "dev", SERVER_DEVICE]).args(verb);
            let done = ip.arg(&object.0).args(["sec", "xdp"]).output().unwrap();
            assert!(!done.status.success(), "{words:?}: {done:?}");
        }
        send_frames(&pair, 20);
        assert_eq!(counter_value(&map), 20);
        let attached = RouteSocket::open().unwrap().interface_by_index(index).unwrap().xdp.unwrap();
        assert_eq!(attached.program, link.info().unwrap().program);
    });
}
