//! Maps of all types, accessed by programs and processes alike.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[expect(dead_code, reason = "only what counts is needed here")]
mod attach;

use attach::{answer, count, counted};
use ebpf::insn::{self, Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R6, R10, Size};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;
use streamline_sys as sys;
use sys::bpf::{
    BtfBuilder, FunctionInfo, License, LineInfo, Linkage, Listener, Load, Map, MapKind, Program,
    ProgramKind, RingBuffer, Rings, RingsLayout, SourceInfo, Specification, UpdateMode,
};
use testkit::need;
use testkit::net::until;

fn fd(map: &Map) -> u32 {
    map.as_fd().as_raw_fd().cast_unsigned()
}

fn load(name: &str, code: &[Insn]) -> Program {
    Program::load(ProgramKind::Xdp, name, &insn::encode(code))
        .unwrap_or_else(|e| panic!("{e}\n{}", e.log))
}

/// Encodes a call of a helper that the assembler has no name for.
fn call(number: i32) -> Insn {
    Insn { imm: number, ..Insn::call(Helper::CpuId) }
}

#[test]
fn maps_return_what_was_stored() {
    let Some(()) = need::bpf() else { return };
    for kind in [MapKind::Hash, MapKind::LruHash] {
        let table = Map::table("table", kind, 6, 3, 5_000).unwrap();
        let key = |number: u32| [&number.to_be_bytes()[..], b"ab"].concat();
        let value = |number: u32| number.to_le_bytes()[..3].to_vec();
        for number in 0..3_000 {
            table.update(&key(number), &value(number), UpdateMode::NoExist).unwrap();
        }
        let exists = table.update(&key(7), &value(7), UpdateMode::NoExist).unwrap_err();
        assert_eq!(exists.errno, Errno::EXIST.raw_os_error());
        let missing = table.update(&key(4_000), &value(0), UpdateMode::Exist).unwrap_err();
        assert_eq!(missing.errno, Errno::NOENT.raw_os_error());
        assert_eq!(table.lookup(&key(2_999)).unwrap(), Some(value(2_999)));
        assert_eq!(table.lookup(&key(3_000)).unwrap(), None);
        let mut all = table.all().unwrap();
        all.sort();
        assert!(
            all.len() == 3_000
                && all.iter().enumerate().all(|(number, (k, v))| {
                    *k == key(number as u32) && *v == value(number as u32)
                })
        );
        let (mut each, mut at) = (0, None);
        while let Some(next) = table.next_key(at.as_deref()).unwrap() {
            (each, at) = (each + 1, Some(next));
        }
        assert_eq!(each, 3_000);
        assert!(table.remove(&key(1)).unwrap() && !table.remove(&key(1)).unwrap());
        for wrong in [&b"short"[..], b"too long"] {
            assert_eq!(table.lookup(wrong).unwrap_err().errno, Errno::INVAL.raw_os_error());
            assert_eq!(table.next_key(Some(wrong)).unwrap_err().errno, Errno::INVAL.raw_os_error());
        }
    }
}

#[test]
fn per_cpu_map_has_a_value_per_cpu() {
    let Some(()) = need::bpf() else { return };
    let map = Map::per_cpu_array("each", 12, 3).unwrap();
    // key 2 at r10 - 4; value = lookup; *(u32 *)(value + 8) = 77
    let mut code = vec![Insn::store(Size::W, R10, -4, 2)];
    code.extend(Insn::load_map(R1, fd(&map)));
    code.extend([
        Insn::mov(R2, R10),
        Insn::alu(Alu::Add, R2, -4),
        Insn::call(Helper::MapLookup),
        Insn::jump_if(Cond::Eq, R0, 0, 1),
        Insn::store(Size::W, R0, 8, 77),
        Insn::mov(R0, 2),
        Insn::exit(),
    ]);
    load("each", &code).test_run(&[0; 64], 1).unwrap();
    let values = map.get_each(2).unwrap();
    assert_eq!(values.len(), sys::machine::possible_processors().unwrap());
    assert!(values.iter().all(|value| value.len() == 12));
    let here = values.iter().filter(|value| value[8] == 77).count();
    assert_eq!(here, 1);
    assert!(map.get_each(1).unwrap().iter().all(|value| value.iter().all(|byte| *byte == 0)));
    assert_eq!(map.all().unwrap().len(), 3);
}

