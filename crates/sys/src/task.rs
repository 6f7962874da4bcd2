//! What the kernel says of a thread or a process while it runs (proc_pid_stat(5)), and where it is
//! to run.

use crate::error::{Error, Named as _, Result};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use std::collections::BTreeSet;
use std::fs;

/// A thread, or a process with all its threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// What it does at this moment; of a process what most of its threads do that do anything.
    pub run_state: RunState,
    /// The process that started it.
    pub parent: u32,
    /// Processor time of the threads that there are, in ns.
    pub processor_ns: u64,
    /// The processors on which it may run.
    pub processors: Vec<usize>,
    /// Bytes of memory that its process has, what it shares with others included.
    pub resident: u64,
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// It has a processor, or waits for one.
    Runs,
    /// It waits for something else.
    Sleeps,
    /// Somebody has stopped it.
    Stopped,
    /// It has ended.
    Ended,
}

/// The number of this thread.
#[must_use]
pub fn current_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

impl Task {
    /// A thread of a process; none: it has ended.
    #[must_use]
    pub fn of_thread(process: u32, thread: u32) -> Option<Self> {
        Self::at(&format!("/proc/{process}/task/{thread}"))
    }

    /// A process; none: it has ended.
    #[must_use]
    pub fn of_process(process: u32) -> Option<Self> {
        let mut whole = Self::at(&format!("/proc/{process}"))?;
        let all = threads(process).into_iter();
        let all: Vec<Self> = all.filter_map(|thread| Self::of_thread(process, thread)).collect();
        whole.processor_ns = all.iter().map(|task| task.processor_ns).sum();
        if all.iter().any(|task| task.run_state == RunState::Runs) {
            whole.run_state = RunState::Runs;
        }
        Some(whole)
    }

    fn at(folder: &str) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let stat = text("stat")?;
        // Behind its name, in which anything may stand.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let run_state = match words.next()? {
            "R" => RunState::Runs,
            "T" | "t" => RunState::Stopped,
            "Z" | "X" => RunState::Ended,
            _ => RunState::Sleeps,
        };
        let parent = words.next()?.parse().ok()?;
        let status = text("status")?;
        let of =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kilobytes = of("VmRSS:").and_then(|told| told.split(' ').next()?.parse::<u64>().ok());
        // A kernel that keeps no such account says nothing.
        let ran = text("schedstat").and_then(|told| told.split(' ').next()?.parse().ok());
        Some(Self {
            run_state,
            parent,
            processor_ns: ran.unwrap_or_default(),
            processors: of("Cpus_allowed_list:").map(ranges).unwrap_or_default(),
            resident: kilobytes.unwrap_or_default() * 1024,
        })
    }
}

/// The threads of a process.
fn threads(process: u32) -> BTreeSet<u32> {
    let all = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `0-2,5` as numbers.
fn ranges(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Keeps a thread (none: this one), and those that it starts from now on, on these processors.
pub fn pin(thread: Option<u32>, processors: &[usize]) -> Result<()> {
    let told = || format!("processors {processors:?}");
    let mut set = CpuSet::new();
    for processor in processors {
        if *processor >= CpuSet::MAX_CPU {
            return Err(Error::new("sched_setaffinity", told(), libc::EINVAL));
        }
        set.set(*processor);
    }
    let id = thread.and_then(|thread| Pid::from_raw(thread.cast_signed()));
    rustix::thread::sched_setaffinity(id, &set).named("sched_setaffinity", told())
}

/// How often it is looked for threads that came while others were kept.
const ROUNDS: usize = 16;

/// The same for all threads of a process, and those that they start.
pub fn pin_process(process: u32, processors: &[usize]) -> Result<()> {
    let mut done = BTreeSet::new();
    // What is started by a thread that is kept already is kept as it begins.
    for _ in 0..ROUNDS {
        let new: Vec<u32> = threads(process).difference(&done).copied().collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            match pin(Some(thread), processors) {
                // It has ended since it was listed.
                Err(error) if error.errno == libc::ESRCH => {}
                kept => kept?,
            }
            done.insert(thread);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_thread_is_seen_and_kept_where_it_is_to_be() {
        let process = std::process::id();
        let before = Task::of_thread(process, current_thread()).unwrap();
        assert_eq!(before.run_state, RunState::Runs, "it looks");
        assert!(before.resident > 100_000 && !before.processors.is_empty(), "{before:?}");
        let first = before.processors[0];
        pin(None, &[first]).unwrap();
        let kept = Task::of_thread(process, current_thread()).unwrap();
        assert_eq!(kept.processors, [first]);
        assert!(kept.processor_ns >= before.processor_ns);
        assert_eq!(pin(None, &[1000]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(pin(None, &[100_000]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(Task::of_thread(process, u32::MAX), None);
    }

    #[test]
    fn a_process_is_kept_with_all_that_it_starts() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let seen = Task::of_process(child.id()).unwrap();
        assert_eq!(seen.parent, std::process::id());
        let last = *seen.processors.last().unwrap();
        pin_process(child.id(), &[last]).unwrap();
        assert_eq!(Task::of_process(child.id()).unwrap().processors, [last]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(Task::of_process(child.id()), None);
        pin_process(child.id(), &[last]).unwrap();
    }

    #[test]
    fn lists_of_processors_are_numbers() {
        assert_eq!(ranges("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(ranges("7"), [7]);
        assert_eq!(ranges(""), [0usize; 0]);
    }
}
