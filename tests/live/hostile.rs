//! Test of hostile captures, sent at full rate: fragments, overlaps, malformed and truncated
//! frames. The receiving request must not panic, its memory must stay bounded, and its ledger must
//! balance.
//!
//! Takes some seconds; `STREAMLINE_HOSTILE_SECONDS=60` extends it to a minute.

use crate::frame_sending::{parse_capture, write_capture};
use crate::observer::Observer;
use crate::scratch::Scratch;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, device_counters,
};
use testkit::{Captures, Random, need};

/// Maximum frame length that the veth pair carries, in bytes.
const FRAME_LENGTH_MAX: usize = 9000 + 14;
/// Maximum total length of all hostile frames in bytes.
const TOTAL_FRAME_BYTES_MAX: usize = 60 << 20;
/// Limit on the request's resident memory in bytes.
const RESIDENT_BYTES_MAX: u64 = 400 << 20;

/// Parts of the names of the hostile captures in the corpus.
const HOSTILE_CAPTURE_NAME_PARTS: &[&str] = &[
    "suricata/ip-fragment",
    "suricata/ipv4",
    "suricata/ipv6",
    "suricata/tcp-",
    "suricata/defrag",
    "suricata/evasion",
    "tcpdump/",
    "zeek/Traces/tcp",
    "zeek/Traces/ipv6",
    "zeek/Traces/trunc",
    "pcapplusplus/",
];

/// Returns the first 300 frames of each capture and truncated copies of some of them, until the
/// originals exceed [`TOTAL_FRAME_BYTES_MAX`]. Omits frames that would not arrive
/// ([`is_delivered`]), and external captures that [`HOSTILE_CAPTURE_NAME_PARTS`] does not name.
fn hostile_frames(captures: &Captures) -> Vec<Vec<u8>> {
    let mut random = Random::with_replayable_seed();
    let mut frames = Vec::new();
    let mut length = 0;
    for path in &captures.paths {
        let name = captures.name(path);
        if captures.is_external
            && !HOSTILE_CAPTURE_NAME_PARTS.iter().any(|part| name.contains(part))
        {
            continue;
        }
        let bytes = std::fs::read(path).expect("a case");
        if wire::capture::packets(&bytes).next().is_none() {
            continue;
        }
        for frame in parse_capture(&bytes).into_iter().take(300) {
            if length > TOTAL_FRAME_BYTES_MAX {
                break;
            }
            length += frame.len();
            if random.one_in(4) && frame.len() > 14 {
                frames.push(frame[..random.within(14..frame.len())].to_vec());
            }
            frames.push(frame);
        }
    }
    frames.retain(|frame| is_delivered(frame));
    frames
}

/// Returns true if the veth pair carries the frame and the kernel delivers it to observers; the
/// kernel first drops frames that end within a VLAN tag.
fn is_delivered(frame: &[u8]) -> bool {
    let tagged = frame.get(12..14).is_some_and(|kind| matches!(kind, [0x81, 0] | [0x88, 0xa8]));
    (if tagged { 20 } else { 14 }..=FRAME_LENGTH_MAX).contains(&frame.len())
}

#[test]
fn hostile_traffic_at_full_rate_is_accounted_for() {
    assert_traffic_is_accounted_for(&testkit::generated_captures());
}

#[test]
fn corpus_hostile_traffic_at_full_rate_is_accounted_for() {
    testkit::corpus_captures().iter().for_each(assert_traffic_is_accounted_for);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_traffic_is_accounted_for(captures: &Captures) {
    let Some(tcpreplay) = need::require_command("tcpreplay") else { return };
    let frames = hostile_frames(captures);
    let cable = DevicePairSettings { addresses: false, mtu: 9000, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let folder = Scratch::new();
    let file = write_capture(&folder, "hostile.pcap", &frames);
    let seconds = std::env::var("STREAMLINE_HOSTILE_SECONDS").unwrap_or_else(|_| "4".to_owned());

    let line = format!("rx {SERVER_DEVICE} | ip | tcp | http | count");
    let mut observer = Observer::start(&pair.server, &line);
    // All of them once, however long that takes, and then repeatedly.
    for how_long in ["--loop=1".to_owned(), format!("--loop=0 --duration={seconds}")] {
        let mut command = pair.client.command(&tcpreplay);
        command.args(["--topspeed", "--preload-pcap", "--quiet"]).args(how_long.split(' '));
        let output = command.args(["-i", CLIENT_DEVICE]).arg(&file).output().expect("tcpreplay");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    observer.assert_running();
    let resident = observer.peak_resident_bytes();
    let sent = device_counters(&pair.server, SERVER_DEVICE).expect("the device").received;
    let ran = observer.stop();
    println!("{} frames, {sent} sent, {} MB, {:?}", frames.len(), resident >> 20, ran.source());
    ran.assert_balanced();
    assert_eq!(ran.source().observed, Some(sent), "{:?}", ran.source());
    assert!(sent as usize > frames.len(), "all of them were sent: {sent}");
    assert!(resident < RESIDENT_BYTES_MAX, "{resident} bytes");
}
