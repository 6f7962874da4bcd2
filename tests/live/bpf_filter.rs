//! Tests of a `bpf` directly after the source, which the kernel evaluates too, as a socket filter.
//! The frames in memory differ from those on the wire. The same frames must arrive with and without
//! the socket filter.
//!
//! tcpdump is the reference. From a capture, it selects the same frames as `bpf` for any
//! expression. Live, with VLAN tags in metadata, it selects the same frames for expressions that
//! begin with `vlan` and contain it once. For other expressions it selects frames that it would not
//! select from the capture (libpcap 1.10: `tcp` selects tagged frames too, and a later `vlan`
//! counts offsets as if the tag were inline).

use crate::frame_sending::{parse_capture, send_frames, write_capture};
use crate::frames::tagged_frames;
use crate::observer::Observer;
use crate::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, wait_until,
};
use testkit::{Frame, need};

/// EtherType of the last frame of each test. When a receiver has received this frame, it has
/// received all earlier frames.
const LAST_ETHERTYPE: u16 = 0x9999;

/// Returns frames of many kinds, followed by a frame with the EtherType [`LAST_ETHERTYPE`].
fn frames_of_many_kinds() -> Vec<Vec<u8>> {
    let mut frames = tagged_frames();
    frames.extend(testkit::web_capture().frames.into_iter().map(|(_, frame)| frame));
    frames.push(Frame::ethernet().padded_to(60).link_payload(LAST_ETHERTYPE, b"the last"));
    frames
}

/// The filter expressions of `bpf` under test.
const EXPRESSIONS: &[&str] = &[
    "tcp",
    "tcp port 80",
    "udp or arp",
    "not vlan",
    "vlan and not vlan 6",
    "vlan and vlan 5",
    "vlan 7 and vlan 5 and tcp",
    "tcp or vlan 6",
    "ip6 and tcp",
    "ether proto 0x8100",
    "ether proto 0x88b5",
    "ether[12:2] = 0x8100",
    "greater 1000",
    "less 60",
    "ip[8] = 64 and len > 100",
    "ether broadcast",
    "ether host 02:00:00:00:00:01",
];

/// The filter expressions for which a live tcpdump must select the same frames as `bpf`.
const LIVE_EXPRESSIONS: &[&str] = &[
    "vlan",
    "vlan 5",
    "vlan 7",
    "vlan 5 and tcp",
    "vlan 5 and ip6",
    "vlan 5 and udp port 53",
    "vlan and arp",
];

/// A running tcpdump that writes a capture.
struct Tcpdump {
    child: Child,
    folder: Scratch,
}

impl Tcpdump {
    fn start(space: &Namespace, expression: &str) -> Self {
        let folder = Scratch::new();
        let log = folder.path("log");
        let mut command = space.command("tcpdump");
        command.args(["-n", "-p", "-U", "--immediate-mode", "-s", "4000", "-Z", "root"]);
        command
            .args(["-B", "16384", "-i", SERVER_DEVICE, "-w"])
            .arg(folder.path("seen.pcap"))
            .arg(expression);
        let file = std::fs::File::create(&log).expect("a file");
        let child = command.stderr(file).spawn().expect("tcpdump");
        // Its socket is bound before its filter is set; then it prints this.
        wait_until("tcpdump sees frames", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on"))
        });
        Self { child, folder }
    }

    fn capture_path(&self) -> PathBuf {
        self.folder.path("seen.pcap")
    }

    /// Waits until `count` frames have been captured, stops tcpdump, and returns the frames.
    fn stop(mut self, count: usize) -> Vec<Vec<u8>> {
        wait_until("tcpdump takes as many", || {
            let capture = std::fs::read(self.capture_path()).unwrap_or_default();
            parse_capture(&capture).len() >= count
        });
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &process]).status();
        assert!(sent.expect("kill").success());
        self.child.wait().expect("a child");
        parse_capture(&std::fs::read(self.capture_path()).expect("a capture"))
    }
}

