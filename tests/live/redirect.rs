//! Tests of the filter `redirect`. Its program in the kernel sends copies of observed frames
//! through another interface or, if the source takes the frames (`take`), the frames themselves.
//! The host at the other end receives the same frames. A thread sends the frames that the kernel
//! cannot send. [SL §5.5, §6.1; CONTRACT 2, 25]

use crate::frame_sending::{capture_length, send_frames};
use crate::numbered_frames::{frame_number, frame_numbers};
use crate::observer::{Observer, ObserverResult};
use serde_json::Value;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, device_counters,
    wait_until,
};
use testkit::{Frame, need};

/// Device of the second veth pair at the server.
const REDIRECT_TARGET_DEVICE: &str = "out0";
/// Device of the second veth pair at the third host.
const THIRD_HOST_DEVICE: &str = "far0";

/// Two veth pairs that carry only the test's traffic: from client to server, and from server to a
/// third host.
struct VethChain {
    pair: NamespacePair,
    far: Namespace,
}

impl VethChain {
    fn new() -> Option<Self> {
        need::require_bpf()?;
        let pair = NamespacePair::new(DevicePairSettings {
            addresses: false,
            ..DevicePairSettings::default()
        })?;
        let far = Namespace::new()?;
        let peer = format!("peer name {THIRD_HOST_DEVICE} netns {}", far.name());
        pair.server.run_ip(&format!("link add {REDIRECT_TARGET_DEVICE} type veth {peer}"));
        for (space, device) in [(&pair.server, REDIRECT_TARGET_DEVICE), (&far, THIRD_HOST_DEVICE)] {
            space.run_ip(&format!("link set dev {device} addrgenmode none arp off"));
            space.run_ip(&format!("link set dev {device} up"));
        }
        pair.server.wait_until_up(REDIRECT_TARGET_DEVICE);
        far.wait_until_up(THIRD_HOST_DEVICE);
        Some(Self { pair, far })
    }

    /// Sends frames to the server, in groups that fit into every queue.
    fn send_all(&self, frames: &[Vec<u8>]) {
        let came = || {
            let counters = device_counters(&self.pair.server, SERVER_DEVICE).expect("the device");
            counters.received + counters.receive_dropped
        };
        for bunch in frames.chunks(100) {
            let before = came();
            send_frames(&self.pair.client, CLIENT_DEVICE, bunch);
            wait_until("they have come", || came() >= before + bunch.len() as u64);
        }
    }
}

/// Returns `count` numbered datagrams, to three ports in rotation.
fn numbered_datagrams(count: u64) -> Vec<Vec<u8>> {
    let one = |number: u64| {
        let port = [53, 80, 443][number as usize % 3];
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        frame.udp(4000, port, &number.to_be_bytes())
    };
    (0..count).map(one).collect()
}

fn filter_entry<'r>(ran: &'r ObserverResult, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Runs a request over frames. If `takes` is true, the request takes the frames from the host.
/// Returns the frames that reach the third host, and the result of the request.
fn run_redirecting(
    line: &VethChain,
    text: &str,
    takes: bool,
    frames: &[Vec<u8>],
) -> (Vec<Vec<u8>>, ObserverResult) {
    let expected: Vec<Vec<u8>> = frames.iter().step_by(3).cloned().collect();
    let mut far = Observer::start(&line.far, &format!("rx {THIRD_HOST_DEVICE} | pcap far.pcap"));
    let server = &line.pair.server;
    let observer = match takes {
        true => Observer::start_redirecting(server, SERVER_DEVICE, text),
        false => Observer::start(server, text),
    };
    line.send_all(frames);
    far.wait_until_file_has_length("far.pcap", capture_length(&expected));
    let ran = observer.stop();
    ran.assert_balanced();
    let far = far.stop();
    far.assert_lossless();
    let came = far.frames("far.pcap");
    let wanted: Vec<u64> = (0..frames.len() as u64).step_by(3).collect();
    assert_eq!(frame_numbers(&came), wanted, "each once, in order: {text}");
    assert!(came.iter().all(|frame| *frame == frames[frame_number(frame) as usize]), "as it came");
    (came, ran)
}

