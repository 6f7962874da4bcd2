//! Placement of a path's threads on processors that share a cache. [Th §5.2, §5.5], FEATURES K9
//!
//! Entries of a ring cross fastest through a cache that both processors share (BASELINES, two
//! cores), and the kernel's scheduler does not know which threads share rings. The first threads of
//! a path are therefore confined to the processors that share the last-level cache with the
//! processor on which the path starts, provided that each thread gets a processor. The nearest
//! shared cache would be the wrong choice: processors that share the first or second level are
//! siblings of one core, which also share its execution units. Threads that changes or replicas add
//! later may run anywhere.

/// Returns the processors to which the threads of a path are confined; empty if they may run
/// anywhere.
pub(crate) fn processors(threads: usize) -> Vec<usize> {
    if threads < 2 {
        return Vec::new();
    }
    let allowed = sys::process::allowed_processors().unwrap_or_default();
    let sharers = sys::machine::last_cache_sharers(sys::machine::current_processor());
    choose_processors(&allowed, &sharers, threads)
}

/// Returns the allowed processors among those that share a cache, if there are enough for these
/// threads and other processors are excluded; otherwise returns an empty list.
fn choose_processors(allowed: &[usize], sharers: &[usize], threads: usize) -> Vec<usize> {
    let near: Vec<usize> = allowed.iter().copied().filter(|at| sharers.contains(at)).collect();
    let suffices = near.len() >= threads && near.len() < allowed.len();
    if suffices { near } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k9_threads_of_a_path_share_the_last_cache_where_they_fit() {
        let (all, half) = ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3]);
        assert_eq!(choose_processors(&all, &half, 2), half);
        assert_eq!(
            choose_processors(&all[2..], &half, 2),
            [2, 3],
            "only where the process may run"
        );
        assert!(choose_processors(&all, &half, 5).is_empty(), "more threads than processors");
        assert!(choose_processors(&half, &half, 2).is_empty(), "all share it");
        assert!(choose_processors(&all, &[], 2).is_empty(), "nothing is known");
    }
}