#[test]
fn program_tail_calls_another() {
    let Some(()) = need::bpf() else { return };
    let places = Map::programs("places", 4).unwrap();
    let mut code = Vec::from(Insn::load_map(R2, fd(&places)));
    code.extend([Insn::mov(R3, 1), Insn::call(Helper::TailCall), Insn::mov(R0, 2), Insn::exit()]);
    let first = load("first", &code);
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().value, 2, "the slot is empty");
    places.set_program(1, &answer(ProgramKind::Xdp, "second", 7)).unwrap();
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().value, 7);
    let other = places.set_program(1, &answer(ProgramKind::Tc, "other", 7));
    assert_eq!(other.unwrap_err().errno, Errno::INVAL.raw_os_error(), "of another kind");
    assert!(places.remove(&1_u32.to_ne_bytes()).unwrap());
    assert_eq!(first.test_run(&[0; 64], 1).unwrap().value, 2);
}

#[test]
fn read_only_listener_is_notified() {
    let Some(()) = need::bpf() else { return };
    let mut bell = RingBuffer::create("bell", 4096).unwrap();
    let mut code = vec![Insn::store(Size::DW, R10, -8, 42)];
    code.extend(Insn::load_map(R1, fd(bell.map())));
    code.extend([
        Insn::mov(R2, R10),
        Insn::alu(Alu::Add, R2, -8),
        Insn::mov(R3, 8),
        Insn::mov(R4, 2),
        Insn::call(Helper::RingbufOutput),
        Insn::exit(),
    ]);
    let rings = load("rings", &code);
    let Ok(only) = bell.map().read_only() else {
        need::skip::<()>("needs CAP_SYS_ADMIN for a read-only descriptor");
        return;
    };
    let listener = Listener::to(&[only.as_fd()]).unwrap();
    assert!(!listener.wait(Duration::ZERO));
    for _ in 0..3 {
        assert_eq!(rings.test_run(&[0; 64], 1).unwrap().value, 0);
        assert!(listener.wait(testkit::wait::LIMIT), "although nothing is drained");
        assert!(!listener.wait(Duration::ZERO), "once");
    }
    assert_eq!(bell.waiting(), 48);
    let mut heard = Vec::new();
    assert_eq!(bell.drain(|record| heard.push(record.to_vec())), 3);
    assert_eq!(heard, vec![42_u64.to_ne_bytes().to_vec(); 3]);
    // Full: no notification until the owner has drained it.
    let put = (0..1_000).take_while(|_| rings.test_run(&[0; 64], 1).unwrap().value == 0).count();
    assert_eq!(put, 4096 / 16 - 1);
    assert_eq!(bell.drain(|_| ()), put);
    assert_eq!(rings.test_run(&[0; 64], 1).unwrap().value, 0);
    let received = Map::received(only).unwrap();
    assert_eq!(received.kind(), MapKind::RingBuffer);
}

/// A timer in a map value calls a function of the program: BTF, functions and lines load, and the
/// verifier's log quotes the lines.
#[test]
fn timer_in_a_map_value_fires() {
    let Some(()) = need::bpf() else { return };
    let mut types = BtfBuilder::new();
    let int = types.int("int", 4);
    let timer = types.timer();
    let value = types.structure("value", 24, &[("timer", timer, 0), ("count", int, 16)]);
    let main = types.function("main", int, &[("ctx", int)], Linkage::Global);
    let anything = types.pointer(0);
    let parameters = [("map", anything), ("key", anything), ("value", anything)];
    let back = types.function("back", int, &parameters, Linkage::Static);
    let (file, text) = (types.text("request"), types.text("dport |53 count"));
    let btf = types.load().unwrap();
    let array = Specification {
        name: "timed",
        kind: MapKind::Array,
        key_size: 4,
        value_size: 24,
        entries: 1,
        mappable: false,
        types: Some((&btf, int, value)),
    };
    let map = Map::create(&array).unwrap();
    let code = timed(&map);
    let callback = code.len() as u32 - 4;
    let functions = [
        FunctionInfo { instruction: 0, type_id: main },
        FunctionInfo { instruction: callback, type_id: back },
    ];
    let line = |instruction| LineInfo { instruction, file, text, number: 1 << 10 | 5 };
    let lines = [line(0), line(callback)];
    let source = Some(SourceInfo { btf: &btf, functions: &functions, lines: &lines });
    let bytes = insn::encode(&code);
    let load = Load { source, ..Load::new(ProgramKind::Tc, "timed", &bytes) };
    let refused = load.load().unwrap_err();
    assert!(refused.log.contains("GPL"), "{}", refused.log);
    let load = Load { license: License::MitOrGpl, ..load };
    let program = load.load().unwrap_or_else(|e| panic!("{e}\n{}", e.log));
    assert_eq!(program.test_run(&[0; 64], 1).unwrap().value, 0);
    until("the timer has called", || map.get(0).unwrap()[16] == 9);

    let mut broken = code.clone();
    broken[0] = Insn::mov(R6, R2);
    let bytes = insn::encode(&broken);
    let refused = Load { code: &bytes, ..load }.load().unwrap_err();
    assert!(refused.log.contains("; dport |53 count"), "{}", refused.log);
}

