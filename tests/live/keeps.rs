//! Lines in the kernel while the daemon is killed and started again: a service manager keeps links,
//! programs and rings, so no frame is missed, and the next daemon has them. (RELIABILITY T10)

use crate::held::{Ends, assert_each_once, is_busy, is_whole};
use crate::house::{ALICE, BOB, CAROL, DAVE, House, POLICY};
use crate::shared::{chain, send_until};
use member::client::Client;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::need;
use testkit::net::{Namespace, SERVER_DEVICE, until};
use testkit::service::Manager;

/// A manager, and a house whose daemon it starts.
fn kept() -> Option<(Manager, House)> {
    let mut manager = None;
    let house = House::with(POLICY, |space: &Namespace, folder: &Path, words: &[String]| {
        start(manager.insert(Manager::new(folder)), space, words)
    });
    Some((manager?, house?))
}

/// Starts a daemon with all that was kept of the one before.
fn start(manager: &Manager, space: &Namespace, words: &[String]) -> Child {
    let shell = space.command("bash");
    manager.service(shell, words, |command: &mut Command| {
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("a daemon")
    })
}

#[test]
fn t10_kernel_lines_survive_a_killed_and_restarted_daemon() {
    if !able() {
        return;
    }
    // Descriptors that are handed over must not be those of other tests too.
    let name = "keeps::t10_kernel_lines_survive_a_killed_and_restarted_daemon";
    if !testkit::alone(name) {
        return;
    }
    let Some((manager, house)) = kept() else { return };
    let line =
        format!("rx {SERVER_DEVICE} ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap");
    let alice = house.run(ALICE, &line);
    let bob = house.run(BOB, &line);
    let ending = AtomicBool::new(false);
    let mut dave = None;
    let given = |house: &House, uid: u32| -> u64 {
        let lines = house.shared().lines.into_iter().filter(|line| line.uid == uid);
        lines.filter_map(|line| Some(line.given?.blocks)).sum()
    };
    let kept = |what: &str| manager.stored().iter().filter(|name| name.contains(what)).count();
    let sent = std::thread::scope(|scope| {
        let _ends = Ends(&ending);
        let sender = scope.spawn(|| send_until(&house.pair, 500, &ending));
        let _registered = [&alice, &bob].map(|user| house.path(user));
        until("frames come", || given(&house, ALICE) > 0 && given(&house, BOB) > 0);
        for (round, signal) in ["-KILL", "-TERM", "-KILL"].into_iter().enumerate() {
            until("both connections are kept", || kept("line-") == 2 + usize::from(round > 0));
            let (before, had) = (house.shared(), [ALICE, BOB].map(|uid| given(&house, uid)));
            house.ends_by(signal);
            assert_eq!(chain(&house.pair), [before.program], "{signal}: it runs without a daemon");
            let daemon = start(&manager, &house.pair.server, &house.words());
            house.is_run_by(daemon);
            let after = house.shared();
            assert_eq!(after.program, before.program, "{signal}: the same program");
            assert_eq!(
                (after.lines.len(), after.rings.len()),
                (before.lines.len(), before.rings.len())
            );
            let told = [ALICE, BOB].map(|uid| given(&house, uid));
            assert!(
                told.iter().zip(had).all(|(now, had)| *now >= had),
                "{signal}: counts go on: {had:?}, {told:?}"
            );
            until("more is given", || {
                [ALICE, BOB]
                    .map(|uid| given(&house, uid))
                    .iter()
                    .zip(told)
                    .all(|(now, had)| *now > had)
            });
            if round == 0 {
                // What the next daemon does with them: another line comes, and one is changed.
                dave = Some(house.run(DAVE, &line));
                let number = house.path(&alice);
                house.changes(ALICE, number, "insert ip before udp");
                assert!(house.shared().replaced >= after.replaced + 2);
            }
            if round == 1 {
                house.changes(BOB, house.path(&bob), "move dport process");
            }
        }
        ending.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    for user in [Some(alice), Some(bob), dave].into_iter().flatten() {
        let ran = user.stop();
        assert_each_once(&ran, sent);
        ran.assert_whole();
    }
    assert_eq!(house.sharing().programs, [], "nothing runs any more");
    until("nothing of it is kept", || kept("kernel-") == 0 && kept("line-") == 0);
    house.ends_by("-TERM");
    until("no program remains", || chain(&house.pair).is_empty());
}

#[test]
fn p7_own_traffic_survives_a_restarted_daemon() {
    if !able() {
        return;
    }
    let name = "keeps::p7_own_traffic_survives_a_restarted_daemon";
    if !testkit::alone(name) {
        return;
    }
    let Some((manager, house)) = kept() else { return };
    let line = "rx own=yes ring=1MB | udp @kernel | dport @kernel |9 pcap all.pcap";
    let (carol, dave) = (house.run(CAROL, line), house.run(DAVE, line));
    let path = house.path(&carol);
    let say = |uid: u32, count: usize| {
        house.pair.server.enter(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let own = rustix::process::Uid::from_raw(uid);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            for _ in 0..count {
                // Nobody listens there, and the next call says so.
                let _ = socket.send_to(&[7; 100], "127.0.0.1:9");
            }
        });
    };
    let programs = |house: &House| -> Vec<u32> {
        house.sharing().programs.iter().map(|program| program.program).collect()
    };
    let mut sent = 0;
    for signal in ["-KILL", "-TERM", "-KILL"] {
        let stored =
            |what: &str| manager.stored().iter().filter(|name| name.contains(what)).count();
        until("both connections are kept", || stored("line-") == 2);
        assert_eq!((stored("-link"), stored("-seats")), (4, 2), "{:?}", manager.stored());
        say(CAROL, 20);
        let before = programs(&house);
        house.ends_by(signal);
        // Nobody is there, and everything is seen.
        [CAROL, DAVE].into_iter().for_each(|uid| say(uid, 30));
        house.is_run_by(start(&manager, &house.pair.server, &house.words()));
        assert_eq!(programs(&house), before, "{signal}: the same programs");
        say(CAROL, 50);
        sent += 100;
        // What the next daemon does with it.
        let words = if sent == 200 { "remove ip" } else { "insert ip before udp" };
        house.changes(CAROL, path, words);
    }
    for (user, sent) in [(carol, sent), (dave, 90)] {
        let ran = user.stop();
        ran.assert_whole();
        assert_eq!(ran.frames("all.pcap").len(), sent, "{}", ran.ledger);
    }
    until("nothing of it is kept", || {
        !manager.stored().iter().any(|name| !name.starts_with("path-"))
    });
    house.ends_by("-TERM");
}

/// Sends Carol's numbered messages to herself until told to end; `said` counts them.
fn says_to_herself(house: &House, said: &AtomicU64, ending: &AtomicBool) {
    house.pair.server.enter(|| {
        let [from, to] = ["127.0.0.1:0", "127.0.0.1:9"].map(|address| {
            let socket = UdpSocket::bind(address).expect("a socket");
            let own = rustix::process::Uid::from_raw(CAROL);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            socket
        });
        let mut heard = [0; 8];
        while !ending.load(Ordering::Relaxed) {
            let number = said.load(Ordering::Relaxed);
            from.send_to(&number.to_be_bytes(), "127.0.0.1:9").expect("it is sent");
            to.recv_from(&mut heard).expect("it has come");
            said.store(number + 1, Ordering::Relaxed);
            // The pace of the traffic: nothing becomes readable.
            sys::poll::readable(&[], Some(Duration::from_millis(1)));
        }
    });
}

/// The number of the program of a link.
fn program_of(link: &OwnedFd) -> u32 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd()));
    let info = info.expect("what the kernel says of it");
    let number = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
    number.and_then(|number| number.trim().parse().ok()).expect("its program")
}

