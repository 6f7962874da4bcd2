//! The other process.

use super::patience::{limit, within};
use std::io::{Read as _, stdin};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Instant;
use testkit::need;

const ROLE: &str = "STREAMLINE_TEST_ROLE";

/// Another process, of user nobody, and the socket between us. Killed when dropped.
pub(crate) struct Other {
    socket: Option<OwnedFd>,
    child: Child,
}

impl Other {
    /// Starts it with this role. `None`, after a word: that cannot be done here.
    pub(crate) fn start(role: &str) -> Option<Self> {
        let (here, there) = sys::descriptor::pair().unwrap();
        let mut other = Self::on(there, role, Stdio::null())?;
        other.socket = Some(here);
        Some(other)
    }

    /// As [`Other::start`], with this socket as its standard input, and somewhere to report to.
    pub(crate) fn on(socket: OwnedFd, role: &str, report: Stdio) -> Option<Self> {
        need::root()?;
        let mut command = sys::process::reexec_as(sys::process::NOBODY, socket).unwrap();
        command.args(["--ignored", "--exact", "--nocapture", "the_other_process"]);
        command.env(ROLE, role).stdout(report);
        match sys::process::spawn(&mut command) {
            Ok(child) => Some(Self { socket: None, child }),
            Err(error) => need::skip(&format!("nobody may not run this test: {error}")),
        }
    }

    /// One line from it; `None`: it is gone.
    #[track_caller]
    pub(crate) fn line(&self) -> Option<String> {
        let (message, _) = receive(self);
        (!message.is_empty()).then(|| String::from_utf8_lossy(&message).into_owned())
    }

    /// All lines, until it is gone.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    pub(crate) fn say(&self, text: &str) {
        send(self, text.as_bytes(), &[]);
    }

    /// Kills it, wherever it is, and waits until it is gone. It must have been there.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.waited().signal(), Some(9), "it did not end by itself");
    }

    /// Waits until it has been killed, by itself.
    #[track_caller]
    pub(crate) fn dies(&mut self) {
        assert_eq!(self.waited().signal(), Some(9), "it kills itself");
    }

    /// Kills it if it is still there.
    pub(crate) fn stop(&mut self) {
        let _gone = self.child.kill();
        self.waited();
    }

    pub(crate) fn is_there(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has ended as it should.
    #[track_caller]
    pub(crate) fn succeeds(mut self) {
        let status = self.waited();
        assert!(status.success(), "the other process: {status}");
    }

    /// The same, and what it has reported.
    #[track_caller]
    pub(crate) fn reports(mut self) -> String {
        let mut text = String::new();
        let mut report = self.child.stdout.take().unwrap();
        within("what the other process reports", || report.read_to_string(&mut text)).unwrap();
        let status = self.waited();
        assert!(status.success(), "the other process: {status}: {text}");
        text
    }

    /// Hangs up.
    pub(crate) fn leave(&mut self) {
        self.socket = None;
    }

    /// The socket, which is ours to close from here on.
    pub(crate) fn take_socket(&mut self) -> OwnedFd {
        self.socket.take().unwrap()
    }

    #[track_caller]
    fn waited(&mut self) -> ExitStatus {
        within("the end of the other process", || self.child.wait()).unwrap()
    }
}

impl AsFd for Other {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap().as_fd()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Sends a message.
#[track_caller]
pub(crate) fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
    sys::descriptor::send(socket, message, descriptors).unwrap();
}

/// A message, and what came with it; nothing: the other side is gone.
#[track_caller]
pub(crate) fn receive(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let socket = socket.as_fd();
    let start = Instant::now();
    // A signal may end a wait early.
    while sys::poll::readable(&[socket], Some(limit())) != [true] {
        assert!(start.elapsed() < limit(), "nothing comes from the other process");
    }
    let mut message = vec![0; 4096];
    let (length, descriptors) =
        sys::descriptor::receive(socket, &mut message).unwrap_or((0, Vec::new()));
    message.truncate(length);
    (message, descriptors)
}

// ---- in the other process

/// Returns the role of this process; `None`: it is not the other process. It ends in any case,
/// later than its waiting parent.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    std::thread::spawn(|| {
        let begin = Instant::now();
        while begin.elapsed() < 3 * limit() {
            std::thread::park_timeout(limit());
        }
        eprintln!("the other process was forgotten");
        std::process::exit(101);
    });
    Some(role)
}

/// Says something to who has started us.
pub(crate) fn say(text: &str) {
    send(stdin(), text.as_bytes(), &[]);
}
