//! Stock tcpdumps, started as usual or under `streamline exec`, and their final reports.

use crate::processes::{
    Children, number_before, read_text, start_on_second_processor, streamline_path,
};
use crate::tcpdump::TCPDUMP;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::net::{Namespace, wait_until};

/// The setup in which tcpdumps run: without `streamline exec` or under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TcpdumpLaunch {
    /// The tcpdumps run without `streamline exec`, so libpcap captures.
    Stock,
    /// The tcpdumps run under `streamline exec`, without a daemon. Each loads its own kernel
    /// program.
    Exec,
    /// The tcpdumps run under `streamline exec` with a daemon, which loads one kernel program for
    /// all.
    ExecWithDaemon,
}

/// Running tcpdumps, and the daemon that they use, if any.
pub(super) struct RunningCaptures {
    folder: PathBuf,
    launch: TcpdumpLaunch,
    daemon: Children,
    tcpdumps: Children,
    count: usize,
}

impl RunningCaptures {
    /// Starts `count` tcpdumps on the second processor, and waits until all are capturing. Each
    /// captures on the device `device` with the snapshot length `snapshot`.
    pub(super) fn start(
        space: &Namespace,
        folder: &Path,
        launch: TcpdumpLaunch,
        (count, snapshot, device): (usize, Option<u32>, &str),
    ) -> Result<Self, String> {
        let (daemon, tcpdumps) = (Children::default(), Children::default());
        let mut all = Self { folder: folder.to_owned(), launch, daemon, tcpdumps, count };
        if launch == TcpdumpLaunch::ExecWithDaemon {
            let mut command = all.command(&["daemon", "--socket"], "daemon")?;
            command.arg(all.state_directory());
            all.daemon.add(start_on_second_processor(space, &mut command)?);
            all.wait_for("the daemon answers", |all| all.is_daemon_responsive())?;
        }
        for number in 0..count {
            let mut command = match launch {
                TcpdumpLaunch::Stock => {
                    all.redirect_messages(Command::new(TCPDUMP), &number.to_string())
                }
                _ => all.command(&["exec", TCPDUMP], &number.to_string()),
            }?;
            command.args(["-n", "-Z", "root", "-i", device, "-w", "/dev/null"]);
            command.args(snapshot.map(|bytes| format!("-s{bytes}")));
            all.tcpdumps.add(start_on_second_processor(space, &mut command)?);
        }
        for number in 0..count {
            let file = all.error_file(&number.to_string());
            all.wait_for("tcpdump listens", |_| read_text(&file).contains("listening on"))?;
        }
        Ok(all)
    }

    /// Returns the process ids of the tcpdumps and of the daemon.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        [self.daemon.process_ids(), self.tcpdumps.process_ids()].concat()
    }

    /// Stops all programs. Returns the number of frames that they lost. Fails unless each has
    /// captured or dropped `sent` frames, and each program under `exec` has read all its frames
    /// from a ring.
    pub(super) fn stop(mut self, sent: u64) -> Result<u64, String> {
        std::mem::take(&mut self.tcpdumps).interrupt_and_wait(TCPDUMP)?;
        std::mem::take(&mut self.daemon).interrupt_and_wait("the daemon")?;
        let mut lost = 0;
        for number in 0..self.count {
            let text = read_text(&self.folder.join(format!("{number}.err")));
            let capture = parse_report(&text);
            let is_whole = capture.received == sent && capture.dropped <= sent;
            let is_ours = capture.from_ring.is_some_and(|frames| frames == capture.captured);
            if !is_whole || (self.launch != TcpdumpLaunch::Stock && !is_ours) {
                return Err(format!("{capture:?} of {sent} frames: {text}"));
            }
            lost += capture.dropped;
        }
        Ok(lost)
    }

    /// Returns the command that runs `streamline` with the arguments `words`. The messages of the
    /// command go to the file `name`.
    fn command(&self, words: &[&str], name: &str) -> Result<Command, String> {
        let program = streamline_path().ok_or("there is nothing to measure")?;
        let mut command = self.redirect_messages(Command::new(program), name)?;
        command.args(words).env("STREAMLINE_PCAP", "report");
        command.env("STREAMLINE_DAEMON", self.state_directory()).env("HOME", &self.folder);
        Ok(command)
    }

    /// Directs the messages of a command to the file `name`.
    fn redirect_messages(&self, mut command: Command, name: &str) -> Result<Command, String> {
        let errors = File::create(self.error_file(name)).map_err(|why| why.to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        Ok(command)
    }

    /// Waits until `met` returns true. Fails if the daemon or a tcpdump exits first.
    fn wait_for(&mut self, what: &str, met: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut ended = None;
        wait_until(what, || {
            let daemon = self.daemon.first_exited().map(|_| "daemon".to_owned());
            ended = daemon.or_else(|| self.tcpdumps.first_exited().map(|one| one.to_string()));
            ended.is_some() || met(self)
        });
        match ended {
            Some(name) => Err(format!("{name}: {}", read_text(&self.error_file(&name)))),
            None => Ok(()),
        }
    }

    fn is_daemon_responsive(&self) -> bool {
        let command = self.command(&["ps"], "ps");
        command.is_ok_and(|mut command| command.status().is_ok_and(|status| status.success()))
    }

    fn error_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.err"))
    }

    fn state_directory(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

impl Drop for RunningCaptures {
    fn drop(&mut self) {
        // A report of this run must not be read in the next run.
        for number in 0..self.count {
            let _ = fs::remove_file(self.error_file(&number.to_string()));
        }
    }
}

/// The final report of a tcpdump, in frames. A missing count is `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CaptureReport {
    captured: u64,
    received: u64,
    dropped: u64,
    /// Number of frames that came from a ring. `None` if libpcap captured the frames.
    from_ring: Option<u64>,
}

fn parse_report(text: &str) -> CaptureReport {
    let ring = " packets came from the ring";
    let of_ring = text.contains(ring).then(|| {
        // In "3 of 4 packets came from the ring", the first number is returned.
        let words = format!(" of {}{ring}", number_before(text, ring));
        number_before(text, &words)
    });
    CaptureReport {
        captured: number_before(text, " packets captured"),
        received: number_before(text, " packets received by filter"),
        dropped: number_before(text, " packets dropped by kernel"),
        from_ring: of_ring,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_captured_and_dropped_frames_and_share_of_ring() {
        let text = "listening on server0\n12 packets captured\n19 packets received by filter\n\
                    7 packets dropped by kernel\n";
        let stock = CaptureReport { captured: 12, received: 19, dropped: 7, from_ring: None };
        assert_eq!(parse_report(text), stock);
        let line = "streamline: server0: 12 of 12 packets came from the ring; 7 lost, 0 unread\n";
        let ours = CaptureReport { from_ring: Some(12), ..stock };
        assert_eq!(parse_report(&format!("{text}{line}")), ours);
        assert_eq!(parse_report("it broke").received, u64::MAX);
    }
}