#[test]
fn v3_p7_a_daemon_killed_between_both_own_links_finishes_the_change() {
    let name = "keeps::v3_p7_a_daemon_killed_between_both_own_links_finishes_the_change";
    if !able() || !testkit::alone(name) {
        return;
    }
    let Some((manager, house)) = kept() else { return };
    let line = "rx own=yes ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap";
    let carol = house.run(CAROL, line);
    let path = house.path(&carol);
    let links = || -> Vec<u32> { manager.copies("-link").iter().map(program_of).collect() };
    let (said, ending) = (AtomicU64::new(0), AtomicBool::new(false));
    let more = |what: &str| {
        let had = said.load(Ordering::Relaxed);
        until(what, || said.load(Ordering::Relaxed) > had + 50);
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&ending);
        let talker = scope.spawn(|| says_to_herself(&house, &said, &ending));
        more("she speaks");
        until("her connection is kept", || {
            manager.stored().iter().any(|name| name.starts_with("line-"))
        });
        house.ends_by("-KILL");
        let mut words = house.words();
        words.push("--fault=stop=the second link follows the first".to_owned());
        let daemon = start(&manager, &house.pair.server, &words);
        let process = daemon.id();
        house.is_run_by(daemon);
        let old = links();
        assert!(old.len() == 2 && old[0] == old[1], "{old:?}");
        let change = scope.spawn(|| house.changes(CAROL, path, "insert ip before udp"));
        until("the daemon stands between both", || {
            assert!(!change.is_finished(), "it was changed, and stood nowhere");
            stands(process)
        });
        let between = links();
        assert!(between[0] != old[0] && between[1] == old[1], "{old:?}, {between:?}");
        // What is sent meets the new line, and what is received the old one.
        more("she speaks while the daemon stands");
        house.ends_by("-KILL");
        more("she speaks while there is none");
        house.is_run_by(start(&manager, &house.pair.server, &house.words()));
        until("the second has followed", || links() == [between[0]; 2]);
        change.join().expect("it is told so");
        more("she speaks to both");
        ending.store(true, Ordering::Relaxed);
        talker.join().expect("it does not panic");
    });
    let ran = carol.stop();
    ran.assert_whole();
    // Each as it was sent, and as it was received.
    let mut seen = vec![0; usize::try_from(said.into_inner()).expect("few")];
    for packet in ran.frames("all.pcap") {
        let number = packet.get(28..36).and_then(|bytes| bytes.try_into().ok());
        let number = usize::try_from(number.map_or(u64::MAX, u64::from_be_bytes)).expect("few");
        seen[number] += 1;
    }
    let not_twice: Vec<usize> = (0..seen.len()).filter(|number| seen[*number] != 2).collect();
    assert!(not_twice.is_empty(), "{not_twice:?} of {}: {}", seen.len(), ran.ledger);
    house.ends_by("-TERM");
}

