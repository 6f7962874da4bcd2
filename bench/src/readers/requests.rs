//! Requests `rx IF | pcap FILE` of one user, with or without a daemon, and their final reports.

use crate::processes::{Children, read_text, start_on_second_processor, streamline_path};
use crate::share::parse_ledger;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sys::bpf::{TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{Namespace, SERVER_DEVICE, wait_until};

/// The setup in which requests run: with or without a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DaemonUse {
    /// The requests run without a daemon. Each loads its own kernel program.
    WithoutDaemon,
    /// The requests run with a daemon, which loads one kernel program for all.
    WithDaemon,
}

/// Running requests `rx IF | pcap FILE`, with the daemon that they use, if any.
pub(super) struct RunningRequests {
    folder: PathBuf,
    program: PathBuf,
    daemon: Children,
    requests: Children,
    count: usize,
}

impl RunningRequests {
    /// Starts a request for each file, and waits until all of them observe frames.
    pub(super) fn start(
        space: &Namespace,
        folder: &Path,
        files: &[String],
        start: DaemonUse,
    ) -> Result<Self, String> {
        let program = streamline_path().ok_or("there is nothing to measure")?;
        let (daemon, requests) = (Children::default(), Children::default());
        let folder = folder.to_owned();
        let mut all = Self { folder, program, daemon, requests, count: files.len() };
        if start == DaemonUse::WithDaemon {
            let mut command = all.command("daemon");
            command.args(["daemon", "--socket"]).arg(all.state_directory());
            all.daemon.add(start_on_second_processor(space, &mut command)?);
            all.wait_for("the daemon answers", |all| all.list_paths().is_ok())?;
        }
        for (number, file) in files.iter().enumerate() {
            let mut command = all.command(&number.to_string());
            let report = all.folder.join(format!("report{number}"));
            // A report of an earlier run must not be mistaken for the report of this run.
            let _ = fs::remove_file(&report);
            command.args(["run", "--json", "--report"]).arg(report);
            command.arg(format!("rx {SERVER_DEVICE} | pcap '{file}'"));
            all.requests.add(start_on_second_processor(space, &mut command)?);
        }
        match start {
            DaemonUse::WithoutDaemon => all.wait_for("all have a program", |all| {
                count_ingress_programs(space).is_ok_and(|count| count == all.count)
            })?,
            DaemonUse::WithDaemon => all.wait_for("all are in the program", |all| {
                all.list_paths().is_ok_and(|listed| has_one_shared_program(&listed, all.count))
            })?,
        }
        Ok(all)
    }

    /// Returns the process ids of the requests and of the daemon.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        [self.daemon.process_ids(), self.requests.process_ids()].concat()
    }

    /// Stops all requests. Returns the number of frames that they lost. Fails if a ledger does not
    /// balance, or if the numbers of frames that a request wrote and lost do not add up to `sent`.
    pub(super) fn stop(self, sent: u64) -> Result<u64, String> {
        self.requests.interrupt_and_wait("a request")?;
        self.daemon.interrupt_and_wait("the daemon")?;
        let mut lost = 0;
        for number in 0..self.count {
            let report = read_text(&self.folder.join(format!("report{number}")));
            let counts = parse_ledger(&report)?;
            if counts.observed + counts.lost != sent {
                return Err(format!("{counts:?} of {sent} frames"));
            }
            lost += counts.lost;
        }
        Ok(lost)
    }

    /// Returns the command that starts our program and directs its messages to a file with this
    /// name.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("STREAMLINE_DAEMON", self.state_directory()).env("HOME", &self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Ok(messages) = File::create(self.error_file(name)) {
            command.stderr(messages);
        }
        command
    }

    /// Waits until `met` returns true. Fails if the daemon or a request's process exits first.
    fn wait_for(&mut self, what: &str, met: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut ended = None;
        wait_until(what, || {
            let daemon = self.daemon.first_exited().map(|_| "daemon".to_owned());
            ended = daemon.or_else(|| self.requests.first_exited().map(|one| one.to_string()));
            ended.is_some() || met(self)
        });
        match ended {
            Some(name) => Err(format!("{name}: {}", read_text(&self.error_file(&name)))),
            None => Ok(()),
        }
    }

    /// Returns the running paths, as printed by `ps --json`.
    fn list_paths(&self) -> Result<Value, String> {
        let mut command = self.command("ps");
        let output = command.args(["ps", "--json"]).stdout(Stdio::piped()).output();
        let output = output.map_err(|why| format!("ps: {why}"))?;
        serde_json::from_slice(&output.stdout).map_err(|why| format!("ps --json: {why}"))
    }

    fn error_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.err"))
    }

    fn state_directory(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

/// Returns true if one kernel program serves `count` requests.
fn has_one_shared_program(listed: &Value, count: usize) -> bool {
    let programs = listed["kernel"].as_array().map_or(&[][..], Vec::as_slice);
    let [program] = programs else { return false };
    program["lines"].as_array().is_some_and(|lines| lines.len() == count)
}

/// Returns the number of programs that are attached to the ingress of the server's device.
fn count_ingress_programs(space: &Namespace) -> Result<usize, String> {
    space.run_in_network_namespace(|| {
        let links = RouteSocket::open().and_then(|links| links.interface_by_name(SERVER_DEVICE));
        let chain = links.and_then(|link| tcx_chain(link.index, TrafficDirection::Ingress));
        chain.map(|chain| chain.members.len()).map_err(|why| why.to_string())
    })
}
