//! Tests in which strace(1) kills a program under `streamline exec` before one of its system calls.
//! Afterwards, no kernel program may be left at the interface, and the next program must be served.
//! [RELIABILITY; FEATURES C1, C5]

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{ChildGuard, Folder};
use std::collections::HashMap;
use std::fs::File;
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use sys::bpf::{TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE};
use testkit::{need, wait_until};

const STREAMLINE: &str = env!("CARGO_BIN_EXE_streamline");
const PORT: u16 = 5500;
/// Number of replies after which a server that has not been killed is told to exit.
const REPLIES_UNTIL_QUIT: u32 = 200;

const SIGKILL: i32 = 9;
/// Distance between the system calls before which two successive runs are killed, modulo the number
/// of all calls. It is a prime, so that the kills are spread over all calls.
const CALL_STRIDE: usize = 7919;

/// A program that the tests kill, with the library of `exec` that is preloaded into it.
struct KilledProgram<'v> {
    /// The preloaded library under test, as `exec --with` names it: `pcap` or `udp`.
    part: &'v str,
    words: &'v [&'v str],
    /// Text that standard error contains if the program was not killed.
    report: &'v str,
}

/// A system call in a trace, before which strace can kill the program.
struct RecordedCall {
    name: String,
    /// Position of this call among the calls of the same name in the trace, from 1.
    number: usize,
}

/// Returns the system calls that a trace of strace lists, in order.
fn parse_system_calls(trace: &str) -> Vec<RecordedCall> {
    let mut counts = HashMap::new();
    let calls = trace.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let name = rest.trim_start().split_once('(')?.0;
        let is_call = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_call.then_some((thread, name))
    });
    let mut number = |thread, name| {
        let count = counts.entry((thread, name)).or_insert(0);
        *count += 1;
        RecordedCall { name: String::from(name), number: *count }
    };
    calls.map(|(thread, name)| number(thread, name)).collect()
}

/// The outcome of a program that strace ran: its system calls, its messages, and whether it was
/// killed.
struct RecordedRun {
    calls: Vec<RecordedCall>,
    errors: String,
    is_killed: bool,
}

const TCPDUMP: KilledProgram<'static> = KilledProgram {
    part: "pcap",
    words: &["tcpdump", "-Z", "root", "-n", "-i", SERVER_DEVICE, "-c", "20", "udp"],
    report: "20 packets captured",
};
/// A UDP echo server, which exits when it receives `quit`. [`kill_servers`] compiles the program.
const UDP_SERVER: KilledProgram<'static> =
    KilledProgram { part: "udp", words: &[], report: "datagrams came from the ring" };

impl KilledProgram<'_> {
    /// Runs the program under strace, and sends datagrams until the program has exited. If
    /// `kill_at` is `Some`, strace kills the program before this system call.
    fn run(
        &self,
        pair: &NamespacePair,
        shared: &Folder,
        kill_at: Option<&RecordedCall>,
    ) -> RecordedRun {
        let folder = Folder::new();
        let trace = folder.path().join("trace").display().to_string();
        let mut command = pair.server.command("strace");
        command.args(["-f", "-qq", "-o", &trace]);
        if let Some(call) = kill_at {
            command.arg(format!("--inject={}:signal=SIGKILL:when={}", call.name, call.number));
        }
        command.args([STREAMLINE, "exec", &format!("--with={}", self.part)]).args(self.words);
        shared.set_environment(&mut command);
        command.env("STREAMLINE_PCAP", "report").env("STREAMLINE_UDP", "report,always");
        command.stdout(File::create(folder.path().join("out")).unwrap());
        command.stderr(File::create(folder.path().join("err")).unwrap());
        let mut process = ChildGuard(command.spawn().unwrap());
        let client = pair.client.run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        client.set_nonblocking(true).unwrap();
        let (mut answers, mut room) = (0, [0; 100]);
        wait_until("the program has ended", || {
            let word: &[u8] = if answers < REPLIES_UNTIL_QUIT { b"some" } else { b"quit" };
            for _ in 0..8 {
                let _ = client.send_to(word, (SERVER, PORT));
            }
            while client.recv(&mut room).is_ok() {
                answers += 1;
            }
            process.0.try_wait().unwrap().is_some()
        });
        let calls = parse_system_calls(&std::fs::read_to_string(&trace).unwrap_or_default());
        let is_killed = process.0.wait().unwrap().signal() == Some(SIGKILL);
        RecordedRun { calls, errors: folder.read("err"), is_killed }
    }
}

