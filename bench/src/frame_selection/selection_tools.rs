//! The programs that `bench filter` measures, which select frames: their arguments, their start
//! messages, and the numbers of frames that they counted.

use crate::processes::{
    has_ingress_program, interrupt_and_wait, is_installed, number_before, read_text,
    start_on_second_processor, streamline_path, wait_until_idle,
};
use crate::replay::find_program;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::net::{Namespace, SERVER_DEVICE, is_capturing, wait_until};

/// Size of the ring through which each tool receives frames, in MB.
const RING_MB: usize = 8;

/// A program that selects UDP to port 53 from received frames.
#[derive(Clone, Debug)]
pub(super) struct SelectionTool {
    pub(super) name: &'static str,
    path: PathBuf,
    arguments: Vec<String>,
    /// Message that the program prints on standard error when it observes frames; empty if it
    /// prints none.
    start_message: &'static str,
    /// Function that reads the number of counted frames from the program's output.
    counted: fn(&str) -> u64,
}

/// Returns the installed programs, and prints the names of the missing programs.
pub(super) fn installed_tools() -> Vec<SelectionTool> {
    [streamline_tool(), tcpdump_tool(), click_tool()].into_iter().flatten().collect()
}

fn streamline_tool() -> Option<SelectionTool> {
    let path = streamline_path()?;
    let line = format!("rx {SERVER_DEVICE} ring={RING_MB}MB | ip | udp | dport |53 count");
    Some(SelectionTool::with_request(path, &line, parse_streamline_count))
}

fn tcpdump_tool() -> Option<SelectionTool> {
    let path = find_program("tcpdump").filter(|_| is_installed("tcpdump", "tcpdump"))?;
    let words = format!("-n -Z root -B {} -w /dev/null -i {SERVER_DEVICE}", RING_MB * 1024);
    let words = words.split(' ').chain(["udp dst port 53"]).map(str::to_owned);
    Some(SelectionTool {
        name: "tcpdump",
        path,
        arguments: words.collect(),
        start_message: "listening on",
        counted: parse_tcpdump_count,
    })
}

/// The Click modular router. Debian has a package manager of the same name.
fn click_tool() -> Option<SelectionTool> {
    let path = find_program("click");
    let router = path.filter(|path| {
        let report = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        report.is_ok_and(|report| {
            String::from_utf8_lossy(&report.stdout).starts_with("click (Click)")
        })
    });
    let Some(path) = router else {
        eprintln!(
            "left out: click: the Click modular router is not installed (Debian has no package; \
             github.com/kohler/click, `./configure --disable-linuxmodule && make install`)"
        );
        return None;
    };
    let router = format!(
        "FromDevice({SERVER_DEVICE}, SNIFFER true) -> MarkIPHeader(14) \
         -> pick :: IPClassifier(udp dst port 53, -) -> counted :: Counter -> Discard; \
         pick[1] -> Discard;"
    );
    Some(SelectionTool {
        name: "click",
        path,
        arguments: ["-h", "counted.count", "-e", &router].map(str::to_owned).to_vec(),
        start_message: "",
        counted: parse_click_count,
    })
}

fn parse_streamline_count(report: &str) -> u64 {
    report.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the number of frames that passed tcpdump's filter and were not dropped. The number
/// includes frames that were still in a partly filled block of the packet ring when tcpdump ended.
fn parse_tcpdump_count(report: &str) -> u64 {
    let received = number_before(report, " packets received by filter");
    let dropped = number_before(report, " packets dropped by kernel");
    let known = |number: u64| if number == u64::MAX { 0 } else { number };
    known(received).saturating_sub(known(dropped))
}

/// Returns the number of frames in Click's output: the first line that consists of a number.
fn parse_click_count(report: &str) -> u64 {
    report.lines().find_map(|line| line.trim().parse().ok()).unwrap_or(0)
}

impl SelectionTool {
    /// Returns our program with a request that begins with `rx`.
    fn with_request(path: PathBuf, line: &str, counted: fn(&str) -> u64) -> Self {
        let arguments = ["run", line].map(str::to_owned).to_vec();
        Self { name: "streamline run", path, arguments, start_message: "", counted }
    }

    /// Starts the program on the second processor, and waits until it observes frames.
    pub(super) fn start(&self, space: &Namespace, folder: &Path) -> Result<Child, String> {
        let file = |name| File::create(folder.join(name)).map_err(|why| why.to_string());
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).current_dir(folder).stdin(Stdio::null());
        command.stdout(file("out")?).stderr(file("err")?);
        let mut child = start_on_second_processor(space, &mut command)?;
        let mut ended = false;
        wait_until(self.name, || {
            ended = !matches!(child.try_wait(), Ok(None));
            let begun = match self.start_message {
                "" => is_capturing(space, child.id()) || has_ingress_program(space),
                words => read_text(&folder.join("err")).contains(words),
            };
            begun || ended
        });
        if ended {
            return Err(format!("{}: {}", self.name, read_text(&folder.join("err"))));
        }
        Ok(child)
    }

    /// Stops the program once it is idle; returns its processor time in ns, and the number of
    /// frames counted.
    pub(super) fn stop(&self, child: Child, folder: &Path) -> Result<(u64, u64), String> {
        let used = wait_until_idle(&[child.id()]);
        interrupt_and_wait(child, self.name)?;
        let report = read_text(&folder.join("out")) + &read_text(&folder.join("err"));
        Ok((used, (self.counted)(&report)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_reports_of_programs() {
        let report = "listening on server0\n12 packets captured\n14 packets received by filter\n";
        assert_eq!(parse_tcpdump_count(report), 14);
        assert_eq!(parse_tcpdump_count("it broke"), 0);
        assert_eq!(parse_click_count("counted.count:\n2020\n\n"), 2020);
        assert_eq!(parse_click_count("2020\n"), 2020);
        assert_eq!(parse_click_count("it broke"), 0);
        assert_eq!(parse_streamline_count("2020 blocks, 36360 bytes\n"), 2020);
    }
}
