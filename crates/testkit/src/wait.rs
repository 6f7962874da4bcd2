//! Functions that wait for conditions instead of fixed times.
//!
//! If another test starts a program, the child process has duplicates of all descriptors of this
//! process between fork and exec. A descriptor that a test closes may therefore stay open for a
//! moment, so a test must wait for the effects of the close ([`wait_until_closed`],
//! [`wait_until`]). Tests that count the resources of the whole process run in a process without
//! other tests ([`run_in_separate_process`]).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a wait fails the test.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Blocks until `holds` returns true. `what` names the condition in the failure message.
///
/// # Panics
///
/// After [`WAIT_TIMEOUT`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WAIT_TIMEOUT, "waited in vain for {WAIT_TIMEOUT:?}: {what}");
        std::thread::park_timeout(CHECK_INTERVAL);
    }
}

/// Blocks until no process has the other end of this pipe or socket open.
///
/// # Panics
/// After [`WAIT_TIMEOUT`].
#[track_caller]
pub fn wait_until_closed(end: impl AsFd) {
    // If no events are requested, poll reports only errors and hangups.
    let mut fds = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    wait_until("the other end is closed", || {
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty()
    });
}

/// Copies a program in a child process (`cp`), so that the copy can be started immediately. If this
/// process wrote the copy itself, the start could fail with `ETXTBSY`, because a child that another
/// test forks may inherit the open file.
///
/// # Panics
/// If `cp` fails.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().expect("cp");
    assert!(done.success(), "cp {} {} ended with {done}", from.display(), to.display());
}

/// Runs the named test once in a separate process. Returns true in the separate process. In the
/// calling process, returns false after the test has passed; the caller must then return: `if
/// !testkit::run_in_separate_process("module::name") { return }`. Intended for tests of
/// process-wide resources: descriptors, mappings, threads, signals, the environment.
///
/// # Panics
///
/// If the test fails in the separate process, or if no test has this name.
#[track_caller]
pub fn run_in_separate_process(name: &str) -> bool {
    const SEPARATE_TEST_VARIABLE: &str = "STREAMLINE_TEST_ALONE";
    if std::env::var(SEPARATE_TEST_VARIABLE).is_ok_and(|alone| alone == name) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=2"]);
    let output = command
        .env(SEPARATE_TEST_VARIABLE, name)
        .stdin(Stdio::null())
        .output()
        .expect("it starts again");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "alone in a process {name} fails:\n{text}");
    assert!(text.contains("1 passed"), "there is no test {name}:\n{text}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_until_repeats_until_the_condition_holds() {
        let mut looks = 0;
        wait_until("three looks", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    fn pipe_is_closed_after_its_last_duplicate() {
        let (reading, writing) = std::io::pipe().unwrap();
        let copy = writing.try_clone().unwrap();
        drop(writing);
        std::thread::scope(|scope| {
            scope.spawn(|| wait_until_closed(&reading));
            drop(copy);
        });
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(there);
        wait_until_closed(here);
        let (reading, writing) = std::io::pipe().unwrap();
        drop(reading);
        wait_until_closed(writing);
    }

    #[test]
    fn separate_process_runs_the_named_test() {
        let name = "wait::tests::separate_process_runs_the_named_test";
        if run_in_separate_process(name) {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
            assert!(threads <= 2, "{threads} threads");
        }
    }
}
