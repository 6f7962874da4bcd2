//! `streamline` in a name space: started, attached, ended, and what it said.

use crate::scratch::Scratch;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use testkit::net::{Namespace, until, watches};

/// A process that observes, in a folder of its own.
pub(crate) struct Observer {
    child: Child,
    folder: Option<Scratch>,
}

/// The end of an observer.
pub(crate) struct Ran {
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
    /// The object of `--json`.
    pub(crate) ledger: Value,
    folder: Scratch,
}

impl Observer {
    /// Starts the line in this name space, and waits until it sees frames.
    pub(crate) fn start(space: &Namespace, line: &str) -> Self {
        Self::attached(space, |program| space.command(program), line)
    }

    /// Starts the line with these options in this name space, and waits until it sees frames.
    pub(crate) fn given(space: &Namespace, options: &[&str], line: &str) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        let command = space.command(program());
        let mut observer = Self::begin_with(command, options, line, (out.into(), folder));
        observer.until_attached(space, line);
        observer
    }

    /// Starts the line by the command that `make` makes of the program's path, and waits until it
    /// sees frames in this name space.
    pub(crate) fn attached(
        space: &Namespace,
        make: impl FnOnce(&Path) -> Command,
        line: &str,
    ) -> Self {
        let mut observer = Self::spawn(make(program()), line);
        observer.until_attached(space, line);
        observer
    }

    /// As [`Observer::start`], with what it writes to standard output in a pipe.
    pub(crate) fn piped(space: &Namespace, line: &str) -> (Self, ChildStdout) {
        let folder = Scratch::new();
        let mut observer = Self::begin(space.command(program()), line, Stdio::piped(), folder);
        let out = observer.child.stdout.take().expect("a pipe");
        observer.until_attached(space, line);
        (observer, out)
    }

    /// As [`Observer::start`], for a line that takes the frames of this device.
    pub(crate) fn taking(space: &Namespace, device: &str, line: &str) -> Self {
        Self::taking_given(space, device, &[], line)
    }

    /// The same with these options.
    pub(crate) fn taking_given(
        space: &Namespace,
        device: &str,
        options: &[&str],
        line: &str,
    ) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        let command = space.command(program());
        let mut observer = Self::begin_with(command, options, line, (out.into(), folder));
        until(line, || {
            observer.assert_runs();
            is_taken(space, device)
        });
        observer
    }

    fn until_attached(&mut self, space: &Namespace, line: &str) {
        until(line, || {
            self.assert_runs();
            watches(space, self.child.id())
        });
    }

    /// Starts the line by this command, and waits for nothing.
    pub(crate) fn spawn(command: Command, line: &str) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        Self::begin(command, line, out.into(), folder)
    }

    fn begin(command: Command, line: &str, out: Stdio, folder: Scratch) -> Self {
        Self::begin_with(command, &[], line, (out, folder))
    }

    fn begin_with(
        mut command: Command,
        options: &[&str],
        line: &str,
        (out, folder): (Stdio, Scratch),
    ) -> Self {
        // Who runs it may be nobody.
        let everybody = Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(""), everybody).expect("our folder");
        command.args(["run", "--json", "--report=report"]).args(options).arg(line);
        command.current_dir(folder.path(""));
        command.env("TZ", "UTC").env("NO_COLOR", "1");
        let err = File::create(folder.path("err")).expect("a file");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, folder: Some(folder) }
    }

    /// Returns the path of a file that the line names.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("until it has ended").path(name)
    }

    /// Waits until a file that the line names is so long.
    pub(crate) fn until_written(&mut self, name: &str, length: u64) {
        let path = self.path(name);
        until(&format!("{} is of {length} bytes", path.display()), || {
            self.assert_runs();
            fs::metadata(&path).is_ok_and(|file| file.len() >= length)
        });
    }

    /// Waits until a signal has stopped it.
    pub(crate) fn until_stopped(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        until("it is stopped", || {
            fs::read_to_string(&status).is_ok_and(|told| told.contains("State:\tT"))
        });
    }

    /// Returns true if it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub(crate) fn assert_runs(&mut self) {
        let runs = self.runs();
        assert!(runs, "it ended: {}", text(&self.path("err")));
    }

    /// The most memory that it had until now, in bytes.
    pub(crate) fn resident_max(&self) -> u64 {
        let status = text(Path::new(&format!("/proc/{}/status", self.child.id())));
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("it runs") * 1024
    }

    /// Returns true if it has a map of this kind, by the kernel's number.
    pub(crate) fn has_map(&self, kind: u32) -> bool {
        let folder = fs::read_dir(format!("/proc/{}/fdinfo", self.child.id()));
        let wanted = format!("map_type:\t{kind}\n");
        folder.into_iter().flatten().flatten().any(|entry| text(&entry.path()).contains(&wanted))
    }

    /// Its number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &process]).status();
        assert!(sent.expect("kill").success());
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(self) -> Ran {
        self.signal("INT");
        self.wait()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(mut self) -> Ran {
        until("the observer ends", || !self.runs());
        let status = self.child.wait().expect("a child").code();
        let folder = self.folder.take().expect("until it has ended");
        let out = fs::read(folder.path("out")).unwrap_or_default();
        let err = text(&folder.path("err"));
        let ledger = serde_json::from_str(&text(&folder.path("report"))).unwrap_or_default();
        Ran { out, err, status, ledger, folder }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(folder) = &self.folder {
            eprintln!("it wrote: {}", text(&folder.path("err")));
        }
    }
}

