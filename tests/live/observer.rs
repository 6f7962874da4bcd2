//! Fixture of a `streamline` process in a namespace, from its start to its final reports.

use crate::scratch::Scratch;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use testkit::net::{Namespace, is_capturing, wait_until};
use testkit::streamline_program;

/// A `streamline` process that observes frames, with its own directory.
pub(crate) struct Observer {
    child: Child,
    folder: Option<Scratch>,
}

/// The result of a `streamline` process that has exited.
pub(crate) struct ObserverResult {
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
    /// The ledger, as printed by `--json`.
    pub(crate) ledger: Value,
    folder: Scratch,
}

impl Observer {
    /// Starts a request in a namespace. Returns when it observes frames.
    pub(crate) fn start(space: &Namespace, line: &str) -> Self {
        Self::start_by_command(space, |program| space.command(program), line)
    }

    /// Starts a request with options in a namespace. Returns when it observes frames.
    pub(crate) fn start_with_options(space: &Namespace, options: &[&str], line: &str) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        let command = space.command(streamline_program());
        let mut observer = Self::spawn_with_options(command, options, line, (out.into(), folder));
        observer.wait_until_attached(space, line);
        observer
    }

    /// Starts a request with the command that `make_command` creates from the program's path.
    /// Returns when the request observes frames in the namespace.
    pub(crate) fn start_by_command(
        space: &Namespace,
        make_command: impl FnOnce(&Path) -> Command,
        line: &str,
    ) -> Self {
        let mut observer = Self::spawn(make_command(streamline_program()), line);
        observer.wait_until_attached(space, line);
        observer
    }

    /// Starts a request like [`Observer::start`], with standard output in a pipe. Also returns the
    /// reading end of the pipe.
    pub(crate) fn start_piped(space: &Namespace, line: &str) -> (Self, ChildStdout) {
        let folder = Scratch::new();
        let mut observer = Self::spawn_in_directory(
            space.command(streamline_program()),
            line,
            Stdio::piped(),
            folder,
        );
        let out = observer.child.stdout.take().expect("a pipe");
        observer.wait_until_attached(space, line);
        (observer, out)
    }

    /// Starts a request that redirects the frames of a device. Returns when its XDP program is
    /// attached.
    pub(crate) fn start_redirecting(space: &Namespace, device: &str, line: &str) -> Self {
        Self::start_redirecting_with_options(space, device, &[], line)
    }

    /// Starts a redirecting request with options. Returns when its XDP program is attached.
    pub(crate) fn start_redirecting_with_options(
        space: &Namespace,
        device: &str,
        options: &[&str],
        line: &str,
    ) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        let command = space.command(streamline_program());
        let mut observer = Self::spawn_with_options(command, options, line, (out.into(), folder));
        wait_until(line, || {
            observer.assert_running();
            has_xdp_program(space, device)
        });
        observer
    }

    fn wait_until_attached(&mut self, space: &Namespace, line: &str) {
        wait_until(line, || {
            self.assert_running();
            is_capturing(space, self.child.id())
        });
    }

    /// Starts a request with the given command, without waiting.
    pub(crate) fn spawn(command: Command, line: &str) -> Self {
        let folder = Scratch::new();
        let out = File::create(folder.path("out")).expect("a file");
        Self::spawn_in_directory(command, line, out.into(), folder)
    }

    fn spawn_in_directory(command: Command, line: &str, out: Stdio, folder: Scratch) -> Self {
        Self::spawn_with_options(command, &[], line, (out, folder))
    }

    fn spawn_with_options(
        mut command: Command,
        options: &[&str],
        line: &str,
        (out, folder): (Stdio, Scratch),
    ) -> Self {
        // Any user may run it.
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

    /// Returns the path of a file named in the request.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("until it has ended").path(name)
    }

    /// Waits until a file named in the request has at least this length.
    pub(crate) fn wait_until_file_has_length(&mut self, name: &str, length: u64) {
        let path = self.path(name);
        wait_until(&format!("{} is of {length} bytes", path.display()), || {
            self.assert_running();
            fs::metadata(&path).is_ok_and(|file| file.len() >= length)
        });
    }

    /// Blocks until the process is stopped (state `T`), for example by SIGSTOP.
    pub(crate) fn wait_until_stopped(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        wait_until("it is stopped", || {
            fs::read_to_string(&status).is_ok_and(|text| text.contains("State:\tT"))
        });
    }

    /// Returns true while the process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub(crate) fn assert_running(&mut self) {
        let runs = self.is_running();
        assert!(runs, "it ended: {}", read_text(&self.path("err")));
    }

    /// Returns the peak resident memory of the process in bytes.
    pub(crate) fn peak_resident_bytes(&self) -> u64 {
        let status = read_text(Path::new(&format!("/proc/{}/status", self.child.id())));
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("it runs") * 1024
    }

    /// Returns true if the process has a descriptor of a BPF map of this kind (`BPF_MAP_TYPE_*`).
    pub(crate) fn has_map(&self, kind: u32) -> bool {
        let folder = fs::read_dir(format!("/proc/{}/fdinfo", self.child.id()));
        let wanted = format!("map_type:\t{kind}\n");
        folder
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| read_text(&entry.path()).contains(&wanted))
    }

    /// Returns the process id of the `streamline` process.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `STOP`, to the `streamline` process.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &process]).status();
        assert!(sent.expect("kill").success());
    }

    /// Interrupts the process, and waits until it exits.
    pub(crate) fn stop(self) -> ObserverResult {
        self.signal("INT");
        self.wait()
    }

    /// Waits, without sending a signal, until the process exits. Returns its result.
    pub(crate) fn wait(mut self) -> ObserverResult {
        wait_until("the observer ends", || !self.is_running());
        let status = self.child.wait().expect("a child").code();
        let folder = self.folder.take().expect("until it has ended");
        let out = fs::read(folder.path("out")).unwrap_or_default();
        let err = read_text(&folder.path("err"));
        let ledger = serde_json::from_str(&read_text(&folder.path("report"))).unwrap_or_default();
        ObserverResult { out, err, status, ledger, folder }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // It has ended already if the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(folder) = &self.folder {
            eprintln!("it wrote: {}", read_text(&folder.path("err")));
        }
    }
}

