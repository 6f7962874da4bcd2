//! Watchdog for hanging tests. If a test program prints nothing for too long, the watchdog reports
//! the threads of the program and kills it, so that a run of all tests ends and names the hanging
//! test.
//!
//! Input: the output lines of cargo. The compiler may be silent for a long time, so only programs
//! in the target directory are watched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Maximum time without output from a test program. On a machine with two processors, the longest
/// test takes a quarter of this time.
const SILENCE_MAX: Duration = Duration::from_secs(480);

/// A watchdog for the programs that cargo starts, active until it is dropped.
#[derive(Debug)]
pub(crate) struct SilenceWatchdog(Sender<()>);

impl SilenceWatchdog {
    /// Starts a watchdog for the programs in the directory `target` that the process `cargo`
    /// starts.
    pub(crate) fn new(cargo: u32, target: PathBuf) -> Self {
        let (activity, lines) = mpsc::channel();
        thread::spawn(move || kill_silent_programs(&lines, cargo, &target, SILENCE_MAX));
        Self(activity)
    }

    /// Restarts the watchdog's timeout. Called after each line of output.
    pub(crate) fn reset(&self) {
        // The watcher ends with this process.
        let _ = self.0.send(());
    }
}

fn kill_silent_programs(lines: &Receiver<()>, cargo: u32, target: &Path, limit: Duration) {
    loop {
        match lines.recv_timeout(limit) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                for program in running_programs(cargo, target) {
                    println!(
                        "\nerror: nothing printed for {limit:?}: {}",
                        describe_process(program)
                    );
                    kill_tree(program);
                }
            }
        }
    }
}

/// Returns the ids of the running programs in the directory `target` that the process `cargo`
/// started.
fn running_programs(cargo: u32, target: &Path) -> Vec<u32> {
    let built = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program.starts_with(target))
    };
    child_ids(cargo).into_iter().filter(built).collect()
}

fn child_ids(of: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let texts =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts.flat_map(|text| parse_ids(&text)).collect()
}

fn parse_ids(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Describes a process: its command line and its threads, which are named after tests.
fn describe_process(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let names = threads.map(|thread| {
        let waits = read(thread.path().join("wchan"));
        format!("\n    thread {}, in {waits}", read(thread.path().join("comm")))
    });
    let mut text = format!("{pid} {line}{}", names.collect::<String>());
    for child in child_ids(pid) {
        text.push_str("\n  child ");
        text.push_str(&describe_process(child));
    }
    text
}

/// Kills a process and its descendants, parents first, so that they start no new children.
fn kill_tree(pid: u32) {
    let started = child_ids(pid);
    // The process may have exited in the meantime.
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    started.into_iter().for_each(kill_tree);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;

    #[test]
    fn silent_program_is_reported_and_killed() {
        let mut waits = Command::new("cat");
        let mut child = waits.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Once `cat` replies, the child has called exec and no longer runs this program.
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"!").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let program = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap();
        let ours = std::process::id();
        assert!(running_programs(ours, Path::new("/nowhere")).is_empty(), "built elsewhere");
        assert_eq!(running_programs(ours, &program), [child.id()]);
        assert!(describe_process(ours).contains("cat"), "{}", describe_process(ours));
        let (activity, lines) = mpsc::channel();
        activity.send(()).unwrap();
        let watching = thread::spawn(move || {
            kill_silent_programs(&lines, ours, &program, Duration::from_millis(1))
        });
        assert!(!child.wait().unwrap().success(), "it was ended");
        drop(activity);
        watching.join().unwrap();
    }
}
