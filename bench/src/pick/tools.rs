//! The programs that pick: what each is called with, how it says that it has begun, and how many
//! frames it counted.

use crate::processes::{
    end, installed, is_tapped, number_before, start_beside, streamline, text, when_idle,
};
use crate::replay::find;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::net::{Namespace, SERVER_DEVICE, until, watches};

/// Bytes of every ring.
const RING_MB: usize = 8;

/// A program that picks frames of UDP to port 53 out of what comes in.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    path: PathBuf,
    arguments: Vec<String>,
    /// The line on standard error by which it reports that it has begun; `None` if it does not.
    begins: &'static str,
    /// Reads the number of counted frames from its two outputs.
    counted: fn(&str) -> u64,
}

/// All that are installed; those that are not are told.
pub(super) fn all() -> Vec<Tool> {
    [ours(), tcpdump(), click()].into_iter().flatten().collect()
}

fn ours() -> Option<Tool> {
    let path = streamline()?;
    let line = format!("rx {SERVER_DEVICE} ring={RING_MB}MB | ip | udp | dport |53 count");
    Some(Tool::run(path, &line, seen_by_us))
}

fn tcpdump() -> Option<Tool> {
    let path = find("tcpdump").filter(|_| installed("tcpdump", "tcpdump"))?;
    let words = format!("-n -Z root -B {} -w /dev/null -i {SERVER_DEVICE}", RING_MB * 1024);
    let words = words.split(' ').chain(["udp dst port 53"]).map(str::to_owned);
    Some(Tool {
        name: "tcpdump",
        path,
        arguments: words.collect(),
        begins: "listening on",
        counted: seen_by_tcpdump,
    })
}

/// The Click modular router. Debian has a package manager of the same name.
fn click() -> Option<Tool> {
    let path = find("click");
    let router = path.filter(|path| {
        let told = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        told.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).starts_with("click (Click)"))
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
    Some(Tool {
        name: "click",
        path,
        arguments: ["-h", "counted.count", "-e", &router].map(str::to_owned).to_vec(),
        begins: "",
        counted: seen_by_click,
    })
}

fn seen_by_us(told: &str) -> u64 {
    told.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the frames that passed its filter, those of a block that is not full included.
fn seen_by_tcpdump(told: &str) -> u64 {
    let received = number_before(told, " packets received by filter");
    let dropped = number_before(told, " packets dropped by kernel");
    let known = |number: u64| if number == u64::MAX { 0 } else { number };
    known(received).saturating_sub(known(dropped))
}

/// The number that stands on a line of its own.
fn seen_by_click(told: &str) -> u64 {
    told.lines().find_map(|line| line.trim().parse().ok()).unwrap_or(0)
}

impl Tool {
    /// Our own program, with a line that begins with `rx`.
    fn run(path: PathBuf, line: &str, counted: fn(&str) -> u64) -> Self {
        let arguments = ["run", line].map(str::to_owned).to_vec();
        Self { name: "streamline run", path, arguments, begins: "", counted }
    }

    /// Starts it on the second processor, and waits until it sees frames.
    pub(super) fn start(&self, space: &Namespace, folder: &Path) -> Result<Child, String> {
        let file = |name| File::create(folder.join(name)).map_err(|why| why.to_string());
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).current_dir(folder).stdin(Stdio::null());
        command.stdout(file("out")?).stderr(file("err")?);
        let mut child = start_beside(space, &mut command)?;
        let mut ended = false;
        until(self.name, || {
            ended = !matches!(child.try_wait(), Ok(None));
            let begun = match self.begins {
                "" => watches(space, child.id()) || is_tapped(space),
                words => text(&folder.join("err")).contains(words),
            };
            begun || ended
        });
        if ended {
            return Err(format!("{}: {}", self.name, text(&folder.join("err"))));
        }
        Ok(child)
    }

    /// Ends it when it has nothing left to do: the processor time that it has used, and how many
    /// frames it counted.
    pub(super) fn end(&self, child: Child, folder: &Path) -> Result<(u64, u64), String> {
        let used = when_idle(&[child.id()]);
        end(child, self.name)?;
        let told = text(&folder.join("out")) + &text(&folder.join("err"));
        Ok((used, (self.counted)(&told)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_reports_of_programs() {
        let told = "listening on server0\n12 packets captured\n14 packets received by filter\n";
        assert_eq!(seen_by_tcpdump(told), 14);
        assert_eq!(seen_by_tcpdump("it broke"), 0);
        assert_eq!(seen_by_click("counted.count:\n2020\n\n"), 2020);
        assert_eq!(seen_by_click("2020\n"), 2020);
        assert_eq!(seen_by_click("it broke"), 0);
        assert_eq!(seen_by_us("2020 blocks, 36360 bytes\n"), 2020);
    }
}
