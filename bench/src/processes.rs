//! Programs that are measured while they run: what processor time they took, when they have nothing
//! left to do, and how they are ended.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;
use testkit::net::until;

/// A program that has used less than this in [`WINDOW`] has nothing left to do.
const IDLE_NS: u64 = 3_000_000;
const WINDOW: Duration = Duration::from_millis(200);

/// The processor time of a process, in ns: the sum over its threads.
pub(crate) fn processor_ns(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let time = |thread: fs::DirEntry| {
        let told = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        told.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(time).sum()
}

/// The processor time of processes when they have nothing left to do.
pub(crate) fn when_idle(processes: &[u32]) -> u64 {
    let all = || processes.iter().map(|process| processor_ns(*process)).sum::<u64>();
    let mut now = all();
    until("all frames are looked at", || {
        // Nothing can be read from no descriptor: this waits, and leaves the processor to others.
        sys::poll::readable(&[], Some(WINDOW));
        let before = std::mem::replace(&mut now, all());
        now.saturating_sub(before) < IDLE_NS
    });
    now
}

/// Asks a program to end, and waits until it has.
pub(crate) fn end(child: Child, name: &str) -> Result<(), String> {
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let (status, _) = sys::usage::wait(child).map_err(|why| why.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}")) }
}

/// The number that stands before these words; if they are not there, all is taken for lost.
pub(crate) fn number_before(told: &str, words: &str) -> u64 {
    let before = told.split_once(words).map_or("", |(before, _)| before);
    before.rsplit(['\n', ' ']).next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// The number that stands behind these words; if they are not there, all is taken for lost.
pub(crate) fn number_behind(told: &str, words: &str) -> u64 {
    let behind = told.rsplit_once(words).map_or("", |(_, behind)| behind);
    let number = behind.split(|c: char| !c.is_ascii_digit()).next();
    number.and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// What lies in a file; nothing where it is not there.
pub(crate) fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Whether a program is there; says what is left out without it, and the package that has it.
pub(crate) fn installed(program: &str, package: &str) -> bool {
    let there = crate::replay::find(program).is_some();
    if !there {
        eprintln!("left out: {program}: it is not installed (on Debian: apt install {package})");
    }
    there
}
