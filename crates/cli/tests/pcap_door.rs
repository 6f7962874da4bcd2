//! Tests of `streamline exec` with programs that use libpcap, over a virtual cable. Two instances
//! of each program capture the same traffic at the same time: one through libpcap, the other from
//! the rings.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

#[path = "pcap_door/any_device.rs"]
mod any_device;
mod common;
#[path = "pcap_door/kernel_filters.rs"]
mod kernel_filters;
#[path = "pcap_door/overload.rs"]
mod overload;
#[path = "pcap_door/programs.rs"]
mod programs;

use common::{ChildGuard, Folder};
use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE};
use testkit::{need, wait_until};

/// The UDP port to which the tests send.
const PORT: u16 = 5300;
/// Maximum difference between the times of a packet in two captures, in seconds. The times agree
/// within microseconds, unless the test machine pauses a program.
const TIME_TOLERANCE_S: f64 = 0.5;

/// Builds the libraries, and creates a cable and a directory. Reports a skip and returns `None` if
/// the machine does not permit the test.
fn prepare_capture_test(program: &str) -> Option<(NamespacePair, Folder)> {
    need::require_bpf()?;
    need::require_command(program)?;
    let pair = NamespacePair::new(DevicePairSettings::default())?;
    common::build_pipes_library();
    common::build_pcap_library();
    Some((pair, Folder::new()))
}

/// A capturing program, whose standard error is in a file.
struct CaptureProgram {
    process: ChildGuard,
    errors: PathBuf,
}

impl CaptureProgram {
    /// Starts a program in the namespace of the server, and waits until it prints `ready` on
    /// standard error. If `is_ours` is true, the program runs under `streamline exec`.
    fn start(
        (pair, folder): (&NamespacePair, &Folder),
        is_ours: bool,
        (words, ready): (&[&str], &str),
    ) -> Self {
        Self::start_in_folder((pair, folder, folder), is_ours, (words, ready))
    }

    /// Like [`Self::start`], but the program's files are in `folder`, and the daemon's directory is
    /// in `shared`.
    fn start_in_folder(
        (pair, folder, shared): (&NamespacePair, &Folder, &Folder),
        is_ours: bool,
        (words, ready): (&[&str], &str),
    ) -> Self {
        let name = if is_ours { "ours" } else { "real" };
        let errors = folder.path().join(format!("{name}.err"));
        let mut command = pair.server.command(if is_ours { STREAMLINE } else { words[0] });
        let rest = if is_ours { words } else { &words[1..] };
        command.args(if is_ours { &["exec"][..] } else { &[] }).args(rest);
        shared.set_environment(&mut command);
        command.env("STREAMLINE_PCAP", "report").current_dir(folder.path());
        command.stdout(File::create(folder.path().join(format!("{name}.out"))).unwrap());
        command.stderr(File::create(&errors).unwrap());
        let process = ChildGuard(command.spawn().unwrap());
        let observer = Self { process, errors };
        wait_until(&format!("{name} says {ready:?}"), || observer.errors().contains(ready));
        observer
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Interrupts the capturing program (SIGINT), and waits until it has exited. Returns its
    /// standard error.
    fn interrupt(mut self) -> String {
        let number = self.process.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &number]).status().unwrap().success());
        self.process.0.wait().unwrap();
        self.errors()
    }

    /// Waits until the program exits by itself. Returns its standard error.
    fn finish(mut self) -> String {
        wait_until("the program ends", || self.process.0.try_wait().unwrap().is_some());
        self.errors()
    }
}

const STREAMLINE: &str = env!("CARGO_BIN_EXE_streamline");
/// Text that tcpdump prints when it begins to capture.
const LISTENING_TEXT: &str = "listening on";

/// Sends numbered UDP datagrams from the client to a port of the server. `sizes` contains their
/// lengths in bytes.
fn send_datagrams(pair: &NamespacePair, port: u16, sizes: impl IntoIterator<Item = usize> + Send) {
    pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for (number, size) in (0u32..).zip(sizes) {
            let mut bytes = vec![0x5a; size.max(4)];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&bytes, (SERVER, port)).unwrap();
        }
    });
}

/// A packet read from a capture file: its time, original length and captured bytes.
#[derive(Clone, PartialEq, Debug)]
struct Packet {
    seconds: f64,
    length: u32,
    bytes: Vec<u8>,
}