/// Returns the number of kernel programs at the interface of the servers.
fn count_kernel_programs(pair: &NamespacePair) -> usize {
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
        let at = |side| tcx_chain(index, side).unwrap().members.len();
        at(TrafficDirection::Ingress) + at(TrafficDirection::Egress)
    })
}

/// Kills `kills` runs of the program, each before a different system call: first without a daemon,
/// and then as many with a daemon. Asserts that no kernel program remains.
fn kill_repeatedly(victim: &KilledProgram<'_>, kills: usize) {
    if need::require_bpf().is_none() || need::require_command("strace").is_none() {
        return;
    }
    if victim.part == "pcap" && need::require_command("tcpdump").is_none() {
        return;
    }
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    common::build_pipes_library();
    common::build_pcap_library();
    common::build_udp_library();
    for has_daemon in [false, true] {
        let shared = Folder::new();
        let _daemon = has_daemon.then(|| start_daemon(&pair, &shared));
        let RecordedRun { calls, errors, .. } = victim.run(&pair, &shared, None);
        assert!(errors.contains(victim.report), "{errors}");
        // The number of runs may be larger, because a program does not make every call in every
        // run.
        let (mut killed, mut runs) = (0, 0);
        while killed < kills {
            assert!(runs < 4 * kills, "{killed} kills in {runs} runs");
            let call = &calls[runs * CALL_STRIDE % calls.len()];
            killed += usize::from(victim.run(&pair, &shared, Some(call)).is_killed);
            runs += 1;
            wait_until("no program is left", || count_kernel_programs(&pair) == 0);
        }
        let errors = victim.run(&pair, &shared, None).errors;
        assert!(errors.contains(victim.report), "{errors}");
        wait_until("no program is left", || count_kernel_programs(&pair) == 0);
        eprintln!("{}: {killed} kills over {} system calls", victim.part, calls.len());
    }
}

/// Compiles the UDP echo server, and kills it `kills` times as [`kill`] does.
fn kill_udp_servers(kills: usize) {
    let Some(compiler) = need::require_command("cc") else { return };
    let folder = Folder::new();
    let program = folder.path().join("server").display().to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/udp_door/echo.c");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-o", &program]).arg(source);
    assert!(command.status().unwrap().success());
    let words = [&program, &PORT.to_string(), "level", "recvfrom"];
    kill_repeatedly(&KilledProgram { words: &words, ..UDP_SERVER }, kills);
}

fn start_daemon(pair: &NamespacePair, shared: &Folder) -> ChildGuard {
    let mut command = pair.server.command(STREAMLINE);
    shared.set_environment(&mut command);
    let place = shared.path().join(common::DAEMON_DIR);
    let daemon = ChildGuard(command.arg("daemon").arg("--socket").arg(place).spawn().unwrap());
    wait_until("a daemon answers", || shared.run(&["ps"]).status == Some(0));
    daemon
}

#[test]
fn killed_captures_leave_no_program_at_the_interface() {
    kill_repeatedly(&TCPDUMP, 10);
}

#[test]
fn killed_udp_servers_leave_no_program_at_the_interface() {
    kill_udp_servers(10);
}

#[test]
#[ignore = "takes minutes: cargo test -p streamline-cli --test door_kills -- --ignored --nocapture"]
fn captures_killed_200_times_leave_no_kernel_program() {
    kill_repeatedly(&TCPDUMP, 100);
}

#[test]
#[ignore = "takes minutes: cargo test -p streamline-cli --test door_kills -- --ignored --nocapture"]
fn udp_servers_killed_200_times_leave_no_kernel_program() {
    kill_udp_servers(100);
}