#[test]
fn redirect_sends_copies_and_the_host_receives_the_frames() {
    const FRAMES: u64 = 900;
    let Some(line) = VethChain::new() else { return };
    let frames = numbered_datagrams(FRAMES);
    let host = Observer::start(&line.pair.server, &format!("rx {SERVER_DEVICE} | pcap host.pcap"));
    let behind = format!(
        "| ip | udp | dport | ( |53 redirect {REDIRECT_TARGET_DEVICE} + |53 pcap seen.pcap )"
    );
    for (rx, place) in [("rx", "kernel"), ("rx@thread0", "thread0")] {
        let text = format!("{rx} {SERVER_DEVICE} {behind}");
        let (came, ran) = run_redirecting(&line, &text, false, &frames);
        let redirect = filter_entry(&ran, "redirect");
        assert_eq!(redirect["space"], place, "{}", ran.err);
        assert_eq!(redirect["taken"]["blocks"], came.len() as u64, "{}", ran.ledger);
        assert_eq!(redirect["passed"]["blocks"], came.len() as u64, "{}", ran.ledger);
        assert_eq!(ran.frames("seen.pcap"), came, "and whoever else wants it");
    }
    let host = host.stop();
    host.assert_lossless();
    assert_eq!(host.frames("host.pcap").len() as u64, 2 * FRAMES, "the host misses nothing");
}

#[test]
fn redirect_with_take_passes_no_frame_to_the_host() {
    const FRAMES: u64 = 600;
    let Some(line) = VethChain::new() else { return };
    let probe = line.pair.server.run_in_network_namespace(sys::probe::probe_xdp_socket);
    if let Err(why) = probe {
        need::report_skip::<()>(&why.to_string());
        return;
    }
    if need::require_command("ethtool").is_none() {
        return;
    }
    let frames = numbered_datagrams(FRAMES);
    let text = format!(
        "rx {SERVER_DEVICE} take | udp | dport | \
         ( |53 redirect {REDIRECT_TARGET_DEVICE} + |80 count )"
    );
    // The far end accepts no redirected frames: the request reports so and sends them from a
    // thread.
    let (_, ran) = run_redirecting(&line, &text, true, &frames);
    assert_eq!(filter_entry(&ran, "redirect")["space"], "thread0", "{}", ran.err);
    assert!(ran.err.contains("does not currently accept frames from XDP programs"), "{}", ran.err);
    assert_eq!(filter_entry(&ran, "udp")["space"], "kernel", "{}", ran.err);
    // With receive offload the far end takes them up.
    line.far.run_program("ethtool", &format!("-K {THIRD_HOST_DEVICE} gro on"));
    let (came, ran) = run_redirecting(&line, &text, true, &frames);
    let redirect = filter_entry(&ran, "redirect");
    assert_eq!(redirect["space"], "kernel", "{}", ran.err);
    assert_eq!(redirect["passed"]["blocks"], came.len() as u64, "{}", ran.ledger);
    assert_eq!(filter_entry(&ran, "count")["taken"]["blocks"], FRAMES / 3, "{}", ran.ledger);
}

#[test]
fn redirect_loops_are_refused_and_explain_names_the_exit() {
    let Some(line) = VethChain::new() else { return };
    let server = &line.pair.server;
    let program = testkit::streamline_program();
    let explained = |text: &str| {
        let output = server.command(program).args(["explain", text]).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let round = format!("tx {REDIRECT_TARGET_DEVICE} | ip | redirect {REDIRECT_TARGET_DEVICE}");
    let output = server.command(program).args(["run", &round]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("observed as sent, forever"), "{text}");
    let text = explained(&format!("rx {SERVER_DEVICE} | ip | redirect {REDIRECT_TARGET_DEVICE}"));
    assert!(text.contains(&format!("copies leave by {REDIRECT_TARGET_DEVICE}")), "{text}");
    let text = explained(&format!(
        "rx {SERVER_DEVICE} | ip | redirect {REDIRECT_TARGET_DEVICE} netns={}",
        line.far.name()
    ));
    assert!(text.contains("kernel: a program sends within its own network namespace"), "{text}");
}
