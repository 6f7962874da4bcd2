//! Tests of requests in the kernel while the daemon is killed and restarted. A service manager
//! holds links, programs and rings, so that no frame is missed, and the next daemon adopts them.
//! (RELIABILITY T10)

use crate::daemon_fixture::{
    ALICE_UID, BOB_UID, CAROL_UID, DAEMON_POLICY, DAVE_UID, DaemonFixture,
};
use crate::shared_changes::{
    StopSenderOnDrop, assert_each_frame_once_or_lost, reports_no_loss, reports_no_processor_time,
};
use crate::shared_program::{attached_program_ids, send_frames_until_stopped};
use member::client::Client;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::need;
use testkit::net::{Namespace, SERVER_DEVICE, wait_until};
use testkit::service::ServiceManager;

/// Returns a service manager and a fixture with a daemon started by the manager, or `None` without
/// the required privileges.
fn managed_fixture() -> Option<(ServiceManager, DaemonFixture)> {
    let mut manager = None;
    let fixture = DaemonFixture::with_daemon_started_by(
        DAEMON_POLICY,
        |space: &Namespace, folder: &Path, words: &[String]| {
            start_daemon(manager.insert(ServiceManager::new(folder)), space, words)
        },
    );
    Some((manager?, fixture?))
}

/// Starts a daemon with all descriptors that the manager stored for the previous one.
fn start_daemon(manager: &ServiceManager, space: &Namespace, words: &[String]) -> Child {
    let shell = space.command("bash");
    manager.run_service(shell, words, |command: &mut Command| {
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("a daemon")
    })
}

