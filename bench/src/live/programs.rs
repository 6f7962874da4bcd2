//! The programs that `bench live` measures: their arguments, start messages and losses, and the
//! number of requests that each reports.

use super::frame_load::{FrameLoad, Rate, SendResult};
use crate::processes::{
    interrupt_and_wait, number_after, number_before, processor_ns, read_text,
    start_on_second_processor, wait_until_idle,
};
use crate::replay::{SURICATA_LOG, count_occurrences, find_program};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::net::{NamespacePair, SERVER_DEVICE, is_capturing, wait_until};

/// Name of our program in the result rows.
pub(super) const OUR_NAME: &str = "streamline";

/// Size of the ring through which each program receives frames, in MB.
const RING_MB: usize = 8;

/// A program that `bench live` measures, and that reports the HTTP requests in live traffic.
pub(super) struct LiveProgram {
    pub(super) name: &'static str,
    path: PathBuf,
    /// Returns the arguments, given a directory for the program's files and the purpose of the run.
    arguments: fn(&Path, RunPurpose) -> Vec<String>,
    /// True if the program reports on standard output instead of standard error.
    reports_on_stdout: bool,
    /// Message that the program prints when it observes frames; empty if it prints none.
    start_message: &'static str,
    /// Reads the number of lost frames from the program's report. `None` if the program does not
    /// report losses.
    lost: Option<fn(&str) -> u64>,
    /// Function that returns the number of HTTP requests in the program's standard output and
    /// directory. `None` if the program does not look for requests.
    requests: Option<fn(&[u8], &Path) -> u64>,
    /// Number of requests that the program finds in the complete capture. `None` if the program
    /// reports losses.
    expected_requests: Option<u64>,
}

/// The result that a run of a program must deliver, which determines the program's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunPurpose {
    /// A run that measures the processor time of the program.
    Cost,
    /// A run that counts the requests. Some programs need other arguments to report them.
    Requests,
}

/// The result of a run of a program that observes the traffic.
pub(super) struct Observation {
    pub(super) sent: SendResult,
    /// Processor time of the program from the first frame until it is idle, in ns.
    pub(super) processor_ns: u64,
    /// True if the program received all frames.
    pub(super) is_lossless: bool,
    /// Number of HTTP requests that the program found, or `None` if it does not look for requests.
    pub(super) requests: Option<u64>,
}

/// Returns the installed programs, beginning with `streamline`, and prints the names of the missing
/// programs.
pub(super) fn installed_programs(
    folder: &Path,
    capture: &Path,
) -> Result<Vec<LiveProgram>, String> {
    fs::write(folder.join("suricata.yaml"), suricata_configuration())
        .map_err(|why| why.to_string())?;
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name(OUR_NAME);
    if !own.is_file() {
        let what = "is not here: `cargo build --release -p streamline-cli` builds it";
        return Err(format!("{} {what}", own.display()));
    }
    let mut programs = vec![LiveProgram { path: own, ..streamline_program() }];
    for peer in [suricata_program(), tcpflow_program(), tcpdump_program()] {
        match find_program(peer.name) {
            Some(path) => {
                programs.push(LiveProgram { path, ..peer }.count_expected_requests(capture)?)
            }
            None => eprintln!("left out: {}: it is not installed", peer.name),
        }
    }
    Ok(programs)
}

fn streamline_program() -> LiveProgram {
    LiveProgram {
        name: OUR_NAME,
        path: PathBuf::new(),
        arguments: |_, purpose| {
            let end = match purpose {
                RunPurpose::Cost => "http | count",
                RunPurpose::Requests => "http emit=head |request count",
            };
            let rx = format!("rx {SERVER_DEVICE} ring={RING_MB}MB");
            vec!["run".to_owned(), format!("{rx} | bpf \"tcp port 80\" | tcp | {end}")]
        },
        reports_on_stdout: false,
        start_message: "",
        // The report of a run without losses ends with this text.
        lost: Some(|report| u64::from(!report.ends_with("none lost\n"))),
        requests: Some(|stdout, _| {
            let text = String::from_utf8_lossy(stdout);
            text.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
        }),
        expected_requests: None,
    }
}

fn suricata_program() -> LiveProgram {
    LiveProgram {
        name: "suricata",
        path: PathBuf::new(),
        arguments: |folder, _| {
            let folder = folder.display();
            let text = format!(
                "--runmode workers -S /dev/null --af-packet={SERVER_DEVICE} -l {folder} \
                 -c {folder}/suricata.yaml"
            );
            text.split_whitespace().map(str::to_owned).collect()
        },
        reports_on_stdout: true,
        start_message: "Engine started",
        lost: Some(|report| number_after(report, "drops: ")),
        requests: Some(|_, folder| {
            let log = fs::read(folder.join(SURICATA_LOG)).unwrap_or_default();
            let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            // Suricata reports a response without a request as an exchange.
            let alone = |line: &&[u8]| count_occurrences(line, b"request_uri_not_seen") > 0;
            lines.filter(|line| !alone(line)).count() as u64
        }),
        expected_requests: None,
    }
}

fn tcpflow_program() -> LiveProgram {
    LiveProgram {
        name: "tcpflow",
        path: PathBuf::new(),
        arguments: |_, _| split_words(&format!("-c -i {SERVER_DEVICE}"), &["tcp port 80"]),
        reports_on_stdout: false,
        start_message: "listening on",
        lost: None,
        requests: Some(|stdout, _| count_occurrences(stdout, b" HTTP/1.1\r\n")),
        expected_requests: None,
    }
}

