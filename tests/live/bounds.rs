//! Limits of a user of the daemon: time in the kernel, and the owner of a socket that another
//! user's program opened. (CONTRACT 22, 25; RELIABILITY T12)

use crate::house::{ALICE, BOB, CAROL, DAVE, House, POLICY};
use crate::observer::Observer;
use crate::shared::{chain, send_until};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::need;
use testkit::net::{CLIENT_DEVICE, SERVER, SERVER_DEVICE, counters, until};

#[test]
fn t12_a_line_over_its_kernel_time_ends_and_others_go_on() {
    let Some(mut house) = House::new(&format!("{POLICY}[users.41101]\nkernel-ns = 1\n")) else {
        return;
    };
    if need::command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} ring=1MB | udp | dport |9 pcap /dev/null");
    let mut alice = house.run(ALICE, &line);
    let bob = house.run(BOB, &line);
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&ending);
        scope.spawn(|| send_until(&house.pair, 500, &ending));
        until("alice's line is ended", || !alice.runs());
    });
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("of each second in the kernel"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    assert_eq!((house.lines(ALICE), house.lines(BOB)), (0, 1));
    assert_eq!(chain(&house.pair).len(), 1);
    let ran = bob.stop();
    ran.assert_well();
    house.end();
}

/// The daemon, which may send, sends for nobody who may not.
#[test]
fn t12_the_daemon_lends_no_user_its_right_to_send() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let sent = || counters(&house.pair.server, "lo").expect("it is there").sent;
    let before = sent();
    let line = format!("rx {SERVER_DEVICE} | udp | dport |9 redirect lo");
    let refused = Observer::spawn(house.command(ALICE), &line).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let said = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["redirect lo", "CAP_NET_RAW"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!((house.lines(ALICE), chain(&house.pair)), (0, vec![]));
    // Nor may the rest of the line, as long as that is its end; what only watches may.
    let line = format!("rx {SERVER_DEVICE} ring=1MB | udp | dport |9 pcap /dev/null");
    let watches = house.run(ALICE, &line);
    house.pair.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"x", (SERVER, 9));
        }
    });
    let given = || house.shared().lines[0].given.map_or(0, |given| given.blocks);
    until("all have come", || given() == 20);
    watches.stop().assert_well();
    assert_eq!(sent(), before, "nothing left");
    house.end();
}

/// Ends the sender, also when a test fails.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns what carol and dave receive meanwhile.
fn seen_while(house: &mut House, done: impl FnOnce(&House)) -> [Vec<u8>; 2] {
    let taps = [CAROL, DAVE].map(|uid| house.run(uid, "rx own=yes ring=1MB | pcap own.pcap"));
    done(house);
    let seen = taps.map(|tap: Observer| {
        let ran = tap.stop();
        ran.assert_well();
        ran.file("own.pcap")
    });
    house.end();
    seen
}

fn holds(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|part| part == mark.as_bytes())
}

#[test]
fn p7_multicast_reaches_users_whose_sockets_joined() {
    const GROUPS: [(u32, u16, &str); 2] = [(CAROL, 5001, "<carol's>"), (DAVE, 5002, "<dave's>")];
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let seen = seen_while(&mut house, |house| {
        house.pair.client.ip(&format!("route add 224.0.0.0/4 dev {CLIENT_DEVICE}"));
        for (uid, port, mark) in GROUPS {
            let group = Ipv4Addr::new(239, 1, 1, port.to_be_bytes()[1]);
            let socket = house.pair.server.enter(|| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a socket");
                let own = rustix::process::Uid::from_raw(uid);
                rustix::fs::fchown(&socket, Some(own), None).expect("root may");
                let here: Ipv4Addr = SERVER.parse().expect("an address");
                socket.join_multicast_v4(&group, &here).expect("it joins");
                socket.set_nonblocking(true).expect("it does not wait");
                socket
            });
            let sender = house.pair.client.enter(|| UdpSocket::bind("0.0.0.0:0").expect("one"));
            until("what was sent to the group is heard", || {
                let _ = sender.send_to(mark.as_bytes(), (group, port));
                socket.recv(&mut [0; 100]).is_ok()
            });
        }
    });
    for (seen, (_, _, own)) in seen.iter().zip(GROUPS) {
        for (_, _, mark) in GROUPS {
            assert_eq!(holds(seen, mark), mark == own, "{own}: {mark}");
        }
    }
}

#[test]
fn p7_sockets_of_a_program_that_runs_as_another_are_that_others() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    // As a set-user-id program of dave's that carol starts.
    let [carol, dave] = seen_while(&mut house, |house| {
        let mut command = house.pair.server.command(need::command("setpriv").expect("setpriv"));
        command.args([&format!("--ruid={CAROL}"), &format!("--euid={DAVE}")]);
        command.args([&format!("--regid={CAROL}"), "--clear-groups", "bash", "-p", "-c"]);
        command.arg("echo '<as dave>' > /dev/udp/127.0.0.1/9");
        let output = command.output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(holds(&dave, "<as dave>"), "the user that the program is");
    assert!(!holds(&carol, "<as dave>"), "and nobody else");
}