#[test]
fn t10_kernel_requests_survive_a_killed_daemon() {
    if !has_restart_privileges() {
        return;
    }
    // In a process of its own: inherited descriptors must not be other tests'.
    let name = "daemon_restart::t10_kernel_requests_survive_a_killed_daemon";
    if !testkit::run_in_separate_process(name) {
        return;
    }
    let Some((manager, fixture)) = managed_fixture() else { return };
    let line =
        format!("rx {SERVER_DEVICE} ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap");
    let alice = fixture.run_request(ALICE_UID, &line);
    let bob = fixture.run_request(BOB_UID, &line);
    let stop = AtomicBool::new(false);
    let mut dave = None;
    let given = |fixture: &DaemonFixture, uid: u32| -> u64 {
        let lines = fixture.shared_program().lines.into_iter().filter(|line| line.uid == uid);
        lines.filter_map(|line| Some(line.given?.blocks)).sum()
    };
    let kept =
        |what: &str| manager.stored_names().iter().filter(|name| name.contains(what)).count();
    let sent = std::thread::scope(|scope| {
        let _ends = StopSenderOnDrop(&stop);
        let sender = scope.spawn(|| send_frames_until_stopped(&fixture.pair, 500, &stop));
        let _registered = [&alice, &bob].map(|user| fixture.path_id(user));
        wait_until("frames come", || {
            given(&fixture, ALICE_UID) > 0 && given(&fixture, BOB_UID) > 0
        });
        for (round, signal) in ["-KILL", "-TERM", "-KILL"].into_iter().enumerate() {
            wait_until("both connections are kept", || kept("line-") == 2 + usize::from(round > 0));
            let (before, had) =
                (fixture.shared_program(), [ALICE_UID, BOB_UID].map(|uid| given(&fixture, uid)));
            fixture.signal_daemon_and_wait(signal);
            assert_eq!(
                attached_program_ids(&fixture.pair),
                [before.program],
                "{signal}: it runs without a daemon"
            );
            let daemon = start_daemon(&manager, &fixture.pair.server, &fixture.daemon_arguments());
            fixture.replace_daemon_and_wait(daemon);
            let after = fixture.shared_program();
            assert_eq!(after.program, before.program, "{signal}: the same program");
            assert_eq!(
                (after.lines.len(), after.rings.len()),
                (before.lines.len(), before.rings.len())
            );
            let now = [ALICE_UID, BOB_UID].map(|uid| given(&fixture, uid));
            assert!(
                now.iter().zip(had).all(|(now, had)| *now >= had),
                "{signal}: counts go on: {had:?}, {now:?}"
            );
            wait_until("more is given", || {
                [ALICE_UID, BOB_UID]
                    .map(|uid| given(&fixture, uid))
                    .iter()
                    .zip(now)
                    .all(|(now, had)| *now > had)
            });
            if round == 0 {
                // The next daemon's work: another request starts, and one is changed.
                dave = Some(fixture.run_request(DAVE_UID, &line));
                let number = fixture.path_id(&alice);
                fixture.assert_change_succeeds(ALICE_UID, number, "insert ip before udp");
                assert!(fixture.shared_program().replaced >= after.replaced + 2);
            }
            if round == 1 {
                fixture.assert_change_succeeds(
                    BOB_UID,
                    fixture.path_id(&bob),
                    "move dport process",
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    for user in [Some(alice), Some(bob), dave].into_iter().flatten() {
        let ran = user.stop();
        assert_each_frame_once_or_lost(&ran, sent);
        ran.assert_lossless();
    }
    assert_eq!(fixture.shared_programs().programs, [], "nothing runs any more");
    wait_until("nothing of it is kept", || kept("kernel-") == 0 && kept("line-") == 0);
    fixture.signal_daemon_and_wait("-TERM");
    wait_until("no program remains", || attached_program_ids(&fixture.pair).is_empty());
}

#[test]
fn p7_own_traffic_request_survives_a_restarted_daemon() {
    if !has_restart_privileges() {
        return;
    }
    let name = "daemon_restart::p7_own_traffic_request_survives_a_restarted_daemon";
    if !testkit::run_in_separate_process(name) {
        return;
    }
    let Some((manager, fixture)) = managed_fixture() else { return };
    let line = "rx own=yes ring=1MB | udp @kernel | dport @kernel |9 pcap all.pcap";
    let (carol, dave) = (fixture.run_request(CAROL_UID, line), fixture.run_request(DAVE_UID, line));
    let send_datagrams = |uid: u32, count: usize| {
        fixture.pair.server.run_in_network_namespace(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let own = rustix::process::Uid::from_raw(uid);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            for _ in 0..count {
                // The port has no listener, which the next call reports.
                let _ = socket.send_to(&[7; 100], "127.0.0.1:9");
            }
        });
    };
    let programs = |fixture: &DaemonFixture| -> Vec<u32> {
        fixture.shared_programs().programs.iter().map(|program| program.program).collect()
    };
    let mut sent = 0;
    for signal in ["-KILL", "-TERM", "-KILL"] {
        let stored =
            |what: &str| manager.stored_names().iter().filter(|name| name.contains(what)).count();
        wait_until("both connections are kept", || stored("line-") == 2);
        assert_eq!((stored("-link"), stored("-seats")), (4, 2), "{:?}", manager.stored_names());
        send_datagrams(CAROL_UID, 20);
        let before = programs(&fixture);
        fixture.signal_daemon_and_wait(signal);
        // Without a daemon everything is still observed.
        [CAROL_UID, DAVE_UID].into_iter().for_each(|uid| send_datagrams(uid, 30));
        fixture.replace_daemon_and_wait(start_daemon(
            &manager,
            &fixture.pair.server,
            &fixture.daemon_arguments(),
        ));
        assert_eq!(programs(&fixture), before, "{signal}: the same programs");
        send_datagrams(CAROL_UID, 50);
        sent += 100;
        // The next daemon changes the restored request.
        let words = if sent == 200 { "remove ip" } else { "insert ip before udp" };
        // A path whose descriptors the manager did not take registers again by itself.
        let path = fixture.path_id(&carol);
        fixture.assert_change_succeeds(CAROL_UID, path, words);
    }
    for (user, sent) in [(carol, sent), (dave, 90)] {
        let ran = user.stop();
        ran.assert_lossless();
        assert_eq!(ran.frames("all.pcap").len(), sent, "{}", ran.ledger);
    }
    wait_until("nothing of it is kept", || {
        !manager.stored_names().iter().any(|name| !name.starts_with("path-"))
    });
    fixture.signal_daemon_and_wait("-TERM");
}

/// Sends numbered datagrams from Carol to herself until `stop` is set, and counts them in
/// `sent_count`.
fn send_datagrams_to_self(fixture: &DaemonFixture, sent_count: &AtomicU64, stop: &AtomicBool) {
    fixture.pair.server.run_in_network_namespace(|| {
        let [from, to] = ["127.0.0.1:0", "127.0.0.1:9"].map(|address| {
            let socket = UdpSocket::bind(address).expect("a socket");
            let own = rustix::process::Uid::from_raw(CAROL_UID);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            socket
        });
        let mut reply = [0; 8];
        while !stop.load(Ordering::Relaxed) {
            let number = sent_count.load(Ordering::Relaxed);
            from.send_to(&number.to_be_bytes(), "127.0.0.1:9").expect("it is sent");
            to.recv_from(&mut reply).expect("it has come");
            sent_count.store(number + 1, Ordering::Relaxed);
            // Only delays, because nothing becomes readable.
            sys::poll::wait_until_readable(&[], Some(Duration::from_millis(1)));
        }
    });
}

/// Returns the id of the kernel program that a BPF link attaches.
fn linked_program_id(link: &OwnedFd) -> u32 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd()));
    let info = info.expect("what the kernel says of it");
    let number = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
    number.and_then(|number| number.trim().parse().ok()).expect("its program")
}

#[test]
fn v3_p7_restarted_daemon_finishes_an_interrupted_change() {
    let name = "daemon_restart::v3_p7_restarted_daemon_finishes_an_interrupted_change";
    if !has_restart_privileges() || !testkit::run_in_separate_process(name) {
        return;
    }
    let Some((manager, fixture)) = managed_fixture() else { return };
    let line = "rx own=yes ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap";
    let carol = fixture.run_request(CAROL_UID, line);
    let path = fixture.path_id(&carol);
    let links = || -> Vec<u32> {
        manager.duplicate_stored_descriptors("-link").iter().map(linked_program_id).collect()
    };
    let (sent_count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let more = |what: &str| {
        let had = sent_count.load(Ordering::Relaxed);
        wait_until(what, || sent_count.load(Ordering::Relaxed) > had + 50);
    };
    std::thread::scope(|scope| {
        let _ends = StopSenderOnDrop(&stop);
        let talker = scope.spawn(|| send_datagrams_to_self(&fixture, &sent_count, &stop));
        more("she speaks");
        wait_until("her connection is kept", || {
            manager.stored_names().iter().any(|name| name.starts_with("line-"))
        });
        fixture.signal_daemon_and_wait("-KILL");
        let mut words = fixture.daemon_arguments();
        words.push("--fault=stop=the second link follows the first".to_owned());
        let daemon = start_daemon(&manager, &fixture.pair.server, &words);
        let process = daemon.id();
        fixture.replace_daemon_and_wait(daemon);
        let old = links();
        assert!(old.len() == 2 && old[0] == old[1], "{old:?}");
        assert_eq!(fixture.path_id(&carol), path);
        let change =
            scope.spawn(|| fixture.assert_change_succeeds(CAROL_UID, path, "insert ip before udp"));
        wait_until("the daemon stands between both", || {
            assert!(!change.is_finished(), "it was changed, and stood nowhere");
            is_stopped(process)
        });
        let between = links();
        assert!(between[0] != old[0] && between[1] == old[1], "{old:?}, {between:?}");
        // Sent packets reach the new request, received ones the old.
        more("she speaks while the daemon stands");
        fixture.signal_daemon_and_wait("-KILL");
        more("she speaks while there is none");
        fixture.replace_daemon_and_wait(start_daemon(
            &manager,
            &fixture.pair.server,
            &fixture.daemon_arguments(),
        ));
        wait_until("the second has followed", || links() == [between[0]; 2]);
        change.join().expect("it is told so");
        more("she speaks to both");
        stop.store(true, Ordering::Relaxed);
        talker.join().expect("it does not panic");
    });
    let ran = carol.stop();
    ran.assert_lossless();
    // Each frame is observed once as sent and once as received.
    let mut counts = vec![0; usize::try_from(sent_count.into_inner()).expect("few")];
    for packet in ran.frames("all.pcap") {
        let number = packet.get(28..36).and_then(|bytes| bytes.try_into().ok());
        let number = usize::try_from(number.map_or(u64::MAX, u64::from_be_bytes)).expect("few");
        counts[number] += 1;
    }
    let not_twice: Vec<usize> = (0..counts.len()).filter(|number| counts[*number] != 2).collect();
    assert!(not_twice.is_empty(), "{not_twice:?} of {}: {}", counts.len(), ran.ledger);
    fixture.signal_daemon_and_wait("-TERM");
}

/// Returns true if a process is stopped (state `T`).
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn v3_daemon_killed_at_some_steps_of_a_change_keeps_one_request() {
    let name = "daemon_restart::v3_daemon_killed_at_some_steps_of_a_change_keeps_one_request";
    if has_restart_privileges() && testkit::run_in_separate_process(name) {
        kill_at_every_nth_step(3);
    }
}

#[test]
#[ignore = "minutes: cargo test -p streamline-tests --test live -- --ignored at_any_step"]
fn v3_daemon_killed_at_any_step_of_a_change_keeps_one_request() {
    let name = "daemon_restart::v3_daemon_killed_at_any_step_of_a_change_keeps_one_request";
    if has_restart_privileges() && testkit::run_in_separate_process(name) {
        kill_at_every_nth_step(1);
    }
}

fn has_restart_privileges() -> bool {
    need::require_command("bash").is_some() && need::require_command("setpriv").is_some()
}

/// Fixture of a trial in which the daemon is killed before one step of a user's request, and then
/// restarted.
struct DaemonKillTrial {
    manager: ServiceManager,
    fixture: DaemonFixture,
}

impl DaemonKillTrial {
    /// Starts the next daemon. If `fault` is given, the daemon stops before the step with this
    /// number.
    fn start_daemon(&self, fault: Option<u32>) -> Child {
        let fault = fault.map(|step| format!("--fault=stop={step}"));
        let words: Vec<String> = self.fixture.daemon_arguments().into_iter().chain(fault).collect();
        start_daemon(&self.manager, &self.fixture.pair.server, &words)
    }

    /// Replaces the running daemon with one that stops before `step`. Calls `work` while the daemon
    /// is stopped, and then replaces it. Returns the result of `work`. Returns `Some(None)` without
    /// calling `work` if the daemon stopped before it replied to clients, and `None` if it did not
    /// reach the step.
    fn run_with_daemon_stopped_at<T: Send>(
        &self,
        step: u32,
        work: impl FnOnce() -> T + Send,
    ) -> Option<Option<T>> {
        wait_until("all connections are kept, and no other", || {
            let stored = self.manager.stored_names();
            let of = |what: &str| stored.iter().filter(|name| name.starts_with(what)).count();
            of("line-") == self.fixture.shared_program().lines.len()
                && of("waits-") + of("leaves-") == 0
        });
        self.fixture.signal_daemon_and_wait("-KILL");
        let daemon = self.start_daemon(Some(step));
        let process = daemon.id();
        self.fixture.replace_daemon(daemon);
        let answers = || {
            Client::connect_at(&self.fixture.daemon_directory())
                .is_ok_and(|client| client.describe_daemon().is_ok())
        };
        wait_until("the daemon answers or stands still", || is_stopped(process) || answers());
        let again = || {
            self.fixture.signal_daemon_and_wait("-KILL");
            self.fixture.replace_daemon_and_wait(self.start_daemon(None));
        };
        if is_stopped(process) {
            again();
            return Some(None);
        }
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            wait_until("it is done or the daemon stands still", || {
                is_stopped(process) || work.is_finished()
            });
            let stood = is_stopped(process);
            again();
            let done = work.join().expect("it does not panic");
            stood.then_some(Some(done))
        })
    }
}