impl ObserverResult {
    /// Asserts that the process succeeded and its ledger balances.
    #[track_caller]
    pub(crate) fn assert_balanced(&self) {
        assert_eq!(self.status, Some(0), "{}\n{}", self.err, self.ledger);
        assert_eq!(self.ledger["balanced"], true, "{}\n{}", self.err, self.ledger);
    }

    /// Asserts that the process succeeded, its ledger balances, and nothing was lost.
    #[track_caller]
    pub(crate) fn assert_lossless(&self) {
        self.assert_balanced();
        assert_eq!(self.ledger["lost"], 0, "{}\n{}", self.err, self.ledger);
    }

    /// Returns the report of the only source.
    pub(crate) fn source(&self) -> SourceReport {
        let sources = self.ledger["sources"].as_array().expect("an object of the ledger");
        assert_eq!(sources.len(), 1, "{}", self.ledger);
        let source = &sources[0];
        let blocks = |amount: &Value| amount["blocks"].as_u64();
        let dropped = source["dropped"].as_object().expect("an object");
        let dropped = dropped.iter().map(|(place, number)| (place.clone(), number.as_u64()));
        SourceReport {
            observed: blocks(&source["seen"]),
            given: blocks(&source["given"]).expect("a number"),
            dropped: dropped.collect(),
        }
    }

    /// Returns the path of a file named in the request.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// Returns the contents of a file that the request wrote.
    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}: {}", path.display(), self.err))
    }

    /// Returns the frames of a capture that the request wrote, in order.
    pub(crate) fn frames(&self, name: &str) -> Vec<Vec<u8>> {
        crate::frame_sending::parse_capture(&self.file(name))
    }
}

/// The counters of a source in the ledger, in blocks.
#[derive(Debug)]
pub(crate) struct SourceReport {
    pub(crate) observed: Option<u64>,
    pub(crate) given: u64,
    /// Losses by location. The number is `None` if the counter of the location could not be read.
    pub(crate) dropped: Vec<(String, Option<u64>)>,
}

impl SourceReport {
    /// Returns the number of lost frames, summed over all locations whose counter could be read.
    pub(crate) fn total_lost(&self) -> u64 {
        self.dropped.iter().filter_map(|(_, number)| *number).sum()
    }

    /// Returns the losses at a location, or `None` if the counter is missing or could not be read.
    pub(crate) fn losses_at_location(&self, place: &str) -> Option<u64> {
        self.dropped.iter().find(|(name, _)| name == place).and_then(|(_, number)| *number)
    }
}

/// Returns true if an XDP program is attached to a device.
pub(crate) fn has_xdp_program(space: &Namespace, device: &str) -> bool {
    space.run_in_network_namespace(|| {
        let links = sys::net::RouteSocket::open().expect("root may ask");
        links.interface_by_name(device).is_ok_and(|interface| interface.xdp.is_some())
    })
}

/// Returns the contents of a text file; empty if the file does not exist.
fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
