//! Tests of capture programs other than tcpdump. Each program runs twice, once through libpcap and
//! once from the rings; the test prints the share of packets that came from a ring.

use super::*;
use std::collections::BTreeSet;
use std::net::TcpListener;
use testkit::net::{CLIENT, CLIENT_DEVICE};

/// Minimum share, in percent, of a program's packets that must come from a ring instead of libpcap.
const RING_SHARE_MIN_PERCENT: u64 = 95;

/// Asserts that at least [`RING_SHARE_MIN_PERCENT`] percent of the packets came from a ring,
/// according to the lines of `STREAMLINE_PCAP=report`. Prints the share.
fn assert_packets_from_ring(program: &str, errors: &str) {
    let words = " packets came from the ring";
    let (mut given, mut all) = (0, 0);
    for line in errors.lines().filter(|line| line.contains(words)) {
        let of = number_before(line, words);
        given += number_before(line, &format!(" of {of}{words}"));
        all += of;
    }
    eprintln!("{program}: {given} of {all} packets came from a ring");
    assert!(
        all > 0 && given * 100 >= all * RING_SHARE_MIN_PERCENT,
        "{program}: {given} of {all}: {errors}"
    );
}

#[test]
fn c5_tshark_reads_the_ring_through_dumpcap() {
    let Some((pair, folder)) = prepare_capture_test("tshark") else { return };
    let _daemon = start_daemon(&pair, &folder);
    let words = "tshark -n -c 40 -i server0 -T fields -e frame.number -e frame.len -e eth.src \
                 -e ip.id -e udp.srcport -e udp.payload -f";
    assert!(words.contains(SERVER_DEVICE));
    let words: Vec<&str> = words.split_whitespace().chain(["udp port 5300"]).collect();
    // dumpcap prints this message when it has begun to write its file.
    let start =
        |is_ours| CaptureProgram::start((&pair, &folder), is_ours, (&words, "Capture started"));
    let (real, ours) = (start(false), start(true));
    send_datagrams(&pair, PORT + 1, [64; 10]);
    send_datagrams(&pair, PORT, (0..40).map(|number| 10 + number * 30));
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"), "{errors}");
    assert_eq!(folder.read("ours.out").lines().count(), 40, "{errors}");
    assert_packets_from_ring("tshark", &errors);
}

#[test]
fn tshark_without_a_daemon_captures_by_libpcap_with_a_note() {
    let Some((pair, folder)) = prepare_capture_test("tshark") else { return };
    let words = ["tshark", "-n", "-c", "5", "-i", SERVER_DEVICE, "-f", "udp port 5300"];
    let observer = CaptureProgram::start((&pair, &folder), true, (&words, "Capture started"));
    send_datagrams(&pair, PORT, [64; 5]);
    let errors = observer.finish();
    assert_eq!(folder.read("ours.out").lines().count(), 5, "{errors}");
    // dumpcap drops the privilege to load programs. The note is not written to dumpcap's standard
    // error, which carries a protocol between dumpcap and tshark.
    let note = format!("streamline: {SERVER_DEVICE}: read by libpcap, not from a shared ring: ");
    assert!(errors.contains(&note), "{errors}");
}

#[test]
fn c5_ngrep_prints_the_same_packets_from_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("ngrep") else { return };
    let words = ["ngrep", "-l", "-x", "-n", "30", "-d", SERVER_DEVICE, "ZZ", "udp port 5300"];
    let start = |is_ours: bool| {
        let observer = CaptureProgram::start((&pair, &folder), is_ours, (&words, ""));
        let name = if is_ours { "ours.out" } else { "real.out" };
        // ngrep prints the expression when it has set the filter.
        wait_until("ngrep captures", || folder.read(name).contains("match"));
        observer
    };
    let (real, ours) = (start(false), start(true));
    send_datagrams(&pair, PORT + 1, [100; 10]);
    send_datagrams(&pair, PORT, (0..30).map(|number| 20 + number * 10));
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"), "{errors}");
    assert!(folder.read("ours.out").contains("30 matched"), "{}", folder.read("ours.out"));
    assert_packets_from_ring("ngrep", &errors);
}

/// Returns the TCP replies in nmap's packet trace: the port and the TCP flags of each.
fn tcp_replies(trace: &str) -> BTreeSet<(String, String)> {
    let answer = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, "TCP", from, ">", _, flags, ..] = words[..] else { return None };
        Some((from.to_owned(), flags.to_owned()))
    };
    trace.lines().filter(|line| line.starts_with("RCVD")).filter_map(answer).collect()
}

