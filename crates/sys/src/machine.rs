//! What machine this is: processors, caches, memory, kernel, and who we are on it.
//!
//! Read once, when a plan is made; the planner gets it as a value. Where a file is missing (a
//! container, a strange processor), the figure is `None` and not a guess.

use std::fs;
use std::path::Path;

/// What the planner and `doctor` want to know of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Processors that this process may run on.
    pub processors: usize,
    /// Bytes of data cache per level of the first processor, level 1 first.
    pub caches: Vec<usize>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of a page.
    pub page: usize,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The effective user.
    pub uid: u32,
    /// Effective capabilities.
    pub capabilities: Capabilities,
}

impl Machine {
    /// Looks at the machine.
    #[must_use]
    pub fn detect() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory: fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory(&text)),
            page: rustix::param::page_size(),
            release: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
            capabilities: Capabilities::parse(&status, "CapEff:").unwrap_or_default(),
        }
    }

    /// Major and minor number of the kernel, for example (6, 18).
    #[must_use]
    pub fn kernel(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// The processor on which we run at this moment.
#[must_use]
pub fn current_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The processors that share the nearest cache with this one that it shares with any, itself among
/// them; none where that is not known, or it shares none.
#[must_use]
pub fn cache_sharers(processor: usize) -> Vec<usize> {
    cache_sharers_below(&Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/cache")))
}

fn cache_sharers_below(folder: &Path) -> Vec<usize> {
    let shared = |index: &Path| {
        let all = processors(&fs::read_to_string(index.join("shared_cpu_list")).ok()?)?;
        let level: u32 = fs::read_to_string(index.join("level")).ok()?.trim().parse().ok()?;
        (all.len() > 1).then_some((level, all))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let nearest = entries.filter_map(|entry| shared(&entry.path())).min();
    nearest.map_or_else(Vec::new, |(_, all)| all)
}

/// A list of processors as sysfs writes it: `0-3,8`.
fn processors(list: &str) -> Option<Vec<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < rustix::thread::CpuSet::MAX_CPU).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// How many processors there can be, off-line ones included: the numbers of processors are below
/// that, and as many values the kernel keeps where it keeps one for each.
pub fn possible_processors() -> crate::Result<usize> {
    const FILE: &str = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(FILE)
        .map_err(|error| crate::Error::new("open", FILE, error.raw_os_error().unwrap_or(0)))?;
    // Ranges in ascending order, as "0-3,8-11".
    let last = text.trim().rsplit(['-', ',']).next().and_then(|word| word.parse::<usize>().ok());
    last.and_then(|last| last.checked_add(1))
        .ok_or_else(|| crate::Error::new("read", FILE, libc::EINVAL))
}

/// A set of capabilities (capabilities(7)), as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// May change network interfaces and attach programs to them.
    pub const NET_ADMIN: u32 = 12;
    /// May open raw and packet sockets.
    pub const NET_RAW: u32 = 13;
    /// May do nearly everything.
    pub const SYS_ADMIN: u32 = 21;
    /// May load programs that look at kernel memory.
    pub const PERFMON: u32 = 38;
    /// May load eBPF programs.
    pub const BPF: u32 = 39;

    /// Whether a capability is in the set.
    #[must_use]
    pub const fn has(self, number: u32) -> bool {
        self.0 & (1 << number) != 0
    }

    /// The set with this title in `/proc/PID/status`.
    pub(crate) fn parse(status: &str, title: &str) -> Option<Self> {
        let text = status.lines().find_map(|line| line.strip_prefix(title))?;
        u64::from_str_radix(text.trim(), 16).ok().map(Self)
    }
}

/// Data and unified caches below this folder of sysfs, level 1 first.
fn caches(folder: &Path) -> Vec<usize> {
    let mut found: Vec<(u32, usize)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let index = entry.ok()?.path();
            let field = |name| fs::read_to_string(index.join(name)).ok();
            if field("type")?.trim() == "Instruction" {
                return None;
            }
            Some((field("level")?.trim().parse().ok()?, size(field("size")?.trim())?))
        })
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(level, _)| *level);
    found.into_iter().map(|(_, size)| size).collect()
}

/// A size as sysfs writes it: `48K`, `2048K`, `32M`.
fn size(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 1 << 20),
            None => (text, 1),
        },
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_understood() {
        assert_eq!(size("48K"), Some(49152));
        assert_eq!(size("32M"), Some(1 << 25));
        assert_eq!(size("lots"), None);
        assert_eq!(memory("MemTotal:       24585032 kB\nMemFree: 1 kB\n"), Some(24585032 << 10));
        let caps = Capabilities::parse("Name:\tx\nCapEff:\t000000c000003000\n", "CapEff:").unwrap();
        assert!(caps.has(Capabilities::NET_ADMIN) && caps.has(Capabilities::BPF));
        assert!(!caps.has(Capabilities::SYS_ADMIN));
        assert!(caches(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn k9_who_shares_the_nearest_cache_is_found() {
        assert_eq!(processors("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert!(processors("").is_none() && processors("0-99999999").is_none());
        let folder = std::env::temp_dir().join(format!("caches-{}", std::process::id()));
        let cache = |index: &str, level: &str, list: &str| {
            let path = folder.join(index);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("level"), level).unwrap();
            fs::write(path.join("shared_cpu_list"), list).unwrap();
        };
        cache("index0", "1\n", "4\n");
        cache("index1", "1\n", "4\n");
        assert_eq!(cache_sharers_below(&folder), []);
        cache("index3", "3\n", "0-7\n");
        assert_eq!(cache_sharers_below(&folder), [0, 1, 2, 3, 4, 5, 6, 7]);
        cache("index2", "2\n", "4,6\n");
        assert_eq!(cache_sharers_below(&folder), [4, 6], "the second level is nearer than the third");
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(cache_sharers_below(&folder), []);
    }

    #[test]
    fn this_machine_is_a_machine() {
        let here = Machine::detect();
        assert!(here.processors > 0 && here.page >= 4096);
        assert!(here.kernel().is_some_and(|(major, _)| major >= 3), "{}", here.release);
        assert!(here.caches.is_sorted(), "{:?}", here.caches);
        assert!(here.memory.is_some_and(|bytes| bytes > 1 << 20));
    }
}
