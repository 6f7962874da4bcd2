//! State, CPU time and memory of threads and processes (proc_pid_stat(5)), and their CPU affinity.

use crate::error::{Error, ErrorContext as _, Result};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;

/// A thread, or a process with all its threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Run state of the task. A process counts as running if any of its threads is running.
    pub run_state: RunState,
    /// Process id of the task's parent process.
    pub parent: u32,
    /// CPU time in ns; for a process, of all threads that are still alive.
    pub processor_ns: u64,
    /// CPUs that the task may use.
    pub processors: Vec<usize>,
    /// CPU on which the task is running or last ran; for a process, the CPU of its first thread.
    /// `None` if the kernel does not report it.
    pub processor: Option<usize>,
    /// Resident memory of the process in bytes, including shared pages.
    pub resident: u64,
}

/// The run state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// The task is running or runnable.
    Running,
    /// The task is waiting for an event.
    Sleeping,
    /// The task has been stopped by a signal or tracer.
    Stopped,
    /// The task has ended, but its parent has not reaped it (zombie).
    Ended,
}

/// Returns the kernel's id of the calling thread.
#[must_use]
pub fn current_thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

impl Task {
    /// Returns the state of a thread; `None` if it has ended.
    #[must_use]
    pub fn read_thread(process: u32, thread: u32) -> Option<Self> {
        Self::read_stat(&format!("/proc/{process}/task/{thread}"))
    }

    /// Returns the state of a process; `None` if it has ended.
    #[must_use]
    pub fn read_process(process: u32) -> Option<Self> {
        let mut whole = Self::read_stat(&format!("/proc/{process}"))?;
        let all = thread_ids(process).into_iter();
        let all: Vec<Self> = all.filter_map(|thread| Self::read_thread(process, thread)).collect();
        whole.processor_ns = all.iter().map(|task| task.processor_ns).sum();
        if all.iter().any(|task| task.run_state == RunState::Running) {
            whole.run_state = RunState::Running;
        }
        Some(whole)
    }

    fn read_stat(directory: &str) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(format!("{directory}/{name}")).ok();
        let stat = text("stat")?;
        // The fields follow the command name, which may contain any character.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let run_state = match words.next()? {
            "R" => RunState::Running,
            "T" | "t" => RunState::Stopped,
            "Z" | "X" => RunState::Ended,
            _ => RunState::Sleeping,
        };
        let parent = words.next()?.parse().ok()?;
        // Field 39, the CPU. The parent is field 4.
        let processor = words.nth(34).and_then(|word| word.parse().ok());
        let status = text("status")?;
        let of =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kilobytes = of("VmRSS:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        // Absent on kernels without schedstats.
        let ran = text("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
        Some(Self {
            run_state,
            parent,
            processor,
            processor_ns: ran.unwrap_or_default(),
            processors: of("Cpus_allowed_list:").map(parse_processor_list).unwrap_or_default(),
            resident: kilobytes.unwrap_or_default() * 1024,
        })
    }
}

/// Returns the path argument of a mkdir(2) or mkdirat(2) call that a thread is executing. The
/// thread must be blocked in the call or about to block, for example to wait for the reply of a
/// FUSE server; this function retries until the thread has blocked, for a limited time. Returns
/// `None` if the thread is in another call, or if the kernel refuses because the thread belongs to
/// another user or may not be traced.
#[must_use]
pub fn mkdir_path_in_progress(thread: u32) -> Option<Vec<u8>> {
    for _ in 0..SYSCALL_READ_ATTEMPTS_MAX {
        // The number of the system call and its arguments, or `running`.
        let text = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        let mut words = text.split_whitespace();
        match words.next()? {
            "running" => std::thread::yield_now(),
            number => {
                let number: libc::c_long = number.parse().ok()?;
                let (_, at) = MKDIR_CALLS.iter().find(|(known, _)| *known == number)?;
                let address = words.nth(*at)?.strip_prefix("0x")?;
                return read_process_text(thread, u64::from_str_radix(address, 16).ok()?);
            }
        }
    }
    None
}

/// Reads a zero-terminated text from the memory of a process. Returns `None` if the memory cannot
/// be read or has no zero within [`PATH_MAX`] bytes.
fn read_process_text(process: u32, address: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PATH_MAX];
    let memory = fs::File::open(format!("/proc/{process}/mem")).ok()?;
    let length = memory.read_at(&mut bytes, address).ok()?;
    bytes.truncate(bytes.get(..length)?.iter().position(|byte| *byte == 0)?);
    Some(bytes)
}