impl Ran {
    /// It ended well, and its ledger balances.
    #[track_caller]
    pub(crate) fn assert_well(&self) {
        assert_eq!(self.status, Some(0), "{}\n{}", self.err, self.ledger);
        assert_eq!(self.ledger["balanced"], true, "{}\n{}", self.err, self.ledger);
    }

    /// It ended well, its ledger balances, and nothing was lost.
    #[track_caller]
    pub(crate) fn assert_whole(&self) {
        self.assert_well();
        assert_eq!(self.ledger["lost"], 0, "{}\n{}", self.err, self.ledger);
    }

    /// Returns the report of its only source.
    pub(crate) fn source(&self) -> Source {
        let sources = self.ledger["sources"].as_array().expect("an object of the ledger");
        assert_eq!(sources.len(), 1, "{}", self.ledger);
        let source = &sources[0];
        let blocks = |amount: &Value| amount["blocks"].as_u64();
        let dropped = source["dropped"].as_object().expect("an object");
        let dropped = dropped.iter().map(|(place, number)| (place.clone(), number.as_u64()));
        Source {
            seen: blocks(&source["seen"]),
            given: blocks(&source["given"]).expect("a number"),
            dropped: dropped.collect(),
        }
    }

    /// Returns the path of a file that the line names.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// A file that the line wrote.
    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}: {}", path.display(), self.err))
    }

    /// The frames in a capture that the line wrote, in their order.
    pub(crate) fn frames(&self, name: &str) -> Vec<Vec<u8>> {
        crate::send::frames_of(&self.file(name))
    }
}

/// A source in the ledger, in blocks.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) seen: Option<u64>,
    pub(crate) given: u64,
    /// Losses by place; `None` for a counter that cannot be read.
    pub(crate) dropped: Vec<(String, Option<u64>)>,
}

impl Source {
    /// All that it says was dropped.
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.iter().filter_map(|(_, number)| *number).sum()
    }

    /// Returns the losses at a place.
    pub(crate) fn at(&self, place: &str) -> Option<u64> {
        self.dropped.iter().find(|(name, _)| name == place).and_then(|(_, number)| *number)
    }
}

/// Returns true if an XDP program is at a device.
pub(crate) fn is_taken(space: &Namespace, device: &str) -> bool {
    space.enter(|| {
        let links = sys::net::RouteSocket::open().expect("root may ask");
        links.named(device).is_ok_and(|interface| interface.xdp.is_some())
    })
}

/// The program of `STREAMLINE_PROGRAM`, or else of the same build as this test: that which lies
/// beside it, built anew where one of its sources is younger.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("STREAMLINE_PROGRAM") {
            return named.into();
        }
        let own = std::env::current_exe().expect("this program");
        // target/debug/deps/live-0123.
        let profile = own.ancestors().nth(2).expect("a folder of builds");
        let program = profile.join("streamline");
        if !is_current(&program) {
            build(profile);
        }
        program
    })
}

fn build(profile: &Path) {
    let name = profile.file_name().expect("a name");
    let name = if name == "debug" { "dev".as_ref() } else { name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "streamline-cli", "--profile"]).arg(name);
    command.arg("--target-dir").arg(profile.parent().expect("a folder of builds"));
    command.current_dir(testkit::cases::workspace());
    assert!(command.status().expect("cargo").success(), "the program does not build");
}

/// Returns true if a program is newer than all that it may be built from: the files of the crates,
/// without tests, and the examples, which it contains. Whoever tests the workspace has it built
/// before: it is then not built again, with other features, under tests that run it. (What cargo
/// lists beside it is not there where only tests were built.)
fn is_current(program: &Path) -> bool {
    let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let Some(built) = age(program) else { return false };
    let workspace = testkit::cases::workspace();
    let mut waiting: Vec<PathBuf> =
        ["crates", "examples", "Cargo.lock"].map(|name| workspace.join(name)).into();
    while let Some(path) = waiting.pop() {
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        match fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) if age(&path) > Some(built) => return false,
            Err(_) => {}
        }
    }
    true
}

/// A file as text; nothing where there is none.
fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
