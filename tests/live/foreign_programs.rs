//! Tests of other applications' programs and packet sockets at an interface, as `doctor` and
//! `explain` list them.

use serde_json::Value;
use std::process::Command;
use sys::bpf::{ChainPosition, Link, Program, ProgramKind, TrafficDirection, XdpMode};
use sys::net::RouteSocket;
use sys::packet::{PacketRing, PacketRingParameters, PacketSocket};
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::streamline_program;

/// Programs and a packet socket of the test process at the server's device, and a tc filter that no
/// process holds.
struct ForeignPrograms {
    pair: NamespacePair,
    _links: Vec<Link>,
    _socket: PacketRing,
}

impl ForeignPrograms {
    fn new() -> Option<Self> {
        need::require_bpf()?;
        need::require_command("tc")?;
        let pair = NamespacePair::new(DevicePairSettings {
            addresses: false,
            ..DevicePairSettings::default()
        })?;
        let program = |kind, name, verdict| {
            let code = [ebpf::insn::Insn::mov(ebpf::insn::R0, verdict), ebpf::insn::Insn::exit()];
            Program::load(kind, name, &ebpf::insn::encode(&code)).expect("two instructions")
        };
        // The verdicts are TCX_NEXT and XDP_PASS.
        let chained = program(ProgramKind::Tc, "foreign_tcx", -1);
        let express = program(ProgramKind::Xdp, "foreign_xdp", 2);
        let (links, socket) = pair.server.run_in_network_namespace(|| {
            let index = RouteSocket::open()
                .expect("links")
                .interface_by_name(SERVER_DEVICE)
                .expect("it")
                .index;
            let tcx = |side| {
                Link::attach_tcx(&chained, index, side, ChainPosition::Head, None).expect("tcx")
            };
            let links = vec![
                tcx(TrafficDirection::Ingress),
                tcx(TrafficDirection::Egress),
                Link::attach_xdp(&express, index, XdpMode::Generic).expect("xdp"),
            ];
            let shape =
                PacketRingParameters { segment: 1 << 16, segments: 4, retire_ms: 10, reserve: 0 };
            let socket = PacketSocket::open().and_then(|socket| socket.into_ring(shape));
            let socket = socket.expect("a packet socket");
            socket.bind(index).expect("the device");
            (links, socket)
        });
        pair.server.run_program("tc", &format!("qdisc add dev {SERVER_DEVICE} clsact"));
        let filter = format!(
            "filter add dev {SERVER_DEVICE} ingress pref 7 bpf bytecode 1,6\u{a0}0\u{a0}0\u{a0}0"
        );
        let words = filter.split(' ').map(|word| word.replace('\u{a0}', " "));
        let added = pair.server.command("tc").args(words).status().expect("tc");
        assert!(added.success());
        Some(Self { pair, _links: links, _socket: socket })
    }

    /// Returns the standard output of a command that runs in the namespace.
    fn command_output(&self, arguments: &[&str]) -> String {
        let mut command: Command = self.pair.server.command(streamline_program());
        let ran = command.args(arguments).env("NO_COLOR", "1").output().expect("the program");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    }
}