/// Returns true if a process is stopped.
fn stands(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn v3_a_daemon_killed_at_some_steps_of_a_change_leaves_one_line() {
    let name = "keeps::v3_a_daemon_killed_at_some_steps_of_a_change_leaves_one_line";
    if able() && testkit::alone(name) {
        killed_at_steps(3);
    }
}

#[test]
#[ignore = "minutes: cargo test -p streamline-tests --test live -- --ignored every_step_of"]
fn v3_a_daemon_killed_at_every_step_of_a_change_leaves_one_line() {
    let name = "keeps::v3_a_daemon_killed_at_every_step_of_a_change_leaves_one_line";
    if able() && testkit::alone(name) {
        killed_at_steps(1);
    }
}

fn able() -> bool {
    need::command("bash").is_some() && need::command("setpriv").is_some()
}

/// A trial that kills the daemon before one step of a user's request and starts it again.
struct Trial {
    manager: Manager,
    house: House,
}

impl Trial {
    /// Starts the next daemon; one that stands still in front of a step.
    fn begin(&self, fault: Option<u32>) -> Child {
        let fault = fault.map(|step| format!("--fault=stop={step}"));
        let words: Vec<String> = self.house.words().into_iter().chain(fault).collect();
        start(&self.manager, &self.house.pair.server, &words)
    }

    /// Does something with a daemon that stands still in front of its step, in the place of the one
    /// that runs. It is killed there, and another one runs; none: it does not come to that step.
    /// While it begins nothing is done.
    fn at<T: Send>(&self, step: u32, work: impl FnOnce() -> T + Send) -> Option<Option<T>> {
        until("all connections are kept, and no other", || {
            let stored = self.manager.stored();
            let of = |what: &str| stored.iter().filter(|name| name.starts_with(what)).count();
            of("line-") == self.house.shared().lines.len() && of("waits-") + of("leaves-") == 0
        });
        self.house.ends_by("-KILL");
        let daemon = self.begin(Some(step));
        let process = daemon.id();
        self.house.is(daemon);
        let answers = || Client::at(&self.house.place()).is_ok_and(|client| client.about().is_ok());
        until("the daemon answers or stands still", || stands(process) || answers());
        let again = || {
            self.house.ends_by("-KILL");
            self.house.is_run_by(self.begin(None));
        };
        if stands(process) {
            again();
            return Some(None);
        }
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            until("it is done or the daemon stands still", || {
                stands(process) || work.is_finished()
            });
            let stood = stands(process);
            again();
            let done = work.join().expect("it does not panic");
            stood.then_some(Some(done))
        })
    }
}