/// Generates a program that looks up the value, starts its timer for a millisecond, and returns 0
/// on success.
fn timed(map: &Map) -> Vec<Insn> {
    /// BPF_PSEUDO_FUNC; helper numbers; CLOCK_MONOTONIC.
    const FUNCTION: u8 = 4;
    const INIT: i32 = 169;
    const SET_CALLBACK: i32 = 170;
    const START: i32 = 171;
    const MONOTONIC: i32 = 1;
    let mut code = vec![Insn::mov(R6, R1), Insn::store(Size::W, R10, -4, 0)];
    code.extend(Insn::load_map(R1, fd(map)));
    code.extend([
        Insn::mov(R2, R10),
        Insn::alu(Alu::Add, R2, -4),
        Insn::call(Helper::MapLookup),
        Insn::jump_if(Cond::Ne, R0, 0, 2),
        Insn::mov(R0, 1),
        Insn::exit(),
        Insn::mov(R6, R0),
        Insn::mov(R1, R6),
    ]);
    code.extend(Insn::load_map(R2, fd(map)));
    code.extend([Insn::mov(R3, MONOTONIC), call(INIT), Insn::mov(R1, R6)]);
    let at = code.len();
    code.extend(Insn::load64(R2, 0));
    code.extend([
        call(SET_CALLBACK),
        Insn::mov(R1, R6),
        Insn::mov(R2, 1_000_000),
        Insn::mov(R3, 0),
        call(START),
        Insn::exit(),
    ]);
    // The callback is the last four instructions; the distance counts from behind the load.
    let distance = code.len() - (at + 1);
    code[at].src = FUNCTION;
    code[at].imm = distance as i32;
    let value = R3;
    code.extend([
        Insn::mov(R1, 9),
        Insn::store(Size::W, value, 16, R1),
        Insn::mov(R0, 0),
        Insn::exit(),
    ]);
    code
}

/// A receiver rejects a map that is not frozen or does not match the agreed sizes.
#[test]
fn received_rings_must_be_frozen() {
    let Some(()) = need::bpf() else { return };
    let shape = RingsLayout { cpus: 1, sinks: 1, pointers: 4, bytes: 4096, record_max: 100 };
    let rings = Rings::create("rings", shape).unwrap();
    let copy = |map: &Map| map.as_fd().try_clone_to_owned().unwrap();
    assert!(rings.map().is_frozen().unwrap());
    assert!(rings.map().map().is_err(), "not even its owner writes");
    let received = Rings::received(copy(rings.map()), shape).unwrap();
    assert_eq!(received.region(0).unwrap().head(0), 0);
    assert!(received.region(1).is_none() && received.region(0).unwrap().pointer(1, 0).is_none());
    assert!(!received.region(0).unwrap().copy(0, 0, &mut [0; 133]));
    let refused = |map: &Map, shape| {
        let why = Rings::received(copy(map), shape).unwrap_err();
        assert_eq!(why.errno, Errno::INVAL.raw_os_error(), "{why}");
    };
    refused(rings.map(), RingsLayout { bytes: 1 << 14, ..shape });
    refused(&Map::array("open", shape.size().unwrap(), 1, true).unwrap(), shape);
    refused(&Map::table("table", MapKind::Hash, 4, 8, 4).unwrap(), shape);
    let counter = Map::array("count", 8, 1, true).unwrap();
    let mapped = counter.map().unwrap();
    count(ProgramKind::Xdp, "count", &counter, 2).test_run(&[0; 64], 3).unwrap();
    assert_eq!((mapped.word(0), counted(&counter)), (Some(3), 3));
    assert_eq!(counter.freeze().unwrap_err().errno, Errno::BUSY.raw_os_error(), "it is mapped");
}
