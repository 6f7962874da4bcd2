//! Test helpers: programs that count frames, frames to send, and a process that is killed while it
//! attaches programs.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::sync::Arc;

use ebpf::insn::{self, Insn, R0, R1, R2, Size, atomic};
use std::os::fd::{AsFd as _, AsRawFd as _};
use streamline_sys as sys;
use sys::bpf::ring::{ProgramRings, RingsLayout};
use sys::bpf::{
    Btf, BtfBuilder, ChainPosition, FunctionInfo, Link, LoadParameters, Map, ObjectKind, Program,
    ProgramKind, RingBuffer, SourceInfo, TrafficDirection, XdpMode,
};
use sys::net::RouteSocket;
use sys::packet::{PacketSender, PacketSocket, QdiscMode};
use sys::xdp::{SocketSettings, Umem, UmemSizes, XdpRedirect, XdpSocket};
use testkit::Frame;
use testkit::net::{
    CLIENT_DEVICE, Namespace, NamespacePair, SERVER_DEVICE, wait_until, wait_until_received,
};

/// Loads a program that only returns `value`.
pub(crate) fn load_constant_program(kind: ProgramKind, name: &str, value: i32) -> Program {
    Program::load(kind, name, &constant_return_code(value)).unwrap()
}

pub(crate) fn constant_return_code(value: i32) -> Vec<u8> {
    insn::encode(&[Insn::mov(R0, value), Insn::exit()])
}

/// Loads a program that increments the first word of the mappable array `map` and returns `value`.
pub(crate) fn load_counter_program(
    kind: ProgramKind,
    name: &str,
    map: &Map,
    value: i32,
) -> Program {
    let number = map.as_fd().as_raw_fd().cast_unsigned();
    let mut code = Vec::from(Insn::load_map_value(R1, number, 0));
    code.push(Insn::mov(R2, 1));
    code.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
    code.extend([Insn::mov(R0, value), Insn::exit()]);
    Program::load(kind, name, &insn::encode(&code)).unwrap()
}

pub(crate) fn counter_value(map: &Map) -> u64 {
    u64::from_ne_bytes(map.get(0).unwrap().try_into().unwrap())
}

/// Sends `count` frames from the client and waits until the server's device has received them.
pub(crate) fn send_frames(pair: &NamespacePair, count: u64) {
    let device = testkit::net::device_counters(&pair.server, SERVER_DEVICE).unwrap();
    let before = device.received + device.receive_dropped;
    let frame = Frame::ethernet().ipv4("192.0.2.1", "192.0.2.2").udp(1, 2, b"counted");
    pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(CLIENT_DEVICE).unwrap().index;
        let mut sender = PacketSender::open(index, QdiscMode::Through).unwrap();
        for _ in 0..count {
            wait_until("there is room", || sender.send(&[&frame]).frames == 1);
        }
    });
    wait_until_received(&pair.server, SERVER_DEVICE, before + count);
}

/// Number of steps that [`attach_step_by_step`] can perform.
pub(crate) const ATTACH_STEP_COUNT: u32 = 13;

/// Name of the environment variable that contains the index of the target interface.
const INTERFACE_INDEX_VARIABLE: &str = "STREAMLINE_TEST_INDEX";
/// Name of the environment variable with the number of steps to perform.
const STEP_COUNT_VARIABLE: &str = "STREAMLINE_TEST_STEP";