/// Reads the complete packets of a capture file that may still be growing.
fn read_packets(path: &Path) -> Vec<Packet> {
    let all = std::fs::read(path).unwrap_or_default();
    let word = |at: usize| Some(u32::from_le_bytes(all.get(at..at + 4)?.try_into().ok()?));
    let (mut packets, mut at) = (Vec::new(), 24);
    while let (Some(seconds), Some(micros), Some(captured), Some(length)) =
        (word(at), word(at + 4), word(at + 8), word(at + 12))
    {
        let end = at + 16 + captured as usize;
        let Some(bytes) = all.get(at + 16..end) else { break };
        let seconds = f64::from(seconds) + f64::from(micros) / 1e6;
        packets.push(Packet { seconds, length, bytes: bytes.to_vec() });
        at = end;
    }
    packets
}

/// Runs two instances of `tcpdump` at the same time, one through libpcap and one from the rings,
/// until each has captured `count` packets. Returns the packets of both, and the standard error of
/// the second instance.
fn capture_with_libpcap_and_rings(
    words: &[&str],
    count: usize,
    traffic: impl FnOnce(&NamespacePair),
) -> Option<([Vec<Packet>; 2], String)> {
    capture_on_device_with_libpcap_and_rings(SERVER_DEVICE, words, count, |_| (), traffic)
}

/// Like [`capture_with_libpcap_and_rings`], but on the device `device`. Calls `prepare_pair` before
/// the programs start.
fn capture_on_device_with_libpcap_and_rings(
    device: &str,
    words: &[&str],
    count: usize,
    prepare_pair: impl FnOnce(&NamespacePair),
    traffic: impl FnOnce(&NamespacePair),
) -> Option<([Vec<Packet>; 2], String)> {
    let (pair, folder) = prepare_capture_test("tcpdump")?;
    prepare_pair(&pair);
    let files = ["real.pcap", "ours.pcap"].map(|name| folder.path().join(name));
    let start = |is_ours: bool| {
        let file = files[usize::from(is_ours)].display().to_string();
        let mut all = vec!["tcpdump", "-Z", "root", "-U", "-n", "-i", device, "-w", &file];
        all.extend(words);
        CaptureProgram::start((&pair, &folder), is_ours, (&all, LISTENING_TEXT))
    };
    let (real, ours) = (start(false), start(true));
    traffic(&pair);
    for file in &files {
        wait_until(&format!("{count} packets are in {}", file.display()), || {
            read_packets(file).len() >= count
        });
    }
    real.interrupt();
    let errors = ours.interrupt();
    Some((files.map(|file| read_packets(&file)), errors))
}

/// Asserts that two captures have the same packets at the same times.
fn assert_same_packets([real, ours]: &[Vec<Packet>; 2]) {
    assert_eq!(real.len(), ours.len());
    for (number, (real, ours)) in real.iter().zip(ours).enumerate() {
        assert_eq!((real.length, &real.bytes), (ours.length, &ours.bytes), "packet {number}");
        let apart = (real.seconds - ours.seconds).abs();
        assert!(apart < TIME_TOLERANCE_S, "packet {number}: {apart} s apart");
    }
}

/// Returns the number that precedes `words` in a text.
fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split(words).next().filter(|_| text.contains(words));
    let word = before.and_then(|text| text.split_whitespace().last());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {words:?} in {text:?}"))
}

#[test]
fn c5_tcpdump_under_exec_captures_both_directions_like_libpcap() {
    let sizes = (0..300).map(|number| 4 + number * 4);
    let captured = capture_with_libpcap_and_rings(&["udp or icmp"], 600, |pair| {
        // The server replies to each datagram, so that the order of packets in both directions is
        // fixed.
        let server =
            pair.server.run_in_network_namespace(|| UdpSocket::bind((SERVER, PORT)).unwrap());
        let client = pair.client.run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        client.connect((SERVER, PORT)).unwrap();
        let mut room = [0; 2000];
        for size in sizes {
            client.send(&vec![7; size]).unwrap();
            let (length, from) = server.recv_from(&mut room).unwrap();
            server.send_to(&room[..length], from).unwrap();
            assert_eq!(client.recv(&mut room).unwrap(), size);
        }
    });
    let Some((packets, errors)) = captured else { return };
    assert_eq!(packets[0].len(), 600);
    assert_same_packets(&packets);
    assert_eq!(number_before(&errors, " packets captured"), 600, "{errors}");
    assert_eq!(number_before(&errors, " packets received by filter"), 600, "{errors}");
    assert!(errors.contains("600 of 600 packets came from the ring; 0 lost, 0 unread"), "{errors}");
}

