//! Control of the programs that a bench measures: their processor time, the wait until they are
//! idle, and their termination.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use sys::bpf::{TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{Namespace, SERVER_DEVICE, wait_until};

/// Processor time per [`IDLE_CHECK_INTERVAL`], in ns, below which programs are idle.
const IDLE_NS: u64 = 3_000_000;
/// Interval at which programs are checked for idleness.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the numbers of voluntary and involuntary context switches of a task. `task` is
/// `thread-self`, or a process id, which stands for the first thread of the process.
pub(crate) fn context_switches(task: &str) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
    })
}

/// Programs that run concurrently. Dropping this value kills the programs that were not stopped.
#[derive(Debug, Default)]
pub(crate) struct Children(Vec<Child>);

impl Children {
    pub(crate) fn add(&mut self, child: Child) {
        self.0.push(child);
    }

    /// Returns the process ids of the programs.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }

    /// Returns the index of a program that has exited, or `None` if all programs are running. Does
    /// not wait.
    pub(crate) fn first_exited(&mut self) -> Option<usize> {
        self.0.iter_mut().position(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Interrupts all programs, and waits until they exit. Fails if a program exits with an error.
    pub(crate) fn interrupt_and_wait(mut self, name: &str) -> Result<(), String> {
        while let Some(child) = self.0.pop() {
            interrupt_and_wait(child, name)?;
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // After an error, the process may still be running.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a program in a namespace, on the second processor.
pub(crate) fn start_on_second_processor(
    space: &Namespace,
    command: &mut Command,
) -> Result<Child, String> {
    space.run_in_network_namespace(|| {
        // On a machine with one processor, the program shares it with the sender.
        let _ = sys::process::pin_to_processor(1);
        let started = command.spawn();
        started.map_err(|why| format!("{}: {why}", command.get_program().to_string_lossy()))
    })
}

/// Returns the path of our program. Prints a message if the program is missing.
pub(crate) fn streamline_path() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("streamline");
    if path.is_file() {
        return Some(path);
    }
    let what = "is not here: `cargo build --release -p streamline-cli` builds it";
    eprintln!("left out: streamline run: {} {what}", path.display());
    None
}

/// Returns the processor time of a process in ns, summed over its threads.
pub(crate) fn processor_ns(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let time = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(time).sum()
}

/// Waits until the processes are idle. Returns their processor time in ns.
pub(crate) fn wait_until_idle(processes: &[u32]) -> u64 {
    let all = || processes.iter().map(|process| processor_ns(*process)).sum::<u64>();
    let mut now = all();
    wait_until("all frames are looked at", || {
        // Without descriptors, this call only waits.
        sys::poll::wait_until_readable(&[], Some(IDLE_CHECK_INTERVAL));
        let before = std::mem::replace(&mut now, all());
        now.saturating_sub(before) < IDLE_NS
    });
    now
}

/// Returns true if a program is attached to the ingress of the server's device.
pub(crate) fn has_ingress_program(space: &Namespace) -> bool {
    space.run_in_network_namespace(|| {
        let index = RouteSocket::open()
            .and_then(|links| links.interface_by_name(SERVER_DEVICE))
            .map(|it| it.index);
        let chain = index.and_then(|index| tcx_chain(index, TrafficDirection::Ingress));
        chain.is_ok_and(|chain| !chain.members.is_empty())
    })
}

/// Interrupts a program, and waits until it exits. Fails if the program fails.
pub(crate) fn interrupt_and_wait(child: Child, name: &str) -> Result<(), String> {
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let (status, _) = sys::usage::wait(child).map_err(|why| why.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}")) }
}

/// Returns the number before `words` in the report of a program. Returns `u64::MAX` if there is
/// none, so that all frames count as lost.
pub(crate) fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split_once(words).map_or("", |(before, _)| before);
    before.rsplit(['\n', ' ']).next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// Returns the number after the last occurrence of `words` in the report of a program. Returns
/// `u64::MAX` if there is none, so that all frames count as lost.
pub(crate) fn number_after(text: &str, words: &str) -> u64 {
    let behind = text.rsplit_once(words).map_or("", |(_, behind)| behind);
    let number = behind.split(|c: char| !c.is_ascii_digit()).next();
    number.and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// Returns the contents of a file, or an empty text if it does not exist.
pub(crate) fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Returns true if a program is installed. Otherwise, prints that it is omitted, and the name of
/// its Debian package.
pub(crate) fn is_installed(program: &str, package: &str) -> bool {
    let there = crate::replay::find_program(program).is_some();
    if !there {
        eprintln!("left out: {program}: it is not installed (on Debian: apt install {package})");
    }
    there
}
