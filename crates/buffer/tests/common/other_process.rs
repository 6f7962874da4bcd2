//! A second process, under another user, for tests between processes.

use super::watchdog::{wait_limit, with_watchdog};
use std::io::{Read as _, stdin};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Instant;
use testkit::need;

const ROLE_VARIABLE: &str = "STREAMLINE_TEST_ROLE";

/// A process of the user `nobody`, and the socket connected to it. Dropping the value kills the
/// process.
pub(crate) struct OtherUserProcess {
    socket: Option<OwnedFd>,
    child: Child,
}

impl OtherUserProcess {
    /// Starts the other process, which runs the test code for `role`. Returns `None`, after
    /// reporting a skip, if this machine does not allow that.
    pub(crate) fn start(role: &str) -> Option<Self> {
        let (local, peer) = sys::descriptor::socket_pair().unwrap();
        let mut other = Self::start_on_socket(peer, role, Stdio::null())?;
        other.socket = Some(local);
        Some(other)
    }

    /// Starts the other process for `role`, with `socket` as its standard input and `report` as its
    /// standard output. Returns `None`, after reporting a skip, if this machine does not allow
    /// that.
    pub(crate) fn start_on_socket(socket: OwnedFd, role: &str, report: Stdio) -> Option<Self> {
        need::require_root()?;
        let mut command = sys::process::reexec_command(sys::process::OVERFLOW_ID, socket).unwrap();
        command.args(["--ignored", "--exact", "--nocapture", "run_other_process"]);
        command.env(ROLE_VARIABLE, role).stdout(report);
        match sys::process::spawn(&mut command) {
            Ok(child) => Some(Self { socket: None, child }),
            Err(error) => need::report_skip(&format!("nobody may not run this test: {error}")),
        }
    }

    /// Receives one line from the process. Returns `None` if the process has exited.
    #[track_caller]
    pub(crate) fn receive_line(&self) -> Option<String> {
        let (message, _) = receive(self);
        (!message.is_empty()).then(|| String::from_utf8_lossy(&message).into_owned())
    }

    /// Receives all lines until the process exits.
    #[track_caller]
    pub(crate) fn receive_lines(&self) -> Vec<String> {
        std::iter::from_fn(|| self.receive_line()).collect()
    }

    pub(crate) fn send_text(&self, text: &str) {
        send(self, text.as_bytes(), &[]);
    }

    /// Kills the running process and waits until it has exited.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.wait().signal(), Some(9), "it did not end by itself");
    }

    /// Waits until the process has killed itself with SIGKILL.
    #[track_caller]
    pub(crate) fn wait_until_killed(&mut self) {
        assert_eq!(self.wait().signal(), Some(9), "it kills itself");
    }

    /// Kills the process if it is still running.
    pub(crate) fn stop(&mut self) {
        let _gone = self.child.kill();
        self.wait();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the process has exited successfully.
    #[track_caller]
    pub(crate) fn wait_for_success(mut self) {
        let status = self.wait();
        assert!(status.success(), "the other process: {status}");
    }

    /// Waits until the process has exited successfully, and returns its report.
    #[track_caller]
    pub(crate) fn wait_for_report(mut self) -> String {
        let mut text = String::new();
        let mut report = self.child.stdout.take().unwrap();
        with_watchdog("what the other process reports", || report.read_to_string(&mut text))
            .unwrap();
        let status = self.wait();
        assert!(status.success(), "the other process: {status}: {text}");
        text
    }

    /// Closes this process's end of the socket to the other process.
    pub(crate) fn close_socket(&mut self) {
        self.socket = None;
    }

    /// Returns the socket, which the caller may close.
    pub(crate) fn take_socket(&mut self) -> OwnedFd {
        self.socket.take().unwrap()
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        with_watchdog("the end of the other process", || self.child.wait()).unwrap()
    }
}

impl AsFd for OtherUserProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap().as_fd()
    }
}

impl Drop for OtherUserProcess {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Sends a message with descriptors over a socket.
#[track_caller]
pub(crate) fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
    sys::descriptor::send(socket, message, descriptors).unwrap();
}

/// Receives a message with its descriptors. The message is empty if the other side has exited.
#[track_caller]
pub(crate) fn receive(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let socket = socket.as_fd();
    let start = Instant::now();
    // A signal may end a wait early.
    while sys::poll::wait_until_readable(&[socket], Some(wait_limit())) != [true] {
        assert!(start.elapsed() < wait_limit(), "nothing comes from the other process");
    }
    let mut message = vec![0; 4096];
    let (length, descriptors) =
        sys::descriptor::receive(socket, &mut message).unwrap_or((0, Vec::new()));
    message.truncate(length);
    (message, descriptors)
}

// ---- in the other process

/// Returns the role in which this process was started, or `None` in the test program itself. In a
/// role, also starts a watchdog that ends this process after three times the limit for a wait, when
/// the parent has given up waiting.
pub(crate) fn child_role() -> Option<String> {
    let role = std::env::var(ROLE_VARIABLE).ok()?;
    std::thread::spawn(|| {
        let begin = Instant::now();
        while begin.elapsed() < 3 * wait_limit() {
            std::thread::park_timeout(wait_limit());
        }
        eprintln!("the other process was forgotten");
        std::process::exit(101);
    });
    Some(role)
}

/// Sends a line of text to the process that started this one.
pub(crate) fn report(text: &str) {
    send(stdin(), text.as_bytes(), &[]);
}
