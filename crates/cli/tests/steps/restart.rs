//! Tests of a daemon that a service manager restarts. The manager stores the daemon's descriptors
//! during the restart. After the restart, all paths are registered immediately, over their previous
//! connections. The test acts as the service manager ([`testkit::service`]).

use super::Fixture;
use super::kills::{is_registered, wait_for_step};
use crate::common::ChildGuard;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use testkit::{need, wait_until};

const COUNT_REQUEST: &str = "generate rate=1000 | count";

/// A daemon that runs as a service, and the service manager that stores its descriptors.
struct ManagedDaemon {
    fixture: Fixture,
    manager: testkit::service::ServiceManager,
}

impl ManagedDaemon {
    fn new() -> Self {
        let fixture = Fixture::new();
        let manager = testkit::service::ServiceManager::new(fixture.folder.path());
        Self { fixture, manager }
    }

    fn stored_names(&self) -> Vec<String> {
        self.manager.stored_names()
    }

    /// Starts the daemon with the descriptors that the service manager stores.
    fn start(&self) -> ChildGuard {
        self.start_with_variables(&[])
    }

    /// Starts the daemon with the descriptors that the service manager stores, and with additional
    /// environment variables.
    fn start_with_variables(&self, variables: &[(&str, &str)]) -> ChildGuard {
        let mut shell = self.fixture.set_fixture_environment(Command::new("bash"));
        shell.envs(variables.iter().copied());
        let program = env!("CARGO_BIN_EXE_streamline").to_owned();
        let words = [vec![program], self.fixture.daemon_args()].concat();
        ChildGuard(self.manager.run_service(shell, &words, |command| command.spawn().unwrap()))
    }
}

/// Returns the names of a process's sockets, such as `socket:[4711]`, sorted.
fn socket_names(process: i32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let all = all.filter_map(|entry| fs::read_link(entry.path()).ok());
    let all = all.map(|target| target.to_string_lossy().into_owned());
    let mut sockets: Vec<String> = all.filter(|target| target.starts_with("socket:")).collect();
    sockets.sort_unstable();
    sockets
}

