//! Tests of changes that unprivileged users make, under traffic, to requests that the daemon runs
//! for them. Each frame passes either the old or the new filters, and each change replaces the
//! shared program once. (CONTRACT 21, 25)

use crate::daemon_fixture::{
    ALICE_UID, BOB_UID, CAROL_UID, DAEMON_POLICY, DAVE_UID, DaemonFixture,
};
use crate::numbered_frames::frame_numbers;
use crate::observer::{Observer, ObserverResult};
use crate::shared_program::{attached_program_ids, send_frames_until_stopped};
use member::client::Client;
use member::protocol::KernelProgram;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::need;
use testkit::net::{SERVER_DEVICE, wait_until};

/// Alice's changes to the filters in the kernel.
const ALICES_CHANGES: [&str; 6] = [
    "move dport process",
    "move udp process",
    "move udp kernel",
    "insert ip before udp",
    "move dport kernel",
    "remove ip",
];
/// Bob's changes to his request, in the syntax of `set`.
const BOBS_CHANGES: [&str; 4] =
    ["insert ip before udp", "move dport process", "move dport kernel", "remove ip"];

impl DaemonFixture {
    /// Waits until a user's process is registered. Returns the number of its path.
    pub(crate) fn path_id(&self, of: &Observer) -> u32 {
        let process = i32::try_from(of.process_id()).ok();
        let mut number = None;
        wait_until("its path is registered", || {
            let paths =
                Client::connect_at(&self.daemon_directory()).and_then(|client| client.list_paths());
            let paths = paths.unwrap_or_default();
            number = paths.iter().find(|path| path.process == process).map(|path| path.number);
            number.is_some()
        });
        number.expect("a number")
    }

    /// Changes a path as a user; returns true if the change was made, and the command's output.
    pub(crate) fn change_path(&self, uid: u32, path: u32, words: &str) -> (bool, String) {
        let mut command = self.command(uid);
        command.args(["set", &path.to_string()]).args(words.split(' ')).env("NO_COLOR", "1");
        let output = command.output().expect("it starts");
        let message = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&message).into_owned())
    }

    /// Changes a path as a user, and retries if the change fails because a thread got no CPU time.
    /// Asserts that the change lost nothing.
    pub(crate) fn assert_change_succeeds(&self, uid: u32, path: u32, words: &str) {
        wait_until(words, || {
            let (done, message) = self.change_path(uid, path, words);
            assert!(
                if done { reports_no_loss(&message) } else { reports_no_processor_time(&message) },
                "{words}: {message}"
            );
            done
        });
    }
}

/// Returns true if the reply to a change reports no lost, duplicated or reordered blocks.
pub(crate) fn reports_no_loss(message: &str) -> bool {
    message.contains("lost 0, duplicated 0, reordered 0")
}

/// Returns true if the reply reports that a thread got no CPU time on a busy machine. Two failures
/// show this: a thread did not start the command in time, or it was waiting for room in a ring.
pub(crate) fn reports_no_processor_time(message: &str) -> bool {
    message.contains("did not start the command in time")
        || message.contains("waits for room in a ring")
}

/// Returns the filters of a program, each with the number of requests that use it.
fn filters_with_users(program: &KernelProgram) -> Vec<(String, usize)> {
    program.steps.iter().map(|step| (step.name.clone(), step.lines)).collect()
}

/// Asserts that numbered frames arrived in order, each at most once. From the first number that
/// arrived up to `sent`, each missing number must be counted as lost.
pub(crate) fn assert_each_frame_once_or_lost(ran: &ObserverResult, sent: u64) {
    ran.assert_balanced();
    let numbers = frame_numbers(&ran.frames("all.pcap"));
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order: {}", ran.ledger);
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    let first = numbers.first().copied().unwrap_or(sent);
    assert_eq!(numbers.len() as u64 + lost, sent - first, "{}", ran.ledger);
}

