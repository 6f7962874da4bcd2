//! Test of a live path that is recorded under traffic into one file. The record is replayed as a
//! user on another machine would replay it, and the outputs must be identical.

use crate::frame_sending::send_all;
use crate::numbered_frames::{FRAME_LENGTH, numbered_frames};
use crate::observer::Observer;
use std::process::Command;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::streamline_program;

/// Replays the record of a request whose output depends on time. Compares the replay with the
/// recorded run, because another live run would have another output.
#[test]
fn v10_recorded_live_path_replays_identically() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let line = format!("rx {SERVER_DEVICE} | udp | ratelimit 10 | pcap seen.pcap");
    let observer = Observer::start_with_options(&pair.server, &["--record=r.pcapng"], &line);
    for part in 0..10 {
        send_all(&pair, &numbered_frames(part * 100..(part + 1) * 100, FRAME_LENGTH));
    }
    let ran = observer.stop();
    ran.assert_lossless();
    let captured = ran.file("seen.pcap");
    let frames = ran.frames("seen.pcap").len();
    assert!((1..1000).contains(&frames), "{frames} passed: {}", ran.ledger);
    let mut again = Command::new(streamline_program());
    again.args(["run", "--embedded", "--replay", "r.pcapng", "--into=again"]);
    let again = again.current_dir(ran.path("")).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{stderr}");
    assert!(ran.file("again/seen.pcap") == captured, "bit for bit");
    // The kernel's part would be missing from a record, which is reported.
    let inside = format!("rx@kernel {SERVER_DEVICE} | udp | count");
    let mut refused = pair.server.command(streamline_program());
    refused.args(["run", "--embedded", "--record=k.pcapng", &inside]);
    let refused = refused.current_dir(ran.path("")).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("kernel: a record must contain the"), "{stderr}");
    assert!(!ran.path("k.pcapng").exists());
}
