//! A daemon at one end of a cable, whose policy opens the interface there to some users, and the
//! command as they start it.

use crate::observer::Observer;
use crate::privilege::for_everybody;
use crate::scratch::Scratch;
use crate::shared::chain;
use member::client::Client;
use member::protocol::{Program, Sharing};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use testkit::need;
use testkit::net::{Cable, Namespace, Pair, SERVER, SERVER_DEVICE, until};
use testkit::resources::{KernelObjects, Resources};

pub(crate) const ALICE: u32 = 41_101;
pub(crate) const BOB: u32 = 41_102;
pub(crate) const CAROL: u32 = 41_103;
pub(crate) const DAVE: u32 = 41_104;
/// The group of which bob is.
pub(crate) const WATCHERS: u32 = 41_200;

/// Alice, bob and dave may watch the interface, and carol may not.
pub(crate) const POLICY: &str = "
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
/// The folder in which users keep what outlives a run.
const STATE: &str = "state";
/// Asks the server for a page.
const REQUEST: &str = "exec 3<>/dev/tcp/$0/80
head='GET /small HTTP/1.1\\r\\nHost: x\\r\\nX-Mark: %s\\r\\nConnection: close\\r\\n\\r\\n'
printf \"$head\" \"$1\" >&3
cat <&3 >/dev/null";

/// A daemon at the server's end of a cable, with this policy.
pub(crate) struct House {
    pub(crate) pair: Pair,
    folder: Scratch,
    program: PathBuf,
    child: Mutex<Child>,
}

impl House {
    pub(crate) fn new(policy: &str) -> Option<Self> {
        let start = |space: &Namespace, _: &Path, words: &[String]| {
            let mut command = space.command(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("a daemon")
        };
        Self::with(policy, start)
    }

    /// With a daemon that somebody starts by these words, in this name space; the folder is the
    /// house's.
    pub(crate) fn with(
        policy: &str,
        start: impl FnOnce(&Namespace, &Path, &[String]) -> Child,
    ) -> Option<Self> {
        need::root()?;
        need::bpf()?;
        let pair = Pair::new(Cable::default())?;
        let folder = Scratch::new();
        fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).expect("our folder");
        let program = for_everybody(&folder);
        fs::create_dir(folder.path(STATE)).expect("a folder");
        let everybody = Permissions::from_mode(0o1777);
        fs::set_permissions(folder.path(STATE), everybody).expect("our folder");
        let file = folder.path("policy.toml");
        fs::write(&file, policy).expect("a file");
        let child = start(&pair.server, &folder.path(""), &words(&program, &folder));
        let house = Self { pair, folder, program, child: Mutex::new(child) };
        until("a daemon answers", || Client::at(&house.place()).is_ok());
        Some(house)
    }

    /// The words that start a daemon here.
    pub(crate) fn words(&self) -> Vec<String> {
        words(&self.program, &self.folder)
    }

    /// Another daemon is to run here.
    pub(crate) fn is(&self, daemon: Child) {
        *self.child() = daemon;
    }

    /// Another daemon runs here.
    pub(crate) fn is_run_by(&self, daemon: Child) {
        self.is(daemon);
        until("a daemon answers", || Client::at(&self.place()).is_ok());
    }

