//! The programs that are measured: what each is called with, and how many requests it tells of.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sys::usage::{self, Usage};

/// One way to get at the requests of a capture.
pub(super) struct Program {
    pub(super) name: &'static str,
    path: PathBuf,
    /// Its arguments, for a capture and a folder that it may write into.
    arguments: fn(&Path, &Path) -> Vec<String>,
    /// Counts the requests in its standard output and its folder; `None` if it looks for none.
    requests: Option<fn(&[u8], &Path) -> u64>,
}

/// Ours.
pub(super) const OURS: &str = "streamline";

/// All that are installed, ours first; those that are not are told.
pub(super) fn all(folder: &Path) -> Result<Vec<Program>, String> {
    let suricata = folder.join("suricata.yaml");
    std::fs::write(&suricata, SURICATA).map_err(|why| why.to_string())?;
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name(OURS);
    if !own.is_file() {
        let what = "is not here: `cargo build --release -p streamline-cli` builds it";
        return Err(format!("{} {what}", own.display()));
    }
    let mut programs = vec![ours(own)];
    for peer in peers() {
        match find(peer.name) {
            Some(path) => programs.push(Program { path, ..peer }),
            None => eprintln!("left out: {}: it is not installed", peer.name),
        }
    }
    Ok(programs)
}

fn ours(path: PathBuf) -> Program {
    let line = |capture: &Path, _: &Path| {
        vec!["run".to_owned(), format!("replay '{}' | tcp | http | count", capture.display())]
    };
    Program { name: OURS, path, arguments: line, requests: None }
}

/// The peers, each as it is fastest at this job.
fn peers() -> [Program; 4] {
    [
        Program {
            name: "tshark",
            path: PathBuf::new(),
            arguments: |capture, _| {
                words("-n -Y http.request -T fields -e frame.number -r", capture, &[])
            },
            requests: Some(|told, _| told.iter().filter(|byte| **byte == b'\n').count() as u64),
        },
        Program {
            name: "tcpflow",
            path: PathBuf::new(),
            arguments: |capture, _| words("-c -r", capture, &[]),
            requests: Some(|told, _| occurrences(told, b" HTTP/1.1\r\n")),
        },
        Program {
            name: "suricata",
            path: PathBuf::new(),
            arguments: |capture, folder| {
                let (folder, settings) = (folder.display(), folder.join("suricata.yaml"));
                let rest = format!("-l {folder} -c {}", settings.display());
                words("--runmode single -S /dev/null -r", capture, &[&rest])
            },
            requests: Some(|_, folder| {
                let told = std::fs::read(folder.join(EVE)).unwrap_or_default();
                let lines = told.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                // Responses without a request are told as an exchange of their own.
                let alone = |line: &&[u8]| occurrences(line, b"request_uri_not_seen") > 0;
                lines.filter(|line| !alone(line)).count() as u64
            }),
        },
        Program {
            name: "tcpdump",
            path: PathBuf::new(),
            arguments: |capture, _| words("-n -w /dev/null -r", capture, &["tcp port 80"]),
            requests: None,
        },
    ]
}

/// The file that Suricata writes.
pub(crate) const EVE: &str = "eve.json";
/// A log of HTTP transactions and nothing else.
const SURICATA: &str = "%YAML 1.1
---
stats: {enabled: no}
outputs:
  - eve-log: {enabled: yes, filetype: regular, filename: eve.json, types: [http]}
logging: {default-log-level: error, outputs: [{console: {enabled: yes}}]}
app-layer: {protocols: {http: {enabled: yes}}}
";

impl Program {
    /// Runs it over a capture, what it prints to nowhere; answers what it cost.
    pub(super) fn cost(&self, capture: &Path, folder: &Path) -> Result<Usage, String> {
        self.run(self.command(capture, folder).stdout(Stdio::null()))
    }

    /// Returns the number of requests that it finds; `None` if it looks for none.
    pub(super) fn requests(&self, capture: &Path, folder: &Path) -> Result<Option<u64>, String> {
        if self.name == OURS {
            return self.own_requests(capture).map(Some);
        }
        let Some(count) = self.requests else { return Ok(None) };
        // Suricata adds to what it wrote before.
        let _ = std::fs::remove_file(folder.join(EVE));
        let told = folder.join("told");
        let file = File::create(&told).map_err(|why| why.to_string())?;
        self.run(self.command(capture, folder).stdout(file))?;
        let told = std::fs::read(told).map_err(|why| why.to_string())?;
        Ok(Some(count(&told, folder)))
    }

    /// Ours, by the class of requests: the first number that `count` says is that of messages.
    fn own_requests(&self, capture: &Path) -> Result<u64, String> {
        let line = format!("replay '{}' | tcp | http emit=head |request count", capture.display());
        let output = Command::new(&self.path).args(["run", &line]).output();
        let output = output.map_err(|why| why.to_string())?;
        let told = String::from_utf8_lossy(&output.stdout);
        let number = told.split_whitespace().find_map(|word| word.parse().ok());
        number.ok_or_else(|| format!("{line}: {told}{}", String::from_utf8_lossy(&output.stderr)))
    }

    fn command(&self, capture: &Path, folder: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.args((self.arguments)(capture, folder)).current_dir(folder).stdin(Stdio::null());
        command
    }

    fn run(&self, command: &mut Command) -> Result<Usage, String> {
        let child = command.stderr(Stdio::null()).spawn().map_err(|why| why.to_string())?;
        let (status, usage) = usage::wait(child).map_err(|why| why.to_string())?;
        if status.success() { Ok(usage) } else { Err(format!("{} ended with {status}", self.name)) }
    }
}

fn words(before: &str, capture: &Path, behind: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = before.split_whitespace().map(str::to_owned).collect();
    words.push(capture.display().to_string());
    words.extend(behind.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned));
    words
}

pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

pub(crate) fn occurrences(bytes: &[u8], of: &[u8]) -> u64 {
    bytes.windows(of.len()).filter(|window| *window == of).count() as u64
}