/// Returns true if a capture ends with the frame with the EtherType [`LAST_ETHERTYPE`].
fn has_last_frame(path: &Path) -> bool {
    let frames = parse_capture(&std::fs::read(path).unwrap_or_default());
    frames.last().is_some_and(|frame| frame[12..14] == LAST_ETHERTYPE.to_be_bytes())
}

/// Returns the frames that tcpdump selects from a capture.
fn select_from_capture(capture: &Path, expression: &str) -> Vec<Vec<u8>> {
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-w", "-", "-r"]).arg(capture).arg(expression);
    let output = command.output().expect("tcpdump");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    parse_capture(&output.stdout)
}

fn assert_same_frames(ours: &[Vec<u8>], theirs: &[Vec<u8>], what: &str) {
    let missing = |of: &[Vec<u8>], in_these: &[Vec<u8>]| {
        of.iter().filter(|frame| !in_these.contains(frame)).cloned().collect::<Vec<_>>()
    };
    let (more, less) = (missing(ours, theirs), missing(theirs, ours));
    assert_eq!((more, less), (Vec::new(), Vec::new()), "{what}");
    assert_eq!(ours.len(), theirs.len(), "{what}");
}

#[test]
fn kernel_rejects_exactly_the_frames_bpf_rejects() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let Some(_) = need::require_command("tcpdump") else { return };
    let frames = frames_of_many_kinds();
    let folder = Scratch::new();
    let file = write_capture(&folder, "all.pcap", &frames);
    let all = frames.len() as u64;
    let mut left_out = 0;
    for expression in EXPRESSIONS.iter().chain(LIVE_EXPRESSIONS) {
        // First, because `vlan` changes the meaning of what follows.
        let wanted = format!("ether proto {LAST_ETHERTYPE:#x} or ({expression})");
        let tcpdump =
            LIVE_EXPRESSIONS.contains(expression).then(|| Tcpdump::start(&pair.server, expression));
        // `inspect` passes everything, and nothing after it is pushed to the kernel.
        let [pushed, kept] = ["", "| inspect"].map(|between| {
            let line =
                format!("rx@thread0 {SERVER_DEVICE} {between} | bpf \"{wanted}\" | pcap seen.pcap");
            Observer::start(&pair.server, &line)
        });
        send_frames(&pair.client, CLIENT_DEVICE, &frames);
        for observer in [&pushed, &kept] {
            wait_until("the last frame is written", || has_last_frame(&observer.path("seen.pcap")));
        }
        let (pushed, kept) = (pushed.stop(), kept.stop());
        pushed.assert_lossless();
        kept.assert_lossless();
        assert_eq!(kept.source().given, all, "{expression}");
        left_out += all - pushed.source().given;
        let (mut pushed, kept) = (pushed.frames("seen.pcap"), kept.frames("seen.pcap"));
        assert_same_frames(&pushed, &kept, expression);
        assert_same_frames(&pushed, &select_from_capture(&file, &wanted), expression);
        if let Some(tcpdump) = tcpdump {
            pushed.pop();
            assert_same_frames(&pushed, &tcpdump.stop(pushed.len()), expression);
        }
    }
    assert!(left_out > 0, "nothing was left to the kernel");
}

#[test]
fn new_ring_receives_no_unfiltered_frame() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let frames = frames_of_many_kinds();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = || {
            while !done.load(Ordering::Relaxed) {
                send_frames(&pair.client, CLIENT_DEVICE, &frames);
            }
        };
        scope.spawn(flood);
        for _ in 0..5 {
            let line = format!("rx@thread0 {SERVER_DEVICE} | bpf \"tcp port 80\" | pcap seen.pcap");
            let mut observer = Observer::start(&pair.server, &line);
            observer.wait_until_file_has_length("seen.pcap", 10_000);
            let ran = observer.stop();
            // Some of the flood may be lost.
            ran.assert_balanced();
            let filters = ran.ledger["filters"].as_array().expect("filters");
            let bpf = filters.iter().find(|filter| filter["name"] == "bpf").expect("bpf");
            assert_eq!(bpf["taken"], bpf["passed"], "{}", ran.ledger);
        }
        done.store(true, Ordering::Relaxed);
    });
}