    /// Sends it a signal by which it ends, and waits for that.
    pub(crate) fn ends_by(&self, signal: &str) {
        let process = self.child().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().expect("kill").success());
        until("the daemon ends", || self.child().try_wait().expect("a child").is_some());
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self) -> PathBuf {
        self.folder.path("daemon")
    }

    /// The command as this user, at the server's end of the cable.
    pub(crate) fn command(&self, uid: u32) -> Command {
        self.command_in(uid, if uid == BOB { WATCHERS } else { uid })
    }

    /// The same as a member of a group.
    pub(crate) fn command_in(&self, uid: u32, gid: u32) -> Command {
        let mut command = self.pair.server.command(need::command("setpriv").expect("setpriv"));
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        command.args(["--clear-groups", "--inh-caps=-all"]).arg(&self.program);
        command.env("STREAMLINE_DAEMON", self.place());
        command.env("XDG_STATE_HOME", self.folder.path(STATE));
        command
    }

    /// Runs a line as this user, until it is in the program.
    pub(crate) fn run(&self, uid: u32, line: &str) -> Observer {
        self.run_by(self.command(uid), uid, line)
    }

    /// The same by a command of its own.
    pub(crate) fn run_by(&self, command: Command, uid: u32, line: &str) -> Observer {
        let before = self.lines(uid);
        let mut observer = Observer::spawn(command, line);
        until(&format!("{line} of {uid} runs"), || {
            observer.assert_runs();
            self.lines(uid) > before
        });
        observer
    }

    pub(crate) fn sharing(&self) -> Sharing {
        Client::at(&self.place()).and_then(|client| client.sharing()).expect("an answer")
    }

    /// Returns the one program at the interface.
    pub(crate) fn shared(&self) -> Program {
        let mut programs = self.sharing().programs;
        programs.retain(|program| program.interface == SERVER_DEVICE);
        assert_eq!(programs.len(), 1, "one program: {programs:?}");
        programs.into_iter().next().expect("one")
    }

    /// A request of a user who is at the server's end itself.
    pub(crate) fn request_of(&self, uid: u32, mark: &str) {
        let mut command = self.pair.server.command(need::command("setpriv").expect("setpriv"));
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
        command.args(["--clear-groups", "bash", "-c", REQUEST, SERVER, mark]);
        let output = command.output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the number of running lines of a user.
    pub(crate) fn lines(&self, uid: u32) -> usize {
        let programs = self.sharing().programs;
        let lines = programs.iter().flat_map(|program| &program.lines);
        lines.filter(|line| line.uid == uid).count()
    }

    /// Returns all that it leaves on the machine: objects of its daemon, at the interface, in its
    /// folder (with one part for persisted files), and of its users where anybody may make names.
    pub(crate) fn state(&self) -> Resources {
        let users = [ALICE, BOB, CAROL, DAVE];
        let daemon = Resources::of(self.child().id()).at(&self.pair);
        daemon.with(&self.folder.path("")).of_users(&users)
    }

    /// Returns the kernel's numbered objects that its daemon holds.
    pub(crate) fn numbered(&self) -> KernelObjects {
        KernelObjects::of(self.child().id())
    }

    /// Waits until all is as it was before users came, though the daemon runs, and nothing of what
    /// they had is left in the kernel.
    #[track_caller]
    pub(crate) fn is_as_before(&self, before: &Resources, numbered: &KernelObjects) {
        let mut looks = 0;
        until("the machine is as before", || {
            let now = self.state();
            let mut other = numbered.left();
            other.extend(now.beyond(before));
            other.extend(before.beyond(&now).into_iter().map(|what| format!("no more: {what}")));
            looks += 1;
            if looks % 200 == 0 {
                eprintln!("this is not as before: {}", other.join(", "));
            }
            other.is_empty()
        });
    }

    pub(crate) fn kill(&mut self) {
        self.child().kill().expect("a child");
        self.child().wait().expect("a child");
    }

    /// Asks it to end; nothing may remain.
    pub(crate) fn end(&mut self) {
        let process = self.child().id().to_string();
        assert!(Command::new("kill").arg(process).status().expect("kill").success());
        until("the daemon ends", || self.child().try_wait().expect("a child").is_some());
        assert!(!self.place().exists(), "nothing remains of it");
        until("no program remains", || chain(&self.pair).is_empty());
    }
}

fn words(program: &Path, folder: &Scratch) -> Vec<String> {
    let file = folder.path("policy.toml");
    let place = folder.path("daemon");
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let flags = ["daemon", "--socket", "--policy"].map(str::to_owned);
    let [daemon, socket, policy] = flags;
    vec![path(program), daemon, socket, path(&place), policy, path(&file)]
}

impl Drop for House {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child().kill();
        let _ = self.child().wait();
    }
}
