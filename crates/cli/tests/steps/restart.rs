//! A daemon that is started again by a service manager which keeps its descriptors: all paths are
//! registered at once, over the connections that they had. The manager is a process of the test's
//! own, which does what systemd does with `FDSTORE=1` (sd_notify(3)) and `LISTEN_FDS`.

use super::{Guard, House};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use testkit::{need, until};

/// Above all descriptors that a service has from the beginning.
const AWAY: i32 = 100;
const LINE: &str = "generate rate=1000 | count";

/// What a manager has of a service.
struct Manager {
    house: House,
    notified: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn new() -> Self {
        let house = House::new();
        let notified = UnixDatagram::bind(house.folder.path().join("notify")).unwrap();
        Self { house, notified, store: Vec::new() }
    }

    /// Reads what it was told.
    fn hear(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(Some((length, descriptors))) =
            sys::descriptor::receive_now(&self.notified, &mut bytes)
        {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            let name = name.unwrap_or("stored").to_owned();
            if text.contains("FDSTOREREMOVE=1") {
                self.store.retain(|(known, _)| *known != name);
            } else if text.contains("FDSTORE=1") {
                self.store.extend(descriptors.into_iter().map(|fd| (name.clone(), fd)));
            }
        }
    }

    fn stored(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Starts the service with all that is in the store.
    fn start(&mut self) -> Guard {
        // Out of the way of the places to which they go.
        let away = self.store.iter().map(|(_, descriptor)| fcntl_dupfd_cloexec(descriptor, AWAY));
        let away: Vec<OwnedFd> = away.map(Result::unwrap).collect();
        let mut places = String::new();
        for (place, descriptor) in (3..).zip(&away) {
            fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
            places += &format!("{place}<&{0} {0}<&- ", descriptor.as_raw_fd());
        }
        let names: Vec<&str> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!(
            "exec {places}; export LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={}; exec \"$@\"",
            self.store.len(),
            names.join(":")
        );
        let mut command = self.house.tamed(Command::new("bash"));
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_streamline")]);
        command.args(self.house.daemon_words());
        command.env("NOTIFY_SOCKET", self.house.folder.path().join("notify"));
        Guard(command.spawn().unwrap())
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
    let mut manager = Manager::new();
    let mut daemon = manager.start();
    until("a daemon answers", || manager.house.client().is_some());
    let _one = manager.house.spawn(&["run", "--as", "one", "-q", LINE]);
    let mut two = manager.house.spawn(&["run", "--as", "two", "-q", LINE]);
    let processes = |house: &House| -> BTreeMap<String, (u32, i32)> {
        let listed = house.list().into_iter();
        listed.filter_map(|path| Some((path.name?, (path.number, path.process?)))).collect()
    };
    until("both are registered", || processes(&manager.house).len() == 2);
    until("both are kept", || {
        manager.hear();
        manager.store.len() == 6
    });
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
        manager.hear();
        assert_eq!(manager.store.len(), 6, "{signal}: {:?}", manager.stored());
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
    until("what was killed is kept no more", || {
        manager.hear();
        manager.store.len() == 3
    });
    let number = before["one"].0;
    let parts = ["connection", "entry", "way"].map(|part| format!("path-{number}-{part}"));
    assert_eq!(manager.stored(), parts);
    let stopped = manager.house.run(&["stop", "one"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
    until("nothing is kept", || {
        manager.hear();
        manager.store.is_empty()
    });
    // A store with things that have ended, or are none of ours, does no harm.
    let file = fs::File::open("/dev/null").unwrap();
    for name in ["path-7-entry", "path-7-connection", "path-x-way", "path-8-way"] {
        manager.store.push((name.to_owned(), OwnedFd::from(file.try_clone().unwrap())));
    }
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    daemon = manager.start();
    until("the last one answers", || manager.house.client().is_some());
    assert_eq!(manager.house.list(), []);
    drop(daemon);
}
