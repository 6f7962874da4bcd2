//! Lines that the daemon runs for users without privilege, changed by them while frames come: each
//! frame meets the old form or the new one, and for each change the program of all is replaced
//! once. (CONTRACT 21, 25)

use crate::house::{ALICE, BOB, CAROL, DAVE, House, POLICY};
use crate::numbers::numbers;
use crate::observer::{Observer, Ran};
use crate::shared::{chain, send_until};
use member::client::Client;
use member::protocol::Program;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::need;
use testkit::net::{SERVER_DEVICE, until};

/// Each changes what runs in the kernel.
const OF_ALICE: [&str; 6] = [
    "move dport process",
    "move udp process",
    "move udp kernel",
    "insert ip before udp",
    "move dport kernel",
    "remove ip",
];
const OF_BOB: [&str; 4] =
    ["insert ip before udp", "move dport process", "move dport kernel", "remove ip"];

impl House {
    /// The path of a user's process.
    pub(crate) fn path(&self, of: &Observer) -> u32 {
        let process = i32::try_from(of.process()).ok();
        let mut number = None;
        until("its path is registered", || {
            let paths = Client::at(&self.place()).and_then(|client| client.list());
            let paths = paths.unwrap_or_default();
            number = paths.iter().find(|path| path.process == process).map(|path| path.number);
            number.is_some()
        });
        number.expect("a number")
    }

    /// Changes a path as this user does: what is said, and whether it was done.
    pub(crate) fn set(&self, uid: u32, path: u32, words: &str) -> (bool, String) {
        let mut command = self.command(uid);
        command.args(["set", &path.to_string()]).args(words.split(' ')).env("NO_COLOR", "1");
        let output = command.output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// The same; nothing may be lost by it.
    pub(crate) fn changes(&self, uid: u32, path: u32, words: &str) {
        until(words, || {
            let (done, said) = self.set(uid, path, words);
            assert!(if done { is_whole(&said) } else { is_busy(&said) }, "{words}: {said}");
            done
        });
    }
}

/// Returns true if the answer to a change reports no loss.
pub(crate) fn is_whole(said: &str) -> bool {
    said.contains("lost 0, duplicated 0, reordered 0")
}

/// Returns true if the answer says that nothing changed because a thread had no processor.
pub(crate) fn is_busy(said: &str) -> bool {
    said.contains("did not come to it in time") || said.contains("waits for room in a ring")
}

/// The filters of a program, and how many lines use each.
fn steps(program: &Program) -> Vec<(String, usize)> {
    program.steps.iter().map(|step| (step.name.clone(), step.lines)).collect()
}

/// Each number once and in order; what is missing is missing at the source.
pub(crate) fn assert_each_once(ran: &Ran, sent: u64) {
    ran.assert_well();
    let numbers = numbers(&ran.frames("all.pcap"));
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order: {}", ran.ledger);
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    let first = numbers.first().copied().unwrap_or(sent);
    assert_eq!(numbers.len() as u64 + lost, sent - first, "{}", ran.ledger);
}

#[test]
fn v3_users_change_lines_in_a_shared_program_under_traffic() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} ring=16MB | udp | dport |9 pcap all.pcap");
    let users = [ALICE, BOB, DAVE].map(|uid| house.run(uid, &line));
    let [alice, bob, _] = users.each_ref().map(|user| house.path(user));
    assert_eq!(house.shared().lines.len(), 3);
    let ending = AtomicBool::new(false);
    let given =
        || -> u64 { house.shared().lines.iter().filter_map(|line| Some(line.given?.blocks)).sum() };
    let sent = std::thread::scope(|scope| {
        let _ends = Ends(&ending);
        let sender = scope.spawn(|| send_until(&house.pair, 500, &ending));
        until("frames come", || given() > 0);
        // One after the other: each is one update of the link.
        for words in OF_ALICE {
            let before = house.shared();
            house.changes(ALICE, alice, words);
            let after = house.shared();
            assert_eq!(after.replaced, before.replaced + 1, "{words}: {:?}", steps(&after));
            assert_eq!((after.lines.len(), after.rings.len()), (3, 3), "{words}");
            assert_eq!(chain(&house.pair), [after.program], "{words}");
        }
        // Both at once: in some order.
        let before = house.shared();
        std::thread::scope(|scope| {
            scope.spawn(|| OF_ALICE.iter().for_each(|words| house.changes(ALICE, alice, words)));
            scope.spawn(|| OF_BOB.iter().for_each(|words| house.changes(BOB, bob, words)));
        });
        let after = house.shared();
        let changes = (OF_ALICE.len() + OF_BOB.len()) as u64;
        assert_eq!(after.replaced, before.replaced + changes, "{:?}", steps(&after));
        assert_eq!(steps(&after), [("udp".to_owned(), 3), ("dport".to_owned(), 3)]);
        ending.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    for user in users {
        assert_each_once(&user.stop(), sent);
    }
    assert_eq!(house.sharing().programs, [], "nothing runs any more");
    house.end();
}

/// Ends the sender, also when a test fails.
pub(crate) struct Ends<'e>(pub(crate) &'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn p5_a_change_cannot_add_what_policy_does_not_open() {
    let policy = format!("{POLICY}[kernel]\nfilters = [\"rx\", \"ip\", \"udp\", \"drop\"]\n");
    let Some(mut house) = House::new(&policy) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} | udp @kernel | dport |9 pcap all.pcap");
    let alice = house.run(ALICE, &line);
    let (path, before) = (house.path(&alice), house.shared());
    let (done, said) = house.set(ALICE, path, "move dport kernel");
    let said_in_a_line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["may not have `dport` in the kernel", "policy.toml"] {
        assert!(!done && said_in_a_line.contains(part), "{part}: {said}");
    }
    // Nor does it change the line of somebody else.
    let (done, said) = house.set(BOB, path, "move udp process");
    assert!(!done, "{said}");
    let after = house.shared();
    assert_eq!((after.program, after.replaced), (before.program, before.replaced));
    house.changes(ALICE, path, "insert ip before udp");
    house.changes(ALICE, path, "move udp process");
    // Root ends the machine's part, and she is told, whatever was changed before.
    house.kill();
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the daemon has ended"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
}

