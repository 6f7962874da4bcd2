//! The programs that `bench pipesfs` and `bench page` run: a daemon, paths, and servers of mounts.

use crate::processes::{read_text, streamline_path};
use crate::temp_directory::TempDirectory;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use streamline::paths::Client;
use testkit::net::{Namespace, wait_until};

/// A directory with a daemon and the programs that were started with the daemon. Dropping this
/// value stops all programs.
pub(crate) struct Programs {
    folder: TempDirectory,
    program: PathBuf,
    children: Vec<Child>,
    mounts: Vec<PathBuf>,
}

impl Programs {
    /// Creates a directory, starts a daemon in it, and waits until the daemon replies.
    pub(crate) fn start() -> Result<Self, String> {
        let program = streamline_path().ok_or("there is nothing to measure")?;
        let folder = TempDirectory::new("pipesfs").map_err(|why| why.to_string())?;
        let mut all = Self { folder, program, children: Vec::new(), mounts: Vec::new() };
        let place = all.daemon_directory();
        let mut command = all.command("daemon");
        command.args(["daemon", "--socket"]).arg(&place);
        all.start_child(&mut command)?;
        wait_until("the daemon answers", || Client::find(Some(&place)).is_ok());
        Ok(all)
    }

    /// Starts a path under a name. Returns the index of its process, for [`Self::path_process`].
    pub(crate) fn add_path(&mut self, name: &str, request: &str) -> Result<usize, String> {
        self.add_path_in_namespace(None, name, request)
    }

    /// Starts a path under a name, in a network namespace if one is given.
    pub(crate) fn add_path_in_namespace(
        &mut self,
        namespace: Option<&Namespace>,
        name: &str,
        request: &str,
    ) -> Result<usize, String> {
        let mut command = match namespace {
            Some(namespace) => namespace.command(&self.program),
            None => Command::new(&self.program),
        };
        self.set_up_command(&mut command, name);
        command.args(["run", "-q", "--as", name, request]).stdin(Stdio::piped());
        self.start_child(&mut command)?;
        let client = self.client()?;
        wait_until("the path runs", || streamline::paths::connect(&client, name).is_ok());
        Ok(self.children.len() - 1)
    }

    /// Mounts the file system, with its server on this processor, or on any processor if
    /// `processor` is `None`. Returns the directory of the mount.
    pub(crate) fn mount(
        &mut self,
        name: &str,
        processor: Option<usize>,
    ) -> Result<PathBuf, String> {
        let directory = self.folder.0.join(name);
        fs::create_dir(&directory).map_err(|why| why.to_string())?;
        let mut command = self.command("mount");
        if let Some(processor) = processor {
            command = Command::new("taskset");
            command.args(["-c", &processor.to_string()]).arg(&self.program);
            self.set_environment(&mut command);
        }
        command.args(["mount", "--foreground"]).arg(&directory);
        self.mounts.push(directory.clone());
        self.start_child(&mut command)?;
        wait_until("it is mounted", || directory.join("README").exists());
        Ok(directory)
    }

    /// Returns a connection to the daemon.
    pub(crate) fn client(&self) -> Result<Client, String> {
        Client::find(Some(&self.daemon_directory())).map_err(|why| why.to_string())
    }

    /// Returns the command that starts our program and directs its messages to a file with this
    /// name.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        self.set_up_command(&mut command, name);
        command
    }

    fn set_up_command(&self, command: &mut Command, name: &str) {
        self.set_environment(command);
        if let Ok(messages) = File::create(self.folder.0.join(format!("{name}.err"))) {
            command.stderr(messages);
        }
    }

    /// Returns the messages of a program that was started under this name.
    pub(crate) fn messages(&self, name: &str) -> String {
        read_text(&self.folder.0.join(format!("{name}.err")))
    }

    /// Returns the process of a path. `number` is the index that [`Self::add_path`] returned.
    pub(crate) fn path_process(&mut self, number: usize) -> &mut Child {
        &mut self.children[number]
    }

    fn set_environment(&self, command: &mut Command) {
        command.env("STREAMLINE_DAEMON", self.daemon_directory()).env("HOME", &self.folder.0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }

    /// Returns the process ids of the daemon and of all programs, in the order in which they were
    /// started.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    fn start_child(&mut self, command: &mut Command) -> Result<(), String> {
        self.children.push(command.spawn().map_err(|why| why.to_string())?);
        Ok(())
    }

    /// Returns the directory of the daemon.
    pub(crate) fn daemon_directory(&self) -> PathBuf {
        self.folder.0.join("daemon")
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for directory in &self.mounts {
            let _ = sys::fuse::unmount(directory);
        }
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
