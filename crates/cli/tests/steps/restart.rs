//! A daemon that is started again by a service manager which keeps its descriptors: all paths are
//! registered at once, over the connections that they had. The manager is the
//! test's own ([`testkit::service`]).

use super::House;
use super::kills::{comes_to_its_step, is_registered};
use crate::common::Guard;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use testkit::{need, until};

const LINE: &str = "generate rate=1000 | count";

/// The state of a service at its manager.
struct Manager {
    house: House,
    manager: testkit::service::Manager,
}

impl Manager {
    fn new() -> Self {
        let house = House::new();
        let manager = testkit::service::Manager::new(house.folder.path());
        Self { house, manager }
    }

    fn stored(&self) -> Vec<String> {
        self.manager.stored()
    }

    /// Starts the service with all that is in the store.
    fn start(&self) -> Guard {
        let shell = self.house.tamed(Command::new("bash"));
        let program = env!("CARGO_BIN_EXE_streamline").to_owned();
        let words = [vec![program], self.house.daemon_words()].concat();
        Guard(self.manager.service(shell, &words, |command| command.spawn().unwrap()))
    }
}

/// The sockets of a process.
fn sockets(process: i32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let all = all.filter_map(|entry| fs::read_link(entry.path()).ok());
    let all = all.map(|target| target.to_string_lossy().into_owned());
    let mut sockets: Vec<String> = all.filter(|target| target.starts_with("socket:")).collect();
    sockets.sort_unstable();
    sockets
}

#[test]
fn a_daemon_that_is_started_again_has_all_its_paths() {
    // Descriptors that are handed over must not be those of other tests too.
    let name = "restart::a_daemon_that_is_started_again_has_all_its_paths";
    if need::command("bash").is_none() || !testkit::alone(name) {
        return;
    }
    let manager = Manager::new();
    let mut daemon = manager.start();
    until("a daemon answers", || manager.house.client().is_some());
    let _one = manager.house.spawn(&["run", "--as", "one", "-q", LINE]);
    let mut two = manager.house.spawn(&["run", "--as", "two", "-q", LINE]);
    let processes = |house: &House| -> BTreeMap<String, (u32, i32)> {
        let listed = house.list().into_iter();
        listed.filter_map(|path| Some((path.name?, (path.number, path.process?)))).collect()
    };
    until("both are registered", || processes(&manager.house).len() == 2);
    until("both are kept", || manager.stored().len() == 6);
    let before = processes(&manager.house);
    let process = before["one"].1;
    let ends = sockets(process);
    let changed = manager.house.run(&["set", "one", "insert", "eth", "after", "generate"]);
    assert_eq!(changed.status, Some(0), "{changed:?}");
    let line = "generate rate=1000 | eth | count";
    until("the register knows its new line", || {
        let listed = manager.house.list();
        listed.iter().any(|path| path.line.as_deref() == Some(line))
    });
    for signal in ["-TERM", "-KILL", "-TERM"] {
        until("all of both is kept", || manager.stored().len() == 6);
        let number = daemon.0.id().to_string();
        assert!(Command::new("kill").args([signal, &number]).status().unwrap().success());
        daemon.0.wait().unwrap();
        daemon = manager.start();
        until("the next one answers", || manager.house.client().is_some());
        // The first that it says: nobody has come again.
        let listed = manager.house.list();
        assert_eq!(processes(&manager.house), before, "{signal}: {listed:?}");
        assert!(listed.iter().any(|path| path.line.as_deref() == Some(line)), "{listed:?}");
        manager.house.goes_on("one");
        // One that registers again has others. What it had may have been one too many: the end that
        // it has just given away.
        until("the path has the connections that it had, and no other", || {
            let now = sockets(process);
            now.len() >= 2 && now.iter().all(|socket| ends.contains(socket))
        });
    }
    two.0.kill().unwrap();
    two.0.wait().unwrap();
    until("what was killed is kept no more", || manager.stored().len() == 3);
    let number = before["one"].0;
    let parts = ["connection", "entry", "way"].map(|part| format!("path-{number}-{part}"));
    assert_eq!(manager.stored(), parts);
    let stopped = manager.house.run(&["stop", "one"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
    until("nothing is kept", || manager.stored().is_empty());
    // A store with things that have ended, or are none of ours, does no harm.
    let file = fs::File::open("/dev/null").unwrap();
    for name in ["path-7-entry", "path-7-connection", "path-x-way", "path-8-way"] {
        manager.manager.keep(name, OwnedFd::from(file.try_clone().unwrap()));
    }
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    daemon = manager.start();
    until("the last one answers", || manager.house.client().is_some());
    assert_eq!(manager.house.list(), []);
    drop(daemon);
}

/// A path about to register when its daemon dies runs on and registers with the next one; a client
/// about to get a name hears that it has none.
#[test]
fn t10_a_path_that_registers_while_its_daemon_dies_is_registered_with_the_next() {
    let house = House::new();
    let answers = || is_registered(&house, "").is_some();
    let (mut untied, mut unnamed) = (0, 0);
    for step in 0.. {
        let fault = format!("--fault=stop={step}");
        let mut words = house.daemon_words();
        words.push(fault);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = house.spawn(&words);
        if comes_to_its_step(&mut daemon, &answers) {
            // It is not there yet.
            continue;
        }
        let named = step % 2 == 1;
        let mut words = vec!["run", "-q", LINE];
        if named {
            words.extend(["--as", "named"]);
        }
        let mut run = house.spawn(&words);
        let process = i32::try_from(run.0.id()).unwrap();
        let runs = |house: &House| house.list().iter().any(|path| path.process == Some(process));
        let there = || is_registered(&house, LINE).unwrap_or(false);
        if !comes_to_its_step(&mut daemon, &there) {
            assert!(untied > 0 && unnamed > 0, "{step}: {untied}, {unnamed}");
            return;
        }
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let next = house.daemon();
        if named {
            // Whoever gave the name hears that the path has none, and that it does not run; one
            // that had been registered runs on.
            until("it has ended, or has its name with the next daemon", || {
                let ended = run.0.try_wait().unwrap();
                assert!(ended.is_none_or(|status| !status.success()), "{step}: {ended:?}");
                ended.is_some() || runs(&house)
            });
            unnamed += 1;
        } else {
            until("the path is registered with the next daemon", || runs(&house));
            untied += 1;
        }
        drop((run, next));
    }
}
