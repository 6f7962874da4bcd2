//! Lines in the kernel while the daemon is killed and started again: a service manager keeps links,
//! programs and rings, so no frame is missed, and the next daemon has them. (RELIABILITY T10)

use crate::held::{Ends, assert_each_once};
use crate::house::{ALICE, BOB, DAVE, House, POLICY};
use crate::shared::{chain, send_until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::need;
use testkit::net::{Namespace, SERVER_DEVICE, until};
use testkit::service::Manager;

/// Starts a daemon with all that was kept of the one before.
fn start(manager: &Manager, space: &Namespace, words: &[String]) -> Child {
    let shell = space.command("bash");
    manager.service(shell, words, |command: &mut Command| {
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("a daemon")
    })
}

#[test]
fn t10_lines_in_the_kernel_go_on_while_the_daemon_is_killed_and_started_again() {
    if need::command("bash").is_none() || need::command("setpriv").is_none() {
        return;
    }
    // Descriptors that are handed over must not be those of other tests too.
    let name = "keeps::t10_lines_in_the_kernel_go_on_while_the_daemon_is_killed_and_started_again";
    if !testkit::alone(name) {
        return;
    }
    let mut manager = None;
    let house = House::with(POLICY, |space: &Namespace, folder: &Path, words: &[String]| {
        start(manager.insert(Manager::new(folder)), space, words)
    });
    let (Some(house), Some(manager)) = (house, manager) else { return };
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
