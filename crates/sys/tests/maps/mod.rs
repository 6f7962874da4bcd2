//! Test helper that reads the kernel's flags of a mapping of this process.

/// Returns true if `mprotect` may make the mapping that begins at this address writable, according
/// to the mapping's `mw` ("may write") flag (proc_pid_smaps(5)). Returns `None` if no mapping
/// begins there.
pub(crate) fn may_become_writable(address: usize) -> Option<bool> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("/proc");
    let begin = format!("{address:08x}-");
    let mapping = smaps.lines().skip_while(|line| !line.starts_with(&begin));
    let flags = mapping.filter_map(|line| line.strip_prefix("VmFlags:")).next()?;
    Some(flags.split_whitespace().any(|flag| flag == "mw"))
}
