//! Several tcpdumps at one device: their arguments, and the received and lost frames in their
//! reports.

use crate::processes::{Children, number_before, read_text, start_on_second_processor};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::net::{NamespacePair, SERVER_DEVICE, wait_until};

/// Name of the program file of tcpdump, and of its candidates in the result rows.
pub(crate) const TCPDUMP: &str = "tcpdump";

/// Several running tcpdumps, which are killed on drop.
pub(crate) struct RunningTcpdumps {
    children: Children,
    count: usize,
}

/// The final report of a tcpdump, in frames that passed its filter. A missing count is `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TcpdumpReport {
    /// Number of frames received: tcpdump's "packets received by filter".
    pub(crate) received: u64,
    /// Number of frames that tcpdump received but lost: its "packets dropped by kernel".
    pub(crate) lost: u64,
}

impl RunningTcpdumps {
    /// Starts a tcpdump for each filter, which may be empty, on the second processor, and waits
    /// until each observes frames. `rings` contains the ring size of each tcpdump in bytes, and the
    /// number of bytes that it captures of each frame. All tcpdumps write to /dev/null.
    pub(crate) fn start(
        pair: &NamespacePair,
        folder: &Path,
        filters: &[String],
        rings: (u32, u32),
    ) -> Result<Self, String> {
        let all: Vec<_> = filters.iter().map(|filter| (filter.as_str(), "/dev/null")).collect();
        Self::start_all(pair, folder, &all, rings)
    }

    /// Starts a tcpdump for each file. Each writes the frames that it captures to its file, and has
    /// no filter. Otherwise, the tcpdumps are started as by [`Self::start`].
    pub(crate) fn start_writing_files(
        pair: &NamespacePair,
        folder: &Path,
        files: &[String],
        rings: (u32, u32),
    ) -> Result<Self, String> {
        let all: Vec<_> = files.iter().map(|file| ("", file.as_str())).collect();
        Self::start_all(pair, folder, &all, rings)
    }

    /// Starts a tcpdump for each pair of a filter and an output file in `wanted`.
    fn start_all(
        pair: &NamespacePair,
        folder: &Path,
        wanted: &[(&str, &str)],
        (ring, keep): (u32, u32),
    ) -> Result<Self, String> {
        let mut all = Self { children: Children::default(), count: wanted.len() };
        for (number, (filter, file)) in wanted.iter().enumerate() {
            let stderr =
                File::create(folder.join(number.to_string())).map_err(|w| w.to_string())?;
            let words = format!("-n -Z root -B {} -s {keep} -i {SERVER_DEVICE} -w", ring >> 10);
            let mut command = Command::new(TCPDUMP);
            command.args(words.split(' ')).arg(file);
            command.args(Some(filter).filter(|filter| !filter.is_empty()));
            command.stdin(Stdio::null()).stderr(stderr);
            all.children.add(start_on_second_processor(&pair.server, &mut command)?);
        }
        for number in 0..wanted.len() {
            let file = folder.join(number.to_string());
            wait_until("tcpdump listens", || read_text(&file).contains("listening on"));
        }
        Ok(all)
    }

    /// Returns the process ids of all tcpdumps.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.children.process_ids()
    }

    /// Stops all tcpdumps. Returns their final reports. Frames in a partly filled block of the
    /// packet ring do not count as lost, because they would have been delivered within a second.
    pub(crate) fn stop(self, folder: &Path) -> Result<Vec<TcpdumpReport>, String> {
        self.children.interrupt_and_wait(TCPDUMP)?;
        Ok((0..self.count)
            .map(|number| parse_report(&read_text(&folder.join(number.to_string()))))
            .collect())
    }
}

fn parse_report(text: &str) -> TcpdumpReport {
    TcpdumpReport {
        received: number_before(text, " packets received by filter"),
        lost: number_before(text, " packets dropped by kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcpdump_report_yields_received_and_lost_frames() {
        let text = "listening on server0\n12 packets captured\n14 packets received by filter\n\
                    7 packets dropped by kernel\n";
        assert_eq!(parse_report(text), TcpdumpReport { received: 14, lost: 7 });
        assert_eq!(parse_report("it broke"), TcpdumpReport { received: u64::MAX, lost: u64::MAX });
    }
}