#[test]
fn v3_users_change_requests_in_a_shared_program_under_traffic() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} ring=16MB | udp | dport |9 pcap all.pcap");
    let users = [ALICE_UID, BOB_UID, DAVE_UID].map(|uid| fixture.run_request(uid, &line));
    let [alice, bob, _] = users.each_ref().map(|user| fixture.path_id(user));
    assert_eq!(fixture.shared_program().lines.len(), 3);
    let stop = AtomicBool::new(false);
    let given = || -> u64 {
        fixture.shared_program().lines.iter().filter_map(|line| Some(line.given?.blocks)).sum()
    };
    let sent = std::thread::scope(|scope| {
        let _ends = StopSenderOnDrop(&stop);
        let sender = scope.spawn(|| send_frames_until_stopped(&fixture.pair, 500, &stop));
        wait_until("frames come", || given() > 0);
        // One after the other: each is one update of the link.
        for words in ALICES_CHANGES {
            let before = fixture.shared_program();
            fixture.assert_change_succeeds(ALICE_UID, alice, words);
            let after = fixture.shared_program();
            assert_eq!(
                after.replaced,
                before.replaced + 1,
                "{words}: {:?}",
                filters_with_users(&after)
            );
            assert_eq!((after.lines.len(), after.rings.len()), (3, 3), "{words}");
            assert_eq!(attached_program_ids(&fixture.pair), [after.program], "{words}");
        }
        // Both users change their requests at once; the order does not matter.
        let before = fixture.shared_program();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ALICES_CHANGES
                    .iter()
                    .for_each(|words| fixture.assert_change_succeeds(ALICE_UID, alice, words))
            });
            scope.spawn(|| {
                BOBS_CHANGES
                    .iter()
                    .for_each(|words| fixture.assert_change_succeeds(BOB_UID, bob, words))
            });
        });
        let after = fixture.shared_program();
        let changes = (ALICES_CHANGES.len() + BOBS_CHANGES.len()) as u64;
        assert_eq!(after.replaced, before.replaced + changes, "{:?}", filters_with_users(&after));
        assert_eq!(filters_with_users(&after), [("udp".to_owned(), 3), ("dport".to_owned(), 3)]);
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    for user in users {
        assert_each_frame_once_or_lost(&user.stop(), sent);
    }
    assert_eq!(fixture.shared_programs().programs, [], "nothing runs any more");
    fixture.stop();
}

/// A guard that stops the sending thread on drop, even if a test fails.
pub(crate) struct StopSenderOnDrop<'e>(pub(crate) &'e AtomicBool);

impl Drop for StopSenderOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn p5_change_cannot_exceed_the_policy() {
    let policy =
        format!("{DAEMON_POLICY}[kernel]\nfilters = [\"rx\", \"ip\", \"udp\", \"drop\"]\n");
    let Some(mut fixture) = DaemonFixture::new(&policy) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} | udp @kernel | dport |9 pcap all.pcap");
    let alice = fixture.run_request(ALICE_UID, &line);
    let (path, before) = (fixture.path_id(&alice), fixture.shared_program());
    let (done, message) = fixture.change_path(ALICE_UID, path, "move dport kernel");
    let single_line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["may not run `dport` in the kernel", "policy.toml"] {
        assert!(!done && single_line.contains(part), "{part}: {message}");
    }
    // A user cannot change another user's request.
    let (done, message) = fixture.change_path(BOB_UID, path, "move udp process");
    assert!(!done, "{message}");
    let after = fixture.shared_program();
    assert_eq!((after.program, after.replaced), (before.program, before.replaced));
    fixture.assert_change_succeeds(ALICE_UID, path, "insert ip before udp");
    fixture.assert_change_succeeds(ALICE_UID, path, "move udp process");
    // The end of the daemon ends the kernel program and is reported to Alice, even after changes.
    fixture.kill();
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the daemon has ended"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
}

#[test]
fn v3_user_changes_a_request_on_its_own_sockets() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let carol =
        fixture.run_request(CAROL_UID, "rx own=yes ring=1MB | udp | dport |9 pcap all.pcap");
    let path = fixture.path_id(&carol);
    let send = |count: u8| {
        fixture.pair.server.run_in_network_namespace(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let own = rustix::process::Uid::from_raw(CAROL_UID);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            (0..count).for_each(|at| {
                // The port has no listener, which the next call reports.
                let _ = socket.send_to(&[at; 100], "127.0.0.1:9");
            });
        });
    };
    send(20);
    for words in ["move dport process", "insert ip before udp", "move dport kernel"] {
        fixture.assert_change_succeeds(CAROL_UID, path, words);
        send(20);
    }
    let ran = carol.stop();
    ran.assert_balanced();
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(ran.frames("all.pcap").len() as u64 + lost, 80, "{}", ran.ledger);
    fixture.stop();
}

#[test]
fn o9_p5_explain_reports_access_denied_by_policy() {
    let policy = format!("{DAEMON_POLICY}[kernel]\nfilters = [\"rx\", \"ip\", \"udp\"]\n");
    let Some(mut fixture) = DaemonFixture::new(&policy) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let explain = |uid: u32, line: &str| {
        let output = fixture.command(uid).args(["explain", line]).output().expect("it starts");
        let message = [output.stdout, output.stderr].concat();
        let message = String::from_utf8_lossy(&message).into_owned();
        (output.status.success(), message.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let line = format!("rx {SERVER_DEVICE} | udp | dport |9 pcap all.pcap");
    let (done, message) = explain(ALICE_UID, &line);
    assert!(done && message.contains("may not run `dport` in the kernel"), "{message}");
    let (done, message) = explain(CAROL_UID, &line);
    assert!(
        !done
            && message.contains(&format!(
                "{} may not watch server0",
                testkit::user::describe_user(CAROL_UID)
            )),
        "{message}"
    );
    let (done, message) = explain(CAROL_UID, "rx own=yes | udp | pcap own.pcap");
    assert!(done && !message.contains("may not watch"), "{message}");
    let (done, message) = explain(0, &line);
    assert!(done && !message.contains("may not watch"), "{message}");
    assert_eq!(fixture.shared_programs().programs, [], "nothing was made");
    fixture.stop();
}