fn killed_at_steps(every: u32) {
    let Some((manager, house)) = kept() else { return };
    let trial = Trial { manager, house };
    let house = &trial.house;
    let line =
        format!("rx {SERVER_DEVICE} ring=16MB | udp @kernel | dport @kernel |9 pcap all.pcap");
    let (alice, bob) = (house.run(ALICE, &line), house.run(BOB, &line));
    let [path, _] = [&alice, &bob].map(|user| house.path(user));
    let ending = AtomicBool::new(false);
    let now = || {
        let line = || {
            let listed = Client::at(&house.place()).and_then(|client| client.list());
            let mut listed = listed.expect("the paths").into_iter();
            listed.find(|listed| listed.number == path).and_then(|listed| listed.line)
        };
        // Who runs it tells each daemon of it, and while a daemon is new may not have done so.
        let mut told = None;
        until("the path has told its line", || {
            told = line();
            told.is_some()
        });
        told.expect("it was told")
    };
    let given = |uid: u32| -> u64 {
        let lines = house.shared().lines.into_iter().filter(|line| line.uid == uid);
        lines.filter_map(|line| Some(line.given?.blocks)).sum()
    };
    let (mut changed, mut busy, mut ended, mut first) = (0, 0, 0, None);
    let sent = std::thread::scope(|scope| {
        let _ends = Ends(&ending);
        let sender = scope.spawn(|| send_until(&house.pair, 500, &ending));
        for step in (0..).step_by(every as usize) {
            let before = now();
            let words = if before.contains("ip |") { "remove ip" } else { "insert ip before udp" };
            let Some(told) = trial.at(step, || house.set(ALICE, path, words)) else { break };
            let Some((done, said)) = told else { continue };
            first.get_or_insert(step);
            // What was said holds, and everybody is given what comes. A change that the dead daemon
            // had not done is asked of the next one.
            assert_eq!(done, now() != before, "{step}: {before}, {}: {said}", now());
            assert!(if done { is_whole(&said) } else { is_busy(&said) }, "{step}: {said}");
            *(if done { &mut changed } else { &mut busy }) += 1;
            assert_eq!(house.shared().lines.len(), 2, "{step}");
            let had = [ALICE, BOB].map(given);
            until("more is given", || [ALICE, BOB].map(given).iter().zip(had).all(|(n, h)| *n > h));
        }
        // Who leaves hears what was counted, whichever daemon says it. That takes a few steps.
        for step in first.unwrap_or(0).saturating_sub(every - 1).. {
            let dave = house.run(DAVE, &line);
            house.path(&dave);
            until("frames come", || given(DAVE) > 0);
            let mut dave = Some(dave);
            let left = trial.at(step, || dave.take().expect("he runs").stop());
            if let Some(Some(ran)) = &left {
                ran.assert_whole();
                assert!(ran.source().seen.is_some(), "{step}: {}", ran.ledger);
                ended += 1;
            }
            if let Some(dave) = dave {
                dave.stop().assert_whole();
            }
            until("his line is gone", || house.shared().lines.len() == 2);
            if left.is_none() {
                break;
            }
        }
        ending.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    eprintln!("killed at a step: {changed} changes done, {busy} not, {ended} lines ended");
    assert!(changed > 0 && ended > 0, "{changed}, {ended}");
    for user in [alice, bob] {
        let ran = user.stop();
        assert_each_once(&ran, sent);
        ran.assert_whole();
    }
    house.ends_by("-TERM");
    until("no program remains", || chain(&house.pair).is_empty());
}
