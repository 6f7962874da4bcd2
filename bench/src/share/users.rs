//! The users: a daemon whose policy lets them watch the cable, and a process for each under its own
//! number, without any privilege; what they say at their end.

use super::{RING_MB, port};
use crate::processes::{Children, start_beside, streamline, text};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::net::{Namespace, SERVER_DEVICE, until};

/// The number of the first user.
const FIRST: u32 = 41_300;
/// The filters that all lines begin with.
const ALIKE: [&str; 3] = ["ip", "udp", "dport"];

/// A daemon for all of them, in a folder that all may enter.
pub(super) struct House {
    folder: PathBuf,
    daemon: Children,
}

/// The frames that an observer received of those sent for it, and its losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) seen: u64,
    pub(super) lost: u64,
}

impl House {
    /// Starts a daemon in this name space, for so many users, and waits until it answers.
    pub(super) fn start(space: &Namespace, folder: &Path, users: u16) -> Result<Self, String> {
        let program = streamline().ok_or("there is nothing to measure")?;
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(failed)?;
        let mut house = Self { folder: folder.to_owned(), daemon: Children::default() };
        // Where it was built others may not go.
        testkit::copy_program(&program, &house.program());
        fs::write(folder.join("policy.toml"), policy(users)).map_err(failed)?;
        let mut command = Command::new(house.program());
        command.args(["daemon", "--socket", "daemon", "--policy", "policy.toml"]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("err")).map_err(failed)?);
        house.daemon.add(start_beside(space, &mut command)?);
        let mut ended = None;
        until("the daemon answers", || {
            ended = house.daemon.ended();
            ended.is_some() || house.listed().is_ok()
        });
        match ended {
            Some(_) => Err(format!("the daemon: {}", text(&folder.join("err")))),
            None => Ok(house),
        }
    }

    /// The process of the daemon.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.daemon.processes()
    }

    /// Starts a line for each of so many users, whose sinks are pinned so, and waits until all are
    /// in the program.
    pub(super) fn users(&self, space: &Namespace, count: u16, pin: &str) -> Result<Users, String> {
        let mut users = Users { children: Children::default(), folders: Vec::new() };
        for user in 0..count {
            self.begin(space, user, pin, &mut users)?;
        }
        let (mut ended, mut shared) = (None, Ok(()));
        until("all lines are in the program", || {
            ended = users.children.ended();
            shared = self.shared(count);
            ended.is_some() || shared.is_ok()
        });
        match ended.and_then(|user| users.folders.get(user)) {
            Some(folder) => Err(format!("a user: {}", text(&folder.join("err")))),
            None => shared.map(|()| users),
        }
    }

    /// Starts the line of a user.
    fn begin(
        &self,
        space: &Namespace,
        user: u16,
        pin: &str,
        users: &mut Users,
    ) -> Result<(), String> {
        let (number, folder) = (uid(user), self.folder.join(format!("user{user}")));
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        // What it said another time is not to be taken for what it says now.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(failed)?;
        chown(&folder, Some(number), Some(number)).map_err(failed)?;
        let mut command = Command::new(self.program());
        command.args(["run", "--json", "--report=report", &line(user, pin)]);
        // From root, the standard library drops the groups too, and with the user its rights.
        command.uid(number).gid(number).current_dir(&folder);
        command.env("STREAMLINE_DAEMON", self.place()).env("HOME", &folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("err")).map_err(failed)?);
        users.children.add(start_beside(space, &mut command)?);
        users.folders.push(folder);
        Ok(())
    }

    /// Returns true if one program runs the requests of exactly so many users, each with rings of
    /// its own, with the parts they share in it once.
    pub(super) fn shared(&self, count: u16) -> Result<(), String> {
        one_for_all(&self.listed()?, count)
    }

    /// Returns the running paths, by `ps --json`.
    fn listed(&self) -> Result<Value, String> {
        let mut command = Command::new(self.program());
        command.args(["ps", "--json"]).env("STREAMLINE_DAEMON", self.place());
        let told = command.stdin(Stdio::null()).output().map_err(|why| format!("ps: {why}"))?;
        if !told.status.success() {
            return Err(format!("ps: {}", String::from_utf8_lossy(&told.stderr)));
        }
        serde_json::from_slice(&told.stdout).map_err(|why| format!("ps --json: {why}"))
    }

    /// Ends the daemon.
    pub(super) fn end(self) -> Result<(), String> {
        self.daemon.end("the daemon")
    }

    fn program(&self) -> PathBuf {
        self.folder.join("streamline")
    }

    fn place(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

/// Users whose lines run.
pub(super) struct Users {
    children: Children,
    folders: Vec<PathBuf>,
}

impl Users {
    /// The numbers of the processes.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.children.processes()
    }

    /// Ends all, and waits until their program is gone; answers what each saw.
    pub(super) fn end(self, house: &House) -> Result<Vec<Seen>, String> {
        self.children.end("a user")?;
        until("no program is left", || {
            let listed = house.listed();
            listed.is_ok_and(|listed| listed["kernel"].as_array().is_some_and(Vec::is_empty))
        });
        self.folders.iter().map(|folder| seen(&text(&folder.join("report")))).collect()
    }
}

