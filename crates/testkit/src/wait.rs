//! Waiting for a condition instead of for a time.
//!
//! While one test drops a descriptor another one may be starting a program: between fork and exec
//! the child has copies of all descriptors of this process. So what happens when the last copy is
//! closed happens a moment later, and is waited for: [`closed`], [`until`]. What is counted in the
//! whole process is counted in a process in which nothing else runs: [`alone`].

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a test gives up.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The pause between two checks of a condition, which leaves the processor to others.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until this holds.
///
/// # Panics
/// If it does not within [`LIMIT`]; `what` names the condition.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "waited in vain for {LIMIT:?}: {what}");
        std::thread::park_timeout(PAUSE);
    }
}

/// Waits until no process has the other end of this pipe or socket.
///
/// # Panics
/// If one has it after [`LIMIT`].
#[track_caller]
pub fn closed(end: impl AsFd) {
    // Asking for nothing, poll reports errors and a hang-up alone.
    let mut fds = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    until("the other end is closed", || {
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty()
    });
}

/// Copies a program to a place from where it is to be started, by a process of its own: who has a
/// file open for writing, or a copy of such a descriptor, keeps everybody from starting it
/// (ETXTBSY).
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().expect("cp");
    assert!(done.success(), "cp {} {} ended with {done}", from.display(), to.display());
}

/// Runs the test of this name in a process of its own, once; returns true in that
/// process: `if !testkit::alone("module::name") { return }`. For what belongs to a process as a
/// whole: descriptors, mappings, threads, signals, the environment.
///
/// # Panics
/// If the test fails there.
#[track_caller]
pub fn alone(name: &str) -> bool {
    const ALONE: &str = "STREAMLINE_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=2"]);
    let output = command.env(ALONE, name).stdin(Stdio::null()).output().expect("it starts again");
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
    fn it_looks_until_it_holds() {
        let mut looks = 0;
        until("three looks", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    fn an_end_is_closed_when_the_last_copy_is() {
        let (reading, writing) = std::io::pipe().unwrap();
        let copy = writing.try_clone().unwrap();
        drop(writing);
        std::thread::scope(|scope| {
            scope.spawn(|| closed(&reading));
            drop(copy);
        });
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(there);
        closed(here);
        let (reading, writing) = std::io::pipe().unwrap();
        drop(reading);
        closed(writing);
    }

    #[test]
    fn alone_is_another_process() {
        let name = "wait::tests::alone_is_another_process";
        if alone(name) {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
            assert!(threads <= 2, "{threads} threads");
        }
    }
}
