//! End-to-end tests of the daemon: paths of several users, and the state after processes are
//! killed. The tests run real processes of different users.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{ChildGuard, CommandResult, Folder};
use member::client::Client;
use member::protocol::{RegisterParameters, RegisteredPath as Listed};
use member::varlink::Call;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{need, wait_until};

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
const COUNT_REQUEST: &str = "generate rate=1000 | count";
/// A time limit that is long enough for a busy machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory that all users may enter, with a copy of the program and a subdirectory for a
/// daemon.
struct Fixture {
    folder: Folder,
    program: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = Folder::new();
        let program = folder.path().join("streamline");
        let built = env!("CARGO_BIN_EXE_streamline");
        if fs::hard_link(built, &program).is_err() {
            testkit::copy_program(Path::new(built), &program);
        }
        Self { folder, program }
    }

    fn daemon_dir(&self) -> PathBuf {
        self.folder.path().join("daemon")
    }

    /// Returns a command that runs the program as a user, with a separate home directory.
    fn command(&self, uid: u32, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.folder.path());
        self.set_environment(&mut command, uid);
        command
    }

    fn set_environment(&self, command: &mut Command, uid: u32) {
        let state = self.folder.path().join(format!("state-{uid}"));
        if !state.exists() {
            fs::create_dir(&state).unwrap();
            std::os::unix::fs::chown(&state, Some(uid), Some(uid)).unwrap();
        }
        command.env("STREAMLINE_DAEMON", self.daemon_dir()).env("XDG_STATE_HOME", state);
        command.env("NO_COLOR", "1").env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
        if uid != own_uid() {
            command.uid(uid).gid(uid);
        }
    }

    fn run(&self, uid: u32, words: &[&str]) -> CommandResult {
        CommandResult::from(self.command(uid, words).stdin(Stdio::null()).output().unwrap())
    }

    fn start_daemon(&self) -> Daemon {
        let place = self.daemon_dir();
        let words = ["daemon", "--socket", place.to_str().unwrap()];
        let mut command = self.command(own_uid(), &words);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let daemon = Daemon { child, place };
        wait_until("a daemon answers", || Client::connect_at(&daemon.place).is_ok());
        daemon
    }

    /// Starts a path in the background as a user, and returns its number.
    fn start_path(&self, uid: u32, name: &str) -> u32 {
        let ran = self.run(uid, &["start", name, COUNT_REQUEST]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        ran.out.trim().parse().unwrap()
    }
}

/// Environment variable with the daemon's directory for the child process that runs
/// [`child_process_occupies_connections`].
const DAEMON_DIR_VARIABLE: &str = "STREAMLINE_TEST_PLACE";

fn own_uid() -> u32 {
    sys::process::effective_ids().0
}

/// A running daemon. It and its paths are killed on drop.
struct Daemon {
    child: Child,
    place: PathBuf,
}

impl Daemon {
    fn list_paths(&self) -> Vec<Listed> {
        Client::connect_at(&self.place).unwrap().list_paths().unwrap()
    }

    fn path_process_id(&self, number: u32) -> Option<i32> {
        self.list_paths()
            .into_iter()
            .find(|path| path.number == number)
            .and_then(|path| path.process)
    }

    /// Stops the daemon with SIGTERM, and waits until it has exited. Returns true if the exit
    /// status is 0.
    fn stop_daemon(mut self) -> bool {
        signal_process(i32::try_from(self.child.id()).unwrap(), "TERM");
        self.child.wait().unwrap().success()
    }