fn tcpdump_program() -> LiveProgram {
    LiveProgram {
        name: "tcpdump",
        path: PathBuf::new(),
        arguments: |_, _| {
            let text = format!("-n -Z root -B {} -w /dev/null -i {SERVER_DEVICE}", RING_MB * 1024);
            split_words(&text, &["tcp port 80"])
        },
        reports_on_stdout: false,
        start_message: "listening on",
        lost: Some(|report| number_before(report, " packets dropped by kernel")),
        requests: None,
        expected_requests: None,
    }
}

/// Returns a configuration of Suricata that logs HTTP transactions only.
fn suricata_configuration() -> String {
    format!(
        "%YAML 1.1
---
stats: {{enabled: no}}
outputs:
  - eve-log: {{enabled: yes, filetype: regular, filename: {SURICATA_LOG}, types: [http]}}
logging: {{default-log-level: notice, outputs: [{{console: {{enabled: yes}}}}]}}
app-layer: {{protocols: {{http: {{enabled: yes}}}}}}
capture: {{disable-offloading: false}}
af-packet:
  - interface: {SERVER_DEVICE}
    threads: 1
    cluster-id: 99
    cluster-type: cluster_flow
    defrag: yes
    use-mmap: yes
    tpacket-v3: yes
    block-size: 1048576
    ring-size: {}
    bpf-filter: tcp port 80
",
        // Suricata counts the size of its ring in packets, here of 1,600 bytes.
        RING_MB * 1_000_000 / 1600
    )
}

impl LiveProgram {
    /// Stores the number of requests that the program finds when it reads the capture file. Does
    /// nothing for a program that reports losses or does not look for requests.
    fn count_expected_requests(mut self, capture: &Path) -> Result<Self, String> {
        if let (None, Some(count)) = (self.lost, self.requests) {
            let mut command = Command::new(&self.path);
            // The program writes its files to the capture's directory, which is removed later.
            let folder = capture.parent().unwrap_or_else(|| Path::new("."));
            let output = command.args(["-c", "-r"]).arg(capture).current_dir(folder).output();
            let output = output.map_err(|why| format!("{}: {why}", self.name))?;
            self.expected_requests = Some(count(&output.stdout, capture));
        }
        Ok(self)
    }

    /// Sends the load while the program observes, and stops the program once it is idle.
    pub(super) fn measure_program(
        &self,
        pair: &NamespacePair,
        folder: &Path,
        (load, rate): (&FrameLoad, Rate),
        purpose: RunPurpose,
    ) -> Result<Observation, String> {
        // Suricata appends to an existing file.
        let _ = fs::remove_file(folder.join(SURICATA_LOG));
        let (out, err) = (folder.join("out"), folder.join("err"));
        let report_file = if self.reports_on_stdout { &out } else { &err };
        let child = self.start(pair, folder, [&out, &err], purpose)?;
        let before = processor_ns(child.id());
        let sent = load.send(pair, rate, usize::MAX)?;
        let after = wait_until_idle(&[child.id()]);
        interrupt_and_wait(child, self.name)?;
        let report = read_text(report_file);
        let out = fs::read(&out).map_err(|why| why.to_string())?;
        let requests = self.requests.map(|count| count(&out, folder));
        let is_lossless = match self.lost {
            Some(lost) => lost(&report) == 0,
            None => requests >= self.expected_requests,
        };
        Ok(Observation { sent, processor_ns: after.saturating_sub(before), is_lossless, requests })
    }

    /// Starts the program on the second processor, and waits until it observes frames.
    fn start(
        &self,
        pair: &NamespacePair,
        folder: &Path,
        [out, err]: [&Path; 2],
        purpose: RunPurpose,
    ) -> Result<Child, String> {
        let file = |path| File::create(path).map_err(|why| format!("{why}"));
        let mut command = Command::new(&self.path);
        command.args((self.arguments)(folder, purpose)).current_dir(folder).stdin(Stdio::null());
        command.stdout(file(out)?).stderr(file(err)?);
        let report_file = if self.reports_on_stdout { out } else { err };
        let mut child = start_on_second_processor(&pair.server, &mut command)?;
        let mut ended = false;
        wait_until(self.name, || {
            ended = !matches!(child.try_wait(), Ok(None));
            let begun = match self.start_message {
                "" => is_capturing(&pair.server, child.id()),
                words => read_text(report_file).contains(words),
            };
            begun || ended
        });
        if ended { Err(format!("{}: {}", self.name, read_text(report_file))) } else { Ok(child) }
    }
}

fn split_words(text: &str, behind: &[&str]) -> Vec<String> {
    text.split_whitespace().chain(behind.iter().copied()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_from_reports_of_programs() {
        let lost = |program: LiveProgram, report| program.lost.map(|lost| lost(report));
        let report = "12 packets received by filter\n7 packets dropped by kernel\n";
        assert_eq!(lost(tcpdump_program(), report), Some(7));
        let report = "Notice: device: server0: packets: 5, drops: 3 (60.00%), invalid chksum: 0\n";
        assert_eq!(lost(suricata_program(), report), Some(3));
        assert_eq!(lost(suricata_program(), "it broke"), Some(u64::MAX));
        assert_eq!(lost(streamline_program(), "5 blocks in 1 s, none lost\n"), Some(0));
        assert_eq!(lost(streamline_program(), "warning: 5 blocks were lost\n"), Some(1));
        assert_eq!(lost(tcpflow_program(), ""), None);
    }
}
