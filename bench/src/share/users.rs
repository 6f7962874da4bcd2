//! The users of `bench share`: a daemon whose policy permits them to observe the veth pair, and an
//! unprivileged process for each user, which writes a final report.

use super::{RING_MB, port_of_user};
use crate::processes::{Children, read_text, start_on_second_processor, streamline_path};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::net::{Namespace, SERVER_DEVICE, wait_until};

/// User id of the first user; the ids of the others follow.
const FIRST_UID: u32 = 41_300;
/// The filters at the beginning of all requests.
const COMMON_FILTERS: [&str; 3] = ["ip", "udp", "dport"];

/// A daemon in a directory that all users may enter.
pub(super) struct SharedDaemon {
    folder: PathBuf,
    daemon: Children,
}

/// Counts of the frames sent for an observer: the number received and the number lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameCounts {
    pub(crate) observed: u64,
    pub(crate) lost: u64,
}

impl SharedDaemon {
    /// Starts a daemon in a namespace for `users` users, and waits until it replies.
    pub(super) fn start(space: &Namespace, folder: &Path, users: u16) -> Result<Self, String> {
        let program = streamline_path().ok_or("there is nothing to measure")?;
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(failed)?;
        let mut daemon = Self { folder: folder.to_owned(), daemon: Children::default() };
        // Other users cannot enter the build directory.
        testkit::copy_program(&program, &daemon.program());
        fs::write(folder.join("policy.toml"), policy_for_users(users)).map_err(failed)?;
        let mut command = Command::new(daemon.program());
        command.args(["daemon", "--socket", "daemon", "--policy", "policy.toml"]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("err")).map_err(failed)?);
        daemon.daemon.add(start_on_second_processor(space, &mut command)?);
        let mut ended = None;
        wait_until("the daemon answers", || {
            ended = daemon.daemon.first_exited();
            ended.is_some() || daemon.list_paths().is_ok()
        });
        match ended {
            Some(_) => Err(format!("the daemon: {}", read_text(&folder.join("err")))),
            None => Ok(daemon),
        }
    }

    /// Returns a list with the process id of the daemon.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        self.daemon.process_ids()
    }

    /// Starts a request for each user, with its sink pinned by `pin`, and waits until the daemon's
    /// kernel program runs the filters of all requests.
    pub(super) fn start_users(
        &self,
        space: &Namespace,
        count: u16,
        pin: &str,
    ) -> Result<RunningUsers, String> {
        let mut users = RunningUsers { children: Children::default(), folders: Vec::new() };
        for user in 0..count {
            self.start_request(space, user, pin, &mut users)?;
        }
        let (mut ended, mut shared) = (None, Ok(()));
        wait_until("all lines are in the program", || {
            ended = users.children.first_exited();
            shared = self.check_shared_program(count);
            ended.is_some() || shared.is_ok()
        });
        match ended.and_then(|user| users.folders.get(user)) {
            Some(folder) => Err(format!("a user: {}", read_text(&folder.join("err")))),
            None => shared.map(|()| users),
        }
    }

    /// Starts the request of a user, with its sink pinned by `pin`, as a process of this user.
    fn start_request(
        &self,
        space: &Namespace,
        user: u16,
        pin: &str,
        users: &mut RunningUsers,
    ) -> Result<(), String> {
        let (number, folder) = (uid_of_user(user), self.folder.join(format!("user{user}")));
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        // Removes the report of an earlier run.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(failed)?;
        chown(&folder, Some(number), Some(number)).map_err(failed)?;
        let mut command = Command::new(self.program());
        command.args(["run", "--json", "--report=report", &request_of_user(user, pin)]);
        // If the parent is root, the standard library also drops groups, and all capabilities with
        // the user.
        command.uid(number).gid(number).current_dir(&folder);
        command.env("STREAMLINE_DAEMON", self.state_directory()).env("HOME", &folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("err")).map_err(failed)?);
        users.children.add(start_on_second_processor(space, &mut command)?);
        users.folders.push(folder);
        Ok(())
    }

    /// Checks that one kernel program runs the requests of exactly `count` users. The program must
    /// have one ring per user, and one instance of each common filter.
    pub(super) fn check_shared_program(&self, count: u16) -> Result<(), String> {
        check_one_shared_program(&self.list_paths()?, count)
    }

    /// Returns the running paths, as printed by `ps --json`.
    fn list_paths(&self) -> Result<Value, String> {
        let mut command = Command::new(self.program());
        command.args(["ps", "--json"]).env("STREAMLINE_DAEMON", self.state_directory());
        let output = command.stdin(Stdio::null()).output().map_err(|why| format!("ps: {why}"))?;
        if !output.status.success() {
            return Err(format!("ps: {}", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|why| format!("ps --json: {why}"))
    }

    /// Stops the daemon, and fails if it does not exit successfully.
    pub(super) fn stop(self) -> Result<(), String> {
        self.daemon.interrupt_and_wait("the daemon")
    }

    fn program(&self) -> PathBuf {
        self.folder.join("streamline")
    }

    fn state_directory(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

/// The running requests of all users, one process for each user.
pub(super) struct RunningUsers {
    children: Children,
    folders: Vec<PathBuf>,
}

impl RunningUsers {
    /// Returns the process ids of the users' requests.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        self.children.process_ids()
    }

    /// Stops all requests, and waits until their kernel program is removed. Returns the frame
    /// counts of each user.
    pub(super) fn stop(self, daemon: &SharedDaemon) -> Result<Vec<FrameCounts>, String> {
        self.children.interrupt_and_wait("a user")?;
        wait_until("no program is left", || {
            let listed = daemon.list_paths();
            listed.is_ok_and(|listed| listed["kernel"].as_array().is_some_and(Vec::is_empty))
        });
        self.folders.iter().map(|folder| parse_ledger(&read_text(&folder.join("report")))).collect()
    }
}

fn uid_of_user(user: u16) -> u32 {
    FIRST_UID + u32::from(user)
}

/// Returns the request of a user. `pin` pins its sink; if the text is empty, the planner places the
/// sink.
fn request_of_user(user: u16, pin: &str) -> String {
    let port = port_of_user(user);
    format!("rx {SERVER_DEVICE} ring={RING_MB}MB | ip | udp | dport |{port} pcap{pin} /dev/null")
}

/// Returns a policy that permits the users to observe the interface, and to use a whole processor
/// in the kernel.
fn policy_for_users(users: u16) -> String {
    let numbers: Vec<_> = (0..users).map(|user| uid_of_user(user).to_string()).collect();
    let numbers = numbers.join(", ");
    format!(
        "[quota]\nkernel-ns = 1_000_000_000\n\n\
         [[open]]\nusers = [{numbers}]\ninterfaces = [\"{SERVER_DEVICE}\"]\n"
    )
}

fn check_one_shared_program(listed: &Value, count: u16) -> Result<(), String> {
    let users: Vec<u64> = (0..count).map(|user| uid_of_user(user).into()).collect();
    let programs = listed["kernel"].as_array().map_or(&[][..], Vec::as_slice);
    let [program] = programs else {
        return Err(format!("there are {} programs for {count} users", programs.len()));
    };
    for what in ["lines", "rings"] {
        let all = program[what].as_array().into_iter().flatten();
        let mut all: Vec<u64> = all.filter_map(|one| one["uid"].as_u64()).collect();
        all.sort_unstable();
        if all != users {
            return Err(format!("{what} of the program are of {all:?}, not one of each {users:?}"));
        }
    }
    for name in COMMON_FILTERS {
        let steps: Vec<&Value> = program["steps"].as_array().into_iter().flatten().collect();
        let alike = steps.iter().filter(|step| step["name"] == name);
        let lines: Vec<_> = alike.map(|step| step["lines"].as_u64()).collect();
        if lines != [Some(count.into())] {
            return Err(format!("`{name}` does not run once for {count} users: {lines:?}"));
        }
    }
    Ok(())
}

/// Reads the frame counts from the ledger in a user's report. Fails if the ledger does not balance.
pub(crate) fn parse_ledger(report: &str) -> Result<FrameCounts, String> {
    let ledger: Value =
        serde_json::from_str(report).map_err(|why| format!("the ledger of a user: {why}"))?;
    if ledger["balanced"] != true {
        return Err(format!("the ledger of a user does not balance: {ledger}"));
    }
    let filters = ledger["filters"].as_array().into_iter().flatten();
    let pcap = filters.filter(|filter| filter["name"] == "pcap");
    let observed = pcap.filter_map(|filter| filter["passed"]["blocks"].as_u64()).next();
    match (observed, ledger["lost"].as_u64()) {
        (Some(observed), Some(lost)) => Ok(FrameCounts { observed, lost }),
        _ => Err(format!("the ledger of a user does not tell what it saw: {ledger}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn listed_program() -> Value {
        let step = |name| json!({ "name": name, "lines": 2 });
        json!({
            "lines": [{ "uid": FIRST_UID + 1 }, { "uid": FIRST_UID }],
            "rings": [{ "uid": FIRST_UID }, { "uid": FIRST_UID + 1 }],
            "steps": COMMON_FILTERS.map(step),
        })
    }

    #[test]
    fn one_program_serves_all_users_with_common_filters_once() {
        let checked =
            |programs: Vec<Value>| check_one_shared_program(&json!({ "kernel": programs }), 2);
        assert_eq!(checked(vec![listed_program()]), Ok(()));
        assert_eq!(checked(vec![]).unwrap_err(), "there are 0 programs for 2 users");
        assert_eq!(
            checked(vec![listed_program(); 2]).unwrap_err(),
            "there are 2 programs for 2 users"
        );
        let mut other = listed_program();
        other["lines"][0]["uid"] = json!(0);
        assert!(
            checked(vec![other]).unwrap_err().starts_with("lines of the program are of [0, 4130")
        );
        let mut other = listed_program();
        other["rings"] = json!([]);
        assert!(checked(vec![other]).unwrap_err().starts_with("rings of the program are of []"));
        let mut other = listed_program();
        other["steps"][1] = json!({ "name": "udp", "lines": 1 });
        let why = "`udp` does not run once for 2 users: [Some(1)]";
        assert_eq!(checked(vec![other]).unwrap_err(), why);
    }

    #[test]
    fn balanced_ledger_yields_received_frames() {
        let ledger = |balanced| {
            let pcap = json!({ "name": "pcap", "passed": { "blocks": 7, "bytes": 42 } });
            json!({ "balanced": balanced, "lost": 2, "filters": [pcap] }).to_string()
        };
        assert_eq!(parse_ledger(&ledger(true)), Ok(FrameCounts { observed: 7, lost: 2 }));
        assert!(parse_ledger(&ledger(false)).unwrap_err().contains("does not balance"));
        assert!(parse_ledger("").unwrap_err().starts_with("the ledger of a user"));
        assert!(parse_ledger(r#"{"balanced":true}"#).unwrap_err().contains("does not tell"));
    }

    #[test]
    fn policy_permits_each_user_and_ports_differ() {
        let policy = policy_for_users(2);
        assert!(policy.contains("users = [41300, 41301]\ninterfaces = [\"server0\"]"), "{policy}");
        assert_eq!(
            request_of_user(1, ""),
            "rx server0 ring=4MB | ip | udp | dport |54 pcap /dev/null"
        );
        assert!(request_of_user(0, "@thread0").ends_with("|53 pcap@thread0 /dev/null"));
    }
}
