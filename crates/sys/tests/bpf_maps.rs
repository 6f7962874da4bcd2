//! Tests of BPF maps: tail calls, notifications, type information, and checks on received maps.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[expect(dead_code, reason = "only the counting programs are needed here")]
mod attach;

use attach::{counter_value, load_constant_program, load_counter_program};
use ebpf::insn::{self, Alu, Helper, Insn, R0, R1, R2, R3, R4, R10, Size};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;
use streamline_sys as sys;
use sys::bpf::{
    BtfBuilder, FunctionInfo, LineInfo, LoadParameters, Map, MapKind, Program, ProgramKind,
    ProgramRings, RingBuffer, RingBufferListener, RingsLayout, SourceInfo,
};
use testkit::need;

fn map_fd_number(map: &Map) -> u32 {
    map.as_fd().as_raw_fd().cast_unsigned()
}

fn load_program(name: &str, code: &[Insn]) -> Program {
    Program::load(ProgramKind::Xdp, name, &insn::encode(code))
        .unwrap_or_else(|e| panic!("{e}\n{}", e.log))
}

#[test]
fn program_tail_calls_another() {
    let Some(()) = need::require_bpf() else { return };
    let places = Map::create_program_array("places", 4).unwrap();
    let mut code = Vec::from(Insn::load_map(R2, map_fd_number(&places)));
    code.extend([Insn::mov(R3, 1), Insn::call(Helper::TailCall), Insn::mov(R0, 2), Insn::exit()]);
    let first = load_program("first", &code);
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().return_value, 2, "the slot is empty");
    places.set_descriptor(1, load_constant_program(ProgramKind::Xdp, "second", 7).as_fd()).unwrap();
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().return_value, 7);
    let other =
        places.set_descriptor(1, load_constant_program(ProgramKind::Tc, "other", 7).as_fd());
    assert_eq!(other.unwrap_err().errno, Errno::INVAL.raw_os_error(), "of another kind");
    places.clear(1).unwrap();
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().return_value, 2);
}

#[test]
fn read_only_listener_is_notified() {
    let Some(()) = need::require_bpf() else { return };
    let mut doorbell = RingBuffer::create("bell", 4096).unwrap();
    let mut code = vec![Insn::store(Size::DW, R10, -8, 42)];
    code.extend(Insn::load_map(R1, map_fd_number(doorbell.map())));
    code.extend([
        Insn::mov(R2, R10),
        Insn::alu(Alu::Add, R2, -8),
        Insn::mov(R3, 8),
        Insn::mov(R4, 2),
        Insn::call(Helper::RingbufOutput),
        Insn::exit(),
    ]);
    let rings = load_program("rings", &code);
    let Ok(only) = doorbell.map().open_read_only() else {
        need::report_skip::<()>("needs CAP_SYS_ADMIN for a read-only descriptor");
        return;
    };
    let listener = RingBufferListener::new(&[only.as_fd()]).unwrap();
    assert!(!listener.wait(Duration::ZERO));
    for _ in 0..3 {
        assert_eq!(rings.test_run(&[0; 64], 1).unwrap().return_value, 0);
        assert!(listener.wait(testkit::wait::WAIT_TIMEOUT), "although nothing is drained");
        assert!(!listener.wait(Duration::ZERO), "once");
    }
    assert_eq!(doorbell.unconsumed_bytes(), 48);
    let mut records = Vec::new();
    assert_eq!(doorbell.drain(|record| records.push(record.to_vec())), 3);
    assert_eq!(records, vec![42_u64.to_ne_bytes().to_vec(); 3]);
    // A full ring buffer sends no notification until its owner has drained it.
    let put =
        (0..1_000).take_while(|_| rings.test_run(&[0; 64], 1).unwrap().return_value == 0).count();
    assert_eq!(put, 4096 / 16 - 1);
    assert_eq!(doorbell.drain(|_| ()), put);
    assert_eq!(rings.test_run(&[0; 64], 1).unwrap().return_value, 0);
    let received = Map::from_received(only).unwrap();
    assert_eq!(received.kind(), MapKind::RingBuffer);
}

/// Expects a program with BTF, functions and lines to load, and the verifier's log of a rejected
/// program to quote the lines.
#[test]
fn verifier_log_quotes_the_source_lines() {
    let Some(()) = need::require_bpf() else { return };
    let mut types = BtfBuilder::new();
    let int = types.add_int("int", 4);
    let main = types.add_function("main", int, &[("ctx", int)]);
    let (file, text) = (types.add_string("request"), types.add_string("dport |53 count"));
    let btf = types.load().unwrap();
    let functions = [FunctionInfo { instruction: 0, type_id: main }];
    let lines = [LineInfo { instruction: 0, file, text, line_col: 1 << 10 | 5 }];
    let source = Some(SourceInfo { btf: &btf, functions: &functions, lines: &lines });
    let sound = insn::encode(&[Insn::mov(R0, 0), Insn::exit()]);
    let load = LoadParameters { source, ..LoadParameters::new(ProgramKind::Tc, "lines", &sound) };
    let program = load.load().unwrap_or_else(|e| panic!("{e}\n{}", e.log));
    assert_eq!(program.test_run(&[0; 64], 1).unwrap().return_value, 0);
    let broken = insn::encode(&[Insn::mov(R0, R2), Insn::exit()]);
    let refused = LoadParameters { code: &broken, ..load }.load().unwrap_err();
    assert!(refused.log.contains("; dport |53 count"), "{}", refused.log);
}

/// Expects a receiver to reject a map that is not frozen or does not have the agreed sizes.
#[test]
fn received_rings_must_be_frozen() {
    let Some(()) = need::require_bpf() else { return };
    let shape = RingsLayout { cpus: 1, sinks: 1, pointers: 4, bytes: 4096, record_max: 100 };
    let rings = ProgramRings::create("rings", shape).unwrap();
    let copy = |map: &Map| map.as_fd().try_clone_to_owned().unwrap();
    assert!(rings.map().is_frozen().unwrap());
    assert!(rings.map().map().is_err(), "not even its owner writes");
    let received = ProgramRings::from_received(copy(rings.map()), shape).unwrap();
    assert_eq!(received.cpu_ring(0).unwrap().sink_pointer_count(0), 0);
    assert!(
        received.cpu_ring(1).is_none()
            && received.cpu_ring(0).unwrap().frame_pointer(1, 0).is_none()
    );
    assert!(!received.cpu_ring(0).unwrap().copy_record_bytes(0, 0, &mut [0; 133]));
    let refused = |map: &Map, shape| {
        let why = ProgramRings::from_received(copy(map), shape).unwrap_err();
        assert_eq!(why.errno, Errno::INVAL.raw_os_error(), "{why}");
    };
    refused(rings.map(), RingsLayout { bytes: 1 << 14, ..shape });
    refused(&Map::array("open", shape.size().unwrap(), 1, true).unwrap(), shape);
    refused(&Map::create_program_array("programs", 4).unwrap(), shape);
    let counter = Map::array("count", 8, 1, true).unwrap();
    let mapped = counter.map().unwrap();
    load_counter_program(ProgramKind::Xdp, "count", &counter, 2).test_run(&[0; 64], 3).unwrap();
    assert_eq!((mapped.word(0), counter_value(&counter)), (Some(3), 3));
    assert_eq!(counter.freeze().unwrap_err().errno, Errno::BUSY.raw_os_error(), "it is mapped");
}