/// Attaches programs up to the step that the parent requested, reports the objects created, and
/// waits to be killed.
pub(crate) fn attach_step_by_step() {
    let number = |name| std::env::var(name).unwrap().parse::<u32>().unwrap();
    let (index, steps) = (number(INTERFACE_INDEX_VARIABLE), number(STEP_COUNT_VARIABLE));
    let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
    let map = (steps > 0).then(|| Map::array("killed", 8, 1, true).unwrap());
    let announce = |of: &str, id: u32| print_line(&format!("made {of} {id}"));
    if let Some(map) = &map {
        announce("map", map.info().unwrap().id);
        let program = |kind, value| {
            let program = load_counter_program(kind, "killed", map, value);
            announce("program", program.info().unwrap().id);
            program
        };
        let mut links = Vec::new();
        for step in 1..steps {
            match step {
                1 => kept.push(Box::new(program(ProgramKind::Tc, -1))),
                2 | 3 => {
                    let side = if step == 2 {
                        TrafficDirection::Ingress
                    } else {
                        TrafficDirection::Egress
                    };
                    let program = program(ProgramKind::Tc, -1);
                    links.push(
                        Link::attach_tcx(&program, index, side, ChainPosition::Head, None).unwrap(),
                    );
                }
                4 => links[0].replace_program(&program(ProgramKind::Tc, -1), None).unwrap(),
                5 => links.push(
                    Link::attach_xdp(&program(ProgramKind::Xdp, 2), index, XdpMode::Native)
                        .unwrap(),
                ),
                6 => kept.push(Box::new(RingBuffer::create("killed", 4096).unwrap())),
                7 => kept.push(Box::new(open_xdp_socket(index))),
                8 => kept.push(Box::new(load_program_with_btf())),
                9 => kept.push(Box::new(create_kernel_rings())),
                10 => {
                    kept.push(Box::new(socket_with_filter(&program(ProgramKind::SocketFilter, 0))))
                }
                11 => links[0].detach().unwrap(),
                _ => {}
            }
            if let Some(link) = links.last() {
                announce("link", link.info().unwrap().id);
            }
        }
        kept.push(Box::new(links));
    }
    print_line("ready");
    // Blocks until this process is killed or its parent has exited.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Opens an AF_XDP socket on the interface `index`, with its memory and its redirecting program.
fn open_xdp_socket(index: u32) -> (XdpRedirect, XdpSocket) {
    let shape = UmemSizes { frame: 2048, frames: 64, headroom: 0 };
    let umem = Arc::new(Umem::create("killed", shape).unwrap());
    let socket = XdpSocket::open(&umem, SocketSettings::new(index, 0, 64)).unwrap();
    let redirect = XdpRedirect::load("killed", 1, false).unwrap();
    redirect.redirect_to_socket(0, &socket).unwrap();
    print_line(&format!("made program {}", redirect.program().info().unwrap().id));
    (redirect, socket)
}

/// Loads BTF type information, and a program with source lines that refers to it.
fn load_program_with_btf() -> (Btf, Program) {
    let mut types = BtfBuilder::new();
    let int = types.add_int("int", 4);
    let main = types.add_function("killed", int, &[("ctx", int)]);
    let btf = types.load().unwrap();
    let (code, functions) =
        (constant_return_code(0), [FunctionInfo { instruction: 0, type_id: main }]);
    let source = Some(SourceInfo { btf: &btf, functions: &functions, lines: &[] });
    let program =
        LoadParameters { source, ..LoadParameters::new(ProgramKind::Tc, "killed", &code) }
            .load()
            .unwrap();
    print_line(&format!("made program {}", program.info().unwrap().id));
    (btf, program)
}

/// Creates frozen per-CPU rings, into which programs write frames.
fn create_kernel_rings() -> ProgramRings {
    let shape = RingsLayout { cpus: 2, sinks: 1, pointers: 64, bytes: 1 << 16, record_max: 2048 };
    let rings = ProgramRings::create("killed", shape).unwrap();
    print_line(&format!("made map {}", rings.map().info().unwrap().id));
    rings
}

/// Opens a packet socket with an attached filter program.
fn socket_with_filter(program: &Program) -> PacketSocket {
    let socket = PacketSocket::open().unwrap();
    socket.attach_program(program).unwrap();
    socket
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn print_line(line: &str) {
    println!("{line}");
}

/// Starts a process that attaches programs up to step `step`, kills it, and returns the kernel
/// objects that it had created.
pub(crate) fn kill_at_step(space: &Namespace, index: u32, step: u32) -> Vec<(ObjectKind, u32)> {
    let mut command = space.command(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", "child_process_attaches_step_by_step"]);
    command
        .env(INTERFACE_INDEX_VARIABLE, index.to_string())
        .env(STEP_COUNT_VARIABLE, step.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut made = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // The test harness may have printed the beginning of the line.
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [.., "ready"] => break,
            [.., "made", of, id] => {
                let of = match *of {
                    "map" => ObjectKind::Maps,
                    "program" => ObjectKind::Programs,
                    _ => ObjectKind::Links,
                };
                made.push((of, id.parse().unwrap()));
            }
            _ => {}
        }
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed");
    made
}