#[test]
fn tcpdump_under_exec_applies_filter_and_snapshot_length() {
    let captured = capture_with_libpcap_and_rings(
        &["-s", "60", "udp port 5300 and greater 200"],
        50,
        |pair| {
            send_datagrams(pair, PORT + 1, [500; 20]);
            send_datagrams(
                pair,
                PORT,
                (0..100).map(|number| if number % 2 == 0 { 100 } else { 300 }),
            );
        },
    );
    let Some((packets, errors)) = captured else { return };
    assert_same_packets(&packets);
    assert!(packets[1].iter().all(|packet| packet.length == 342 && packet.bytes.len() == 60));
    assert_eq!(number_before(&errors, " packets received by filter"), 50, "{errors}");
}

#[test]
fn tcpdump_under_exec_ends_by_count_with_the_same_lines() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let words = ["tcpdump", "-t", "-n", "-e", "-c", "10", "-i", SERVER_DEVICE, "udp"];
    let start =
        |is_ours| CaptureProgram::start((&pair, &folder), is_ours, (&words, LISTENING_TEXT));
    let (real, ours) = (start(false), start(true));
    send_datagrams(&pair, PORT, [64; 10]);
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"));
    assert_eq!(folder.read("ours.out").lines().count(), 10);
    assert!(errors.contains("10 of 10 packets came from the ring"), "{errors}");
}

#[test]
fn tcpdump_under_exec_lists_the_link_types_of_libpcap() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let words = ["tcpdump", "-L", "-i", SERVER_DEVICE];
    for is_ours in [false, true] {
        CaptureProgram::start((&pair, &folder), is_ours, (&words, "")).finish();
    }
    let both = ["real", "ours"]
        .map(|name| folder.read(&format!("{name}.out")) + &folder.read(&format!("{name}.err")));
    assert!(both[1].contains("EN10MB"), "{both:?}");
    assert!(both[1].starts_with(&both[0]), "{both:?}");
}

#[test]
fn device_without_ethernet_is_left_to_libpcap_with_a_reason() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    any_device::add_tun_device(&pair);
    let words = ["tcpdump", "-n", "-i", any_device::TUN_DEVICE];
    let observer = CaptureProgram::start((&pair, &folder), true, (&words, LISTENING_TEXT));
    let errors = observer.interrupt();
    let reason = "read by libpcap, not from a shared ring: its frames are not Ethernet frames";
    assert!(errors.contains(reason), "{errors}");
    assert!(errors.contains("0 of 0 packets came from the ring"), "{errors}");
}

/// Starts a daemon in the namespace of the server.
fn start_daemon(pair: &NamespacePair, folder: &Folder) -> ChildGuard {
    let place = folder.path().join("no-daemon").display().to_string();
    let mut command = pair.server.command(STREAMLINE);
    folder.set_environment(&mut command);
    let daemon = ChildGuard(command.args(["daemon", "--socket", &place]).spawn().unwrap());
    wait_until("a daemon answers", || folder.run(&["ps"]).status == Some(0));
    daemon
}

#[test]
fn capture_continues_when_the_daemon_is_killed() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    for device in [SERVER_DEVICE, "any"] {
        let mut daemon = start_daemon(&pair, &folder);
        let file = folder.path().join(format!("{device}.pcap"));
        let name = file.display().to_string();
        let words =
            ["tcpdump", "-Z", "root", "-U", "-n", "-i", device, "-w", &name, "udp port 5300"];
        let ours = CaptureProgram::start((&pair, &folder), true, (&words, LISTENING_TEXT));
        let written = |count: usize| {
            wait_until("the packets are written", || read_packets(&file).len() >= count);
        };
        send_datagrams(&pair, PORT, [64; 5]);
        written(5);
        daemon.0.kill().unwrap();
        wait_until("the interruption is reported", || ours.errors().contains("continues"));
        send_datagrams(&pair, PORT, [64; 5]);
        written(10);
        let errors = ours.interrupt();
        assert!(errors.contains("10 of 10 packets came from the ring; 0 lost"), "{errors}");
        assert!(errors.contains("the daemon has ended"), "{errors}");
    }
}

#[test]
fn dumpcap_without_own_rights_reads_through_the_daemon() {
    let Some((pair, folder)) = prepare_capture_test("dumpcap") else { return };
    let _daemon = start_daemon(&pair, &folder);
    let file = folder.path().join("out.pcap").display().to_string();
    let words =
        ["dumpcap", "-q", "-P", "-i", SERVER_DEVICE, "-f", "udp", "-c", "20", "-w", file.as_str()];
    let observer = CaptureProgram::start((&pair, &folder), true, (&words, "File:"));
    send_datagrams(&pair, PORT, (0..20).map(|number| 100 + number));
    let errors = observer.finish();
    assert!(errors.contains("20 of 20 packets came from the ring"), "{errors}");
    let lengths: Vec<u32> = read_packets(Path::new(&file)).iter().map(|one| one.length).collect();
    assert_eq!(lengths, (142..162).collect::<Vec<u32>>());
}