fn uid(user: u16) -> u32 {
    FIRST + u32::from(user)
}

/// The line of a user: its sink is where the planner puts it, or pinned.
fn line(user: u16, pin: &str) -> String {
    let port = port(user);
    format!("rx {SERVER_DEVICE} ring={RING_MB}MB | ip | udp | dport |{port} pcap{pin} /dev/null")
}

/// Users may watch the cable, and take all the time that there is.
fn policy(users: u16) -> String {
    let numbers: Vec<_> = (0..users).map(|user| uid(user).to_string()).collect();
    let numbers = numbers.join(", ");
    format!(
        "[quota]\nkernel-ns = 1_000_000_000\n\n\
         [[open]]\nusers = [{numbers}]\ninterfaces = [\"{SERVER_DEVICE}\"]\n"
    )
}

fn one_for_all(listed: &Value, count: u16) -> Result<(), String> {
    let users: Vec<u64> = (0..count).map(|user| uid(user).into()).collect();
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
    for name in ALIKE {
        let steps: Vec<&Value> = program["steps"].as_array().into_iter().flatten().collect();
        let alike = steps.iter().filter(|step| step["name"] == name);
        let lines: Vec<_> = alike.map(|step| step["lines"].as_u64()).collect();
        if lines != [Some(count.into())] {
            return Err(format!("`{name}` does not run once for {count} users: {lines:?}"));
        }
    }
    Ok(())
}

/// Reads the ledger of a user; `None` if it does not balance.
fn seen(report: &str) -> Result<Seen, String> {
    let ledger: Value =
        serde_json::from_str(report).map_err(|why| format!("the ledger of a user: {why}"))?;
    if ledger["balanced"] != true {
        return Err(format!("the ledger of a user does not balance: {ledger}"));
    }
    let filters = ledger["filters"].as_array().into_iter().flatten();
    let pcap = filters.filter(|filter| filter["name"] == "pcap");
    let seen = pcap.filter_map(|filter| filter["taken"]["blocks"].as_u64()).next();
    match (seen, ledger["lost"].as_u64()) {
        (Some(seen), Some(lost)) => Ok(Seen { seen, lost }),
        _ => Err(format!("the ledger of a user does not tell what it saw: {ledger}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn program() -> Value {
        let step = |name| json!({ "name": name, "lines": 2 });
        json!({
            "lines": [{ "uid": FIRST + 1 }, { "uid": FIRST }],
            "rings": [{ "uid": FIRST }, { "uid": FIRST + 1 }],
            "steps": ALIKE.map(step),
        })
    }

    #[test]
    fn one_program_is_for_all_and_does_alike_things_once() {
        let told = |programs: Vec<Value>| one_for_all(&json!({ "kernel": programs }), 2);
        assert_eq!(told(vec![program()]), Ok(()));
        assert_eq!(told(vec![]).unwrap_err(), "there are 0 programs for 2 users");
        assert_eq!(told(vec![program(); 2]).unwrap_err(), "there are 2 programs for 2 users");
        let mut other = program();
        other["lines"][0]["uid"] = json!(0);
        assert!(told(vec![other]).unwrap_err().starts_with("lines of the program are of [0, 4130"));
        let mut other = program();
        other["rings"] = json!([]);
        assert!(told(vec![other]).unwrap_err().starts_with("rings of the program are of []"));
        let mut other = program();
        other["steps"][1] = json!({ "name": "udp", "lines": 1 });
        let why = "`udp` does not run once for 2 users: [Some(1)]";
        assert_eq!(told(vec![other]).unwrap_err(), why);
    }

    #[test]
    fn balanced_ledger_gives_received_frames() {
        let ledger = |balanced| {
            let pcap = json!({ "name": "pcap", "taken": { "blocks": 7, "bytes": 42 } });
            json!({ "balanced": balanced, "lost": 2, "filters": [pcap] }).to_string()
        };
        assert_eq!(seen(&ledger(true)), Ok(Seen { seen: 7, lost: 2 }));
        assert!(seen(&ledger(false)).unwrap_err().contains("does not balance"));
        assert!(seen("").unwrap_err().starts_with("the ledger of a user"));
        assert!(seen(r#"{"balanced":true}"#).unwrap_err().contains("does not tell"));
    }

    #[test]
    fn each_user_may_watch_and_looks_for_a_port_of_its_own() {
        let policy = policy(2);
        assert!(policy.contains("users = [41300, 41301]\ninterfaces = [\"server0\"]"), "{policy}");
        assert_eq!(line(1, ""), "rx server0 ring=4MB | ip | udp | dport |54 pcap /dev/null");
        assert!(line(0, "@thread0").ends_with("|53 pcap@thread0 /dev/null"));
    }
}