    fn kill_daemon(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    /// Kills the remaining paths and the daemon, so that no process outlives its test.
    fn drop(&mut self) {
        if let Ok(client) = Client::connect_at(&self.place) {
            for path in client.list_paths().unwrap_or_default() {
                let _ = client.connect(&path.number.to_string()).and_then(|to| to.kill());
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal_process(process: i32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), process.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn is_alive(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A zombie counts as dead.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn p1_paths_are_controlled_by_their_owner_only() {
    if need::require_root().is_none() {
        return;
    }
    let fixture = Fixture::new();
    let no_daemon = fixture.run(ALICE, &["ps"]);
    assert_eq!(no_daemon.status, Some(3), "{no_daemon:?}");
    assert!(no_daemon.err.contains("streamline daemon --user"), "{no_daemon:?}");
    let daemon = fixture.start_daemon();
    let number = fixture.start_path(ALICE, "web");
    let taken = fixture.run(ALICE, &["start", "web", COUNT_REQUEST]);
    assert_eq!(taken.status, Some(1), "{taken:?}");
    assert!(taken.err.contains(" already has the name `web`"), "{taken:?}");
    let wrong = fixture.run(ALICE, &["start", "x", "nonsense | count"]);
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    assert!(wrong.err.contains("no filter is called `nonsense`"), "{wrong:?}");
    assert!(fixture.start_path(BOB, "web") != number, "names are each user's own");
    for name in ["../../../elsewhere", "12", "-x", ""] {
        let wrong = fixture.run(ALICE, &["start", &format!("--as={name}"), COUNT_REQUEST]);
        assert_eq!(wrong.status, Some(2), "{name}: {wrong:?}");
    }
    let twice = fixture.run(ALICE, &["start", "--as=one", "other", COUNT_REQUEST]);
    assert_eq!(twice.status, Some(2), "{twice:?}");
    assert!(twice.err.contains("two names, `--as one` and `other`"), "{twice:?}");
    let taken = fixture.run(ALICE, &["start", "--as=web", COUNT_REQUEST]);
    assert_eq!(taken.status, Some(1), "`--as` gives the name, too: {taken:?}");

    let listed_path = |uid: u32| -> Value {
        let ran = fixture.run(uid, &["ps", "--json"]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let list: Value = serde_json::from_str(&ran.out).unwrap();
        let paths = list["paths"].as_array().unwrap();
        paths.iter().find(|path| path["number"] == number).cloned().unwrap()
    };
    // The query is repeated, because a path may not reply in time on a busy machine.
    wait_until("it is seen to run", || {
        let own = listed_path(ALICE);
        own["state"] == "running" && own["rate"]["blocks"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    let (own, other, root) = (listed_path(ALICE), listed_path(BOB), listed_path(0));
    assert_eq!(own["line"], COUNT_REQUEST);
    assert_eq!((&other["name"], &other["state"]), (&"web".into(), &"hidden".into()));
    let hidden = ["line", "process", "log", "counters"];
    assert!(hidden.iter().all(|key| other[key].is_null()), "{other}");
    assert_eq!((&root["line"], &root["uid"]), (&COUNT_REQUEST.into(), &ALICE.into()));

    let number_text = number.to_string();
    for words in [["stop", &number_text], ["attach", &number_text], ["top", &number_text]] {
        let refused = fixture.run(BOB, &words);
        assert_eq!(refused.status, Some(1), "{words:?}: {refused:?}");
        assert!(refused.err.contains("belongs to user 41001"), "{words:?}: {refused:?}");
    }
    let stopped = fixture.run(ALICE, &["stop", "web"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
    assert!(stopped.err.contains("none lost"), "{stopped:?}");
    let gone = fixture.run(ALICE, &["stop", &number_text]);
    assert_eq!(gone.status, Some(3), "{gone:?}");
    let root = fixture.run(0, &["stop", "--kill", &format!("{BOB}/web")]);
    assert_eq!(root.status, Some(0), "{root:?}");
    wait_until("the register is empty", || daemon.list_paths().is_empty());
    let place = daemon.place.clone();
    assert!(daemon.stop_daemon());
    assert!(!place.exists(), "nothing remains");
}

#[test]
fn t10_killed_path_is_unregistered_and_others_stay() {
    if need::require_root().is_none() {
        return;
    }
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let (one, other) = (fixture.start_path(ALICE, "one"), fixture.start_path(BOB, "other"));
    let process = daemon.path_process_id(one).unwrap();
    signal_process(process, "KILL");
    wait_until("the path has gone", || daemon.list_paths().iter().all(|path| path.number != one));
    assert!(is_alive(daemon.path_process_id(other).unwrap()));
    // A stopped path is reported as silent.
    let process = daemon.path_process_id(other).unwrap();
    signal_process(process, "STOP");
    let ran = fixture.run(BOB, &["ps"]);
    assert!(ran.status == Some(0) && ran.out.contains("silent"), "{ran:?}");
    let killed = fixture.run(BOB, &["stop", "--kill", "other"]);
    assert_eq!(killed.status, Some(0), "{killed:?}");
    wait_until("the register is empty", || daemon.list_paths().is_empty());
}

#[test]
fn t10_programs_of_a_killed_path_are_killed() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let request = "generate rate=10 | exec \"sleep 1000 & sleep 1001\" | discard";
    let ran = fixture.run(BOB, &["start", "programs", request]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let number = ran.out.trim().parse().unwrap();
    let path = daemon.path_process_id(number).unwrap();
    let children = |of: i32| -> Vec<i32> {
        let listed = Command::new("pgrep").args(["-P", &of.to_string()]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).lines().map(|id| id.parse().unwrap()).collect()
    };
    let mut programs = Vec::new();
    wait_until("its program has started others", || {
        programs = children(path);
        programs =
            programs.iter().flat_map(|shell| children(*shell)).chain(programs.clone()).collect();
        programs.len() > 1
    });
    let killed = fixture.run(BOB, &["stop", "--kill", "programs"]);
    assert_eq!(killed.status, Some(0), "{killed:?}");
    wait_until("its programs have ended", || !programs.iter().any(|id| is_alive(*id)));
}

#[test]
fn t10_paths_outlive_their_daemon_and_register_again() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let number = fixture.start_path(own_uid(), "web");
    let process = daemon.path_process_id(number).unwrap();
    daemon.kill_daemon();
    assert!(fixture.daemon_dir().exists(), "who is killed cleans nothing up");
    let next = fixture.start_daemon();
    wait_until("the path has registered again", || next.path_process_id(number) == Some(process));
    let stopped = fixture.run(own_uid(), &["stop", "web"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
    let place = next.place.clone();
    assert!(next.stop_daemon());
    assert!(!place.join("io.streamline").exists() && !place.join("lock").exists());
}

#[test]
fn t10_name_of_an_ended_path_is_free_in_any_event_order() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let process = daemon.path_process_id(fixture.start_path(own_uid(), "web")).unwrap();
    let packets = fixture.daemon_dir().join("io.streamline.packets");
    let socket =
        sys::local_socket::connect_to(&packets, sys::local_socket::Framing::Packets, LONG_TIMEOUT)
            .unwrap();
    let receive_reply = || {
        let mut answer = vec![0; 1 << 16];
        let (length, _) = sys::descriptor::receive(&socket, &mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    sys::descriptor::send(&socket, b"{\"method\":\"io.streamline.About\"}", &[]).unwrap();
    assert!(receive_reply().contains("version"));
    // While the daemon is stopped, events accumulate. When it continues, it handles the new client
    // before the end of the old one.
    let number = i32::try_from(daemon.child.id()).unwrap();
    signal_process(number, "STOP");
    wait_until("the daemon stands still", || {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    let (_daemon_end, path_end) = sys::descriptor::socket_pair().unwrap();
    let (name, line) = (Some("web".to_owned()), COUNT_REQUEST.to_owned());
    let register = RegisterParameters { name, line, ..RegisterParameters::default() };
    let call = Call::new("io.streamline.Register", &register).to_bytes();
    sys::descriptor::send(&socket, &call, &[path_end.as_fd()]).unwrap();
    signal_process(process, "KILL");
    wait_until("the path has ended", || !is_alive(process));
    signal_process(number, "CONT");
    let reply = receive_reply();
    assert!(reply.contains("\"number\""), "{reply}");
    // The registered process is this test, so the path is unregistered before `Daemon` kills all
    // paths.
    drop(socket);
    wait_until("the register is empty", || daemon.list_paths().is_empty());
}

#[test]
fn t12_one_user_cannot_occupy_all_connections() {
    if need::require_root().is_none() {
        return;
    }
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let test = fixture.folder.path().join("test");
    let own = std::env::current_exe().unwrap();
    if fs::hard_link(&own, &test).is_err() {
        testkit::copy_program(&own, &test);
    }
    let mut greedy = Command::new(test);
    greedy.args(["--ignored", "--exact", "--nocapture", "child_process_occupies_connections"]);
    greedy
        .env(DAEMON_DIR_VARIABLE, fixture.daemon_dir())
        .uid(ALICE)
        .gid(ALICE)
        .current_dir(fixture.folder.path());
    let greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut greedy = ChildGuard(greedy.spawn().unwrap());
    let lines = std::io::BufReader::new(greedy.0.stdout.take().unwrap()).lines();
    let refused = lines.map_while(Result::ok).find(|line| line.ends_with(" refused"));
    assert_eq!(refused.as_deref(), Some("236 refused"), "64 of 300 were let in");
    let shut = fixture.run(ALICE, &["ps"]);
    assert!(shut.status == Some(1) && shut.err.contains("connections"), "{shut:?}");
    let other = fixture.run(BOB, &["ps"]);
    assert_eq!(other.status, Some(0), "{other:?}");
    drop(greedy);
    wait_until("there is room again", || fixture.run(ALICE, &["ps"]).status == Some(0));
    drop(daemon);
}

/// The separate process of a test: opens 300 connections to the daemon, prints the number of
/// refused connections, and keeps all of them open until the process is killed.
#[test]
#[ignore = "the other process of a test"]
fn child_process_occupies_connections() {
    let Some(place) = std::env::var_os(DAEMON_DIR_VARIABLE) else { return };
    let packets = Path::new(&place).join("io.streamline.packets");
    let mut all = Vec::new();
    let mut refused = 0;
    for _ in 0..300 {
        let socket = sys::local_socket::connect_to(
            &packets,
            sys::local_socket::Framing::Packets,
            LONG_TIMEOUT,
        )
        .unwrap();
        // A refused client receives an error and is disconnected, so the send may fail.
        let _ = sys::descriptor::send(&socket, b"{\"method\":\"io.streamline.About\"}", &[]);
        let mut answer = [0; 4096];
        let length = sys::descriptor::receive(&socket, &mut answer).map_or(0, |(n, _)| n);
        let text = String::from_utf8_lossy(&answer[..length]);
        refused += u32::from(!text.contains("version"));
        all.push(socket);
    }
    println!("\n{refused} refused");
    // Blocks until the process is killed.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn run_is_registered_unless_embedded() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let path = |words: &[&str]| {
        let mut command = fixture.command(own_uid(), words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut embedded = path(&["run", "--embedded", "-q", COUNT_REQUEST]);
    let mut named = path(&["run", "--as", "mine", "-q", COUNT_REQUEST]);
    wait_until("the run is registered", || daemon.list_paths().len() == 1);
    assert_eq!(daemon.list_paths()[0].name.as_deref(), Some("mine"));

    let picture = fixture.run(own_uid(), &["top", "--once", "mine"]);
    assert_eq!(picture.status, Some(0), "{picture:?}");
    let lines: Vec<&str> = picture.out.lines().collect();
    assert!(
        lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80),
        "{picture:?}"
    );
    for part in ["path 1 mine of", COUNT_REQUEST, "ns/block", "\ngenerate ", "\ncount ", "lost 0"] {
        assert!(picture.out.contains(part), "{part}: {picture:?}");
    }
    wait_until("it is seen to be fast", || {
        let picture = fixture.run(own_uid(), &["top", "--once", "--json", "mine"]);
        let picture: Value = serde_json::from_str(&picture.out).unwrap();
        picture["rate"]["blocks"].as_f64().is_some_and(|rate| rate > 0.0)
    });

    let set = fixture.run(own_uid(), &["set", "mine", "insert", "eth", "after", "generate"]);
    assert_eq!(set.status, Some(0), "{set:?}");
    assert!(set.out.contains(": lost 0, duplicated 0, reordered 0, paused "), "{set:?}");
    let changed = "generate rate=1000 | eth | count";
    assert_eq!(daemon.list_paths()[0].line.as_deref(), Some(changed));
    let picture = fixture.run(own_uid(), &["top", "--once", "mine"]);
    assert!(picture.out.contains(changed) && picture.out.contains("\neth "), "{picture:?}");
    let wrong = fixture.run(own_uid(), &["set", "mine", "remove", "nothing"]);
    assert!(wrong.status == Some(2) && wrong.err.contains("runs as before"), "{wrong:?}");
    // The message about a mistake in the edited request contains the position, on separate lines.
    let words = ["set", "mine", "replace", "eth", "with", "dport |99999999 hist"];
    let wrong = fixture.run(own_uid(), &words);
    let before = "  generate rate=1000 | dport |".len();
    let place = format!("\n{}^^^^^^^^", " ".repeat(before));
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    assert!(wrong.err.contains(&place) && !wrong.err.contains('\u{fffd}'), "{wrong:?}");

    // `attach` exits with the status of the path.
    let mut follower = fixture.command(own_uid(), &["attach", "mine"]);
    let mut follower =
        follower.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stopped = fixture.run(own_uid(), &["stop", "mine"]);
    assert!(stopped.status == Some(0) && stopped.err.contains("none lost"), "{stopped:?}");
    assert!(named.wait().unwrap().success());
    // If `attach` connects too late, it reports that the path has ended.
    let followed = follower.wait().unwrap().code();
    let mut stderr = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let has_followed = followed == Some(0) && stderr.contains("none lost");
    assert!(
        has_followed || stderr.contains("no path is called") || stderr.contains("ended"),
        "{stderr}"
    );
    wait_until("nothing is registered", || daemon.list_paths().is_empty());
    embedded.kill().unwrap();
    embedded.wait().unwrap();
}

#[test]
fn v9_tap_starts_with_the_retained_blocks_of_a_path() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let line = "generate seq=yes rate=2000 | count";
    let mut path = fixture.command(own_uid(), &["run", "--as", "past", "--history=8M", "-q", line]);
    path.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut path = path.spawn().unwrap();
    wait_until("the run is registered", || daemon.list_paths().len() == 1);
    let given = || {
        let path = Client::connect_at(&fixture.daemon_dir()).unwrap().connect("past").unwrap();
        path.counters().unwrap().sources.first().map_or(0, |source| source.given.blocks)
    };
    wait_until("some have come", || given() > 200);
    // The request reads past frames first, and then current ones.
    let words = ["tap", "past", "--from=block:100", "pcap seen.pcap"];
    let mut tap = fixture.command(own_uid(), &words);
    let mut tap = tap.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let file = fixture.folder.path().join("seen.pcap");
    let frames = || fs::read(&file).map_or(0, |bytes| bytes.len().saturating_sub(24) / (16 + 64));
    wait_until("past and present are there", || frames() > 300);
    signal_process(tap.id().try_into().unwrap(), "INT");
    assert!(tap.wait().unwrap().success());
    let mut stderr = String::new();
    tap.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("tap at past begins at block 100, "), "{stderr}");
    assert!(stderr.contains("of the past") && stderr.contains("tap: "), "{stderr}");
    let bytes = fs::read(&file).unwrap();
    let numbers = bytes[24..]
        .chunks_exact(16 + 64)
        .map(|record| u64::from_be_bytes(record[16 + 42..16 + 50].try_into().unwrap()));
    let count = frames() as u64;
    assert!(numbers.eq(100..100 + count), "once and in order");
    for (words, why) in [
        (["tap", "past:nothing", "count"], "the request has no `nothing`"),
        (["tap", "past:count:2", "count"], "the request has 1 of `count`"),
        (["tap", "other", "count"], "no path is called `other`"),
    ] {
        let refused = fixture.run(own_uid(), &words);
        assert!(refused.status != Some(0) && refused.err.contains(why), "{refused:?}");
    }
    let stopped = fixture.run(own_uid(), &["stop", "past"]);
    assert!(stopped.status == Some(0) && stopped.err.contains("none lost"), "{stopped:?}");
    assert!(path.wait().unwrap().success());
}

#[test]
fn service_manager_passes_sockets_and_is_notified() {
    let fixture = Fixture::new();
    let place = fixture.daemon_dir();
    fs::create_dir(&place).unwrap();
    let stream = UnixListener::bind(place.join("io.streamline")).unwrap();
    let manager = fixture.folder.path().join("notify");
    let notified = UnixDatagram::bind(&manager).unwrap();
    notified.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; \
                  exec \"$0\" daemon --socket \"$1\"";
    command.args(["-c", script]).arg(&fixture.program).arg(&place);
    fixture.set_environment(&mut command, own_uid());
    command.env("NOTIFY_SOCKET", &manager).stdout(Stdio::null()).stderr(Stdio::null());
    // The call is sent to the passed socket before the daemon starts.
    let mut early = UnixStream::connect(place.join("io.streamline")).unwrap();
    early.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    early.write_all(b"{\"method\":\"io.streamline.List\"}\0").unwrap();
    let child = command.stdin(Stdio::from(OwnedFd::from(stream))).spawn().unwrap();
    let mut child = ChildGuard(child);
    let receive_notification = |notified: &UnixDatagram| {
        let mut bytes = [0; 999];
        let length = notified.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(receive_notification(&notified).starts_with("READY=1\n"));
    let mut answer = [0; 27];
    early.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"{\"parameters\":{\"paths\":[]}}");
    signal_process(i32::try_from(child.0.id()).unwrap(), "TERM");
    assert!(receive_notification(&notified).starts_with("STOPPING=1"));
    assert!(child.0.wait().unwrap().success());
    assert!(place.join("io.streamline").exists(), "the socket is the manager's");
    assert!(!place.join("lock").exists());
}

/// Measures the time from the kill of a path's process until the daemon has unregistered the path.
#[test]
#[ignore = "a measurement: cargo test -p streamline-cli --test shared -- --ignored --nocapture"]
fn t10_killed_path_is_unregistered_within_the_time_limit() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let mut times = Vec::new();
    for _ in 0..20 {
        let number = fixture.start_path(own_uid(), "web");
        let process = daemon.path_process_id(number).unwrap();
        let handle = sys::local_socket::open_pidfd(process).unwrap();
        let client = Client::connect_at(&daemon.place).unwrap();
        let begin = Instant::now();
        sys::local_socket::kill(&handle).unwrap();
        while !client.list_paths().unwrap().is_empty() {}
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!("killed paths are gone after {:?} (median), {:?} (most)", times[10], times[19]);
    assert!(times[19] < Duration::from_millis(100), "{times:?}");
}

/// Opens and closes 100,000 connections. Afterwards, the daemon has at most one descriptor more
/// than before.
#[test]
#[ignore = "takes a minute: cargo test -p streamline-cli --test shared -- --ignored"]
fn t8_hundred_thousand_connections_leak_no_descriptor() {
    let fixture = Fixture::new();
    let daemon = fixture.start_daemon();
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count();
    let before = open();
    let packets = daemon.place.join("io.streamline.packets");
    for number in 0..100_000 {
        let form = sys::local_socket::Framing::Packets;
        let socket =
            sys::local_socket::connect_to(Path::new(&packets), form, LONG_TIMEOUT).unwrap();
        if number % 3 == 0 {
            let _ = sys::descriptor::send(&socket, b"{\"method\":", &[]);
        }
    }
    assert_eq!(daemon.list_paths(), []);
    wait_until("all have left", || open() <= before + 1);
}