#[test]
fn v3_a_user_changes_what_it_sees_of_its_own_sockets() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let carol = house.run(CAROL, "rx own=yes ring=1MB | udp | dport |9 pcap all.pcap");
    let path = house.path(&carol);
    let say = |count: u8| {
        house.pair.server.enter(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let own = rustix::process::Uid::from_raw(CAROL);
            rustix::fs::fchown(&socket, Some(own), None).expect("root may");
            (0..count).for_each(|at| {
                // Nobody listens there, and the next call says so.
                let _ = socket.send_to(&[at; 100], "127.0.0.1:9");
            });
        });
    };
    say(20);
    for words in ["move dport process", "insert ip before udp", "move dport kernel"] {
        house.changes(CAROL, path, words);
        say(20);
    }
    let ran = carol.stop();
    ran.assert_well();
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(ran.frames("all.pcap").len() as u64 + lost, 80, "{}", ran.ledger);
    house.end();
}

#[test]
fn o9_p5_explain_knows_beforehand_what_root_has_not_opened() {
    let policy = format!("{POLICY}[kernel]\nfilters = [\"rx\", \"ip\", \"udp\"]\n");
    let Some(mut house) = House::new(&policy) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let explain = |uid: u32, line: &str| {
        let output = house.command(uid).args(["explain", line]).output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let line = format!("rx {SERVER_DEVICE} | udp | dport |9 pcap all.pcap");
    let (done, said) = explain(ALICE, &line);
    assert!(done && said.contains("may not have `dport` in the kernel"), "{said}");
    let (done, said) = explain(CAROL, &line);
    assert!(
        !done
            && said.contains(&format!("{} may not watch server0", testkit::user::describe(CAROL))),
        "{said}"
    );
    let (done, said) = explain(CAROL, "rx own=yes | udp | pcap own.pcap");
    assert!(done && !said.contains("may not"), "{said}");
    let (done, said) = explain(0, &line);
    assert!(done && !said.contains("may not"), "{said}");
    assert_eq!(house.sharing().programs, [], "nothing was made");
    house.end();
}