#[test]
fn c5_nmap_finds_the_same_ports_from_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("nmap") else { return };
    let _listener =
        pair.client.run_in_network_namespace(|| TcpListener::bind((CLIENT, 8085)).unwrap());
    let target = CLIENT.to_string();
    let words = ["nmap", "-n", "-sS", "--packet-trace", "-p", "8080-8090", target.as_str()];
    CaptureProgram::start((&pair, &folder), false, (&words, "")).finish();
    let errors = CaptureProgram::start((&pair, &folder), true, (&words, "")).finish();
    let [real, ours] = ["real.out", "ours.out"].map(|name| folder.read(name));
    let ports = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains("/tcp ")).map(str::to_owned).collect()
    };
    assert_eq!(ports(&ours), ports(&real), "{ours}{errors}");
    assert!(ports(&ours).iter().any(|port| port.starts_with("8085/tcp open")), "{ours}");
    assert_eq!(tcp_replies(&ours), tcp_replies(&real), "{ours}{errors}");
    assert_eq!(tcp_replies(&ours).len(), 11, "{ours}");
    assert_packets_from_ring("nmap", &errors);
}

#[test]
fn c5_arpwatch_reports_the_same_stations_from_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("arpwatch") else { return };
    let files = ["real.dat", "ours.dat"].map(|name| folder.path().join(name));
    let start = |is_ours: bool| {
        let file = &files[usize::from(is_ours)];
        File::create(file).unwrap();
        let path = file.display().to_string();
        let words = ["arpwatch", "-d", "-i", SERVER_DEVICE, "-f", &path];
        CaptureProgram::start((&pair, &folder), is_ours, (&words, ""))
    };
    let (real, ours) = (start(false), start(true));
    let stations = |name: &str| -> BTreeSet<String> {
        let text = folder.read(name);
        let lines = text.lines().map(str::trim);
        let wanted = ["Subject: new station", "ip address:", "ethernet address:"];
        lines
            .filter(|line| wanted.iter().any(|word| line.starts_with(word)))
            .map(str::to_owned)
            .collect()
    };
    // arpwatch prints nothing when it begins to capture, so the test triggers ARP requests until
    // each arpwatch has reported both hosts.
    wait_until("both report two stations", || {
        pair.client.run_ip(&format!("neigh flush dev {CLIENT_DEVICE}"));
        send_datagrams(&pair, PORT, [10]);
        ["real.out", "ours.out"].iter().all(|name| stations(name).len() >= 6)
    });
    assert_eq!(stations("ours.out"), stations("real.out"));
    real.interrupt();
    let errors = ours.interrupt();
    assert_packets_from_ring("arpwatch", &errors);
    let saved = files.map(|file| -> BTreeSet<String> {
        let text = std::fs::read_to_string(file).unwrap();
        // Only the first two words are compared, without the time.
        let first_words = |line: &str| line.split_whitespace().take(2).collect::<String>();
        text.lines().map(first_words).collect()
    });
    assert_eq!(saved[0], saved[1]);
    assert_eq!(saved[1].len(), 2);
}

#[test]
fn c5_scapy_reads_the_same_packets_from_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("/usr/bin/python3") else { return };
    let has_scapy = Command::new("/usr/bin/python3").args(["-c", "import scapy"]).output().unwrap();
    if !has_scapy.status.success() {
        return need::report_skip("needs the Python module scapy").unwrap_or(());
    }
    let script = r#"
import sys
from scapy.config import conf
conf.use_pcap = True
from scapy.all import sniff
def begin():
    print("ready", file=sys.stderr, flush=True)
read = sniff(iface=sys.argv[1], filter="udp port 5300", count=20, started_callback=begin)
for packet in read:
    print(bytes(packet).hex())
"#;
    let words = ["/usr/bin/python3", "-c", script, SERVER_DEVICE];
    let start = |is_ours| CaptureProgram::start((&pair, &folder), is_ours, (&words, "ready"));
    let (real, ours) = (start(false), start(true));
    send_datagrams(&pair, PORT + 1, [64; 10]);
    send_datagrams(&pair, PORT, (0..20).map(|number| 10 + number * 50));
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"), "{errors}");
    assert_eq!(folder.read("ours.out").lines().count(), 20, "{errors}");
    assert_packets_from_ring("scapy", &errors);
}
