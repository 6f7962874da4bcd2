//! Tests of refusals to threads without capabilities: each error names the missing capability.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[expect(dead_code, reason = "only programs that answer and count are needed here")]
mod attach;

use ebpf::insn::{self, Alu, Cond, Insn, R0, R1, R2, R10, Size};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use streamline_sys as sys;
use sys::bpf::{
    ChainPosition, Link, LoadParameters, LogLevel, Map, Program, ProgramKind, TrafficDirection,
    missing_capabilities, tcx_chain,
};
use sys::net::RouteSocket;
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};

/// Runs `work` in a thread with exactly these capabilities.
fn with_capabilities<T: Send>(kept: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
    let stripped = || {
        let mut sets = capabilities(None).unwrap();
        (sets.effective, sets.permitted) = (kept, kept);
        sets.inheritable = CapabilitySet::empty();
        // Affects this thread alone, which ends here.
        set_capabilities(None, sets).unwrap();
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(stripped).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn o9_missing_capability_is_named() {
    let Some(()) = need::require_bpf() else { return };
    let code = attach::constant_return_code(0);
    let tries = [
        (CapabilitySet::empty(), vec!["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]),
        (CapabilitySet::BPF, vec!["CAP_NET_ADMIN", "CAP_PERFMON"]),
        (CapabilitySet::NET_ADMIN, vec!["CAP_BPF", "CAP_PERFMON"]),
    ];
    for (kept, wanted) in tries {
        let refused = with_capabilities(kept, || {
            Program::load(ProgramKind::Tc, "refused", &code).unwrap_err()
        });
        assert_eq!(refused.missing, wanted);
        assert_eq!(refused.error.errno, Errno::PERM.raw_os_error());
        let text = refused.to_string();
        // CAP_PERFMON is not named, because programs load without it.
        let named = wanted[..wanted.len() - 1].join(", ");
        assert!(text.ends_with(&format!("(without {named})")), "{text}");
    }
    with_capabilities(CapabilitySet::BPF | CapabilitySet::NET_ADMIN, || {
        assert_eq!(missing_capabilities(), ["CAP_PERFMON"]);
        Program::load(ProgramKind::Tc, "loads", &code).unwrap();
    });
    with_capabilities(CapabilitySet::SYS_ADMIN, || assert!(missing_capabilities().is_empty()));
}

/// Loads a program that compares and prints a pointer. The verifier accepts it with CAP_PERFMON;
/// without CAP_PERFMON, it rejects the program, and the error names the capability as a possible
/// cause.
#[test]
fn v5_verifier_is_stricter_without_perfmon() {
    let Some(()) = need::require_bpf() else { return };
    // Stores a stack pointer in a map, which every process can read.
    let map = Map::array("leak", 8, 1, true).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&map));
    let mut code = Vec::from(Insn::load_map_value(R1, number.cast_unsigned(), 0));
    code.push(Insn::mov(R2, R10));
    code.push(Insn::alu(Alu::Add, R2, -8));
    code.push(Insn::store(Size::DW, R1, 0, R2));
    code.extend([Insn::mov(R0, 0), Insn::exit()]);
    let code = insn::encode(&code);
    let load = LoadParameters::new(ProgramKind::Tc, "leak", &code);
    with_capabilities(
        CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON,
        || {
            load.load().unwrap();
        },
    );
    let refused = with_capabilities(CapabilitySet::BPF | CapabilitySet::NET_ADMIN, || {
        load.load().unwrap_err()
    });
    assert_eq!(refused.missing, ["CAP_PERFMON"]);
    assert!(refused.to_string().ends_with("(without CAP_PERFMON)"), "{refused}");
}

/// Expects a longer verifier log at a higher log level.
#[test]
fn verifier_log_detail_follows_the_requested_level() {
    let Some(()) = need::require_bpf() else { return };
    let mut code = vec![Insn::load(Size::W, R1, R1, 0), Insn::mov(R0, 0)];
    // Two paths to the first exit, then the rejected instruction.
    code.push(Insn::jump_if(Cond::Eq, R1, 5, 1));
    code.extend([Insn::exit(), Insn::mov(R0, R2), Insn::exit()]);
    let code = insn::encode(&code);
    let load = LoadParameters::new(ProgramKind::Tc, "told", &code);
    let short = load.load().unwrap_err().log;
    let long = LoadParameters { detail: LogLevel::AllPaths, ..load }.load().unwrap_err().log;
    assert!(short.contains("R2 !read_ok") && long.contains("R2 !read_ok"));
    assert!(long.len() > short.len(), "{short}\n{long}");
}

/// Expects a process without capabilities to attach a program whose descriptor it holds, which is
/// why untrusted peers must not receive descriptors. Expects the listing of a chain to need
/// CAP_NET_ADMIN.
#[test]
fn program_descriptor_suffices_to_attach_without_capabilities() {
    let Some(()) = need::require_bpf() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let map = Map::array("seen", 8, 1, true).unwrap();
    let program = attach::load_counter_program(ProgramKind::Tc, "counter", &map, -1);
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
        let (link, chain) = with_capabilities(CapabilitySet::empty(), || {
            let link = Link::attach_tcx(
                &program,
                index,
                TrafficDirection::Ingress,
                ChainPosition::Head,
                None,
            )
            .unwrap();
            (link, tcx_chain(index, TrafficDirection::Ingress).unwrap_err())
        });
        let text = chain.to_string();
        assert!(text.contains("PROG_QUERY") && text.contains("CAP_NET_ADMIN"), "{text}");
        assert_eq!(tcx_chain(index, TrafficDirection::Ingress).unwrap().members.len(), 1);
        drop(link);
        assert!(tcx_chain(index, TrafficDirection::Ingress).unwrap().members.is_empty());
    });
}