/// Compiles a test program against the installed libpcap. Reports a skip and returns `None` if that
/// is not possible.
fn compile_with_libpcap(folder: &Folder, name: &str) -> Option<PathBuf> {
    let compiler = need::require_command("cc")?;
    let program = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pcap_door").join(name);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source.with_extension("c"));
    let built = command.arg("-l:libpcap.so.0.8").output().unwrap();
    if String::from_utf8_lossy(&built.stderr).contains("cannot find") {
        return need::report_skip("needs libpcap");
    }
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

#[test]
fn program_that_polls_the_descriptor_and_sends_is_served() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let Some(program) = compile_with_libpcap(&folder, "polls") else { return };
    let program = program.display().to_string();
    let words = [program.as_str(), SERVER_DEVICE, "40"];
    let observer = CaptureProgram::start((&pair, &folder), true, (&words, "ready"));
    for _ in 0..40 {
        send_datagrams(&pair, PORT, [64]);
    }
    let errors = observer.finish();
    assert!(errors.contains("40 of 40 packets came from the ring"), "{errors}");
    assert!(folder.read("ours.out").contains("read 40, sent 60, nonblocking 1"), "{errors}");
}

#[test]
fn c5_program_that_loads_libpcap_at_run_time_reads_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("python3") else { return };
    let script = "
import ctypes, sys
p = ctypes.CDLL('libpcap.so.0.8')
p.pcap_open_live.restype = ctypes.c_void_p
e = ctypes.create_string_buffer(256)
h = ctypes.c_void_p(p.pcap_open_live(sys.argv[1].encode(), 65535, 1, 10, e))
assert h.value, e.value
print('ready', file=sys.stderr, flush=True)
head, data = ctypes.c_void_p(), ctypes.c_void_p()
n = 0
while n < 5:
    result = p.pcap_next_ex(h, ctypes.byref(head), ctypes.byref(data))
    assert result >= 0, result
    n += result
print('read', n)
";
    let words = ["python3", "-c", script, SERVER_DEVICE];
    let all = ["--with=pcap", words[0], words[1], words[2], words[3]];
    let observer = CaptureProgram::start((&pair, &folder), true, (&all, "ready"));
    send_datagrams(&pair, PORT, [64; 5]);
    let errors = observer.finish();
    assert_eq!(folder.read("ours.out"), "read 5\n");
    // The number is not checked, because the program does not close the handle and may have read
    // only some of the packets.
    assert!(errors.contains(" packets came from the ring; 0 lost"), "{errors}");
}

#[test]
fn every_libpcap_symbol_is_replaced_or_passed_through() {
    let Some(nm) = need::require_command("nm") else { return };
    let Some(tcpdump) = need::require_command("tcpdump") else { return };
    let libraries = Command::new("ldd").arg(tcpdump).output().unwrap().stdout;
    let libraries = String::from_utf8(libraries).unwrap();
    let of_libpcap = |line: &&str| line.trim_start().starts_with("libpcap.so");
    let line = libraries.lines().find(of_libpcap).unwrap();
    let libpcap = line.split_whitespace().nth(2).unwrap();
    let symbols = |library: &Path| -> Vec<String> {
        let listed =
            Command::new(&nm).args(["-D", "--defined-only"]).arg(library).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let names = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
        names.map(|name| name.split('@').next().unwrap().to_owned()).collect()
    };
    let (theirs, ours) = (symbols(Path::new(libpcap)), symbols(common::build_pcap_library()));
    // `dlsym` is also replaced, for programs that load libpcap at run time.
    let is_unknown = |name: &&String| !theirs.contains(name) && *name != "dlsym";
    let unknown: Vec<&String> = ours.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "ours that libpcap lacks: {unknown:?}");
    let passed: Vec<&str> = include_str!("pcap_door/passed").lines().collect();
    let is_known = |name: &&String| ours.contains(name) || passed.contains(&name.as_str());
    let new: Vec<&String> = theirs.iter().filter(|name| !is_known(name)).collect();
    assert!(new.is_empty(), "neither ours nor in `passed`: {new:?}");
    let both: Vec<&&str> =
        passed.iter().filter(|name| ours.contains(&(**name).to_owned())).collect();
    assert!(both.is_empty(), "ours and in `passed`: {both:?}");
}