#[test]
fn restarted_daemon_keeps_all_paths() {
    // The test runs alone, because children of other tests must not inherit the passed descriptors.
    let name = "restart::restarted_daemon_keeps_all_paths";
    if need::require_command("bash").is_none() || !testkit::run_in_separate_process(name) {
        return;
    }
    let manager = ManagedDaemon::new();
    let mut daemon = manager.start();
    wait_until("a daemon answers", || manager.fixture.connect_client().is_some());
    let _one = manager.fixture.spawn(&["run", "--as", "one", "-q", COUNT_REQUEST]);
    let mut two = manager.fixture.spawn(&["run", "--as", "two", "-q", COUNT_REQUEST]);
    let processes = |fixture: &Fixture| -> BTreeMap<String, (u32, i32)> {
        let listed = fixture.list_paths().into_iter();
        listed.filter_map(|path| Some((path.name?, (path.number, path.process?)))).collect()
    };
    wait_until("both are registered", || processes(&manager.fixture).len() == 2);
    wait_until("both are kept", || manager.stored_names().len() == 6);
    let before = processes(&manager.fixture);
    let process = before["one"].1;
    let ends = socket_names(process);
    let changed = manager.fixture.run(&["set", "one", "insert", "eth", "after", "generate"]);
    assert_eq!(changed.status, Some(0), "{changed:?}");
    let line = "generate rate=1000 | eth | count";
    wait_until("the register knows its new line", || {
        let listed = manager.fixture.list_paths();
        listed.iter().any(|path| path.line.as_deref() == Some(line))
    });
    for signal in ["-TERM", "-KILL", "-TERM"] {
        wait_until("all of both is kept", || manager.stored_names().len() == 6);
        let number = daemon.0.id().to_string();
        assert!(Command::new("kill").args([signal, &number]).status().unwrap().success());
        daemon.0.wait().unwrap();
        daemon = manager.start();
        wait_until("the next one answers", || manager.fixture.connect_client().is_some());
        // This is the first list after the restart. The paths are in the list before they could
        // register again.
        let listed = manager.fixture.list_paths();
        assert_eq!(processes(&manager.fixture), before, "{signal}: {listed:?}");
        assert!(listed.iter().any(|path| path.line.as_deref() == Some(line)), "{listed:?}");
        manager.fixture.wait_for_progress("one");
        // A path that had registered again would have new sockets. The old list may include a
        // socket that was just passed on.
        wait_until("the path has the connections that it had, and no other", || {
            let now = socket_names(process);
            now.len() >= 2 && now.iter().all(|socket| ends.contains(socket))
        });
    }
    two.0.kill().unwrap();
    two.0.wait().unwrap();
    wait_until("what was killed is kept no more", || manager.stored_names().len() == 3);
    let number = before["one"].0;
    let parts = ["connection", "entry", "way"].map(|part| format!("path-{number}-{part}"));
    assert_eq!(manager.stored_names(), parts);
    let stopped = manager.fixture.run(&["stop", "one"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
    wait_until("nothing is kept", || manager.stored_names().is_empty());
    // Stale or foreign descriptors in the store are ignored.
    let file = fs::File::open("/dev/null").unwrap();
    for name in ["path-7-entry", "path-7-connection", "path-x-way", "path-8-way"] {
        manager.manager.store(name, OwnedFd::from(file.try_clone().unwrap()));
    }
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    daemon = manager.start();
    wait_until("the last one answers", || manager.fixture.connect_client().is_some());
    assert_eq!(manager.fixture.list_paths(), []);
    drop(daemon);
}

#[test]
fn idle_daemon_reports_to_the_watchdog_that_expects_it() {
    let name = "restart::idle_daemon_reports_to_the_watchdog_that_expects_it";
    if need::require_command("bash").is_none() || !testkit::run_in_separate_process(name) {
        return;
    }
    let manager = ManagedDaemon::new();
    let daemon = manager.start_with_variables(&[("WATCHDOG_USEC", "200000")]);
    wait_until("three reports", || manager.manager.watchdog_ping_count() >= 3);
    drop(daemon);
    // If the watchdog expects another process, the daemon sends no pings.
    let manager = ManagedDaemon::new();
    let _daemon =
        manager.start_with_variables(&[("WATCHDOG_USEC", "200000"), ("WATCHDOG_PID", "1")]);
    wait_until("a daemon answers", || manager.fixture.connect_client().is_some());
    let _one = manager.fixture.spawn(&["run", "--as", "one", "-q", COUNT_REQUEST]);
    // The daemon would have sent a first ping before the descriptors of the path.
    wait_until("the path is kept", || manager.stored_names().len() == 3);
    assert_eq!(manager.manager.watchdog_ping_count(), 0);
}

/// If the daemon dies during the registration of a path, the path continues and registers with the
/// next daemon. A path with a name may fail instead.
#[test]
fn t10_path_registers_with_next_daemon_if_first_one_dies() {
    let fixture = Fixture::new();
    let answers = || is_registered(&fixture, "").is_some();
    let (mut untied, mut unnamed) = (0, 0);
    for step in 0.. {
        let fault = format!("--fault=stop={step}");
        let mut words = fixture.daemon_args();
        words.push(fault);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = fixture.spawn(&words);
        if wait_for_step(&mut daemon, &answers) {
            // The path is not listed yet.
            continue;
        }
        let named = step % 2 == 1;
        let mut words = vec!["run", "-q", COUNT_REQUEST];
        if named {
            words.extend(["--as", "named"]);
        }
        let mut run = fixture.spawn(&words);
        let process = i32::try_from(run.0.id()).unwrap();
        let runs = |fixture: &Fixture| {
            fixture.list_paths().iter().any(|path| path.process == Some(process))
        };
        let there = || is_registered(&fixture, COUNT_REQUEST).unwrap_or(false);
        if !wait_for_step(&mut daemon, &there) {
            assert!(untied > 0 && unnamed > 0, "{step}: {untied}, {unnamed}");
            return;
        }
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let next = fixture.start_daemon();
        if named {
            // A path with a name fails unless it was already registered. Then it continues with the
            // next daemon.
            wait_until("it has ended, or has its name with the next daemon", || {
                let ended = run.0.try_wait().unwrap();
                assert!(ended.is_none_or(|status| !status.success()), "{step}: {ended:?}");
                ended.is_some() || runs(&fixture)
            });
            unnamed += 1;
        } else {
            wait_until("the path is registered with the next daemon", || runs(&fixture));
            untied += 1;
        }
        drop((run, next));
    }
}
