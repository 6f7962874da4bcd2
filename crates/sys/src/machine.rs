//! Facts about this machine: CPUs, caches, memory, kernel, privileges.
//!
//! The facts are read once per plan and passed to the planner as a value. If a file is missing (in
//! a container, on an unusual CPU), its fact is missing (`None` or empty) or has the lowest
//! possible value (one CPU, no capability), never a guessed one.

use crate::error::ErrorContext as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The facts about a machine that the planner and `doctor` use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Number of CPUs that this process may use.
    pub processor_count: usize,
    /// Data cache sizes of CPU 0 in bytes, level 1 first.
    pub cache_sizes: Vec<usize>,
    /// Size of memory in bytes; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Page size in bytes.
    pub page_size: usize,
    /// Kernel release, as printed by `uname -r`.
    pub release: String,
    /// Effective user id.
    pub uid: u32,
    /// Effective capabilities of this process.
    pub capabilities: Capabilities,
}

impl Machine {
    /// Detects the facts about this machine from `/proc` and `/sys` and by queries to the kernel.
    #[must_use]
    pub fn detect() -> Self {
        // The caches stay the same, and their files are slow to read.
        static CACHE_SIZES: OnceLock<Vec<usize>> = OnceLock::new();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            processor_count: std::thread::available_parallelism().map_or(1, usize::from),
            cache_sizes: CACHE_SIZES
                .get_or_init(|| read_cache_sizes(Path::new("/sys/devices/system/cpu/cpu0/cache")))
                .clone(),
            memory_bytes: fs::read_to_string("/proc/meminfo")
                .ok()
                .and_then(|text| parse_total_memory(&text)),
            page_size: rustix::param::page_size(),
            release: read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
            capabilities: Capabilities::parse(&status, "CapEff:").unwrap_or_default(),
        }
    }

    /// Returns the major and the minor version of the kernel, for example (6, 18); `None` if the
    /// release does not begin with two numbers.
    #[must_use]
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// Returns the CPU that this thread is running on.
#[must_use]
pub fn current_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// Returns the CPUs that share the nearest shared cache of `processor`, including `processor`
/// itself; empty if unknown or if no cache is shared.
#[must_use]
pub fn processors_sharing_cache(processor: usize) -> Vec<usize> {
    read_processors_sharing_cache(
        &Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/cache")),
    )
}

/// Returns the CPUs that share the outermost shared cache of `processor`, including `processor`
/// itself; empty if unknown or if no cache is shared. Reads sysfs once per processor.
#[must_use]
pub fn processors_sharing_last_cache(processor: usize) -> Vec<usize> {
    static KNOWN_SHARING_PROCESSORS: Mutex<BTreeMap<usize, Vec<usize>>> =
        Mutex::new(BTreeMap::new());
    let mut known = KNOWN_SHARING_PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || {
        let directory = Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/cache"));
        read_shared_caches(&directory).pop().unwrap_or_default()
    };
    known.entry(processor).or_insert_with(read).clone()
}

fn read_processors_sharing_cache(directory: &Path) -> Vec<usize> {
    read_shared_caches(directory).into_iter().next().unwrap_or_default()
}

/// Returns, for each shared cache in a CPU's sysfs `directory`, the CPUs that share it. The list
/// begins with the cache nearest to the CPU.
fn read_shared_caches(directory: &Path) -> Vec<Vec<usize>> {
    let shared = |index: &Path| {
        let all = parse_cpu_list(&fs::read_to_string(index.join("shared_cpu_list")).ok()?)?;
        let level: u32 = fs::read_to_string(index.join("level")).ok()?.trim().parse().ok()?;
        (all.len() > 1).then_some((level, all))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(u32, Vec<usize>)> =
        entries.filter_map(|entry| shared(&entry.path())).collect();
    found.sort();
    found.into_iter().map(|(_, all)| all).collect()
}

/// Parses a CPU list from sysfs, such as `0-3,8`; returns `None` if it is malformed.
fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < rustix::thread::CpuSet::MAX_CPU).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// Returns the number of possible CPUs, including offline ones. CPU numbers are below this number,
/// and a per-CPU map holds this many values for each key.
pub fn count_possible_processors() -> crate::Result<usize> {
    const POSSIBLE_PROCESSORS_FILE: &str = "/sys/devices/system/cpu/possible";
    let text =
        fs::read_to_string(POSSIBLE_PROCESSORS_FILE).context("open", POSSIBLE_PROCESSORS_FILE)?;
    // Ascending ranges, such as "0-3,8-11".
    let last = text.trim().rsplit(['-', ',']).next().and_then(|word| word.parse::<usize>().ok());
    last.and_then(|last| last.checked_add(1))
        .ok_or_else(|| crate::Error::new("read", POSSIBLE_PROCESSORS_FILE, libc::EINVAL))
}

