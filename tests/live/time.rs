//! A live path in one file: recorded while frames come over a cable, and run again bit for bit, as
//! another user elsewhere would.

use crate::numbers::{SHORT, numbered};
use crate::observer::{Observer, program};
use crate::send::send_all;
use std::process::Command;
use testkit::net::{Cable, Pair, SERVER_DEVICE};

/// A line of which the time decides what passes: in another run over the same frames it would be
/// others.
#[test]
fn v10_a_live_path_runs_again_as_it_ran() {
    let Some(pair) = Pair::new(Cable { addresses: false, ..Cable::default() }) else { return };
    let line = format!("rx {SERVER_DEVICE} | udp | ratelimit 10 | pcap seen.pcap");
    let observer = Observer::given(&pair.server, &["--record=r.pcapng"], &line);
    for part in 0..10 {
        send_all(&pair, &numbered(part * 100..(part + 1) * 100, SHORT));
    }
    let ran = observer.stop();
    ran.assert_whole();
    let seen = ran.file("seen.pcap");
    let frames = ran.frames("seen.pcap").len();
    assert!((1..1000).contains(&frames), "{frames} passed: {}", ran.ledger);
    let mut again = Command::new(program());
    again.args(["run", "--embedded", "--replay", "r.pcapng", "--into=again"]);
    let again = again.current_dir(ran.path("")).output().expect("it runs");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{said}");
    assert!(ran.file("again/seen.pcap") == seen, "bit for bit");
    // What runs in the kernel while a path is recorded would be missing: that is said.
    let inside = format!("rx@kernel {SERVER_DEVICE} | udp | count");
    let mut refused = pair.server.command(program());
    refused.args(["run", "--embedded", "--record=k.pcapng", &inside]);
    let refused = refused.current_dir(ran.path("")).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("kernel: a record is to hold what"), "{said}");
    assert!(!ran.path("k.pcapng").exists());
}
