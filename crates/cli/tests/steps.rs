//! Tests of processes killed before each step of acquiring a resource, restarted daemons, exhausted
//! resources, and conflicting commands: other processes continue, resources are free at once, and
//! each refusal states its reason. They run real processes (docs/book/decisions/0029-steps.md).

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

use common::{Folder, Guard, Ran};
use member::client::Client;
use member::protocol::Path as Listed;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::until;

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

    /// Builds the command with these arguments and no output; its environment names the daemon of
    /// this fixture.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.with_environment(self.folder.streamline(words))
    }

    /// Sets the environment of a command so that it finds the daemon of this fixture, and discards
    /// its output.
    pub(crate) fn with_environment(&self, mut command: Command) -> Command {
        command
            .env("STREAMLINE_DAEMON", self.daemon_dir())
            .env("XDG_STATE_HOME", self.folder.path());
        command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn spawn(&self, words: &[&str]) -> Guard {
        Guard(self.command(words).spawn().unwrap())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        let mut command = self.command(words);
        Ran::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap())
    }

    /// Returns the arguments that start a daemon in the fixture's directory.
    pub(crate) fn daemon_words(&self) -> Vec<String> {
        let place = self.daemon_dir().to_str().unwrap().to_owned();
        ["daemon", "--socket", &place].map(str::to_owned).into()
    }

    pub(crate) fn daemon(&self) -> Guard {
        let words = self.daemon_words();
        let daemon = self.spawn(&words.iter().map(String::as_str).collect::<Vec<_>>());
        until("a daemon answers", || self.client().is_some());
        daemon
    }

    pub(crate) fn client(&self) -> Option<Client> {
        Client::at(&self.daemon_dir()).ok()
    }

    pub(crate) fn list(&self) -> Vec<Listed> {
        self.client().and_then(|client| client.list().ok()).unwrap_or_default()
    }

    /// Returns the number of blocks that a path has counted.
    pub(crate) fn counted(&self, name: &str) -> Option<u64> {
        let counters = self.client()?.connect(name).ok()?.count().ok()?;
        Some(counters.sources.iter().map(|source| source.given.blocks).sum())
    }

    /// Waits until the counters of a path advance.
    pub(crate) fn wait_progress(&self, name: &str) {
        let mut first = None;
        until(&format!("`{name}` goes on"), || match (first, self.counted(name)) {
            (_, None) => false,
            (None, now) => {
                first = now;
                false
            }
            (Some(first), Some(now)) => now > first,
        });
    }
}
