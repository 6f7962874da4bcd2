//! What the book tells people to type does what the book says.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{Folder, Ran};
use std::path::Path;
use std::process::Command;
use testkit::need;

/// Instead of a pause: until the server listens on port 8000 and somebody has a packet socket.
const READY: &str = "until grep -q ':1F40 .* 0A ' /proc/net/tcp && \
                     [ $(wc -l < /proc/net/packet) -gt 1 ]; do :; done";

#[test]
fn live_traffic_can_be_tried_without_privilege() {
    let wanted = ["unshare", "bash", "python3", "curl", "ip"].map(need::command);
    let [Some(unshare), Some(bash), Some(_), Some(_), Some(_)] = wanted else { return };
    if !Command::new(&unshare).args(["-Urn", "true"]).output().unwrap().status.success() {
        let _: Option<()> = need::skip("needs user name spaces");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/07-live.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (typed, _) = block.split_once("```").unwrap();
    assert!(typed.contains("\nsleep 1\n"), "{typed}");
    let typed = typed.replace("sleep 1", READY);
    let folder = Folder::new();
    // The shell of the folder knows where the command is; the inner one has a network of its own.
    let mut shell = folder.shell("exec \"$@\"");
    shell.args(["sh", "timeout", "60"]).arg(unshare).arg("-Urn").arg(bash).arg("-c").arg(typed);
    let ran = Ran::from(shell.output().unwrap());
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].starts_with("127.0.0.1 - - [") && lines[1].contains("\"curl/"), "{lines:?}");
    assert!(lines[0].contains("\"GET / HTTP/1.1\" 200 "), "{lines:?}");
    assert!(lines[1].contains("\"GET /nothing HTTP/1.1\" 404 "), "{lines:?}");
}

/// What the page about time tells to type, but for what needs an interface.
#[test]
fn time_can_be_tried_without_privilege() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/12-time.md");
    let page = std::fs::read_to_string(page).unwrap();
    let folder = Folder::new();
    let mut ran = 0;
    for block in page.split("```sh\n").skip(1) {
        let (typed, _) = block.split_once("```").unwrap();
        if typed.starts_with("sudo") {
            continue;
        }
        let typed = typed.replace("tcpdump -r alert.pcap | head", "test -s alert.pcap");
        let script = format!("set -e; {typed}");
        let done = Ran::from(folder.shell(&script).output().unwrap());
        assert_eq!(done.status, Some(0), "{typed}: {done:?}");
        ran += 1;
        if typed.contains("diff") {
            assert!(done.out.ends_with("the same\n"), "{done:?}");
        }
    }
    assert_eq!(ran, 4);
    assert!(std::fs::metadata(folder.path().join("missing.pcap")).unwrap().len() > 24);
}

#[test]
fn sharing_can_be_tried_without_privilege() {
    let Some(bash) = need::command("bash") else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/10-sharing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (typed, _) = block.split_once("```").unwrap();
    let folder = Folder::new();
    let mut shell = folder.shell("unset STREAMLINE_DAEMON; export TMPDIR=$PWD; exec \"$@\"");
    shell.args(["sh", "timeout", "120"]).arg(bash).arg("-c").arg(typed);
    let ran = Ran::from(shell.output().unwrap());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("generate rate=1000 | count\n"), "{ran:?}");
    assert!(ran.out.contains("\nfilter ") && ran.err.contains("none lost"), "{ran:?}");
}
