//! Tests of processes that are killed before each step that acquires a resource, of restarted
//! daemons, of exhausted resources, and of conflicting commands. Other processes must continue,
//! resources must be released immediately, and each refusal must contain its reason. The tests run
//! real processes (docs/book/decisions/0029-steps.md).

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;
#[path = "steps/conflicts.rs"]
mod conflicts;
#[path = "steps/kills.rs"]
mod kills;
#[path = "steps/limits.rs"]
mod limits;
#[path = "steps/restart.rs"]
mod restart;

use common::{ChildGuard, CommandResult, Folder};
use member::client::Client;
use member::protocol::RegisteredPath as Listed;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::wait_until;

/// A directory with a subdirectory for a daemon.
pub(crate) struct Fixture {
    pub(crate) folder: Folder,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: Folder::new() }
    }

    pub(crate) fn daemon_dir(&self) -> PathBuf {
        self.folder.path().join("daemon")
    }

    /// Returns a command that runs the program with these arguments and the daemon of this fixture.
    /// The output of the command is discarded.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.set_fixture_environment(self.folder.streamline_command(words))
    }

    /// Makes a command use the daemon of this fixture, and discard its output. Returns the command.
    pub(crate) fn set_fixture_environment(&self, mut command: Command) -> Command {
        command
            .env("STREAMLINE_DAEMON", self.daemon_dir())
            .env("XDG_STATE_HOME", self.folder.path());
        command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn spawn(&self, words: &[&str]) -> ChildGuard {
        ChildGuard(self.command(words).spawn().unwrap())
    }

    pub(crate) fn run(&self, words: &[&str]) -> CommandResult {
        let mut command = self.command(words);
        CommandResult::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap())
    }

    /// Returns the arguments that start a daemon in the fixture's directory.
    pub(crate) fn daemon_args(&self) -> Vec<String> {
        let place = self.daemon_dir().to_str().unwrap().to_owned();
        ["daemon", "--socket", &place].map(str::to_owned).into()
    }

    pub(crate) fn start_daemon(&self) -> ChildGuard {
        let words = self.daemon_args();
        let daemon = self.spawn(&words.iter().map(String::as_str).collect::<Vec<_>>());
        wait_until("a daemon answers", || self.connect_client().is_some());
        daemon
    }

    pub(crate) fn connect_client(&self) -> Option<Client> {
        Client::connect_at(&self.daemon_dir()).ok()
    }

    pub(crate) fn list_paths(&self) -> Vec<Listed> {
        self.connect_client().and_then(|client| client.list_paths().ok()).unwrap_or_default()
    }

    /// Returns the number of blocks that the sources of a path have emitted, or `None` if the path
    /// does not reply.
    pub(crate) fn counted_blocks(&self, name: &str) -> Option<u64> {
        let counters = self.connect_client()?.connect(name).ok()?.counters().ok()?;
        Some(counters.sources.iter().map(|source| source.given.blocks).sum())
    }

    /// Waits until the counters of a path advance.
    pub(crate) fn wait_for_progress(&self, name: &str) {
        let mut first = None;
        wait_until(&format!("`{name}` goes on"), || match (first, self.counted_blocks(name)) {
            (_, None) => false,
            (None, now) => {
                first = now;
                false
            }
            (Some(first), Some(now)) => now > first,
        });
    }
}