/// Maximum length of a path in bytes, including the final zero.
const PATH_MAX: usize = 4096;
/// Maximum number of attempts to read which system call a thread is executing, while the thread is
/// still running.
const SYSCALL_READ_ATTEMPTS_MAX: usize = 1000;
/// System calls that create a directory, each with the index of its path argument.
#[cfg(target_arch = "x86_64")]
const MKDIR_CALLS: [(libc::c_long, usize); 2] = [(libc::SYS_mkdir, 0), (libc::SYS_mkdirat, 1)];
/// System calls that create a directory, each with the index of its path argument.
#[cfg(not(target_arch = "x86_64"))]
const MKDIR_CALLS: [(libc::c_long, usize); 1] = [(libc::SYS_mkdirat, 1)];

/// Lists the thread ids of a process.
fn thread_ids(process: u32) -> BTreeSet<u32> {
    let all = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Parses a CPU list such as `0-2,5`. Skips malformed ranges.
pub(crate) fn parse_processor_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Pins a thread, or the calling thread if `thread` is `None`, and the threads that it starts
/// later, to the CPUs in `processors`.
pub fn pin_thread(thread: Option<u32>, processors: &[usize]) -> Result<()> {
    let target = || format!("processors {processors:?}");
    let mut set = CpuSet::new();
    for processor in processors {
        if *processor >= CpuSet::MAX_CPU {
            return Err(Error::new("sched_setaffinity", target(), libc::EINVAL));
        }
        set.set(*processor);
    }
    let id = thread.and_then(|thread| Pid::from_raw(thread.cast_signed()));
    rustix::thread::sched_setaffinity(id, &set).context("sched_setaffinity", target())
}

/// Gives the calling thread the lowest priority, and permits it to run on every CPU that the first
/// thread of the process may use. Ignores refusals by the kernel.
pub fn set_background_priority() {
    // On Linux, a nice value applies to a single thread.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY_NICE);
    if let Some(first) = Task::read_thread(std::process::id(), std::process::id()) {
        let _ = pin_thread(None, &first.processors);
    }
}

/// The nice value of the lowest priority.
const LOWEST_PRIORITY_NICE: i32 = 19;

/// Maximum number of times that [`pin_process`] lists the threads of a process. After each listing,
/// it pins the threads that the previous listings lack.
const THREAD_LISTINGS_MAX: usize = 16;

/// Pins all threads of a process, and the threads that they start later, to the CPUs in
/// `processors`.
pub fn pin_process(process: u32, processors: &[usize]) -> Result<()> {
    let mut done = BTreeSet::new();
    // A thread started by a pinned thread inherits its affinity.
    for _ in 0..THREAD_LISTINGS_MAX {
        let new: Vec<u32> = thread_ids(process).difference(&done).copied().collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            match pin_thread(Some(thread), processors) {
                // The thread has ended since it was listed.
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
    fn thread_is_queried_and_pinned() {
        let process = std::process::id();
        let before = Task::read_thread(process, current_thread_id()).unwrap();
        assert_eq!(before.run_state, RunState::Running, "it looks");
        assert!(before.resident > 100_000 && !before.processors.is_empty(), "{before:?}");
        let first = before.processors[0];
        pin_thread(None, &[first]).unwrap();
        let kept = Task::read_thread(process, current_thread_id()).unwrap();
        assert_eq!(kept.processors, [first]);
        assert!(kept.processor_ns >= before.processor_ns);
        assert_eq!(pin_thread(None, &[1000]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(pin_thread(None, &[100_000]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(Task::read_thread(process, u32::MAX), None);
    }

    #[test]
    fn process_is_pinned_with_all_its_threads() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let observed = Task::read_process(child.id()).unwrap();
        assert_eq!(observed.parent, std::process::id());
        let last = *observed.processors.last().unwrap();
        pin_process(child.id(), &[last]).unwrap();
        assert_eq!(Task::read_process(child.id()).unwrap().processors, [last]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(Task::read_process(child.id()), None);
        pin_process(child.id(), &[last]).unwrap();
    }

    #[test]
    fn cpu_list_ranges_are_parsed() {
        assert_eq!(parse_processor_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_processor_list("7"), [7]);
        assert_eq!(parse_processor_list(""), [0usize; 0]);
    }
}
