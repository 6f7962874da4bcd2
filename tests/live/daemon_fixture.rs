//! A daemon at the server's end of a veth pair, and commands that users run. The daemon's policy
//! permits some users to observe the interface.

use crate::observer::Observer;
use crate::privilege::copy_program_for_every_user;
use crate::scratch::Scratch;
use crate::shared_program::attached_program_ids;
use member::client::Client;
use member::protocol::{KernelProgram, KernelPrograms};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use testkit::need;
use testkit::net::{
    DevicePairSettings, Namespace, NamespacePair, SERVER, SERVER_DEVICE, wait_until,
};
use testkit::resources::{KernelObjects, Resources};

pub(crate) const ALICE_UID: u32 = 41_101;
pub(crate) const BOB_UID: u32 = 41_102;
pub(crate) const CAROL_UID: u32 = 41_103;
pub(crate) const DAVE_UID: u32 = 41_104;
/// Group id of the group to which Bob belongs.
pub(crate) const WATCHERS_GID: u32 = 41_200;

/// Policy under which Alice, Bob and Dave may observe the interface, and Carol may not.
pub(crate) const DAEMON_POLICY: &str = "
others-see = \"names\"
[[open]]
users = [41101, 41104]
interfaces = [\"server0\"]
[[open]]
groups = [41200]
interfaces = [\"server0\"]
[users.41104]
rings = 4
";
/// Number of sockets on which a daemon listens for connections.
const LISTENING_SOCKETS: u64 = 2;
/// The directory where users' processes persist their files (`XDG_STATE_HOME`).
const STATE_DIRECTORY: &str = "state";
/// A shell script that requests a page from the server.
const REQUEST_SCRIPT: &str = "exec 3<>/dev/tcp/$0/80
head='GET /small HTTP/1.1\\r\\nHost: x\\r\\nX-Mark: %s\\r\\nConnection: close\\r\\n\\r\\n'
printf \"$head\" \"$1\" >&3
cat <&3 >/dev/null";

/// Fixture of a daemon with a given policy, at the server's end of a veth pair.
pub(crate) struct DaemonFixture {
    pub(crate) pair: NamespacePair,
    folder: Scratch,
    program: PathBuf,
    child: Mutex<Child>,
}

impl DaemonFixture {
    pub(crate) fn new(policy: &str) -> Option<Self> {
        let start = |space: &Namespace, _: &Path, words: &[String]| {
            let mut command = space.command(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("a daemon")
        };
        Self::with_daemon_started_by(policy, start)
    }

    /// Creates the fixture with the daemon that `start` starts. `start` receives the namespace, the
    /// fixture's directory and the daemon's arguments. Reports a skip and returns `None` without
    /// the required privileges.
    pub(crate) fn with_daemon_started_by(
        policy: &str,
        start: impl FnOnce(&Namespace, &Path, &[String]) -> Child,
    ) -> Option<Self> {
        need::require_root()?;
        need::require_bpf()?;
        let pair = NamespacePair::new(DevicePairSettings::default())?;
        let folder = Scratch::new();
        fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).expect("our folder");
        let program = copy_program_for_every_user(&folder);
        fs::create_dir(folder.path(STATE_DIRECTORY)).expect("a folder");
        let everybody = Permissions::from_mode(0o1777);
        fs::set_permissions(folder.path(STATE_DIRECTORY), everybody).expect("our folder");
        let file = folder.path("policy.toml");
        fs::write(&file, policy).expect("a file");
        let child = start(&pair.server, &folder.path(""), &daemon_arguments(&program, &folder));
        let fixture = Self { pair, folder, program, child: Mutex::new(child) };
        wait_until("a daemon answers", || Client::connect_at(&fixture.daemon_directory()).is_ok());
        Some(fixture)
    }

    /// Returns the command line that starts a daemon in this fixture.
    pub(crate) fn daemon_arguments(&self) -> Vec<String> {
        daemon_arguments(&self.program, &self.folder)
    }

    /// Registers another process as the fixture's daemon, without waiting until it replies.
    pub(crate) fn replace_daemon(&self, daemon: Child) {
        *self.lock_daemon() = daemon;
    }

    /// Replaces the daemon's process, and waits until the new process replies.
    pub(crate) fn replace_daemon_and_wait(&self, daemon: Child) {
        self.replace_daemon(daemon);
        wait_until("a daemon answers", || Client::connect_at(&self.daemon_directory()).is_ok());
    }

    /// Sends the daemon a signal, and waits for its exit.
    pub(crate) fn signal_daemon_and_wait(&self, signal: &str) {
        let process = self.lock_daemon().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().expect("kill").success());
        wait_until("the daemon ends", || self.lock_daemon().try_wait().expect("a child").is_some());
    }

    fn lock_daemon(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn daemon_directory(&self) -> PathBuf {
        self.folder.path("daemon")
    }

    /// Returns the `streamline` command run by a user at the server's end of the veth pair.
    pub(crate) fn command(&self, uid: u32) -> Command {
        self.command_with_group(uid, if uid == BOB_UID { WATCHERS_GID } else { uid })
    }

    /// Returns the `streamline` command run by a user with the given group.
    pub(crate) fn command_with_group(&self, uid: u32, gid: u32) -> Command {
        let mut command =
            self.pair.server.command(need::require_command("setpriv").expect("setpriv"));
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        command.args(["--clear-groups", "--inh-caps=-all"]).arg(&self.program);
        command.env("STREAMLINE_DAEMON", self.daemon_directory());
        command.env("XDG_STATE_HOME", self.folder.path(STATE_DIRECTORY));
        command
    }

    /// Runs a request as a user. Returns when the filters of the request are part of the kernel
    /// program.
    pub(crate) fn run_request(&self, uid: u32, line: &str) -> Observer {
        self.run_command(self.command(uid), uid, line)
    }

    /// Runs a request with the given command.
    pub(crate) fn run_command(&self, command: Command, uid: u32, line: &str) -> Observer {
        let before = self.running_request_count(uid);
        let mut observer = Observer::spawn(command, line);
        wait_until(&format!("{line} of {uid} runs"), || {
            observer.assert_running();
            self.running_request_count(uid) > before
        });
        observer
    }

    pub(crate) fn shared_programs(&self) -> KernelPrograms {
        Client::connect_at(&self.daemon_directory())
            .and_then(|client| client.kernel_programs())
            .expect("an answer")
    }

    /// Returns the only kernel program at the interface.
    pub(crate) fn shared_program(&self) -> KernelProgram {
        let mut programs = self.shared_programs().programs;
        programs.retain(|program| program.interface == SERVER_DEVICE);
        assert_eq!(programs.len(), 1, "one program: {programs:?}");
        programs.into_iter().next().expect("one")
    }

    /// Sends an HTTP request with a mark from a process of the given user at the server's end.
    pub(crate) fn send_request_as(&self, uid: u32, mark: &str) {
        let mut command =
            self.pair.server.command(need::require_command("setpriv").expect("setpriv"));
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
        command.args(["--clear-groups", "bash", "-c", REQUEST_SCRIPT, SERVER, mark]);
        let output = command.output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the number of running requests of a user.
    pub(crate) fn running_request_count(&self, uid: u32) -> usize {
        let programs = self.shared_programs().programs;
        let lines = programs.iter().flat_map(|program| &program.lines);
        lines.filter(|line| line.uid == uid).count()
    }

    /// Returns the resources that the daemon and its users occupy: the daemon's descriptors, memory
    /// and threads, the programs at the interface, the entries of the fixture's directory
    /// (persisted files count as one), and users' files in public directories. Omits the threads
    /// that close descriptors, each of which exits after ten seconds without work.
    pub(crate) fn resources(&self) -> Resources {
        let users = [ALICE_UID, BOB_UID, CAROL_UID, DAVE_UID];
        let daemon = Resources::of_process(self.lock_daemon().id()).with_programs_at(&self.pair);
        let daemon = daemon.with_files_in(&self.folder.path("")).with_files_of_users(&users);
        daemon.without("thread closer")
    }

    /// Waits until the daemon has no client. Then returns the resources that
    /// [`resources`](Self::resources) counts.
    pub(crate) fn resources_without_clients(&self) -> Resources {
        let mut resources = Resources::default();
        wait_until("the daemon has no client", || {
            resources = self.resources();
            // A thread that has just started has the name of the program.
            resources.amount("descriptor socket") == LISTENING_SOCKETS
                && resources.amount("thread streamline") == 1
        });
        resources
    }

    /// Returns the kernel objects with ids (maps, programs, links) that the daemon holds.
    pub(crate) fn kernel_objects(&self) -> KernelObjects {
        KernelObjects::of_process(self.lock_daemon().id())
    }

    /// Waits until all requests have released their resources. `before` contains the resources that
    /// were counted before the requests; the same resources must remain. None of the kernel objects
    /// in `numbered` may exist any longer.
    #[track_caller]
    pub(crate) fn assert_resources_restored(&self, before: &Resources, numbered: &KernelObjects) {
        let mut looks = 0;
        wait_until("the machine is as before", || {
            let now = self.resources();
            let mut other = numbered.remaining_objects();
            other.extend(now.excess_over(before));
            other.extend(
                before.excess_over(&now).into_iter().map(|what| format!("no more: {what}")),
            );
            // The file of the next id is the only state that outlives requests.
            other.retain(|what| !what.ends_with("daemon/ids: 0 and now 1"));
            looks += 1;
            if looks % 200 == 0 {
                eprintln!("this is not as before: {}", other.join(", "));
            }
            other.is_empty()
        });
    }

    pub(crate) fn kill(&mut self) {
        self.lock_daemon().kill().expect("a child");
        self.lock_daemon().wait().expect("a child");
    }

    /// Stops the daemon. Asserts that it leaves no program attached and no file, except the file
    /// with the next id, which remains while a process still has ids.
    pub(crate) fn stop(&mut self) {
        let process = self.lock_daemon().id().to_string();
        assert!(Command::new("kill").arg(process).status().expect("kill").success());
        wait_until("the daemon ends", || self.lock_daemon().try_wait().expect("a child").is_some());
        let remains = fs::read_dir(self.daemon_directory()).into_iter().flatten();
        let remains: Vec<_> = remains.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(remains.is_empty() || remains == ["ids"], "{remains:?}");
        wait_until("no program remains", || attached_program_ids(&self.pair).is_empty());
    }
}

fn daemon_arguments(program: &Path, folder: &Scratch) -> Vec<String> {
    let file = folder.path("policy.toml");
    let place = folder.path("daemon");
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let flags = ["daemon", "--socket", "--policy"].map(str::to_owned);
    let [daemon, socket, policy] = flags;
    vec![path(program), daemon, socket, path(&place), policy, path(&file)]
}

impl Drop for DaemonFixture {
    fn drop(&mut self) {
        // It has ended already if the test succeeded.
        let _ = self.lock_daemon().kill();
        let _ = self.lock_daemon().wait();
    }
}