/// Asserts that a listing contains every foreign program and socket with its owner.
fn assert_lists_foreign_programs(found: &Value) {
    let all = found["neighbors"].as_array().expect("a list");
    let one = |kind: &str, side: Option<&str>| {
        let is = |one: &&Value| one["kind"] == kind && one["side"].as_str() == side;
        let here = |one: &&Value| one["interface"] == SERVER_DEVICE;
        let mut found = all.iter().filter(here).filter(is);
        let only = found.next().unwrap_or_else(|| panic!("no {kind} {side:?} in {all:?}"));
        assert_eq!(found.next(), None, "{kind}");
        only
    };
    let ours = u64::from(std::process::id());
    let uid = u64::from(sys::process::effective_ids().0);
    for (kind, side, name) in [
        ("xdp", Some("received"), Some("foreign_xdp")),
        ("tcx", Some("received"), Some("foreign_tcx")),
        ("tcx", Some("sent"), Some("foreign_tcx")),
        ("packet socket", None, None),
    ] {
        let found = one(kind, side);
        assert_eq!(found["name"].as_str(), name, "{found}");
        assert_eq!(found["uid"], uid, "{found}");
        let holders = found["holders"].as_array().expect("a list");
        assert!(holders.iter().any(|holder| holder["process"] == ours), "{found}");
        assert!(holders.iter().all(|holder| holder["uid"] == uid), "{found}");
        assert!(holders.iter().all(|holder| holder["command"] != ""), "{found}");
    }
    let filter = one("tc", Some("received"));
    assert_eq!(filter["how"], "bpf, priority 7", "{filter}");
    assert_eq!(filter["holders"], serde_json::json!([]), "{filter}");
    let order = ["xdp", "packet socket", "tcx", "tcx", "tc"];
    let listed = all.iter().filter(|one| one["interface"] == SERVER_DEVICE);
    assert_eq!(Vec::from_iter(listed.map(|one| one["kind"].as_str().expect("a kind"))), order);
}

#[test]
fn v17_doctor_and_explain_list_foreign_programs_and_sockets() {
    let Some(foreign) = ForeignPrograms::new() else { return };
    let line = format!("rx {SERVER_DEVICE} | count");
    let doctor: Value =
        serde_json::from_str(&foreign.command_output(&["doctor", "--json"])).expect("json");
    let explain = foreign.command_output(&["explain", "--json", &line]);
    let explain: Value = serde_json::from_str(&explain).expect("json");
    assert_lists_foreign_programs(&doctor["others"]);
    assert_lists_foreign_programs(&explain["others"]);
    for text in [foreign.command_output(&["doctor"]), foreign.command_output(&["explain", &line])] {
        // Cells of the table may be broken between lines.
        let holder = format!("[{}]", std::process::id());
        let (_, table) = text.split_once("other users of the interfaces").expect("the listing");
        let words = ["foreign_xdp", "foreign_tcx", "packet", "socket", "TC", "bpf,", &holder];
        let glued: String = table.split_whitespace().collect();
        for part in words {
            assert!(glued.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn g2_explain_refuses_device_rules_with_the_reason() {
    let Some(foreign) = ForeignPrograms::new() else { return };
    let line = format!("rx {SERVER_DEVICE} take \"udp port 53\" | count");
    let explain = foreign.command_output(&["explain", "--json", &line]);
    let explain: Value = serde_json::from_str(&explain).expect("json");
    let device = &explain["devices"][0];
    assert_eq!((&device["interface"], &device["rules"]), (&SERVER_DEVICE.into(), &Value::Null));
    let why = device["refused"].as_str().expect("a reason");
    assert!(why.contains("supports no receive rules (ethtool: operation not supported"), "{why}");
    let text = foreign.command_output(&["explain", &line]);
    assert!(text.contains(why), "{why}: {text}");
    let observes = foreign.command_output(&["explain", &format!("rx {SERVER_DEVICE} | count")]);
    assert!(!observes.contains("no receive rules"), "{observes}");
}

#[test]
fn v17_explain_lists_only_the_interface_of_the_request() {
    let Some(foreign) = ForeignPrograms::new() else { return };
    let explain = foreign.command_output(&["explain", "--json", "rx lo | count"]);
    let explain: Value = serde_json::from_str(&explain).expect("json");
    let all = explain["others"]["neighbors"].as_array().expect("a list");
    assert!(all.iter().all(|one| one["interface"] != SERVER_DEVICE), "{all:?}");
    let explain = foreign.command_output(&["explain", "--json", "replay /dev/null | count"]);
    let explain: Value = serde_json::from_str(&explain).expect("json");
    assert_eq!(explain["others"]["neighbors"], serde_json::json!([]));
}