fn kill_at_every_nth_step(every: u32) {
    let Some((manager, fixture)) = managed_fixture() else { return };
    let trial = DaemonKillTrial { manager, fixture };
    let fixture = &trial.fixture;
    let line =
        format!("rx {SERVER_DEVICE} ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap");
    let (alice, bob) = (fixture.run_request(ALICE_UID, &line), fixture.run_request(BOB_UID, &line));
    let [path, _] = [&alice, &bob].map(|user| fixture.path_id(user));
    let stop = AtomicBool::new(false);
    let now = || {
        let line = || {
            let listed = Client::connect_at(&fixture.daemon_directory())
                .and_then(|client| client.list_paths());
            let mut listed = listed.expect("the paths").into_iter();
            listed.find(|listed| listed.number == path).and_then(|listed| listed.line)
        };
        // The request's process reports to each daemon, and may not have done so to a new one.
        let mut reply = None;
        wait_until("the path has reported its request", || {
            reply = line();
            reply.is_some()
        });
        reply.expect("a reported request")
    };
    let given = |uid: u32| -> u64 {
        let lines = fixture.shared_program().lines.into_iter().filter(|line| line.uid == uid);
        lines.filter_map(|line| Some(line.given?.blocks)).sum()
    };
    let (mut changed, mut busy, mut ended, mut first) = (0, 0, 0, None);
    let sent = std::thread::scope(|scope| {
        let _ends = StopSenderOnDrop(&stop);
        let sender = scope.spawn(|| send_frames_until_stopped(&fixture.pair, 500, &stop));
        for step in (0..).step_by(every as usize) {
            let before = now();
            let words = if before.contains("ip |") { "remove ip" } else { "insert ip before udp" };
            let Some(reply) = trial
                .run_with_daemon_stopped_at(step, || fixture.change_path(ALICE_UID, path, words))
            else {
                break;
            };
            let Some((done, sent_count)) = reply else { continue };
            first.get_or_insert(step);
            // Answered changes are in effect, and every user receives its frames. A change that the
            // killed daemon had not made is requested from the next one.
            assert_eq!(done, now() != before, "{step}: {before}, {}: {sent_count}", now());
            assert!(
                if done {
                    reports_no_loss(&sent_count)
                } else {
                    reports_no_processor_time(&sent_count)
                },
                "{step}: {sent_count}"
            );
            *(if done { &mut changed } else { &mut busy }) += 1;
            assert_eq!(fixture.shared_program().lines.len(), 2, "{step}");
            let had = [ALICE_UID, BOB_UID].map(given);
            wait_until("more is given", || {
                [ALICE_UID, BOB_UID].map(given).iter().zip(had).all(|(n, h)| *n > h)
            });
        }
        // Ending requests receive their counts from whichever daemon runs. That takes a few steps.
        for step in first.unwrap_or(0).saturating_sub(every - 1).. {
            let dave = fixture.run_request(DAVE_UID, &line);
            fixture.path_id(&dave);
            wait_until("frames come", || given(DAVE_UID) > 0);
            let mut dave = Some(dave);
            let left =
                trial.run_with_daemon_stopped_at(step, || dave.take().expect("he runs").stop());
            if let Some(Some(ran)) = &left {
                ran.assert_lossless();
                assert!(ran.source().observed.is_some(), "{step}: {}", ran.ledger);
                ended += 1;
            }
            if let Some(dave) = dave {
                dave.stop().assert_lossless();
            }
            wait_until("his line is gone", || fixture.shared_program().lines.len() == 2);
            if left.is_none() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    eprintln!("killed at a step: {changed} changes done, {busy} not, {ended} lines ended");
    assert!(changed > 0 && ended > 0, "{changed}, {ended}");
    for user in [alice, bob] {
        let ran = user.stop();
        assert_each_frame_once_or_lost(&ran, sent);
        ran.assert_lossless();
    }
    fixture.signal_daemon_and_wait("-TERM");
    wait_until("no program remains", || attached_program_ids(&fixture.pair).is_empty());
}
