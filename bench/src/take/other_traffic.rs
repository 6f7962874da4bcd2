//! The effect on other traffic of a request that takes one flow from the host: the throughput of a
//! TCP stream over the same veth pair, with and without taking. FEATURES G7
//!
//! The reference is the pair without a program. An empty XDP program shows the cost of taking
//! frames at XDP: while the program is attached, the veth device segments packets that it would
//! otherwise pass on whole.

use crate::harness::{Candidate, measure_interleaved_rows};
use crate::options::Options;
use crate::processes::{has_ingress_program, interrupt_and_wait};
use crate::row::Row;
use ebpf::insn::{Insn, R0, encode};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Instant;
use sys::bpf::{Link, Program, ProgramKind, XdpMode};
use sys::net::RouteSocket;
use testkit::net::{CLIENT, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, wait_until};

/// Number of bytes sent over the TCP stream in one measurement.
const TRANSFER_SIZE: u64 = 1 << 30;
/// Number of bytes that one system call sends or receives.
const BYTES_PER_CALL: usize = 1 << 20;
/// The port of the TCP stream; the request does not take its frames.
const TCP_PORT: u16 = 7;
/// The request that runs during the transfer. It takes a flow other than the TCP stream.
const REQUEST: &str = "rx server0 take \"udp port 53\" | count";
/// Return value of an XDP program that passes the frame to the host (`XDP_PASS`).
const XDP_PASS: i32 = 2;

pub(super) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let pair = NamespacePair::new(DevicePairSettings::default())
        .ok_or("needs root and `ip`: it creates two network namespaces")?;
    let alone = || measure_tcp_throughput(&pair);
    let beside_tc = || {
        let child = start_request(&pair)?;
        let rate = measure_tcp_throughput(&pair);
        interrupt_and_wait(child, REQUEST)?;
        rate
    };
    let beside_xdp = || {
        let _link = attach_empty_program(&pair)?;
        measure_tcp_throughput(&pair)
    };
    let candidates = vec![
        Candidate { name: "no request", measure: Box::new(alone) },
        Candidate { name: "a request takes a flow", measure: Box::new(beside_tc) },
        Candidate { name: "empty XDP program", measure: Box::new(beside_xdp) },
    ];
    measure_interleaved_rows(
        ("take", "TCP beside", f64::NAN),
        "Gbit/s",
        options.rounds,
        candidates,
        &[],
    )
}

fn start_request(pair: &NamespacePair) -> Result<Child, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name("streamline");
    let mut command = pair.server.command(own);
    command.args(["run", "--quiet", REQUEST]).stdout(Stdio::null());
    let child = command.spawn().map_err(|why| format!("{command:?}: {why}"))?;
    wait_until(REQUEST, || has_ingress_program(&pair.server));
    Ok(child)
}

/// Attaches an XDP program that passes every frame to the host.
fn attach_empty_program(pair: &NamespacePair) -> Result<Link, String> {
    let pass = encode(&[Insn::mov(R0, XDP_PASS), Insn::exit()]);
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().and_then(|links| links.interface_by_name(SERVER_DEVICE));
        let index = index.map_err(|why| why.to_string())?.index;
        let program =
            Program::load(ProgramKind::Xdp, "pass", &pass).map_err(|why| why.to_string())?;
        Link::attach_xdp(&program, index, XdpMode::Native).map_err(|why| why.to_string())
    })
}

/// Transfers [`TRANSFER_SIZE`] over TCP. Returns the throughput in Gbit/s.
#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn measure_tcp_throughput(pair: &NamespacePair) -> Result<f64, String> {
    let wrong = |why: std::io::Error| why.to_string();
    let listener = pair
        .server
        .run_in_network_namespace(|| TcpListener::bind((SERVER, TCP_PORT)))
        .map_err(wrong)?;
    let mut near = pair.client.run_in_network_namespace(|| {
        TcpStream::connect((SERVER, TCP_PORT)).map_err(|why| format!("{CLIENT}: {why}"))
    })?;
    let (mut far, _) = listener.accept().map_err(wrong)?;
    let begin = Instant::now();
    let received = std::thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![0x5a; BYTES_PER_CALL];
            for _ in 0..TRANSFER_SIZE / BYTES_PER_CALL as u64 {
                if near.write_all(&block).is_err() {
                    return;
                }
            }
            let _ = near.shutdown(Shutdown::Write);
        });
        let (mut room, mut received) = (vec![0; BYTES_PER_CALL], 0);
        loop {
            match far.read(&mut room).map_err(wrong)? {
                0 => return Ok::<u64, String>(received),
                count => received += count as u64,
            }
        }
    })?;
    let took = begin.elapsed().as_secs_f64();
    if received != TRANSFER_SIZE {
        return Err(format!("{received} of {TRANSFER_SIZE} bytes arrived"));
    }
    Ok(received as f64 * 8.0 / 1e9 / took)
}