/// A capability set (capabilities(7)) as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Capability that permits configuring network interfaces and attaching programs to them.
    pub const NET_ADMIN: u32 = 12;
    /// Capability that permits opening raw and packet sockets.
    pub const NET_RAW: u32 = 13;
    /// Capability that permits most administrative operations.
    pub const SYS_ADMIN: u32 = 21;
    /// Capability that permits loading programs that read kernel memory.
    pub const PERFMON: u32 = 38;
    /// Capability that permits loading eBPF programs.
    pub const BPF: u32 = 39;

    /// Returns true if capability `number` is in the set.
    #[must_use]
    pub const fn contains(self, number: u32) -> bool {
        self.0 & (1 << number) != 0
    }

    /// Parses the capability set after `title` in the text of `/proc/PID/status`; returns `None` if
    /// it is missing or malformed.
    pub(crate) fn parse(status: &str, title: &str) -> Option<Self> {
        let text = status.lines().find_map(|line| line.strip_prefix(title))?;
        u64::from_str_radix(text.trim(), 16).ok().map(Self)
    }
}

/// Reads the sizes in bytes of data and unified caches from a sysfs directory, level 1 first.
fn read_cache_sizes(directory: &Path) -> Vec<usize> {
    let mut found: Vec<(u32, usize)> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let index = entry.ok()?.path();
            let field = |name| fs::read_to_string(index.join(name)).ok();
            if field("type")?.trim() == "Instruction" {
                return None;
            }
            Some((field("level")?.trim().parse().ok()?, parse_size(field("size")?.trim())?))
        })
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(level, _)| *level);
    found.into_iter().map(|(_, size)| size).collect()
}

/// Parses a size from sysfs, such as `48K` or `32M`, and returns it in bytes; `None` if malformed.
fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 1 << 20),
            None => (text, 1),
        },
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

fn parse_total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read_trimmed(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_cache_and_memory_files_are_parsed() {
        assert_eq!(parse_size("48K"), Some(49152));
        assert_eq!(parse_size("32M"), Some(1 << 25));
        assert_eq!(parse_size("lots"), None);
        assert_eq!(
            parse_total_memory("MemTotal:       24585032 kB\nMemFree: 1 kB\n"),
            Some(24585032 << 10)
        );
        let caps = Capabilities::parse("Name:\tx\nCapEff:\t000000c000003000\n", "CapEff:").unwrap();
        assert!(caps.contains(Capabilities::NET_ADMIN) && caps.contains(Capabilities::BPF));
        assert!(!caps.contains(Capabilities::SYS_ADMIN));
        assert!(read_cache_sizes(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn k9_cpus_sharing_the_nearest_cache_are_found() {
        assert_eq!(parse_cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert!(parse_cpu_list("").is_none() && parse_cpu_list("0-99999999").is_none());
        let directory = std::env::temp_dir().join(format!("caches-{}", std::process::id()));
        let cache = |index: &str, level: &str, list: &str| {
            let path = directory.join(index);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("level"), level).unwrap();
            fs::write(path.join("shared_cpu_list"), list).unwrap();
        };
        cache("index0", "1\n", "4\n");
        cache("index1", "1\n", "4\n");
        assert_eq!(read_processors_sharing_cache(&directory), []);
        cache("index3", "3\n", "0-7\n");
        assert_eq!(read_processors_sharing_cache(&directory), [0, 1, 2, 3, 4, 5, 6, 7]);
        cache("index2", "2\n", "4,6\n");
        assert_eq!(
            read_processors_sharing_cache(&directory),
            [4, 6],
            "the second level is nearer than the third"
        );
        assert_eq!(read_shared_caches(&directory).pop(), Some((0..8).collect()), "the last one");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(read_processors_sharing_cache(&directory), []);
    }

    #[test]
    fn detected_machine_facts_are_plausible() {
        let here = Machine::detect();
        assert!(here.processor_count > 0 && here.page_size >= 4096);
        assert!(here.kernel_version().is_some_and(|(major, _)| major >= 3), "{}", here.release);
        assert!(here.cache_sizes.is_sorted(), "{:?}", here.cache_sizes);
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
