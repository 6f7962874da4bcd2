//! Tests of limits for the users of a daemon: processor time in the kernel, and sockets that were
//! opened by a program of another user. (CONTRACT 22, 25; RELIABILITY T12)

use crate::daemon_fixture::{
    ALICE_UID, BOB_UID, CAROL_UID, DAEMON_POLICY, DAVE_UID, DaemonFixture,
};
use crate::observer::Observer;
use crate::shared_program::{attached_program_ids, send_frames_until_stopped};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::need;
use testkit::net::{CLIENT_DEVICE, SERVER, SERVER_DEVICE, device_counters, wait_until};

#[test]
fn t12_only_the_request_over_its_kernel_quota_ends() {
    let Some(mut fixture) =
        DaemonFixture::new(&format!("{DAEMON_POLICY}[users.41101]\nkernel-ns = 1\n"))
    else {
        return;
    };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} ring=1MB | udp | dport |9 pcap /dev/null");
    let mut alice = fixture.run_request(ALICE_UID, &line);
    let bob = fixture.run_request(BOB_UID, &line);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = StopSenderOnDrop(&stop);
        scope.spawn(|| send_frames_until_stopped(&fixture.pair, 500, &stop));
        wait_until("alice's line is ended", || !alice.is_running());
    });
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("ns per second in the kernel"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    assert_eq!(
        (fixture.running_request_count(ALICE_UID), fixture.running_request_count(BOB_UID)),
        (0, 1)
    );
    assert_eq!(attached_program_ids(&fixture.pair).len(), 1);
    let ran = bob.stop();
    ran.assert_balanced();
    fixture.stop();
}

/// Runs a request with `redirect` as a user who may not send frames, while the daemon has this
/// right. Asserts that the request is refused, and that no frame is sent.
#[test]
fn t12_daemon_sends_no_frames_for_users_without_right() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let sent = || device_counters(&fixture.pair.server, "lo").expect("it is there").sent;
    let before = sent();
    let line = format!("rx {SERVER_DEVICE} | udp | dport |9 redirect lo");
    let refused = Observer::spawn(fixture.command(ALICE_UID), &line).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let message = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["redirect lo", "CAP_NET_RAW"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(
        (fixture.running_request_count(ALICE_UID), attached_program_ids(&fixture.pair)),
        (0, vec![])
    );
    // The rejected request may not attach any of its parts. Requests that only observe may run.
    let line = format!("rx {SERVER_DEVICE} ring=1MB | udp | dport |9 pcap /dev/null");
    let watches = fixture.run_request(ALICE_UID, &line);
    fixture.pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"x", (SERVER, 9));
        }
    });
    let given = || fixture.shared_program().lines[0].given.map_or(0, |given| given.blocks);
    wait_until("all have come", || given() == 20);
    watches.stop().assert_balanced();
    assert_eq!(sent(), before, "nothing left");
    fixture.stop();
}

/// A guard that stops the sending thread on drop, even if a test fails.
struct StopSenderOnDrop<'e>(&'e AtomicBool);

impl Drop for StopSenderOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the captures of the packets that the sockets of Carol and Dave send and receive while
/// `action` runs.
fn captures_during(
    fixture: &mut DaemonFixture,
    action: impl FnOnce(&DaemonFixture),
) -> [Vec<u8>; 2] {
    let taps = [CAROL_UID, DAVE_UID]
        .map(|uid| fixture.run_request(uid, "rx own=yes ring=1MB | pcap own.pcap"));
    action(fixture);
    let captures = taps.map(|tap: Observer| {
        let ran = tap.stop();
        ran.assert_balanced();
        ran.file("own.pcap")
    });
    fixture.stop();
    captures
}

fn contains_mark(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|part| part == mark.as_bytes())
}

#[test]
fn p7_multicast_reaches_users_whose_sockets_joined() {
    const MULTICAST_GROUPS: [(u32, u16, &str); 2] =
        [(CAROL_UID, 5001, "<carol's>"), (DAVE_UID, 5002, "<dave's>")];
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let captures = captures_during(&mut fixture, |fixture| {
        fixture.pair.client.run_ip(&format!("route add 224.0.0.0/4 dev {CLIENT_DEVICE}"));
        for (uid, port, mark) in MULTICAST_GROUPS {
            let group = Ipv4Addr::new(239, 1, 1, port.to_be_bytes()[1]);
            let socket = fixture.pair.server.run_in_network_namespace(|| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a socket");
                let own = rustix::process::Uid::from_raw(uid);
                rustix::fs::fchown(&socket, Some(own), None).expect("root may");
                let here: Ipv4Addr = SERVER.parse().expect("an address");
                socket.join_multicast_v4(&group, &here).expect("it joins");
                socket.set_nonblocking(true).expect("it does not wait");
                socket
            });
            let sender = fixture
                .pair
                .client
                .run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").expect("one"));
            wait_until("what was sent to the group is heard", || {
                let _ = sender.send_to(mark.as_bytes(), (group, port));
                socket.recv(&mut [0; 100]).is_ok()
            });
        }
    });
    for (captures, (_, _, own)) in captures.iter().zip(MULTICAST_GROUPS) {
        for (_, _, mark) in MULTICAST_GROUPS {
            assert_eq!(contains_mark(captures, mark), mark == own, "{own}: {mark}");
        }
    }
}

#[test]
fn p7_sockets_of_a_setuid_program_belong_to_its_uid() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    // Like a set-user-id program of Dave's that Carol starts.
    let [carol, dave] = captures_during(&mut fixture, |fixture| {
        let mut command =
            fixture.pair.server.command(need::require_command("setpriv").expect("setpriv"));
        command.args([&format!("--ruid={CAROL_UID}"), &format!("--euid={DAVE_UID}")]);
        command.args([&format!("--regid={CAROL_UID}"), "--clear-groups", "bash", "-p", "-c"]);
        command.arg("echo '<as dave>' > /dev/udp/127.0.0.1/9");
        let output = command.output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(contains_mark(&dave, "<as dave>"), "the user that the program is");
    assert!(!contains_mark(&carol, "<as dave>"), "and nobody else");
}
