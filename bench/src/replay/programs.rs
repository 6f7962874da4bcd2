//! The programs that `bench replay` measures: their arguments, and the number of requests that each
//! reports.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sys::usage::{self, ResourceUsage};

/// A program that reads a capture, and may report the requests in it.
pub(super) struct ReplayProgram {
    pub(super) name: &'static str,
    path: PathBuf,
    /// Returns the arguments, given a capture and a directory for the program's files.
    arguments: fn(&Path, &Path) -> Vec<String>,
    /// Counts the requests in the program's standard output and directory. `None` if the program
    /// does not look for requests. `None` also for our program, whose requests
    /// `count_with_streamline` counts.
    requests: Option<fn(&[u8], &Path) -> u64>,
}

/// Name of our program in the result rows.
pub(super) const OUR_NAME: &str = "streamline";

/// Returns the installed programs, beginning with `streamline`, and prints the names of the missing
/// programs.
pub(super) fn installed_programs(folder: &Path) -> Result<Vec<ReplayProgram>, String> {
    let suricata = folder.join("suricata.yaml");
    std::fs::write(&suricata, SURICATA_CONFIGURATION).map_err(|why| why.to_string())?;
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name(OUR_NAME);
    if !own.is_file() {
        let what = "is not here: `cargo build --release -p streamline-cli` builds it";
        return Err(format!("{} {what}", own.display()));
    }
    let mut programs = vec![streamline_program(own)];
    for peer in peers() {
        match find_program(peer.name) {
            Some(path) => programs.push(ReplayProgram { path, ..peer }),
            None => eprintln!("left out: {}: it is not installed", peer.name),
        }
    }
    Ok(programs)
}

fn streamline_program(path: PathBuf) -> ReplayProgram {
    let line = |capture: &Path, _: &Path| {
        vec!["run".to_owned(), format!("replay '{}' | tcp | http | count", capture.display())]
    };
    ReplayProgram { name: OUR_NAME, path, arguments: line, requests: None }
}

/// Returns the programs with which ours is compared, each in its fastest configuration for finding
/// HTTP requests.
fn peers() -> [ReplayProgram; 4] {
    [
        ReplayProgram {
            name: "tshark",
            path: PathBuf::new(),
            arguments: |capture, _| {
                argument_words("-n -Y http.request -T fields -e frame.number -r", capture, &[])
            },
            requests: Some(|stdout, _| stdout.iter().filter(|byte| **byte == b'\n').count() as u64),
        },
        ReplayProgram {
            name: "tcpflow",
            path: PathBuf::new(),
            arguments: |capture, _| argument_words("-c -r", capture, &[]),
            requests: Some(|stdout, _| count_occurrences(stdout, b" HTTP/1.1\r\n")),
        },
        ReplayProgram {
            name: "suricata",
            path: PathBuf::new(),
            arguments: |capture, folder| {
                let (folder, settings) = (folder.display(), folder.join("suricata.yaml"));
                let rest = format!("-l {folder} -c {}", settings.display());
                argument_words("--runmode single -S /dev/null -r", capture, &[&rest])
            },
            requests: Some(|_, folder| {
                let log = std::fs::read(folder.join(SURICATA_LOG)).unwrap_or_default();
                let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                // Suricata reports a response without a request as an exchange.
                let alone = |line: &&[u8]| count_occurrences(line, b"request_uri_not_seen") > 0;
                lines.filter(|line| !alone(line)).count() as u64
            }),
        },
        ReplayProgram {
            name: "tcpdump",
            path: PathBuf::new(),
            arguments: |capture, _| argument_words("-n -w /dev/null -r", capture, &["tcp port 80"]),
            requests: None,
        },
    ]
}

/// The file name of Suricata's log.
pub(crate) const SURICATA_LOG: &str = "eve.json";
/// A configuration of Suricata that logs HTTP transactions only.
const SURICATA_CONFIGURATION: &str = "%YAML 1.1
---
stats: {enabled: no}
outputs:
  - eve-log: {enabled: yes, filetype: regular, filename: eve.json, types: [http]}
logging: {default-log-level: error, outputs: [{console: {enabled: yes}}]}
app-layer: {protocols: {http: {enabled: yes}}}
";

impl ReplayProgram {
    /// Runs the program over a capture, and discards its output. Returns its resource usage.
    pub(super) fn measure_usage(
        &self,
        capture: &Path,
        folder: &Path,
    ) -> Result<ResourceUsage, String> {
        self.run_command(self.command(capture, folder).stdout(Stdio::null()))
    }

    /// Returns the number of requests found, or `None` if the program does not look for requests.
    pub(super) fn count_requests(
        &self,
        capture: &Path,
        folder: &Path,
    ) -> Result<Option<u64>, String> {
        if self.name == OUR_NAME {
            return self.count_with_streamline(capture).map(Some);
        }
        let Some(count) = self.requests else { return Ok(None) };
        // Suricata appends to an existing file.
        let _ = std::fs::remove_file(folder.join(SURICATA_LOG));
        let output_path = folder.join("told");
        let file = File::create(&output_path).map_err(|why| why.to_string())?;
        self.run_command(self.command(capture, folder).stdout(file))?;
        let output = std::fs::read(output_path).map_err(|why| why.to_string())?;
        Ok(Some(count(&output, folder)))
    }

    /// Counts the requests that our filters find. `count` prints the numbers of messages, blocks
    /// and bytes, in this order.
    fn count_with_streamline(&self, capture: &Path) -> Result<u64, String> {
        let line = format!("replay '{}' | tcp | http emit=head |request count", capture.display());
        let output = Command::new(&self.path).args(["run", &line]).output();
        let output = output.map_err(|why| why.to_string())?;
        let report = String::from_utf8_lossy(&output.stdout);
        let number = report.split_whitespace().find_map(|word| word.parse().ok());
        number.ok_or_else(|| format!("{line}: {report}{}", String::from_utf8_lossy(&output.stderr)))
    }

    fn command(&self, capture: &Path, folder: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.args((self.arguments)(capture, folder)).current_dir(folder).stdin(Stdio::null());
        command
    }

    fn run_command(&self, command: &mut Command) -> Result<ResourceUsage, String> {
        let child = command.stderr(Stdio::null()).spawn().map_err(|why| why.to_string())?;
        let (status, usage) = usage::wait(child).map_err(|why| why.to_string())?;
        if status.success() { Ok(usage) } else { Err(format!("{} ended with {status}", self.name)) }
    }
}

fn argument_words(before: &str, capture: &Path, behind: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = before.split_whitespace().map(str::to_owned).collect();
    words.push(capture.display().to_string());
    words.extend(behind.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned));
    words
}

pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

pub(crate) fn count_occurrences(bytes: &[u8], of: &[u8]) -> u64 {
    bytes.windows(of.len()).filter(|window| *window == of).count() as u64
}
